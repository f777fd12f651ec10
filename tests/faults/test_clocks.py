"""Clocks that are wrong by an hour, or set while a search runs: deadlines hold, and few records are written."""

from __future__ import annotations

import os
import pickle
import time
from collections import Counter
from pathlib import Path

import pytest
from study_toys import SkewedRunner, VirtualClock, evaluate_toy, run_study

from headhunt.run.clock import steady_time
from headhunt.run.directory import RunDirectory
from headhunt.run.events import STOPPED, TrialStarted, decode
from headhunt.run.state import Outcome
from headhunt.spec import Spec
from headhunt.study.budget import TimeBudget
from headhunt.study.local_executor import LocalExecutor
from headhunt.study.requests import EvaluateTrial

HOUR = 3600.0
SKEWS = pytest.mark.parametrize("skew", [-HOUR, HOUR], ids=["an hour behind", "an hour ahead"])


def request(**fields) -> EvaluateTrial:
    return EvaluateTrial(trial=0, spec=Spec(encoder="toy"), rung=0, fraction=1.0, seed=0, **fields)


@SKEWS
def test_request_is_received_with_the_seconds_that_are_left(monkeypatch, skew):
    clock = VirtualClock()
    monkeypatch.setattr("headhunt.study.requests.steady_time", clock)
    data = pickle.dumps(request(deadline=clock.now + 40))
    clock.now += skew  # the receiver's clock
    received = pickle.loads(data)
    assert received.deadline == clock.now + 40
    assert pickle.loads(pickle.dumps(request())).deadline is None


@SKEWS
def test_deadline_is_kept_while_the_clock_of_the_machine_is_set(monkeypatch, skew):
    budget = TimeBudget(100.0)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + skew)
    assert 99 < budget.left() <= 100 and not budget.search_is_over() and budget.fits(80)


@SKEWS
def test_time_of_a_search_is_measured_while_the_clock_of_the_machine_is_set(tmp_path, monkeypatch, skew):
    real, calls = time.time, Counter()

    def evaluate(request):
        calls["trials"] += 1
        monkeypatch.setattr(time, "time", lambda: real() + calls["trials"] * skew)
        return evaluate_toy(request)

    study = run_study(tmp_path, evaluate, time=HOUR / 4, trials=5)
    assert study.state.ended == "trials" and 0 <= study.state.elapsed < 60


@pytest.mark.parametrize("skew", [-HOUR, HOUR])
def test_workers_with_another_clock_keep_the_deadline(skew, monkeypatch):
    tests = str(Path(__file__).parents[1])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([tests, os.environ.get("PYTHONPATH", "")]))
    executor = LocalExecutor(f"{SkewedRunner.__module__}:{SkewedRunner.__name__}", {"skew": skew}, workers=1)
    try:
        executor.submit(request(deadline=steady_time() + 2))
        finished = []
        while not finished:
            finished = executor.wait(1.0)
        assert 1 < finished[0][1].extra["worked"] < 4
    finally:
        executor.close()


def test_workers_that_stop_at_once_get_few_requests(tmp_path):
    """A worker that believes its time is over leaves a handful of records, not thousands."""
    began = time.monotonic()
    study = run_study(tmp_path, lambda request: Outcome(STOPPED), time=2.0, trials=None)
    assert 1.5 < time.monotonic() - began < 6 and study.state.ended == "time"
    lines = RunDirectory(tmp_path).ledger.read_bytes().splitlines()
    starts = [event for _, event in map(decode, lines) if isinstance(event, TrialStarted)]
    assert 2 <= len(starts) <= 8 and not study.state.settled


def test_worker_that_stops_at_once_does_not_hold_up_the_others(tmp_path):
    """One trial is stopped early three times; it and all others still get their results."""
    stops = Counter()

    def evaluate(request):
        if request.trial == 1 and stops[request.rung] < 3:
            stops[request.rung] += 1
            return Outcome(STOPPED)
        return evaluate_toy(request)

    study = run_study(tmp_path, evaluate, trials=3)
    assert stops and study.state.ended == "trials" and all(trial.results for trial in study.state.trials)
