"""Splits, and how rows are dealt to them: every class its share, rows that say the same on one side.

Hides how it is found what says the same. Texts equal but for case, punctuation and numbers have one hash. For the
nearly equal everything works on the bytes of whole batches at once: words are found by a table of byte classes and
hashed by a polynomial, and the pairs of neighbouring words of a text are its shingles. Texts whose MinHash sketches
agree in a band are candidates, and become one group if the sets of their shingles overlap by `ALIKE`.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headhunt.data.columns import Columns
from headhunt.data.problems import count as count_of
from headhunt.data.sources import Rows
from headhunt.errors import DataError

_BINS = 10  # strata of numbers
ALIKE = 0.8  # Jaccard overlap of shingles from which two texts count as nearly the same
_BANDS, _PER_BAND = 4, 4
_PROMISING = 0.6  # share of the sketch that must agree before shingles are compared
_random = np.random.default_rng(20240229)
_BYTE_HASH = _random.integers(1, 2**63, 256, dtype=np.uint64) | np.uint64(1)
_MULTIPLIERS = _random.integers(1, 2**63, _BANDS * _PER_BAND, dtype=np.uint64) | np.uint64(1)
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_BASE = np.uint64(0xD6E8FEB86659FD93)
_LONGEST = 64  # powers of the base; letters further into a word repeat them, which is harmless
_POWERS = np.cumprod(np.full(_LONGEST, _BASE, np.uint64))
_PAIRS = 20_000  # compared at a time
_TAG = np.uint64(48)  # bits of a shingle's hash that are left beside the number of a pair
_PIECE = 128 << 10  # bytes
_SEPARATOR, _LETTER, _DIGIT, _IDEOGRAPH = 0, 1, 2, 3


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
            f"Of {count_of(len(strata), 'row')} none can be held out: no class has two that say different things "
            "(case, punctuation and numbers are not compared). "
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


def _classify_bytes() -> tuple[np.ndarray, np.ndarray]:
    kinds = np.zeros(256, np.uint8)
    kinds[[*range(ord("a"), ord("z") + 1), *range(ord("A"), ord("Z") + 1), *range(0x80, 0x100)]] = _LETTER
    kinds[ord("0") : ord("9") + 1] = _DIGIT
    kinds[[*range(0xE3, 0xEA), 0xEF, 0xF0]] = _IDEOGRAPH  # first bytes of scripts without spaces, and of emoji
    folded = np.arange(256, dtype=np.uint8)
    folded[ord("A") : ord("Z") + 1] += 32
    folded[ord("0") : ord("9") + 1] = ord("0")
    return kinds, folded


_KINDS, _FOLDED = _classify_bytes()
_VALUES = _BYTE_HASH[_FOLDED]


class Sketches(NamedTuple):
    """What is kept of texts to compare them.

    Attributes:
        keys: uint64 (n,): equal for texts that are the same but for case, punctuation and numbers.
        signatures: uint32 (n, 16): MinHash of the shingles.
        words: int32 (n,): how many words.
    """

    keys: np.ndarray
    signatures: np.ndarray
    words: np.ndarray


def sketch(rows: Rows, names: Sequence[str]) -> Sketches:
    """Sketch the texts of one column, or of two as a pair."""
    keys = np.zeros(len(rows), np.uint64)
    signatures = np.full((len(rows), len(_MULTIPLIERS)), np.iinfo(np.uint32).max, np.uint32)
    words = np.zeros(len(rows), np.int32)
    for place, name in enumerate(names):
        for start, texts in rows.walk(name):
            for first, piece in _cut(texts):
                span = slice(start + first, start + first + len(piece))
                hashes, bounds, row_keys = _hash_words(piece)
                keys[span] = _mix(keys[span] * _BASE + row_keys)
                words[span] += np.diff(bounds).astype(np.int32)
                shingles, shingle_bounds = _shingle(hashes, bounds)
                salted = _mix(shingles + np.uint64(place))
                _minhash(salted, shingle_bounds, signatures[span])
    return Sketches(keys, signatures, words)


def _cut(texts: pa.Array) -> Iterator[tuple[int, pa.Array]]:
    """Cut an array into pieces of few enough bytes that all work on one stays in the processor's cache."""
    _, offsets = view_bytes(texts)
    marks = np.searchsorted(offsets, np.arange(_PIECE, offsets[-1] + _PIECE, _PIECE))
    cuts = np.unique(np.clip([0, *marks, len(texts)], 0, len(texts))).tolist()
    for first, last in pairwise(cuts):
        yield first, texts.slice(first, last - first)


def _mix(hashes: np.ndarray) -> np.ndarray:
    """Spread the entropy of 64-bit hashes over all their bits."""
    mixed = (hashes ^ (hashes >> np.uint64(31))) * _SPREAD
    return mixed ^ (mixed >> np.uint64(29))


def _hash_words(texts: pa.Array) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Hash words and rows.

    Returns:
        One hash per word, the place of each row's first word (n + 1,), and one hash per row.
    """
    data, offsets = view_bytes(texts)
    if len(data) and data.max() >= 0x80:
        data, offsets = view_bytes(pc.utf8_lower(texts))
    count = len(offsets) - 1
    if not len(data):
        return np.empty(0, np.uint64), np.zeros(count + 1, np.int64), np.zeros(count, np.uint64)
    kinds = _KINDS[data]
    dashes = np.flatnonzero((data[:-2] == 0xE2) & (data[1:-1] == 0x80))  # curly quotes, dashes, the ellipsis
    kinds[dashes] = kinds[dashes + 1] = kinds[dashes + 2] = _SEPARATOR
    inside = kinds != _SEPARATOR
    opens = inside.copy()
    opens[1:] &= ~inside[:-1] | (kinds[1:] == _IDEOGRAPH)
    firsts = offsets[:-1][np.diff(offsets) > 0]
    opens[firsts] = inside[firsts]
    digits = kinds == _DIGIT
    inside[1:] &= ~(digits[1:] & digits[:-1] & ~opens[1:])  # a number counts as one digit
    kept = np.flatnonzero(inside)
    starts = np.flatnonzero(opens[kept])
    ends = np.append(starts[1:], len(kept))
    within = np.arange(len(kept)) - np.repeat(starts, ends - starts)
    letters = _VALUES[data[kept]] * _POWERS[within % _LONGEST]
    hashes = _mix(np.add.reduceat(letters, starts)) if len(starts) else np.empty(0, np.uint64)
    bounds = np.searchsorted(kept[starts], offsets)
    return hashes, bounds, _hash_rows(hashes, bounds, data, offsets, kinds)


def _hash_rows(
    hashes: np.ndarray, bounds: np.ndarray, data: np.ndarray, offsets: np.ndarray, kinds: np.ndarray
) -> np.ndarray:
    """Hash rows by their words in order; rows without any letter by their bytes: ``?!`` is not ``...``, nor 1 is 2."""
    within = np.arange(len(hashes)) - np.repeat(bounds[:-1], np.diff(bounds))
    rows = _sum_rows(_mix(hashes + within.astype(np.uint64) * _SPREAD), bounds)
    filled = np.flatnonzero(np.diff(offsets))
    present = np.bitwise_or.reduceat(kinds, offsets[filled])  # the lowest bit is that of letters and ideographs
    for row in filled[present % 2 == 0]:
        raw = data[offsets[row] : offsets[row + 1]]
        places = np.arange(len(raw))
        rows[row] = _mix(_BYTE_HASH[raw] * _POWERS[places % _LONGEST] + places.astype(np.uint64)).sum()
        hashes[bounds[row] : bounds[row + 1]] = rows[row]
    return rows


def _sum_rows(values: np.ndarray, bounds: np.ndarray) -> np.ndarray:
    total = np.concatenate([np.zeros(1, values.dtype), np.cumsum(values)])
    return total[bounds[1:]] - total[bounds[:-1]]


def view_bytes(texts: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """See an Arrow array of text as its bytes and (n + 1,) offsets, without copying the bytes."""
    wide = pa.types.is_large_string(texts.type)
    if not wide and not pa.types.is_string(texts.type):
        texts = texts.cast(pa.string())
    _, places, content = texts.buffers()
    offsets = np.frombuffer(places, np.int64 if wide else np.int32)[texts.offset : texts.offset + len(texts) + 1]
    if content is None:
        return np.empty(0, np.uint8), np.zeros(len(texts) + 1, np.int64)
    data = np.frombuffer(content, np.uint8)[offsets[0] : offsets[-1]]
    return data, offsets.astype(np.int64) - offsets[0]


def _shingle(hashes: np.ndarray, bounds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Hash the pairs of neighbouring words of each row; a row of one word has that word."""
    counts = np.diff(bounds)
    pairs = hashes.copy()
    pairs[:-1] += hashes[1:] * _BASE
    last = bounds[1:][counts > 0] - 1
    pairs[last] = hashes[last]
    keep = np.ones(len(pairs), bool)
    keep[bounds[1:][counts > 1] - 1] = False
    return pairs[keep], np.concatenate([[0], np.cumsum(np.where(counts > 1, counts - 1, counts))])


def _minhash(shingles: np.ndarray, bounds: np.ndarray, signatures: np.ndarray) -> None:
    """Lower each row's signature (n, 16) by the smallest hash of its shingles under each of the multipliers."""
    filled = np.flatnonzero(np.diff(bounds))
    if not len(filled):
        return
    starts = bounds[filled]
    for at, multiplier in enumerate(_MULTIPLIERS):
        smallest = np.minimum.reduceat(((shingles * multiplier) >> np.uint64(32)).astype(np.uint32), starts)
        signatures[filled, at] = np.minimum(signatures[filled, at], smallest)


def group(parts: Sequence[tuple[Rows, Sequence[str], Sketches]]) -> list[np.ndarray]:
    """Group rows that say the same, across all parts.

    Args:
        parts: Rows, their text columns and their sketches; the splits of one task.

    Returns:
        For every part, the number of each row's group, int64 (n,).
    """
    keys = np.concatenate([sketches.keys for _, _, sketches in parts])
    _, first, groups = np.unique(keys, return_index=True, return_inverse=True)
    groups = groups.reshape(-1).astype(np.int64)
    signatures = np.concatenate([sketches.signatures for _, _, sketches in parts])[first]
    parents = np.arange(len(first))
    for band in range(_BANDS):
        left, right = _find_candidates(signatures, band, parents)
        if len(left):
            alike = _compare(parts, first[left], first[right])
            parents = _unite(parents, left[alike], right[alike])
    groups = parents[groups]
    bounds = np.cumsum([0] + [len(rows) for rows, _, _ in parts])
    return [groups[start:stop] for start, stop in pairwise(bounds)]


def _find_candidates(signatures: np.ndarray, band: int, parents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pair texts whose sketches agree in a band: each with the one before it and the first one, not all with all."""
    slots = signatures[:, band * _PER_BAND : (band + 1) * _PER_BAND].astype(np.uint64)
    bucket = np.zeros(len(slots), np.uint64)
    for at in range(_PER_BAND):
        bucket = _mix(bucket * _BASE + slots[:, at])
    order = np.argsort(bucket, kind="stable")
    same = np.flatnonzero(bucket[order[1:]] == bucket[order[:-1]]) + 1
    fresh = np.ones(len(order), bool)
    fresh[same] = False
    heads = order[np.maximum.accumulate(np.where(fresh, np.arange(len(order)), 0))]
    left = np.concatenate([order[same - 1], heads[same]])
    right = np.concatenate([order[same], order[same]])
    apart = parents[left] != parents[right]
    left, right = left[apart], right[apart]
    agree = np.zeros(len(left), np.int64)
    for at in range(signatures.shape[1]):
        agree += signatures[left, at] == signatures[right, at]
    promising = agree >= _PROMISING * signatures.shape[1]
    pairs = np.unique(left[promising] * len(signatures) + right[promising])
    return pairs // len(signatures), pairs % len(signatures)


def _compare(parts: Sequence[tuple[Rows, Sequence[str], Sketches]], left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Tell which pairs of rows overlap enough, in every column."""
    alike = np.ones(len(left), bool)
    for start in range(0, len(left), _PAIRS):
        span = slice(start, start + _PAIRS)
        involved, places = np.unique(np.concatenate([left[span], right[span]]), return_inverse=True)
        places = places.reshape(2, -1)
        for column in range(len(parts[0][1])):
            shingles, bounds = _read_shingles(parts, involved, column)
            alike[span] &= _overlap(shingles, bounds, places[0], places[1]) >= ALIKE
    return alike


def _read_shingles(
    parts: Sequence[tuple[Rows, Sequence[str], Sketches]], positions: np.ndarray, column: int
) -> tuple[np.ndarray, np.ndarray]:
    texts = []
    start = 0
    for rows, names, _ in parts:
        inside = positions[(positions >= start) & (positions < start + len(rows))] - start
        chosen = rows.take(inside)
        texts.append(chosen.read(names[column], 0, len(inside)).cast(pa.large_string()))
        start += len(rows)
    hashes, bounds, _ = _hash_words(pa.concat_arrays(texts))
    return _shingle(hashes, bounds)


def _overlap(shingles: np.ndarray, bounds: np.ndarray, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Jaccard overlap of the shingle sets of pairs of rows."""
    sides = []
    for rows in (left, right):
        counts = bounds[rows + 1] - bounds[rows]
        shifts = np.repeat(bounds[rows] - (np.cumsum(counts) - counts), counts)
        pair = np.repeat(np.arange(len(rows), dtype=np.uint64), counts)
        # the pair's number in front of the hash: one sort then does for all pairs
        tagged = (pair << _TAG) | (shingles[np.arange(len(pair)) + shifts] >> np.uint64(64 - int(_TAG)))
        tagged.sort()
        sides.append(tagged[np.append(True, tagged[1:] != tagged[:-1])] if len(tagged) else tagged)
    both = np.sort(np.concatenate(sides))
    pair = (both >> _TAG).astype(np.int64)
    shared = np.bincount(pair[1:][both[1:] == both[:-1]], minlength=len(left))
    return shared / np.maximum(np.bincount(pair, minlength=len(left)) - shared, 1)


def _unite(parents: np.ndarray, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Give everything connected the smallest number among it."""
    parents = parents.copy()
    while True:
        low = np.minimum(parents[left], parents[right])
        before = parents.copy()
        for side in (left, right):
            np.minimum.at(parents, before[side], low)
        while not np.array_equal(parents, parents[parents]):
            parents = parents[parents]
        if np.array_equal(parents, before):
            return parents
