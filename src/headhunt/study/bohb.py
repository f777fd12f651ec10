"""Define BOHB: Bayesian optimization with kernel densities, on the rungs of Hyperband (Falkner et al. 2018).

To estimate densities, a candidate is a row of numbers, one per parameter: the position from 0 to 1 of a numeric one,
the number of the option of a categorical one, and NaN for a parameter that has no effect on the candidate.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection

import numpy as np

from headhunt.spec import Choice
from headhunt.study.candidates import Candidates, Params, position_of, value_at
from headhunt.study.strategies import RungModel, RungResults

GOOD_FRACTION = 0.15  # of the results, which count as good
SAMPLES = 64  # the best of which is proposed
BANDWIDTH_FACTOR = 3.0  # of the bandwidth, for sampling
MAX_RESULTS = 200  # of a rung, in the model
MIN_BANDWIDTH = 1e-3
REFERENCE = 1.06  # factor of the normal reference rule


class Bohb(RungModel):
    """BOHB as in Algorithm 2 of Falkner et al. (2018).

    The results of the highest rung with at least N_min + 2 of them are divided into good and bad ones, with at least
    N_min each. The proposal is the best of several samples from the density of the good ones, by the ratio of both
    densities. The defaults are those of the paper. It differs from the paper in these points:

    - The number of parameters d in N_min = d + 1 is the mean number of those that have an effect on a candidate. For
      the others, a value of another candidate of the same density is used, as in the authors' program HpBandSter.
    - Rungs are asynchronous (ASHA), and one fold is the lowest. By default there is only the first of Hyperband's
      brackets. Cheap candidates start at the top rung.
    - A search may begin with known recipes.
    - A model sees the best and the latest results, at most `MAX_RESULTS`.
    - The bandwidth of a categorical parameter does not depend on the order of its options, and is at most that of the
      uniform distribution.

    Args:
        candidates: The candidates that may be proposed.
        seed: Random seed of the run.
        random_fraction: Fraction of proposals that are random.
        min_points: N_min, the minimum number of points of a density. Defaults to d + 1.
    """

    def __init__(
        self,
        candidates: Candidates,
        seed: int = 0,
        random_fraction: float = 1 / 3,
        min_points: int | None = None,
    ) -> None:
        super().__init__(candidates, seed, random_fraction, MAX_RESULTS)
        self._min_points = min_points
        self._encoding = Encoding(candidates)

    def enough(self, results: RungResults) -> int:
        """Return N_min + 2."""
        return self._n_min(results) + 2

    def propose(self, rung: int, number: int, rng: random.Random) -> Params:
        """Return the sample with the largest ratio of the densities of good and bad results."""
        good, bad = self._densities(rung, rng)
        rows = good.sample(np.random.default_rng(rng.randrange(2**31)), SAMPLES, BANDWIDTH_FACTOR)
        best = int(np.argmax(good.log_density(rows) - bad.log_density(rows)))
        return self._encoding.params(rows[best])

    def _n_min(self, results: RungResults) -> int:
        return results.dimensions + 1 if self._min_points is None else self._min_points

    def _densities(self, rung: int, rng: random.Random) -> tuple[KernelDensity, KernelDensity]:
        results = self.results[rung]
        ranked = sorted(results.selected(), key=lambda item: (-item[1], item[0].number))
        rows = np.stack([self._encoding.row(result.params, result.active) for result, _ in ranked])
        least = self._n_min(results)
        good = max(least, int(GOOD_FRACTION * len(rows)))
        bad = max(least, len(rows) - good)
        options = self._encoding.options
        return (
            KernelDensity(self._encoding.impute(rows[:good], rng), options),
            KernelDensity(self._encoding.impute(rows[-bad:], rng), options),
        )


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
