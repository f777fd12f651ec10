"""Select the device (CUDA, Apple's MPS or the CPU) and its numerical precision."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from headhunt.errors import ModelError


def pick_device(name: str | None = None) -> torch.device:
    """Return the named device, or the fastest available: CUDA, Apple's MPS, else the CPU.

    Raises:
        ModelError: If the named device does not exist.
    """
    if name:
        if not re.fullmatch(r"(cuda|mps|cpu)(:\d+)?", name):
            raise ModelError(f"must be cuda, mps or cpu; found {name!r}.", "device")
        try:
            torch.empty(0, device=name)
        except (RuntimeError, AssertionError) as error:
            reason = str(error).strip().splitlines()[0]
            raise ModelError(
                f"must be available; {name} is not on this machine ({reason}). Use cpu, or leave it out.", "device"
            ) from None
        return torch.device(name)
    if torch.cuda.is_available():
        return torch.device("cuda")
    if torch.backends.mps.is_available():
        return torch.device("mps")
    return torch.device("cpu")


def set_seed(seed: int, device: torch.device) -> None:
    """Seed the random numbers of a device.

    `torch.manual_seed` also records the stack for devices that are not there, which takes as long as a step of a head.
    """
    if device.type == "cpu":
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)


@contextmanager
def use_threads(count: int | None) -> Iterator[None]:
    """Compute with this number of threads on a CPU; None changes nothing."""
    threads = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        if count is not None:
            torch.set_num_threads(threads)


def sixteen_bit(device: torch.device) -> bool:
    """Return True if the device computes faster in bfloat16 than in float32."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported()
    if device.type == "cpu":
        flags: dict[str, bool] = getattr(torch.cpu, "get_capabilities", dict)()
        return bool(flags.get("amx_bf16") or flags.get("avx512_bf16"))
    return False


def autocast(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    """Return a context for the forward pass: bfloat16 if requested, or if "auto" finds it faster.

    Raises:
        ModelError: If the precision is not known.
    """
    if precision not in ("auto", "fp32", "bf16"):
        raise ModelError(f"must be auto, fp32 or bf16; found {precision!r}.", "precision")
    if precision == "bf16" or (precision == "auto" and sixteen_bit(device)):
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return nullcontext()
