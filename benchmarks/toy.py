"""Toy evaluation functions for the study's benchmarks, and an executor in virtual time.

A landscape is a score over the leaves of the `default` space for one text, scaled like an accuracy. As in real
training, optional components switch groups of choices off, and choices depend on each other. Every penalty is zero at
one candidate, so the optimum is known. The score of a rung has noise and a bias against slow learners. Both are larger
for earlier rungs.
"""

from __future__ import annotations

import heapq
import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headhunt.run.state import Outcome
from headhunt.study.requests import EvaluateTrial

SpecData = dict[str, Any]  # a spec as plain data


def log_penalty(value: float, best: float, width: float, maximum: float = 1.0) -> float:
    """Return a quadratic penalty in log space: 0 at the best value, 1 at `width` factors of e, at most `maximum`."""
    return min(maximum, (math.log(value / best) / width) ** 2)


def ridge(spec: SpecData) -> float:
    """Return a loss whose best learning rate depends on the freeze, and whose MLP helps only some poolings."""
    head, recipe = spec["head"], spec["recipe"]
    freeze = {"none": 0, "embeddings": 0.5, "all": 5}.get(recipe["freeze"], recipe["freeze"])
    best_rate = 6e-5 * math.exp(0.35 * freeze)  # fewer trained layers need a higher rate
    loss = 0.10 * log_penalty(recipe["learning_rate"], best_rate, 1.6)
    loss += 0.04 * log_penalty(recipe["learning_rate"] * recipe["head_lr_multiplier"], 1.2e-3, 2.5)
    loss += {"none": 0.02, "embeddings": 0.01, 2: 0.0, 3: 0.002, 4: 0.015, "all": 0.12}[recipe["freeze"]]
    pooling = {"attention": 0.0, "mean": 0.002, "mean_max": 0.006, "max": 0.02, "routing": 0.02, "pooler": 0.03}
    loss += pooling.get(head["pooling"], 0.04)
    if head["pooling"] in ("attention", "mean", "mean_max"):
        loss += 0.006 if head["mlp"] is None else 0.0015 * (head["mlp"]["layers"] - 1)
    elif head["mlp"] is not None:
        loss += 0.01
    loss += 0.015 * (head["blocks"] is not None) + 0.004 * (head["convolutions"] is not None)
    return loss + 0.03 * (head["dropout"] - 0.15) ** 2 / 0.06


def valley(spec: SpecData) -> float:
    """Return a loss whose optimum needs convolutions, of which most settings hurt."""
    head, recipe = spec["head"], spec["recipe"]
    conv = head["convolutions"]
    if conv is None:
        loss = 0.022  # a wide local optimum
    else:
        loss = {3: 0.004, 5: 0.0, 7: 0.012}[conv["kernel"]] + {64: 0.015, 128: 0.004, 192: 0.0, 256: 0.002}[
            conv["channels"]
        ]
        loss += 0.02 * (not conv["skip"] and conv["layers"] == 2) + 0.025 * (head["blocks"] is not None)
        loss += {"max": 0.0, "mean_max": 0.001, "attention": 0.004}.get(head["pooling"], 0.02)
    loss += 0.01 * (head["blocks"] is not None)
    loss += 0.08 * log_penalty(recipe["learning_rate"], 1.5e-4, 1.5)
    loss += {"all": 0.10, 4: 0.006, "none": 0.004}.get(recipe["freeze"], 0.0)
    loss += 0.004 * (recipe["schedule"] == "constant") + 0.003 * (recipe["label_smoothing"] == 0.1)
    return loss + 0.004 * (recipe["batch_size"] == 32)


def recipes(spec: SpecData) -> float:
    """Return a loss that depends mostly on the recipe; a high learning rate without warmup fails."""
    head, recipe = spec["head"], spec["recipe"]
    loss = 0.12 * log_penalty(recipe["learning_rate"], 2.2e-4, 1.4)
    if recipe["learning_rate"] > 3.2e-4 and recipe["warmup"] == 0.0 and recipe["freeze"] in ("none", "embeddings"):
        return 10.0
    smart = recipe["smart"]
    loss += 0.012 if smart is None else 0.012 * log_penalty(smart["weight"], 4.0, 1.2, 2.0)
    loss += {"cosine": 0.0, "linear": 0.001, "slanted": 0.004, "constant": 0.02}[recipe["schedule"]]
    loss += {0.0: 0.01, 0.06: 0.0, 0.1: 0.0, 0.2: 0.003}[recipe["warmup"]]
    loss += {0.0: 0.006, 0.05: 0.0, 0.1: 0.002}[recipe["label_smoothing"]]
    loss += {1.0: 0.008, 0.95: 0.0, 0.9: 0.002, 0.8: 0.015}[recipe["layer_decay"]]
    loss += {"all": 0.09, "none": 0.008, 4: 0.01}.get(recipe["freeze"], 0.0)
    loss += {None: 0.0, 0.0: 0.008, 0.2: 0.01}[recipe["encoder_dropout"]]
    return loss + 0.002 * (head["pooling"] in ("cls", "pooler")) + 0.004 * recipe["class_weights"]


def crowd(spec: SpecData) -> float:
    """Return a loss with many weak effects."""
    head, recipe = spec["head"], spec["recipe"]
    loss = {1: 0.006, 2: 0.003, 4: 0.0, "mix": 0.002}[head["layers"]]
    loss += 0.008 * (head["convolutions"] is not None) + 0.006 * (head["mlp"] is not None)
    loss += 0.0 if head["blocks"] is not None and head["blocks"]["heads"] == 4 else 0.004
    loss += {"mean": 0.0, "attention": 0.002, "routing": 0.004}.get(head["pooling"], 0.012)
    loss += 0.05 * abs(head["dropout"] - 0.1)
    loss += 0.03 * log_penalty(recipe["learning_rate"], 1e-4, 1.2) + 0.008 * log_penalty(
        recipe["head_lr_multiplier"], 6.0, 1.5
    )
    loss += {0.0: 0.003, 1e-5: 0.0, 1e-4: 0.0, 1e-2: 0.003}[recipe["weight_decay"]]
    loss += {"none": 0.004, "embeddings": 0.002, "all": 0.04}.get(recipe["freeze"], 0.0)
    loss += 0.003 * (recipe["batch_size"] == 32) + 0.003 * recipe["class_weights"]
    return loss + 0.004 * (recipe["smart"] is None) + 0.003 * (recipe["label_smoothing"] == 0.0)


LANDSCAPES: dict[str, Callable[[SpecData], float]] = {
    "ridge": ridge,
    "valley": valley,
    "recipes": recipes,
    "crowd": crowd,
}
OPTIMUM = 0.9
STEEPNESS = 0.5  # one random candidate in 100 to 500 is within 1 % of the optimum
MIN_SCORE = 0.5  # score of a training run that collapsed


def slowness(spec: SpecData) -> float:
    """Return how slowly a candidate learns, 0 to 1: low learning rate, large head, strong regularization."""
    head, recipe = spec["head"], spec["recipe"]
    components = sum(head[name] is not None for name in ("convolutions", "blocks", "mlp"))
    low_rate = 0.45 * (1 - min(1.0, math.log(recipe["learning_rate"] / 2e-5) / math.log(25)))
    return low_rate + 0.1 * components + 0.15 * (recipe["smart"] is not None) + 0.25 * head["dropout"]


@dataclass(frozen=True)
class Toy:
    """An evaluation function: a landscape with bias and noise.

    Attributes:
        landscape: A key of LANDSCAPES.
        seed: Random seed of the noise.
        noise: Standard deviation of the score of full training. Partial training has √(1/fraction) times as much, at
            most three times.
        bias: Loss of score of the slowest learner at the start of training.
    """

    landscape: str
    seed: int = 0
    noise: float = 0.004
    bias: float = 0.12

    def true_score(self, spec: SpecData) -> float:
        """Return the score of full training without noise."""
        return max(MIN_SCORE, OPTIMUM - STEEPNESS * LANDSCAPES[self.landscape](spec))

    def __call__(self, request: EvaluateTrial) -> Outcome:
        """Return the outcome of a request."""
        spec = request.spec.to_dict()
        true_score = self.true_score(spec)
        if true_score <= MIN_SCORE:
            return Outcome("collapsed", None, request.fraction)
        rng = random.Random(f"{self.seed}/{request.seed}/{request.rung}")
        score = true_score - self.bias * (1 - request.fraction) ** 2 * (0.3 + slowness(spec))
        score += rng.gauss(0, self.noise) * min(3.0, math.sqrt(1 / max(request.fraction, 1 / 9)))
        return Outcome("ok", score, request.fraction)


class VirtualExecutor:
    """An executor in virtual time: training takes no real time, but the study's own time counts.

    Args:
        workers: Number of workers.
        evaluate: Toy evaluation. The `seconds` of its outcome are its virtual time.
    """

    threads_alone = None

    def __init__(self, workers: int, evaluate: Callable[[EvaluateTrial], Outcome]) -> None:
        self.workers = workers
        self.now = 0.0
        self.busy = 0.0
        self.turns: list[tuple[float, float, int]] = []  # study seconds, CPU seconds, and requests per turn
        self._evaluate = evaluate
        self._submitted: list[EvaluateTrial] = []
        self._running: list[tuple[float, int, EvaluateTrial, Outcome]] = []
        self._count = 0
        self._turn_started, self._turn_started_cpu = time.perf_counter(), time.process_time()

    def submit(self, request: EvaluateTrial) -> None:
        """Queue a request for a free worker."""
        self._submitted.append(request)

    def wait(self, timeout: float | None = None) -> list[tuple[EvaluateTrial, Outcome]]:
        """Move the clock to the next finished request, and return all that finished during the study's turn."""
        spent = time.perf_counter() - self._turn_started
        self.turns.append((spent, time.process_time() - self._turn_started_cpu, len(self._submitted)))
        self.now += spent
        for request in self._submitted:
            outcome = self._evaluate(request)
            self._count += 1
            self.busy += outcome.seconds
            heapq.heappush(self._running, (self.now + outcome.seconds, self._count, request, outcome))
        self._submitted = []
        finished = []
        if self._running:
            self.now = max(self.now, self._running[0][0])
        while self._running and self._running[0][0] <= self.now:
            *_, request, outcome = heapq.heappop(self._running)
            finished.append((request, outcome))
        self._turn_started, self._turn_started_cpu = time.perf_counter(), time.process_time()
        return finished

    def stop(self) -> None:
        """Do nothing: no request runs in real time."""

    def close(self) -> None:
        """Do nothing: there is nothing to release."""
