"""The one loop: priorities, work that runs alone, work that is repeated, deadlines and interruption."""

from __future__ import annotations

from pathlib import Path

import pytest
from study_toys import ShuffledExecutor, VirtualClock, evaluate_toy, open_study

from headhunt.run.directory import RunDirectory
from headhunt.run.events import DISK, STOPPED, JobFinished, JobStarted, decode
from headhunt.run.ledger import LedgerWriter
from headhunt.run.state import Outcome
from headhunt.spec import Spec
from headhunt.study.budget import TimeBudget
from headhunt.study.executors import InlineExecutor
from headhunt.study.loop import Batch, Loop
from headhunt.study.requests import FitAllRows, MeasureThroughput

SPEC = Spec(encoder="toy")


def fit(folder: Path, name: str, **fields) -> FitAllRows:
    return FitAllRows(trial=0, spec=SPEC, seed=0, out=folder / name, **fields)


class Runs:
    """A loop whose work is recorded; it makes the folders that the work says it makes."""

    def __init__(self, folder: Path, outcomes=(), executor=None, **options) -> None:
        self.folder, self.outcomes, self.requests = folder, list(outcomes), []
        self.ledger = LedgerWriter(RunDirectory(folder))
        budget = TimeBudget(None, **options)
        executor = executor(self.evaluate) if executor else InlineExecutor(self.evaluate)
        self.loop = Loop(self.ledger, executor, budget, lambda message: None)

    def evaluate(self, request) -> Outcome:
        self.requests.append(request)
        outcome = self.outcomes.pop(0) if self.outcomes else Outcome("ok", seconds=1.0, examples=7)
        if outcome.outcome == "ok" and request.makes:
            request.makes.mkdir(parents=True)
        return outcome

    def __enter__(self) -> Runs:
        return self

    def __exit__(self, *reason) -> None:
        self.ledger.close()

    @property
    def names(self) -> list[str]:
        return [request.key.partition("/")[2] for request in self.requests]


def test_every_piece_of_work_is_an_event_before_it_is_sent_and_when_it_is_back(tmp_path):
    with Runs(tmp_path) as runs:
        seen = []
        evaluate = runs.evaluate
        runs.loop.executor._evaluate = lambda request: (
            seen.append(runs.ledger.directory.ledger.read_bytes()) or evaluate(request)
        )
        runs.loop.run(Batch([fit(tmp_path, "a"), fit(tmp_path, "b")]))
        lines = runs.ledger.directory.ledger.read_bytes().splitlines()
    events = [decode(line)[1] for line in lines]
    assert [(type(event), event.key) for event in events] == [
        (kind, f"FitAllRows/{name}") for name in "ab" for kind in (JobStarted, JobFinished)
    ]
    assert [content.count(b'"event":"job"') for content in seen] == [1, 2]
    assert events[1].examples == 7 and runs.ledger.state.jobs["FitAllRows/a"].seconds == 1.0


def test_work_that_was_done_is_not_done_again_unless_what_it_made_is_gone(tmp_path):
    with Runs(tmp_path) as runs:
        runs.loop.run(Batch([fit(tmp_path, "a"), fit(tmp_path, "b")]))
        (tmp_path / "a").rmdir()
        runs.requests.clear()
        runs.loop.run(Batch([fit(tmp_path, "a"), fit(tmp_path, "b")]))
        assert runs.names == ["a"]


@pytest.mark.parametrize(("outcome", "attempts"), [("lost", 4), ("memory", 2), ("error", 1), ("collapsed", 1)])
def test_work_is_repeated_as_often_as_its_failure_allows(tmp_path, outcome, attempts):
    with Runs(tmp_path, [Outcome(outcome)] * 9) as runs:
        runs.loop.run(Batch([fit(tmp_path, "a")]))
        assert runs.names == ["a"] * attempts
        assert runs.ledger.state.jobs["FitAllRows/a"].outcome == outcome
        steps = [request.gradient_accumulation_steps for request in runs.requests]
        assert steps == ([1, 2] if outcome == "memory" else [1] * attempts)
        runs.loop.run(Batch([fit(tmp_path, "a")]))  # it failed for good
        assert len(runs.requests) == attempts


@pytest.mark.parametrize("outcome", [STOPPED, DISK])
def test_work_that_was_interrupted_is_repeated_while_there_is_time(tmp_path, outcome):
    with Runs(tmp_path, [Outcome(outcome)]) as runs:
        runs.loop.run(Batch([fit(tmp_path, "a")]))
        assert runs.names == ["a", "a"] and runs.ledger.state.jobs["FitAllRows/a"].outcome == "ok"


def test_work_that_its_deadline_cut_off_is_left_out(tmp_path):
    clock = VirtualClock()
    with Runs(tmp_path, clock=clock) as runs:

        def evaluate(request):
            runs.requests.append(request)
            clock.now += 20
            return Outcome(STOPPED)

        runs.loop.executor._evaluate = evaluate
        runs.loop.run(Batch([fit(tmp_path, "a", deadline=1010.0), fit(tmp_path, "b", deadline=1010.0)]))
        assert runs.names == ["a"] and not runs.ledger.state.jobs


def test_first_stage_with_work_gets_the_free_worker(tmp_path):
    with Runs(tmp_path) as runs:
        runs.loop.run(Batch([fit(tmp_path, "a"), fit(tmp_path, "b")]), Batch([fit(tmp_path, "c")]))
        assert runs.names == ["a", "b", "c"]


def test_work_that_runs_alone_has_all_threads_and_nothing_beside_it(tmp_path):
    beside = []

    class Executor(ShuffledExecutor):
        threads_alone = 4

        def submit(self, request):
            beside.append([*(each.key for each in self.running), request.key])
            super().submit(request)

    batch = [fit(tmp_path, "a"), fit(tmp_path, "b", alone=True), fit(tmp_path, "c")]
    with Runs(tmp_path, executor=lambda evaluate: Executor(evaluate)) as runs:
        runs.loop.run(Batch(batch))
    assert beside == [["FitAllRows/a"], ["FitAllRows/b"], ["FitAllRows/c"]]
    assert [request.threads for request in runs.requests] == [None, 4, None]


def test_interruption_stops_what_runs_and_later_work_can_follow(tmp_path):
    with Runs(tmp_path) as runs:

        class Stopping(InlineExecutor):
            def wait(self, timeout=None):
                runs.loop.interrupt()
                return []

        runs.loop.executor = Stopping(runs.evaluate)
        runs.loop.run(Batch([fit(tmp_path, "a"), fit(tmp_path, "b")]))
        assert runs.names == []
        runs.loop.interrupted, runs.loop.executor = False, InlineExecutor(runs.evaluate)
        runs.loop.run(Batch([fit(tmp_path, "b")]))
        assert runs.names == ["b"]


def test_workers_that_hang_after_their_deadline_are_stopped(tmp_path):
    clock, stopped = VirtualClock(), []

    class Hanging(InlineExecutor):
        def wait(self, timeout=None):
            clock.now += 1
            return []

        def stop(self):
            stopped.append(clock.now)

    with Runs(tmp_path, executor=Hanging, clock=clock) as runs:
        runs.loop.run(Batch([fit(tmp_path, "a", deadline=1005.0)]))
    assert stopped == [1008.0]


def test_study_compares_candidates_beside_other_work(tmp_path):
    study = open_study(tmp_path, executor=ShuffledExecutor(lambda request: evaluate_any(request), workers=2))

    def evaluate_any(request):
        return evaluate_toy(request) if hasattr(request, "rung") else Outcome("ok")

    measuring = MeasureThroughput(trial=0, spec=SPEC, seed=0, seconds=1.0)
    study.loop.run(Batch([measuring]), study.study)
    assert study.end() == "trials" and study.state.jobs[measuring.key].outcome == "ok"
    study.ledger.close()
