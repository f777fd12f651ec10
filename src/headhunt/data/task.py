"""Represent a task: labelled texts in splits, with everything known about them."""

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from headhunt.data.columns import Columns
from headhunt.data.division import Division
from headhunt.data.duplicates import view_bytes
from headhunt.data.labels import ProblemType
from headhunt.data.loading import load_splits
from headhunt.data.sources import name_source
from headhunt.data.splitting import Split, assign_folds, find_strata, hold_out
from headhunt.errors import DataError


@dataclass(frozen=True)
class SubTask:
    """One of several tasks that are joined into one."""

    name: str
    problem_type: ProblemType
    labels: tuple[str, ...]
    columns: Columns
    """The names of its columns."""
    rows: dict[str, int]
    """Number of its rows by split."""
    metric: str | None = None
    """Metric that was asked for; None for that of its problem type."""

    @property
    def pair(self) -> bool:
        """True if each of its rows has two texts."""
        return self.columns.text_b is not None

    @property
    def outputs(self) -> int:
        """Number of outputs of a model: one per class, or one number."""
        return max(1, len(self.labels))


@dataclass(frozen=True, eq=False)
class Task:
    """Labelled texts, checked and split.

    Attributes:
        name: The name of the task.
        problem_type: "single_label_classification", "multi_label_classification" or "regression"; "multi_task" for
            several tasks that are joined into one.
        labels: Class names, sorted (numbers by value); () for regression and for several tasks.
        columns: The names of the columns that are used.
        splits: "train" always; "validation" and "test" if given or made.
        notes: Decisions made while loading, such as the columns used.
        warnings: Unusual properties of the data.
        limit: The limit on training rows that was given to `load`.
        test_given: True if test rows were given to `load` as a source of their own.
        tasks: The tasks that are joined into this one; () for a single task.
    """

    name: str
    problem_type: ProblemType
    labels: tuple[str, ...]
    columns: Columns
    splits: dict[str, Split]
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    limit: int | None = None
    test_given: bool = False
    tasks: tuple[SubTask, ...] = ()

    @property
    def pair(self) -> bool:
        """True if every row has two texts, or the rows of some of several tasks."""
        return self.columns.text_b is not None

    @classmethod
    def load(
        cls,
        source: Any,
        *,
        text: str | None = None,
        text_b: str | None = None,
        label: str | None = None,
        group: str | None = None,
        order: str | None = None,
        problem_type: ProblemType | None = None,
        test: Any = None,
        validation: Any = None,
        limit: int | None = None,
        max_rows: int | None = None,
        seed: int = 0,
        test_share: float = 0.2,
        validation_share: float | None = None,
        name: str | None = None,
    ) -> "Task":
        """Load labelled texts, check them and set a test split aside.

        Args:
            source: A CSV, TSV, JSONL, Parquet or Arrow file, a folder of splits, a workbook (.xlsx), an SQLite file,
                the URL of a database with `#TABLE`, the name of a data set of the Hub, a JSON export of Label Studio
                or Argilla, a data frame of pandas or polars, an Arrow table, a `datasets` dataset, a dict of columns
                or of splits, ``(texts, labels)`` or a list of ``(text, label)``.
            text: Text column (detected if unambiguous).
            text_b: Column of second texts, for pairs (detected if it has a common name).
            label: Label column (detected if unambiguous).
            group: Column of groups, such as users or documents. Rows of a group stay in one split and in one fold.
            order: Column of numbers, ISO dates or times. The last rows become the test split, the last of the others
                the validation split. It cannot be combined with `group`.
            problem_type: "single_label_classification", "multi_label_classification" or
                "regression"; inferred from the labels by default.
            test: Another source with the test rows.
            validation: Another source with the validation rows.
            limit: Maximum number of training rows, drawn by stratified sampling.
            max_rows: Maximum number of rows of each split of the source. They are drawn before rows are compared with
                each other, which bounds the time of loading, and before a test split is set aside.
            seed: Random seed of sampling and splitting.
            test_share: Share of the rows to set aside if there are no test rows; 0 for no test split.
            validation_share: With `order`, share of the other rows for the validation split; 0 for none. By default a
                fifth, and about 2,000 rows of many.
            name: Name of the task; the name of the file or folder by default.

        Raises:
            DataError: With a list of everything that is wrong.
        """
        loaded = load_splits(
            source,
            given={"text": text, "text_b": text_b, "label": label, "group": group, "order": order},
            problem_type=problem_type,
            others={"test": test, "validation": validation},
            max_rows=max_rows,
            division=Division(test_share, validation_share, limit, seed),
        )
        name = name or name_source(source).split(".")[0].replace("the data", "task")
        return cls(name, *loaded, limit=limit, test_given=test is not None)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the texts, targets and splits: equal for equal content, independent of the file format."""
        known = (self.problem_type, self.labels, self.pair)
        of_tasks = tuple((task.name, task.problem_type, task.labels, task.pair) for task in self.tasks)
        digest = hashlib.blake2b(repr(known + of_tasks).encode(), digest_size=16)
        for name in sorted(self.splits):
            split = self.splits[name]
            digest.update(f"{name} {len(split)} {split.targets.shape}".encode())
            digest.update(np.ascontiguousarray(split.targets).tobytes())
            for column in (self.columns.text, self.columns.text_b):
                if column is None:
                    continue
                for _, texts in split.rows.walk(column):
                    data, offsets = view_bytes(texts)
                    digest.update(offsets.tobytes())
                    digest.update(data.tobytes())
        return digest.hexdigest()

    def folds(self, count: int, seed: int = 0) -> list[tuple[np.ndarray, np.ndarray]]:
        """Divide the training rows into stratified folds that keep duplicates and groups together.

        Args:
            count: Number of folds.
            seed: Random seed.

        Returns:
            For each fold, the positions of the training rows and of the held-out rows.

        Raises:
            DataError: If the rows have an order, or fewer groups than folds.
        """
        self._refuse_order()
        train = self.splits["train"]
        by_column = self.columns.group is not None
        if by_column and (groups := len(np.unique(train.groups))) < count:
            raise DataError(
                f"The training rows must have at least {count} groups, one per fold; found {groups} in "
                f"{self.columns.group!r}, where rows with nearly the same text count as one group. "
                "Give more rows, or validation rows"
            )
        fold = assign_folds(find_strata(train.targets), train.groups, count, seed, by_column=by_column)
        return [(np.flatnonzero(fold != at), np.flatnonzero(fold == at)) for at in range(count)]

    def first_fold(self, count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Return one fold of `count`, without the memory that the others need.

        Args:
            count: Number of folds; one of them is made.
            seed: Random seed.

        Returns:
            The positions of the training rows and of the held-out rows.

        Raises:
            DataError: If the rows have an order, or all belong to one group.
        """
        self._refuse_order()
        train = self.splits["train"]
        strata = find_strata(train.targets)
        if self.columns.group is None:
            held_out = assign_folds(strata, train.groups, count, seed) == 0
        else:  # groups may be larger than a fold, and the first fold has the largest
            held_out = hold_out(strata, train.groups, 1 / count, seed, by_column=True)
        return np.flatnonzero(~held_out), np.flatnonzero(held_out)

    def _refuse_order(self) -> None:
        if self.columns.order is not None:
            raise DataError(
                f"Folds must not predict earlier rows from later ones; the rows are ordered by {self.columns.order!r}. "
                'Use the validation split, splits["validation"]'
            )
