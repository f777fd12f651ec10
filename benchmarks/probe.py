"""Does the probe earn its place? Rank correlation of cheap scores with full training, over random candidates.

Each candidate of the default space (SMART, which doubles the cost, is off) is probed, its head alone on stored
activations, and trained whole on 80 rows; both are judged on 400 others of the training split. The rungs 1/9 and 1/3
of the same training are kept beside it. Kendall's τ between each cheap score and the full one, with a bootstrap
interval over candidates; the probe also judged on only as many rows as the candidate learns from, as in a search.

    python benchmarks/probe.py --data DIR --out benchmarks/results/probe.json

Runs that are in `probe.jsonl` beside the result already are not repeated.
"""

from __future__ import annotations

import json
import multiprocessing
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from measure import RESULTS, encoder_folder, finish, options

TASKS = ("trec6", "sst2", "qqp")
ROWS, JUDGED = 80, 400
CANDIDATES = 40
FRACTIONS = (0.0, 1 / 9, 1 / 3, 1.0)
NAMES = ("probe", "ninth", "third", "full")

_benches: dict[str, Any] = {}


def prepare(name: str, data: Path, encoder: str, folder: Path) -> None:
    """A task with 80 rows to learn from and 400 others to be judged on, all of the training split."""
    from headhunt.data import Task
    from headhunt.run.task import save_task

    task = Task.load(data / name, limit=ROWS + JUDGED, seed=0)
    train = task.splits["train"]
    order = np.random.default_rng(0).permutation(len(train))
    task.splits.clear()
    task.splits.update(train=train.take(order[:ROWS]), validation=train.take(order[ROWS:]))
    save_task(task, folder / name / "task")


def judge(job: dict[str, Any]) -> dict[str, Any]:
    from headhunt.engine.search import layers_in
    from headhunt.engine.trial_runner import TrialRunner
    from headhunt.spec import Space

    home = Path(job["folder"]) / job["task"]
    if job["task"] not in _benches:
        _benches[job["task"]] = TrialRunner(home, metric="accuracy", threads=1)
    bench = _benches[job["task"]]
    space = Space.load("default", layers_in(job["encoder"]))
    spec = space.draw(job["number"], encoder=job["encoder"], pair=bench.task.pair)
    spec = replace(spec, recipe=replace(spec.recipe, smart=None)).canonical()
    row: dict[str, Any] = {"task": job["task"], "number": job["number"]}
    for name, fraction in zip(NAMES, FRACTIONS, strict=True):
        place = home / f"checkpoint-{job['number']}"
        predictions = home / f"{job['number']}-{name}.npz"
        request = Request(
            trial=job["number"],
            spec=spec.to_dict(),
            rung=0,
            fraction=fraction,
            seed=job["number"],
            checkpoint=str(place) if fraction else "",
            resume=str(place) if place.exists() else None,
            predictions=str(predictions),
        )
        outcome = bench.run(request)
        row[name] = {"outcome": outcome.outcome, "score": outcome.score, "seconds": round(outcome.seconds, 2)}
        if name == "probe" and outcome.outcome == "ok":
            with np.load(predictions) as found:
                right = found["outputs"].argmax(1) == bench.targets[found["rows"]]
            row[name]["score_small"] = float(right[:ROWS].mean())
    shutil.rmtree(home / f"checkpoint-{job['number']}", ignore_errors=True)
    recipe, head = spec.recipe, spec.head
    row["kind"] = {
        "freeze": str(recipe.freeze),
        "tokens": bool(head.convolutions or head.blocks),
        "siamese": head.siamese,
        "learning_rate": recipe.learning_rate,
    }
    return row


def tau(rows: list[dict[str, Any]], cheap: str, key: str = "score") -> dict[str, float] | None:
    """Kendall's τ-b and its 95 % bootstrap interval; a candidate without a score counts as the worst seen."""
    from scipy.stats import kendalltau

    if len(rows) < 5:
        return None
    scores = np.array([[row[cheap].get(key), row["full"]["score"]] for row in rows], float)
    for column in scores.T:
        column[np.isnan(column)] = np.nanmin(column)
    rng = np.random.default_rng(0)
    draws = [kendalltau(*scores[rng.integers(0, len(rows), len(rows))].T).statistic for _ in range(1000)]
    low, high = np.nanquantile(draws, [0.025, 0.975])
    value = float(kendalltau(*scores.T).statistic)
    return {"tau": round(value, 3), "low": round(float(low), 3), "high": round(float(high), 3), "candidates": len(rows)}


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    kinds = {
        "all": rows,
        "pooling and MLP only": [row for row in rows if not row["kind"]["tokens"]],
        "convolutions or blocks": [row for row in rows if row["kind"]["tokens"]],
        "encoder frozen": [row for row in rows if row["kind"]["freeze"] == "all"],
        "encoder trained": [row for row in rows if row["kind"]["freeze"] != "all"],
    }
    found = {
        kind: {
            "probe": tau(chosen, "probe"),
            "probe_small": tau(chosen, "probe", "score_small"),
            "ninth": tau(chosen, "ninth"),
            "third": tau(chosen, "third"),
        }
        for kind, chosen in kinds.items()
    }
    seconds = {name: round(float(np.mean([row[name]["seconds"] for row in rows])), 2) for name in NAMES}
    return {"kendall": found, "mean_seconds": seconds}


def main() -> None:
    args = options(__doc__).parse_args()
    tasks, candidates = (TASKS[:1], 6) if args.quick else (TASKS, CANDIDATES)
    log = None if args.quick else RESULTS / "probe.jsonl"
    rows = [json.loads(line) for line in log.read_text().splitlines()] if log and log.exists() else []
    done = {(row["task"], row["number"]) for row in rows}
    with tempfile.TemporaryDirectory() as folder:
        jobs = []
        for name in tasks:
            prepare(name, args.data, encoder_folder(args.encoder), Path(folder))
            for number in range(candidates):
                if (name, number) not in done:
                    job = {"task": name, "number": number, "folder": folder}
                    jobs.append({**job, "encoder": encoder_folder(args.encoder)})
        jobs.sort(key=lambda job: job["number"])
        with multiprocessing.get_context("spawn").Pool(2) as pool:
            for row in pool.imap_unordered(judge, jobs):
                rows.append(row)
                if log:
                    with log.open("a") as file:
                        file.write(json.dumps(row) + "\n")
    result = {name: summary([row for row in rows if row["task"] == name]) for name in tasks}
    worst = [result[name]["kendall"]["all"]["probe_small"] for name in tasks]
    result["probe_tau"] = min((found["tau"] for found in worst if found), default=None)
    finish(args, result)


if __name__ == "__main__":
    main()
