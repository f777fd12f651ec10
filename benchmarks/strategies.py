"""What each strategy spends until its best fully trained candidate is within 1 % of the optimum, on toy landscapes.

Spending is counted in full-training equivalents: a rung costs the examples it adds. A search has arrived when the
candidate with the best observed score of a full training truly is (noise aside) within 1 % of the optimum. Every search
begins with the plain head and without known recipes; since toys cost the same whatever they freeze, `bohb` makes no use
of cheap candidates here. `bohb_vs_random` is the worst of the landscapes: the median of `bohb` over the median of
`random`. Runs already in the file of runs beside the result are not run again: remove it after a change to the study.

    python benchmarks/strategies.py --out benchmarks/results/strategies.json
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from measure import finish, options
from toy import LANDSCAPES, OPTIMUM, Toy

from headhunt.run.directory import Run
from headhunt.run.state import Outcome
from headhunt.spec import Space
from headhunt.study.candidates import Candidates
from headhunt.study.executors import Inline
from headhunt.study.ladder import Ladder
from headhunt.study.strategies import STRATEGIES
from headhunt.study.study import Limits, Study

ENOUGH = 0.99 * OPTIMUM
# Besides the named ones: what the rungs and what the model bring, each alone.
PARTS = {"random + rungs": ("random", Ladder()), "tpe + rungs, no random share": ("bohb", Ladder())}
FEWER = {"gp": (0.1, 40.0)}  # a second of thinking a proposal: a tenth of the seeds, and no more than this is spent


class AllAlike(Candidates):
    """Candidates of which none is cheap: a toy costs the same whatever it freezes."""

    @staticmethod
    def cheap(spec: Any) -> bool:
        """Never."""
        return False


def spent(name: str, landscape: str, seed: int, most: float) -> float:
    """Full-training equivalents until arrival; infinite if more than `most`."""
    strategy, ladder = PARTS.get(name, (name, None))
    toy = Toy(landscape, seed)
    cost, best, arrived = 0.0, -math.inf, math.inf

    def evaluate(request: Request) -> Outcome:
        nonlocal cost, best, arrived
        begun = max((one for one in study.ladder.fractions if one < request.fraction), default=0.0)
        bracket = study.state.trials[request.trial].bracket
        cost += request.fraction - (begun if request.rung > bracket else 0.0)
        outcome = toy(request)
        if request.rung == study.ladder.top and outcome.score is not None and outcome.score > best:
            best = outcome.score
            if toy.true(request.spec) >= ENOUGH:
                arrived = cost
                study.stop("arrived")
        if cost >= most:
            study.stop("spent")
        return outcome

    memory = Path("/dev/shm")  # a sync to a real disk for every toy training would be most of the time
    with (
        tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder,
        Run(folder, write=True) as run,
    ):
        candidates = AllAlike(Space.load("default"), encoder="toy")
        extra = {"share": 0.0} if "no random share" in name else {}
        extra |= {"frozen_fraction": 0.0} if strategy == "bohb" else {}
        study = Study(
            run, candidates, Inline(evaluate), strategy=strategy, ladder=ladder, seed=seed, known=False,
            options=extra, limits=Limits(trials=20_000),
        )  # fmt: skip
        study.go()
    return arrived


def job(given: tuple[str, str, int, float]) -> tuple[tuple[str, str, int, float], float]:
    return given, spent(*given)


def table(rows: dict[str, dict[str, dict[str, Any]]], most: float) -> str:
    """The comparison as Markdown."""
    lines = [
        "# Strategies compared on toy landscapes",
        "",
        "Full-training equivalents until the best fully trained candidate is within 1 % of the optimum: median"
        " (quartiles), and how many of the seeds arrived. A dash is more than was allowed: "
        + ", ".join([f"{most:.0f}", *(f"{name} {limit:.0f}" for name, (_, limit) in FEWER.items() if name in rows)])
        + ".",
        "",
        "| strategy | " + " | ".join(LANDSCAPES) + " |",
        "|---" * (len(LANDSCAPES) + 1) + "|",
    ]
    for name, row in rows.items():
        cells = [f"{_show(c['median'])} ({_show(c['low'])}–{_show(c['high'])}), {c['arrived']}" for c in row.values()]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _show(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f}"


def summary(values: list[float]) -> dict[str, Any]:
    ordered = sorted(values)
    points = {
        "low": ordered[len(ordered) // 4],
        "median": median(ordered),
        "high": ordered[(3 * len(ordered)) // 4],
    }
    shown = {key: round(value, 2) if math.isfinite(value) else None for key, value in points.items()}
    return {**shown, "arrived": f"{sum(map(math.isfinite, values))} of {len(values)}"}


def seeds_of(name: str, seeds: int) -> int:
    """The two that are held against each other get all seeds, others fewer."""
    share = FEWER[name][0] if name in FEWER else 1.0 if name in ("bohb", "random") else 0.4
    return max(1, round(seeds * share))


def collect(args: argparse.Namespace) -> dict[str, dict[str, list[float]]]:
    """Runs what has not been run, and keeps every run."""
    jobs = [
        (name, landscape, seed, min(args.most, FEWER[name][1]) if name in FEWER else args.most)
        for name in args.strategies
        for seed in range(seeds_of(name, args.seeds))
        for landscape in LANDSCAPES
    ]
    runs = args.out.with_suffix(".jsonl") if args.out else None
    kept = [json.loads(line) for line in runs.read_text().splitlines()] if runs and runs.is_file() else []
    done = {tuple(row[:4]): math.inf if row[4] is None else row[4] for row in kept}
    todo = sorted((one for one in jobs if one not in done), key=lambda one: one[0] in FEWER)
    with multiprocessing.Pool(args.processes) as pool:
        for given, value in pool.imap_unordered(job, todo):
            done[given] = value
            if runs:
                runs.parent.mkdir(parents=True, exist_ok=True)
                with runs.open("a", encoding="utf-8") as file:
                    file.write(json.dumps([*given, round(value, 3) if math.isfinite(value) else None]) + "\n")
    found: dict[str, dict[str, list[float]]] = {name: {land: [] for land in LANDSCAPES} for name in args.strategies}
    for one in jobs:
        found[one[0]][one[1]].append(done[one])
    return found


def main() -> None:
    parser = options(__doc__, data=False, encoder=False)
    parser.add_argument("--seeds", type=int, default=50, help="of bohb and random; others get 0.4 of it, gp a tenth")
    parser.add_argument("--most", type=float, default=400.0, help="full-training equivalents a search may spend")
    parser.add_argument("--strategies", nargs="*", default=[*STRATEGIES, *PARTS])
    parser.add_argument("--processes", type=int, default=2)
    args = parser.parse_args()
    if args.quick:
        args.seeds, args.most, args.strategies = 2, 80.0, ["bohb", "random"]
    began = time.perf_counter()
    found = collect(args)
    rows = {name: {land: summary(values) for land, values in row.items()} for name, row in found.items()}
    ratios = {}
    if {"bohb", "random"} <= rows.keys():
        for land in LANDSCAPES:
            mine, theirs = rows["bohb"][land]["median"], rows["random"][land]["median"]
            # Where the median random search has not arrived, what it was allowed is a lower bound of what it needs.
            ratios[land] = None if mine is None else round(mine / (theirs or args.most), 3)
    known = [value for value in ratios.values() if value is not None]
    result = {
        "bohb_vs_random": max(known) if known and len(known) == len(ratios) else None,
        "ratios": ratios,
        "equivalents": rows,
        "seeds": args.seeds,
        "most": args.most,
        "seconds": round(time.perf_counter() - began, 1),
    }
    text = table(rows, args.most)
    if args.out:
        args.out.with_suffix(".md").write_text(text, encoding="utf-8")
    print(text)
    finish(args, result)


if __name__ == "__main__":
    main()
