"""Signals to a search: SIGTERM ends it as the first Ctrl-C does, with a model."""

from __future__ import annotations

import os
import signal
import threading

import pytest
from search_processes import read_results, start_search, wait_for_results, write_data
from searches import run_search

from headhunt.engine.signals import interruptible, terminated_like_interrupted
from headhunt.engine.trial_runner import TrialRunner
from headhunt.run.directory import RunDirectory, is_model
from headhunt.run.events import STOPPED
from headhunt.run.ledger import read_state
from headhunt.run.state import Outcome
from headhunt.storage import PARTIAL
from headhunt.study.requests import EvaluateTrial


@pytest.fixture
def handlers():
    """Set the usual handlers, and those of the test run again at the end."""
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    for each, handler in before.items():
        signal.signal(each, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_search_in_this_process_ends_with_a_model_on_the_first_signal(
    tmp_path, encoders, monkeypatch, handlers, number
):
    """The signal arrives while the third trial is trained; it stops after a step and stays unfinished."""
    run, trained = TrialRunner.run, []

    def run_and_signal(self, request, stop=lambda: False):
        if isinstance(request, EvaluateTrial):
            trained.append(request.trial)
            if len(trained) == 3:
                os.kill(os.getpid(), number)
        return run(self, request, stop)

    monkeypatch.setattr(TrialRunner, "run", run_and_signal)
    search = run_search(tmp_path, encoders())
    assert search.state.ended == "interrupted" and len(search.state.settled) == 2 and search.state.running
    assert search.load() is not None and search.result is not None
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_search_interrupted_while_its_first_head_is_evaluated_delivers_that_head(
    tmp_path, encoders, monkeypatch, handlers
):
    """Its model is saved before it is evaluated."""
    run = TrialRunner.run

    def signal_and_stop(self, request, stop=lambda: False):
        if isinstance(request, EvaluateTrial):
            os.kill(os.getpid(), signal.SIGINT)
            return Outcome(STOPPED)
        return run(self, request, stop)

    monkeypatch.setattr(TrialRunner, "run", signal_and_stop)
    search = run_search(tmp_path, encoders())
    assert search.state.ended == "interrupted" and not search.state.settled
    assert search.result.verdict.delivered in ("winner", "plain") and search.load().predict("good")
    assert search.state.trials[search.result.winner.trial].is_solved and search.result.test.scores["winner"]


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["0", pytest.param("2", marks=pytest.mark.xdist_group("ray"))])
def test_terminated_command_ends_with_a_model(tmp_path, encoders, workers):
    write_data(tmp_path)
    process = start_search(tmp_path, encoders(), "--workers", workers, "--trials", "500", "--time", "none")
    wait_for_results(tmp_path, process, 3)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0, out
    directory = RunDirectory(tmp_path / "run")
    assert read_state(directory).ended == "interrupted" and len(read_results(tmp_path)) < 100
    assert is_model(directory.model) and directory.read_result() is not None
    assert not [path for path in directory.path.rglob("*") if path.name.endswith(PARTIAL)]


def test_second_signal_ends_the_program(handlers):
    calls: list[int] = []
    with interruptible(lambda: calls.append(1)):
        os.kill(os.getpid(), signal.SIGTERM)
        assert calls == [1]
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
    assert calls == [1] and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_signals_that_are_ignored_or_handled_stay_so(handlers):
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a background job
    calls: list[int] = []
    with interruptible(lambda: calls.append(1)):
        os.kill(os.getpid(), signal.SIGINT)
        assert not calls
    signal.signal(signal.SIGTERM, lambda number, frame: calls.append(number))
    with terminated_like_interrupted():
        os.kill(os.getpid(), signal.SIGTERM)
    assert calls == [signal.SIGTERM]


def test_signals_are_left_alone_in_other_threads(handlers):
    done: list[bool] = []

    def work() -> None:
        with interruptible(lambda: None), terminated_like_interrupted():
            done.append(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [True]
