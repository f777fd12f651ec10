"""The run directory: an append-only ledger that is the truth, and the artefacts beside it.

Hides how a search survives a crash: one writer, a sync per commit, a torn last line that never happened.

    RUN/ledger.jsonl            one JSON object a line
    RUN/lock                    held by the one writer
    RUN/checkpoints/000012-1/   what trial 12 left at rung 1, to be trained on
    RUN/predictions/000012-1.npz
    RUN/task/                   the data, as the run took it; the test rows in files of their own
    RUN/environment.json
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np

from headhunt.run.ledger import SCHEMA, RunError, read, replay

TASK = "task"  # the folder with the data, as the run took it
SMALL = 2000  # training rows; fewer are judged out of fold
FOLDS = 3  # so that a third of a candidate's budget is one whole training
IDENTITY = ("space", "task", "settings", "seed")  # what a resumed run must share with its beginning


class Run:
    """A run directory.

    Read by default: `state` is what the ledger holds at the moment of opening. A writer holds the lock until `close` or
    the end of its process.

    Args:
        folder: The run directory.
        write: Whether to write; makes the folder where it is missing.
        now: Gives the time put into records.

    Raises:
        RunError: If there is no ledger to read, it is corrupt, or another process writes.
    """

    def __init__(self, folder: str | Path, *, write: bool = False, now: Callable[[], float] = time.time) -> None:
        self.folder = Path(folder)
        self.ledger = self.folder / "ledger.jsonl"
        self.environment = self.folder / "environment.json"
        self._now = now
        self._staged: list[bytes] = []
        self._lock: IO[bytes] | None = None
        self._file: IO[bytes] | None = None
        if write:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = _hold(self.folder / "lock")
        elif not self.ledger.is_file():
            raise RunError(
                f"{self.folder} must be the run directory of a search; it has no {self.ledger.name}. Check the path."
            )
        try:
            records, whole = read(self.ledger) if self.ledger.is_file() else ([], 0)
            self.state = replay(records)
            if write:
                self._file = self.ledger.open("ab")
                self._file.truncate(whole)
                _sync_folder(self.folder)  # a new file's name is durable only with its folder
        except BaseException:
            self.close()
            raise

    def begin(self, header: Mapping[str, Any]) -> None:
        """Writes the `run` record, or checks that this is the same search and takes it up again.

        Args:
            header: `space`, `task`, `settings` and `seed`, which must stay the same, and anything else, as `versions`.

        Raises:
            RunError: If the run was begun with another space, task, settings or seed.
        """
        if self.state.header is None:
            self.append({"kind": "run", **header})
            self.environment.write_text(json.dumps(header.get("versions", {}), indent=2) + "\n", encoding="utf-8")
            return
        given = json.loads(json.dumps(header))  # tuples become lists, as in the file
        differ = [key for key in IDENTITY if self.state.header.get(key) != given.get(key)]
        if differ:
            raise RunError(
                f"{self.folder} was begun with another {' and '.join(differ)}. "
                "Give another --out, or resume it with what it was begun with."
            )
        self.append({"kind": "note", "event": "reopened", "requeued": sorted(self.state.running)})

    def stage(self, record: Mapping[str, Any]) -> bool:
        """Applies a record now and writes it with the next `commit`; see `State.apply`."""
        full = {"schema": SCHEMA, "at": round(self._now(), 3), **record}
        line = json.dumps(full, ensure_ascii=False, allow_nan=False).encode() + b"\n"
        settled = self.state.apply(json.loads(line))  # as a reader will see it: tuples have become lists
        self._staged.append(line)
        return settled

    def commit(self) -> None:
        """Writes what is staged and syncs it, once for all."""
        if self._file is None:
            raise RunError(f"{self.folder} was opened for reading.")
        if self._staged:
            self._file.write(b"".join(self._staged))
            self._file.flush()
            os.fsync(self._file.fileno())
            self._staged.clear()

    def append(self, *records: Mapping[str, Any]) -> None:
        """Applies and writes records with one sync."""
        for record in records:
            self.stage(record)
        self.commit()

    def checkpoint(self, trial: int, rung: int) -> Path:
        """The folder for what a trial leaves at a rung."""
        return self.folder / "checkpoints" / f"{trial:06d}-{rung}"

    def predictions(self, trial: int, rung: int) -> Path:
        """The file for what a trial predicts on validation rows."""
        return self.folder / "predictions" / f"{trial:06d}-{rung}.npz"

    def checkpoints(self) -> dict[tuple[int, int], int]:
        """The bytes of every checkpoint on disk, by trial and rung."""
        found = {}
        for folder in (self.folder / "checkpoints").glob("[0-9]*-[0-9]*"):
            trial, _, rung = folder.name.partition("-")
            found[int(trial), int(rung)] = size(folder)
        return found

    def predicted(self) -> dict[tuple[int, int], int]:
        """The bytes of every file of predictions, by trial and rung."""
        found = {}
        for path in (self.folder / "predictions").glob("[0-9]*-[0-9]*.npz"):
            trial, _, rung = path.stem.partition("-")
            found[int(trial), int(rung)] = path.stat().st_size
        return found

    def drop(self, keys: Iterable[tuple[int, int]]) -> None:
        """Removes checkpoints; those that are not there are left alone."""
        for trial, rung in keys:
            shutil.rmtree(self.checkpoint(trial, rung), ignore_errors=True)

    def forget(self, keys: Iterable[tuple[int, int]]) -> None:
        """Removes predictions; those that are not there are left alone."""
        for trial, rung in keys:
            self.predictions(trial, rung).unlink(missing_ok=True)

    def close(self) -> None:
        """Gives the lock back."""
        for file in (self._file, self._lock):
            if file is not None:
                file.close()
        self._file = self._lock = None

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def folds_of(rows: Mapping[str, int]) -> int:
    """In how many parts candidates are judged: the folds of small data, or one, the rows held out.

    Args:
        rows: How many each split has.
    """
    return FOLDS if rows["train"] < SMALL and "validation" not in rows else 1


def predictions_of(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Which rows a trial was judged on, and its outputs for them."""
    with np.load(path, allow_pickle=False) as found:
        return found["rows"], found["outputs"]


def size(folder: Path) -> int:
    """The bytes a folder holds; 0 where it is missing."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def droppable(
    held: Mapping[tuple[int, int], int], keep: Sequence[tuple[int, int]], budget: int | None
) -> list[tuple[int, int]]:
    """Which checkpoints may go: those nobody can go on from, then the least promising until the rest fits.

    Args:
        held: Bytes by trial and rung.
        keep: Those that can still be promoted or delivered, most promising first.
        budget: Bytes for all together; None is no limit.
    """
    wanted = set(keep)
    drop = [key for key in held if key not in wanted]
    total = sum(held.values()) - sum(held[key] for key in drop)
    for key in reversed(keep):
        if budget is None or total <= budget:
            break
        if key in held:
            drop.append(key)
            total -= held[key]
    return drop


def _hold(path: Path) -> IO[bytes]:
    """Takes the writer's lock, which the operating system gives back when the process dies."""
    file = path.open("ab")
    try:
        if os.name == "nt":
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise RunError(
            f"Only one process may write a run; another is writing {path.parent}. Wait, or stop it."
        ) from None
    return file


def _sync_folder(folder: Path) -> None:
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
