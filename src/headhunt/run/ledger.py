"""Read and append to the ledger of a run, the one record of what happened in a search.

A search survives a crash at any moment: there is one writer, every commit is synced before anything follows from it,
and a torn last line is ignored.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from io import FileIO
from pathlib import Path
from types import TracebackType

from headhunt.run.clock import steady_time
from headhunt.run.directory import RunDirectory
from headhunt.run.events import Event, RunResumed, RunStarted, decode, encode
from headhunt.run.schema import RunError
from headhunt.run.state import State
from headhunt.storage import LockTimeout, directory_size, hold_lock, make_directory, remove, sync_directory, write_json

IDENTITY = ("space", "task", "settings", "seed")  # what a resumed run must share with its beginning


def read_ledger(path: Path) -> tuple[State, int]:
    """Return the state a ledger describes and the number of bytes of its complete records.

    A torn or damaged last line is left out: the writer died before it was synced.

    Raises:
        RunError: If any other line is damaged or does not fit the ones before it.
    """
    data = path.read_bytes()
    end = data.rfind(b"\n") + 1
    lines = data[:end].split(b"\n")[:-1]
    state, size = State(), 0
    for number, line in enumerate(lines, 1):
        try:
            at, event = decode(line)
            state.apply(event, at)
        except RunError as error:
            if number == len(lines) and number > 1 and "checksum" in str(error):
                break
            raise RunError(
                f"Line {number} of {path} is not valid: {error}. The file was changed or the disk is failing; "
                "remove that line and the ones after it to continue from there."
            ) from None
        size += len(line) + 1
    return state, size


def read_state(directory: RunDirectory) -> State:
    """Return the state of a search, running or ended.

    Raises:
        RunError: If the directory has no ledger, or the ledger is damaged.
    """
    if not directory.ledger.is_file():
        state = "it has no ledger.jsonl" if directory.path.exists() else "it does not exist"
        raise RunError(f"{directory.path} is not the run directory of a search: {state}. Check the path.")
    return read_ledger(directory.ledger)[0]


def clean(directory: RunDirectory) -> int:
    """Remove checkpoints that nothing needs and return their bytes.

    A search that has ended needs the last checkpoint of each trial in its result, for `verdict` and `ablate`; resumed,
    it trains other trials from the start. One that has not ended needs the last checkpoint of every trial.

    Raises:
        RunError: If a process is writing the run.
    """
    read_state(directory)  # refuses a directory that is no run
    with LedgerWriter(directory):
        before, sizes = directory_size(directory.checkpoints), directory.checkpoint_sizes()
        latest = dict(sorted(sizes))
        if (result := directory.read_result()) is not None:
            summaries = [summary.trial for summary in (result.winner, result.plain) if summary]
            needed = {*summaries, *result.ensemble_members, *(finalist.trial for finalist in result.finalists)}
            latest = {trial: rung for trial, rung in latest.items() if trial in needed}
        for key in sizes.keys() - latest.items():
            remove(directory.checkpoint(*key))
        return before - directory_size(directory.checkpoints)


class LedgerWriter:
    """The one writer of a run's ledger; holds the lock until `close` or the end of the process.

    Args:
        directory: The run directory; created if missing.
        now: Returns the time to record.

    Raises:
        RunError: If the ledger is damaged or another process writes.
    """

    def __init__(self, directory: RunDirectory, *, now: Callable[[], float] = steady_time) -> None:
        self.directory = directory
        self._now = now
        self._staged: list[bytes] = []
        self._file: FileIO | None = None
        make_directory(directory.path)
        try:
            self._lock = hold_lock(directory.lock)
        except LockTimeout:
            raise RunError(
                f"Only one process may write a run; another is writing {directory.path}. Wait, or stop it."
            ) from None
        try:
            directory.refuse_links()
            directory.sweep()
            self.state, size = read_ledger(directory.ledger) if directory.ledger.is_file() else (State(), 0)
            self._file = _open_without_links(directory.ledger)
            self._size = size
            self._torn = False  # whether the file may have bytes after that size
            self._file.truncate(size)
            sync_directory(directory.path)  # a new file's name is durable only with its directory
        except BaseException:
            self.close()
            raise

    def begin(self, started: RunStarted) -> None:
        """Write the first event, or check that this is the same search and continue it.

        Raises:
            RunError: If the run was begun with another space, task, settings or seed.
        """
        if self.state.started is None:
            self.append(started)
            write_json(self.directory.environment, started.versions)
            return
        differ = [name for name in IDENTITY if _plain(self.state.started, name) != _plain(started, name)]
        if differ:
            raise RunError(
                f"{self.directory.path} was begun with another {' and '.join(differ)}. "
                "Use another run directory, or resume with the same ones."
            )
        self.append(RunResumed())

    def stage(self, event: Event) -> bool:
        """Apply an event now and write it with the next `commit`; return what `State.apply` returns."""
        at = round(self._now(), 3)
        line = encode(event, at)
        final = self.state.apply(decode(line[:-1])[1], at)  # as a reader will see it: tuples have become lists
        self._staged.append(line)
        return final

    def commit(self) -> None:
        """Write the staged events and sync once. After an error of the disk, nothing is lost: call it again.

        Raises:
            OSError: If the disk is full or failing.
        """
        if self._file is None:
            raise RunError(f"The ledger of {self.directory.path} is closed.")
        if not self._staged:
            return
        if self._torn:
            self._file.truncate(self._size)
            self._torn = False
        data = memoryview(b"".join(self._staged))
        end = self._size + len(data)
        try:
            while data:
                data = data[self._file.write(data) :]  # a full disk may take a part of it
            os.fsync(self._file.fileno())
        except OSError:
            # The events stay staged for the next commit; the part that was written must not come before them.
            self._torn = True
            with suppress(OSError):
                self._file.truncate(self._size)
            raise
        self._size = end
        self._staged.clear()

    def append(self, *events: Event) -> None:
        """Apply and write events with one sync."""
        for event in events:
            self.stage(event)
        self.commit()

    def close(self) -> None:
        """Close the file and release the lock."""
        try:
            if self._file is not None:
                self._file.close()
        finally:
            self._file = None
            self._lock.release()

    def __enter__(self) -> LedgerWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _open_without_links(path: Path) -> FileIO:
    """Open a file to append to; an error if it is a symbolic link."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    return os.fdopen(os.open(path, flags, 0o666), "ab", buffering=0)


def _plain(event: RunStarted, name: str) -> object:
    return json.loads(json.dumps(getattr(event, name)))  # tuples become lists, as in the file
