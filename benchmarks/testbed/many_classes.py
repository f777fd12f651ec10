"""Compare recipes on 77 random intents of clinc150 with 1,000 rows, four epochs and up to 2,000 test rows.

Each cell trains a recipe on all rows and predicts the test rows. The solved head is trained beside it, so that the
accuracy of the mean of both predictions is known too. Cells are lines of the `.jsonl` file beside the result, and are
not repeated.

    python benchmarks/testbed/many_classes.py --data DIR --out benchmarks/results/testbed_many_classes.json
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas
from few_shot import make_spec
from sets import CLASSES, sample

RECIPES = ("random start, 4 epochs", "solved start, 4 epochs", "contrastive, 4 epochs")
KEY = ("draw", "recipe")


def draw_rows(data: Path, draw: int, classes: int, rows: int) -> tuple[pandas.DataFrame, pandas.DataFrame]:
    """Return the training and test rows of random intents; no test text is among the training rows."""
    train, test = (pandas.read_parquet(data / "clinc150" / f"{part}.parquet") for part in ("train", "test"))
    names = np.array(sorted(set(train["label"]) - {"oos"}))
    kept = np.random.default_rng(draw).permutation(names)[:classes]
    train, test = (
        part.loc[part["label"].isin(kept), ["text", "label"]].drop_duplicates("text") for part in (train, test)
    )
    train = sample(train, rows, CLASSES, draw)
    test = test[~test["text"].isin(train["text"])]
    return train, test.sample(min(2_000, len(test)), random_state=0)


def measure_cell(job: Mapping[str, Any]) -> dict[str, Any]:
    """Train a recipe and the solved head, and return their test accuracies."""
    import torch

    from headhunt.data import Task
    from headhunt.engine.assembly import prepare
    from headhunt.spec import solved

    torch.set_num_threads(1)
    train, test = draw_rows(Path(job["data"]), job["draw"], job["classes"], job["rows"])
    task = Task.load(train, test=test, problem_type="single_label_classification", name="intents")
    specs = {
        "test": make_spec(job["recipe"], job["encoder"], len(train)),
        "solved": solved(job["encoder"], classes=len(task.labels)),
    }
    held_out, outputs = task.splits["test"], {}
    for name, spec in specs.items():
        training, predictor = prepare(task, task.splits["train"], spec, seed=job["draw"])
        for _ in training.reports(1):
            pass
        training.finish()
        outputs[name] = predictor.outputs(held_out.texts(), None)
    outputs["mean"] = (outputs["test"] + outputs["solved"]) / 2
    correct = {name: float((each.argmax(1) == held_out.targets).mean()) for name, each in outputs.items()}
    return {**{key: job[key] for key in KEY}, **{name: round(100 * value, 2) for name, value in correct.items()}}


def summarize(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the mean accuracy of each recipe, of the solved head, and of the mean of both predictions."""
    result: dict[str, Any] = {}
    for recipe in RECIPES:
        members = [record for record in records if record["recipe"] == recipe]
        if not members:
            continue
        result[recipe] = {
            name: round(float(np.mean([record[name] for record in members])), 2) for name in ("test", "solved", "mean")
        }
        gains = np.array([record["test"] - record["solved"] for record in members])
        error = float(gains.std(ddof=1) / np.sqrt(len(gains))) if len(gains) > 1 else None
        result[recipe] |= {"draws": len(members), "standard_error": None if error is None else round(error, 2)}
    return {"training_runs": len(records), "recipes": result}


def main() -> None:
    from measure import encoder_folder, finish, options, run_jobs

    parser = options(__doc__)
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    cells = [(draw, recipe) for draw in range(1, args.draws + 1) for recipe in RECIPES]
    common = {"data": str(args.data), "encoder": encoder_folder(args.encoder), "classes": 77, "rows": 1_000}
    if args.quick:
        cells, common = cells[:1], {**common, "classes": 21, "rows": 60}
    jobs = [{**common, **dict(zip(KEY, cell, strict=True))} for cell in cells]
    finish(args, summarize(run_jobs(args, measure_cell, jobs, KEY)))


if __name__ == "__main__":
    main()
