"""Define what uses Optuna: its samplers TPE and a Gaussian process as strategies, and the importance of parameters.

Each proposal creates a sampler and gives it the running trials and a few hundred results of one rung, through a
read-only storage. So the cost of a proposal does not grow with the run, and no sampler state is lost by a restart.
"""

from __future__ import annotations

import logging
import random
import warnings
from collections.abc import Container
from typing import Any, ClassVar

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.importance import FanovaImportanceEvaluator, get_param_importances
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, TrialState, create_trial

from headhunt.run.state import State
from headhunt.spec import Choice, Int, Leaf, Log
from headhunt.study.candidates import Candidates, Params, first_value
from headhunt.study.strategies import RungModel, RungResults

MIN_RESULTS = 10  # importances from fewer results mean nothing
MAX_RESULTS = 300  # fANOVA takes seconds for this many, and hours for thousands

# Optuna logs every new study, and each proposal creates one.
logging.getLogger("optuna.storages").setLevel(logging.WARNING)


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


class OptunaModel(RungModel):
    """Base class of strategies with a sampler of Optuna.

    Args:
        candidates: The candidates that may be proposed.
        seed: Random seed of the run.
        random_fraction: Fraction of proposals that are random.
        max_results: Maximum number of results of a rung in the model.
        n_startup_trials: Number of results that a rung needs before it is modelled.
    """

    conditional: ClassVar[bool]
    """Whether the sampler models parameters that only some candidates have."""
    default_results: ClassVar[int]
    """Results of a rung that the sampler sees by default."""

    def __init__(
        self,
        candidates: Candidates,
        seed: int = 0,
        random_fraction: float = 0.0,
        max_results: int | None = None,
        n_startup_trials: int = 10,
    ) -> None:
        super().__init__(candidates, seed, random_fraction, max_results or self.default_results)
        self._n_startup_trials = n_startup_trials
        self._optuna_trials: dict[int, FrozenTrial] = {}
        self._distributions = {path: to_distribution(leaf) for path, leaf in candidates.leaves.items()}

    def enough(self, results: RungResults) -> int:
        """Return the number of startup trials."""
        return self._n_startup_trials

    def modelled_rung(self) -> int | None:
        """Return the rung with the most results, if it has enough.

        Higher rungs have few results, all of them good: these samplers would then look for candidates that are unlike
        most of them.
        """
        count, most = max(((results.count, rung) for rung, results in self.results.items()), default=(0, None))
        return most if count >= self._n_startup_trials else None

    def propose(self, rung: int, number: int, rng: random.Random) -> Params:
        """Return parameters that the sampler proposes; random ones where it has seen no value."""
        study = optuna.create_study(storage=_ReadOnlyStorage(self._trials(rung)), direction="maximize")
        new_trial = create_trial(state=TrialState.RUNNING)
        new_trial.number = number
        sampler = self._sampler(rng.randrange(2**31))
        sampler.infer_relative_search_space(study, new_trial)
        sampled = sampler.sample_relative(study, new_trial, self._distributions)
        leaves = {path: self.candidates.leaves[path] for path in sampled}
        return self.candidates.draw(rng) | {
            path: leaf.options[sampled[path]] if isinstance(leaf, Choice) else sampled[path]
            for path, leaf in leaves.items()
        }

    def _sampler(self, seed: int) -> BaseSampler:
        raise NotImplementedError

    def _trials(self, rung: int) -> list[FrozenTrial]:
        """Return the trials for the sampler. Reuse those of the last call: creating them takes the most time."""
        running = list(self.running.items())[-self.max_results // 2 :]
        selected: dict[int, tuple[Params, float | None]] = {number: (params, None) for number, params in running}
        selected |= {result.number: (result.params, score) for result, score in self.results[rung].selected()}
        trials = {}
        for number, (params, value) in selected.items():
            trial = self._optuna_trials.get(number) or self._trial(number, params)
            trial.state = TrialState.RUNNING if value is None else TrialState.COMPLETE
            trial.value = value
            trials[number] = trial
        self._optuna_trials = trials
        return list(trials.values())

    def _trial(self, number: int, params: Params) -> FrozenTrial:
        values = to_optuna(self.candidates, params, conditional=self.conditional)
        return FrozenTrial(
            number=number,
            trial_id=number,
            state=TrialState.RUNNING,
            value=None,
            datetime_start=None,
            datetime_complete=None,
            params=values,
            distributions={path: self._distributions[path] for path in values},
            user_attrs={},
            system_attrs={},
            intermediate_values={},
        )


class Tpe(OptunaModel):
    """TPE (Bergstra et al. 2011), with one multivariate density per group of parameters that occur together."""

    conditional = True
    default_results = 200

    def _sampler(self, seed: int) -> BaseSampler:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            return optuna.samplers.TPESampler(
                seed=seed, n_startup_trials=1, multivariate=True, group=True, constant_liar=True
            )


class Gp(OptunaModel):
    """A Gaussian process. Parameters without effect have the same value in all candidates.

    Its cost grows with the cube of the number of results, so there are few.
    """

    conditional = False
    default_results = 80

    def _sampler(self, seed: int) -> BaseSampler:
        return optuna.samplers.GPSampler(seed=seed, n_startup_trials=1)


def to_distribution(leaf: Leaf) -> BaseDistribution:
    """Return the Optuna distribution of a leaf."""
    if isinstance(leaf, Choice):
        return CategoricalDistribution(range(len(leaf.options)))
    if isinstance(leaf, Int):
        return IntDistribution(leaf.low, leaf.high)
    return FloatDistribution(leaf.low, leaf.high, log=isinstance(leaf, Log))


def to_optuna(candidates: Candidates, params: Params, *, conditional: bool = False) -> dict[str, Any]:
    """Return parameters as Optuna has them: choices by their index, because it does not distinguish 1 from True.

    Args:
        candidates: The candidates.
        params: Parameters of one of them.
        conditional: Whether to leave out parameters without effect; otherwise they have their first value.
    """
    active = candidates.active(params)
    values = {path: params[path] if path in active else first_value(leaf) for path, leaf in candidates.leaves.items()}
    return {
        path: leaf.options.index(values[path]) if isinstance(leaf, Choice) else values[path]
        for path, leaf in candidates.leaves.items()
        if path in active or not conditional
    }


def importances(state: State, candidates: Candidates) -> list[tuple[str, float]]:
    """Return each leaf with its fraction of the variance between scores, largest first.

    Only scores of the same rung are comparable, so the rung with the most results is used. Parameters without an effect
    on a candidate, such as those of a component that is off, count as unchanged. The list is empty if there are too few
    results.
    """
    rungs = [rung for trial in state.trials if trial.params for rung in trial.results]
    if not rungs:
        return []
    most_common = max(set(rungs), key=lambda rung: (rungs.count(rung), rung))
    distributions = {path: to_distribution(leaf) for path, leaf in candidates.leaves.items()}
    scored = [
        (trial.params, trial.results[most_common].score)
        for trial in state.trials
        if trial.params and most_common in trial.results and trial.results[most_common].score is not None
    ][-MAX_RESULTS:]
    if len(scored) < MIN_RESULTS:
        return []
    completed = [
        create_trial(params=to_optuna(candidates, params), distributions=distributions, value=score)
        for params, score in scored
    ]
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize")
    study.add_trials(completed)
    fractions = get_param_importances(study, evaluator=FanovaImportanceEvaluator(seed=0))
    return sorted(((path, float(fraction)) for path, fraction in fractions.items()), key=lambda item: -item[1])
