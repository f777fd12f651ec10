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
from headhunt.storage import PARTIAL, atomic_file


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
            raise HeadhuntError(f"out= must be a folder that can be read; {self.url}: {brief(error)}.") from None
        return {item.base_name for item in items}

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
            return json.loads(file.read())

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
            raise HeadhuntError(f"out= must be a folder that can be written to; {self.url}: {brief(error)}.") from None

    def count_problems(self, name: str) -> tuple[int, Counter[str]]:
        """Return the number of rows of a shard, and the number of rows with each problem.

        Raises:
            OSError: If the shard is missing or damaged; pyarrow may raise an `ArrowException` instead.
        """
        with self._filesystem.open_input_file(f"{self._path}/{name}") as file:
            column = pq.ParquetFile(file).read(["problem"])["problem"]
        counts = {item["values"]: item["counts"] for item in pc.value_counts(column.drop_null()).to_pylist()}
        return len(column), Counter(counts)

    def remove_partial_shards(self) -> None:
        """Remove the temporary files of workers that were killed."""
        if not self._root:
            for path in Path(self._path).glob(f".part-*{PARTIAL}"):
                path.unlink(missing_ok=True)
