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
from sets import SETS

SET_NAMES = ("cr", "mpqa", "subj", "umsab_en")
RECIPES = ("solved", "tuned", "from solution")
TEST_ROWS = 400
KEY = ("set", "shots", "draw", "recipe")


def draw_rows(data: Path, name: str, shots: int, draw: int) -> tuple[pandas.DataFrame, pandas.DataFrame]:
    """Return so many training rows of each class, and test rows whose text is not among them."""
    chosen = SETS[name]
    splits = [pandas.read_parquet(data / chosen.folder / f"{part}.parquet") for part in ("train", "test")]
    if chosen.language:
        splits = [split[split["lang"] == chosen.language] for split in splits]
    train, test = (split[["text", "label"]].drop_duplicates("text") for split in splits)
    train = train.groupby("label").sample(shots, random_state=draw).sample(frac=1, random_state=draw)
    test = test[~test["text"].isin(train["text"])]
    return train, test.sample(min(TEST_ROWS, len(test)), random_state=0)


def make_spec(name: str, encoder: str, rows: int) -> Any:
    """Return the candidate of a recipe."""
    from headhunt.modeling.architecture import Head
    from headhunt.spec import plain, solved

    base = plain(encoder, rows)
    if name == "solved":
        return solved(encoder)
    recipe = replace(base.recipe, freeze="embeddings", layer_decay=0.95, standardize=True)
    recipe = replace(recipe, head_lr_multiplier=5.0) if name == "tuned" else replace(recipe, head_init="solved")
    return replace(base, head=Head(pooling="mean"), recipe=recipe)


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
    """Return the mean accuracy of each recipe by the number of rows, and its mean difference to the solved head."""
    scores: dict[int, dict[tuple[str, int], dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    for record in records:
        scores[record["shots"]][record["set"], record["draw"]][record["recipe"]] = record["test"]
    result = {}
    for shots, cells in sorted(scores.items()):
        complete = {key: cell for key, cell in cells.items() if len(cell) == len(RECIPES)}
        if not complete:
            continue
        means, gains = {}, {}
        for recipe in RECIPES:
            values = np.array([cell[recipe] for cell in complete.values()])
            means[recipe] = round(float(values.mean()), 2)
            gain = values - np.array([cell["solved"] for cell in complete.values()])
            error = float(gain.std(ddof=1) / np.sqrt(len(gain))) if len(gain) > 1 else float("nan")
            gains[recipe] = {"mean": round(float(gain.mean()), 2), "standard_error": round(error, 2)}
        sets = {
            name: {
                recipe: round(float(np.mean([cell[recipe] for key, cell in complete.items() if key[0] == name])), 2)
                for recipe in RECIPES
            }
            for name in sorted({key[0] for key in complete})
        }
        result[f"{shots} per class"] = {"draws": len(complete), "mean": means, "over_solved": gains, "sets": sets}
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
        for recipe in RECIPES
    ]
    if args.quick:
        cells = [("mpqa", 8, 0, "from solution")]
    jobs = [{**common, **dict(zip(KEY, cell, strict=True))} for cell in cells]
    finish(args, summarize(run_jobs(args, measure_cell, jobs, KEY)))


if __name__ == "__main__":
    main()
