"""Batches of similar length, and errors of the model."""

from __future__ import annotations

import asyncio
import random

import numpy as np
import pytest

from headhunt.delivery.serve.batching import OVERHEAD, Batcher, Row, RowQueue


class Tokens(list):
    """A stand-in for tokens, of which only the number matters."""


def test_row_queue_batches_similar_lengths_and_always_takes_the_oldest():
    rng = random.Random(0)
    lengths = [int(rng.lognormvariate(2.5, 0.7)) + 2 for _ in range(2000)]
    rows, numbers, work = RowQueue(), iter(range(2000)), 0
    for number in range(64):
        rows.add(Row(next(numbers), None, number, Tokens([0] * lengths[number])))
    seen: list[int] = []
    while rows.count:
        oldest = min(same_length[0].number for same_length in rows.rows.values())
        batch = rows.take(32)
        assert oldest in [row.number for row in batch] and 0 < len(batch) <= 32
        seen += [row.number for row in batch]
        work += len(batch) * max(len(row.tokens) for row in batch) + OVERHEAD
        for number in [n for n in (next(numbers, None) for _ in batch) if n is not None]:
            rows.add(Row(number, None, number, Tokens([0] * lengths[number])))
    assert sorted(seen) == list(range(2000)) and not rows.rows and not rows.lengths
    ordered = sorted(lengths)
    sorted_work = sum(len(ordered[i : i + 32]) * ordered[min(i + 31, 1999)] + OVERHEAD for i in range(0, 2000, 32))
    assert work < 1.25 * sorted_work  # batches in order of arrival take three times as much


def test_batcher_reports_model_errors_only_to_their_own_requests():
    class Fragile:
        def encode(self, texts, texts_b=None):
            if "no tokens" in texts:
                raise ValueError("as asked")
            return [Tokens([0] * len(text)) for text in texts]

        def run(self, rows):
            if len(rows[0]) == 3:
                raise RuntimeError("as asked")
            return np.array([len(row) for row in rows])

    async def submit() -> None:
        batcher = Batcher(Fragile(), model_instances=2, max_batch=4)
        batcher.start()
        assert await batcher.submit(["abcd", "ab"]) == [4, 2]
        for bad in ("abc", "no tokens"):
            with pytest.raises((RuntimeError, ValueError), match="as asked"):
                await batcher.submit([bad])
        futures = [batcher.submit(["x" * 40_000, "y" * n]) for n in range(4, 40)]
        assert [(await future)[1] for future in futures] == list(range(4, 40))
        assert batcher.queued == 0
        batcher.close()
        for thread in batcher.threads:
            thread.join(10)
            assert not thread.is_alive()

    asyncio.run(submit())
