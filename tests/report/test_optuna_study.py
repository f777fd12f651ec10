"""A search as a study of Optuna: the journal has every trial, and optuna-dashboard opens it."""

from __future__ import annotations

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState
from report_runs import make_run
from trackers import BIN, ask, serve

from headhunt.report.optuna_study import export_study
from headhunt.run.directory import RunDirectory
from headhunt.run.ledger import read_state

STATES = {TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL, TrialState.RUNNING}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("study") / "run", 30, ended=False)


def test_journal_has_every_trial_of_the_search(folder):
    for _ in range(2):  # written again, it replaces the first
        path = export_study(folder)
    study = optuna.load_study(study_name=None, storage=JournalStorage(JournalFileBackend(str(path))))
    state = read_state(RunDirectory(folder))
    trials = study.trials
    assert len(trials) == len(state.trials) and {trial.state for trial in trials} == STATES
    assert study.user_attrs == {"metric": "accuracy"}
    for mine, trial in zip(state.trials, trials, strict=True):
        scores = {rung: result.score for rung, result in mine.results.items() if result.score is not None}
        assert trial.intermediate_values == scores
        assert trial.state is not TrialState.COMPLETE or trial.value == mine.best[1]
        assert "recipe.learning_rate" in trial.params or mine.is_solved
    top = [trial.best[1] for trial in state.trials if trial.best and trial.best[0] == 2]
    assert study.best_value == max(top)
    done = [trial for trial in trials if trial.state is TrialState.COMPLETE]
    assert all(trial.datetime_complete > trial.datetime_start for trial in done)


@pytest.mark.skipif(not (BIN / "optuna-dashboard").exists(), reason="optuna-dashboard is installed by .ci/full")
def test_dashboard_opens_the_journal(folder):
    with serve("optuna-dashboard", str(export_study(folder))) as address:
        (summary,) = ask(address, "/api/studies")["study_summaries"]
        assert len(ask(address, f"/api/studies/{summary['study_id']}")["trials"]) == 31
