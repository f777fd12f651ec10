"""Commands that describe this installation and machine, and show and free disk space."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from headhunt.cli import options as opt
from headhunt.cli.output import show

EXTRAS = {
    "cluster": "ray",
    "excel": "openpyxl",
    "hub": "datasets",
    "lora": "peft",
    "onnx": "onnxscript",
    "serve": "fastapi",
    "sql": "sqlalchemy",
}
"""A package of each extra, by which it is recognized."""
LEAST_MEMORY, LEAST_DISK = 4.0, 10.0  # GB
CACHED = {
    "tables": "data files in the form of Arrow",
    "activations": "outputs of frozen layers",
    "exports": "models in the form of ONNX",
    "encoders": "encoders that were trained further",
}


def cache(
    clear: Annotated[bool, typer.Option("--clear", help="Remove everything in the cache.")] = False,
    json_: opt.Json = False,
) -> None:
    """Show the cache and its size, or clear it. Everything in it can be computed again."""
    from headhunt import storage

    root = storage.cache_root()
    removed = sum(storage.prune_cache(name, max_bytes=-1) for name in CACHED) if clear else 0
    sizes = {name: storage.directory_size(root / name) for name in CACHED}
    end = f"{root}: removed {removed / 1e6:,.1f} MB" if clear else f"{root}; clear it with  headhunt cache --clear"
    lines = [f"{size / 1e6:10,.1f} MB  {name}: {CACHED[name]}" for name, size in sizes.items()]
    show(json_, {"folder": str(root), "bytes": sizes, "removed": removed}, *lines, end)


def clean(run: opt.RunFolder, json_: opt.Json = False) -> None:
    """Remove the checkpoints of a run that nothing needs. Its models, scores and report stay.

    If the search is resumed, trials without a checkpoint are trained from the start.
    """
    from headhunt import storage
    from headhunt.run.directory import RunDirectory
    from headhunt.run.ledger import clean

    removed, left = clean(RunDirectory(run)), storage.directory_size(run)
    facts = {"run": str(run), "removed": removed, "bytes": left}
    show(json_, facts, f"{run}: removed {removed / 1e6:,.1f} MB; {left / 1e6:,.1f} MB are left")


def doctor(json_: opt.Json = False) -> None:
    """Show what a bug report needs, and what would make searches faster here."""
    import torch
    from huggingface_hub import constants

    from headhunt import storage
    from headhunt.engine.preloading import has_gpu
    from headhunt.run.model_info import versions
    from headhunt.study.worker_pool import available_memory

    hub, cache = Path(constants.HF_HUB_CACHE), storage.cache_root()
    place = next(folder for folder in (cache, *cache.parents) if folder.exists())
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "MPS" if has_gpu() else "none"
    facts: dict[str, Any] = {
        **versions(),
        "machine": f"{platform.platform()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads of torch",
        "GPU": gpu,
        "free memory": f"{available_memory() / 1e9:.1f} GB",
        "free disk": f"{shutil.disk_usage(place).free / 1e9:.1f} GB at {place}",
        "extras": ", ".join(name for name, package in EXTRAS.items() if find_spec(package)) or "none",
        "encoders in the cache": ", ".join(sorted(path.name[8:].replace("--", "/") for path in hub.glob("models--*")))
        or f"none in {hub}",
        "offline": constants.HF_HUB_OFFLINE,
    }
    advice = find_advice(gpu, available_memory() / 1e9, shutil.disk_usage(place).free / 1e9, torch.get_num_threads())
    lines = [*(f"{name}: {value}" for name, value in facts.items()), *(f"faster: {line}" for line in advice)]
    show(json_, {**facts, "advice": advice}, *lines)


def find_advice(gpu: str, memory: float, disk: float, threads: int) -> list[str]:
    """Return what would make searches faster on a machine.

    Args:
        gpu: Its GPU, or "none".
        memory: Free memory in GB.
        disk: Free disk space in GB.
        threads: Threads of torch.
    """
    unused = gpu == "none" and sys.platform == "linux" and Path("/dev/nvidiactl").exists()
    found = {
        "there is an NVIDIA GPU that torch cannot use; install the CUDA build of PyTorch": unused,
        "workers need memory; close other programs, or give --workers 1": memory < LEAST_MEMORY,
        "checkpoints need space; headhunt clean RUN and headhunt cache --clear free some": disk < LEAST_DISK,
        "OMP_NUM_THREADS leaves cores unused; unset it": threads < (os.cpu_count() or 1)
        and "OMP_NUM_THREADS" in os.environ,
    }
    return [advice for advice, holds in found.items() if holds]
