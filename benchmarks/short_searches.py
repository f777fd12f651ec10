"""Measure how good the best candidate of short searches is, for every strategy, on toy landscapes.

A short search has time for few full training runs. The cost of a trial is that of its runtime estimate, relative to
fine-tuning all layers: a rung costs what it adds, and a frozen encoder costs next to nothing. Every search begins with
the plain head and, unless `--no-known-recipes` is given, with the known recipes; all have the same rungs. The regret
after a cost is the distance to the optimum of the trial with the best observed score of full training, without noise,
in percentage points.

Runs in the `.jsonl` file beside the result are not repeated. `--label` tells apart runs of another checkout, whose
package is found through PYTHONPATH.

    python benchmarks/short_searches.py --out benchmarks/results/short_searches.json
"""

from __future__ import annotations

import json
import math
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from measure import finish, options
from toy import LANDSCAPES, OPTIMUM, Toy

from headhunt.run.directory import RunDirectory
from headhunt.run.ledger import LedgerWriter
from headhunt.run.state import Outcome
from headhunt.spec import Space
from headhunt.study.budget import Limits
from headhunt.study.candidates import Candidates
from headhunt.study.executors import InlineExecutor
from headhunt.study.ladder import Ladder
from headhunt.study.registry import STRATEGIES
from headhunt.study.requests import EvaluateTrial
from headhunt.study.runtime_estimates import RuntimeEstimates
from headhunt.study.study import Study

COSTS = (4.0, 6.0, 8.0, 12.0, 16.0, 24.0)  # the plain head and the known recipes take about 4
SLOW = ("gp",)  # a proposal takes about a second
REFERENCE = "bohb"
SAMPLES = 5_000
MAX_TRIALS = 2_000


def regrets(strategy: str, landscape: str, seed: int, known: bool) -> list[float]:
    """Run one search; return its regret after each of the costs, in percentage points."""
    toy, estimates = Toy(landscape, seed), RuntimeEstimates(6, epoch_seconds=1.0)
    cost, best_score = 0.0, -math.inf
    curve: list[tuple[float, float]] = []

    def evaluate(request: EvaluateTrial) -> Outcome:
        nonlocal cost, best_score
        spec = request.spec.to_dict()
        below = max((fraction for fraction in study.ladder.fractions if fraction < request.fraction), default=0.0)
        continued = request.rung > study.state.trials[request.trial].bracket
        seconds = estimates.estimate(spec) or 0.0
        cost += seconds / spec["recipe"]["epochs"] * (request.fraction - (below if continued else 0.0))
        outcome = toy(request)
        if request.rung == study.ladder.top and outcome.score is not None and outcome.score > best_score:
            best_score = outcome.score
            curve.append((cost, toy.true_score(spec)))
        if cost >= COSTS[-1]:
            study.stop("cost")
        return outcome

    memory = Path("/dev/shm")  # syncing a real disk for every toy trial would take most of the time
    with (
        tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder,
        LedgerWriter(RunDirectory(Path(folder))) as ledger,
    ):
        study = Study(
            ledger, Candidates(Space.load("default"), encoder="toy"), InlineExecutor(evaluate), strategy=strategy,
            seed=seed, known=known, ladder=Ladder(), limits=Limits(trials=MAX_TRIALS),
        )  # fmt: skip
        study.run()
    scores = [next((score for at, score in reversed(curve) if at <= limit), 0.5) for limit in COSTS]
    return [round(100 * (OPTIMUM - score), 4) for score in scores]


def summarize(runs: dict[str, dict[tuple[str, int], list[float]]]) -> dict[str, Any]:
    """Return the mean regret over landscapes, and its difference to the reference on the same seeds with intervals."""
    rng = np.random.default_rng(0)
    result: dict[str, Any] = {}
    for name, cells in runs.items():
        values = np.array(list(cells.values()))
        landscapes = {
            each: np.mean([row for (landscape, _), row in cells.items() if landscape == each], 0).round(2).tolist()
            for each in LANDSCAPES
        }
        result[name] = {"searches": len(cells), "regret": values.mean(0).round(3).tolist(), "landscapes": landscapes}
        shared = [key for key in cells if key in runs.get(REFERENCE, {})]
        if name != REFERENCE and shared:
            differences = np.array([np.subtract(cells[key], runs[REFERENCE][key]) for key in shared])
            draws = differences[rng.integers(len(shared), size=(SAMPLES, len(shared)))].mean(1)
            low, high = np.quantile(draws, [0.025, 0.975], axis=0)
            result[name] |= {
                f"minus_{REFERENCE}": differences.mean(0).round(3).tolist(),
                "low": low.round(3).tolist(),
                "high": high.round(3).tolist(),
            }
    return result


def markdown_table(result: dict[str, Any], known: bool) -> str:
    """Return the comparison as Markdown."""
    lines = [
        "# Short searches compared on toy landscapes",
        "",
        "Mean distance to the optimum in percentage points after a number of full-training equivalents,"
        f" {'with' if known else 'without'} known recipes; lower is better. In brackets the 95 % interval of the"
        f" difference to {REFERENCE} on the same seeds.",
        "",
        "| strategy | searches | " + " | ".join(f"{cost:g}" for cost in COSTS) + " |",
        "|---" * (len(COSTS) + 2) + "|",
    ]
    for name, row in sorted(result.items(), key=lambda item: item[1]["regret"][3]):
        bounds = [
            f" [{low:+.2f}, {high:+.2f}]" for low, high in zip(row.get("low", []), row.get("high", []), strict=True)
        ]
        bounds = bounds or [""] * len(COSTS)
        cells = [f"{value:.2f}{bound}" for value, bound in zip(row["regret"], bounds, strict=True)]
        lines.append(f"| {name} | {row['searches']} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = options(__doc__, data=False, encoder=False)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument(
        "--first-seed", type=int, default=100, help="the options of `prior` were chosen on seeds 0 to 7"
    )
    parser.add_argument("--strategies", nargs="*", default=[each for each in STRATEGIES if each not in SLOW])
    parser.add_argument("--label", default="", help='added to the names, such as " (before)"')
    parser.add_argument("--no-known-recipes", action="store_true", help="do not begin with known recipes")
    args = parser.parse_args()
    if args.quick:
        args.seeds, args.strategies = 1, ["prior", "random"]
    started = time.perf_counter()
    log = args.out.with_suffix(".jsonl") if args.out else None
    runs: dict[str, dict[tuple[str, int], list[float]]] = {}
    for line in log.read_text(encoding="utf-8").splitlines() if log and log.is_file() else []:
        name, landscape, seed, values = json.loads(line)
        runs.setdefault(name, {})[landscape, seed] = values
    for seed in range(args.first_seed, args.first_seed + args.seeds):
        for strategy in args.strategies:
            for landscape in LANDSCAPES:
                cells = runs.setdefault(f"{strategy}{args.label}", {})
                if (landscape, seed) in cells:
                    continue
                cells[landscape, seed] = regrets(strategy, landscape, seed, not args.no_known_recipes)
                if log:
                    log.parent.mkdir(parents=True, exist_ok=True)
                    with log.open("a", encoding="utf-8") as file:
                        row = [f"{strategy}{args.label}", landscape, seed, cells[landscape, seed]]
                        file.write(json.dumps(row) + "\n")
    result = summarize(runs)
    text = markdown_table(result, not args.no_known_recipes)
    if args.out:
        args.out.with_suffix(".md").write_text(text, encoding="utf-8")
    print(text)
    facts = {"costs": COSTS, "known_recipes": not args.no_known_recipes, "strategies": result}
    finish(args, facts | {"seconds": round(time.perf_counter() - started, 1)})


if __name__ == "__main__":
    main()
