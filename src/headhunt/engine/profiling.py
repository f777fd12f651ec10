"""Measure the cost of using a model: latency on this device (one thread of a CPU), size and FLOPs."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from headhunt.predictor import Predictor
from headhunt.run.results import Latency, ModelCost
from headhunt.training.device import use_threads

BATCH_SIZES = (1, 32)
WARM_UP = 3  # calls that are not counted
QUICK_REPEATS = 12  # calls when a candidate is checked against the limits
MEASURED_SECONDS, LEAST_REPEATS = 2.0, 5  # no more calls after this time, but at least so many


class OverLimitError(Exception):
    """A candidate is slower or larger than allowed."""


class CostCheck:
    """Checks candidates against the limits on latency and size; each architecture is measured once.

    Args:
        max_latency: Milliseconds for one text in the median; None is no limit.
        max_size: Megabytes of weights; None is no limit.
    """

    def __init__(self, max_latency: float | None, max_size: float | None) -> None:
        self._max_latency, self._max_size = max_latency, max_size
        self._measured: dict[Hashable, dict[str, float]] = {}

    @property
    def limited(self) -> bool:
        """True if there is any limit."""
        return self._max_latency is not None or self._max_size is not None

    def __call__(
        self,
        key: Hashable,
        build: Callable[[], Predictor],
        texts: Sequence[str],
        texts_b: Sequence[str] | None,
        tasks: np.ndarray | None = None,
    ) -> dict[str, float]:
        """Return latency and size.

        Args:
            key: Equal for candidates of equal cost.
            build: Returns the model.
            texts: Typical texts.
            texts_b: Second texts of pairs.
            tasks: Number of each row's task, if there are several.

        Raises:
            OverLimitError: If the model is slower or larger than allowed.
        """
        if key not in self._measured:
            predictor = build()
            timing = latency(predictor, texts, texts_b, 1, QUICK_REPEATS, tasks)
            self._measured[key] = {"latency_ms": timing.p50_ms, "megabytes": _megabytes(_parameters(predictor))}
        cost = self._measured[key]
        if self._max_latency is not None and cost["latency_ms"] > self._max_latency:
            raise OverLimitError(f"takes {cost['latency_ms']:.1f} ms for a text; {self._max_latency:g} ms are allowed")
        if self._max_size is not None and cost["megabytes"] > self._max_size:
            raise OverLimitError(f"has {cost['megabytes']:.1f} MB of weights; {self._max_size:g} MB are allowed")
        return cost


def measure_cost(
    predictor: Predictor,
    texts: Sequence[str],
    texts_b: Sequence[str] | None,
    tasks: np.ndarray | None = None,
    repeats: int = 60,
) -> ModelCost:
    """Measure latency from text to prediction at batch sizes 1 and 32, size, and FLOPs of a text of median length.

    Args:
        predictor: The model, on the device it will run on.
        texts: Typical texts.
        texts_b: Second texts of pairs.
        tasks: Number of each row's task, if there are several.
        repeats: Calls per batch size.
    """
    parameters = _parameters(predictor)
    return ModelCost(
        latency={str(size): latency(predictor, texts, texts_b, size, repeats, tasks) for size in BATCH_SIZES},
        parameters=parameters,
        megabytes=_megabytes(parameters),
        gflops=round(_flops(predictor, texts, texts_b, tasks) / 1e9, 4),
        device=str(predictor.device),
    )


def latency(
    predictor: Predictor,
    texts: Sequence[str],
    texts_b: Sequence[str] | None,
    batch_size: int,
    repeats: int,
    tasks: np.ndarray | None = None,
) -> Latency:
    """Return milliseconds per call, median and 99th percentile; fewer calls are made if they take long."""
    seconds: list[float] = []
    by_length = np.argsort([len(text) for text in texts], kind="stable")
    predictor.model.eval()
    # The cost of a text must not depend on how busy the other cores are.
    with use_threads(1 if predictor.device.type == "cpu" else None):
        for call in range(repeats + WARM_UP):
            if call >= LEAST_REPEATS + WARM_UP and sum(seconds) > MEASURED_SECONDS:
                break
            # Multiples of the golden ratio are spread evenly: few calls get as many short and long texts as many do.
            spread = (np.arange(call * batch_size, (call + 1) * batch_size) + 0.5) * 0.6180339887 % 1.0
            rows = by_length[(spread * len(texts)).astype(int)].tolist()
            second = None if texts_b is None else [texts_b[i] for i in rows]
            began = time.perf_counter()
            of_rows = None if tasks is None else tasks[rows]
            predictor.outputs(
                [texts[i] for i in rows], second, of_rows
            )  # returns numpy arrays, so the device has finished
            seconds.append(time.perf_counter() - began)
    p50, p99 = np.quantile(seconds[WARM_UP:], [0.5, 0.99]) * 1000
    return Latency(round(float(p50), 3), round(float(p99), 3))


def _parameters(predictor: Predictor) -> int:
    return sum(parameter.numel() for parameter in predictor.model.parameters())


def _megabytes(parameters: int) -> float:
    return round(parameters * 4 / 1e6, 2)


def _flops(predictor: Predictor, texts: Sequence[str], texts_b: Sequence[str] | None, tasks: np.ndarray | None) -> int:
    """Count the operations of one forward pass over one text of median length."""
    lengths = [len(text) for text in texts]
    median = int(np.argsort(lengths)[len(lengths) // 2])
    with torch.inference_mode(), FlopCounterMode(display=False) as counter:
        second = None if texts_b is None else [texts_b[median]]
        predictor.outputs([texts[median]], second, None if tasks is None else tasks[[median]])
    return int(counter.get_total_flops())
