"""Start the workers of a search: processes of this machine, or actors on Ray."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace

from headhunt.engine.preloading import HERE, RUNNER, are_local, uses_gpu
from headhunt.errors import HeadhuntError
from headhunt.run.settings import SearchSettings
from headhunt.study import local_executor
from headhunt.study.executors import Executor
from headhunt.study.worker_pool import available_memory, default_workers

MEMORY_FRACTION = 0.8  # of the available memory, for all workers of this machine
ROWS_PER_SECOND, ROWS_PER_SECOND_OF_GPU = 1_000, 10_000  # more than small encoders read in the time of a search
MIN_ROWS_READ = 50_000


@dataclass(frozen=True)
class RunnerSettings:
    """The settings of a `TrialRunner`; plain data, so that they reach other machines."""

    directory: str
    """The run directory."""
    metric: str
    seed: int = 0
    """Decides the folds; the same for all candidates."""
    device: str | None = None
    precision: str = "auto"
    trust_remote_code: bool = False
    cache_activations: bool = True
    cache_bytes: int | None = None
    """Bytes for cached activations on this machine."""
    threads: int | None = None
    """Threads of this process; by default torch decides."""
    memory: int | None = None
    """Bytes this process may allocate beyond what it has now, where the system can enforce that."""
    max_latency: float | None = None
    """Milliseconds for one text in the median; slower candidates are not trained."""
    max_size: float | None = None
    """Megabytes of weights a candidate may have."""


def rows_within(seconds: float | None, limit: int | None, device: str | None, ray: str | None) -> int | None:
    """Return a number of rows that is more than a search can use in its time; None for all.

    Loading compares all rows with each other. With a million rows that takes longer than a short search.

    Args:
        seconds: The time of the search.
        limit: The number of training rows that the user asked for.
        device: The device of the search.
        ray: Address of a Ray cluster.
    """
    if seconds is None:
        return None
    fast = ray not in HERE or uses_gpu(device)
    rows = int(seconds * (ROWS_PER_SECOND_OF_GPU if fast else ROWS_PER_SECOND))
    return max(MIN_ROWS_READ, rows, 2 * (limit or 0))


def start_workers(settings: SearchSettings, runner: RunnerSettings, ray: str | None) -> Executor:
    """Start the workers of a search, and return when the first one is ready.

    Args:
        settings: The settings of the search.
        runner: The settings of each worker's runner.
        ray: Address of a Ray cluster, or "local" for Ray on this machine.
    """
    if not uses_gpu(settings.device):
        runner = replace(runner, threads=1)
    if ray in HERE:
        runner = replace(
            runner, memory=int(MEMORY_FRACTION * available_memory() / (settings.workers or default_workers()))
        )
    if settings.max_memory is not None:
        if ray in HERE and sys.platform != "linux":
            raise HeadhuntError(
                "needs Linux, where a process can be limited. Leave it out on this system.", "max_memory"
            )
        allowed = int(settings.max_memory * 1e6)
        runner = replace(runner, memory=min(runner.memory or allowed, allowed))
    if are_local(settings.workers, settings.device, ray):
        return local_executor.LocalExecutor(RUNNER, {"settings": runner}, workers=settings.workers)
    from headhunt.study.ray_executor import RayExecutor

    return RayExecutor(RUNNER, {"settings": runner}, workers=settings.workers, address=ray)
