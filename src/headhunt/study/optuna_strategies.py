"""Define the strategies that use Optuna's samplers: BOHB, TPE and a Gaussian process.

Each proposal creates a sampler and gives it the running trials and a few hundred results of one rung, through a
read-only storage. So the cost of a proposal does not grow with the run, and no sampler state is lost by a restart.
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

# Optuna logs every new study, and each proposal creates one.
logging.getLogger("optuna.storages._in_memory").setLevel(logging.WARNING)


class _ReadOnlyStorage(optuna.storages.InMemoryStorage):
    """A storage that returns the given trials without copying them and stores nothing."""

    def __init__(self, trials: list[FrozenTrial]) -> None:
        super().__init__()
        self._trials_to_read = trials

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        return [trial for trial in self._trials_to_read if states is None or trial.state in states]

    def set_trial_system_attr(self, trial_id: int, key: str, value: Any) -> None:
        """Ignore attributes that samplers store for other processes: there are none."""


class _RungResults:
    """The results of one rung: their number, the best and the latest of them."""

    def __init__(self, max_results: int) -> None:
        self.count = 0
        self._worst_score: float | None = None
        self._max_best = max(1, max_results // 4)
        self._best: list[tuple[float, int, Params]] = []  # sorted by negative score
        self._latest: deque[tuple[int, Params, float | None]] = deque(maxlen=max(1, max_results - self._max_best))

    def add(self, number: int, params: Params, score: float | None) -> None:
        self.count += 1
        self._latest.append((number, params, score))
        if score is None:
            return
        self._worst_score = score if self._worst_score is None else min(self._worst_score, score)
        if len(self._best) < self._max_best or -score < self._best[-1][0]:
            bisect.insort(self._best, (-score, number, params))
            del self._best[self._max_best :]

    def selected(self) -> dict[int, tuple[Params, float]]:
        """Return the best and the latest results by trial number. Failures have the worst score so far."""
        worst = 0.0 if self._worst_score is None else self._worst_score
        selected = {number: (params, worst if score is None else score) for number, params, score in self._latest}
        selected |= {number: (params, -negative) for negative, number, params in self._best}
        return dict(sorted(selected.items()))


class Bohb(Strategy):
    """BOHB: a TPE model of the highest rung that has enough results, and a fixed fraction of random proposals.

    Args:
        candidates: The candidates that may be proposed.
        seed: Random seed of the run.
        random_fraction: Fraction of proposals that are random.
        max_results: Maximum number of results of a rung in the model.
        n_startup_trials: Number of results that a rung needs before it is modelled. Defaults to the number of
            parameters plus 2, as in BOHB. Starting at 10 is better on two toy landscapes. It is much worse on one
            where most choices have similar scores at first.
        frozen_fraction: Fraction of proposals with a frozen encoder. They take a hundredth of the time of the others,
            tell as much about the head, and are members of the ensemble.
    """

    rungs = True

    def __init__(
        self,
        candidates: Candidates,
        seed: int = 0,
        random_fraction: float = 0.25,
        max_results: int = 200,
        n_startup_trials: int | None = None,
        frozen_fraction: float = 0.4,
    ) -> None:
        super().__init__(candidates, seed)
        self._random_fraction, self._max_results, self._frozen_fraction = random_fraction, max_results, frozen_fraction
        self._n_startup_trials = len(candidates.leaves) + 2 if n_startup_trials is None else n_startup_trials
        self._results: dict[int, _RungResults] = {}
        self._optuna_trials: dict[int, FrozenTrial] = {}
        self._distributions = {path: to_distribution(leaf) for path, leaf in candidates.leaves.items()}

    def ask(self, number: int, attempt: int = 0) -> Proposal:
        """Propose a random candidate, or one from the model of a rung that has enough results."""
        proposal = self._propose(number, attempt)
        if self.rng(number, -1 - attempt).random() < self._frozen_fraction:
            return Proposal(self.candidates.with_frozen_encoder(proposal.params), proposal.origin)
        return proposal

    def _propose(self, number: int, attempt: int) -> Proposal:
        rung = self.modelled_rung()
        rng = self.rng(number, attempt)
        if rung is None or rng.random() < self._random_fraction:
            return self.draw(number, attempt)
        study = optuna.create_study(storage=_ReadOnlyStorage(self._trials(rung)), direction="maximize")
        new_trial = create_trial(state=TrialState.RUNNING)
        new_trial.number = number
        sampled = self._sampler(rng.randrange(2**31)).sample_relative(study, new_trial, self._distributions)
        leaves = self.candidates.leaves
        return Proposal({path: _from_optuna_value(leaf, sampled[path]) for path, leaf in leaves.items()}, "model")

    def tell(self, number: int, params: Params, rung: int, score: float | None) -> None:
        """Add a result to its rung."""
        super().tell(number, params, rung, score)
        self._results.setdefault(rung, _RungResults(self._max_results)).add(number, params, score)

    def modelled_rung(self) -> int | None:
        """Return the highest rung that has enough results; None if there is none."""
        return max(
            (rung for rung, results in self._results.items() if results.count >= self._n_startup_trials), default=None
        )

    def _sampler(self, seed: int) -> BaseSampler:
        return optuna.samplers.TPESampler(seed=seed, n_startup_trials=1, multivariate=True, constant_liar=True)

    def _trials(self, rung: int) -> list[FrozenTrial]:
        """Return the trials for the sampler. Reuse those of the last call: creating them takes the most time."""
        running = list(self.running.items())[-self._max_results // 2 :]
        selected: dict[int, tuple[Params, float | None]] = {number: (params, None) for number, params in running}
        selected |= self._results[rung].selected()
        trials = {}
        for number, (params, value) in selected.items():
            trial = self._optuna_trials.get(number) or self._trial(number, params)
            trial.state = TrialState.RUNNING if value is None else TrialState.COMPLETE
            trial.value = value
            trials[number] = trial
        self._optuna_trials = trials
        return list(trials.values())

    def _trial(self, number: int, params: Params) -> FrozenTrial:
        return FrozenTrial(
            number=number,
            trial_id=number,
            state=TrialState.RUNNING,
            value=None,
            datetime_start=None,
            datetime_complete=None,
            params={path: to_optuna_value(leaf, params[path]) for path, leaf in self.candidates.leaves.items()},
            distributions=self._distributions,
            user_attrs={},
            system_attrs={},
            intermediate_values={},
        )


class Tpe(Bohb):
    """TPE on full training only."""

    rungs = False

    def __init__(
        self, candidates: Candidates, seed: int = 0, random_fraction: float = 0.0, max_results: int = 200
    ) -> None:
        super().__init__(candidates, seed, random_fraction, max_results, n_startup_trials=10, frozen_fraction=0.0)


class Gp(Bohb):
    """A Gaussian process on full training only.

    Its cost grows with the cube of the number of results, so `max_results` is small.
    """

    rungs = False

    def __init__(
        self, candidates: Candidates, seed: int = 0, random_fraction: float = 0.0, max_results: int = 80
    ) -> None:
        super().__init__(candidates, seed, random_fraction, max_results, n_startup_trials=10, frozen_fraction=0.0)

    def _sampler(self, seed: int) -> BaseSampler:
        return optuna.samplers.GPSampler(seed=seed, n_startup_trials=1)


def to_distribution(leaf: Leaf) -> BaseDistribution:
    """Return the Optuna distribution of a leaf."""
    if isinstance(leaf, Choice):
        return CategoricalDistribution(range(len(leaf.options)))
    if isinstance(leaf, Int):
        return IntDistribution(leaf.low, leaf.high)
    return FloatDistribution(leaf.low, leaf.high, log=isinstance(leaf, Log))


def to_optuna_value(leaf: Leaf, value: Any) -> Any:
    """Return a choice as its index, because Optuna does not distinguish 1 from True; other values unchanged."""
    return leaf.options.index(value) if isinstance(leaf, Choice) else value


def _from_optuna_value(leaf: Leaf, value: Any) -> Any:
    return leaf.options[value] if isinstance(leaf, Choice) else value
