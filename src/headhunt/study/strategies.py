"""Define the base class of strategies and the strategies that need no other library.

A strategy has an ask-and-tell interface, as in Optuna. It keeps no random generator: each proposal is seeded by the
run's seed and the trial number. Its model depends only on the results, in order. So a resumed search proposes the same
candidates as an uninterrupted one.
"""

from __future__ import annotations

import bisect
import math
import random
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np

from headhunt.spec import Choice, Leaf
from headhunt.study.candidates import Candidates, Params, count_values, position_of, value_at

MUTATION_SCALE = 0.2  # standard deviation of a mutation, relative to the range of a parameter
MAX_ADVANTAGE = 3.0  # standard deviations, so that one outlier does not decide the policy
COMPARED = 200  # latest scores that a new one is compared with


@dataclass(frozen=True)
class Proposal:
    """Proposed parameters and their origin."""

    params: Params
    origin: str
    """`random`, `prior` or `model`. The study also uses `plain` and `known`."""


class Strategy:
    """Base class of strategies.

    Args:
        candidates: The candidates that may be proposed.
        seed: Random seed of the run.
    """

    def __init__(self, candidates: Candidates, seed: int = 0) -> None:
        self.candidates, self.seed = candidates, seed
        self.running: dict[int, Params] = {}

    def ask(self, number: int, attempt: int = 0) -> Proposal | None:
        """Propose the candidate of a trial.

        Args:
            number: Number of the trial.
            attempt: Number of earlier proposals for this trial that were duplicates.

        Returns:
            A proposal, or None if nothing is left to propose.
        """
        raise NotImplementedError

    def started(self, number: int, params: Params) -> None:
        """Record that a trial has started, whether or not this strategy proposed it."""
        self.running[number] = params

    def tell(self, number: int, params: Params, rung: int, score: float | None) -> None:
        """Add a result. A score of None is a failure and counts as the worst score so far."""
        self.running.pop(number, None)

    def rng(self, number: int, attempt: int) -> random.Random:
        """Return the random generator of one proposal."""
        return random.Random(f"{self.seed}/{number}/{attempt}")  # noqa: S311 - reproducible draws, not secrets

    def draw(self, number: int, attempt: int) -> Proposal:
        """Propose random parameters."""
        return Proposal(self.candidates.draw(self.rng(number, attempt)), "random")


@dataclass(frozen=True)
class Result:
    """The result of a trial at one rung."""

    number: int
    params: Params
    active: frozenset[str]
    """Paths of the parameters that have an effect on the candidate."""
    score: float | None


class RungResults:
    """The results of one rung: their number, the best and the latest of them.

    Args:
        max_results: Maximum number of results that are kept.
    """

    def __init__(self, max_results: int) -> None:
        self.count = 0
        self._active = 0
        self._worst: float | None = None
        self._max_best = max(1, max_results // 4)
        self._best: list[Result] = []
        self._latest: deque[Result] = deque(maxlen=max(1, max_results - self._max_best))

    def add(self, result: Result) -> None:
        """Add a result."""
        self.count += 1
        self._active += len(result.active)
        self._latest.append(result)
        if result.score is None:
            return
        self._worst = result.score if self._worst is None else min(self._worst, result.score)
        bisect.insort(self._best, result, key=lambda each: (-(each.score or 0.0), each.number))
        del self._best[self._max_best :]

    @property
    def dimensions(self) -> int:
        """Mean number of parameters that have an effect, rounded up."""
        return math.ceil(self._active / self.count) if self.count else 0

    def selected(self) -> list[tuple[Result, float]]:
        """Return the best and the latest results with their scores, in the order of the trials.

        Failures have the worst score so far.
        """
        worst = 0.0 if self._worst is None else self._worst
        selected = {result.number: result for result in (*self._latest, *self._best)}
        return [
            (result, worst if result.score is None else result.score)
            for _, result in sorted(selected.items(), key=lambda item: item[0])
        ]


class RungModel(Strategy):
    """Base class of strategies that model the highest rung with enough results.

    Args:
        candidates: The candidates that may be proposed.
        seed: Random seed of the run.
        random_fraction: Fraction of proposals that are random.
        max_results: Maximum number of results of a rung in the model, so that a proposal does not get slower.
    """

    def __init__(self, candidates: Candidates, seed: int, random_fraction: float, max_results: int) -> None:
        super().__init__(candidates, seed)
        self.random_fraction, self.max_results = random_fraction, max_results
        self.results: dict[int, RungResults] = {}

    def ask(self, number: int, attempt: int = 0) -> Proposal:
        """Propose a random candidate, or one from the model of a rung that has enough results."""
        rung = self.modelled_rung()
        rng = self.rng(number, attempt)
        if rung is None or rng.random() < self.random_fraction:
            return Proposal(self.candidates.draw(rng), "random")  # a new generator would repeat the number above
        return Proposal(self.propose(rung, number, rng), "model")

    def propose(self, rung: int, number: int, rng: random.Random) -> Params:
        """Return parameters from the model of a rung."""
        raise NotImplementedError

    def enough(self, results: RungResults) -> int:
        """Return the number of results that a rung needs before it is modelled."""
        raise NotImplementedError

    def tell(self, number: int, params: Params, rung: int, score: float | None) -> None:
        """Add a result to its rung."""
        super().tell(number, params, rung, score)
        result = Result(number, params, self.candidates.active(params), score)
        self.results.setdefault(rung, RungResults(self.max_results)).add(result)

    def modelled_rung(self) -> int | None:
        """Return the highest rung that has enough results; None if there is none."""
        enough = (rung for rung, results in self.results.items() if results.count >= self.enough(results))
        return max(enough, default=None)


class Random(Strategy):
    """Random search."""

    def ask(self, number: int, attempt: int = 0) -> Proposal:
        """Propose random parameters."""
        return self.draw(number, attempt)


class Grid(Strategy):
    """Grid search that visits every point once, in random order.

    In the natural order, a search with a time limit would never leave one corner of the grid.

    Args:
        candidates: The candidates that may be proposed.
        seed: Random seed of the run.
        points: Maximum number of values per numeric parameter.
    """

    def __init__(self, candidates: Candidates, seed: int = 0, points: int = 3) -> None:
        super().__init__(candidates, seed)
        self._bins = {path: _count_bins(leaf, points) for path, leaf in candidates.leaves.items()}
        self.size = math.prod(self._bins.values())
        rng = random.Random(f"{seed}/grid")  # noqa: S311 - reproducible draws, not secrets
        self._first = rng.randrange(self.size)
        # Without a divisor in common with their number, the steps visit every point.
        strides = iter(lambda: rng.randrange(self.size) | 1, None)
        self._stride = next(step for step in strides if math.gcd(step, self.size) == 1)
        self._cursor = 0
        self._started: set[str] = set()

    def ask(self, number: int, attempt: int = 0) -> Proposal | None:
        """Propose the next point that no trial has; None after the last one."""
        while self._cursor < self.size:
            point = self._point(self._cursor)
            self._cursor += 1
            if _key(point) not in self._started:
                return Proposal(point, "model")
        return None

    def started(self, number: int, params: Params) -> None:
        """Remember a point, also one that another part of the search has proposed; after a restart, all of them."""
        super().started(number, params)
        self._started.add(_key(params))

    def _point(self, cursor: int) -> Params:
        index = (self._first + cursor * self._stride) % self.size
        params = {}
        for path, leaf in self.candidates.leaves.items():
            index, bin_index = divmod(index, self._bins[path])
            params[path] = value_at(leaf, (bin_index + 0.5) / self._bins[path])
        return params


def _key(params: Params) -> str:
    return repr(sorted(params.items()))


class Evolution(Strategy):
    """Regularized evolution (Real et al. 2019): the oldest member is removed, not the worst.

    A trial that reached a higher rung is better than any that did not.

    Args:
        candidates: The candidates that may be proposed.
        seed: Random seed of the run.
        population: Number of latest results that may become parents.
        tournament: Number of members sampled; the best of them is the parent.
    """

    def __init__(self, candidates: Candidates, seed: int = 0, population: int = 32, tournament: int = 8) -> None:
        super().__init__(candidates, seed)
        self._size, self._tournament = population, tournament
        self._population: dict[int, tuple[int, float, int, Params]] = {}  # rung and score by trial, the oldest first

    def ask(self, number: int, attempt: int = 0) -> Proposal:
        """Mutate one parameter of a parent; propose random parameters until the population is full."""
        if len(self._population) < self._size:
            return self.draw(number, attempt)
        rng = self.rng(number, attempt)
        members = rng.sample(list(self._population.values()), self._tournament)
        *_, parent = max(members, key=lambda member: member[:3])
        path = rng.choice(sorted(self.candidates.active(parent)))
        return Proposal({**parent, path: self._mutate(self.candidates.leaves[path], parent[path], rng)}, "model")

    def tell(self, number: int, params: Params, rung: int, score: float | None) -> None:
        """Add a member, of which the oldest is removed, or replace the member's result of a lower rung."""
        super().tell(number, params, rung, score)
        failed = score is None
        self._population[number] = (-1 if failed else rung, -math.inf if score is None else score, number, params)
        if len(self._population) > self._size:
            del self._population[next(iter(self._population))]

    def _mutate(self, leaf: Leaf, value: Any, rng: random.Random) -> Any:
        if isinstance(leaf, Choice):
            return rng.choice([option for option in leaf.options if option != value or type(option) is not type(value)])
        return nearby(leaf, value, MUTATION_SCALE, rng)


class Reinforce(Strategy):
    """REINFORCE with one categorical distribution per parameter. A score is compared with others of its rung.

    Args:
        candidates: The candidates that may be proposed.
        seed: Random seed of the run.
        learning_rate: Step size of the policy update.
        bins: Number of equal bins of a numeric parameter.
    """

    def __init__(self, candidates: Candidates, seed: int = 0, learning_rate: float = 0.15, bins: int = 6) -> None:
        super().__init__(candidates, seed)
        self._learning_rate = learning_rate
        self._logits = {path: np.zeros(_count_bins(leaf, bins)) for path, leaf in candidates.leaves.items()}
        self._scores: dict[int, deque[float]] = {}  # by rung

    def ask(self, number: int, attempt: int = 0) -> Proposal:
        """Sample from the policy."""
        rng = self.rng(number, attempt)
        params = {}
        for path, leaf in self.candidates.leaves.items():
            probabilities = _softmax(self._logits[path])
            bin_index = rng.choices(range(len(probabilities)), probabilities.tolist())[0]
            params[path] = value_at(leaf, (bin_index + rng.random()) / len(probabilities))
        return Proposal(params, "model" if self._scores else "random")

    def tell(self, number: int, params: Params, rung: int, score: float | None) -> None:
        """Make the choices of this trial more likely if its score is above the average so far, else less likely."""
        super().tell(number, params, rung, score)
        earlier = self._scores.get(rung, deque(maxlen=COMPARED))
        if score is None and not earlier:
            return  # there is no score yet to compare a failure with
        score = min(earlier) if score is None else score
        distance = (score - np.mean(earlier)) / max(float(np.std(earlier)), 1e-6) if len(earlier) > 1 else 0.0
        advantage = float(np.clip(distance, -MAX_ADVANTAGE, MAX_ADVANTAGE))
        self._scores[rung] = earlier
        earlier.append(score)
        for path in self.candidates.active(params):  # the choice of a part that is off had no effect
            leaf, logits = self.candidates.leaves[path], self._logits[path]
            chosen = min(int(position_of(leaf, params[path]) * len(logits)), len(logits) - 1)
            gradient = -_softmax(logits)
            gradient[chosen] += 1
            logits += self._learning_rate * advantage * gradient


def nearby(leaf: Leaf, value: Any, deviation: float, rng: random.Random) -> Any:
    """Return a value near another one of a numeric leaf; `deviation` is relative to its range."""
    return value_at(leaf, min(max(position_of(leaf, value) + rng.gauss(0, deviation), 0.0), 1 - 1e-9))


def _count_bins(leaf: Leaf, bins: int) -> int:
    """Return the number of bins of a leaf: one per option of a choice, at most `bins` for a number."""
    return len(leaf.options) if isinstance(leaf, Choice) else int(min(count_values(leaf), bins))


def _softmax(logits: np.ndarray) -> np.ndarray:
    shifted = np.exp(logits - logits.max())
    return shifted / shifted.sum()
