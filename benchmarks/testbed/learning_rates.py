"""Measure which learning rate known recipes need when there is time for few epochs only.

The first known recipes are trained for four epochs with several learning rates, on one fold of a tuning set and on all
rows; the latter models predict the test rows. A recipe on a set is a line of the `.jsonl` file beside the result, and
is not repeated.

    python benchmarks/testbed/learning_rates.py --data DIR --encoder DIR --out benchmarks/results/learning_rates.json
"""

from __future__ import annotations

import json
import multiprocessing
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from averages import ROWS
from sets import SETS, draw_set
from specs import list_specs, with_encoder

SET_NAMES, RECIPES = ("mpqa", "clinc30", "cr"), (0, 1)
EPOCHS, RATES = 4.0, (1e-4, 2e-4, 4e-4)


def measure_cell(job: Mapping[str, Any]) -> dict[str, Any]:
    """Train a known recipe with each learning rate and return the scores by rate."""
    import torch

    from headhunt.data import Task
    from headhunt.engine.trial_runner import TrialRunner
    from headhunt.engine.worker_data import RunnerSettings
    from headhunt.evaluation import DEFAULT_METRIC, measure
    from headhunt.predictor import Predictor
    from headhunt.run.directory import RunDirectory
    from headhunt.run.task import save_task
    from headhunt.study.requests import EvaluateTrial, FitAllRows

    torch.set_num_threads(1)
    chosen = SETS[job["set"]]
    item = [each for each in list_specs(False) if each.origin == "known"][job["recipe"]]
    spec = with_encoder(item.with_epochs(job["epochs"]).spec, job["encoder"])
    scores: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        drawn = draw_set(chosen, Path(job["data"]), folder / "rows", job["rows"], job["test_rows"])
        task = Task.load(drawn.train, test=drawn.test, problem_type=chosen.problem_type)  # type: ignore[arg-type]
        save_task(task, RunDirectory(folder / "run").task)
        metric, test = DEFAULT_METRIC[task.problem_type], task.splits["test"]
        runner = TrialRunner(RunnerSettings(directory=str(folder / "run"), metric=metric, threads=1))
        for trial, rate in enumerate(RATES):
            tried = replace(spec, recipe=replace(spec.recipe, learning_rate=rate))
            fold = runner.run(EvaluateTrial(trial=trial, spec=tried, rung=0, fraction=1 / 3, seed=0))
            fitted = runner.run(FitAllRows(trial=trial, spec=tried, seed=0, out=folder / f"model-{trial}"))
            if fitted.outcome != "ok":
                raise RuntimeError(f"{job}: {fitted}")
            model = Predictor.load(folder / f"model-{trial}", device=torch.device("cpu"))
            outputs = model.outputs(test.texts())
            accuracy = round(100 * measure(task.problem_type, metric, outputs, test.targets), 2)
            scores[f"{rate:g}"] = {"fold": fold.score and round(100 * fold.score, 2), "test": accuracy}
    return {**{name: job[name] for name in ("set", "recipe", "epochs")}, "spec": item.spec.to_dict(), "scores": scores}


def summarize(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the mean scores by learning rate, and the gain over the lowest one with its standard error."""
    result: dict[str, Any] = {"cells": len(records)}
    lowest = np.array([record["scores"][f"{RATES[0]:g}"]["test"] for record in records])
    for rate in RATES:
        test = np.array([record["scores"][f"{rate:g}"]["test"] for record in records])
        error = (test - lowest).std(ddof=1) / np.sqrt(len(test)) if len(test) > 1 else 0.0
        figures = {"test": test.mean(), "gain": (test - lowest).mean(), "standard_error": error}
        result[f"{rate:g}"] = {name: round(float(value), 2) for name, value in figures.items()}
    return result


def main() -> None:
    from measure import encoder_folder, finish, options

    parser = options(__doc__)
    parser.add_argument("--sets", nargs="*", default=list(SET_NAMES), choices=list(SETS), help="sets to work on")
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    common = {"data": str(args.data), "encoder": encoder_folder(args.encoder), "epochs": EPOCHS}
    common |= {"rows": ROWS, "test_rows": 0}
    cells = [(name, recipe) for recipe in RECIPES for name in args.sets]
    if args.quick:
        cells, common = cells[:1], {**common, "rows": 60, "test_rows": 30, "epochs": 1.0}
    log = args.out.with_suffix(".jsonl") if args.out and not args.quick else None
    records = [json.loads(line) for line in log.read_text().splitlines()] if log and log.exists() else []
    done = {(record["set"], record["recipe"]) for record in records}
    jobs = [{**common, "set": name, "recipe": recipe} for name, recipe in cells if (name, recipe) not in done]
    with multiprocessing.get_context("spawn").Pool(args.workers) as pool:
        for record in pool.imap_unordered(measure_cell, jobs):
            records.append(record)
            print(json.dumps({name: record[name] for name in ("set", "recipe", "scores")}), flush=True)
            if log:
                with log.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(record) + "\n")
    finish(args, summarize(records))


if __name__ == "__main__":
    main()
