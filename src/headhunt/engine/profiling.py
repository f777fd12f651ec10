"""What a model costs to use: seconds per text on this device (one thread of a CPU), bytes, operations."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from headhunt.predictor import Predictor

BATCHES = (1, 32)
WARM = 3  # calls that are not counted


def measure_cost(
    predictor: Predictor, texts: Sequence[str], texts_b: Sequence[str] | None, repeats: int = 60
) -> dict[str, Any]:
    """Latency from text to answer at batch 1 and 32, size and FLOPs of one text of usual length.

    Args:
        predictor: The model, on the device it will run on.
        texts: Texts as it will get them.
        texts_b: Second texts of pairs.
        repeats: Calls per batch size.
    """
    parameters = sum(parameter.numel() for parameter in predictor.model.parameters())
    return {
        "latency": {str(batch): latency(predictor, texts, texts_b, batch, repeats) for batch in BATCHES},
        "parameters": parameters,
        "megabytes": round(parameters * 4 / 1e6, 2),
        "gflops": round(_flops(predictor, texts, texts_b) / 1e9, 4),
        "device": str(predictor.device),
    }


@contextmanager
def one_thread(device: torch.device) -> Iterator[None]:
    """On a CPU, one thread: what a text costs must not depend on how busy the other cores are."""
    threads = torch.get_num_threads()
    if device.type == "cpu":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def latency(
    predictor: Predictor, texts: Sequence[str], texts_b: Sequence[str] | None, batch: int, repeats: int
) -> dict[str, float]:
    """Milliseconds per call, median and 99th percentile."""
    taken = []
    by_length = np.argsort([len(text) for text in texts], kind="stable")
    predictor.model.eval()
    with one_thread(predictor.device):
        for turn in range(repeats + WARM):
            # Multiples of the golden ratio fall evenly: few calls meet as many short and long texts as many calls do.
            spread = (np.arange(turn * batch, (turn + 1) * batch) + 0.5) * 0.6180339887 % 1.0
            rows = by_length[(spread * len(texts)).astype(int)].tolist()
            second = None if texts_b is None else [texts_b[i] for i in rows]
            began = time.perf_counter()
            predictor.outputs([texts[i] for i in rows], second)  # gives numpy arrays, so the device has finished
            taken.append(time.perf_counter() - began)
    p50, p99 = np.quantile(taken[WARM:], [0.5, 0.99]) * 1000
    return {"p50_ms": round(float(p50), 3), "p99_ms": round(float(p99), 3)}


def _flops(predictor: Predictor, texts: Sequence[str], texts_b: Sequence[str] | None) -> int:
    """Operations of one forward pass over one text of median length."""
    lengths = [len(text) for text in texts]
    usual = int(np.argsort(lengths)[len(lengths) // 2])
    with torch.inference_mode(), FlopCounterMode(display=False) as counter:
        predictor.outputs([texts[usual]], None if texts_b is None else [texts_b[usual]])
    return int(counter.get_total_flops())
