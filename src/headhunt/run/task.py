"""Store the data of a search in its run directory, so that workers and later commands need nothing else.

Each split has its own files and is read only on request: code that compares candidates never opens the test rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import pyarrow as pa

from headhunt.data import Columns, ProblemType, Split, SubTask, Task, Unlabelled
from headhunt.data.sources import Rows
from headhunt.data.splitting import TASK_TARGETS
from headhunt.data.tables import TooLargeError, map_arrow
from headhunt.errors import DataError
from headhunt.run import schema
from headhunt.storage import atomic_file

INFO = "task.json"
UNLABELLED = "unlabelled.arrow"
OWN = b"own"  # metadata: the number of unlabelled texts that are training rows
SMALL = 2000  # training rows; fewer are evaluated by cross-validation
FOLDS = 3  # so that a third of a trial's budget is one complete training run


@dataclass(frozen=True)
class TaskInfo:
    """Description of the data of a search, without its rows."""

    name: str
    problem_type: ProblemType
    labels: tuple[str, ...]
    columns: Columns
    rows: dict[str, int]
    """Number of rows by split."""
    fingerprint: str
    """Hash of the data; a run is never resumed with other data."""
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    limit: int | None = None
    """The `limit` the data was loaded with."""
    test_given: bool = False
    """Whether the user gave test rows in a separate file."""
    tasks: tuple[SubTask, ...] = ()
    """The tasks that are joined into one; empty for a single task."""

    @property
    def pair(self) -> bool:
        """True if each row has two texts."""
        return self.columns.text_b is not None

    @property
    def folds(self) -> int:
        """Number of cross-validation folds; 1 where a validation split is used instead."""
        return count_folds(self.rows)

    @property
    def evaluated_on(self) -> str:
        """The rows that candidates are compared on, in words."""
        return f"{self.folds} folds, out of fold" if self.folds > 1 else "validation rows"

    @classmethod
    def of(cls, task: Task) -> TaskInfo:
        """Describe a task."""
        return cls(
            name=task.name,
            problem_type=task.problem_type,
            labels=tuple(task.labels),
            columns=task.columns,
            rows={name: len(split) for name, split in task.splits.items()},
            fingerprint=task.fingerprint,
            notes=tuple(task.notes),
            warnings=tuple(task.warnings),
            limit=task.limit,
            test_given=task.test_given,
            tasks=task.tasks,
        )


def count_folds(rows: Mapping[str, int]) -> int:
    """Return the number of cross-validation folds from the rows of each split; 1 for a validation split instead."""
    return FOLDS if rows["train"] < SMALL and "validation" not in rows else 1


def save_task(task: Task, folder: Path) -> None:
    """Write a task. The description is written last: a directory that has it is complete."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = [name for name in (task.columns.text, task.columns.text_b) if name is not None]
    for name, split in task.splits.items():
        arrow = pa.schema([(column, pa.large_string()) for column in texts])
        with atomic_file(folder / f"{name}.arrow") as file, pa.ipc.new_file(file, arrow) as writer:
            for start, first in split.rows.walk(texts[0]):
                columns = [split.rows.read(column, start, start + len(first)) for column in texts]
                writer.write_batch(pa.record_batch([column.cast(pa.large_string()) for column in columns], arrow))
        with atomic_file(folder / f"{name}.npz") as file:
            np.savez(file, targets=split.targets, groups=split.groups, keys=split.keys, words=split.words)
    schema.write(folder / INFO, TaskInfo.of(task))


def save_unlabelled(unlabelled: Unlabelled, folder: Path) -> None:
    """Write the unlabelled texts of a task beside it."""
    columns = {"text": unlabelled.texts}
    if unlabelled.texts_b is not None:
        columns["text_b"] = unlabelled.texts_b
    table = pa.table({name: pa.array(texts, pa.large_string()) for name, texts in columns.items()})
    table = table.replace_schema_metadata({OWN: str(unlabelled.own)})
    with atomic_file(folder / UNLABELLED) as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)


def open_unlabelled(folder: Path) -> Unlabelled:
    """Open the unlabelled texts of a task.

    Raises:
        DataError: If there are none, or they cannot be read.
    """
    try:
        table = map_arrow(folder / UNLABELLED)
        table.validate(full=True)
        own = int((table.schema.metadata or {})[OWN])
        names = table.column_names
        second = table["text_b"].to_pylist() if "text_b" in names else None
        texts = table["text"].to_pylist()
        if not 0 <= own <= len(texts) or any(text is None for text in texts + (second or [])):
            raise ValueError("rows are missing")
    except (OSError, KeyError, ValueError, EOFError, TooLargeError) as error:
        raise DataError(f"{folder} must hold the unlabelled texts of a run; they cannot be read ({error}).") from None
    return Unlabelled(texts, second, own)


def read_task_info(folder: Path) -> TaskInfo:
    """Read the description of a saved task.

    Raises:
        RunError: If there is no complete task in the directory.
    """
    return schema.read(folder / INFO, TaskInfo)


def open_task(folder: Path, splits: Sequence[str] = ("train", "validation")) -> Task:
    """Open a saved task.

    Args:
        folder: Directory that `save_task` wrote.
        splits: Splits to open; those that the task does not have are left out.
    """
    info = read_task_info(folder)
    opened = {}
    for name in splits:
        if name not in info.rows:
            continue
        try:
            with (folder / f"{name}.npz").open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                columns = [arrays[key] for key in ("targets", "groups", "keys", "words")]
            table = map_arrow(folder / f"{name}.arrow")
            table.validate(full=True)  # texts are UTF-8, too: they were when they were saved
            rows = Rows(name, table)
            if info.tasks and (columns[0].dtype != TASK_TARGETS or not _are_tasks(columns[0], len(info.tasks))):
                raise ValueError("the rows do not belong to the tasks")
        except (OSError, KeyError, ValueError, EOFError, BadZipFile, TooLargeError) as error:
            raise DataError(f"{folder} must hold the {name} rows of a run; they cannot be read ({error}).") from None
        opened[name] = Split(rows, info.columns, *columns)
    described = (info.name, info.problem_type, info.labels, info.columns)
    return Task(*described, opened, list(info.notes), list(info.warnings), tasks=info.tasks)


def _are_tasks(targets: np.ndarray, count: int) -> bool:
    return bool(((targets["task"] >= 0) & (targets["task"] < count)).all())


def tested_rows(test: Split, count: int | None) -> np.ndarray | None:
    """Return the test rows that are predicted at the end of a search; None for all of them.

    Args:
        test: The test rows. As many of each of several tasks are returned, as far as they have so many.
        count: Number of rows to predict; None for all.
    """
    if count is None or count >= len(test):
        return None
    order = np.random.default_rng(0).permutation(len(test))
    if test.tasks is not None:
        turn = np.zeros(len(test), np.int64)
        for number in np.unique(test.tasks):
            rows = test.tasks[order] == number
            turn[rows] = np.arange(rows.sum())
        order = order[np.argsort(turn, kind="stable")]
    return np.sort(order[:count])
