"""The one loop of a search: give work to free workers, record what comes back, and repeat what was interrupted.

Every piece of work is an event before it is sent and when it is back. Results and the decisions that follow from them
are written with one sync before any worker hears of them. So a search that is cut off anywhere continues as if nothing
had happened.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Protocol

from headhunt.errors import HeadhuntError
from headhunt.run.events import DISK, STOPPED, JobFinished, JobStarted
from headhunt.run.ledger import LedgerWriter
from headhunt.run.state import Outcome
from headhunt.storage import disk_failed
from headhunt.study.budget import TimeBudget
from headhunt.study.executors import Executor
from headhunt.study.requests import EvaluateTrial, Request
from headhunt.study.study import Study

log = logging.getLogger(__name__)
GRACE = 2.0  # seconds after a deadline for workers that are just finishing
DISK_DELAY, STOP_DELAY = 1.0, 0.1  # seconds before the first repetition; each further one waits twice as long
LONGEST_DELAY = 30.0  # seconds
POLL = 0.5  # seconds between checks for a stop
PATIENCE = 600.0  # seconds that a disk may fail before the search ends


class DiskError(HeadhuntError, OSError):
    """The disk of a run is full or failing. Nothing is lost: the search can be resumed."""


class Stage(Protocol):
    """A source of work. Stages that run together are asked in turn: the first one with work gets the free worker."""

    def next(self) -> Request | None:
        """Return the most useful work now; None if there is none, or none yet."""


class Batch:
    """A stage that runs some requests, each once.

    Args:
        requests: The requests, in order. Those of a generator are made when a worker is free.
    """

    def __init__(self, requests: Iterable[Request]) -> None:
        self._requests = iter(requests)

    def next(self) -> Request | None:
        """Return the next request."""
        return next(self._requests, None)


class Loop:
    """Runs stages on workers.

    Attributes:
        problem: A message for the user while the disk fails.

    Args:
        ledger: The ledger, open for writing.
        executor: The workers.
        budget: The time of the search.
        notify: Called with a message for the user while the disk fails.
        trials: Records trials: the work whose scores the search compares; None if there are none.
        after: Called after every round of results and every second.
    """

    def __init__(
        self,
        ledger: LedgerWriter,
        executor: Executor,
        budget: TimeBudget,
        notify: Callable[[str], None],
        trials: Study | None = None,
        after: Callable[[bool], None] = lambda results: None,
    ) -> None:
        self.ledger, self.executor, self.budget, self.trials = ledger, executor, budget, trials
        self._notify, self._after = notify, after
        self.problem: str | None = None
        self._failing: dict[str, tuple[float, float]] = {}  # since when work failed for no fault of its own; its delay
        self._paused_until = 0.0
        self._running: dict[str, Request] = {}
        self._again: deque[Request] = deque()  # interrupted although there is time, or to be repeated
        self.interrupted = False

    def interrupt(self) -> None:
        """Stop the running work as soon as the loop checks. Safe to call from a signal handler."""
        self.interrupted = True

    def run(self, *stages: Stage) -> None:
        """Run stages until none of them has more work."""
        results = False
        while True:
            self._after(results)
            requests = [] if self._pause_left() > 0 else self._next(stages)
            self.commit()
            if results and self.trials is not None:
                self.trials.clean_up()
            for request in requests:
                self._running[request.key] = request
                self.executor.submit(request)
            if self.interrupted:
                self._stop()
                return
            if self._is_late():
                self._stop()
            if not self._running:
                if not self._again:
                    return
                time.sleep(min(POLL, self._pause_left()))
                results = False
                continue
            finished = self.executor.wait(POLL)
            for request, outcome in finished:
                self._finish(self._running.pop(request.key), outcome)
            results = bool(finished)

    def commit(self) -> None:
        """Write the staged events; wait and repeat while the disk fails, unless the search is to end."""
        while True:
            try:
                self.ledger.commit()
                self._recover("driver")
                return
            except OSError as error:
                if not disk_failed(error):
                    raise
                self._wait_for_disk("driver", str(error), give_up=self._is_over())
            while self._pause_left() > 0 and not self._is_over():
                time.sleep(min(POLL, self._pause_left()))

    def _next(self, stages: Iterable[Stage]) -> list[Request]:
        """Return work for the free workers, recorded as started."""
        requests: list[Request] = []
        while len(self._running) + len(requests) < self.executor.workers:
            busy = [*self._running.values(), *requests]
            if any(request.alone for request in busy) or (request := self._pop(stages)) is None:
                break
            if request.alone and busy:
                self._again.appendleft(request)  # the machine must be free first
                break
            requests.append(self._start(request))
        return requests

    def _pop(self, stages: Iterable[Stage]) -> Request | None:
        if self._again:
            return self._again.popleft()
        for stage in stages:
            while (request := stage.next()) is not None:
                late = request.deadline is not None and self.budget.now() >= request.deadline
                if not late and (request.repeats or not self._is_done(request)):
                    return request
        return None

    def _is_done(self, request: Request) -> bool:
        """Return whether work was done before, and what it made is still there; or whether it failed for good."""
        done = self.ledger.state.jobs.get(request.key)
        if done is None or done.outcome != "ok":
            return done is not None
        return request.makes is None or request.makes.exists()

    def _start(self, request: Request) -> Request:
        if request.alone:
            request = replace(request, threads=self.executor.threads_alone)
        if isinstance(request, EvaluateTrial) and request.recorded:
            assert self.trials is not None
            return self.trials.start(request)
        self.ledger.stage(JobStarted(request.key, request.trial, request.seed))
        memory = self.ledger.state.failures[request.key, "memory"]
        return replace(request, gradient_accumulation_steps=request.gradient_accumulation_steps * 2**memory)

    def _finish(self, request: Request, outcome: Outcome) -> None:
        """Record an outcome; work that must be repeated is kept."""
        if outcome.outcome == DISK:
            self._wait_for_disk(request.key, str(outcome.extra.get("message")))
        elif outcome.outcome == STOPPED:
            if self.interrupted or (request.deadline is not None and self.budget.now() >= request.deadline):
                return  # cut off by its deadline
            self._delay(request.key, STOP_DELAY)
        else:
            self._recover(request.key)
            if isinstance(request, EvaluateTrial) and request.recorded:
                assert self.trials is not None
                final = self.trials.finish(request, outcome)
            else:
                done = JobFinished(
                    request.key, outcome.outcome, round(outcome.seconds, 4), outcome.examples, outcome.extra
                )
                final = self.ledger.stage(done)
            if final:
                return
        self._again.append(request)

    def _wait_for_disk(self, work: str, reason: str, *, give_up: bool = False) -> None:
        """Begin a pause, because the disk failed.

        Raises:
            DiskError: If it has failed for long, or the search gives up.
        """
        self._delay(work, DISK_DELAY)
        if give_up or time.monotonic() - min(since for since, _ in self._failing.values()) > PATIENCE:
            path = self.ledger.directory.path
            raise DiskError(
                f"{path} must be on a disk that can be written to; writing fails: {reason}. "
                f"Free some space, then continue: headhunt resume {path}"
            )
        self.problem = f"paused, the disk fails: {reason}. Free some space; the search then continues by itself"
        self._notify(self.problem)

    def _delay(self, work: str, first: float) -> None:
        """Wait before work is repeated, each time twice as long."""
        now = time.monotonic()
        since, delay = self._failing.get(work, (now, first / 2))
        self._failing[work] = since, min(LONGEST_DELAY, 2 * delay)
        self._paused_until = max(self._paused_until, now + self._failing[work][1])

    def _recover(self, work: str) -> None:
        """Forget the failures of work that succeeded."""
        self._failing.pop(work, None)
        self.problem = self.problem if self._failing else None

    def _pause_left(self) -> float:
        return max(0.0, self._paused_until - time.monotonic())

    def _is_over(self) -> bool:
        return self.interrupted or self.budget.left() <= 0

    def _is_late(self) -> bool:
        """Return whether all that runs should have ended by itself."""
        latest = max((request.deadline or float("inf") for request in self._running.values()), default=float("inf"))
        return self.budget.now() > latest + GRACE

    def _stop(self) -> None:
        """Stop what runs. Trials stay running in the ledger, and continue when the search is resumed."""
        self.executor.stop()
        self._running.clear()
        self._again.clear()


def compare(study: Study, executor: Executor) -> str:
    """Compare the candidates of a study, and nothing else; return why it ended."""
    Loop(study.ledger, executor, study.budget, log.warning, study).run(study)
    return study.end()
