"""Measure which training runs of one candidate should be averaged, on the tuning sets of the testbed.

A candidate is trained as at the end of a search: on the training rows of every fold, and several times on all rows,
all from the same initial weights. Test scores of one training run on all rows, of averages of weights and of means of
predictions, with and without the models of the folds, and whether `headhunt.engine.averaging` accepts each average.

    python benchmarks/testbed/averages.py --data DIR --encoder DIR --out benchmarks/results/testbed_averages.json

Cells in the `.jsonl` file beside the result are not repeated.
"""

from __future__ import annotations

import json
import multiprocessing
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from sets import SETS, draw_set
from specs import list_specs, with_encoder

if TYPE_CHECKING:
    from headhunt.data import Task
    from headhunt.predictor import Predictor
    from headhunt.spec import Spec

SET_NAMES, KINDS = ("mpqa", "clinc30", "cr"), ("plain", "known")
ROWS, EPOCHS, RUNS = 500, 4.0, 3
AVERAGES = {
    "one run, folds": ("all-0", "fold-0", "fold-1", "fold-2"),
    "folds": ("fold-0", "fold-1", "fold-2"),
    "two runs": ("all-0", "all-1"),
    "three runs": ("all-0", "all-1", "all-2"),
    "three runs, folds": ("all-0", "all-1", "all-2", "fold-0", "fold-1", "fold-2"),
}


def measure_cell(job: Mapping[str, Any]) -> dict[str, Any]:
    """Train the candidate of a cell and return the test scores of single models and of all averages."""
    import torch

    from headhunt.data import Task

    torch.set_num_threads(1)
    chosen, item = SETS[job["set"]], next(each for each in list_specs(False) if each.origin == job["kind"])
    spec = with_encoder(item.with_epochs(job["epochs"]).spec, job["encoder"])
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        drawn = draw_set(chosen, Path(job["data"]), folder / "rows", job["rows"], job["test_rows"])
        task = Task.load(drawn.train, test=drawn.test, problem_type=chosen.problem_type)  # type: ignore[arg-type]
        scores = score_averages(task, train_models(task, spec, folder), folder / "averages")
    return {**{name: job[name] for name in ("set", "kind", "epochs")}, **scores}


def train_models(task: Task, spec: Spec, folder: Path) -> dict[str, Path]:
    """Train a candidate on every fold and several times on all rows; return the saved models by name."""
    from headhunt.engine.trial_runner import TrialRunner
    from headhunt.engine.workers import RunnerSettings
    from headhunt.evaluation import DEFAULT_METRIC
    from headhunt.run.directory import RunDirectory
    from headhunt.run.task import save_task
    from headhunt.study.requests import EvaluateTrial, FitAllRows, SaveAllFolds

    save_task(task, RunDirectory(folder / "run").task)
    metric = DEFAULT_METRIC[task.problem_type]
    runner = TrialRunner(RunnerSettings(directory=str(folder / "run"), metric=metric, threads=1))
    common: dict[str, Any] = {"trial": 1, "spec": spec, "init_seed": 0}
    checkpoint, predictions = folder / "checkpoint", folder / "held_out.npz"
    models = {f"fold-{fold}": folder / "folds" / f"{1:06d}-{fold}" for fold in range(len(runner.folds))}
    models |= {f"all-{run}": folder / f"all-{run}" for run in range(RUNS)}
    requests = [
        EvaluateTrial(**common, seed=0, rung=0, fraction=1.0, predictions=predictions, checkpoint=checkpoint),
        SaveAllFolds(**common, seed=0, checkpoint=checkpoint, out=folder / "folds"),
        *(FitAllRows(**common, seed=run, out=models[f"all-{run}"]) for run in range(RUNS)),
    ]
    for request in requests:
        outcome = runner.run(request)
        if outcome.outcome != "ok":
            raise RuntimeError(f"{task.name}: {outcome}")
    return models


def score_averages(task: Task, models: Mapping[str, Path], folder: Path) -> dict[str, Any]:
    """Return the test scores of all models, and of averages of their weights and of their predictions."""
    import torch

    from headhunt.engine.averaging import average_training_runs
    from headhunt.evaluation import DEFAULT_METRIC, measure
    from headhunt.modeling.averaging import average_weights
    from headhunt.predictor import Predictor

    test, texts, metric = task.splits["test"], task.splits["train"].texts(), DEFAULT_METRIC[task.problem_type]

    def load(model: Path) -> Predictor:
        return Predictor.load(model, device=torch.device("cpu"))

    def score(outputs: np.ndarray) -> float:
        return round(100 * measure(task.problem_type, metric, outputs, test.targets), 2)

    outputs = {name: load(model).outputs(test.texts()) for name, model in models.items()}
    scores: dict[str, Any] = {"single": {name: score(each) for name, each in outputs.items()}}
    for number, (average, names) in enumerate(AVERAGES.items()):
        members, out = [models[name] for name in names], folder / str(number)
        average_weights(members, out)
        scores[average] = {
            "weights": score(load(out).outputs(test.texts())),
            "predictions": score(np.mean([outputs[name] for name in names], axis=0)),
            "accepted": average_training_runs(members, folder / f"{number}-accepted", texts, None, load),
        }
    return scores


def summarize(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the mean difference of every average from single training runs on all rows, with its standard error."""
    singles = [np.mean([record["single"][f"all-{run}"] for run in range(RUNS)]) for record in records]
    result: dict[str, Any] = {"one run": round(float(np.mean(singles)), 2)}
    for average in AVERAGES:
        entry: dict[str, Any] = {"accepted": sum(record[average]["accepted"] for record in records)}
        for kind in ("weights", "predictions"):
            gains = np.array([record[average][kind] for record in records]) - singles
            error = float(gains.std(ddof=1) / np.sqrt(len(gains))) if len(gains) > 1 else 0.0
            entry[kind] = {"gain": round(float(gains.mean()), 2), "standard_error": round(error, 2)}
        result[average] = entry
    return result


def main() -> None:
    from measure import encoder_folder, finish, options

    parser = options(__doc__)
    parser.add_argument("--sets", nargs="*", default=list(SET_NAMES), choices=list(SETS), help="sets to work on")
    args = parser.parse_args()
    common = {"data": str(args.data), "encoder": encoder_folder(args.encoder), "epochs": EPOCHS}
    common |= {"rows": ROWS, "test_rows": 0}
    cells = [(name, kind) for name in args.sets for kind in KINDS]
    if args.quick:
        cells, common = cells[:1], {**common, "rows": 60, "test_rows": 30, "epochs": 1.0}
    log = args.out.with_suffix(".jsonl") if args.out and not args.quick else None
    records = [json.loads(line) for line in log.read_text().splitlines()] if log and log.exists() else []
    done = {(record["set"], record["kind"]) for record in records}
    jobs = [{"set": name, "kind": kind, **common} for name, kind in cells if (name, kind) not in done]
    with multiprocessing.get_context("spawn").Pool(1 if args.quick else 2) as pool:
        for record in pool.imap_unordered(measure_cell, jobs):
            print(json.dumps(record), flush=True)
            records.append(record)
            if log:
                with log.open("a") as file:
                    file.write(json.dumps(record) + "\n")
    finish(
        args, {"rows": common["rows"], "epochs": common["epochs"], "runs": RUNS, **summarize(records), "cells": records}
    )


if __name__ == "__main__":
    main()
