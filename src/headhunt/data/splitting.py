"""Splits, and how rows are dealt to them: every class its share, rows that say the same on one side."""

import numpy as np

from headhunt.data.columns import Columns
from headhunt.data.problems import count as count_of
from headhunt.data.sources import Rows
from headhunt.errors import DataError

_BINS = 10


class Split:
    """Rows with their targets. Texts stay in the Arrow table until a stretch of them is asked for.

    Attributes:
        targets: Classes: int64 (n,). Several labels: float32 multi-hot (n, k). Numbers: float32 (n,). Unlabelled: (0,).
        groups: int64 (n,); rows with the same number say (nearly) the same.
        keys: uint64 (n,); equal for texts that are the same but for case, punctuation and numbers.
        words: int32 (n,); how many words the text has, or both texts together.
    """

    def __init__(
        self, rows: Rows, columns: Columns, targets: np.ndarray, groups: np.ndarray, keys: np.ndarray, words: np.ndarray
    ) -> None:
        self.rows = rows
        self.columns = columns
        self.targets = targets
        self.groups = groups
        self.keys = keys
        self.words = words

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        return f"Split({count_of(len(self), 'row')} of {self.rows.where})"

    def texts(self, start: int = 0, stop: int | None = None) -> list[str]:
        """Read a stretch of texts."""
        return self._read(self.columns.text, start, stop)

    def texts_b(self, start: int = 0, stop: int | None = None) -> list[str] | None:
        """Read a stretch of second texts; None where there is one text per row."""
        return None if self.columns.text_b is None else self._read(self.columns.text_b, start, stop)

    def _read(self, name: str, start: int, stop: int | None) -> list[str]:
        start, stop, _ = slice(start, stop).indices(len(self))
        return self.rows.read(name, start, max(start, stop)).to_pylist()

    def take(self, positions: np.ndarray) -> "Split":
        """Choose rows by position, in the order given."""
        positions = np.asarray(positions)
        if positions.dtype == bool:
            positions = np.flatnonzero(positions)
        positions = positions.astype(np.int64)
        targets = self.targets[positions] if len(self.targets) else self.targets
        chosen = (array[positions] if len(array) else array for array in (self.groups, self.keys, self.words))
        return Split(self.rows.take(positions), self.columns, targets, *chosen)


def find_strata(targets: np.ndarray) -> np.ndarray:
    """Name the stratum of each row: its class, the tenth its number is in, or the rarest of its labels; int64 (n,)."""
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


def hold_out(strata: np.ndarray, groups: np.ndarray, share: float, seed: int) -> np.ndarray:
    """Choose rows to hold out: about `share` of every stratum, groups whole, at least one where a stratum allows it.

    Raises:
        DataError: If no stratum has two groups, so that nothing can be held out.

    Returns:
        bool (n,), True for what is held out.
    """
    members = _Members(strata, groups, seed)
    chosen = np.zeros(len(members.sizes), bool)
    for of_stratum in members.by_stratum():
        sizes = members.sizes[of_stratum]
        if len(sizes) < 2:
            continue
        wanted = max(1.0, share * sizes.sum())
        small = of_stratum[sizes <= wanted]
        if not len(small):
            chosen[of_stratum[sizes.argmin()]] = True
            continue
        before = np.cumsum(members.sizes[small]) - members.sizes[small]
        taken = small[before + members.sizes[small] / 2 <= wanted]
        chosen[taken[: len(of_stratum) - 1]] = True
    if not chosen.any():
        raise DataError(
            f"Of {count_of(len(strata), 'row')} none can be held out: no class has two that say different things. "
            "Give more rows per class, or validation and test rows of their own"
        )
    return chosen[members.group_of_row]


def deal_folds(strata: np.ndarray, groups: np.ndarray, count: int, seed: int) -> np.ndarray:
    """Deal rows to folds, evenly within every stratum, groups whole; int64 (n,)."""
    members = _Members(strata, groups, seed)
    fold = np.zeros(len(members.sizes), np.int64)
    dealt = 0
    for of_stratum in members.by_stratum():
        # big groups first, then in turn; where the last stratum stopped the next goes on, so that folds end up even
        order = of_stratum[np.argsort(-members.sizes[of_stratum], kind="stable")]
        fold[order] = (dealt + np.arange(len(order))) % count
        dealt += len(order)
    return fold[members.group_of_row]


def draw(strata: np.ndarray, count: int, seed: int) -> np.ndarray:
    """Draw rows so that every stratum keeps its share and none is lost; sorted positions."""
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


class _Members:
    """The groups as the things that are dealt, in a shuffled order; a group is in the stratum of its first row."""

    def __init__(self, strata: np.ndarray, groups: np.ndarray, seed: int) -> None:
        _, first, inverse, sizes = np.unique(groups, return_index=True, return_inverse=True, return_counts=True)
        self.group_of_row = inverse.reshape(-1)
        self.sizes = sizes
        self._strata = strata[first]
        self._order = np.random.default_rng(seed).permutation(len(sizes))

    def by_stratum(self) -> list[np.ndarray]:
        strata = self._strata[self._order]
        sorted_order = np.argsort(strata, kind="stable")
        cuts = np.flatnonzero(np.diff(strata[sorted_order])) + 1
        return [part for part in np.split(self._order[sorted_order], cuts) if len(part)]
