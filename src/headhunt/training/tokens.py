"""Texts to token ids, once; token ids to padded batches of like length.

Hides truncation (at the end or in the middle), how a tokenizer frames one text or a pair, and padding. Token ids are
kept flat, 4 bytes each, so that a million texts are a few arrays and not a million lists.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

CHUNK = 8192  # texts tokenised at a time, so that memory does not grow with their number


@dataclass(frozen=True)
class SpecialTokens:
    """The special tokens a tokenizer puts before, between and after texts."""

    before: tuple[int, ...]
    between: tuple[int, ...]
    after: tuple[int, ...]
    pad: int
    types: bool
    """Whether the encoder is told which text a token belongs to."""

    @classmethod
    def of(cls, tokenizer: Any, pair: bool) -> SpecialTokens:
        """Reads the frame off the tokenizer's own work on a short text."""
        probe = tokenizer(*["a"] * (2 if pair else 1), return_special_tokens_mask=True)
        ids, special = probe["input_ids"], probe["special_tokens_mask"]
        groups: list[list[int]] = [[]]
        for token, is_special in zip(ids, special, strict=True):
            if is_special:
                groups[-1].append(token)
            elif groups[-1] or len(groups) == 1:
                groups.append([])
        before, between, after = groups[0], groups[1] if pair else [], groups[-1]
        types = "token_type_ids" in tokenizer.model_input_names
        return cls(tuple(before), tuple(between), tuple(after), tokenizer.pad_token_id or 0, types)


@dataclass(frozen=True)
class Tokens:
    """Token ids of many texts or pairs, special tokens included, ready to be batched."""

    ids: np.ndarray
    """All ids one after another, int32."""
    ends: np.ndarray
    """Where each row ends in `ids`, int64."""
    firsts: np.ndarray | None
    """Pairs: how many tokens the first text has in each row, its frame not counted."""
    frame: SpecialTokens

    def __len__(self) -> int:
        return len(self.ends)

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each row."""
        return np.diff(self.ends, prepend=0)

    def row(self, index: int) -> np.ndarray:
        """The ids of one row."""
        return self.ids[self.ends[index - 1] if index else 0 : self.ends[index]]

    def batch(self, rows: np.ndarray, swap: np.ndarray | None = None) -> dict[str, torch.Tensor]:
        """Rows padded to the longest of them, as the model takes them.

        Args:
            rows: Which rows, in order.
            swap: Pairs: true where the two texts change places.
        """
        chosen = [self.row(i) for i in rows]
        if swap is not None and self.firsts is not None:
            chosen = [
                self._swapped(i, ids) if change else ids for i, ids, change in zip(rows, chosen, swap, strict=True)
            ]
        width = max(len(ids) for ids in chosen)
        padded = np.full((len(chosen), width), self.frame.pad, np.int64)
        mask = np.zeros((len(chosen), width), np.int64)
        for line, ids in enumerate(chosen):
            padded[line, : len(ids)] = ids
            mask[line, : len(ids)] = 1
        batch = {"input_ids": torch.from_numpy(padded), "attention_mask": torch.from_numpy(mask)}
        if self.frame.types:
            batch["token_type_ids"] = torch.from_numpy(self._types(rows, mask, swap))
        return batch

    def swapped(self) -> Tokens:
        """The same pairs with the two texts in the other order."""
        assert self.firsts is not None
        fixed = len(self.frame.before) + len(self.frame.between) + len(self.frame.after)
        rows = [self._swapped(i, self.row(i)) for i in range(len(self))]
        firsts = (self.lengths - fixed - self.firsts).astype(np.int32)
        return Tokens(np.concatenate(rows), self.ends, firsts, self.frame)

    def apart(self) -> Tokens:
        """Each text of every pair as a row of its own, framed as a siamese head does it: first texts, then second."""
        frame = self.frame
        closing = frame.between[:1]
        first = [np.append(self.row(i)[: self._split(i)], closing) for i in range(len(self))]
        second = [
            np.concatenate([frame.before[:1], self.row(i)[self._split(i) + len(frame.between) :]])
            for i in range(len(self))
        ]
        rows = [row.astype(np.int32) for row in first + second]
        ends = np.cumsum([len(row) for row in rows])
        alone = SpecialTokens(frame.before[:1], (), closing, frame.pad, frame.types)
        return Tokens(np.concatenate(rows), ends, None, alone)

    def take(self, rows: np.ndarray) -> Tokens:
        """Some of the rows, in the order given."""
        chosen = [self.row(i) for i in rows]
        ids = np.concatenate(chosen) if chosen else self.ids[:0]
        firsts = None if self.firsts is None else self.firsts[rows]
        return Tokens(ids, np.cumsum([len(row) for row in chosen], dtype=np.int64), firsts, self.frame)

    def _split(self, index: int) -> int:
        assert self.firsts is not None
        return len(self.frame.before) + int(self.firsts[index])

    def _swapped(self, index: int, ids: np.ndarray) -> np.ndarray:
        frame, end = self.frame, self._split(index)
        first = ids[len(frame.before) : end]
        second = ids[end + len(frame.between) : len(ids) - len(frame.after)]
        return np.concatenate([frame.before, second, frame.between, first, frame.after]).astype(ids.dtype)

    def _types(self, rows: np.ndarray, mask: np.ndarray, swap: np.ndarray | None) -> np.ndarray:
        types = np.zeros_like(mask)
        if self.firsts is None:
            return types
        frame = self.frame
        fixed = len(frame.before) + len(frame.between) + len(frame.after)
        for line, index in enumerate(rows):
            length = int(mask[line].sum())
            first = int(self.firsts[index])
            if swap is not None and swap[line]:
                first = length - fixed - first
            types[line, len(frame.before) + first + len(frame.between) : length] = 1
        return types


def tokenise(
    tokenizer: Any,
    texts: Sequence[str],
    texts_b: Sequence[str] | None = None,
    *,
    max_length: int = 128,
    truncation: Literal["end", "middle"] = "end",
    each: bool = False,
) -> Tokens:
    """Tokenises texts or pairs, framed and cut to length.

    Args:
        tokenizer: A Hugging Face tokenizer.
        texts: The texts, or the first texts of pairs.
        texts_b: The second texts of pairs.
        max_length: Tokens kept of a row, special ones included.
        truncation: Where a longer text is cut.
        each: Whether `max_length` holds for each text of a pair, as for a siamese head.
    """
    frame = SpecialTokens.of(tokenizer, texts_b is not None)
    fixed = len(frame.before) + len(frame.between) + len(frame.after)
    room = max(1, max_length - fixed)
    pieces: list[np.ndarray] = []
    lengths: list[int] = []
    firsts: list[int] = []
    for start in range(0, len(texts), CHUNK):
        first = _ids(tokenizer, texts[start : start + CHUNK])
        if texts_b is None:
            bodies = [_cut(ids, room, truncation) for ids in first]
        else:
            second = _ids(tokenizer, texts_b[start : start + CHUNK])
            bodies = []
            for a, b in zip(first, second, strict=True):
                keep_a, keep_b = _shares(len(a), len(b), room) if not each else (max_length - 2, max_length - 2)
                a, b = _cut(a, keep_a, truncation), _cut(b, keep_b, truncation)
                firsts.append(len(a))
                bodies.append([*a, *frame.between, *b])
        for body in bodies:
            row = [*frame.before, *body, *frame.after]
            lengths.append(len(row))
            pieces.append(np.asarray(row, np.int32))
    return Tokens(
        ids=np.concatenate(pieces) if pieces else np.zeros(0, np.int32),
        ends=np.cumsum(np.asarray(lengths, np.int64)),
        firsts=np.asarray(firsts, np.int32) if texts_b is not None else None,
        frame=frame,
    )


def _ids(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    if not texts:
        return []
    encoded = tokenizer(
        list(texts), add_special_tokens=False, return_attention_mask=False, return_token_type_ids=False, verbose=False
    )
    return encoded["input_ids"]


def _cut(ids: list[int], keep: int, truncation: str) -> list[int]:
    if len(ids) <= keep:
        return ids
    if truncation == "end":
        return ids[:keep]
    tail = keep // 2
    return ids[: keep - tail] + ids[len(ids) - tail :]


def _shares(first: int, second: int, room: int) -> tuple[int, int]:
    """How much of each text is kept: the longer one gives way first."""
    if first + second <= room:
        return first, second
    half = room // 2
    if first <= half:
        return first, room - first
    if second <= room - half:
        return room - second, second
    return half, room - half


def shuffled_by_length(
    lengths: np.ndarray, size: int, rng: np.random.Generator, pool: int = 64
) -> Iterator[np.ndarray]:
    """Batches for one epoch: random, yet each of like lengths, so that little is padded.

    Rows are shuffled, cut into pools of `pool` batches, sorted by length within each with a little noise (so that a
    row meets others each time), and the batches come in random order.
    """
    order = rng.permutation(len(lengths))
    noise = rng.uniform(0.9, 1.1, len(lengths))
    batches: list[np.ndarray] = []
    for start in range(0, len(order), size * pool):
        part = order[start : start + size * pool]
        part = part[np.argsort(lengths[part] * noise[part], kind="stable")]
        batches += [part[i : i + size] for i in range(0, len(part), size)]
    for index in rng.permutation(len(batches)):
        yield batches[index]


def by_length(lengths: np.ndarray, size: int) -> Iterator[np.ndarray]:
    """Batches for prediction: longest first, so that memory runs out at once or never."""
    order = np.argsort(-lengths, kind="stable")
    for start in range(0, len(order), size):
        yield order[start : start + size]
