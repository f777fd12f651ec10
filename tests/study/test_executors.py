"""Tests of the executor that runs in the current process."""

from __future__ import annotations

from headhunt.run.state import Outcome
from headhunt.spec import Spec
from headhunt.study.executors import InlineExecutor, evaluate_safely
from headhunt.study.requests import EvaluateTrial


def request(trial: int = 0) -> EvaluateTrial:
    return EvaluateTrial(trial=trial, spec=Spec(encoder="toy"), rung=0, fraction=1.0, seed=0)


def fail(error: Exception):
    def evaluate(request: EvaluateTrial) -> Outcome:
        raise error

    return evaluate


def test_evaluate_safely_turns_an_exception_into_an_error():
    outcome = evaluate_safely(fail(ValueError("broken")), request())
    assert (outcome.outcome, outcome.score, outcome.extra["message"]) == ("error", None, "ValueError: broken")
    assert "Traceback" in outcome.extra["trace"] and outcome.seconds >= 0


def test_evaluate_safely_turns_a_memory_error_into_memory():
    outcome = evaluate_safely(fail(MemoryError("too large")), request())
    assert (outcome.outcome, outcome.extra) == ("memory", {"message": "too large"})


def test_inline_executor_runs_one_request_per_wait_in_order():
    executor = InlineExecutor(lambda request: Outcome("ok", float(request.trial)))
    assert executor.workers == 1 and executor.wait() == []
    executor.submit(request(1))
    executor.submit(request(2))
    assert [(done.trial, outcome.score) for done, outcome in executor.wait()] == [(1, 1.0)]
    assert [(done.trial, outcome.score) for done, outcome in executor.wait()] == [(2, 2.0)]


def test_inline_executor_stop_clears_the_queue():
    executor = InlineExecutor(lambda request: Outcome("ok", 0.0))
    executor.submit(request())
    executor.stop()
    assert executor.wait() == []
