"""Estimate training times, so that no trial is started that cannot finish before the deadline.

The relative cost of candidates is a fixed formula. The seconds per unit of cost are learned from finished trials, for
each encoder on its own.
"""

from __future__ import annotations

import statistics
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from typing import Any

from headhunt.modeling.architecture import EncoderShape

TUNED, FROZEN, SOLVED, BUILT = "tuned", "frozen", "solved", "built"
WINDOW = 101  # number of latest results that an estimate uses
EMBEDDINGS_COST = 0.4  # relative to all layers, with the complete vocabulary; less if few of its tokens occur
HEAD_COST = 0.03  # relative to all layers
SMART_FACTOR = 2.8  # relative to training without SMART
WINDOWS_FACTOR = 4.0  # windows, of which a text has at most eight, relative to cutting texts
TOKEN_HEAD_FACTOR = 1.3  # convolutions or blocks, relative to a head without them
WORKER_TIMEOUT, LEAST_WORKER_TIMEOUT = 10.0, 120.0  # times the expected seconds, and seconds


class RuntimeEstimates:
    """Estimated seconds of full training by candidate.

    Args:
        layers: Number of encoder layers.
        width: Width of the encoder.
        epoch_seconds: Estimated seconds of one epoch of all layers, until there are results; None if unknown.
        cost_of_encoder: Returns the cost of an encoder, relative to the one these seconds are of.
    """

    def __init__(
        self,
        layers: int,
        epoch_seconds: float | None = None,
        cost_of_encoder: Callable[[str], float] = lambda encoder: 1.0,
        width: int = 384,
    ) -> None:
        self._width = width
        self._layers, self._epoch_seconds, self._cost_of_encoder = layers, epoch_seconds, cost_of_encoder
        # Trials with a frozen encoder have their own ratios: loading and evaluation take most of their time.
        self._seconds_per_cost: defaultdict[tuple[str, str], deque[float]] = defaultdict(_window)
        self._tuning_seconds = _window()

    def add(self, spec: Mapping[str, Any], seconds: float) -> None:
        """Add the measured or extrapolated seconds of a candidate's full training."""
        group = _group(spec)
        self._seconds_per_cost[group].append(seconds / self._cost(spec))
        if group[1] in (TUNED, BUILT):
            self._tuning_seconds.append(seconds)

    def estimate(self, spec: Mapping[str, Any]) -> float | None:
        """Return the estimated seconds of a candidate's full training; None without similar results."""
        ratios = self._seconds_per_cost.get(_group(spec))
        if ratios:
            return statistics.median(ratios) * self._cost(spec)
        if self._epoch_seconds is None:
            return None
        return self._epoch_seconds * self._cost(spec) * self._cost_of_encoder(spec["encoder"])

    @property
    def median(self) -> float | None:
        """Median seconds of the latest trials that train an encoder: the time of a typical new trial."""
        return statistics.median(self._tuning_seconds) if self._tuning_seconds else None

    def _cost(self, spec: Mapping[str, Any]) -> float:
        """Return the training cost relative to one epoch of all layers."""
        head, recipe = spec["head"], spec["recipe"]
        freeze = recipe["freeze"]
        frozen = min(1.0, freeze / self._layers) if isinstance(freeze, int) else 0.0
        layers = {"none": 1 + EMBEDDINGS_COST, "all": 0.0}.get(freeze, 1 - frozen)
        factor = WINDOWS_FACTOR if head.get("windows") else 1.0
        if recipe.get("solver", "adamw") != "adamw":
            return HEAD_COST * factor
        factor *= SMART_FACTOR if recipe["smart"] else 1.0
        factor *= TOKEN_HEAD_FACTOR if head["convolutions"] or head["blocks"] else 1.0
        if shape := spec.get("shape"):
            factor *= EncoderShape(**shape).cost(self._layers, self._width)
        return float(recipe["epochs"] * (layers + HEAD_COST) * factor)


def worker_timeout(seconds: float | None) -> float | None:
    """Return when to give up on a worker, given how long its request should take; None if that is not known."""
    return None if seconds is None else max(LEAST_WORKER_TIMEOUT, WORKER_TIMEOUT * seconds)


def _window() -> deque[float]:
    return deque(maxlen=WINDOW)


def _group(spec: Mapping[str, Any]) -> tuple[str, str]:
    """Return the encoder and how it is used: seconds are comparable only within such a group."""
    recipe = spec["recipe"]
    if recipe.get("solver", "adamw") != "adamw":
        return spec["encoder"], SOLVED
    tuned = TUNED if spec.get("shape") is None else BUILT
    return spec["encoder"], FROZEN if recipe["freeze"] == "all" else tuned
