"""Count the n-grams of many rows at once, as sparse features of a solved head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headhunt.modeling.words import BUCKETS, MOST_BUCKETS, ngrams
from headhunt.training.tokens import Tokens

LEAST_TEXTS = 2  # that have an n-gram of a bucket, for it to be kept


def count_ngrams(tokens: Tokens) -> list[Any]:
    """Return sparse counts (rows, buckets) of each row's n-grams: of pairs, of each text and of what they share."""
    from scipy.sparse import csr_matrix

    ids, special, lengths = tokens.ids.astype(np.int64), tokens.special, tokens.lengths
    each = 1 if tokens.firsts is None else 2
    texts = 1 + each * np.repeat(np.arange(len(tokens)), lengths)
    if tokens.firsts is not None:
        ends = tokens.ends - lengths + len(special.before) + tokens.firsts
        texts += np.arange(len(ids)) > np.repeat(ends, lengths)
    texts[np.isin(ids, (*special.before, *special.between, *special.after))] = 0
    buckets, owners = (np.concatenate(parts) for parts in zip(*ngrams(ids, texts), strict=True))
    buckets, owners = buckets[owners > 0], owners[owners > 0] - 1
    shape = (each * len(tokens), BUCKETS)
    counts = csr_matrix((np.ones(len(owners), np.float32), (owners, buckets)), shape)
    return [counts] if each == 1 else [counts[::2], counts[1::2], counts[::2].minimum(counts[1::2])]


@dataclass(frozen=True)
class WordTable:
    """The buckets that a model keeps, and their weights."""

    buckets: np.ndarray
    """(kept,), ascending"""
    idf: np.ndarray
    """(kept + 1,): inverse document frequencies, the last one of all n-grams that are not kept."""

    @classmethod
    def of(cls, counts: Sequence[Any], rows: np.ndarray) -> WordTable:
        """Return the table of training rows; see `count_ngrams`."""
        texts = [part[rows] for part in counts[:2]]
        seen = np.bincount(np.concatenate([part.indices for part in texts]), minlength=BUCKETS)
        kept = np.sort(np.argsort(-seen, kind="stable")[: min(MOST_BUCKETS, int((seen >= LEAST_TEXTS).sum()))])
        frequencies = (1 + np.append(seen[kept], 1)) / (1 + len(texts) * len(rows))
        return cls(kept, (1 - np.log(frequencies)).astype(np.float32))

    def features(self, counts: Sequence[Any], rows: np.ndarray) -> Any:
        """Return sparse features (rows, columns): what `WordLogits.count` gives."""
        from scipy.sparse import diags_array, hstack

        parts = []
        for number, part in enumerate(counts):
            found = part[rows]
            kept = found[:, self.buckets]
            others = (found.sum(1) - kept.sum(1)) * (number < 2)
            kept.data = 1 + np.log(kept.data)
            kept = kept @ diags_array(self.idf[:-1])
            squares = kept.power(2).sum(1) + others * self.idf[-1] ** 2
            scale = 1 / np.maximum(np.sqrt(np.asarray(squares).ravel()), 1e-6)
            parts.append(diags_array(scale * len(counts) ** -0.5) @ kept)
        return hstack(parts, format="csr", dtype=np.float32)
