"""Compare recipes on a few rows of each class of the tuning sets.

Each cell trains one recipe on one draw of the rows and predicts up to 400 test rows; nothing is chosen by their score.
Each is a line of the `.jsonl` file beside the result, and is not repeated.

    python benchmarks/testbed/few_shot.py --data DIR --encoder DIR --out benchmarks/results/testbed_few_shot.json
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas
from few_epochs import read

SET_NAMES = ("cr", "mpqa", "subj", "umsab_en", "reuters5")
TOPICS = (
    "crude",
    "trade",
    "money-fx",
    "interest",
    "ship",
)  # of reuters5: news with one of them, the first 200 characters
CHARACTERS = 200
SOLVED_START: dict[str, Any] = {"head_init": "solved", "head_lr_multiplier": 1.0}
RECIPES: dict[str, dict[str, Any]] = {
    "solved": {},
    "plain": {},
    "plain, higher rate": {},
    "plain, higher rate, batch 32": {"batch_size": 32},
    "random start": {"batch_size": 32},
    "solved start": {**SOLVED_START, "batch_size": 32},
    "solved start, batch 8": {**SOLVED_START, "batch_size": 8},
    "contrastive": {**SOLVED_START, "contrastive": 1.0, "batch_size": 32},
    "contrastive, batch 8": {**SOLVED_START, "contrastive": 1.0, "batch_size": 8},
    "contrastive, batch 8, 5 epochs": {**SOLVED_START, "contrastive": 1.0, "batch_size": 8, "epochs": 5.0},
    "contrastive, batch 8, 3 epochs": {**SOLVED_START, "contrastive": 1.0, "batch_size": 8, "epochs": 3.0},
    "contrastive, batch 8, 2 epochs": {**SOLVED_START, "contrastive": 1.0, "batch_size": 8, "epochs": 2.0},
}
MORE_ROWS: dict[str, dict[str, Any]] = {
    "solved": {},
    "random start, 4 epochs": {"epochs": 4.0, "batch_size": 32},
    "random start, batch 16, 4 epochs": {"epochs": 4.0, "batch_size": 16},
    "solved start, 4 epochs": {**SOLVED_START, "epochs": 4.0, "batch_size": 32},
    "contrastive, random start, 4 epochs": {"contrastive": 1.0, "epochs": 4.0, "batch_size": 32},
    "contrastive, random start, batch 16, 4 epochs": {"contrastive": 1.0, "epochs": 4.0, "batch_size": 16},
    "contrastive, 4 epochs": {**SOLVED_START, "contrastive": 1.0, "epochs": 4.0, "batch_size": 32},
    "contrastive, batch 16, 4 epochs": {**SOLVED_START, "contrastive": 1.0, "epochs": 4.0, "batch_size": 16},
}
"""Recipes for more than 200 rows."""
"""Recipes by name, with the fields that differ from the plain head or from fine-tuning with a random start."""
PARTS = ("train", "test")
TEST_ROWS = 400
FEW = 100  # rows per class
KEY = ("set", "shots", "draw", "recipe")


def draw_rows(data: Path, name: str, shots: int, draw: int) -> tuple[pandas.DataFrame, pandas.DataFrame]:
    """Return so many training rows of each class, and test rows whose text is not among them."""
    if name == "reuters5":
        splits = [_with_one_topic(pandas.read_parquet(data / "reuters90" / f"{part}.parquet")) for part in PARTS]
    else:
        splits = [read(data, name, part) for part in PARTS]
    train, test = (split[["text", "label"]].drop_duplicates("text") for split in splits)
    train = train.groupby("label").sample(shots, random_state=draw).sample(frac=1, random_state=draw)
    test = test[~test["text"].isin(train["text"])]
    return train, test.sample(min(TEST_ROWS, len(test)), random_state=0)


def _with_one_topic(rows: pandas.DataFrame) -> pandas.DataFrame:
    rows = rows[[len(labels) == 1 and labels[0] in TOPICS for labels in rows["label"]]]
    return pandas.DataFrame({"text": rows["text"].str[:CHARACTERS], "label": [labels[0] for labels in rows["label"]]})


def make_spec(name: str, encoder: str, rows: int) -> Any:
    """Return the candidate of a recipe."""
    from headhunt.modeling.architecture import Head
    from headhunt.spec import plain, solved

    if name == "solved":
        return solved(encoder)
    if name.startswith("plain"):
        spec = plain(encoder, rows, recipe=int(name != "plain"))
        return replace(spec, recipe=replace(spec.recipe, **(RECIPES | MORE_ROWS)[name]))
    base = plain(encoder, rows)
    tuned = replace(base.recipe, freeze="embeddings", layer_decay=0.95, standardize=True, head_lr_multiplier=5.0)
    return replace(base, head=Head(pooling="mean"), recipe=replace(tuned, **(RECIPES | MORE_ROWS)[name]))


def measure_cell(job: Mapping[str, Any]) -> dict[str, Any]:
    """Train a recipe and return its test accuracy."""
    import torch

    from headhunt.data import Task
    from headhunt.engine.assembly import prepare
    from headhunt.evaluation import evaluate

    torch.set_num_threads(1)
    train, test = draw_rows(Path(job["data"]), job["set"], job["shots"], job["draw"])
    task = Task.load(train, test=test, problem_type="single_label_classification", name=job["set"])
    training, predictor = prepare(
        task, task.splits["train"], make_spec(job["recipe"], job["encoder"], len(train)), seed=job["draw"]
    )
    for _ in training.reports(1):
        pass
    training.finish()
    held_out = task.splits["test"]
    outputs = predictor.outputs(held_out.texts(), None)
    scores = evaluate(task.problem_type, outputs, held_out.targets, task.labels).scores
    found = {"test": round(100 * scores["accuracy"].value, 2), "seconds": round(training.seconds, 1)}
    if "log_loss" in scores:
        found["log_loss"] = round(scores["log_loss"].value, 4)
    return {**{name: job[name] for name in KEY}, **found}


def summarize(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the accuracy of each recipe by the number of rows, and its mean difference to the solved head."""
    scores: dict[int, dict[str, dict[tuple[str, int], float]]] = defaultdict(lambda: defaultdict(dict))
    for record in records:
        scores[record["shots"]][record["recipe"]][record["set"], record["draw"]] = record["test"]
    result: dict[str, Any] = {}
    for shots, recipes in sorted(scores.items()):
        found = result[f"{shots} per class"] = {}
        for recipe in RECIPES | MORE_ROWS:
            cells, solved = recipes.get(recipe, {}), recipes.get("solved", {})
            gains = np.array([cells[key] - solved[key] for key in cells if key in solved])
            if not len(gains):
                continue
            by_set = {
                name: np.mean([cells[key] for key in cells if key[0] == name])
                for name in sorted({key[0] for key in cells})
            }
            error = gains.std(ddof=1) / np.sqrt(len(gains)) if len(gains) > 1 else None
            found[recipe] = {
                "draws": len(gains),
                "mean": round(float(np.mean(list(cells.values()))), 2),
                "over_solved": round(float(gains.mean()), 2),
                "standard_error": None if error is None else round(float(error), 2),
                "sets": {name: round(float(mean), 2) for name, mean in by_set.items()},
            }
    return {"training_runs": len(records), "rows": result}


def main() -> None:
    from measure import encoder_folder, finish, options, run_jobs

    parser = options(__doc__)
    parser.add_argument("--shots", type=int, nargs="*", default=[16, 48], help="rows per class")
    parser.add_argument("--sets", nargs="*", default=list(SET_NAMES), choices=SET_NAMES, help="sets to work on")
    parser.add_argument("--draws", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    common = {"data": str(args.data), "encoder": encoder_folder(args.encoder)}
    cells = [
        (name, shots, draw, recipe)
        for shots in args.shots
        for draw in range(args.draws)
        for name in args.sets
        for recipe in (RECIPES if shots < FEW else MORE_ROWS)
    ]
    if args.quick:
        cells = [("mpqa", 8, 0, "solved"), ("mpqa", 8, 0, "contrastive, batch 8, 5 epochs")]
    jobs = [{**common, **dict(zip(KEY, cell, strict=True))} for cell in cells]
    finish(args, summarize(run_jobs(args, measure_cell, jobs, KEY)))


if __name__ == "__main__":
    main()
