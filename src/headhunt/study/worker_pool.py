"""Define the base class of executors whose workers are other processes, which are replaced when they die.

The outcome of a request is `lost` if its worker's process or node dies. A worker that exceeds the timeout of its
request is killed.
"""

from __future__ import annotations

import contextlib
import os
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from threading import Event
from typing import Any

from headhunt.errors import HeadhuntError
from headhunt.run.events import STOPPED
from headhunt.run.state import Outcome
from headhunt.study.executors import evaluate_safely
from headhunt.study.requests import EvaluateTrial, Request

START_TIMEOUT = 90.0  # seconds until the first worker must be ready
STOP_TIMEOUT = 1.5  # seconds for workers to stop before they are killed
MEMORY_PER_WORKER = 2 << 30  # bytes on this machine
UNKNOWN_MEMORY = 8 << 30  # bytes, if the operating system does not report them
MAX_FAILED_STARTS = 3  # consecutive workers that cannot be created
MAX_MESSAGE_CHARS = 300  # of an error message in the ledger


class Worker:
    """Runs requests in a worker process, with a runner that is created once.

    Args:
        target: Class of the runner, as `module:name`. It has a method `run(request, stop)`.
        settings: Keyword arguments of the runner.
    """

    def __init__(self, target: str, settings: Mapping[str, Any]) -> None:
        module, _, name = target.partition(":")
        self._runner = getattr(import_module(module), name)(**settings)
        self._stop = Event()

    def ready(self) -> int:
        """Return the process id once the runner has been created."""
        return os.getpid()

    def run(self, request: Request) -> Outcome:
        """Run a request and return its outcome."""
        self._stop.clear()
        outcome = evaluate_safely(lambda request: self._runner.run(request, self._stop.is_set), request)
        return replace(outcome, extra={**outcome.extra, "pid": os.getpid()})

    def stop(self) -> None:
        """Stop the running request after its current step."""
        self._stop.set()


class WorkerDiedError(Exception):
    """A worker has died.

    Args:
        message: What is known about it.
        outcome: Outcome of the request that it ran.
        in_creation: Whether it died because its runner cannot be created.
    """

    def __init__(self, message: str, outcome: str = "lost", *, in_creation: bool = False) -> None:
        super().__init__(message)
        self.outcome, self.in_creation = outcome, in_creation


@dataclass
class _Job:
    """A request that runs on a worker."""

    request: Request
    started: float

    def overdue(self, now: float) -> bool:
        """Return whether the worker has taken longer than it may."""
        return self.request.worker_timeout is not None and now - self.started > self.request.worker_timeout


class WorkerPool(ABC):
    """An executor that runs requests on workers. Subclasses create workers and communicate with them.

    A worker is any hashable object. It sends its process id when it is ready, and an outcome for every request.

    Args:
        workers: Number of workers.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.threads_alone: int | None = None
        self._queue: deque[Request] = deque()
        self._idle: list[Any] = []
        self._starting: list[Any] = []
        self._jobs: dict[Any, _Job] = {}
        self._failed_starts = 0
        for _ in range(self.workers):
            self._starting.append(self._create())
        self._wait_for_first_worker()

    @abstractmethod
    def _create(self) -> Any:
        """Return a new worker, which may still be starting."""

    @abstractmethod
    def _send(self, worker: Any, request: Request) -> None:
        """Send a request to a worker. If the worker has died, `_receive` raises an error later."""

    @abstractmethod
    def _poll(self, workers: Sequence[Any], timeout: float | None) -> Iterable[Any]:
        """Wait until some of the workers have sent something or died, and return them."""

    @abstractmethod
    def _receive(self, worker: Any) -> Any:
        """Return what a worker has sent.

        Raises:
            WorkerDiedError: If it has died.
        """

    @abstractmethod
    def _ask_to_stop(self, worker: Any) -> None:
        """Tell a worker to stop its request after the current step."""

    @abstractmethod
    def _kill(self, worker: Any) -> None:
        """Kill a worker, which may be dead already."""

    def submit(self, request: Request) -> None:
        """Queue a request for the next free worker."""
        self._queue.append(request)
        self._assign_requests()

    def wait(self, timeout: float | None = None) -> list[tuple[Request, Outcome]]:
        """Wait for finished requests, at most `timeout` seconds."""
        finished = self._kill_overdue()
        watched = [*self._jobs, *self._starting]
        if watched and not finished:
            for worker in self._poll(watched, timeout):
                if worker in self._jobs:
                    finished.append(self._finish_job(worker))
                else:
                    self._finish_start(worker)
        self._assign_requests()
        return finished

    def stop(self) -> None:
        """Stop all running requests. Kill the workers that do not stop in time."""
        self._queue.clear()
        for worker in self._jobs:
            self._ask_to_stop(worker)
        until = time.monotonic() + STOP_TIMEOUT
        while self._jobs and time.monotonic() < until:
            for worker in self._poll(list(self._jobs), max(0.0, until - time.monotonic())):
                self._finish_job(worker)
        for worker in list(self._jobs):
            self._replace(worker)
        self._jobs.clear()

    def close(self) -> None:
        """Kill all workers."""
        for worker in [*self._idle, *self._starting, *self._jobs]:
            self._kill(worker)
        self._idle, self._starting, self._jobs = [], [], {}

    def _wait_for_first_worker(self) -> None:
        until = time.monotonic() + START_TIMEOUT
        while not self._idle:
            if time.monotonic() > until:
                raise HeadhuntError(
                    f"A worker must be ready within {START_TIMEOUT:.0f} s; found none. Check that a CPU is free."
                )
            self.wait(1.0)

    def _finish_start(self, worker: Any) -> None:
        self._starting.remove(worker)
        try:
            self._receive(worker)
            self._idle.append(worker)
            self._failed_starts = 0
        except WorkerDiedError as error:
            # A worker killed during its start tells nothing about the next one. A failed creation does.
            self._failed_starts += error.in_creation
            if self._failed_starts >= MAX_FAILED_STARTS and not (self._idle or self._jobs or self._starting):
                raise HeadhuntError(f"Workers fail before they are ready: {error}") from None
            if self._failed_starts < MAX_FAILED_STARTS:
                self._replace(worker)
            else:
                self._kill(worker)  # its node may be broken: continue with the other workers
                self.workers -= 1

    def _finish_job(self, worker: Any) -> tuple[Request, Outcome]:
        job = self._jobs.pop(worker)
        try:
            outcome = self._receive(worker)
            self._idle.append(worker)
            return job.request, outcome
        except WorkerDiedError as error:
            return self._give_up(worker, job, error.outcome, str(error))

    def _give_up(self, worker: Any, job: _Job, outcome: str, message: str) -> tuple[Request, Outcome]:
        self._replace(worker)
        seconds = time.monotonic() - job.started
        return job.request, Outcome(outcome, seconds=seconds, extra={"message": message[:MAX_MESSAGE_CHARS]})

    def _kill_overdue(self) -> list[tuple[Request, Outcome]]:
        now, overdue = time.monotonic(), []
        late = [worker for worker, job in self._jobs.items() if job.overdue(now)]
        done = set(self._poll(late, 0.0)) if late else set()  # it may have responded while this process was suspended
        for worker in late:
            if worker in done:
                overdue.append(self._finish_job(worker))
                continue
            job = self._jobs.pop(worker)
            outcome = "error" if isinstance(job.request, EvaluateTrial) else STOPPED
            message = f"The worker did not respond for {now - job.started:.0f} s and was killed."
            overdue.append(self._give_up(worker, job, outcome, message))
        return overdue

    def _assign_requests(self) -> None:
        while self._queue and self._idle:
            request, worker = self._queue.popleft(), self._idle.pop()
            self._jobs[worker] = _Job(request, time.monotonic())
            self._send(worker, request)

    def _replace(self, worker: Any) -> None:
        self._kill(worker)
        self._starting.append(self._create())


def default_workers() -> int:
    """Return the default number of workers on this machine: one per core, as far as memory allows."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores, available_memory() // MEMORY_PER_WORKER))


def available_memory() -> int:
    """Return the available memory of this machine in bytes, estimated if the operating system does not report it."""
    with contextlib.suppress(OSError, ValueError, StopIteration), Path("/proc/meminfo").open(encoding="ascii") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable"))
    with contextlib.suppress(OSError, ValueError, AttributeError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    return UNKNOWN_MEMORY
