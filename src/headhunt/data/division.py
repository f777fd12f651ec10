"""Divide loaded rows into training, validation and test rows: at random, by groups of a column, or in order of time."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headhunt.data.columns import is_string
from headhunt.data.diagnostics import count_classes, count_leaks
from headhunt.data.duplicates import unite
from headhunt.data.problems import Problems, count, quote, quote_some
from headhunt.data.sources import Rows
from headhunt.data.splitting import VALIDATION_ROWS, Split, draw_sample, find_strata, hold_out, hold_out_last
from headhunt.data.tables import encode
from headhunt.errors import DataError

_SPLITS = ("train", "validation", "test")
_MIN_TRAIN_GROUPS = 3  # as many as the folds of a search, so that a search does not fail after it has begun
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
        column = rows.column(name)
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
        examples = _as_text(rows.take(shared[np.sort(first)[:3]]).column(name)).to_pylist()
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
    column = rows.column(name)
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


@dataclass(frozen=True)
class Division:
    """The sizes of the splits to make.

    Attributes:
        test_share: Share of the rows for a test split, if none was given; 0 for none.
        validation_share: With an order, the share of the training rows for a validation split, if none was given; 0
            for none. None for a fifth, or about `VALIDATION_ROWS` of many rows.
        limit: Maximum number of training rows.
        seed: Random seed.
    """

    test_share: float
    validation_share: float | None
    limit: int | None
    seed: int

    def divide(self, splits: dict[str, Split], order: RowOrder | None, notes: list[str]) -> dict[str, Split]:
        """Set test rows aside, then limit the training rows.

        Without an order, test rows are drawn at random, with groups kept together. With one, the last rows are the test
        rows, and the last of the others the validation rows.

        Raises:
            DataError: If no rows can be set aside, or too few groups are left.
        """
        splits = dict(splits)
        if order is not None and "test" in splits and "validation" in splits:
            notes.append("order has no effect, because test and validation rows are given")
        if "test" not in splits and self.test_share:
            if order is None:
                self._set_random_aside(splits, notes)
            else:
                order = _set_last_aside(splits, "test", order, self.test_share, notes)
        train = splits["train"]
        if self.limit is not None and self.limit < len(train):
            notes.append(f"train: {count(self.limit, 'row')} drawn from {len(train):,}")
            drawn = draw_sample(find_strata(train.targets), self.limit, self.seed)
            splits["train"], order = train.take(drawn), order and order.take(drawn)
        share = self.validation_share
        if share is None:
            share = 1 / count_large_folds(len(splits["train"]))
        if order is not None and "validation" not in splits and share:
            _set_last_aside(splits, "validation", order, share, notes)
        if train.columns.group is not None:
            _check_groups(splits["train"])
        return {name: splits[name] for name in _SPLITS if name in splits}

    def _set_random_aside(self, splits: dict[str, Split], notes: list[str]) -> None:
        train = splits["train"]
        # The last training sees the validation rows too, so that a text like one of them cannot be a test row.
        free = ~np.isin(train.groups, splits["validation"].groups) if "validation" in splits else slice(None)
        strata, groups, test = find_strata(train.targets)[free], train.groups[free], np.zeros(len(train), bool)
        by_column = train.columns.group is not None
        test[free] = hold_out(strata, groups, self.test_share, self.seed, by_column=by_column)
        splits |= {"train": train.take(~test), "test": train.take(test)}
        notes.append(f"test: {int(test.sum()):,} of {count(len(train), 'row')} set aside")


def _check_groups(train: Split) -> None:
    groups = len(np.unique(train.groups))
    if groups < _MIN_TRAIN_GROUPS:
        raise DataError(
            f"The training rows must have at least {_MIN_TRAIN_GROUPS} groups; found {groups} by "
            f"{quote(train.columns.group)}, where groups with nearly the same texts count as one. Give more rows, or "
            "set group to a column with more groups"
        )


def count_large_folds(rows: int) -> int:
    """Return the number of folds of which one has about `VALIDATION_ROWS` rows; of fewer, a tenth or a fifth."""
    return max(10 if rows >= VALIDATION_ROWS else 5, round(rows / VALIDATION_ROWS))


def _set_last_aside(splits: dict[str, Split], name: str, order: RowOrder, share: float, notes: list[str]) -> RowOrder:
    """Move the last training rows to a new split. Return the order of the rows that stay."""
    train = splits["train"]
    column = train.columns.order
    last = hold_out_last(order.ranks, share)
    if not last.any():
        value = quote(order.names[order.ranks[0]])
        raise DataError(
            f"order column {quote(column)} must have different values, so that the last rows can be set aside for "
            f"{name}; found only {value}. Set order to a column with more values, or give the rows as {name}="
        )
    start = order.names[order.ranks[last].min()]
    notes.append(f"{name}: the last {count(int(last.sum()), 'row')} by {column} set aside, from {start} on")
    splits["train"], splits[name] = train.take(~last), train.take(last)
    return order.take(~last)


def keep_groups_together(
    splits: dict[str, Split], numbered: dict[str, np.ndarray], name: str, warnings: list[str]
) -> bool:
    """Unite the groups of near-duplicates with those of a column.

    Args:
        splits: The splits; their `groups` are replaced.
        numbered: For each split that has the column, the number of each row's value; -1 for none.
        name: The column.
        warnings: Receives a warning if only the groups of the column can be kept together.

    Returns:
        True if near-duplicates stay together as well.
    """
    numbers = [numbered.get(split, np.full(len(rows), -1)) for split, rows in splits.items()]
    joined = join_groups([rows.near for rows in splits.values()], numbers)
    if joined is None:
        warnings.append(
            f"texts in common connect most groups of {quote(name)}; groups are kept in one split, "
            "rows with nearly the same text are not"
        )
    for rows, groups in zip(splits.values(), joined or separate_missing(numbers), strict=True):
        rows.groups = groups
    return joined is not None


def warn_of_divided_duplicates(given: dict[str, Split], divided: dict[str, Split]) -> list[str]:
    """Return warnings about new splits that have texts of training rows."""
    made = {name: split for name, split in divided.items() if name == "train" or name not in given}
    return [
        f"{name}: {leaks['near']:,} of {count(len(made[name]), 'row')} have (nearly) the text of a training row"
        for name, leaks in count_leaks(made).items()
        if leaks["near"]
    ]


def warn_of_late_classes(divided: dict[str, Split], labels: Sequence[str]) -> list[str]:
    """Return a warning if a class has no training row, because its rows are all among the last ones."""
    counts = count_classes(divided["train"].targets, len(labels)) if labels else np.empty(0)
    late = [label for label, number in zip(labels, counts, strict=True) if number == 0]
    what = f"{count(len(late), 'class has', 'classes have')} no training row in this order: {quote_some(late)}"
    return [what] if late else []
