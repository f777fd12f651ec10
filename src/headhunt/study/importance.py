"""Compute hyperparameter importances of a search with Optuna's fANOVA evaluator."""

from __future__ import annotations

import optuna
from optuna.importance import FanovaImportanceEvaluator, get_param_importances
from optuna.trial import create_trial

from headhunt.run.state import State
from headhunt.study.candidates import Candidates, first_value
from headhunt.study.optuna_strategies import to_distribution, to_optuna_value

MIN_RESULTS = 10  # importances from fewer results mean nothing
MAX_RESULTS = 300  # fANOVA takes seconds for this many, and hours for thousands


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
    completed = []
    for params, score in scored:
        active = candidates.active(params)
        values = {
            path: to_optuna_value(leaf, params[path] if path in active else first_value(leaf))
            for path, leaf in candidates.leaves.items()
        }
        completed.append(create_trial(params=values, distributions=distributions, value=score))
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize")
    study.add_trials(completed)
    fractions = get_param_importances(study, evaluator=FanovaImportanceEvaluator(seed=0))
    return sorted(((path, float(fraction)) for path, fraction in fractions.items()), key=lambda item: -item[1])
