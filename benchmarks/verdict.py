"""Can the verdict be believed? How often it claims a gain where there is none, and sees one where there is.

Plain heads are trained with many seeds on 500 rows of real data, as a search trains them (on all rows, and on the parts
of the folds), and answer the test rows; these answers are stored. 200 searches are then simulated from them: test rows
are drawn anew, the trainings with one seed are taken for the winner and those with another for the plain head, and the
verdict compares them as it does after a search. `false_alarms`: both are plain heads. `power`: every training of the
winner has 4 points more on 1,000 test rows (wrong answers, drawn anew for each training, are made right).

    python benchmarks/verdict.py --data DIR --out benchmarks/results/verdict.json

Trainings that are in `verdict.npz` beside the result already are not repeated.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from measure import RESULTS, encoder_folder, finish, options

TASK, SEEDS, ROWS, SEARCHES = "sst2", 10, 1000, 200


def train(job: dict[str, Any]) -> tuple[str, np.ndarray]:
    """The answers of one plain head to the test rows: trained on all rows (part -1) or on a part."""
    from headhunt.engine.trial_runner import RunnerSettings, TrialRunner
    from headhunt.spec import plain
    from headhunt.study.requests import Request

    runner = TrialRunner(RunnerSettings(job["folder"], metric="accuracy", threads=1))
    rows = np.arange(len(runner.targets)) if job["part"] < 0 else runner.folds[job["part"]][0]
    spec = plain(job["encoder"], len(runner.targets))
    ready = runner.open(spec, rows, Request(trial=0, spec=spec, seed=job["seed"]))
    training, predictor = ready.training, ready.predictor
    for _ in training.reports():
        pass
    training.finish()
    from headhunt.run.task import open_task

    test = open_task(Path(job["folder"]) / "task", ("test",)).splits["test"]
    return job["name"], predictor.outputs(test.texts()).astype(np.float32)


def improved(base: np.ndarray, targets: np.ndarray, gain: float, rng: np.random.Generator) -> np.ndarray:
    """Answers with so many more of the wrong ones made right."""
    wrong = np.flatnonzero(base.argmax(1) != targets)
    chosen = rng.choice(wrong, min(len(wrong), round(gain * len(targets))), replace=False)
    better = base.copy()
    better[chosen] = np.eye(base.shape[1])[targets[chosen]] * 0.9 + 0.05
    return better


def simulate(
    stored: dict[str, np.ndarray], targets: np.ndarray, seeds: int, searches: int, gain: float
) -> dict[str, Any]:
    """How often a gain is claimed, its mean, and how wide the intervals are."""
    from headhunt.evaluation import compare

    claims, gains, widths = 0, [], []
    for turn in range(searches):
        rng = np.random.default_rng([turn, round(gain * 1000)])
        rows = rng.integers(0, len(targets), ROWS)
        ours, theirs = rng.choice(seeds, 2, replace=False)
        truth = targets[rows]
        names = [[f"all-{seed}", *(f"part-{seed}-{part}" for part in range(3))] for seed in (ours, theirs)]
        winner, plain = ([stored[name][rows] for name in group] for group in names)
        if gain:
            winner = [improved(one, truth, gain, rng) for one in winner]
        found = compare("single_label_classification", "accuracy", winner, plain, truth, seed=turn)
        claims += found.significant
        gains.append(found.gain)
        widths.append(found.high - found.low)
    return {
        "claimed": claims / searches,
        "mean_gain": round(float(np.mean(gains)), 4),
        "sd_gain": round(float(np.std(gains)), 4),
        "mean_width": round(float(np.mean(widths)), 4),
    }


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    args = parser.parse_args()
    from headhunt.data import Task
    from headhunt.run.task import open_task, save_task

    seeds, searches, rows = (2, 20, 60) if args.quick else (args.seeds, SEARCHES, 500)
    path = RESULTS / "verdict.npz"
    stored: dict[str, np.ndarray] = {}
    if path.exists() and not args.quick:
        with np.load(path) as found:
            stored = dict(found)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HEADHUNT_CACHE"] = folder
        task = Task.load(args.data / TASK, limit=rows, seed=0, problem_type="single_label_classification")
        task.splits.pop("validation", None)
        save_task(task, Path(folder) / "task")
        targets = open_task(Path(folder) / "task", ("test",)).splits["test"].targets
        common = {"folder": folder, "encoder": encoder_folder(args.encoder)}
        jobs = [{"name": f"all-{seed}", "seed": seed, "part": -1, **common} for seed in range(seeds)]
        jobs += [
            {"name": f"part-{seed}-{part}", "seed": seed, "part": part, **common}
            for seed in range(seeds)
            for part in range(3)
        ]
        with multiprocessing.get_context("spawn").Pool(2) as pool:
            for name, outputs in pool.imap_unordered(train, [job for job in jobs if job["name"] not in stored]):
                stored[name] = outputs
                if not args.quick:
                    np.savez_compressed(path, **stored)
    accuracy = [float((stored[f"all-{seed}"].argmax(1) == targets).mean()) for seed in range(seeds)]
    null = simulate(stored, targets, seeds, searches, 0.0)
    real = simulate(stored, targets, seeds, searches, 0.04)
    result = {"false_alarms": null["claimed"], "power": real["claimed"], "no_gain": null, "gain_of_4_points": real}
    result |= {"plain_accuracy": [round(value, 4) for value in accuracy], "test_rows": len(targets), "task": TASK}
    finish(args, result)


if __name__ == "__main__":
    main()
