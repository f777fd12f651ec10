"""Convert a column of labels to targets: infer the problem type, name the classes, report unusable labels."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headhunt.data.columns import is_string
from headhunt.data.problems import Problems, brief, count, list_rows, quote, quote_some
from headhunt.data.sources import Rows
from headhunt.data.tables import encode
from headhunt.storage import parse_json

ProblemType = Literal["single_label_classification", "multi_label_classification", "regression", "multi_task"]
"""Of a task; "multi_task" stands for several tasks in one, each with a problem type of its own."""
PROBLEM_TYPES: tuple[ProblemType, ...] = ("single_label_classification", "multi_label_classification", "regression")
_MAX_FLOAT_CLASSES = 20  # distinct floats that still count as classes
_SEPARATORS = "|;,"


@dataclass(frozen=True)
class LabelColumn:
    """A label column as distinct values and codes.

    Attributes:
        rows: The rows that have the labels.
        distinct: The distinct values: string, int64, double or bool.
        codes: Positions in `distinct`, -1 for a missing label. One per row, or one per list entry (see `owners`).
        owners: For lists, the row of each code.
        missing: Positions of rows without a label.
    """

    rows: Rows
    distinct: pa.Array
    codes: np.ndarray
    owners: np.ndarray | None
    missing: np.ndarray

    @property
    def numeric(self) -> bool:
        """True if every value is a number."""
        return not is_string(self.distinct.type) and not pa.types.is_boolean(self.distinct.type)

    def find(self, values: np.ndarray) -> np.ndarray:
        """Return the positions of rows that have one of the values, given as positions in `distinct`."""
        matches = np.flatnonzero(np.isin(self.codes, values))
        return matches if self.owners is None else np.unique(self.owners[matches])


def read_labels(rows: Rows, name: str, problem_type: ProblemType | None, problems: Problems) -> LabelColumn:
    """Read a label column, or report why it cannot be used.

    Args:
        rows: The rows.
        name: The column.
        problem_type: As given by the user; "multi_label_classification" splits cells such as ``a|b`` into lists.
        problems: Receives everything that is wrong.

    Raises:
        UnreadableError: If it cannot be used.
    """
    if name in rows.mixed:
        what = f"label column {quote(name)} mixes {rows.mixed[name]}"
        raise problems.add(rows.where, what, "Use one type for all labels, for example text")
    try:
        column = rows.column(name)
        column.validate(full=True)
    except pa.ArrowException as error:
        what = f"label column {quote(name)} is damaged ({brief(error)})"
        raise problems.add(rows.where, what, "Write it again, in UTF-8") from None
    if is_string(column.type):
        column = _parse_lists(column, problem_type)
    lists = pa.types.is_list(column.type) or pa.types.is_large_list(column.type)
    lists = lists or pa.types.is_fixed_size_list(column.type)
    if lists and _can_be_label(column.type.value_type):
        return _read_lists(rows, name, column)
    if not _can_be_label(column.type):
        raise problems.add(rows.where, f"label column {quote(name)} holds {column.type} values", "Set label to another")
    distinct, codes = _encode(_apply_class_names(column, rows.class_names.get(name)))
    return LabelColumn(rows, distinct, codes, None, np.flatnonzero(codes < 0))


def _can_be_label(kind: pa.DataType) -> bool:
    number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    return number or is_string(kind) or pa.types.is_boolean(kind) or pa.types.is_null(kind)


def _read_lists(rows: Rows, name: str, column: pa.ChunkedArray) -> LabelColumn:
    joined = column.combine_chunks()
    owners = pc.list_parent_indices(joined).to_numpy(zero_copy_only=False).astype(np.int64)
    distinct, codes = _encode(_apply_class_names(pa.chunked_array([joined.flatten()]), rows.class_names.get(name)))
    missing = np.flatnonzero(joined.is_null().to_numpy(zero_copy_only=False))
    return LabelColumn(rows, distinct, codes[codes >= 0], owners[codes >= 0], missing)


def _apply_class_names(column: pa.ChunkedArray, names: list[str] | None) -> pa.ChunkedArray:
    """Replace integers by their class names; integers without a name, such as -1, mark unlabelled rows."""
    if not names or not pa.types.is_integer(column.type):
        return column
    known = pc.and_(pc.greater_equal(column, 0), pc.less(column, len(names)))
    return pc.take(pa.array(names), pc.if_else(known, column, pa.scalar(None, column.type)))


def _encode(column: pa.ChunkedArray) -> tuple[pa.Array, np.ndarray]:
    """Return the distinct values and the position of each row's value among them, -1 for none; text is stripped."""
    if pa.types.is_null(column.type):
        return pa.array([], pa.string()), np.full(len(column), -1)
    values, codes = encode(column)
    if is_string(values.type):
        values = pc.utf8_trim_whitespace(values.cast(pa.string()))
        values = pc.if_else(pc.equal(values, ""), pa.scalar(None, pa.string()), values)
        values = _parse_numbers(values)
    elif pa.types.is_integer(values.type):
        values = _to_integers(values)
    elif pa.types.is_floating(values.type) or pa.types.is_decimal(values.type):
        values = values.cast(pa.float64())
    distinct, places = encode(pa.chunked_array([values]))  # stripping and parsing numbers can make values equal
    return distinct, np.append(places, -1)[codes]


def _to_integers(values: pa.Array) -> pa.Array:
    try:
        return values.cast(pa.int64())
    except pa.ArrowInvalid:  # identifiers beyond 63 bits, which are names of classes rather than numbers
        return values.cast(pa.string())


def _parse_numbers(values: pa.Array) -> pa.Array:
    """Parse text as numbers if every value is a number; ``007`` is not, because it would become ``7``."""
    with suppress(pa.ArrowInvalid):
        integers = values.cast(pa.int64())
        return integers if integers.cast(pa.string()).equals(values) else values
    with suppress(pa.ArrowInvalid):
        return values.cast(pa.float64())
    return values


def _parse_lists(column: pa.ChunkedArray, problem_type: ProblemType | None) -> pa.ChunkedArray:
    """Parse cells that hold lists: JSON always; ``a|b``, ``a;b`` or ``a,b`` only for multi-label problems."""
    distinct = pc.utf8_trim_whitespace(column.unique().drop_null().cast(pa.string()))
    bracketed = len(distinct) and pc.all(pc.match_substring_regex(distinct, r"^\[.*\]$")).as_py()
    if problem_type not in (None, "multi_label_classification") or (problem_type is None and not bracketed):
        return column
    cells = column.to_pylist()
    if bracketed:
        try:
            lists = [None if cell is None else [str(entry) for entry in parse_json(cell)] for cell in cells]
            return pa.chunked_array([pa.array(lists, pa.list_(pa.string()))])
        except (ValueError, TypeError):
            return column
    separator = next((mark for mark in _SEPARATORS if any(mark in cell for cell in distinct.to_pylist())), "|")
    lists = [[entry.strip() for entry in (cell or "").split(separator) if entry.strip()] for cell in cells]
    return pa.chunked_array([pa.array(lists, pa.list_(pa.string()))])


def infer_problem_type(column: LabelColumn, name: str, warnings: list[str]) -> ProblemType:
    """Infer the problem type from the labels of the training rows."""
    if column.owners is not None:
        return "multi_label_classification"
    if not column.numeric:
        _warn_of_separators(column.distinct.to_pylist(), warnings)
        return "single_label_classification"
    values = column.distinct.to_numpy(zero_copy_only=False)
    if pa.types.is_floating(column.distinct.type):
        finite = values[np.isfinite(values)]
        return (
            "single_label_classification"
            if len(values) <= _MAX_FLOAT_CLASSES and np.array_equal(finite, np.round(finite))
            else "regression"
        )
    if len(values) > max(50, len(column.rows) // 5):
        values_and_rows = f"{count(len(values), 'distinct integer')} in {count(len(column.rows), 'row')}"
        warnings.append(
            f"label column {quote(name)} has {values_and_rows} and is treated as regression; "
            "for classes set problem_type to single_label_classification"
        )
        return "regression"
    return "single_label_classification"


def _warn_of_separators(labels: list[Any], warnings: list[str]) -> None:
    """Add a warning if a label looks like several others in one cell."""
    known = set(labels)
    for mark in _SEPARATORS:
        for label in (label for label in labels if isinstance(label, str) and mark in label):
            parts = [part.strip() for part in label.split(mark)]
            if known.intersection(parts):
                warnings.append(
                    f"a label such as {quote(label)} is read as one class; for several labels per row set "
                    "problem_type to multi_label_classification"
                )
                return


def check_labels(column: LabelColumn, name: str, problem_type: ProblemType, problems: Problems) -> None:
    """Report labels that are missing or do not fit the problem type."""
    where = column.rows.where
    what, remedy = f"without a label in {quote(name)}", "Fill them in or remove the rows"
    problems.add_rows(where, what, column.rows.number(column.missing), remedy)
    if problem_type == "multi_label_classification" and column.owners is None:
        remedy = "Set problem_type to single_label_classification, or give lists such as a|b"
        problems.add(where, f"label column {quote(name)} holds one value per row, not several", remedy)
    if problem_type != "multi_label_classification" and column.owners is not None:
        remedy = "Set problem_type to multi_label_classification"
        problems.add(where, f"label column {quote(name)} holds lists", remedy)
    if problem_type == "regression":
        _check_numbers(column, name, problems)
    if column.numeric and pa.types.is_floating(column.distinct.type):
        invalid = np.flatnonzero(~np.isfinite(column.distinct.to_numpy(zero_copy_only=False)))
        what = f"with a label in {quote(name)} that is NaN or infinite"
        problems.add_rows(
            where, what, column.rows.number(column.find(invalid)), "Give a finite number or remove the rows"
        )


def _check_numbers(column: LabelColumn, name: str, problems: Problems) -> None:
    if column.numeric or column.owners is not None:
        return
    texts = column.distinct.cast(pa.string()).to_pylist()
    invalid = np.flatnonzero(np.isnan([_number(text) for text in texts]))
    rows = column.rows.number(column.find(invalid))
    example = quote(texts[invalid[0]]) if len(invalid) else ""
    what = f"with a label in {quote(name)} that is not a number (such as {example})"
    remedy = "Give numbers, or set problem_type to single_label_classification"
    problems.add_rows(column.rows.where, what, rows, remedy)


def format_classes(column: LabelColumn) -> list[str]:
    """Return the distinct values as class names; ``2.0`` becomes ``2``."""
    values = column.distinct.to_pylist()
    return [str(int(value) if isinstance(value, float) and value.is_integer() else value) for value in values]


def find_classes(
    column: LabelColumn, problem_type: ProblemType, name: str, problems: Problems, warnings: list[str]
) -> tuple[str, ...]:
    """Return the classes of the training rows, sorted by value if all are numbers, else as text; () for numbers."""
    if problem_type == "regression":
        return ()
    labels = sorted(set(format_classes(column)))
    if not np.isnan([_number(label) for label in labels]).any():
        labels.sort(key=float)
    _check_classes(column, labels, name, problems)
    spellings: dict[str, list[str]] = {}
    for label in labels:
        spellings.setdefault(" ".join(label.casefold().split()), []).append(label)
    similar = [" and ".join(map(quote, variants)) for variants in spellings.values() if len(variants) > 1]
    if similar:
        warnings.append(f"labels that differ only in case or spaces count as different: {', '.join(similar[:5])}")
    return tuple(labels)


def _check_classes(column: LabelColumn, labels: Sequence[str], name: str, problems: Problems) -> None:
    """Report training labels with fewer than two classes, or too many values to be classes."""
    where, many = column.rows.where, len(labels)
    if many == 0:
        what = f"no row has a label in {quote(name)}"
        problems.add(where, what, "Set label to the label column")
    elif many == 1 and column.owners is None:
        what = f"every label in {quote(name)} is {quote(labels[0])}"
        problems.add(where, what, "At least two classes are needed; set label to another column")
    elif many > max(50, len(column.rows) // 2):
        others = [label for label in labels if np.isnan(_number(label))]
        what = f"label column {quote(name)} has {many:,} distinct values in {count(len(column.rows), 'row')}"
        if 0 < len(others) < 0.2 * many:
            values = np.array([at for at, label in enumerate(format_classes(column)) if label in set(others)])
            rows = column.rows.number(column.find(values))
            what = f"label column {quote(name)} holds numbers, but also {quote_some(others)} ({list_rows(rows)})"
            problems.add(where, what, "Give numbers in these rows or remove them")
        else:
            remedy = "Set label to a column of classes, or problem_type to regression for numbers"
            problems.add(where, what, remedy)


def encode_targets(
    column: LabelColumn, problem_type: ProblemType, labels: Sequence[str], name: str, problems: Problems, known: str
) -> np.ndarray:
    """Convert labels to targets.

    Args:
        column: The labels.
        problem_type: The problem type.
        labels: Class names, in order.
        name: The name of the label column, for messages.
        problems: Receives labels that are not among the class names.
        known: The origin of the class names, for messages: "the training rows" or "the model".

    Returns:
        int64 of shape (n,) for classes, float32 of shape (n, k) for several labels, float32 of shape (n,) for numbers.
    """
    if problem_type == "regression":
        values = np.array([_number(value) for value in column.distinct.to_pylist()] + [np.nan], np.float32)
        return values[column.codes]
    positions = {label: position for position, label in enumerate(labels)}
    names = format_classes(column)
    mapped = np.array([positions.get(label, -1) for label in names] + [-1], np.int64)
    unknown = np.flatnonzero(mapped[:-1] < 0)
    if len(unknown):
        rows = column.rows.number(column.find(unknown))
        what = f"column {quote(name)} has labels that are not among those of {known}: "
        what += quote_some([names[at] for at in unknown])
        problems.add(
            column.rows.where, f"{what} ({list_rows(rows)})", f"{known[:1].upper()}{known[1:]} must have every label"
        )
    if problem_type == "single_label_classification":
        return mapped[column.codes]
    multi_hot = np.zeros((len(column.rows), len(labels)), np.float32)
    if column.owners is not None:
        present = mapped[column.codes]
        multi_hot[column.owners[present >= 0], present[present >= 0]] = 1
    return multi_hot


def _number(value: Any) -> float:
    """Return a value as a number; NaN if it is none."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return np.nan
