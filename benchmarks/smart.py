"""Measure the cost of SMART per training step, and the test accuracy with and without it, on 500 MRPC pairs.

A cross-encoder and a siamese model are trained. Runs in the `.jsonl` file beside the result are not repeated.

    python benchmarks/smart.py --data DIR --out benchmarks/results/smart.json
"""

from __future__ import annotations

import json
import multiprocessing
import time
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

from measure import encoder_folder, finish, options

from headhunt.modeling.architecture import Head
from headhunt.spec import Recipe, Smart, Spec

HEADS = {"cross": Head(pooling="mean"), "siamese": Head(pooling="mean", siamese="difference")}
RECIPE = Recipe(learning_rate=1e-4, head_lr_multiplier=5.0, freeze=2, layer_decay=0.95, epochs=5)


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Train one model and return its scores on the test rows."""
    import torch

    from headhunt.data import Task
    from headhunt.engine import api

    torch.set_num_threads(1)
    task = Task.load(Path(job["data"]) / "mrpc", limit=job["rows"], seed=0)
    recipe = replace(RECIPE, epochs=job["epochs"], smart=Smart(weight=job["weight"]) if job["weight"] else None)
    spec = Spec(encoder=job["encoder"], head=HEADS[job["mode"]], recipe=recipe)
    training, predictor = api.prepare(task, task.splits["train"], spec, seed=job["seed"])
    for _ in training.reports():
        pass
    training.finish()
    evaluation = api.score(predictor, task.splits["test"])
    return {
        **{key: job[key] for key in ("mode", "weight", "seed")},
        "accuracy": round(100 * evaluation.scores["accuracy"].value, 2),
        "macro_f1": round(100 * evaluation.scores["macro_f1"].value, 2),
    }


def step_cost(data: Path, encoder: str, rows: int, repeats: int) -> dict[str, float]:
    """Return the time of a step with SMART divided by that of a step without it, by kind of model.

    Epochs with and without SMART take turns; the best epoch of each counts.
    """
    from headhunt.data import Task
    from headhunt.engine import api

    task = Task.load(data / "mrpc", limit=rows, seed=0)
    ratios = {}
    for mode, head in HEADS.items():
        best: dict[bool, float] = {}
        training_runs = {}
        for enabled in (False, True):
            recipe = replace(RECIPE, epochs=1, freeze="none", smart=Smart() if enabled else None)
            spec = Spec(encoder=encoder, head=head, recipe=recipe)
            training_runs[enabled], _ = api.prepare(task, task.splits["train"], spec)
        for _ in range(repeats + 1):
            for enabled, training in training_runs.items():
                training.step = training.examples = 0
                started = time.perf_counter()
                for _ in training.reports(1):
                    pass
                best[enabled] = min(best.get(enabled, float("inf")), time.perf_counter() - started)
        ratios[mode] = round(best[True] / best[False], 3)
        print(f"{mode}: a step with SMART takes {ratios[mode]} times as long as a step without it", flush=True)
    return ratios


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--seeds", type=int, default=3, help="training runs of each setting")
    parser.add_argument("--workers", type=int, default=2, help="processes with one thread each")
    parser.add_argument("--only-cost", action="store_true", help="measure only the cost per step")
    args = parser.parse_args()
    encoder = encoder_folder(args.encoder)
    log = args.out.with_suffix(".jsonl") if args.out else None
    runs = [json.loads(line) for line in log.read_text().splitlines()] if log and log.exists() else []
    done = {(run["mode"], run["weight"], run["seed"]) for run in runs}
    jobs = [
        {"data": str(args.data), "encoder": encoder, "mode": mode, "weight": weight, "seed": seed}
        | ({"rows": 32, "epochs": 1} if args.quick else {"rows": 500, "epochs": RECIPE.epochs})
        for seed in range(1 if args.quick else args.seeds)
        for mode in HEADS
        for weight in (5.0, 0.0)
        if (mode, weight, seed) not in done and not args.only_cost
    ]
    with multiprocessing.get_context("spawn").Pool(args.workers) as pool:
        for scores in pool.imap_unordered(run, jobs):
            print(scores, flush=True)
            runs.append(scores)
            if log:
                with log.open("a") as file:
                    file.write(json.dumps(scores) + "\n")
    ratios = step_cost(args.data, encoder, 32 if args.quick else 128, 1 if args.quick else 4)
    gains = {}
    for mode in HEADS if runs else ():
        means = {
            weight: mean(run["accuracy"] for run in runs if (run["mode"], run["weight"]) == (mode, weight))
            for weight in (0.0, 5.0)
        }
        gains[mode] = {
            "off": round(means[0.0], 2),
            "on": round(means[5.0], 2),
            "gain": round(means[5.0] - means[0.0], 2),
        }
    finish(args, {"step_cost": ratios, "accuracy": gains, "runs": runs})


if __name__ == "__main__":
    main()
