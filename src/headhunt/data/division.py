"""Divide loaded rows into training, validation and test rows: at random, by groups, or in the order of time."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headhunt.data.constraints import RowOrder, join_groups, separate_missing
from headhunt.data.diagnostics import count_leaks
from headhunt.data.problems import count, quote, quote_some
from headhunt.data.splitting import VALIDATION_ROWS, Split, draw_sample, find_strata, hold_out, hold_out_last
from headhunt.errors import DataError

_SPLITS = ("train", "validation", "test")
_MIN_TRAIN_GROUPS = 3  # as many as the folds of a search, so that a search does not fail after it has begun


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
    targets = divided["train"].targets
    if not labels:
        return []
    counts = targets.sum(0) if targets.ndim == 2 else np.bincount(targets, minlength=len(labels))
    late = [label for label, number in zip(labels, counts, strict=True) if number == 0]
    if not late:
        return []
    return [f"{count(len(late), 'class has', 'classes have')} no training row in this order: {quote_some(late)}"]
