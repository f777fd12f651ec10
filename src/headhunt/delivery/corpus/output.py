"""The output directory of a corpus, on this machine or behind a URL."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from headhunt.data.inputs import filesystem, split_url
from headhunt.data.problems import brief
from headhunt.errors import HeadhuntError
from headhunt.storage import PARTIAL, LockTimeout, atomic_file, hold_lock, parse_json, sweep_partial

LOCK, ATTEMPTS = ".headhunt.lock", ".attempts-"


class OutputDirectory:
    """A directory for shards, on this machine or behind a URL. Every file in it is complete.

    Args:
        url: A path or a URL.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._root, self._path = split_url(url)
        self._filesystem = filesystem(self._root)

    def names(self) -> set[str]:
        """Return the names of its files.

        Raises:
            HeadhuntError: If the directory cannot be read.
        """
        try:
            items = self._filesystem.get_file_info(pafs.FileSelector(self._path, allow_not_found=True))
        except (OSError, pa.ArrowException) as error:
            raise HeadhuntError(f"must be a folder that can be read; {self.url}: {brief(error)}.", "out") from None
        return {item.base_name for item in items if not _is_internal(item.base_name)}

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other jobs of this machine out of the directory in the block, and remove what killed ones left.

        An object store has no locks: two jobs into one URL write the same shards twice, and nothing is lost.

        Raises:
            HeadhuntError: If another job is running, or the directory cannot be created.
        """
        if self._root:
            try:
                yield
            finally:
                self._forget_attempts()
            return
        is_new = not Path(self._path).exists()
        try:
            lock = hold_lock(Path(self._path) / LOCK)
        except LockTimeout:
            raise HeadhuntError(
                f"Only one job may write to a folder; another is writing to {self.url}. Wait, or give another folder."
            ) from None
        except OSError as error:
            raise HeadhuntError(
                f"must be a folder that can be written to; {self.url}: {brief(error)}.", "out"
            ) from None
        try:
            sweep_partial(Path(self._path))
            yield
        finally:
            sweep_partial(Path(self._path))
            self._forget_attempts()
            # Removed while it is held: a job that opens it later makes a new one.
            (Path(self._path) / LOCK).unlink(missing_ok=True)
            lock.release()
            if is_new:  # refused before anything was written
                with contextlib.suppress(OSError):
                    Path(self._path).rmdir()

    def _forget_attempts(self) -> None:
        """Remove the records of workers that died. A job that is killed leaves them to the next one."""
        selector = pafs.FileSelector(self._path, allow_not_found=True)
        for found in self._filesystem.get_file_info(selector):
            if found.base_name.startswith(ATTEMPTS):
                self._filesystem.delete_file(found.path)

    def begin_attempt(self, name: str) -> int:
        """Record that a worker starts to make a shard; return how many have started before and not finished.

        A worker that dies leaves its record.
        """
        before = self._filesystem.get_file_info(f"{self._path}/{ATTEMPTS}{name}").size or 0
        with self.open(f"{ATTEMPTS}{name}") as file:
            file.write(b"." * (before + 1))
        return before

    def end_attempts(self, name: str) -> None:
        """Forget the attempts to make a shard."""
        self._filesystem.delete_file(f"{self._path}/{ATTEMPTS}{name}")

    @contextlib.contextmanager
    def open(self, name: str) -> Iterator[IO[bytes]]:
        """Open a file for writing that appears when the block ends without an error."""
        if not self._root:
            with atomic_file(Path(self._path) / name) as file:
                yield file
            return
        with tempfile.TemporaryDirectory() as folder:
            local = Path(folder) / name
            with local.open("wb") as file:
                yield file
            # A file in an object store appears when all of it has arrived.
            pafs.copy_files(
                local.as_posix(),
                f"{self._path}/{name}",
                source_filesystem=pafs.LocalFileSystem(),
                destination_filesystem=self._filesystem,
            )

    def read_json(self, name: str) -> Any:
        """Return the content of a JSON file."""
        with self._filesystem.open_input_stream(f"{self._path}/{name}") as file:
            return parse_json(file.read())

    def write_json(self, name: str, data: dict[str, Any]) -> None:
        """Write a JSON file.

        Raises:
            HeadhuntError: If the directory cannot be written to.
        """
        try:
            self._filesystem.create_dir(self._path, recursive=True)
            with self.open(name) as file:
                file.write((json.dumps(data, indent=1, ensure_ascii=False) + "\n").encode())
        except (OSError, pa.ArrowException) as error:
            raise HeadhuntError(
                f"must be a folder that can be written to; {self.url}: {brief(error)}.", "out"
            ) from None

    def count_problems(self, name: str) -> tuple[int, Counter[str]]:
        """Return the number of rows of a shard, and the number of rows with each problem.

        Raises:
            OSError: If the shard is missing or damaged; pyarrow may raise an `ArrowException` instead.
        """
        with self._filesystem.open_input_file(f"{self._path}/{name}") as file:
            column = pq.ParquetFile(file).read(["problem"])["problem"]
        counts = {item["values"]: item["counts"] for item in pc.value_counts(column.drop_null()).to_pylist()}
        return len(column), Counter(counts)


def _is_internal(name: str) -> bool:
    """Return whether a file is a lock, a record of attempts or a temporary file of a job."""
    return name == LOCK or name.startswith(ATTEMPTS) or (name.startswith(".") and name.endswith(PARTIAL))
