"""Proposals from Optuna's models: BOHB's rule over rungs, plain TPE, and a Gaussian process.

Hides Optuna. Results are kept per rung as Optuna's own trials; a proposal shows its sampler the most informative few
hundred of one rung, and what is running, through a storage that only reads. So the cost of a proposal does not grow
with the run, and nothing a sampler remembers can differ after a restart.
"""

from __future__ import annotations

import bisect
import logging
from collections import deque
from collections.abc import Container
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, TrialState, create_trial

from headhunt.spec import Choice, Int, Leaf, Log
from headhunt.study.candidates import Candidates, Params
from headhunt.study.strategies import Proposal, Strategy

# A study is made for every proposal; Optuna would tell the user of each.
logging.getLogger("optuna.storages._in_memory").setLevel(logging.WARNING)


class _Shown(optuna.storages.InMemoryStorage):
    """A storage that shows given trials as they are, without a copy, and keeps nothing."""

    def __init__(self, trials: list[FrozenTrial]) -> None:
        super().__init__()
        self._shown = trials

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        return [trial for trial in self._shown if states is None or trial.state in states]

    def set_trial_system_attr(self, trial_id: int, key: str, value: Any) -> None:
        """Samplers leave here what other processes should know; there are none."""


class _Results:
    """The results of one rung: how many, and the most informative of them."""

    def __init__(self, cap: int) -> None:
        self.count = 0
        self.worst: float | None = None
        self._most = max(1, cap // 4)
        self._best: list[tuple[float, int, Params]] = []
        self._latest: deque[tuple[int, Params, float | None]] = deque(maxlen=max(1, cap - self._most))

    def add(self, number: int, params: Params, score: float | None) -> None:
        self.count += 1
        self._latest.append((number, params, score))
        if score is None:
            return
        self.worst = score if self.worst is None else min(self.worst, score)
        if len(self._best) < self._most or -score < self._best[-1][0]:
            bisect.insort(self._best, (-score, number, params))
            del self._best[self._most :]

    def shown(self) -> dict[int, tuple[Params, float]]:
        """The best and the latest by number; failures have the worst value seen."""
        worst = 0.0 if self.worst is None else self.worst
        chosen = {number: (params, worst if score is None else score) for number, params, score in self._latest}
        chosen |= {number: (params, -negative) for negative, number, params in self._best}
        return dict(sorted(chosen.items()))


class Bohb(Strategy):
    """Asks a model of the highest rung that has at least d + 2 results; a fixed share is drawn at random.

    Args:
        candidates: What may be proposed.
        seed: The run's seed.
        random_fraction: How many proposals are drawn at random whatever the model says.
        cap: How many results of a rung the model is shown.
        startup: Results a rung needs before it is modelled; BOHB's d + 2 unless given. From ten on it did better on two
            toy landscapes, and much worse on one where most choices look alike at first.
        frozen_fraction: Fraction of proposals whose encoder is frozen: they cost a hundredth of the others, say as much
            about the head, and are members for the mean of the best.
    """

    rungs = True

    def __init__(
        self,
        candidates: Candidates,
        seed: int = 0,
        random_fraction: float = 0.25,
        cap: int = 200,
        startup: int | None = None,
        frozen_fraction: float = 0.4,
    ) -> None:
        super().__init__(candidates, seed)
        self._random_fraction, self._cap, self._frozen_fraction = random_fraction, cap, frozen_fraction
        self._startup = len(candidates.leaves) + 2 if startup is None else startup
        self._results: dict[int, _Results] = {}
        self._made: dict[int, FrozenTrial] = {}
        self._space = {path: distribution(leaf) for path, leaf in candidates.leaves.items()}

    def ask(self, number: int, attempt: int = 0) -> Proposal:
        """Draws with the fixed random_fraction, or before there is a rung to model; else asks the model."""
        proposal = self._propose(number, attempt)
        if self.rng(number, -1 - attempt).random() < self._frozen_fraction:
            return Proposal(self.candidates.cheapened(proposal.params), proposal.origin)
        return proposal

    def _propose(self, number: int, attempt: int) -> Proposal:
        rung = self.rung()
        rng = self.rng(number, attempt)
        if rung is None or rng.random() < self._random_fraction:
            return self.draw(number, attempt)
        study = optuna.create_study(storage=_Shown(self._trials(rung)), direction="maximize")
        asking = create_trial(state=TrialState.RUNNING)
        asking.number = number
        found = self._sampler(rng.randrange(2**31)).sample_relative(study, asking, self._space)
        leaves = self.candidates.leaves
        return Proposal({path: _value(leaf, found[path]) for path, leaf in leaves.items()}, "model")

    def tell(self, number: int, params: Params, rung: int, score: float | None) -> None:
        """Adds a result to its rung."""
        super().tell(number, params, rung, score)
        self._results.setdefault(rung, _Results(self._cap)).add(number, params, score)

    def rung(self) -> int | None:
        """The rung that is modelled now."""
        return max((rung for rung, results in self._results.items() if results.count >= self._startup), default=None)

    def _sampler(self, seed: int) -> BaseSampler:
        return optuna.samplers.TPESampler(seed=seed, n_startup_trials=1, multivariate=True, constant_liar=True)

    def _trials(self, rung: int) -> list[FrozenTrial]:
        """What the sampler is shown; most of it was shown last time too, and making it anew would take longest."""
        running = list(self.running.items())[-self._cap // 2 :]
        shown: dict[int, tuple[Params, float | None]] = {number: (params, None) for number, params in running}
        shown |= self._results[rung].shown()
        made = {}
        for number, (params, value) in shown.items():
            trial = self._made.get(number) or self._trial(number, params)
            trial.state = TrialState.RUNNING if value is None else TrialState.COMPLETE
            trial.value = value
            made[number] = trial
        self._made = made
        return list(made.values())

    def _trial(self, number: int, params: Params) -> FrozenTrial:
        return FrozenTrial(
            number=number,
            trial_id=number,
            state=TrialState.RUNNING,
            value=None,
            datetime_start=None,
            datetime_complete=None,
            params={path: code_of(leaf, params[path]) for path, leaf in self.candidates.leaves.items()},
            distributions=self._space,
            user_attrs={},
            system_attrs={},
            intermediate_values={},
        )


class Tpe(Bohb):
    """TPE on full trainings alone."""

    rungs = False

    def __init__(self, candidates: Candidates, seed: int = 0, random_fraction: float = 0.0, cap: int = 200) -> None:
        super().__init__(candidates, seed, random_fraction, cap, startup=10, frozen_fraction=0.0)


class Gp(Bohb):
    """A Gaussian process on full trainings; its cost grows with the cube of what it is shown, so that is little."""

    rungs = False

    def __init__(self, candidates: Candidates, seed: int = 0, random_fraction: float = 0.0, cap: int = 80) -> None:
        super().__init__(candidates, seed, random_fraction, cap, startup=10, frozen_fraction=0.0)

    def _sampler(self, seed: int) -> BaseSampler:
        return optuna.samplers.GPSampler(seed=seed, n_startup_trials=1)


def distribution(leaf: Leaf) -> BaseDistribution:
    """A leaf as Optuna knows it."""
    if isinstance(leaf, Choice):
        return CategoricalDistribution(range(len(leaf.options)))
    if isinstance(leaf, Int):
        return IntDistribution(leaf.low, leaf.high)
    return FloatDistribution(leaf.low, leaf.high, log=isinstance(leaf, Log))


def code_of(leaf: Leaf, value: Any) -> Any:
    """A choice as its place: Optuna cannot tell 1 from true."""
    return leaf.options.index(value) if isinstance(leaf, Choice) else value


def _value(leaf: Leaf, code: Any) -> Any:
    return leaf.options[code] if isinstance(leaf, Choice) else code
