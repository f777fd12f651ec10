"""Read the columns that restrict how rows are divided: groups of rows that stay together, and an order in time."""

import math
import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headhunt.data.columns import is_string
from headhunt.data.duplicates import unite
from headhunt.data.problems import Problems, count, quote, quote_some
from headhunt.data.sources import Rows
from headhunt.data.tables import encode

_MIN_GROUPS = 5  # for the test split and the folds of a search; fewer leave splits of very uneven size
_MAX_JOINED_SHARE = 0.2  # share of the rows that texts in common may join into one group
_NEEDED = "Give numbers, or ISO dates such as 2024-03-01 or 2024-03-01 14:05:00, in every row"
_FRACTION = re.compile(r"[.eEnN]")  # of numbers that are not whole, and of inf and nan
_MONTH = re.compile(r"\d{4}-\d{2}")


class RowOrder(NamedTuple):
    """The order of the rows by a column.

    Attributes:
        ranks: int64 (n,); 0 for the first distinct value. Equal values have equal ranks.
        names: The distinct values as the user wrote them, in order.
    """

    ranks: np.ndarray
    names: list[str]

    def take(self, positions: Any) -> "RowOrder":
        """Select rows by position, by a boolean mask, or all with `...`."""
        return RowOrder(self.ranks[positions], self.names)


def number_groups(splits: dict[str, Rows], name: str, problems: Problems) -> dict[str, np.ndarray]:
    """Number the values of a group column, alike in all splits.

    Args:
        splits: The rows; those without the column are left out of the result.
        name: The column.
        problems: Receives everything that is wrong.

    Returns:
        For each split, the number of each row's value, int64 (n,); -1 for a missing value.
    """
    columns = {}
    for split, rows in splits.items():
        if name not in rows.table.column_names:
            continue
        column = _decode(rows.column(name))
        try:
            columns[split] = _as_text(column)
        except pa.ArrowException:
            what = f"group column {quote(name)} holds {column.type} values"
            problems.add(rows.where, what, "Set group to a column of text or numbers")
            return {}
    values = pa.chunked_array([chunk for column in columns.values() for chunk in column.chunks], pa.string())
    _, numbers = encode(values)
    bounds = np.cumsum([len(column) for column in columns.values()])[:-1]
    numbered = dict(zip(columns, np.split(numbers, bounds), strict=True))
    train = numbered["train"]
    groups = len(np.unique(train[train >= 0]))
    if groups + (train < 0).sum() < _MIN_GROUPS:
        what = f"group column {quote(name)} has {count(groups, 'group')}, too few to divide the rows"
        problems.add(splits["train"].where, what, f"At least {_MIN_GROUPS} are needed")
    return numbered


def _decode(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the values of a column of categories; other columns as they are."""
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def _as_text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Convert group values to text. Blank text becomes null, and 7.0 becomes 7 as in a split without nulls."""
    if pa.types.is_floating(column.type):
        column = pc.if_else(pc.is_finite(column), column, pa.scalar(None, column.type))
        whole = pc.all(pc.equal(column, pc.floor(column))).as_py()
        column = column.cast(pa.int64(), safe=False) if whole else column
    text = pc.utf8_trim_whitespace(column.cast(pa.string()))
    return pc.if_else(pc.equal(text, ""), pa.scalar(None, pa.string()), text)


def describe_groups(numbered: dict[str, np.ndarray], name: str) -> str:
    """Return a note about the groups of the training rows."""
    train = numbered["train"]
    missing = int((train < 0).sum())
    note = f"group column: {name} ({count(len(np.unique(train[train >= 0])), 'group')})"
    return note + (f"; {count(missing, 'row')} without a value count as separate groups" if missing else "")


def warn_of_shared_groups(splits: dict[str, Rows], numbered: dict[str, np.ndarray], name: str) -> list[str]:
    """Return warnings about groups that are in the training rows and in another split that was given."""
    warnings = []
    train = np.unique(numbered["train"][numbered["train"] >= 0])
    for split, rows in splits.items():
        if split not in numbered:
            what = "groups that are also in the training rows cannot be found"
            warnings.append(f"{rows.where} has no column {quote(name)}; {what}")
            continue
        shared = np.flatnonzero(np.isin(numbered[split], train))
        if split == "train" or not len(shared):
            continue
        _, first = np.unique(numbered[split][shared], return_index=True)
        examples = _as_text(_decode(rows.take(shared[np.sort(first)[:3]]).column(name))).to_pylist()
        groups = count(len(first), f"group of column {quote(name)} is", f"groups of column {quote(name)} are")
        warnings.append(
            f"{groups} in the training rows and in the {split} rows (such as {quote_some(examples)}): "
            f"{count(len(shared), f'{split} row')}"
        )
    return warnings


def join_groups(near: Sequence[np.ndarray], numbered: Sequence[np.ndarray]) -> list[np.ndarray] | None:
    """Unite the groups of a column with the groups of rows that have nearly the same text.

    Args:
        near: For each split, the group of nearly the same texts of each row.
        numbered: For each split, the group of each row in the column; -1 for none.

    Returns:
        For each split, the united group of each row. None if texts in common join so many groups that the rows
        could no longer be divided.
    """
    texts, values = np.concatenate(near), np.concatenate(numbered)
    has_value = values >= 0
    _, first, inverse = np.unique(values[has_value], return_index=True, return_inverse=True)
    members = texts[has_value]
    parents = unite(np.arange(texts.max() + 1), members[first][inverse.reshape(-1)], members)
    joined = parents[texts]
    largest = np.bincount(values[has_value]).max() if has_value.any() else 1
    if np.bincount(joined).max() > max(_MAX_JOINED_SHARE * len(joined), 2 * largest):
        return None
    return np.split(joined, np.cumsum([len(groups) for groups in near])[:-1])


def separate_missing(numbered: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return the groups of a column alone, with a group of its own for each row without a value."""
    values = np.concatenate(numbered)
    groups = np.where(values >= 0, values, values.max() + 1 + np.arange(len(values)))
    return np.split(groups, np.cumsum([len(numbers) for numbers in numbered])[:-1])


def rank_rows(rows: Rows, name: str, problems: Problems) -> RowOrder:
    """Rank rows by a column of numbers, dates or times.

    Args:
        rows: The rows.
        name: The column.
        problems: Everything that is wrong so far.

    Raises:
        DataError: With all problems, if it cannot be ordered.
    """
    column = _decode(rows.column(name))
    if name in rows.mixed or not _has_order(column.type):
        kind = f"mixes {rows.mixed[name]}" if name in rows.mixed else f"holds {column.type} values"
        problems.add(rows.where, f"order column {quote(name)} {kind}, which cannot be ordered", _NEEDED)
        problems.raise_if_any()
    if is_string(column.type):
        column = pc.utf8_trim_whitespace(column.cast(pa.string()))
        column = pc.if_else(pc.equal(column, ""), pa.scalar(None, pa.string()), column)
    elif pa.types.is_floating(column.type):
        column = pc.if_else(pc.is_nan(column), pa.scalar(None, column.type), column)
    missing = np.flatnonzero(column.is_null().to_numpy())
    problems.add_rows(
        rows.where, f"without a value in {quote(name)}", rows.number(missing), "Fill them in or remove the rows"
    )
    problems.raise_if_any()
    distinct, codes = encode(column)
    values = distinct.to_numpy(zero_copy_only=False)
    if is_string(distinct.type):
        parsed = [_parse_value(text) for text in distinct.to_pylist()]
        kinds = {kind for kind, _ in parsed}
        if "" in kinds:
            other = [at for at, (kind, _) in enumerate(parsed) if not kind]
            examples = quote_some([distinct[at].as_py() for at in other[:3]])
            what = f"with a value in {quote(name)} that is neither a number nor an ISO date, such as {examples}"
            problems.add_rows(rows.where, what, rows.number(np.flatnonzero(np.isin(codes, other))), _NEEDED)
        elif len(kinds) > 1:
            what = f"order column {quote(name)} mixes {' and '.join(sorted(kinds))}"
            problems.add(rows.where, what, "Use one form in every row")
        problems.raise_if_any()
        values = np.array([value for _, value in parsed])
    _, first, places = np.unique(values, return_index=True, return_inverse=True)
    names = [str(distinct[at].as_py()) for at in first.tolist()]
    return RowOrder(places.reshape(-1)[codes].astype(np.int64), names)


def _has_order(kind: pa.DataType) -> bool:
    numbers = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    return numbers or pa.types.is_date(kind) or pa.types.is_timestamp(kind) or is_string(kind)


def _parse_value(text: str) -> tuple[str, Any]:
    """Return the kind of a value that can be ordered, in words, with the value; "" for any other."""
    try:
        number = float(text) if _FRACTION.search(text) else int(text)
        return "" if math.isnan(number) else "numbers", number
    except (ValueError, OverflowError):
        pass
    try:
        time = datetime.fromisoformat(f"{text}-01" if _MONTH.fullmatch(text) else text)
    except ValueError:
        return "", None
    return f"times {'without' if time.tzinfo is None else 'with'} a time zone", time
