"""From a column of labels to targets: what kind of task they make, what the classes are called, what cannot be used."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headhunt.data.columns import is_string
from headhunt.data.problems import Problems, count, name_rows, quote, quote_some
from headhunt.data.sources import Rows

ProblemType = Literal["single_label_classification", "multi_label_classification", "regression"]
PROBLEM_TYPES: tuple[ProblemType, ...] = ("single_label_classification", "multi_label_classification", "regression")
_FEW = 20  # distinct decimals that are still taken for classes
_SEPARATORS = "|;,"


@dataclass(frozen=True)
class Cells:
    """A label column as distinct values and, for every row, which one it has.

    Attributes:
        rows: Where it comes from.
        distinct: The distinct values: string, int64, double or bool.
        codes: Which value, -1 for none; one per row or, with `owners`, one per entry of the rows' lists.
        owners: For lists, the row each code belongs to.
        missing: Positions of rows without a label.
    """

    rows: Rows
    distinct: pa.Array
    codes: np.ndarray
    owners: np.ndarray | None
    missing: np.ndarray

    @property
    def numeric(self) -> bool:
        """Whether every value is a number."""
        return not is_string(self.distinct.type) and not pa.types.is_boolean(self.distinct.type)

    def find(self, values: np.ndarray) -> np.ndarray:
        """Find the positions of rows that have one of the values (given by place in `distinct`)."""
        hits = np.flatnonzero(np.isin(self.codes, values))
        return hits if self.owners is None else np.unique(self.owners[hits])


def read_cells(rows: Rows, name: str, problem_type: ProblemType | None, problems: Problems) -> Cells | None:
    """Read a label column, or note why it is none.

    Args:
        rows: The rows.
        name: The column.
        problem_type: Given by the user; "multi_label_classification" splits cells such as ``a|b`` into lists.
        problems: Takes what is wrong.
    """
    if name in rows.mixed:
        what = f"label column {quote(name)} mixes {rows.mixed[name]}"
        problems.add(rows.where, what, "Write all labels the same way, for example all as text")
        return None
    column = rows.column(name)
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if is_string(column.type):
        lists = _split_lists(column, problem_type)
        column = column if lists is None else lists
    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type) or pa.types.is_fixed_size_list(column.type):
        return _read_lists(rows, name, column)
    if pa.types.is_nested(column.type) or pa.types.is_binary(column.type) or pa.types.is_temporal(column.type):
        problems.add(rows.where, f"label column {quote(name)} holds {column.type} values", "Name another with --label")
        return None
    distinct, codes = _encode(_name_values(column, rows.class_names.get(name)))
    return Cells(rows, distinct, codes, None, np.flatnonzero(codes < 0))


def _read_lists(rows: Rows, name: str, column: pa.ChunkedArray) -> Cells:
    joined = column.combine_chunks()
    joined = pa.concat_arrays(joined.chunks) if isinstance(joined, pa.ChunkedArray) else joined
    owners = pc.list_parent_indices(joined).to_numpy(zero_copy_only=False).astype(np.int64)
    distinct, codes = _encode(_name_values(pa.chunked_array([joined.flatten()]), rows.class_names.get(name)))
    missing = np.flatnonzero(joined.is_null().to_numpy(zero_copy_only=False))
    return Cells(rows, distinct, codes[codes >= 0], owners[codes >= 0], missing)


def _name_values(column: pa.ChunkedArray, names: list[str] | None) -> pa.ChunkedArray:
    """Replace integers by the names that came with them; -1 is how unlabelled rows are written there."""
    if not names or not pa.types.is_integer(column.type):
        return column
    known = pc.and_(pc.greater_equal(column, 0), pc.less(column, len(names)))
    return pc.take(pa.array(names), pc.if_else(known, column, pa.scalar(None, column.type)))


def _encode(column: pa.ChunkedArray) -> tuple[pa.Array, np.ndarray]:
    """Find the distinct values and each row's place among them, -1 for none; text is stripped."""
    if pa.types.is_null(column.type):
        return pa.array([], pa.string()), np.full(len(column), -1)
    encoded = column.dictionary_encode().unify_dictionaries()
    values = encoded.chunk(0).dictionary if encoded.num_chunks else pa.array([], column.type)
    codes = np.concatenate(
        [np.empty(0, np.int64)]
        + [chunk.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64) for chunk in encoded.chunks]
    )
    if is_string(values.type):
        values = pc.utf8_trim_whitespace(values.cast(pa.string()))
        values = pc.if_else(pc.equal(values, ""), pa.scalar(None, pa.string()), values)
        values = _as_numbers(values)
    elif pa.types.is_integer(values.type):
        values = values.cast(pa.int64())
    elif pa.types.is_floating(values.type) or pa.types.is_decimal(values.type):
        values = values.cast(pa.float64())
    merged = values.dictionary_encode()  # what stripping and reading as numbers made equal
    places = merged.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    return merged.dictionary, np.append(places, -1)[codes]


def _as_numbers(values: pa.Array) -> pa.Array:
    """Read text as numbers if every one is; ``007`` is not, for it would come back as ``7``."""
    try:
        whole = values.cast(pa.int64())
        return whole if whole.cast(pa.string()).equals(values) else values
    except pa.ArrowInvalid:
        pass
    try:
        return values.cast(pa.float64())
    except pa.ArrowInvalid:
        return values


def _split_lists(column: pa.ChunkedArray, problem_type: ProblemType | None) -> pa.ChunkedArray | None:
    """Read cells that are written lists: JSON always, ``a|b``, ``a;b`` or ``a,b`` if several labels are asked for."""
    distinct = pc.utf8_trim_whitespace(column.unique().drop_null().cast(pa.string()))
    bracketed = len(distinct) and pc.all(pc.match_substring_regex(distinct, r"^\[.*\]$")).as_py()
    if problem_type not in (None, "multi_label_classification") or (problem_type is None and not bracketed):
        return None
    cells = column.to_pylist()
    if bracketed:
        try:
            lists = [None if cell is None else [str(entry) for entry in json.loads(cell)] for cell in cells]
            return pa.chunked_array([pa.array(lists, pa.list_(pa.string()))])
        except (ValueError, TypeError):
            return None
    separator = next((mark for mark in _SEPARATORS if any(mark in cell for cell in distinct.to_pylist())), "|")
    lists = [[part.strip() for part in (cell or "").split(separator) if part.strip()] for cell in cells]
    return pa.chunked_array([pa.array(lists, pa.list_(pa.string()))])


def guess_kind(cells: Cells, name: str, warnings: list[str]) -> ProblemType:
    """Tell from the labels of the training rows what is to be predicted."""
    if cells.owners is not None:
        return "multi_label_classification"
    if not cells.numeric:
        return "single_label_classification"
    values = cells.distinct.to_numpy(zero_copy_only=False)
    if pa.types.is_floating(cells.distinct.type):
        finite = values[np.isfinite(values)]
        return (
            "single_label_classification"
            if len(values) <= _FEW and np.array_equal(finite, np.round(finite))
            else "regression"
        )
    if len(values) > max(50, len(cells.rows) // 5):
        found = f"{count(len(values), 'different whole number')} in {count(len(cells.rows), 'row')}"
        warnings.append(
            f"column {quote(name)} has {found}: predicted as a number; for classes, say so with "
            "--problem-type single_label_classification"
        )
        return "regression"
    return "single_label_classification"


def check_cells(cells: Cells, name: str, problem_type: ProblemType, problems: Problems) -> None:
    """Note labels that do not make a task of the kind."""
    where = cells.rows.where
    what, remedy = f"without a label in {quote(name)}", "Fill them in or remove the rows"
    problems.add_rows(where, what, cells.rows.number(cells.missing), remedy)
    if problem_type == "multi_label_classification" and cells.owners is None:
        remedy = "Use --problem-type single_label_classification, or give lists such as a|b"
        problems.add(where, f"label column {quote(name)} holds one value per row, not several", remedy)
    if problem_type != "multi_label_classification" and cells.owners is not None:
        problems.add(where, f"label column {quote(name)} holds lists", "Use --problem-type multi_label_classification")
    if problem_type == "regression":
        _check_numbers(cells, name, problems)
    if cells.numeric and pa.types.is_floating(cells.distinct.type):
        odd = np.flatnonzero(~np.isfinite(cells.distinct.to_numpy(zero_copy_only=False)))
        what = f"with a label in {quote(name)} that is NaN or infinite"
        problems.add_rows(where, what, cells.rows.number(cells.find(odd)), "Give a finite number or remove the rows")


def _check_numbers(cells: Cells, name: str, problems: Problems) -> None:
    if cells.numeric or cells.owners is not None:
        return
    texts = cells.distinct.cast(pa.string()).to_pylist()
    wrong = np.array([at for at, text in enumerate(texts) if not _is_number(text)])
    rows = cells.rows.number(cells.find(wrong))
    what = f"with a label in {quote(name)} that is no number (such as {quote(texts[wrong[0]]) if len(wrong) else ''})"
    problems.add_rows(cells.rows.where, what, rows, "Give numbers, or use --problem-type single_label_classification")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def name_values(cells: Cells) -> list[str]:
    """Name the distinct values: numbers without a needless ``.0``, the rest as they are."""
    return [_name(value) for value in cells.distinct.to_pylist()]


def _name(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def sort_names(names: set[str]) -> tuple[str, ...]:
    """Sort class names: as numbers if all are, else as text."""
    if names and all(_is_number(name) for name in names):
        return tuple(sorted(names, key=lambda name: (float(name), name)))
    return tuple(sorted(names))


def check_names(cells: Cells, labels: Sequence[str], column: str, problems: Problems) -> None:
    """Note training labels that leave nothing to learn, or that are not classes at all."""
    where, many = cells.rows.where, len(labels)
    if many == 0:
        what = f"no row has a label in {quote(column)}"
        problems.add(where, what, "Name the label column with --label")
    elif many == 1 and cells.owners is None:
        what = f"every label in {quote(column)} is {quote(labels[0])}"
        problems.add(where, what, "At least two classes are needed; name another column with --label")
    elif many > max(50, len(cells.rows) // 2):
        numbers = [name for name in labels if _is_number(name)]
        odd = [name for name in labels if not _is_number(name)]
        what = f"label column {quote(column)} has {many:,} different values in {count(len(cells.rows), 'row')}"
        if len(numbers) > 0.8 * many and odd:
            values = np.array([at for at, name in enumerate(name_values(cells)) if name in set(odd)])
            rows = cells.rows.number(cells.find(values))
            what = f"label column {quote(column)} holds numbers, but also {quote_some(odd)} ({name_rows(rows)})"
            problems.add(where, what, "Give numbers in these rows or remove them")
        else:
            problems.add(
                where, what, "Name a column of classes with --label, or of numbers with --problem-type regression"
            )


def encode_targets(
    cells: Cells, problem_type: ProblemType, labels: Sequence[str], column: str, problems: Problems, known: str
) -> np.ndarray:
    """Turn labels into targets.

    Args:
        cells: The labels.
        problem_type: What they are.
        labels: Class names, in order.
        column: Name of the label column, for messages.
        problems: Takes labels that are not among the names.
        known: Where the names come from, for messages: "the training rows", "the model".

    Returns:
        int64 of shape (n,) for classes, float32 of shape (n, k) for several labels, float32 of shape (n,) for numbers.
    """
    if problem_type == "regression":
        values = np.array([_number(value) for value in cells.distinct.to_pylist()] + [np.nan], np.float32)
        return values[cells.codes]
    places = {label: place for place, label in enumerate(labels)}
    names = name_values(cells)
    mapped = np.array([places.get(name, -1) for name in names] + [-1], np.int64)
    strange = np.flatnonzero(mapped[:-1] < 0)
    if len(strange):
        rows = cells.rows.number(cells.find(strange))
        what = f"{quote_some([names[at] for at in strange])} in column {quote(column)} is not a label of {known}"
        problems.add(
            cells.rows.where, f"{what} ({name_rows(rows)})", f"{known[:1].upper()}{known[1:]} must have every label"
        )
    if problem_type == "single_label_classification":
        return mapped[cells.codes]
    hot = np.zeros((len(cells.rows), len(labels)), np.float32)
    if cells.owners is not None:
        chosen = mapped[cells.codes]
        hot[cells.owners[chosen >= 0], chosen[chosen >= 0]] = 1
    return hot


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return np.nan
