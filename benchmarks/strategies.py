"""Measure the cost at which each strategy gets within 1 % of the optimum of toy landscapes.

A landscape is a score over the leaves of the `default` space for one text, scaled like an accuracy. As in real
training, optional components switch groups of choices off, and choices depend on each other. Every penalty is zero at
one candidate, so the optimum is known. The score of a rung has noise and a bias against slow learners. Both are larger
for earlier rungs.

The cost is counted in full-training equivalents: a rung costs the examples that it adds. A search succeeds when the
trial with the best observed score of full training is, without noise, within 1 % of the optimum. Every search starts
with the plain head and without known recipes. Toy trials cost the same whatever they freeze. `bohb_vs_random` is the
worst landscape's ratio of the median cost of `bohb` to that of `random`. Runs in the `.jsonl` file beside the result
are not repeated: remove it after a change to the study.

    python benchmarks/strategies.py --out benchmarks/results/strategies.json
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import random
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from measure import finish, options

from headhunt.run.directory import RunDirectory
from headhunt.run.ledger import LedgerWriter
from headhunt.run.settings import SearchOptions
from headhunt.run.state import Outcome
from headhunt.spec import Space
from headhunt.study.budget import TimeBudget
from headhunt.study.candidates import Candidates
from headhunt.study.executors import InlineExecutor
from headhunt.study.loop import compare
from headhunt.study.registry import STRATEGIES
from headhunt.study.requests import EvaluateTrial
from headhunt.study.study import Study

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


TARGET = 0.99 * OPTIMUM
# Variants of bohb: only its rungs, and without its random proposals.
ABLATIONS = {"random + rungs": "random", "tpe + rungs, no random share": "bohb"}
# A proposal of these takes about a second: fraction of the seeds, and maximum cost.
SLOW = {"gp": (0.1, 40.0)}
OTHERS_SEED_FRACTION = 0.4  # of strategies other than bohb and random
MAX_TRIALS = 20_000

Job = tuple[str, str, int, float]  # strategy, landscape, seed, maximum cost


class EqualCostCandidates(Candidates):
    """Candidates that all cost the same, as toy trials do."""

    @staticmethod
    def trains_head_only(spec: Any) -> bool:
        """Return False: no toy trial is cheap."""
        return False


def cost_of_success(name: str, landscape: str, seed: int, max_cost: float) -> float:
    """Return the full-training equivalents until success; infinite if more than `max_cost`."""
    strategy = ABLATIONS.get(name, name)
    toy = Toy(landscape, seed)
    cost, best_score, success_cost = 0.0, -math.inf, math.inf

    def evaluate(request: EvaluateTrial) -> Outcome:
        nonlocal cost, best_score, success_cost
        below = max((fraction for fraction in study.ladder.fractions if fraction < request.fraction), default=0.0)
        bracket = study.state.trials[request.trial].bracket
        cost += request.fraction - (below if request.rung > bracket else 0.0)
        outcome = toy(request)
        if request.rung == study.ladder.top and outcome.score is not None and outcome.score > best_score:
            best_score = outcome.score
            if toy.true_score(request.spec.to_dict()) >= TARGET:
                success_cost = cost
                study.stop("success")
        if cost >= max_cost:
            study.stop("cost")
        return outcome

    memory = Path("/dev/shm")  # syncing a real disk for every toy trial would take most of the time
    with (
        tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder,
        LedgerWriter(RunDirectory(Path(folder))) as ledger,
    ):
        candidates = EqualCostCandidates(Space.load("default"), encoder="toy")
        options = {"strategy": strategy, "seed": seed, "known_recipes": False, "solved": False, "trials": MAX_TRIALS}
        study = Study(ledger, candidates, SearchOptions(**options, time=None), TimeBudget(None))
        if "no random share" in name:
            study.strategy.random_fraction = 0.0
        compare(study, InlineExecutor(evaluate))
    return success_cost


def run_job(job: Job) -> tuple[Job, float]:
    """Run one search and return it with its cost."""
    return job, cost_of_success(*job)


def markdown_table(rows: dict[str, dict[str, dict[str, Any]]], max_cost: float) -> str:
    """Return the comparison as Markdown."""
    limits = [f"{max_cost:.0f}", *(f"{name} {limit:.0f}" for name, (_, limit) in SLOW.items() if name in rows)]
    lines = [
        "# Strategies compared on toy landscapes",
        "",
        "Full-training equivalents until the best fully trained candidate is within 1 % of the optimum: median"
        f" (quartiles), and the number of successful seeds. A dash means more than the maximum: {', '.join(limits)}.",
        "",
        "| strategy | " + " | ".join(LANDSCAPES) + " |",
        "|---" * (len(LANDSCAPES) + 1) + "|",
    ]
    for name, row in rows.items():
        cells = [
            f"{_format(cell['median'])} ({_format(cell['low'])}–{_format(cell['high'])}), {cell['arrived']}"
            for cell in row.values()
        ]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _format(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f}"


def summarize(costs: list[float]) -> dict[str, Any]:
    """Return the quartiles of the costs, None if infinite, and the number of successes."""
    ordered = sorted(costs)
    quartiles = {
        "low": ordered[len(ordered) // 4],
        "median": median(ordered),
        "high": ordered[(3 * len(ordered)) // 4],
    }
    rounded = {key: round(value, 2) if math.isfinite(value) else None for key, value in quartiles.items()}
    return {**rounded, "arrived": f"{sum(map(math.isfinite, costs))} of {len(costs)}"}


def count_seeds(name: str, seeds: int) -> int:
    """Return the number of seeds of a strategy: all for the two that are compared, fewer for others."""
    fraction = SLOW[name][0] if name in SLOW else 1.0 if name in ("bohb", "random") else OTHERS_SEED_FRACTION
    return max(1, round(seeds * fraction))


def collect(args: argparse.Namespace) -> dict[str, dict[str, list[float]]]:
    """Run the searches that have no result yet, store them, and return all costs by strategy and landscape."""
    jobs: list[Job] = [
        (name, landscape, seed, min(args.most, SLOW[name][1]) if name in SLOW else args.most)
        for name in args.strategies
        for seed in range(count_seeds(name, args.seeds))
        for landscape in LANDSCAPES
    ]
    log = args.out.with_suffix(".jsonl") if args.out else None
    rows = [json.loads(line) for line in log.read_text().splitlines()] if log and log.is_file() else []
    costs: dict[Job, float] = {tuple(row[:4]): math.inf if row[4] is None else row[4] for row in rows}
    missing = sorted((job for job in jobs if job not in costs), key=lambda job: job[0] in SLOW)
    with multiprocessing.Pool(args.processes) as pool:
        for job, cost in pool.imap_unordered(run_job, missing):
            costs[job] = cost
            if log:
                log.parent.mkdir(parents=True, exist_ok=True)
                with log.open("a", encoding="utf-8") as file:
                    file.write(json.dumps([*job, round(cost, 3) if math.isfinite(cost) else None]) + "\n")
    by_strategy: dict[str, dict[str, list[float]]] = {
        name: {landscape: [] for landscape in LANDSCAPES} for name in args.strategies
    }
    for job in jobs:
        by_strategy[job[0]][job[1]].append(costs[job])
    return by_strategy


def compare_with_random(rows: dict[str, dict[str, dict[str, Any]]], max_cost: float) -> dict[str, float | None]:
    """Return the ratio of the median costs of bohb and random by landscape; empty if either did not run."""
    ratios: dict[str, float | None] = {}
    if {"bohb", "random"} <= rows.keys():
        for landscape in LANDSCAPES:
            bohb, baseline = rows["bohb"][landscape]["median"], rows["random"][landscape]["median"]
            # If the median random search does not succeed, its maximum cost is a lower bound.
            ratios[landscape] = None if bohb is None else round(bohb / (baseline or max_cost), 3)
    return ratios


def main() -> None:
    parser = options(__doc__, data=False, encoder=False)
    parser.add_argument("--seeds", type=int, default=50, help="seeds of bohb and random; others get 0.4 of it, gp 0.1")
    parser.add_argument("--most", type=float, default=400.0, help="maximum full-training equivalents per search")
    parser.add_argument("--strategies", nargs="*", default=[*STRATEGIES, *ABLATIONS], help="strategies to run")
    parser.add_argument("--processes", type=int, default=2, help="searches at a time")
    args = parser.parse_args()
    if args.quick:
        args.seeds, args.most, args.strategies = 2, 80.0, ["bohb", "random"]
    started = time.perf_counter()
    costs = collect(args)
    rows = {name: {landscape: summarize(values) for landscape, values in row.items()} for name, row in costs.items()}
    ratios = compare_with_random(rows, args.most)
    finite = [ratio for ratio in ratios.values() if ratio is not None]
    result = {
        "bohb_vs_random": max(finite) if finite and len(finite) == len(ratios) else None,
        "ratios": ratios,
        "equivalents": rows,
        "seeds": args.seeds,
        "most": args.most,
        "seconds": round(time.perf_counter() - started, 1),
    }
    text = markdown_table(rows, args.most)
    if args.out:
        args.out.with_suffix(".md").write_text(text, encoding="utf-8")
    print(text)
    finish(args, result)


if __name__ == "__main__":
    main()
