"""Task: labelled texts in splits, with all that was found out about them on the way in.

Hides the order in which a source is read, checked, grouped and split, and what is told at each step.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from headhunt.data.columns import Columns, check_columns, check_texts, find_columns
from headhunt.data.labels import (
    PROBLEM_TYPES,
    Cells,
    ProblemType,
    check_cells,
    check_names,
    encode_targets,
    guess_kind,
    name_values,
    read_cells,
    sort_names,
)
from headhunt.data.problems import Problems, count, describe, find_oddities, quote, quote_some
from headhunt.data.sources import Rows, name_source, read_splits
from headhunt.data.splitting import Split, deal_folds, draw, find_strata, group, hold_out, sketch, view_bytes

_FEWEST_ROWS = 8


@dataclass(frozen=True, eq=False)
class Task:
    """Labelled texts, checked and split.

    Attributes:
        name: What to call it.
        problem_type: "single_label_classification", "multi_label_classification" or "regression".
        labels: Class names, sorted (numbers by value); () for a number.
        columns: The columns taken.
        splits: "train" always; "validation" and "test" where given or made.
        notes: What was taken for what.
        warnings: What is odd about the data.
    """

    name: str
    problem_type: ProblemType
    labels: tuple[str, ...]
    columns: Columns
    splits: dict[str, Split]
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def pair(self) -> bool:
        """Whether every row has two texts."""
        return self.columns.text_b is not None

    @classmethod
    def load(
        cls,
        source: Any,
        *,
        text: str | None = None,
        text_b: str | None = None,
        label: str | None = None,
        problem_type: ProblemType | None = None,
        test: Any = None,
        validation: Any = None,
        limit: int | None = None,
        seed: int = 0,
        test_share: float = 0.2,
        name: str | None = None,
    ) -> "Task":
        """Load labelled texts, check them and set a test split aside.

        Args:
            source: A CSV, TSV, JSONL, Parquet or Arrow file, a folder of splits, a pandas data frame, an Arrow table, a
                `datasets` dataset, a dict of columns or of splits, ``(texts, labels)`` or a list of ``(text, label)``.
            text: The column of texts; found by itself where there is no doubt.
            text_b: The column of second texts, for pairs.
            label: The column of labels.
            problem_type: "single_label_classification", "multi_label_classification" or
                "regression"; inferred from the labels by default.
            test: Another source with the test rows.
            validation: Another source with the validation rows.
            limit: Draw so many training rows, every class with its share.
            seed: Of the drawing and splitting.
            test_share: How much to set aside where no test rows are given; 0 for no test split.
            name: What to call the task; the name of the file or folder where not given.

        Raises:
            DataError: With everything that is wrong, at once.
        """
        wanted = (text, text_b, label)
        others = {"test": test, "validation": validation}
        loaded = _load_splits(source, wanted, problem_type, others, limit, seed, test_share)
        return cls(name or name_source(source).split(".")[0].replace("the data", "task"), *loaded)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the texts, targets and splits: equal for equal content, whatever file it came from."""
        digest = hashlib.blake2b(repr((self.problem_type, self.labels, self.pair)).encode(), digest_size=16)
        for split in sorted(self.splits):
            part = self.splits[split]
            digest.update(f"{split} {len(part)} {part.targets.shape}".encode())
            digest.update(np.ascontiguousarray(part.targets).tobytes())
            for column in (self.columns.text, self.columns.text_b):
                if column is None:
                    continue
                for _, texts in part.rows.walk(column):
                    data, offsets = view_bytes(texts)
                    digest.update(offsets.tobytes())
                    digest.update(data.tobytes())
        return digest.hexdigest()

    def with_validation(self, share: float = 0.2, seed: int = 0) -> "Task":
        """Set a validation split aside from the training rows, unless there is one.

        Args:
            share: How much of every class; rows that say the same stay together.
            seed: Which rows.
        """
        if "validation" in self.splits:
            return self
        train = self.splits["train"]
        held = hold_out(find_strata(train.targets), train.groups, share, seed)
        note = f"validation: {count(int(held.sum()), 'row')} of the training rows"
        splits = {"train": train.take(~held), "validation": train.take(held)}
        splits |= {split: part for split, part in self.splits.items() if split != "train"}
        return replace(self, splits=splits, notes=[*self.notes, note])

    def folds(self, count: int, seed: int = 0) -> list[tuple[np.ndarray, np.ndarray]]:
        """Deal the training rows to folds, every class evenly and rows that say the same together.

        Args:
            count: How many folds.
            seed: Which rows go where.

        Returns:
            For each fold, the positions to train on and the positions held out.
        """
        train = self.splits["train"]
        fold = deal_folds(find_strata(train.targets), train.groups, count, seed)
        return [(np.flatnonzero(fold != at), np.flatnonzero(fold == at)) for at in range(count)]

    def describe(self) -> dict[str, Any]:
        """Summarise the task as JSON-able data: rows, class counts, lengths, duplicates, leaks, notes and warnings."""
        summary = describe(self.splits, self.problem_type, self.labels)
        columns = {"text": self.columns.text, "text_b": self.columns.text_b, "label": self.columns.label}
        told = {"notes": list(self.notes), "warnings": list(self.warnings)}
        return {
            "name": self.name,
            "problem_type": self.problem_type,
            "labels": list(self.labels),
            "columns": columns,
            **summary,
            **told,
        }


class _Loaded(NamedTuple):
    """What a task is made of."""

    problem_type: ProblemType
    labels: tuple[str, ...]
    columns: Columns
    splits: dict[str, Split]
    notes: list[str]
    warnings: list[str]


def _load_splits(
    source: Any,
    wanted: tuple[str | None, str | None, str | None],
    problem_type: ProblemType | None,
    others: dict[str, Any],
    limit: int | None,
    seed: int,
    test_share: float,
) -> _Loaded:
    """Load a task's rows: read, check, group what says the same, and split.

    Arguments are as for `Task.load`; `wanted` are its text, text_b and label, `others` its test and validation.
    """
    problems = Problems(name_source(source))
    notes: list[str] = []
    warnings: list[str] = []
    _check_options(problem_type, limit, test_share, problems)
    given = _read_all(source, others, problems, notes)
    text, text_b, label = wanted
    columns = find_columns(given["train"], problems, text=text, text_b=text_b, label=label)
    if columns is None or columns.label is None:
        raise problems.as_error()
    given = {split: rows for split, rows in given.items() if split == "train" or check_columns(rows, columns, problems)}
    for rows in given.values():
        _check_texts(rows, columns, problems)
    cells = _read_labels(given, columns.label, problem_type, problems, warnings)
    if "train" not in cells:
        raise problems.as_error()
    problem_type = problem_type or guess_kind(cells["train"], columns.label, warnings)
    for column in cells.values():
        check_cells(column, columns.label, problem_type, problems)
    names = _name_labels(cells["train"], problem_type, columns.label, problems, warnings)
    targets = {
        split: encode_targets(column, problem_type, names, columns.label, problems, "the training rows")
        for split, column in cells.items()
    }
    _check_size(given["train"], names, limit, problems)
    problems.raise_if_any()
    splits = _group(given, columns, targets)
    notes[:0] = _note_taken(columns, problem_type, names)
    warnings += find_oddities(splits, problem_type, names)
    splits = _complete(splits, test_share, limit, seed, notes)
    return _Loaded(problem_type, names, columns, splits, notes, warnings)


def _check_options(problem_type: ProblemType | None, limit: int | None, test_share: float, problems: Problems) -> None:
    if problem_type is not None and problem_type not in PROBLEM_TYPES:
        problems.add("problem_type", f"{quote(problem_type)} is unknown", f"Use one of {', '.join(PROBLEM_TYPES)}")
    if limit is not None and limit < 1:
        problems.add(
            "limit", f"{limit} is not a number of rows", "Give a positive number, or leave it out for all rows"
        )
    if not 0 <= test_share < 1:
        problems.add("test share", f"{test_share} is not between 0 and 1", "Give a share such as 0.2, or 0 for none")
    problems.raise_if_any()


def _read_all(source: Any, others: dict[str, Any], problems: Problems, notes: list[str]) -> dict[str, Rows]:
    given = read_splits(source, problems, notes)
    if "" in given:
        given["train"] = given.pop("")
    elif given and "train" not in given:
        what = f"there is no train split, only {quote_some(sorted(given))}"
        problems.add(name_source(source), what, "Add one, or give one file as the source and the other as --test")
    for split, other in others.items():
        if other is None:
            continue
        rows = _pick_split(read_splits(other, problems, notes), split)
        if split in given:
            notes.append(f"{split}: the one named is used, not {given[split].where}")
        if rows is not None:
            given[split] = rows
    for rows in given.values():
        if not len(rows) and not len(rows.skipped):
            problems.add(rows.where, "there are no rows", "Give at least a header and some rows")
    if "train" not in given or not all(map(len, given.values())):
        raise problems.as_error()
    return given


def _pick_split(splits: dict[str, Rows], first: str = "test") -> Rows | None:
    """Pick the rows to measure on: the split asked for, else validation, else the only one."""
    for name in (first, "test", "validation", "", *splits):
        if name in splits:
            return splits[name]
    return None


def _check_texts(rows: Rows, columns: Columns, problems: Problems) -> None:
    check_texts(rows, columns.text, problems)
    if columns.text_b is not None:
        check_texts(rows, columns.text_b, problems)


def _read_labels(
    given: dict[str, Rows], label: str, problem_type: ProblemType | None, problems: Problems, warnings: list[str]
) -> dict[str, Cells]:
    """Read every split's labels; a split with none at all, as public test sets have it, is left out."""
    cells = {}
    for split in list(given):
        column = read_cells(given[split], label, problem_type, problems)
        if column is None:
            continue
        if split != "train" and len(column.missing) == len(column.rows):
            warnings.append(f"{column.rows.where} has no labels and is left out")
            del given[split]
            continue
        cells[split] = column
    return cells


def _name_labels(
    cells: Cells, problem_type: ProblemType, label: str, problems: Problems, warnings: list[str]
) -> tuple[str, ...]:
    if problem_type == "regression":
        return ()
    names = sort_names(set(name_values(cells)))
    check_names(cells, names, label, problems)
    spellings: dict[str, list[str]] = {}
    for name in names:
        spellings.setdefault(" ".join(name.casefold().split()), []).append(name)
    alike = [" and ".join(quote(name) for name in group) for group in spellings.values() if len(group) > 1]
    if alike:
        warnings.append(f"labels that differ only in case or spaces are kept apart: {', '.join(alike[:5])}")
    return names


def _check_size(rows: Rows, names: Sequence[str], limit: int | None, problems: Problems) -> None:
    if len(rows) < _FEWEST_ROWS and not len(rows.skipped):
        what = f"there {'is' if len(rows) == 1 else 'are'} only {count(len(rows), 'row')} to train on"
        problems.add(rows.where, what, f"At least {_FEWEST_ROWS} are needed")
    if limit is not None and limit < max(2, len(names)):
        what = f"a limit of {limit} is too low" + (f" for {count(len(names), 'class', 'classes')}" if names else "")
        problems.add("limit", what, "Raise it, so that every class has a row")


def _group(given: dict[str, Rows], columns: Columns, targets: dict[str, np.ndarray]) -> dict[str, Split]:
    names = [name for name in (columns.text, columns.text_b) if name is not None]
    parts = [(rows, names, sketch(rows, names)) for rows in given.values()]
    groups = group(parts)
    return {
        split: Split(rows, columns, targets[split], numbers, sketches.keys, sketches.words)
        for (split, rows), numbers, (_, _, sketches) in zip(given.items(), groups, parts, strict=True)
    }


def _note_taken(columns: Columns, problem_type: ProblemType, names: Sequence[str]) -> list[str]:
    what = {
        "single_label_classification": f"{len(names)} classes",
        "multi_label_classification": f"any of {len(names)} labels",
        "regression": "a number",
    }[problem_type]
    notes = [f"text column: {columns.text}", f"label column: {columns.label} ({what})"]
    if columns.text_b is not None:
        notes.insert(1, f"second text column: {columns.text_b}")
    return notes


def _complete(
    splits: dict[str, Split], test_share: float, limit: int | None, seed: int, notes: list[str]
) -> dict[str, Split]:
    """Set a test split aside where none is given and one is asked for, then limit the training rows."""
    train = splits["train"]
    if "test" not in splits and test_share:
        held = hold_out(find_strata(train.targets), train.groups, test_share, seed)
        splits = {**splits, "train": train.take(~held), "test": train.take(held)}
        notes.append(f"test: {count(int(held.sum()), 'row')} set aside")
    train = splits["train"]
    if limit is not None and limit < len(train):
        splits = {**splits, "train": train.take(draw(find_strata(train.targets), limit, seed))}
        notes.append(f"train: {count(limit, 'row')} drawn of {len(train):,}")
    return {split: splits[split] for split in ("train", "validation", "test") if split in splits}


def load_labelled(
    source: Any,
    *,
    problem_type: ProblemType,
    labels: Sequence[str],
    pair: bool,
    text: str | None = None,
    text_b: str | None = None,
    label: str | None = None,
) -> Split:
    """Load labelled rows to measure a model on.

    Args:
        source: As for `Task.load`; of several splits the test split is taken, else validation, else the only one.
        problem_type: What the model predicts.
        labels: The model's labels, in its order.
        pair: Whether the model reads two texts.
        text: The column of texts.
        text_b: The column of second texts.
        label: The column of labels.

    Raises:
        DataError: With everything that is wrong, labels that the model does not know among it.
    """
    problems = Problems(name_source(source))
    rows = _read_one(source, problems)
    columns = find_columns(rows, problems, text=text, text_b=text_b, label=label, pair=pair)
    if columns is None or columns.label is None:
        raise problems.as_error()
    _check_texts(rows, columns, problems)
    cells = read_cells(rows, columns.label, problem_type, problems)
    targets = np.empty(0)
    if cells is not None:
        check_cells(cells, columns.label, problem_type, problems)
        targets = encode_targets(cells, problem_type, labels, columns.label, problems, "the model")
    problems.raise_if_any()
    return _unsketched(rows, columns, targets)


def load_texts(source: Any, *, pair: bool, text: str | None = None, text_b: str | None = None) -> Split:
    """Load texts without labels, to predict.

    Args:
        source: As for `Task.load`, labels not needed; or a .txt file with one text per line, two with a tab between
            them for pairs; or a list of texts or of pairs.
        pair: Whether the model reads two texts.
        text: The column of texts.
        text_b: The column of second texts.

    Raises:
        DataError: With everything that is wrong.
    """
    problems = Problems(name_source(source))
    if isinstance(source, str | Path) and Path(source).suffix.lower() == ".txt":
        source = _read_lines(Path(source), pair, problems)
        text, text_b = "text", "text_b" if pair else None
    elif isinstance(source, list | tuple) and len(source) and all(isinstance(row, str) for row in source):
        source = {"text": list(source)}
    elif pair and isinstance(source, list) and all(isinstance(row, tuple | list) and len(row) == 2 for row in source):
        source = {"text": [row[0] for row in source], "text_b": [row[1] for row in source]}
    rows = _read_one(source, problems)
    columns = find_columns(rows, problems, text=text, text_b=text_b, pair=pair, labelled=False)
    if columns is None:
        raise problems.as_error()
    _check_texts(rows, columns, problems)
    problems.raise_if_any()
    return _unsketched(rows, columns, np.empty(0, np.int64))


def _read_one(source: Any, problems: Problems) -> Rows:
    rows = _pick_split(read_splits(source, problems, []))
    if rows is not None and not len(rows) and not problems:
        problems.add(rows.where, "there are no rows", "Give at least one text")
    if rows is None or not len(rows):
        raise problems.as_error()
    return rows


def _read_lines(path: Path, pair: bool, problems: Problems) -> dict[str, list[str]]:
    """Read a text file: one text per line, or two with a tab between them; the blank last line is none."""
    try:
        lines = path.expanduser().read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        remedy = "Convert it, for example: iconv -f latin1 -t utf-8 OLD > NEW"
        problems.add(path.name, f"the file is not UTF-8 (byte {error.start:,})", remedy)
        raise problems.as_error() from None
    except OSError as error:
        problems.add(path.name, f"the file cannot be read ({error.strerror})", "Check the path")
        raise problems.as_error() from None
    if not pair:
        return {"text": lines}
    wrong = [number for number, line in enumerate(lines, 1) if line.count("\t") != 1]
    problems.add_rows(path.name, "without exactly one tab", wrong, "Write two texts per line with a tab between them")
    problems.raise_if_any()
    return {"text": [line.split("\t")[0] for line in lines], "text_b": [line.split("\t")[1] for line in lines]}


def _unsketched(rows: Rows, columns: Columns, targets: np.ndarray) -> Split:
    none = np.empty(0, np.int64)
    return Split(rows, columns, targets, none, none, none)
