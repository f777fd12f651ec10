"""Load sources into checked splits: for training, for evaluation, or texts alone for prediction.

Each step adds what is wrong to one list, so that the user gets all problems in one error.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from headhunt.data.columns import Columns, check_columns, check_texts, find_columns
from headhunt.data.constraints import describe_groups, number_groups, rank_rows, warn_of_shared_groups
from headhunt.data.diagnostics import check_test_rows, find_warnings
from headhunt.data.division import Division, keep_groups_together, warn_of_divided_duplicates, warn_of_late_classes
from headhunt.data.duplicates import TextColumns, compute_sketches, group_duplicates
from headhunt.data.labels import (
    PROBLEM_TYPES,
    LabelColumn,
    ProblemType,
    check_classes,
    check_labels,
    encode_targets,
    format_classes,
    infer_problem_type,
    read_labels,
    sort_classes,
)
from headhunt.data.problems import Problems, count, quote, quote_some
from headhunt.data.sources import Rows, name_source, read_splits
from headhunt.data.splitting import Split, draw_sample, find_strata

_MIN_ROWS = 8


class LoadedSplits(NamedTuple):
    """The contents of a task (see `Task`)."""

    problem_type: ProblemType
    labels: tuple[str, ...]
    columns: Columns
    splits: dict[str, Split]
    notes: list[str]
    warnings: list[str]


def load_splits(
    source: Any,
    *,
    given: Mapping[str, str | None],
    problem_type: ProblemType | None,
    others: Mapping[str, Any],
    max_rows: int | None,
    division: Division,
) -> LoadedSplits:
    """Read, check, group and split the rows of a task.

    Args:
        source: As for `Task.load`.
        given: Names of columns by role, if given.
        problem_type: As for `Task.load`.
        others: Sources of test and validation rows by split; None if there are none.
        max_rows: As for `Task.load`.
        division: The sizes of the splits to make.

    Raises:
        DataError: With a list of everything that is wrong.
    """
    problems = Problems(name_source(source))
    notes: list[str] = []
    warnings: list[str] = []
    _check_options(
        problem_type,
        {"limit": division.limit, "max_rows": max_rows},
        {"test_share": division.test_share, "validation_share": division.validation_share},
        problems,
    )
    group, order = given.get("group"), given.get("order")
    _check_constraints(group, order, problems)
    splits = _read_all(source, others, problems, notes)
    columns = find_columns(splits["train"], problems, given=given)
    if columns is None or columns.label is None:
        raise problems.as_error()
    splits = {name: rows for name, rows in splits.items() if name == "train" or check_columns(rows, columns, problems)}
    for rows in splits.values():
        _check_texts(rows, columns, problems)
    label_columns = _read_labels(splits, columns.label, problem_type, problems, warnings)
    if "train" not in label_columns:
        raise problems.as_error()
    problem_type = problem_type or infer_problem_type(label_columns["train"], columns.label, warnings)
    for column in label_columns.values():
        check_labels(column, columns.label, problem_type, problems)
    labels = _find_classes(label_columns["train"], problem_type, columns.label, problems, warnings)
    targets = {
        name: encode_targets(column, problem_type, labels, columns.label, problems, "the training rows")
        for name, column in label_columns.items()
    }
    _check_size(splits["train"], labels, {"limit": division.limit, "max_rows": max_rows}, problems)
    numbered = {} if group is None else number_groups(splits, group, problems)
    row_order = None if order is None else rank_rows(splits["train"], order, problems)
    problems.raise_if_any()
    drawn = _draw_rows(targets, max_rows, division.seed, notes)
    splits = {name: rows.take(drawn[name]) if name in drawn else rows for name, rows in splits.items()}
    targets, numbered = (
        {name: array[drawn.get(name, ...)] for name, array in arrays.items()} for arrays in (targets, numbered)
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
    divided = division.limit is None and ("test" in grouped or not division.test_share)
    warnings += find_warnings(grouped, problem_type, labels, divided=divided, duplicates_together=together)
    if row_order is None:
        made = division.divide(grouped, notes)
    else:
        made = division.divide_in_order(grouped, row_order, notes)
        warnings += warn_of_late_classes(made, labels)
    if not together:
        warnings += warn_of_divided_duplicates(grouped, made)
    return LoadedSplits(problem_type, labels, columns, made, notes, warnings)


def _check_constraints(group: str | None, order: str | None, problems: Problems) -> None:
    if group is not None and order is not None:
        what = "rows cannot be divided by group and by time at once"
        problems.add(f"group {quote(group)}, order {quote(order)}", what, "Give group or order, not both")
    problems.raise_if_any()


def _check_options(
    problem_type: ProblemType | None,
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
        rows = _pick_split(read_splits(other, problems, notes), name)
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


def _pick_split(splits: dict[str, Rows], preferred: str = "test") -> Rows | None:
    """Return the rows to evaluate on: the preferred split, else test, else validation, else the only one."""
    for name in (preferred, "test", "validation", "", *splits):
        if name in splits:
            return splits[name]
    return None


def _check_texts(rows: Rows, columns: Columns, problems: Problems) -> None:
    check_texts(rows, columns.text, problems)
    if columns.text_b is not None:
        check_texts(rows, columns.text_b, problems)


def _read_labels(
    splits: dict[str, Rows], label: str, problem_type: ProblemType | None, problems: Problems, warnings: list[str]
) -> dict[str, LabelColumn]:
    """Read the labels of every split. Remove a split without any label, as in many public test sets."""
    columns = {}
    for name in list(splits):
        column = read_labels(splits[name], label, problem_type, problems)
        if column is None:
            continue
        if name != "train" and len(column.missing) == len(column.rows):
            warnings.append(f"{column.rows.where} has no labels and is ignored")
            del splits[name]
            continue
        columns[name] = column
    return columns


def _find_classes(
    column: LabelColumn, problem_type: ProblemType, name: str, problems: Problems, warnings: list[str]
) -> tuple[str, ...]:
    if problem_type == "regression":
        return ()
    labels = sort_classes(set(format_classes(column)))
    check_classes(column, labels, name, problems)
    spellings: dict[str, list[str]] = {}
    for label in labels:
        spellings.setdefault(" ".join(label.casefold().split()), []).append(label)
    similar = [" and ".join(map(quote, variants)) for variants in spellings.values() if len(variants) > 1]
    if similar:
        warnings.append(f"labels that differ only in case or spaces count as different: {', '.join(similar[:5])}")
    return labels


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
    texts = [TextColumns(rows, names, compute_sketches(rows, names)) for rows in splits.values()]
    groups = group_duplicates(texts)
    return {
        name: Split(rows, columns, targets[name], numbers, sketches.keys, sketches.words)
        for name, (rows, _, sketches), numbers in zip(splits, texts, groups, strict=True)
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
    """Load labelled rows to evaluate a model on.

    Args:
        source: As for `Task.load`. Of several splits the test split is used, else validation, else the only one.
        problem_type: The problem type of the model.
        labels: The labels of the model, in its order.
        pair: True if the model reads two texts.
        text: Text column (detected if unambiguous).
        text_b: Column of second texts.
        label: Label column (detected if unambiguous).

    Raises:
        DataError: With a list of everything that is wrong, including labels that the model does not have.
    """
    problems = Problems(name_source(source))
    rows = _read_one(source, problems)
    columns = find_columns(rows, problems, given={"text": text, "text_b": text_b, "label": label}, pair=pair)
    if columns is None or columns.label is None:
        raise problems.as_error()
    _check_texts(rows, columns, problems)
    column = read_labels(rows, columns.label, problem_type, problems)
    targets = np.empty(0)
    if column is not None:
        check_labels(column, columns.label, problem_type, problems)
        targets = encode_targets(column, problem_type, labels, columns.label, problems, "the model")
    problems.raise_if_any()
    return _without_sketches(rows, columns, targets)


def load_texts(source: Any, *, pair: bool, text: str | None = None, text_b: str | None = None) -> Split:
    """Load texts without labels, for prediction.

    Args:
        source: As for `Task.load`, without labels; or a .txt file with one text per line, or two texts separated by a
            tab for pairs; or a list of texts or of pairs.
        pair: True if the model reads two texts.
        text: Text column (detected if unambiguous).
        text_b: Column of second texts.

    Raises:
        DataError: With a list of everything that is wrong.
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
    columns = find_columns(rows, problems, given={"text": text, "text_b": text_b}, pair=pair, labelled=False)
    if columns is None:
        raise problems.as_error()
    _check_texts(rows, columns, problems)
    problems.raise_if_any()
    return _without_sketches(rows, columns, np.empty(0, np.int64))


def _read_one(source: Any, problems: Problems) -> Rows:
    rows = _pick_split(read_splits(source, problems, []))
    if rows is not None and not len(rows) and not problems:
        problems.add(rows.where, "there are no rows", "Give at least one text")
    if rows is None or not len(rows):
        raise problems.as_error()
    return rows


def _read_lines(path: Path, pair: bool, problems: Problems) -> dict[str, list[str]]:
    """Read a text file with one text per line, or two separated by a tab. A newline at the end adds no text."""
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
    invalid = [number for number, line in enumerate(lines, 1) if line.count("\t") != 1]
    problems.add_rows(path.name, "without exactly one tab", invalid, "Write two texts per line, separated by a tab")
    problems.raise_if_any()
    return {"text": [line.split("\t")[0] for line in lines], "text_b": [line.split("\t")[1] for line in lines]}


def _without_sketches(rows: Rows, columns: Columns, targets: np.ndarray) -> Split:
    empty = np.empty(0, np.int64)
    return Split(rows, columns, targets, empty, empty, empty)
