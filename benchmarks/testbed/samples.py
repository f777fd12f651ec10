"""Measure whether a small sample of the rows tells which known recipe is better on all of them.

The first two known recipes differ in the start of the head: random weights, or the solution for the frozen encoder.
Two others freeze layers: two with attention pooling, or half of them. Each is trained on 167, 500 and 2,000 rows of a
tuning set and predicts its test rows. On the samples, recipes with frozen layers have more epochs, in proportion to
their speed, as in a search. The thresholds of several labels are fitted on one half of the test rows, and the other
half is scored. Each training run is a line of the `.jsonl` file beside the result, and is not repeated.

    python benchmarks/testbed/samples.py --data DIR --encoder DIR --out benchmarks/results/testbed_samples.json
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from sets import SETS, draw_set
from specs import list_specs, with_encoder

SET_NAMES = ("goemotions", "umsab_en", "mpqa", "clinc30")
ALL_ROWS, TEST_ROWS = 2000, 1000
RECIPES = {"random": 0, "solved": 1, "attention": 3, "half frozen": 4}
"""Positions among the known recipes of the testbed."""
SAMPLE_EPOCHS = {"random": 3.0, "solved": 3.0, "attention": 4.5, "half frozen": 6.0}
ALL_EPOCHS = 4.0
KEY = ("set", "start", "rows", "epochs")


def measure_cell(job: Mapping[str, Any]) -> dict[str, Any]:
    """Train a known recipe on a sample and return its test score."""
    import torch

    from headhunt.data import Task
    from headhunt.engine.assembly import prepare
    from headhunt.evaluation import DEFAULT_METRIC, apply_thresholds, fit_thresholds, measure

    torch.set_num_threads(1)
    chosen = SETS[job["set"]]
    item = [each for each in list_specs(chosen.pair) if each.origin == "known"][RECIPES[job["start"]]]
    spec = with_encoder(item.spec, job["encoder"])
    spec = replace(spec, recipe=replace(spec.recipe, epochs=job["epochs"]))
    with tempfile.TemporaryDirectory() as folder:
        drawn = draw_set(chosen, Path(job["data"]), Path(folder), ALL_ROWS, job["test_rows"])
        task = Task.load(drawn.train, test=drawn.test, problem_type=chosen.problem_type)  # type: ignore[arg-type]
        train, test = task.splits["train"], task.splits["test"]
        sample = np.sort(np.random.default_rng(0).permutation(len(train))[: job["rows"]])
        training, predictor = prepare(task, train.take(sample), spec, seed=0)
        for _ in training.reports():
            pass
        training.finish()
        metric, outputs = DEFAULT_METRIC[task.problem_type], predictor.outputs(test.texts(), test.texts_b())
        targets, half = test.targets, len(test) // 2
        if task.problem_type == "multi_label_classification":
            thresholds = fit_thresholds(outputs[:half], targets[:half], metric)
            outputs, targets = apply_thresholds(outputs[half:], thresholds), targets[half:]
        score = measure(task.problem_type, metric, outputs, targets)
    return {**{name: job[name] for name in KEY}, "test": round(100 * score, 2)}


def summarize(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the test score of each recipe, by set and number of rows."""
    scores: dict[str, dict[str, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    for record in sorted(records, key=lambda each: each["rows"]):
        scores[record["set"]][f"{record['rows']} rows"][record["start"]] = record["test"]
    return {"training_runs": len(records), "sets": scores}


def main() -> None:
    from measure import encoder_folder, finish, options, run_jobs

    parser = options(__doc__)
    parser.add_argument("--sets", nargs="*", default=list(SET_NAMES), choices=list(SETS), help="sets to work on")
    parser.add_argument("--rows", nargs="*", type=int, default=[167, 500, ALL_ROWS], help="sizes of the samples")
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    common = {"data": str(args.data), "encoder": encoder_folder(args.encoder), "test_rows": TEST_ROWS}
    cells = [
        (name, recipe, rows, ALL_EPOCHS if rows == ALL_ROWS else SAMPLE_EPOCHS[recipe])
        for rows in args.rows
        for name in args.sets
        for recipe in RECIPES
    ]
    if args.quick:
        cells, common = [("mpqa", "random", 60, 1.0)], {**common, "test_rows": 30}
    jobs = [{**common, **dict(zip(KEY, cell, strict=True))} for cell in cells]
    finish(args, summarize(run_jobs(args, measure_cell, jobs, KEY)))


if __name__ == "__main__":
    main()
