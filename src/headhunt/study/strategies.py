"""What to try next: one small contract, and the strategies that need no library.

Hides how a proposal is found. A strategy is asked for parameters and told results; it keeps no generator of its own:
every proposal is seeded by the run's seed and the trial's number, so that a resumed search proposes what an undisturbed
one would have. What it learns is a function of what it was told, in order.
"""

from __future__ import annotations

import math
import random
from collections import deque
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from headhunt.errors import HeadhuntError
from headhunt.spec import Choice, Leaf
from headhunt.study.candidates import Candidates, Params, along, at, span

STRATEGIES = {
    "bohb": "Bayesian optimisation (TPE) with Hyperband: a model of the highest rung that has enough results",
    "random": "every candidate at random, trained in full",
    "grid": "a grid of at most three values a parameter, in random order, trained in full",
    "evolution": "regularised evolution: the best of a few recent candidates, one choice changed",
    "tpe": "Bayesian optimisation (TPE) without rungs",
    "gp": "Bayesian optimisation with a Gaussian process, without rungs",
    "reinforce": "a policy of one distribution a parameter, moved towards what scored above average",
}


@dataclass(frozen=True)
class Proposal:
    """Parameters and where they come from."""

    params: Params
    origin: str
    """`random` or `model`; the study adds `plain` and `known`."""


class Strategy:
    """The contract: `ask`, `started`, `tell`.

    Args:
        candidates: What may be proposed.
        seed: The run's seed.
    """

    rungs: ClassVar[bool] = False
    """Whether it wants candidates judged on partial training."""
    warm: ClassVar[bool] = True
    """Whether it may begin with known recipes; False for yardsticks."""

    def __init__(self, candidates: Candidates, seed: int = 0) -> None:
        self.candidates, self.seed = candidates, seed
        self.running: dict[int, Params] = {}

    def ask(self, number: int, attempt: int = 0) -> Proposal | None:
        """Proposes the candidate of this number.

        Args:
            number: The trial's number.
            attempt: Rises where the last answer was a candidate that had been tried before.

        Returns:
            None if there is nothing left to propose.
        """
        raise NotImplementedError

    def started(self, number: int, params: Params) -> None:
        """Is told what is under way, whoever proposed it."""
        self.running[number] = params

    def tell(self, number: int, params: Params, rung: int, score: float | None) -> None:
        """Is told a result; None is a failure, which counts as the worst value seen."""
        self.running.pop(number, None)

    def rng(self, number: int, attempt: int) -> random.Random:
        """The generator of one proposal."""
        return random.Random(f"{self.seed}/{number}/{attempt}")

    def draw(self, number: int, attempt: int) -> Proposal:
        """A proposal at random."""
        return Proposal(self.candidates.draw(self.rng(number, attempt)), "random")


class Random(Strategy):
    """Draws every parameter evenly."""

    warm = False

    def ask(self, number: int, attempt: int = 0) -> Proposal:
        """Draws."""
        return self.draw(number, attempt)


class Grid(Strategy):
    """Walks a grid in an order that visits every point once; a walk in the given order would never leave one corner."""

    warm = False

    def __init__(self, candidates: Candidates, seed: int = 0, points: int = 3) -> None:
        super().__init__(candidates, seed)
        self._steps = {path: _cut(leaf, points) for path, leaf in candidates.leaves.items()}
        self.size = math.prod(self._steps.values())
        rng = random.Random(f"{seed}/grid")
        self._first = rng.randrange(self.size)
        self._stride = next(step for step in iter(lambda: rng.randrange(self.size) | 1, None) if self._coprime(step))
        self._cursor = 0
        self._asked: Params | None = None

    def ask(self, number: int, attempt: int = 0) -> Proposal | None:
        """The next point, or None after the last."""
        if self._cursor >= self.size:
            return None
        self._asked = self._point(self._cursor)
        self._cursor += 1
        return Proposal(self._asked, "model")

    def started(self, number: int, params: Params) -> None:
        """Finds its place again after a restart: all points up to this one have been asked for."""
        super().started(number, params)
        if params == self._asked:
            return
        for cursor in range(self._cursor, min(self.size, self._cursor + 1000)):
            if self._point(cursor) == params:
                self._cursor = cursor + 1
                return

    def _coprime(self, step: int) -> bool:
        return math.gcd(step, self.size) == 1

    def _point(self, cursor: int) -> Params:
        index = (self._first + cursor * self._stride) % self.size
        params = {}
        for path, leaf in self.candidates.leaves.items():
            index, step = divmod(index, self._steps[path])
            params[path] = at(leaf, (step + 0.5) / self._steps[path])
        return params


class Evolution(Strategy):
    """Regularised evolution (Real et al. 2019): parents die of age, not of a bad score.

    Args:
        candidates: What may be proposed.
        seed: The run's seed.
        population: How many of the latest results may have children.
        tournament: Of how many the best becomes the parent.
    """

    def __init__(self, candidates: Candidates, seed: int = 0, population: int = 32, tournament: int = 8) -> None:
        super().__init__(candidates, seed)
        self._population: deque[tuple[float, int, Params]] = deque(maxlen=population)
        self._tournament = tournament

    def ask(self, number: int, attempt: int = 0) -> Proposal:
        """Changes one choice of a good parent; random until there is a population."""
        if len(self._population) < (self._population.maxlen or 0):
            return self.draw(number, attempt)
        rng = self.rng(number, attempt)
        parent = max(rng.sample(list(self._population), self._tournament), key=lambda one: one[:2])[2]
        path = rng.choice(list(self.candidates.leaves))
        return Proposal({**parent, path: self._mutated(self.candidates.leaves[path], parent[path], rng)}, "model")

    def tell(self, number: int, params: Params, rung: int, score: float | None) -> None:
        """The newest joins, the oldest dies."""
        super().tell(number, params, rung, score)
        self._population.append((-math.inf if score is None else score, number, params))

    def _mutated(self, leaf: Leaf, value: Any, rng: random.Random) -> Any:
        if isinstance(leaf, Choice):
            return rng.choice([option for option in leaf.options if option != value or type(option) is not type(value)])
        share = min(max(along(leaf, value) + rng.gauss(0, 0.2), 0.0), 1 - 1e-9)
        return at(leaf, share)


class Reinforce(Strategy):
    """REINFORCE with one categorical distribution a parameter; numbers are cut into equal steps.

    Args:
        candidates: What may be proposed.
        seed: The run's seed.
        rate: How far one result moves the policy.
        steps: Into how many steps a number is cut.
    """

    def __init__(self, candidates: Candidates, seed: int = 0, rate: float = 0.15, steps: int = 6) -> None:
        super().__init__(candidates, seed)
        self._rate = rate
        self._policy = {path: np.zeros(_cut(leaf, steps)) for path, leaf in candidates.leaves.items()}
        self._count, self._mean, self._square, self._worst = 0, 0.0, 0.0, math.inf

    def ask(self, number: int, attempt: int = 0) -> Proposal:
        """Draws from the policy."""
        rng = self.rng(number, attempt)
        params = {}
        for path, leaf in self.candidates.leaves.items():
            chances = _softmax(self._policy[path])
            step = rng.choices(range(len(chances)), chances.tolist())[0]
            params[path] = at(leaf, (step + rng.random()) / len(chances))
        return Proposal(params, "model" if self._count else "random")

    def tell(self, number: int, params: Params, rung: int, score: float | None) -> None:
        """Makes what was chosen more likely where it scored above the average so far, less where below."""
        super().tell(number, params, rung, score)
        if score is None and not self._count:
            return  # nothing seen yet to compare a failure with
        value = self._worst if score is None else score
        self._worst = min(self._worst, value)
        spread = math.sqrt(max(self._square / self._count, 1e-12)) if self._count else 1.0
        gain = max(-3.0, min(3.0, (value - self._mean) / spread)) if self._count > 1 else 0.0
        self._count += 1
        step = value - self._mean
        self._mean += step / self._count
        self._square += step * (value - self._mean)
        for path, leaf in self.candidates.leaves.items():
            logits = self._policy[path]
            chosen = min(int(along(leaf, params[path]) * len(logits)), len(logits) - 1)
            push = -_softmax(logits)
            push[chosen] += 1
            logits += self._rate * gain * push


def _cut(leaf: Leaf, steps: int) -> int:
    """Into how many steps a leaf is cut: every choice is one, numbers have no more than `steps`."""
    return len(leaf.options) if isinstance(leaf, Choice) else int(min(span(leaf), steps))


def _softmax(logits: np.ndarray) -> np.ndarray:
    shifted = np.exp(logits - logits.max())
    return shifted / shifted.sum()


def make(name: str, candidates: Candidates, seed: int = 0, **options: Any) -> Strategy:
    """A strategy by name, with its own options.

    Raises:
        HeadhuntError: If there is no such strategy.
    """
    kinds: dict[str, type[Strategy]] = {
        "random": Random,
        "grid": Grid,
        "evolution": Evolution,
        "reinforce": Reinforce,
    }
    if name in STRATEGIES and name not in kinds:
        from headhunt.study import optuna_strategies as proposer  # Optuna takes a while to load

        kinds |= {"bohb": proposer.Bohb, "tpe": proposer.Tpe, "gp": proposer.Gp}
    if name not in kinds:
        raise HeadhuntError(f"The strategy must be one of {', '.join(STRATEGIES)}; found {name!r}.")
    return kinds[name](candidates, seed, **options)
