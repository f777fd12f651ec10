"""Begin to load libraries before a search needs them, and decide whether its workers are processes of this machine.

This module loads hardly anything itself, so that a command can begin with it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from headhunt.study import fork_server

RUNNER = "headhunt.engine.trial_runner:TrialRunner"
HERE = (None, "local")  # addresses of this machine
GPU_DEVICES = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/kfd", "/dev/dxg")  # CUDA, ROCm, and WSL, on Linux


def preload_workers(workers: int | None, device: str | None, ray: str | None) -> None:
    """Begin to load the libraries of the workers in another process, unless they run on Ray."""
    if are_local(workers, device, ray):
        fork_server.preload(RUNNER)


def are_local(workers: int | None, device: str | None, ray: str | None) -> bool:
    """Return whether the workers are processes of this machine.

    Ray assigns GPUs, so it is used where there are any. A program that uses Ray itself gets the workers of its cluster.
    """
    library = sys.modules.get("ray")
    on_ray = bool(ray) or (library is not None and bool(library.is_initialized()))
    return workers != 0 and not on_ray and fork_server.is_available() and not uses_gpu(device)


def uses_gpu(device: str | None) -> bool:
    """Return whether a search with this device option uses a GPU."""
    return device != "cpu" and (device is not None or has_gpu())


def has_gpu() -> bool:
    """Return whether this machine has a GPU that torch can use."""
    if sys.platform == "linux" and not any(Path(device).exists() for device in GPU_DEVICES):
        return False  # loading torch, only to hear that, takes seconds
    import torch

    return torch.cuda.is_available() or torch.backends.mps.is_available()
