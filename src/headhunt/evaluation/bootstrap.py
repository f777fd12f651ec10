"""Bootstrap samples of rows, or of groups of rows, as weights."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

BOOTSTRAP_SAMPLES = 1000
BATCH = 50  # samples at a time: weights of all of them would fill the memory


def bootstrap_weights(
    rng: np.random.Generator, rows: int, samples: int, groups: np.ndarray | None = None
) -> Iterator[np.ndarray]:
    """Draw bootstrap samples; yield how often each row was drawn, in batches (samples, rows) that fit into the memory.

    Args:
        rng: Source of random numbers.
        rows: Number of rows.
        samples: Number of samples in all.
        groups: Group of each row. Groups are drawn instead of rows, as a cluster bootstrap does.
    """
    members = np.arange(rows) if groups is None else np.unique(groups, return_inverse=True)[1]
    drawn = int(members.max()) + 1
    for start in range(0, samples, BATCH):
        draws = [rng.integers(0, drawn, drawn) for _ in range(min(BATCH, samples - start))]
        yield np.array([np.bincount(draw, minlength=drawn)[members] for draw in draws], np.float64)
