"""Start the workers of a search: processes of this machine, or actors on Ray."""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING

from headhunt.engine.options import has_gpu
from headhunt.run.settings import SearchSettings
from headhunt.study import local_executor
from headhunt.study.executors import Executor
from headhunt.study.worker_pool import available_memory, default_workers

if TYPE_CHECKING:
    from headhunt.engine.worker_data import RunnerSettings

RUNNER = "headhunt.engine.trial_runner:TrialRunner"
HERE = (None, "local")  # addresses of this machine
MEMORY_FRACTION = 0.8  # of the available memory, for all workers of this machine
ROWS_PER_SECOND, ROWS_PER_SECOND_OF_GPU = 1_000, 10_000  # more than small encoders read in the time of a search
MIN_ROWS_READ = 50_000


def preload_workers(workers: int | None, device: str | None, ray: str | None) -> None:
    """Begin to load the libraries of the workers in another process, unless they run on Ray."""
    if _are_local(workers, device, ray):
        local_executor.preload(RUNNER)


def load_libraries() -> None:
    """Load torch and transformers in this process. It takes seconds, so wrong data should be refused before."""
    with local_executor.without_collection():
        import_module("headhunt.engine.assembly")


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
    fast = ray not in HERE or _uses_gpu(device)
    rows = int(seconds * (ROWS_PER_SECOND_OF_GPU if fast else ROWS_PER_SECOND))
    return max(MIN_ROWS_READ, rows, 2 * (limit or 0))


def start_workers(settings: SearchSettings, runner: RunnerSettings, ray: str | None) -> Executor:
    """Start the workers of a search, and return when the first one is ready.

    Args:
        settings: The settings of the search.
        runner: The settings of each worker's runner.
        ray: Address of a Ray cluster, or "local" for Ray on this machine.
    """
    if not _uses_gpu(settings.device):
        runner = replace(runner, threads=1)
    if ray in HERE:
        runner = replace(
            runner, memory=int(MEMORY_FRACTION * available_memory() / (settings.workers or default_workers()))
        )
    if settings.max_memory is not None:
        allowed = int(settings.max_memory * 1e6)
        runner = replace(runner, memory=min(runner.memory or allowed, allowed))
    if _are_local(settings.workers, settings.device, ray):
        return local_executor.LocalExecutor(RUNNER, {"settings": runner}, workers=settings.workers)
    from headhunt.study.ray_executor import RayExecutor

    return RayExecutor(RUNNER, {"settings": runner}, workers=settings.workers, address=ray)


def starts_ray(settings: SearchSettings, ray: str | None) -> bool:
    """Return whether Ray must be started on this machine."""
    return settings.workers != 0 and ray in HERE and not _are_local(settings.workers, settings.device, ray)


def _are_local(workers: int | None, device: str | None, ray: str | None) -> bool:
    """Return whether the workers are processes of this machine. Ray assigns GPUs, so it is used where there are any."""
    if workers == 0 or ray or _is_connected_to_ray() or not local_executor.is_available():
        return False
    return not _uses_gpu(device)


def _uses_gpu(device: str | None) -> bool:
    return device != "cpu" and (device is not None or has_gpu())


def _is_connected_to_ray() -> bool:
    """Return whether the user's program uses Ray itself; a search then uses the same cluster."""
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())
