"""Toy trainings for the study's benchmarks: landscapes over the real space, and workers in virtual time.

A landscape is a score in the shape of an accuracy over the leaves of the `default` space for one text: parts that are
off switch whole groups of choices out, choices depend on each other, and every penalty is zero at one known candidate,
so that the optimum is known by construction. What a rung shows is biased (slow learners look bad early) and noisy (more
so early), as in real training.
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

Spec = dict[str, Any]


def off(value: float, best: float, reach: float, most: float = 1.0) -> float:
    """0 at the best value, 1 at `reach` factors of e away, quadratic between, no more than `most`."""
    return min(most, (math.log(value / best) / reach) ** 2)


def ridge(spec: Spec) -> float:
    """Rates that depend on each other and on what is frozen; a hidden layer is wanted only above a mean."""
    head, recipe = spec["head"], spec["recipe"]
    freeze = {"none": 0, "embeddings": 0.5, "all": 5}.get(recipe["freeze"], recipe["freeze"])
    best_rate = 6e-5 * math.exp(0.35 * freeze)  # the less is trained, the faster it should be
    loss = 0.10 * off(recipe["learning_rate"], best_rate, 1.6)
    loss += 0.04 * off(recipe["learning_rate"] * recipe["head_lr_multiplier"], 1.2e-3, 2.5)
    loss += {"none": 0.02, "embeddings": 0.01, 2: 0.0, 3: 0.002, 4: 0.015, "all": 0.12}[recipe["freeze"]]
    pooling = {"attention": 0.0, "mean": 0.002, "mean_max": 0.006, "max": 0.02, "routing": 0.02, "pooler": 0.03}
    loss += pooling.get(head["pooling"], 0.04)
    if head["pooling"] in ("attention", "mean", "mean_max"):
        loss += 0.006 if head["mlp"] is None else 0.0015 * (head["mlp"]["layers"] - 1)
    elif head["mlp"] is not None:
        loss += 0.01
    loss += 0.015 * (head["blocks"] is not None) + 0.004 * (head["convolutions"] is not None)
    return loss + 0.03 * (head["dropout"] - 0.15) ** 2 / 0.06


def valley(spec: Spec) -> float:
    """The best lies behind a switch: convolutions help only if they are the right ones, and most are not."""
    head, recipe = spec["head"], spec["recipe"]
    conv = head["convolutions"]
    if conv is None:
        loss = 0.022  # a broad plateau that is easy to find
    else:
        loss = {3: 0.004, 5: 0.0, 7: 0.012}[conv["kernel"]] + {64: 0.015, 128: 0.004, 192: 0.0, 256: 0.002}[
            conv["channels"]
        ]
        loss += 0.02 * (not conv["skip"] and conv["layers"] == 2) + 0.025 * (head["blocks"] is not None)
        loss += {"max": 0.0, "mean_max": 0.001, "attention": 0.004}.get(head["pooling"], 0.02)
    loss += 0.01 * (head["blocks"] is not None)
    loss += 0.08 * off(recipe["learning_rate"], 1.5e-4, 1.5)
    loss += {"all": 0.10, 4: 0.006, "none": 0.004}.get(recipe["freeze"], 0.0)
    loss += 0.004 * (recipe["schedule"] == "constant") + 0.003 * (recipe["label_smoothing"] == 0.1)
    return loss + 0.004 * (recipe["batch_size"] == 32)


def recipes(spec: Spec) -> float:
    """The head hardly matters, the recipe does; too fast a rate without warm-up fails altogether."""
    head, recipe = spec["head"], spec["recipe"]
    loss = 0.12 * off(recipe["learning_rate"], 2.2e-4, 1.4)
    if recipe["learning_rate"] > 3.2e-4 and recipe["warmup"] == 0.0 and recipe["freeze"] in ("none", "embeddings"):
        return 10.0
    smart = recipe["smart"]
    loss += 0.012 if smart is None else 0.012 * off(smart["weight"], 4.0, 1.2, 2.0)
    loss += {"cosine": 0.0, "linear": 0.001, "slanted": 0.004, "constant": 0.02}[recipe["schedule"]]
    loss += {0.0: 0.01, 0.06: 0.0, 0.1: 0.0, 0.2: 0.003}[recipe["warmup"]]
    loss += {0.0: 0.006, 0.05: 0.0, 0.1: 0.002}[recipe["label_smoothing"]]
    loss += {1.0: 0.008, 0.95: 0.0, 0.9: 0.002, 0.8: 0.015}[recipe["layer_decay"]]
    loss += {"all": 0.09, "none": 0.008, 4: 0.01}.get(recipe["freeze"], 0.0)
    loss += {None: 0.0, 0.0: 0.008, 0.2: 0.01}[recipe["encoder_dropout"]]
    return loss + 0.002 * (head["pooling"] in ("cls", "pooler")) + 0.004 * recipe["class_weights"]


def crowd(spec: Spec) -> float:
    """Many weak effects and none that decides."""
    head, recipe = spec["head"], spec["recipe"]
    loss = {1: 0.006, 2: 0.003, 4: 0.0, "mix": 0.002}[head["layers"]]
    loss += 0.008 * (head["convolutions"] is not None) + 0.006 * (head["mlp"] is not None)
    loss += 0.0 if head["blocks"] is not None and head["blocks"]["heads"] == 4 else 0.004
    loss += {"mean": 0.0, "attention": 0.002, "routing": 0.004}.get(head["pooling"], 0.012)
    loss += 0.05 * abs(head["dropout"] - 0.1)
    loss += 0.03 * off(recipe["learning_rate"], 1e-4, 1.2) + 0.008 * off(recipe["head_lr_multiplier"], 6.0, 1.5)
    loss += {0.0: 0.003, 1e-5: 0.0, 1e-4: 0.0, 1e-2: 0.003}[recipe["weight_decay"]]
    loss += {"none": 0.004, "embeddings": 0.002, "all": 0.04}.get(recipe["freeze"], 0.0)
    loss += 0.003 * (recipe["batch_size"] == 32) + 0.003 * recipe["class_weights"]
    return loss + 0.004 * (recipe["smart"] is None) + 0.003 * (recipe["label_smoothing"] == 0.0)


LANDSCAPES: dict[str, Callable[[Spec], float]] = {"ridge": ridge, "valley": valley, "recipes": recipes, "crowd": crowd}
OPTIMUM = 0.9
STEEPNESS = 0.5  # puts one random candidate in 100 to 500 within 1 % of the optimum


def slow(spec: Spec) -> float:
    """How much a candidate is underrated early, 0 to 1: low rates, large heads, much regularisation."""
    head, recipe = spec["head"], spec["recipe"]
    parts = sum(head[part] is not None for part in ("convolutions", "blocks", "mlp"))
    late = 0.45 * (1 - min(1.0, math.log(recipe["learning_rate"] / 2e-5) / math.log(25)))
    return late + 0.1 * parts + 0.15 * (recipe["smart"] is not None) + 0.25 * head["dropout"]


@dataclass(frozen=True)
class Toy:
    """An evaluate function: a landscape seen through bias and noise.

    Attributes:
        landscape: A name of LANDSCAPES.
        seed: Of the noise.
        noise: Standard deviation of the score of a full training; √(1/fraction) times as much earlier, up to thrice.
        bias: What the slowest learner loses at the start.
    """

    landscape: str
    seed: int = 0
    noise: float = 0.004
    bias: float = 0.12

    def true(self, spec: Spec) -> float:
        """The score of full training without noise."""
        return max(0.5, OPTIMUM - STEEPNESS * LANDSCAPES[self.landscape](spec))

    def __call__(self, request: Request) -> Outcome:
        """What a worker would answer."""
        true = self.true(request.spec)
        if true <= 0.5:
            return Outcome("collapsed", None, request.fraction)
        rng = random.Random(f"{self.seed}/{request.seed}/{request.rung}")
        shown = true - self.bias * (1 - request.fraction) ** 2 * (0.3 + slow(request.spec))
        shown += rng.gauss(0, self.noise) * min(3.0, math.sqrt(1 / max(request.fraction, 1 / 9)))
        return Outcome("ok", shown, request.fraction)


class Virtual:
    """Workers in virtual time: a training takes no time here, but the driver's own time counts.

    Args:
        workers: How many.
        evaluate: The toy training; `seconds` of its outcome is the virtual time it takes.
    """

    def __init__(self, workers: int, evaluate: Callable[[Request], Outcome]) -> None:
        self.workers = workers
        self.now = 0.0
        self.busy = 0.0
        self.turns: list[tuple[float, float, int]] = []  # driver seconds, those on the processor, requests of each turn
        self._evaluate = evaluate
        self._new: list[Request] = []
        self._under_way: list[tuple[float, int, Request, Outcome]] = []
        self._count = 0
        self._since, self._since_cpu = time.perf_counter(), time.process_time()

    def submit(self, request: Request) -> None:
        """Hands a request to a free worker."""
        self._new.append(request)

    def wait(self, timeout: float | None = None) -> list[tuple[Request, Outcome]]:
        """Moves the clock to the next end, and gives all that had ended while the driver was thinking."""
        spent = time.perf_counter() - self._since
        self.turns.append((spent, time.process_time() - self._since_cpu, len(self._new)))
        self.now += spent
        for request in self._new:
            outcome = self._evaluate(request)
            self._count += 1
            self.busy += outcome.seconds
            heapq.heappush(self._under_way, (self.now + outcome.seconds, self._count, request, outcome))
        self._new = []
        ended = []
        if self._under_way:
            self.now = max(self.now, self._under_way[0][0])
        while self._under_way and self._under_way[0][0] <= self.now:
            *_, request, outcome = heapq.heappop(self._under_way)
            ended.append((request, outcome))
        self._since, self._since_cpu = time.perf_counter(), time.process_time()
        return ended

    def stop(self) -> None:
        """Nothing is really running."""
