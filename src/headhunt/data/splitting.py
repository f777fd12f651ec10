"""Assign rows to splits and folds: stratified by target with groups kept together, or in the order of time."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from headhunt.data.columns import Columns
from headhunt.data.problems import count as format_count
from headhunt.data.sources import Rows
from headhunt.errors import DataError

VALIDATION_ROWS = 2000  # rows that larger data is evaluated on, at most a fifth
_BINS = 10  # strata of a regression target
TASK_TARGETS = np.dtype([("task", np.int64), ("value", np.float64)])
"""Targets of rows of several tasks: the number of the task, and the class or number."""
# More groups, or groups times strata, are not balanced one by one: that would take seconds, and many are even anyway.
_MAX_BALANCED_GROUPS, _MAX_BALANCED_COUNTS = 50_000, 4_000_000


def _no_numbers() -> np.ndarray:
    return np.empty(0, np.int64)


@dataclass(eq=False, repr=False)
class Split:
    """Rows with their targets. Texts stay in the Arrow table until they are read.

    Attributes:
        rows: The rows.
        columns: The names of the text and label columns.
        targets: Classes: int64 (n,). Several labels: float32 multi-hot (n, k). Numbers: float32 (n,). Unlabelled: (0,).
            Several tasks: `TASK_TARGETS` (n,).
        groups: int64 (n,); equal for rows that stay in one split: `near`, united with the group column if there is one.
        keys: uint64 (n,); equal for texts that differ only in case, punctuation and numbers.
        words: int32 (n,); the number of words of the text, or of both texts together.
        near: int64 (n,); equal for rows with (nearly) the same text; by default `groups`.

    Rows that are not divided, such as those of a prediction, have none of the last four.
    """

    rows: Rows
    columns: Columns
    targets: np.ndarray
    groups: np.ndarray = field(default_factory=_no_numbers)
    keys: np.ndarray = field(default_factory=_no_numbers)
    words: np.ndarray = field(default_factory=_no_numbers)
    near: np.ndarray = field(default_factory=_no_numbers)

    def __post_init__(self) -> None:
        if not len(self.near):
            self.near = self.groups

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        return f"Split({format_count(len(self), 'row')} of {self.rows.where})"

    def texts(self, start: int = 0, stop: int | None = None) -> list[str]:
        """Return the texts of the rows from `start` to `stop`."""
        return self._read(self.columns.text, start, stop)

    def texts_b(self, start: int = 0, stop: int | None = None) -> list[str] | None:
        """Return the second texts of the rows from `start` to `stop`; None if there is one text per row."""
        return None if self.columns.text_b is None else self._read(self.columns.text_b, start, stop)

    def _read(self, name: str, start: int, stop: int | None) -> list[str]:
        start, stop, _ = slice(start, stop).indices(len(self))
        return self.rows.read(name, start, max(start, stop)).to_pylist()

    @property
    def tasks(self) -> np.ndarray | None:
        """The number of each row's task; None if there is one task."""
        return self.targets["task"] if self.targets.dtype.names else None

    @property
    def column_groups(self) -> np.ndarray | None:
        """The group of each row by the group column; None without one, or if all rows are of one group."""
        several = self.columns.group is not None and len(np.unique(self.groups)) > 1
        return self.groups if several else None

    def take(self, positions: np.ndarray) -> "Split":
        """Select rows by position, in the given order, or by a boolean mask."""
        positions = np.asarray(positions)
        if positions.dtype == bool:
            positions = np.flatnonzero(positions)
        positions = positions.astype(np.int64)
        of_rows = (self.targets, self.groups, self.keys, self.words, self.near)
        arrays = (array[positions] if len(array) else array for array in of_rows)
        return Split(self.rows.take(positions), self.columns, *arrays)


def join_column_groups(splits: Iterable[Split]) -> np.ndarray | None:
    """Return the groups of the rows of several splits by the group column; None unless each of them has some."""
    found = [split.column_groups for split in splits]
    groups = [each for each in found if each is not None]
    return np.concatenate(groups) if groups and len(groups) == len(found) else None


def find_strata(targets: np.ndarray) -> np.ndarray:
    """Return the stratum of each row, int64 (n,): its class, its decile, or the rarest of its labels.

    Rows of different tasks are in different strata.
    """
    if targets.dtype.names:
        return _strata_of_tasks(targets)
    if targets.ndim == 2:
        rarity = np.where(targets > 0, targets.sum(0)[None, :], np.inf)
        return (
            np.where(targets.any(1), rarity.argmin(1), targets.shape[1])
            if targets.shape[1]
            else np.zeros(len(targets), int)
        )
    if targets.dtype.kind == "f":
        edges = np.quantile(targets, np.linspace(0, 1, _BINS + 1)[1:-1]) if len(targets) else np.empty(0)
        return np.searchsorted(edges, targets, side="right").astype(np.int64)
    return targets


def _strata_of_tasks(targets: np.ndarray) -> np.ndarray:
    strata, first = np.zeros(len(targets), np.int64), 0
    for task in np.unique(targets["task"]):
        rows = np.flatnonzero(targets["task"] == task)
        values = targets["value"][rows]
        whole = bool((values == values.astype(np.int64)).all()) and len(np.unique(values)) <= _BINS * _BINS
        inside = np.unique(find_strata(values.astype(np.int64) if whole else values), return_inverse=True)[1]
        strata[rows] = inside.reshape(-1) + first
        first = int(strata[rows].max()) + 1
    return strata


def hold_out(strata: np.ndarray, groups: np.ndarray, share: float, seed: int, *, by_column: bool = False) -> np.ndarray:
    """Select rows to hold out: about `share` of every stratum, at least one row where a stratum has two groups.

    Groups are never divided.

    Args:
        strata: The stratum of each row.
        groups: The group of each row.
        share: Share of the rows to hold out.
        seed: Random seed.
        by_column: True if the groups are those of a column. They may be large and contain many strata.

    Returns:
        bool (n,), True for held-out rows.

    Raises:
        DataError: If no stratum has two groups, so that nothing can be held out.
    """
    shuffled = _ShuffledGroups(strata, groups, seed)
    if by_column and shuffled.can_balance():
        return _hold_out_balanced(shuffled, share)
    selected = np.zeros(len(shuffled.sizes), bool)
    for members in shuffled.by_stratum():
        sizes = shuffled.sizes[members]
        if len(sizes) < 2:
            continue
        wanted = max(1.0, share * sizes.sum())
        small = members[sizes <= wanted]
        if not len(small):
            selected[members[sizes.argmin()]] = True
            continue
        before = np.cumsum(shuffled.sizes[small]) - shuffled.sizes[small]
        fitting = small[before + shuffled.sizes[small] / 2 <= wanted]
        selected[fitting[: len(members) - 1]] = True
    if not selected.any():
        raise DataError(
            f"No row of {format_count(len(strata), 'row')} can be held out: a class needs two rows with different "
            "texts, and case, punctuation and numbers are not compared. "
            "Give more rows per class, or test rows"
        )
    return selected[shuffled.group_of_row]


def _hold_out_balanced(shuffled: "_ShuffledGroups", share: float) -> np.ndarray:
    if len(shuffled.sizes) < 2:
        raise DataError(
            "No row can be held out: the rows must have at least two groups, and all are connected by group or by "
            "nearly the same text. Give another group column, or test rows"
        )
    selected = shuffled.balance(np.array([1 - share, share])) == 1
    if not selected.any() or selected.all():
        selected[shuffled.sizes.argmin()] = not selected.any()
    return selected[shuffled.group_of_row]


def hold_out_last(ranks: np.ndarray, share: float) -> np.ndarray:
    """Select the last rows by an order: as close to `share` of them as equal ranks, which stay together, allow.

    Returns:
        bool (n,), True for held-out rows. No row is selected if all ranks are equal.
    """
    distinct, sizes = np.unique(ranks, return_counts=True)
    if len(distinct) < 2:
        return np.zeros(len(ranks), bool)
    remaining = len(ranks) - np.cumsum(sizes)[:-1]  # rows after each distinct rank
    return ranks > distinct[np.abs(remaining - share * len(ranks)).argmin()]


def assign_folds(
    strata: np.ndarray, groups: np.ndarray, count: int, seed: int, *, by_column: bool = False
) -> np.ndarray:
    """Return the fold of each row, int64 (n,): balanced within every stratum, with groups never divided.

    Args:
        strata: The stratum of each row.
        groups: The group of each row.
        count: Number of folds.
        seed: Random seed.
        by_column: True if the groups are those of a column. They may be large and contain many strata.
    """
    # For 50,000 rows StratifiedGroupKFold takes 15 s, this 0.02 s; classes are off by 1 and 21 rows (libraries.json).
    shuffled = _ShuffledGroups(strata, groups, seed)
    if by_column and shuffled.can_balance():
        return shuffled.balance(np.full(count, 1 / count))[shuffled.group_of_row]
    fold = np.zeros(len(shuffled.sizes), np.int64)
    assigned = 0
    for members in shuffled.by_stratum():
        # Large groups first, then round-robin. A stratum continues where the last one stopped, to even out the folds.
        order = members[np.argsort(-shuffled.sizes[members], kind="stable")]
        fold[order] = (assigned + np.arange(len(order))) % count
        assigned += len(order)
    return fold[shuffled.group_of_row]


def draw_sample(strata: np.ndarray, count: int, seed: int) -> np.ndarray:
    """Draw a stratified sample in which every stratum keeps at least one row.

    Returns:
        The sorted positions of `count` rows.
    """
    random = np.random.default_rng(seed)
    _, codes, sizes = np.unique(strata, return_inverse=True, return_counts=True)
    exact = sizes * (count / sizes.sum())
    quota = np.maximum(1, np.floor(exact)).astype(np.int64)
    while quota.sum() < count:
        quota[np.argmax(np.where(quota < sizes, exact - quota, -np.inf))] += 1
    while quota.sum() > count:
        quota[np.argmax(np.where(quota > 1, quota - exact, -np.inf))] -= 1
    order = np.lexsort((random.random(len(strata)), codes.reshape(-1)))
    starts = np.cumsum(sizes) - sizes
    rank = np.arange(len(strata)) - np.repeat(starts, sizes)
    return np.sort(order[rank < np.repeat(quota, sizes)])


class _ShuffledGroups:
    """Groups of rows in a random order. A group belongs to the stratum of its first row."""

    def __init__(self, strata: np.ndarray, groups: np.ndarray, seed: int) -> None:
        _, first, inverse, sizes = np.unique(groups, return_index=True, return_inverse=True, return_counts=True)
        self.group_of_row = inverse.reshape(-1)
        self.sizes = sizes
        self._strata = strata[first]
        self._strata_of_rows = strata
        self._order = np.random.default_rng(seed).permutation(len(sizes))

    def by_stratum(self) -> list[np.ndarray]:
        strata = self._strata[self._order]
        sorted_order = np.argsort(strata, kind="stable")
        cuts = np.flatnonzero(np.diff(strata[sorted_order])) + 1
        return [members for members in np.split(self._order[sorted_order], cuts) if len(members)]

    def can_balance(self) -> bool:
        """Return True if there are few enough groups to assign them one by one."""
        groups, strata = len(self.sizes), int(self._strata_of_rows.max()) + 1
        return groups <= _MAX_BALANCED_GROUPS and groups * strata <= _MAX_BALANCED_COUNTS

    def balance(self, shares: np.ndarray) -> np.ndarray:
        """Assign every group to a bin, the largest first, so that each bin gets its share of every stratum.

        Args:
            shares: The share of each bin, (k,); they sum to 1.

        Returns:
            The bin of each group, int64 (g,).
        """
        width = int(self._strata_of_rows.max()) + 1
        counts = np.bincount(self.group_of_row * width + self._strata_of_rows, minlength=len(self.sizes) * width)
        counts = np.column_stack([counts.reshape(-1, width), self.sizes]).astype(float)  # the last column is all rows
        wanted = np.maximum(np.outer(shares, counts.sum(0)), 1e-9)  # a stratum may have no rows
        filled = np.zeros_like(wanted)
        bins = np.zeros(len(self.sizes), np.int64)
        for group in self._order[np.argsort(-self.sizes[self._order], kind="stable")]:
            added = counts[group]
            # The increase of the sum of (filled - wanted)² / wanted over the strata
            bins[group] = (((2 * (filled - wanted) + added) * added) / wanted).sum(1).argmin()
            filled[bins[group]] += added
        return bins
