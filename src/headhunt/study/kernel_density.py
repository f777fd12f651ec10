"""Estimate the density of candidates with product kernels, as BOHB does.

A candidate is a row of numbers, one per parameter: the position from 0 to 1 of a numeric one, the number of the option
of a categorical one, and NaN for a parameter that has no effect on the candidate.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection

import numpy as np

from headhunt.spec import Choice
from headhunt.study.candidates import Candidates, Params, position_of, value_at

MIN_BANDWIDTH = 1e-3
REFERENCE = 1.06  # factor of the normal reference rule


class Encoding:
    """Converts parameters to rows of numbers and back.

    Attributes:
        options: Number of options of each parameter; 0 if it is numeric.

    Args:
        candidates: The candidates.
    """

    def __init__(self, candidates: Candidates) -> None:
        self._leaves = candidates.leaves
        self.options = np.array(
            [len(leaf.options) if isinstance(leaf, Choice) else 0 for leaf in self._leaves.values()]
        )

    def row(self, params: Params, active: Collection[str]) -> np.ndarray:
        """Return the row of a candidate."""
        row = np.full(len(self._leaves), np.nan)
        for place, (path, leaf) in enumerate(self._leaves.items()):
            if path in active:
                value = params[path]
                row[place] = leaf.options.index(value) if isinstance(leaf, Choice) else position_of(leaf, value)
        return row

    def params(self, row: np.ndarray) -> Params:
        """Return the parameters of a row without NaN."""
        return {
            path: leaf.options[int(number)] if isinstance(leaf, Choice) else value_at(leaf, min(number, 1 - 1e-9))
            for (path, leaf), number in zip(self._leaves.items(), row.tolist(), strict=True)
        }

    def impute(self, rows: np.ndarray, rng: random.Random) -> np.ndarray:
        """Return the rows with a random other row's value in place of each NaN; a random value if no row has one."""
        rows = rows.copy()
        for place, count in enumerate(self.options):
            column = rows[:, place]
            missing = np.isnan(column)
            values = column[~missing].tolist()
            for row in np.flatnonzero(missing):
                column[row] = rng.choice(values) if values else rng.randrange(count) if count else rng.random()
        return rows


class KernelDensity:
    """A density with a Gaussian kernel for numeric parameters and Aitchison and Aitken's for categorical ones.

    Args:
        rows: Candidates, without NaN; (candidates, parameters).
        options: Number of options of each parameter; 0 if it is numeric.
    """

    def __init__(self, rows: np.ndarray, options: np.ndarray) -> None:
        self._rows, self._categorical = rows, options > 0
        self._others = np.maximum(options - 1, 1)
        count, size = rows.shape
        deviation = rows.std(0)
        for place in np.flatnonzero(self._categorical):
            shares = np.bincount(rows[:, place].astype(int), minlength=options[place]) / count
            # The standard deviation for two options, and independent of the order of several.
            deviation[place] = math.sqrt(float((shares * (1 - shares)).sum()) / 2)
        self._bandwidth = np.maximum(MIN_BANDWIDTH, REFERENCE * deviation * count ** (-1 / (4 + size)))
        uniform = (options - 1) / np.maximum(options, 1)  # the bandwidth of a uniform kernel is the largest
        self._bandwidth[self._categorical] = np.minimum(self._bandwidth, uniform)[self._categorical]

    def log_density(self, rows: np.ndarray) -> np.ndarray:
        """Return the logarithm of the density at each row."""
        total = np.zeros((len(rows), len(self._rows)))
        for place, width in enumerate(self._bandwidth.tolist()):
            here, there = rows[:, place, None], self._rows[None, :, place]
            if self._categorical[place]:
                same, other = math.log1p(-width), math.log(width / self._others[place])
                total += np.where(here == there, same, other)
            else:
                total -= ((here - there) / width) ** 2 / 2 + math.log(width * math.sqrt(2 * math.pi))
        largest = total.max(1)
        return largest + np.log(np.exp(total - largest[:, None]).mean(1))

    def sample(self, rng: np.random.Generator, count: int, factor: float) -> np.ndarray:
        """Return random rows: each parameter is drawn from the kernel of the same candidate.

        Args:
            rng: Random generator.
            count: Number of rows.
            factor: Factor of the bandwidth of numeric parameters.
        """
        centres = self._rows[rng.integers(len(self._rows), size=count)]
        rows = centres.copy()
        for place, width in enumerate(self._bandwidth.tolist()):
            column, centre = rows[:, place], centres[:, place]
            if self._categorical[place]:
                options = self._others[place] + 1
                redrawn = rng.random(count) < width
                column[redrawn] = rng.integers(options, size=count)[redrawn]
            else:
                pending = np.ones(count, bool)
                while pending.any():  # a normal distribution that is cut off at 0 and 1
                    column[pending] = rng.normal(centre[pending], factor * width)
                    pending = (column < 0) | (column > 1)
        return rows
