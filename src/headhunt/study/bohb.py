"""Define BOHB: Bayesian optimization with kernel densities, on the rungs of Hyperband (Falkner et al. 2018)."""

from __future__ import annotations

import random

import numpy as np

from headhunt.study.candidates import Candidates, Params
from headhunt.study.kernel_density import Encoding, KernelDensity
from headhunt.study.strategies import RungModel, RungResults

GOOD_FRACTION = 0.15  # of the results, which count as good
SAMPLES = 64  # the best of which is proposed
BANDWIDTH_FACTOR = 3.0  # of the bandwidth, for sampling
MAX_RESULTS = 200  # of a rung, in the model


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
