"""Which choices mattered: the importance of every leaf of the space over a whole search, by Optuna's fANOVA."""

from __future__ import annotations

import optuna
from optuna.importance import FanovaImportanceEvaluator, get_param_importances
from optuna.trial import create_trial

from headhunt.run.state import State
from headhunt.study.candidates import Candidates
from headhunt.study.optuna_strategies import code_of, distribution

FEWEST = 10  # results from which importances mean anything
MOST = 300  # that are looked at: fANOVA takes seconds for as many, and hours for thousands


def importances(state: State, candidates: Candidates) -> list[tuple[str, float]]:
    """Leaves and their shares of the differences between scores, largest first; empty where there are too few results.

    Scores of one rung are comparable, so the rung with the most results is taken.
    """
    rungs = [rung for trial in state.trials if trial.params for rung in trial.results]
    if not rungs:
        return []
    rung = max(set(rungs), key=lambda one: (rungs.count(one), one))
    spaces = {path: distribution(leaf) for path, leaf in candidates.leaves.items()}
    known = [
        create_trial(
            params={path: code_of(leaf, trial.params[path]) for path, leaf in candidates.leaves.items()},
            distributions=spaces,
            value=trial.results[rung].score,
        )
        for trial in state.trials
        if trial.params and rung in trial.results and trial.results[rung].score is not None
    ][-MOST:]
    if len(known) < FEWEST:
        return []
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize")
    study.add_trials(known)
    found = get_param_importances(study, evaluator=FanovaImportanceEvaluator(seed=0))
    return sorted(((name, float(share)) for name, share in found.items()), key=lambda item: -item[1])
