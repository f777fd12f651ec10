"""Tokenise texts once and build padded batches of similar length.

Token ids are stored in flat arrays, 4 bytes each, so that a million texts need a few arrays and not a million lists.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from headhunt.modeling.architecture import window_stride

CHUNK = 8192  # texts tokenised at a time, so that memory does not grow with their number


@dataclass(frozen=True)
class SpecialTokens:
    """The special tokens a tokenizer puts before, between and after texts."""

    before: tuple[int, ...]
    between: tuple[int, ...]
    after: tuple[int, ...]
    pad: int
    types: bool
    """True if the encoder takes token type ids."""

    @classmethod
    def of(cls, tokenizer: Any, pair: bool) -> SpecialTokens:
        """Return the special tokens that a tokenizer adds to a short text or pair."""
        encoded = tokenizer(*["a"] * (2 if pair else 1), return_special_tokens_mask=True)
        ids, special = encoded["input_ids"], encoded["special_tokens_mask"]
        groups: list[list[int]] = [[]]
        for token, is_special in zip(ids, special, strict=True):
            if is_special:
                groups[-1].append(token)
            elif groups[-1] or len(groups) == 1:
                groups.append([])
        before, between, after = groups[0], groups[1] if pair else [], groups[-1]
        types = "token_type_ids" in tokenizer.model_input_names
        return cls(tuple(before), tuple(between), tuple(after), tokenizer.pad_token_id or 0, types)

    @property
    def count(self) -> int:
        """Number of special tokens per row, without padding."""
        return len(self.before) + len(self.between) + len(self.after)


@dataclass(frozen=True)
class Tokens:
    """Token ids of many texts or pairs, including special tokens."""

    ids: np.ndarray
    """Ids of all rows, concatenated, int32."""
    ends: np.ndarray
    """End of each row in `ids`, int64."""
    firsts: np.ndarray | None
    """Pairs: number of tokens of the first text of each row, without special tokens."""
    special: SpecialTokens

    @classmethod
    def join(cls, rows: Sequence[Any], special: SpecialTokens, firsts: Any = None) -> Tokens:
        """Return rows of ids, special tokens included; for pairs, with the tokens of each first text."""
        ids = [np.asarray(row, np.int32) for row in rows]
        ends = np.cumsum([len(row) for row in ids], dtype=np.int64)
        firsts = None if firsts is None else np.asarray(firsts, np.int32)
        return cls(np.concatenate([*ids, np.zeros(0, np.int32)]), ends, firsts, special)

    def __len__(self) -> int:
        return len(self.ends)

    @property
    def lengths(self) -> np.ndarray:
        """Number of tokens of each row."""
        return np.diff(self.ends, prepend=0)

    @property
    def checksum(self) -> int:
        """A number that tells tokens of different rows apart."""
        return int(self.ids.sum(dtype=np.int64))

    def tasks_of(self, rows: np.ndarray) -> np.ndarray | None:
        """Return the number of each row's task: there is one task only."""
        return None

    def batches(self, rows: np.ndarray, size: int) -> Iterator[np.ndarray]:
        """Yield rows in batches for prediction; see `by_length`."""
        for positions in by_length(self.lengths[rows], size):
            yield rows[positions]

    def epoch(self, size: int, sampling: str, rng: np.random.Generator) -> Iterator[list[np.ndarray]]:
        """Yield the batches of each step of an epoch: one batch; see `shuffled_by_length`."""
        for rows in shuffled_by_length(self.lengths, size, rng):
            yield [rows]

    def steps_per_epoch(self, size: int, sampling: str) -> int:
        """Return the number of steps of `epoch`."""
        return math.ceil(len(self) / size)

    def row(self, index: int) -> np.ndarray:
        """Return the ids of a row."""
        return self.ids[self.ends[index - 1] if index else 0 : self.ends[index]]

    def batch(self, rows: np.ndarray, swap: np.ndarray | None = None) -> dict[str, torch.Tensor]:
        """Return rows as inputs of a model, padded to the longest of them.

        Args:
            rows: Row numbers, in order.
            swap: Pairs: true for rows whose texts are swapped.
        """
        chosen = [self.row(i) for i in rows]
        if swap is not None and self.firsts is not None:
            chosen = [
                self._swap(i, ids) if swapped else ids for i, ids, swapped in zip(rows, chosen, swap, strict=True)
            ]
        width = max(len(ids) for ids in chosen)
        padded = np.full((len(chosen), width), self.special.pad, np.int64)
        mask = np.zeros((len(chosen), width), np.int64)
        for line, ids in enumerate(chosen):
            padded[line, : len(ids)] = ids
            mask[line, : len(ids)] = 1
        batch = {"input_ids": torch.from_numpy(padded), "attention_mask": torch.from_numpy(mask)}
        if self.special.types:
            batch["token_type_ids"] = torch.from_numpy(self._types(rows, mask, swap))
        return batch

    def swapped(self) -> Tokens:
        """Return the same pairs with the two texts in reverse order."""
        assert self.firsts is not None
        firsts = self.lengths - self.special.count - self.firsts
        return Tokens.join([self._swap(i, self.row(i)) for i in range(len(self))], self.special, firsts)

    def split_pairs(self) -> Tokens:
        """Return each text of the pairs as its own row, as a siamese head does: first texts, then second texts."""
        special = self.special
        closing = special.between[:1]
        first = [np.append(self.row(i)[: self._split(i)], closing) for i in range(len(self))]
        second = [
            np.concatenate([special.before[:1], self.row(i)[self._split(i) + len(special.between) :]])
            for i in range(len(self))
        ]
        return Tokens.join(first + second, SpecialTokens(special.before[:1], (), closing, special.pad, special.types))

    def split_windows(self, length: int) -> Tokens:
        """Return each window of each text as its own row, as a head that reads windows does.

        Args:
            length: Tokens of a window, special tokens included.
        """
        special, stride = self.special, window_stride(length)
        body = length - special.count
        rows = []
        for row in (self.row(i) for i in range(len(self))):
            text = row[len(special.before) : len(row) - len(special.after)]
            for start in range(0, max(1, len(text) - body + stride), stride):
                rows.append([*special.before, *text[start : start + body], *special.after])
        return Tokens.join(rows, special)

    def take(self, rows: np.ndarray) -> Tokens:
        """Return some of the rows, in the order given."""
        firsts = None if self.firsts is None else self.firsts[rows]
        return Tokens.join([self.row(i) for i in rows], self.special, firsts)

    def _split(self, index: int) -> int:
        assert self.firsts is not None
        return len(self.special.before) + int(self.firsts[index])

    def _swap(self, index: int, ids: np.ndarray) -> np.ndarray:
        special, end = self.special, self._split(index)
        first = ids[len(special.before) : end]
        second = ids[end + len(special.between) : len(ids) - len(special.after)]
        return np.concatenate([special.before, second, special.between, first, special.after]).astype(ids.dtype)

    def _types(self, rows: np.ndarray, mask: np.ndarray, swap: np.ndarray | None) -> np.ndarray:
        if self.firsts is None:
            return np.zeros_like(mask)
        special, firsts = self.special, self.firsts[rows]
        if swap is not None:
            firsts = np.where(swap, mask.sum(1) - special.count - firsts, firsts)
        starts = len(special.before) + firsts + len(special.between)
        return mask * (np.arange(mask.shape[1]) >= starts[:, None])


def tokenise(
    tokenizer: Any,
    texts: Sequence[str],
    texts_b: Sequence[str] | None = None,
    *,
    max_length: int = 128,
    truncation: Literal["end", "middle"] = "end",
    each: bool = False,
) -> Tokens:
    """Tokenise texts or pairs, add special tokens and truncate.

    Args:
        tokenizer: A Hugging Face tokenizer.
        texts: The texts, or the first texts of pairs.
        texts_b: The second texts of pairs.
        max_length: Maximum number of tokens of a row, including special tokens.
        truncation: Position at which longer texts are cut.
        each: Apply `max_length` to each text of a pair, as for a siamese head.
    """
    special = SpecialTokens.of(tokenizer, texts_b is not None)
    available = max(1, max_length - special.count)
    rows: list[np.ndarray] = []
    firsts: list[int] = []
    for start in range(0, len(texts), CHUNK):
        first = _ids(tokenizer, texts[start : start + CHUNK])
        if texts_b is None:
            bodies = [_truncate(ids, available, truncation) for ids in first]
        else:
            second = _ids(tokenizer, texts_b[start : start + CHUNK])
            bodies = []
            for a, b in zip(first, second, strict=True):
                keep_a, keep_b = (
                    _pair_lengths(len(a), len(b), available) if not each else (max_length - 2, max_length - 2)
                )
                a, b = _truncate(a, keep_a, truncation), _truncate(b, keep_b, truncation)
                firsts.append(len(a))
                bodies.append([*a, *special.between, *b])
        rows += [np.asarray([*special.before, *body, *special.after], np.int32) for body in bodies]
    return Tokens.join(rows, special, None if texts_b is None else firsts)


def _ids(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    if not len(texts):  # an array has no truth value
        return []
    encoded = tokenizer(
        list(texts), add_special_tokens=False, return_attention_mask=False, return_token_type_ids=False, verbose=False
    )
    return encoded["input_ids"]


def _truncate(ids: list[int], keep: int, truncation: str) -> list[int]:
    if len(ids) <= keep:
        return ids
    if truncation == "end":
        return ids[:keep]
    tail = keep // 2
    return ids[: keep - tail] + ids[len(ids) - tail :]


def _pair_lengths(first: int, second: int, available: int) -> tuple[int, int]:
    """Return how many tokens of each text are kept; the longer text is cut first."""
    half = available // 2
    return min(first, max(half, available - second)), min(second, max(available - half, available - first))


def shuffled_by_length(
    lengths: np.ndarray, size: int, rng: np.random.Generator, pool: int = 64
) -> Iterator[np.ndarray]:
    """Yield the batches of one epoch: random, but of similar lengths, so that padding is small.

    Rows are shuffled, cut into pools of `pool` batches and sorted by length within each pool. A little noise on the
    lengths varies the neighbours of a row. Batches are in random order.
    """
    order = rng.permutation(len(lengths))
    noise = rng.uniform(0.9, 1.1, len(lengths))
    batches: list[np.ndarray] = []
    for start in range(0, len(order), size * pool):
        rows = order[start : start + size * pool]
        rows = rows[np.argsort(lengths[rows] * noise[rows], kind="stable")]
        batches += [rows[i : i + size] for i in range(0, len(rows), size)]
    for index in rng.permutation(len(batches)):
        yield batches[index]


def by_length(lengths: np.ndarray, size: int) -> Iterator[np.ndarray]:
    """Yield batches for prediction, longest first, so that memory runs out at once or never."""
    order = np.argsort(-lengths, kind="stable")
    for start in range(0, len(order), size):
        yield order[start : start + size]
