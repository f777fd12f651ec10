"""Compute hyperparameter importances of a search with Optuna's fANOVA evaluator."""

from __future__ import annotations

import optuna
from optuna.importance import FanovaImportanceEvaluator, get_param_importances
from optuna.trial import create_trial

from headhunt.run.state import State
from headhunt.study.candidates import Candidates
from headhunt.study.optuna_strategies import to_distribution, to_optuna_value

MIN_RESULTS = 10  # importances from fewer results mean nothing
MAX_RESULTS = 300  # fANOVA takes seconds for this many, and hours for thousands


def importances(state: State, candidates: Candidates) -> list[tuple[str, float]]:
    """Return each leaf with its fraction of the variance between scores, largest first.

    Only scores of the same rung are comparable, so the rung with the most results is used. The list is empty if there
    are too few results.
    """
    rungs = [rung for trial in state.trials if trial.params for rung in trial.results]
    if not rungs:
        return []
    most_common = max(set(rungs), key=lambda rung: (rungs.count(rung), rung))
    distributions = {path: to_distribution(leaf) for path, leaf in candidates.leaves.items()}
    completed = [
        create_trial(
            params={path: to_optuna_value(leaf, trial.params[path]) for path, leaf in candidates.leaves.items()},
            distributions=distributions,
            value=trial.results[most_common].score,
        )
        for trial in state.trials
        if trial.params and most_common in trial.results and trial.results[most_common].score is not None
    ][-MAX_RESULTS:]
    if len(completed) < MIN_RESULTS:
        return []
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize")
    study.add_trials(completed)
    fractions = get_param_importances(study, evaluator=FanovaImportanceEvaluator(seed=0))
    return sorted(((path, float(fraction)) for path, fraction in fractions.items()), key=lambda item: -item[1])
