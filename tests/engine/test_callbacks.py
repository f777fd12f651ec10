"""Callbacks follow a search: those of users, our own log, and the trackers people use."""

from __future__ import annotations

import logging
import signal

import pytest
from searches import run_search

import headhunt
from headhunt import HeadhuntError
from headhunt.engine.session import INTERRUPTED
from headhunt.report.callbacks import flatten


class Recorder(headhunt.Callback):
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.stages: list[str] = []
        self.trials: list[tuple[int, int]] = []
        self.best: list[float] = []

    def on_start(self, search) -> None:
        self.told.append("start")
        self.before = len(search.state.trials)

    def on_update(self, search) -> None:
        self.stages.append(search.stage)

    def on_trial(self, search, trial) -> None:
        self.trials.append((trial.number, max(trial.results)))

    def on_best(self, search, trial) -> None:
        self.best.append(trial.best)

    def on_end(self, search) -> None:
        self.told.append("end")
        self.scores = search.test_scores


class Failing(headhunt.Callback):
    """Fails at the first result."""

    calls = 0

    def on_trial(self, search, trial) -> None:
        self.calls += 1
        raise ConnectionError("the server is gone")


def test_callbacks_are_told_of_every_result_and_may_fail(tmp_path, encoders, caplog):
    recorder, failing = Recorder(), Failing()
    with caplog.at_level(logging.WARNING, "headhunt.report.callbacks"):
        search = run_search(tmp_path, encoders(), callbacks=[failing, recorder], trials=4)
    state = search.state
    assert recorder.told == ["start", "end"] and recorder.before == 0
    assert recorder.trials == state.settled, "each result, in order"
    assert recorder.best == sorted(set(recorder.best)) and recorder.best[-1] == state.best.best
    assert recorder.scores and recorder.scores["accuracy"] == search.result.test.scores["winner"]["accuracy"].value
    assert {"measuring the speed of the encoder", "training on all rows"} <= set(recorder.stages)
    assert failing.calls == 1 and caplog.messages == [
        "Failing failed and is left out: ConnectionError('the server is gone')"
    ]
    lines = search.directory.log.read_text().splitlines()
    assert "text column: text" in lines[1] and lines[-1].endswith(
        search.result.verdict.sentence.replace(" RUN", f" {search.run_dir}")
    )
    assert sum("best so far" in line for line in lines) == len(recorder.best)

    again = Recorder()
    resumed = headhunt.resume(search.run_dir, trials=5, time="none", callbacks=[again])
    assert again.before == len(state.trials) and again.trials == resumed.state.settled[len(recorder.trials) :]
    assert len(resumed.directory.log.read_text().splitlines()) > len(lines), "the log is continued"


def test_what_cannot_log_is_refused_before_any_work(tmp_path, monkeypatch):
    with pytest.raises(HeadhuntError, match="callbacks= must be one of mlflow, wandb, tensorboard; found 'x'"):
        headhunt.search("missing.csv", callbacks=["x"])
    monkeypatch.setattr("headhunt.report.callbacks.find_spec", lambda name: None)
    with pytest.raises(HeadhuntError, match=r'pip install "headhunt\[wandb\]"'):
        headhunt.search("missing.csv", callbacks=["wandb"])


def test_a_callback_that_fails_at_the_start_ends_the_search(tmp_path, encoders, caplog):
    class Unreachable(headhunt.Callback):
        def on_start(self, search) -> None:
            raise ConnectionError("no server")

    with pytest.raises(ConnectionError, match="no server"):
        run_search(tmp_path, encoders(), callbacks=[Unreachable()])
    assert not caplog.messages


def test_an_interrupt_is_acknowledged_at_once(tmp_path, encoders):
    class Interrupting(headhunt.Callback):
        after = ""

        def on_trial(self, search, trial) -> None:
            if not self.after:
                signal.raise_signal(signal.SIGTERM)  # a background job ignores Ctrl-C
                self.after = search.stage

    interrupting = Interrupting()
    search = run_search(tmp_path, encoders(), callbacks=[interrupting], trials=4)
    assert interrupting.after == INTERRUPTED and search.state.ended == "interrupted" and search.model_dir
    assert INTERRUPTED in search.directory.log.read_text()


def test_specs_are_flat_in_trackers():
    spec = {"encoder": "a", "head": {"pooling": ["cls", "mean"], "mlp": None}, "recipe": {"epochs": 3.0}}
    assert flatten(spec) == {"encoder": "a", "head.pooling": "['cls', 'mean']", "recipe.epochs": 3.0}
