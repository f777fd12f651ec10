"""Write a search as a study of Optuna, for optuna-dashboard and Optuna's own plots."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from headhunt.report.figures import find_value, value_text
from headhunt.report.run_data import RunData
from headhunt.run.state import Trial
from headhunt.spec import Choice, describe
from headhunt.study.optuna_strategies import to_distribution


def export_study(folder: str | Path) -> Path:
    """Write the trials of a search as an Optuna journal, `RUN/optuna.journal`, and return its path.

    Trials that were not trained to the end are pruned trials; their scores are intermediate values.

    Args:
        folder: The run directory of a running or finished search.

    Raises:
        RunError: If there is no run in the folder.
    """
    run = RunData(folder)
    path = run.directory.path / "optuna.journal"
    path.unlink(missing_ok=True)
    storage = JournalStorage(JournalFileBackend(str(path)))
    study = optuna.create_study(storage=storage, study_name=run.task.name, direction="maximize")
    study.set_user_attr("metric", run.metric)
    ends = {number: seconds for (number, _), seconds in zip(run.state.settled, run.state.times, strict=True)}
    started = run.state.started_at or 0.0
    for trial in run.state.trials:
        study.add_trial(_frozen(run, trial, started + ends.get(trial.number, run.state.elapsed)))
    return path


def _frozen(run: RunData, trial: Trial, end: float) -> FrozenTrial:
    """Return a trial as Optuna has it; choices are shown by their names."""
    values: dict[str, object] = {}
    distributions: dict[str, BaseDistribution] = {}
    for path, leaf in run.leaves.items():
        for value in find_value(trial.spec_data, path, leaf):
            values[path], distributions[path] = value, to_distribution(leaf)
            if isinstance(leaf, Choice):
                values[path] = value_text(value)
                distributions[path] = CategoricalDistribution([value_text(option) for option in leaf.options])
    state = TrialState.RUNNING if trial.number in run.state.running else TrialState.WAITING
    if trial.results and state is not TrialState.RUNNING:
        full = trial.best is not None and trial.best[0] >= len(run.fractions) - 1
        state = TrialState.COMPLETE if full else TrialState.PRUNED if trial.best else TrialState.FAIL
    return FrozenTrial(
        number=trial.number,
        trial_id=trial.number,
        state=state,
        value=trial.best[1] if trial.best and state.is_finished() else None,
        datetime_start=datetime.fromtimestamp(end - trial.seconds),
        datetime_complete=datetime.fromtimestamp(end) if state.is_finished() else None,
        params=values,
        distributions=distributions,
        user_attrs={"candidate": describe(trial.spec), "origin": trial.origin},
        system_attrs={},
        intermediate_values={rung: result.score for rung, result in trial.results.items() if result.score is not None},
    )
