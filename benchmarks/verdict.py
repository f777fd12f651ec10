"""Measure how often the verdict claims a gain, with and without a true gain.

Plain heads are trained with ten seeds on 500 rows of SST-2, as in a search: three times on all rows from the same
initial weights, and on the training rows of each fold. Their predictions of the test rows are stored, and 200 searches
are simulated from them. Each simulation draws 1,000 test rows with replacement. The training runs of one seed represent
the winner, those of another the plain head. The verdict compares them as after a search: with three training runs on
all rows, and with one, as after a short search.

`false_alarms` is the fraction of claims when both are plain heads. `power` is the fraction when the winner's accuracy
is 4 points higher: in each of its training runs, wrong predictions chosen at random are made correct.

    python benchmarks/verdict.py --data DIR --out benchmarks/results/verdict.json

Training runs stored in `benchmarks/results/verdict.npz` are not repeated.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from measure import RESULTS, encoder_folder, finish, options

TASK, SEEDS, RUNS, ROWS, SEARCHES = "sst2", 10, 3, 1000, 200


def train(job: dict[str, Any]) -> tuple[str, np.ndarray]:
    """Train a plain head on all rows (fold -1) or on those of a fold, and return its predictions of the test rows."""
    from headhunt.engine.trial_runner import TrialRunner
    from headhunt.engine.workers import RunnerSettings
    from headhunt.run.task import open_task
    from headhunt.spec import plain
    from headhunt.study.requests import Request

    runner = TrialRunner(RunnerSettings(job["folder"], metric="accuracy", threads=1))
    rows = np.arange(len(runner.targets)) if job["fold"] < 0 else runner.folds[job["fold"]][0]
    spec = plain(job["encoder"], len(runner.targets))
    request = Request(trial=0, spec=spec, seed=job["seed"] + job["run"], init_seed=job["seed"])
    ready = runner.open(spec, rows, request)
    training, predictor = ready.training, ready.predictor
    for _ in training.reports():
        pass
    training.finish()
    test = open_task(Path(job["folder"]) / "task", ("test",)).splits["test"]
    return job["name"], predictor.outputs(test.texts()).astype(np.float32)


def improve(outputs: np.ndarray, targets: np.ndarray, gain: float, rng: np.random.Generator) -> np.ndarray:
    """Return predictions whose accuracy is higher by `gain`: wrong predictions chosen at random are made correct."""
    wrong = np.flatnonzero(outputs.argmax(1) != targets)
    chosen = rng.choice(wrong, min(len(wrong), round(gain * len(targets))), replace=False)
    improved = outputs.copy()
    improved[chosen] = np.eye(outputs.shape[1])[targets[chosen]] * 0.9 + 0.05
    return improved


def simulate(
    stored: dict[str, np.ndarray], targets: np.ndarray, seeds: int, searches: int, gain: float, runs: int = RUNS
) -> dict[str, Any]:
    """Return the fraction of claims, and the mean gain and width of the intervals."""
    from headhunt.evaluation import compare

    claims, gains, widths = 0, [], []
    for turn in range(searches):
        rng = np.random.default_rng([turn, round(gain * 1000)])
        rows = rng.integers(0, len(targets), ROWS)
        pair = rng.choice(seeds, 2, replace=False)
        truth = targets[rows]
        names = [
            [*(f"all-{seed}-{run}" for run in range(runs)), *(f"part-{seed}-{fold}" for fold in range(3))]
            for seed in pair
        ]
        winner, plain = ([stored[name][rows] for name in group] for group in names)
        if gain:
            winner = [improve(outputs, truth, gain, rng) for outputs in winner]
        comparison = compare("single_label_classification", "accuracy", winner, plain, truth, seed=turn)
        claims += comparison.significant
        gains.append(comparison.gain)
        widths.append(comparison.high - comparison.low)
    return {
        "claimed": claims / searches,
        "mean_gain": round(float(np.mean(gains)), 4),
        "sd_gain": round(float(np.std(gains)), 4),
        "mean_width": round(float(np.mean(widths)), 4),
    }


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS, help="training runs on all rows and on each fold")
    args = parser.parse_args()
    from headhunt.data import Task
    from headhunt.run.task import open_task, save_task

    seeds, searches, rows = (2, 20, 60) if args.quick else (args.seeds, SEARCHES, 500)
    path = RESULTS / "verdict.npz"
    stored: dict[str, np.ndarray] = {}
    if path.exists() and not args.quick:
        with np.load(path) as arrays:
            stored = dict(arrays)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HEADHUNT_CACHE"] = folder
        task = Task.load(args.data / TASK, limit=rows, seed=0, problem_type="single_label_classification")
        task.splits.pop("validation", None)
        save_task(task, Path(folder) / "task")
        targets = open_task(Path(folder) / "task", ("test",)).splits["test"].targets
        common = {"folder": folder, "encoder": encoder_folder(args.encoder)}
        # Seeds of different models are far apart, so that no training run of one repeats a run of another.
        jobs = [
            {"name": f"all-{seed}-{run}", "seed": 100 * seed, "run": run, "fold": -1, **common}
            for seed in range(seeds)
            for run in range(RUNS)
        ]
        jobs += [
            {"name": f"part-{seed}-{fold}", "seed": 100 * seed, "run": 0, "fold": fold, **common}
            for seed in range(seeds)
            for fold in range(3)
        ]
        with multiprocessing.get_context("spawn").Pool(2) as pool:
            for name, outputs in pool.imap_unordered(train, [job for job in jobs if job["name"] not in stored]):
                stored[name] = outputs
                if not args.quick:
                    np.savez_compressed(path, **stored)
    accuracy = [float((stored[f"all-{seed}-0"].argmax(1) == targets).mean()) for seed in range(seeds)]
    no_gain = simulate(stored, targets, seeds, searches, 0.0)
    true_gain = simulate(stored, targets, seeds, searches, 0.04)
    once = [simulate(stored, targets, seeds, searches, gain, runs=1) for gain in (0.0, 0.04)]
    result = {
        "false_alarms": no_gain["claimed"],
        "power": true_gain["claimed"],
        "no_gain": no_gain,
        "gain_of_4_points": true_gain,
        "one_training_run_on_all_rows": {"no_gain": once[0], "gain_of_4_points": once[1]},
    }
    result |= {"plain_accuracy": [round(value, 4) for value in accuracy], "test_rows": len(targets), "task": TASK}
    finish(args, result)


if __name__ == "__main__":
    main()
