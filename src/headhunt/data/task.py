"""Represent a task: labelled texts in splits, with everything known about them. Load it from any source.

Each step of loading adds what is wrong to one list, so that the user gets all problems in one error.
"""

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from headhunt.data.columns import Columns, check_columns, check_texts, find_columns
from headhunt.data.diagnostics import check_test_rows, find_warnings
from headhunt.data.division import (
    Division,
    describe_groups,
    keep_groups_together,
    number_groups,
    rank_rows,
    warn_of_divided_duplicates,
    warn_of_late_classes,
    warn_of_shared_groups,
)
from headhunt.data.duplicates import compute_sketches, group_duplicates, view_bytes
from headhunt.data.labels import (
    PROBLEM_TYPES,
    LabelColumn,
    ProblemType,
    check_labels,
    encode_targets,
    find_classes,
    infer_problem_type,
    read_labels,
)
from headhunt.data.problems import Problems, UnreadableError, count, quote, quote_some
from headhunt.data.sources import Rows, name_source, pick_split, read_splits
from headhunt.data.splitting import Split, assign_folds, draw_sample, find_strata, hold_out
from headhunt.errors import DataError

_MIN_ROWS = 8


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
        problems = Problems(name_source(source))
        notes: list[str] = []
        warnings: list[str] = []
        limits = {"limit": limit, "max_rows": max_rows}
        shares = {"test_share": test_share, "validation_share": validation_share}
        _check_arguments(problem_type, group, order, limits, shares, problems)
        splits = _read_all(source, {"test": test, "validation": validation}, problems, notes)
        given = {"text": text, "text_b": text_b, "label": label, "group": group, "order": order}
        columns = find_columns(splits["train"], problems, given=given)
        label = str(columns.label)
        splits = {key: rows for key, rows in splits.items() if key == "train" or check_columns(rows, columns, problems)}
        for rows in splits.values():
            check_texts(rows, columns, problems)
        label_columns = _read_labels(splits, label, problem_type, problems, warnings)
        problem_type = problem_type or infer_problem_type(label_columns["train"], label, warnings)
        for column in label_columns.values():
            check_labels(column, label, problem_type, problems)
        labels = find_classes(label_columns["train"], problem_type, label, problems, warnings)
        targets = {
            key: encode_targets(column, problem_type, labels, label, problems, "the training rows")
            for key, column in label_columns.items()
        }
        _check_size(splits["train"], labels, limits, problems)
        numbered = {} if group is None else number_groups(splits, group, problems)
        row_order = None if order is None else rank_rows(splits["train"], order, problems)
        problems.raise_if_any()
        drawn = _draw_rows(targets, max_rows, seed, notes)
        splits = {key: rows.take(drawn[key]) if key in drawn else rows for key, rows in splits.items()}
        targets, numbered = (
            {key: array[drawn.get(key, ...)] for key, array in arrays.items()} for arrays in (targets, numbered)
        )
        row_order = row_order and row_order.take(drawn.get("train", ...))
        grouped = _group(splits, columns, targets)
        check_test_rows(grouped, problems, warnings)
        problems.raise_if_any()
        notes[:0] = _describe_columns(columns, problem_type, labels)
        together = order is None
        if group is not None:
            notes.append(describe_groups(numbered, group))
            warnings += warn_of_shared_groups(splits, numbered, group)
            together = keep_groups_together(grouped, numbered, group, warnings)
        divided = limit is None and ("test" in grouped or not test_share)
        warnings += find_warnings(grouped, problem_type, labels, divided=divided, duplicates_together=together)
        made = Division(test_share, validation_share, limit, seed).divide(grouped, row_order, notes)
        if order is not None:
            warnings += warn_of_late_classes(made, labels)
        if not together:
            warnings += warn_of_divided_duplicates(grouped, made)
        name = name or name_source(source).split(".")[0].replace("the data", "task")
        return cls(name, problem_type, labels, columns, made, notes, warnings, limit, test_given=test is not None)

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


def _check_arguments(
    problem_type: ProblemType | None,
    group: str | None,
    order: str | None,
    numbers: dict[str, int | None],
    shares: dict[str, float | None],
    problems: Problems,
) -> None:
    if problem_type is not None and problem_type not in PROBLEM_TYPES:
        remedy = f"Use one of {', '.join(PROBLEM_TYPES)}"
        problems.add(f"problem_type {quote(problem_type)}", "this problem type is unknown", remedy)
    for argument, number in numbers.items():
        if number is not None and number < 1:
            remedy = "Give a positive number, or leave it out for all rows"
            problems.add(f"{argument} {number}", "the number of rows must be positive", remedy)
    for argument, share in shares.items():
        if share is not None and not 0 <= share < 1:
            remedy = f"Give a share such as 0.2, or 0 for no {argument.removesuffix('_share')} split"
            problems.add(f"{argument} {share}", "the share must be between 0 and 1", remedy)
    if group is not None and order is not None:
        what = "rows cannot be divided by group and by time at once"
        problems.add(f"group {quote(group)}, order {quote(order)}", what, "Give group or order, not both")
    problems.raise_if_any()


def _read_all(source: Any, others: Mapping[str, Any], problems: Problems, notes: list[str]) -> dict[str, Rows]:
    splits = read_splits(source, problems, notes)
    if "" in splits:
        splits["train"] = splits.pop("")
    elif splits and "train" not in splits:
        what = f"there is no train split, only {quote_some(sorted(splits))}"
        problems.add(name_source(source), what, "Add one, or give two files: one as the source, one as the test rows")
    for name, other in others.items():
        if other is None:
            continue
        rows = pick_split(read_splits(other, problems, notes), name)
        if name in splits:
            notes.append(f"{name}: the given source is used instead of {splits[name].where}")
        if rows is not None:
            splits[name] = rows
    for rows in splits.values():
        if not len(rows) and not len(rows.skipped):
            problems.add(rows.where, "there are no rows", "Give at least a header and some rows")
    if "train" not in splits or not all(map(len, splits.values())):
        raise problems.as_error()
    return splits


def _read_labels(
    splits: dict[str, Rows], label: str, problem_type: ProblemType | None, problems: Problems, warnings: list[str]
) -> dict[str, LabelColumn]:
    """Read the labels of every split. Remove a split without any label, as in many public test sets."""
    columns = {}
    for name in list(splits):
        with suppress(UnreadableError):
            columns[name] = read_labels(splits[name], label, problem_type, problems)
        if name != "train" and name in columns and len(columns[name].missing) == len(splits[name]):
            warnings.append(f"{splits[name].where} has no labels and is ignored")
            del splits[name], columns[name]
    if "train" not in columns:
        raise problems.as_error()
    return columns


def _check_size(rows: Rows, labels: Sequence[str], numbers: dict[str, int | None], problems: Problems) -> None:
    if len(rows) < _MIN_ROWS and not len(rows.skipped):
        what = f"there {'is' if len(rows) == 1 else 'are'} only {count(len(rows), 'row')} to train on"
        problems.add(rows.where, what, f"At least {_MIN_ROWS} are needed")
    for argument, number in numbers.items():
        if number is not None and number < max(2, len(labels)):
            what = "the limit is too low" + (f" for {count(len(labels), 'class', 'classes')}" if labels else "")
            problems.add(f"{argument} {number}", what, "Raise it, so that every class has a row")


def _draw_rows(
    targets: dict[str, np.ndarray], max_rows: int | None, seed: int, notes: list[str]
) -> dict[str, np.ndarray]:
    """Return, for each split with more than `max_rows` rows, the positions of those to use."""
    if max_rows is None:
        return {}
    large = {name: column for name, column in targets.items() if len(column) > max_rows}
    of = {name: name if len(targets) > 1 else "data" for name in large}  # test rows are set aside later
    notes += [f"{of[name]}: {count(max_rows, 'row')} drawn from {len(column):,}" for name, column in large.items()]
    return {name: draw_sample(find_strata(column), max_rows, seed) for name, column in large.items()}


def _group(splits: dict[str, Rows], columns: Columns, targets: dict[str, np.ndarray]) -> dict[str, Split]:
    names = [name for name in (columns.text, columns.text_b) if name is not None]
    sketches = [compute_sketches(rows, names) for rows in splits.values()]
    groups = group_duplicates(sketches)
    return {
        name: Split(each.rows, columns, targets[name], numbers, each.keys, each.words)
        for name, each, numbers in zip(splits, sketches, groups, strict=True)
    }


def _describe_columns(columns: Columns, problem_type: ProblemType, labels: Sequence[str]) -> list[str]:
    description = {
        "single_label_classification": f"{len(labels)} classes",
        "multi_label_classification": f"any of {len(labels)} labels",
        "regression": "a number",
    }[problem_type]
    notes = [f"text column: {columns.text}", f"label column: {columns.label} ({description})"]
    if columns.text_b is not None:
        notes.insert(1, f"second text column: {columns.text_b}")
    return notes
