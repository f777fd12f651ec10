"""Run requests on Ray: long-lived actors on a cluster or on this machine, replaced when they die.

Only a class name, its settings and typed requests are sent to a worker.
"""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headhunt.errors import HeadhuntError
from headhunt.study.requests import Request
from headhunt.study.worker_pool import Worker, WorkerDiedError, WorkerPool, default_workers

OBJECT_STORE_BYTES = 100 << 20  # Ray transfers only requests and outcomes
OLDEST_RAY = (2, 52)  # the first whose servers ask for a token
CONNECT_TIMEOUT = 5.0  # seconds to reach a cluster


@dataclass(eq=False)
class _Actor:
    """An actor, and the reference to what it will send next."""

    handle: Any
    reference: Any


class RayExecutor(WorkerPool):
    """An executor that runs requests on Ray actors.

    Args:
        target: Class of each worker's runner, as `module:name`.
        settings: Keyword arguments of the runner. Ray serializes them.
        workers: Number of workers. Defaults to one per GPU, or one per core without GPUs.
        address: Address of a Ray cluster, or "local" for this machine, which is the default.
    """

    def __init__(
        self, target: str, settings: Mapping[str, Any], *, workers: int | None = None, address: str | None = None
    ) -> None:
        ray, self._started_ray = connect(address, workers, "cluster", "search with 0 workers")
        self._ray = ray
        resources = ray.cluster_resources()
        gpus = int(resources.get("GPU", 0))
        workers = workers or gpus or max(1, int(resources.get("CPU", 1)))
        gpus_per_worker = 1 / math.ceil(workers / gpus) if gpus else 0  # a worker cannot have parts of two
        # Two threads: one runs the request, the other receives the call to stop.
        options = {"num_cpus": 1, "num_gpus": gpus_per_worker, "max_concurrency": 2, "max_restarts": 0}
        self._create_actor = ray.remote(**options)(Worker).remote
        self._target, self._settings = target, dict(settings)
        super().__init__(workers)

    def close(self) -> None:
        """Kill all workers, and shut Ray down if this executor started it."""
        super().close()
        if self._started_ray:
            self._ray.shutdown()

    def pids(self) -> list[int]:
        """Return the process ids of the workers that are ready. Each is valid on its own node."""
        return self._ray.get([actor.handle.ready.remote() for actor in [*self._idle, *self._jobs]])

    def _create(self) -> _Actor:
        handle = self._create_actor(self._target, self._settings)
        return _Actor(handle, handle.ready.remote())

    def _send(self, worker: _Actor, request: Request) -> None:
        worker.reference = worker.handle.run.remote(request)

    def _poll(self, workers: Sequence[_Actor], timeout: float | None) -> list[_Actor]:
        by_reference = {worker.reference: worker for worker in workers}
        done, _ = self._ray.wait(list(by_reference), num_returns=1, timeout=timeout)
        more, _ = self._ray.wait(list(by_reference), num_returns=len(by_reference), timeout=0)
        return [by_reference[reference] for reference in {*done, *more}]

    def _receive(self, worker: _Actor) -> Any:
        exceptions = self._ray.exceptions
        try:
            return self._ray.get(worker.reference)
        except exceptions.RayError as error:
            # Ray kills the worker that uses the most memory before the machine runs out of it.
            outcome = "memory" if isinstance(error, exceptions.OutOfMemoryError) else "lost"
            in_creation = bool(getattr(error, "actor_init_failed", True))
            cause = getattr(error, "cause", None) or error
            lines = str(cause).strip().splitlines() or [type(error).__name__]
            message = lines[-1] if in_creation else lines[0]
            raise WorkerDiedError(message, outcome, in_creation=in_creation) from None

    def _ask_to_stop(self, worker: _Actor) -> None:
        worker.handle.stop.remote()

    def _kill(self, worker: _Actor) -> None:
        with contextlib.suppress(Exception):  # the actor or its node may be dead already
            self._ray.kill(worker.handle)


def connect(address: str | None, workers: int | None, extra: str, alternative: str) -> tuple[Any, bool]:
    """Start Ray on this machine or connect to a cluster, unless this process is connected already.

    Args:
        address: Address of a cluster, or "local" for this machine, which is the default.
        workers: Number of worker processes on this machine. Defaults to one per core, as far as memory allows.
        extra: The extra of this package that installs what the caller needs of Ray.
        alternative: Advice for a user who cannot use Ray, for error messages.

    Returns:
        The module `ray`, and whether this call started Ray or connected to it.

    Raises:
        HeadhuntError: If Ray is not installed or does not start, or if a cluster obeys everyone who reaches it.
    """
    address = None if address == "local" else address
    if address and os.environ.get("RAY_AUTH_MODE") != "token":
        raise HeadhuntError(
            "A Ray cluster runs any code that reaches it, so it must ask for a token. Start it, and this program, with "
            "the environment variable RAY_AUTH_MODE=token and the same RAY_AUTH_TOKEN."
        )
    if not address:
        # Without clusters, as on Windows and macOS, Ray listens on 127.0.0.1 only. It reads this when it is imported.
        # After that, it listens on all addresses, with a token.
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
        os.environ["RAY_AUTH_MODE"] = "token"
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # do not hide GPUs from workers that reserve none
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise HeadhuntError(
            f'Ray starts these workers and is not installed: pip install "headhunt[{extra}]". Or {alternative}.'
        ) from None
    if tuple(map(int, ray.__version__.split(".")[:2])) < OLDEST_RAY:
        raise HeadhuntError(f"Workers need Ray 2.52 or later; found {ray.__version__}. pip install --upgrade ray")
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
        reason = (str(error).strip() or repr(error)).splitlines()[0]
        if address:
            message = f"No Ray cluster can be reached at {address}: {reason}. "
            message += "Check the address, or leave it out to use this machine."
        else:
            message = f"Ray cannot be started on this machine: {reason}. Try again, or {alternative}."
        raise HeadhuntError(message) from None
    return ray, True


def _check_reachable(address: str) -> None:
    """Raise OSError if no server listens at the address. Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), timeout=CONNECT_TIMEOUT).close()
