"""Workers on Ray: long-lived actors on this machine or a cluster, replaced when they die.

Hides Ray. What crosses to a worker is the name of a function, plain settings and plain requests; the study never
sees what stands behind them. A worker that dies, with its process or its whole node, answers `lost`; one that does not
answer in time is ended.
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
from headhunt.study.executors import guarded
from headhunt.study.requests import EvaluateTrial, Request

OBJECT_STORE = 100 << 20  # bytes; only requests and answers cross
START = 90.0  # seconds for the first worker
STOP = 1.5  # seconds for workers to end what they do before they are ended
PER_WORKER = 2 << 30  # bytes of memory that a worker on this machine is counted with
FALSE_STARTS = 3  # workers that cannot be made, one after the other, before the search gives up


class Worker:
    """Runs in a process of its own: makes its bench once and then does what it is asked.

    Args:
        target: Where the bench is made, as `module:name`; it has `run(request, stop)`.
        settings: What it is made with.
    """

    def __init__(self, target: str, settings: Mapping[str, Any]) -> None:
        module, _, name = target.partition(":")
        self._bench = getattr(import_module(module), name)(**settings)
        self._stop = Event()

    def ready(self) -> int:
        """Answers as soon as the bench is made, with the process's number."""
        return os.getpid()

    def run(self, request: Request) -> Outcome:
        """Does what is asked."""
        self._stop.clear()
        outcome = guarded(lambda asked: self._bench.run(asked, self._stop.is_set), request)
        return replace(outcome, extra={**outcome.extra, "pid": os.getpid()})

    def stop(self) -> None:
        """Ends what is under way after its next step."""
        self._stop.set()


@dataclass
class _Job:
    request: Request
    actor: Any
    began: float


class RayWorkers:
    """An executor on Ray.

    Args:
        target: Where a worker's bench is made, as `module:name`.
        settings: What it is made with, plain data.
        workers: How many; one per core or GPU unless given.
        address: Of a cluster; this machine unless given.
    """

    def __init__(
        self, target: str, settings: Mapping[str, Any], *, workers: int | None = None, address: str | None = None
    ) -> None:
        ray, self._ours = connect(address, workers, "search with --workers 0")
        self._ray = ray
        resources = ray.cluster_resources()
        gpus = int(resources.get("GPU", 0))
        self.workers = workers or gpus or max(1, int(resources.get("CPU", 1)))
        share = min(1.0, gpus / self.workers) if gpus else 0
        # Two threads: one works, the other hears that it should stop.
        options = {"num_cpus": 1, "num_gpus": share, "max_concurrency": 2, "max_restarts": 0}
        self._make = ray.remote(**options)(Worker).remote
        self._target, self._settings = target, dict(settings)
        self._queue: deque[Request] = deque()
        self._idle: list[Any] = []
        self._starting: dict[Any, Any] = {}
        self._jobs: dict[Any, _Job] = {}
        self._false_starts = 0
        for _ in range(self.workers):
            self._start()
        self._await_first()

    def submit(self, request: Request) -> None:
        """Puts a request in line for the next free worker."""
        self._queue.append(request)
        self._send()

    def wait(self, timeout: float | None = None) -> list[tuple[Request, Outcome]]:
        """Waits until something has ended, or for so many seconds."""
        answers = self._overdue()
        watched = [*self._jobs, *self._starting]
        if watched and not answers:
            done, _ = self._ray.wait(watched, num_returns=1, timeout=timeout)
            more, _ = self._ray.wait(watched, num_returns=len(watched), timeout=0)
            for reference in {*done, *more}:
                if reference in self._starting:
                    self._greet(reference)
                else:
                    answers.append(self._take(reference))
        self._send()
        return answers

    def stop(self) -> None:
        """Ends whatever is under way: asks first, then ends the processes that do not answer."""
        self._queue.clear()
        for job in self._jobs.values():
            job.actor.stop.remote()
        until = time.monotonic() + STOP
        while self._jobs and time.monotonic() < until:
            done, _ = self._ray.wait(list(self._jobs), num_returns=1, timeout=max(0.0, until - time.monotonic()))
            for reference in done:
                self._take(reference)
        for job in list(self._jobs.values()):
            self._replace(job.actor)
        self._jobs.clear()

    def close(self) -> None:
        """Ends all workers, and Ray where it was started here."""
        for actor in [*self._idle, *self._starting.values(), *(job.actor for job in self._jobs.values())]:
            self._end(actor)
        self._idle, self._starting, self._jobs = [], {}, {}
        if self._ours:
            self._ray.shutdown()

    def pids(self) -> list[int]:
        """The workers' processes that are ready; a node's own numbers."""
        actors = [*self._idle, *(job.actor for job in self._jobs.values())]
        return self._ray.get([actor.ready.remote() for actor in actors])

    def _await_first(self) -> None:
        until = time.monotonic() + START
        while not self._idle:
            if time.monotonic() > until:
                raise HeadhuntError(f"No worker was ready within {START:.0f} s: has the cluster a free CPU?")
            self.wait(1.0)

    def _start(self) -> None:
        actor = self._make(self._target, self._settings)
        self._starting[actor.ready.remote()] = actor

    def _greet(self, reference: Any) -> None:
        actor = self._starting.pop(reference)
        try:
            self._ray.get(reference)
            self._idle.append(actor)
            self._false_starts = 0
        except self._ray.exceptions.RayError as error:
            # One that was killed while it started says nothing of the next; one that could not be made does.
            self._false_starts += bool(getattr(error, "actor_init_failed", True))
            if self._false_starts >= FALSE_STARTS and not (self._idle or self._jobs):
                cause = getattr(error, "cause", None) or error
                raise HeadhuntError(
                    f"Workers die before they are ready: {str(cause).strip().splitlines()[-1]}"
                ) from None
            if self._false_starts < FALSE_STARTS:
                self._replace(actor)
            else:
                self._end(actor)  # as on a node that is broken: the others go on without it
                self.workers -= 1

    def _take(self, reference: Any) -> tuple[Request, Outcome]:
        job = self._jobs.pop(reference)
        exceptions = self._ray.exceptions
        try:
            answer = self._ray.get(reference)
            self._idle.append(job.actor)
            return job.request, answer
        except exceptions.RayError as error:
            self._replace(job.actor)
            # Ray ends the hungriest worker before the machine has no memory left.
            kind = "memory" if isinstance(error, exceptions.OutOfMemoryError) else "lost"
            message = (str(error).strip() or type(error).__name__).splitlines()[0]
            return job.request, Outcome(kind, seconds=time.monotonic() - job.began, extra={"message": message[:300]})

    def _overdue(self) -> list[tuple[Request, Outcome]]:
        now, ended = time.monotonic(), []
        for reference, job in list(self._jobs.items()):
            if job.request.worker_timeout is not None and now - job.began > job.request.worker_timeout:
                del self._jobs[reference]
                self._replace(job.actor)
                message = f"gave no answer for {now - job.began:.0f} s and was ended"
                kind = "error" if isinstance(job.request, EvaluateTrial) else STOPPED
                ended.append((job.request, Outcome(kind, seconds=now - job.began, extra={"message": message})))
        return ended

    def _send(self) -> None:
        while self._queue and self._idle:
            request, actor = self._queue.popleft(), self._idle.pop()
            self._jobs[actor.run.remote(request)] = _Job(request, actor, time.monotonic())

    def _replace(self, actor: Any) -> None:
        self._end(actor)
        self._start()

    def _end(self, actor: Any) -> None:
        with contextlib.suppress(Exception):  # it may be gone already, or its node
            self._ray.kill(actor)


def connect(address: str | None, workers: int | None, otherwise: str) -> tuple[Any, bool]:
    """Ray, started on this machine or joined on a cluster unless it runs in this process already.

    Args:
        address: Of a cluster; this machine unless given.
        workers: How many processes this machine is to take; one per core unless given.
        otherwise: What the user can do without Ray.

    Returns:
        The module, and whether it was started here.
    """
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # workers without a GPU leave CUDA as it is
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise HeadhuntError(f"Workers need Ray: pip install ray. Or {otherwise}.") from None
    if ray.is_initialized():
        return ray, False
    quiet = {"include_dashboard": False, "object_store_memory": OBJECT_STORE, "num_cpus": workers or here()}
    try:
        if address:
            _knock(address)
        ray.init(address=address or "local", log_to_driver=False, logging_level="ERROR", **({} if address else quiet))
    except Exception as error:
        where = f"the cluster at {address}" if address else "this machine"
        reason = (str(error).strip() or repr(error)).splitlines()[0]
        raise HeadhuntError(f"Ray cannot be started on {where}: {reason}. Check the address, or {otherwise}.") from None
    return ray, True


def _knock(address: str) -> None:
    """Raises OSError if nobody listens there: Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), timeout=5).close()


def here() -> int:
    """How many workers this machine takes: one per core, as far as memory goes."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores, memory() // PER_WORKER))


def memory() -> int:
    """Bytes of memory that are free for use on this machine; a guess where it cannot be told."""
    with contextlib.suppress(OSError, ValueError, StopIteration), Path("/proc/meminfo").open(encoding="ascii") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable"))
    with contextlib.suppress(OSError, ValueError, AttributeError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    return 8 << 30
