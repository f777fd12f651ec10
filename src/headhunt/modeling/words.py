"""Count hashed n-grams of token ids, which a solved head classifies beside the pooled vector or alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

LONGEST = 3  # tokens of an n-gram
BUCKETS = 1 << 18
MOST_BUCKETS = 1 << 15  # of these, the ones that a model keeps
PRIME, FACTOR = (1 << 31) - 1, 1_640_531_527  # products of both are below 2^63


def ngrams(ids: Any, texts: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the buckets of all n-grams of one length and the text that each belongs to, for lengths 1 to LONGEST.

    NumPy, PyTorch and ONNX Runtime give the same numbers: no product overflows.

    Args:
        ids: Token ids (…, tokens), as an array or a tensor of 64-bit integers.
        texts: Number of the text that each token belongs to; 0 for special tokens and padding, which are in no n-gram.
    """
    keys, first = ids + 1, texts
    yield keys % BUCKETS, texts
    for offset in range(1, LONGEST):
        keys = (keys[..., :-1] * FACTOR + ids[..., offset:] + 1) % PRIME
        first = first[..., :-1] * (first[..., :-1] == texts[..., offset:])
        yield keys % BUCKETS, first


class WordLogits(nn.Module):
    """Logits of the damped, weighted counts of a text's n-grams. For pairs, those of each text and of what they share.

    Args:
        config: The model's configuration: the number of buckets that are kept, special tokens and the separator.
    """

    slots: Tensor
    idf: Tensor

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config, kept = config, config.word_buckets
        self.register_buffer("slots", torch.full((BUCKETS,), kept, dtype=torch.int32))
        self.register_buffer("idf", torch.ones(kept + 1))
        self.weight = nn.Parameter(torch.zeros(config.num_labels, kept * (1 if config.separator is None else 3)))

    def fill(self, buckets: Tensor, idf: Tensor, weight: Tensor) -> None:
        """Set the buckets that are kept (kept,), their weights and that of all others (kept + 1,), and the layer."""
        self.config.word_buckets, device = len(buckets), self.weight.device
        self.slots = torch.full((BUCKETS,), len(buckets), dtype=torch.int32, device=device)
        self.slots[buckets.to(device)] = torch.arange(len(buckets), dtype=torch.int32, device=device)
        self.idf, self.weight = idf.to(device), nn.Parameter(weight.to(device))

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return logits (batch, outputs) of token ids (batch, tokens) with their mask."""
        values = self.count(ids, mask).to(self.weight.dtype)
        if not torch.is_autocast_enabled(values.device.type):
            return functional.linear(values, self.weight)
        with torch.autocast(values.device.type, enabled=False):
            return functional.linear(values, self.weight)

    def count(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return the damped, weighted counts (batch, columns); those of each text have unit length."""
        texts = mask.long()
        if self.config.separator is not None:
            end = (ids == self.config.separator).int().argmax(1, keepdim=True)  # the first text's closing separator
            texts = texts * (1 + (torch.arange(ids.shape[1], device=ids.device) > end).long())
        for token in self.config.special_ids:
            texts = texts * (ids != token)
        margin = (0, LONGEST - 1)  # no n-gram is then of length zero, which exporters refuse
        found = list(ngrams(functional.pad(ids, margin), functional.pad(texts, margin)))
        slots = self.slots[torch.cat([buckets for buckets, _ in found], 1)].long()
        owners = torch.cat([owner for _, owner in found], 1)
        numbers = (1,) if self.config.separator is None else (1, 2)
        empty = torch.zeros(len(ids), len(self.idf), device=ids.device)
        counts = [empty.scatter_add(1, slots, (owners == number).float()) for number in numbers]
        parts = [self._weigh(each[:, :-1], each[:, -1:]) for each in counts]
        if len(counts) == 2:
            parts.append(self._weigh(torch.minimum(*counts)[:, :-1], empty[:, -1:]))
        return torch.cat(parts, 1) * len(parts) ** -0.5

    def _weigh(self, counts: Tensor, others: Tensor) -> Tensor:
        """Return counts (batch, kept) as a vector of unit length, in which other n-grams (batch, 1) count."""
        idf = self.idf.float()
        values = (counts > 0) * (1 + counts.clamp(min=1).log()) * idf[:-1]
        length = (values.square().sum(1, keepdim=True) + others * idf[-1].square()).sqrt()
        return values / length.clamp(min=1e-6)
