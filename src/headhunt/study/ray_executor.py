"""Run requests on Ray: long-lived actors on this machine or a cluster, replaced when they die.

Only a class name, its settings and typed requests are sent to a worker. The outcome of a request is `lost` if its
worker's process or node dies. A worker that exceeds the timeout of its request is killed.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections import deque
from collections.abc import Mapping
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

OBJECT_STORE_BYTES = 100 << 20  # Ray transfers only requests and outcomes
START_TIMEOUT = 90.0  # seconds until the first worker must be ready
STOP_TIMEOUT = 1.5  # seconds for workers to stop before they are killed
CONNECT_TIMEOUT = 5.0  # seconds to reach a cluster
MEMORY_PER_WORKER = 2 << 30  # bytes on this machine
UNKNOWN_MEMORY = 8 << 30  # bytes, if the operating system does not report them
MAX_FAILED_STARTS = 3  # consecutive workers that cannot be created
MAX_MESSAGE_CHARS = 300  # of an error message in the ledger


class Worker:
    """An actor in its own process that creates a runner once and then runs requests.

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


@dataclass
class _Job:
    """A request that runs on an actor."""

    request: Request
    actor: Any
    started: float


class RayExecutor:
    """An executor that runs requests on Ray actors.

    Args:
        target: Class of each worker's runner, as `module:name`.
        settings: Keyword arguments of the runner. Ray serializes them.
        workers: Number of workers. Defaults to one per GPU, or one per core without GPUs.
        address: Address of a Ray cluster. Defaults to this machine.
    """

    def __init__(
        self, target: str, settings: Mapping[str, Any], *, workers: int | None = None, address: str | None = None
    ) -> None:
        ray, self._started_ray = connect(address, workers, "search with workers=0")
        self._ray = ray
        resources = ray.cluster_resources()
        gpus = int(resources.get("GPU", 0))
        self.workers = workers or gpus or max(1, int(resources.get("CPU", 1)))
        gpus_per_worker = min(1.0, gpus / self.workers) if gpus else 0
        # Two threads: one runs the request, the other receives the call to stop.
        options = {"num_cpus": 1, "num_gpus": gpus_per_worker, "max_concurrency": 2, "max_restarts": 0}
        self._create_actor = ray.remote(**options)(Worker).remote
        self._target, self._settings = target, dict(settings)
        self._queue: deque[Request] = deque()
        self._idle: list[Any] = []
        self._starting: dict[Any, Any] = {}
        self._jobs: dict[Any, _Job] = {}
        self._failed_starts = 0
        for _ in range(self.workers):
            self._start()
        self._wait_for_first_worker()

    def submit(self, request: Request) -> None:
        """Queue a request for the next free worker."""
        self._queue.append(request)
        self._assign_requests()

    def wait(self, timeout: float | None = None) -> list[tuple[Request, Outcome]]:
        """Wait for finished requests, at most `timeout` seconds."""
        finished = self._kill_overdue()
        watched = [*self._jobs, *self._starting]
        if watched and not finished:
            done, _ = self._ray.wait(watched, num_returns=1, timeout=timeout)
            more, _ = self._ray.wait(watched, num_returns=len(watched), timeout=0)
            for reference in {*done, *more}:
                if reference in self._starting:
                    self._finish_start(reference)
                else:
                    finished.append(self._finish_job(reference))
        self._assign_requests()
        return finished

    def stop(self) -> None:
        """Stop all running requests. Kill the workers that do not stop in time."""
        self._queue.clear()
        for job in self._jobs.values():
            job.actor.stop.remote()
        until = time.monotonic() + STOP_TIMEOUT
        while self._jobs and time.monotonic() < until:
            done, _ = self._ray.wait(list(self._jobs), num_returns=1, timeout=max(0.0, until - time.monotonic()))
            for reference in done:
                self._finish_job(reference)
        for job in list(self._jobs.values()):
            self._replace(job.actor)
        self._jobs.clear()

    def close(self) -> None:
        """Kill all workers, and shut Ray down if this executor started it."""
        for actor in [*self._idle, *self._starting.values(), *(job.actor for job in self._jobs.values())]:
            self._kill(actor)
        self._idle, self._starting, self._jobs = [], {}, {}
        if self._started_ray:
            self._ray.shutdown()

    def pids(self) -> list[int]:
        """Return the process ids of the workers that are ready. Each is valid on its own node."""
        actors = [*self._idle, *(job.actor for job in self._jobs.values())]
        return self._ray.get([actor.ready.remote() for actor in actors])

    def _wait_for_first_worker(self) -> None:
        until = time.monotonic() + START_TIMEOUT
        while not self._idle:
            if time.monotonic() > until:
                raise HeadhuntError(
                    f"A worker must be ready within {START_TIMEOUT:.0f} s; found none. Check that Ray has a free CPU."
                )
            self.wait(1.0)

    def _start(self) -> None:
        actor = self._create_actor(self._target, self._settings)
        self._starting[actor.ready.remote()] = actor

    def _finish_start(self, reference: Any) -> None:
        actor = self._starting.pop(reference)
        try:
            self._ray.get(reference)
            self._idle.append(actor)
            self._failed_starts = 0
        except self._ray.exceptions.RayError as error:
            # A worker killed during its start tells nothing about the next one. A failed creation does.
            self._failed_starts += bool(getattr(error, "actor_init_failed", True))
            if self._failed_starts >= MAX_FAILED_STARTS and not (self._idle or self._jobs):
                cause = getattr(error, "cause", None) or error
                raise HeadhuntError(
                    f"Workers fail before they are ready: {str(cause).strip().splitlines()[-1]}"
                ) from None
            if self._failed_starts < MAX_FAILED_STARTS:
                self._replace(actor)
            else:
                self._kill(actor)  # its node may be broken: continue with the other workers
                self.workers -= 1

    def _finish_job(self, reference: Any) -> tuple[Request, Outcome]:
        job = self._jobs.pop(reference)
        exceptions = self._ray.exceptions
        try:
            outcome = self._ray.get(reference)
            self._idle.append(job.actor)
            return job.request, outcome
        except exceptions.RayError as error:
            self._replace(job.actor)
            # Ray kills the worker that uses the most memory before the machine runs out of it.
            outcome_name = "memory" if isinstance(error, exceptions.OutOfMemoryError) else "lost"
            message = (str(error).strip() or type(error).__name__).splitlines()[0]
            return job.request, Outcome(
                outcome_name, seconds=time.monotonic() - job.started, extra={"message": message[:MAX_MESSAGE_CHARS]}
            )

    def _kill_overdue(self) -> list[tuple[Request, Outcome]]:
        now, overdue = time.monotonic(), []
        for reference, job in list(self._jobs.items()):
            if job.request.worker_timeout is not None and now - job.started > job.request.worker_timeout:
                del self._jobs[reference]
                self._replace(job.actor)
                message = f"The worker did not respond for {now - job.started:.0f} s and was killed."
                outcome_name = "error" if isinstance(job.request, EvaluateTrial) else STOPPED
                overdue.append(
                    (job.request, Outcome(outcome_name, seconds=now - job.started, extra={"message": message}))
                )
        return overdue

    def _assign_requests(self) -> None:
        while self._queue and self._idle:
            request, actor = self._queue.popleft(), self._idle.pop()
            self._jobs[actor.run.remote(request)] = _Job(request, actor, time.monotonic())

    def _replace(self, actor: Any) -> None:
        self._kill(actor)
        self._start()

    def _kill(self, actor: Any) -> None:
        with contextlib.suppress(Exception):  # the actor or its node may be dead already
            self._ray.kill(actor)


def connect(address: str | None, workers: int | None, alternative: str) -> tuple[Any, bool]:
    """Start Ray on this machine or connect to a cluster, unless this process is connected already.

    Args:
        address: Address of a cluster. Defaults to this machine.
        workers: Number of worker processes on this machine. Defaults to one per core, as far as memory allows.
        alternative: Advice for a user who cannot use Ray, for error messages.

    Returns:
        The module `ray`, and whether this call started Ray or connected to it.

    Raises:
        HeadhuntError: If Ray is not installed or does not start.
    """
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # do not hide GPUs from workers that reserve none
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise HeadhuntError(f"Workers need Ray: pip install ray. Or {alternative}.") from None
    if ray.is_initialized():
        return ray, False
    local = {
        "include_dashboard": False,
        "object_store_memory": OBJECT_STORE_BYTES,
        "num_cpus": workers or default_workers(),
    }
    try:
        if address:
            _check_reachable(address)
        ray.init(address=address or "local", log_to_driver=False, logging_level="ERROR", **({} if address else local))
    except Exception as error:
        place = f"the cluster at {address}" if address else "this machine"
        reason = (str(error).strip() or repr(error)).splitlines()[0]
        raise HeadhuntError(
            f"Ray cannot be started on {place}: {reason}. Check the address, or {alternative}."
        ) from None
    return ray, True


def _check_reachable(address: str) -> None:
    """Raise OSError if no server listens at the address. Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), timeout=CONNECT_TIMEOUT).close()


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
