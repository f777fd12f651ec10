"""Compare the model of a search with simpler ones where a row has a number or several labels.

STS-B, 1,000 training rows: Pearson's r of the delivered model, of the cosine of the frozen encoder's mean vectors, of a
plain cross-encoder and of a plain siamese model (mean vectors of each text and their cosine). GoEmotions and Reuters,
2,000 training rows each: micro and macro F1 of the delivered model, of logistic regression on the frozen encoder's mean
vectors and of the plain head. All three have thresholds per label, fitted out of fold to the metric.

    python benchmarks/labels.py --data DIR --encoder DIR --out benchmarks/results/labels.json

`draws.py` describes the rows. A search has default options and `--seconds` of time; several labels are searched once
for each metric. The plain models have the recipe of `headhunt fit` and are trained with `--seeds` seeds; the first one
is compared. `plain_of_search` is the plain head that a search trained in its time. Gains are those of the delivered
model, with 95 % intervals of a paired bootstrap of test rows. Results in the `.jsonl` file beside the result are not
repeated; the predictions are in the `.npz` file beside it.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from draws import LABELS, draw
from measure import encoder_folder, finish, options
from references import frozen_cosines, frozen_outputs

import headhunt
from headhunt import Head, Task
from headhunt.engine.assembly import prepare
from headhunt.evaluation import apply_thresholds, compare, evaluate, fit_thresholds
from headhunt.spec import Spec, plain
from headhunt.storage import atomic_file

SEARCH = "search"
QUICK: dict[str, Any] = {"time": 15, "workers": 0, "max_length": 32}  # options of a search
FOLDS = 3


@dataclass(frozen=True)
class Cell:
    """The models of one data set that are compared by one metric."""

    dataset: str
    rows: int
    metric: str
    references: tuple[str, ...]

    @property
    def name(self) -> str:
        """The data set and the metric."""
        return f"{self.dataset}, {self.metric}"


CELLS = (
    Cell("stsb", 1_000, "pearson", ("frozen cosine", "plain cross-encoder", "plain siamese")),
    *(
        Cell(dataset, 2_000, metric, ("frozen logistic regression", "plain head"))
        for dataset in ("goemotions", "reuters90")
        for metric in ("micro_f1", "macro_f1")
    ),
)


class Benchmark:
    """Trains the models of a cell.

    Args:
        args: Options of the command line.
        folder: Directory for data and runs.
    """

    def __init__(self, args: Namespace, folder: Path) -> None:
        self.args, self.folder, self.encoder = args, folder, encoder_folder(args.encoder)
        self._tasks: dict[str, Task] = {}
        self._outputs: dict[tuple[str, bool, int], tuple[np.ndarray, np.ndarray | None]] = {}
        self._frozen_outputs: dict[str, tuple[np.ndarray, np.ndarray]] = {}

    def task(self, cell: Cell) -> Task:
        """Return the data of a cell."""
        if cell.dataset not in self._tasks:
            test_rows = 80 if self.args.quick else 2_000
            drawn = draw(cell.dataset, self.args.data, self.folder, cell.rows, test_rows)
            self._tasks[cell.dataset] = Task.load(drawn.train, test=drawn.test, problem_type=drawn.problem_type)
        return self._tasks[cell.dataset]

    def run(self, cell: Cell, model: str, seed: int) -> tuple[np.ndarray, dict[str, Any]]:
        """Return the predictions of the test rows as they are scored, and further facts."""
        if model == SEARCH:
            return self._search(cell)
        if model == "frozen cosine":
            return frozen_cosines(self.task(cell), self.encoder), {}
        if model == "frozen logistic regression":
            return self._frozen(cell), {}
        return self._plain(cell, model == "plain siamese", seed), {}

    def _search(self, cell: Cell) -> tuple[np.ndarray, dict[str, Any]]:
        test = self.task(cell).splits["test"]
        found = headhunt.search(
            self.task(cell),
            out=self.folder / f"{cell.dataset}-{cell.metric}",
            encoder=self.encoder,
            metric=cell.metric,
            view=False,
            **(QUICK if self.args.quick else {"time": self.args.seconds}),
        )
        while found.model_dir is None:  # a busy machine
            found = headhunt.resume(found.run_dir, time=30)
        predictor, result = found.load(), found.result
        outputs = predictor.outputs(test.texts(), test.texts_b())
        facts: dict[str, Any] = {"trials": result.trials if result else 0}
        if result is not None:
            facts["delivered"] = result.verdict.delivered
        if result is not None and result.test is not None and "plain" in result.test.scores:
            facts["plain_of_search"] = round(result.test.scores["plain"][cell.metric].value, 4)
        return apply_thresholds(outputs, predictor.thresholds), facts

    def _frozen(self, cell: Cell) -> np.ndarray:
        if cell.dataset not in self._frozen_outputs:
            self._frozen_outputs[cell.dataset] = frozen_outputs(self.task(cell), self.encoder)
        held_out, outputs = self._frozen_outputs[cell.dataset]
        return apply_thresholds(outputs, fit_thresholds(held_out, self.task(cell).splits["train"].targets, cell.metric))

    def _plain(self, cell: Cell, siamese: bool, seed: int) -> np.ndarray:
        key = cell.dataset, siamese, seed
        if key not in self._outputs:  # the metrics of a data set differ in thresholds only
            self._outputs[key] = self._plain_outputs(cell, siamese, seed)
        outputs, held_out = self._outputs[key]
        if held_out is None:
            return outputs
        return apply_thresholds(outputs, fit_thresholds(held_out, self.task(cell).splits["train"].targets, cell.metric))

    def _plain_outputs(self, cell: Cell, siamese: bool, seed: int) -> tuple[np.ndarray, np.ndarray | None]:
        """Return a plain model's outputs of the test rows and, with several labels, its out-of-fold ones."""
        task = self.task(cell)
        spec = plain(self.encoder, cell.rows, recipe=int(len(task.labels) > 20))
        if siamese:
            spec = replace(spec, head=Head(pooling="mean", siamese="cosine"))
        if self.args.quick:
            spec = replace(spec, recipe=replace(spec.recipe, epochs=0.5, max_length=32))
        everything = np.arange(len(task.splits["train"]))
        outputs = self._fit(task, spec, everything, "test", None, seed)
        if task.problem_type != LABELS:
            return outputs, None
        held_out = np.empty(task.splits["train"].targets.shape)
        for fold in range(FOLDS):
            rows = everything % FOLDS == fold
            held_out[rows] = self._fit(task, spec, everything[~rows], "train", everything[rows], seed)
        return outputs, held_out

    def _fit(
        self, task: Task, spec: Spec, rows: np.ndarray, split: str, predicted: np.ndarray | None, seed: int
    ) -> np.ndarray:
        """Train on some rows and return the outputs of others."""
        training, predictor = prepare(task, task.splits["train"].take(rows), spec, seed=seed)
        for _ in training.reports():
            pass
        training.finish()
        others = task.splits[split] if predicted is None else task.splits[split].take(predicted)
        return predictor.outputs(others.texts(), others.texts_b())


def summarize(
    cell: Cell, task: Task, scored: Mapping[str, np.ndarray], records: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return the scores of a cell, and the gain of the delivered model over each other one."""
    targets, summary = task.splits["test"].targets, {"metric": cell.metric, "rows": cell.rows, "models": {}}
    for model in (SEARCH, *cell.references):
        runs = [record for record in records if record["cell"] == cell.name and record["model"] == model]
        if not runs:
            continue
        entry = {**runs[0]["score"], "seconds": runs[0]["seconds"]}
        entry |= {name: runs[0][name] for name in ("trials", "delivered", "plain_of_search") if name in runs[0]}
        if len(runs) > 1:
            entry["seeds"] = [run["score"]["value"] for run in runs]
        first = [scored[f"{cell.name}, {name}, 0"] for name in (SEARCH, model) if f"{cell.name}, {name}, 0" in scored]
        if model != SEARCH and len(first) == 2:
            gain = compare(task.problem_type, cell.metric, first[:1], first[1:], targets)
            entry["gain"] = {name: round(getattr(gain, name), 4) for name in ("gain", "low", "high", "p_value")}
        summary["models"][model] = entry
    return summary


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--seconds", type=float, default=300.0, help="time of each search")
    parser.add_argument("--seeds", type=int, default=3, help="training runs of each plain model")
    parser.add_argument("--models", nargs="*", default=None, help="names of models, such as search; by default all")
    parser.add_argument("--cells", nargs="*", default=None, help='names of cells, such as "stsb, pearson"')
    args = parser.parse_args()
    cells = [cell for cell in CELLS if args.cells is None or cell.name in args.cells]
    if args.quick:
        # Each label needs two rows.
        small = {"stsb, pearson": 40, "goemotions, macro_f1": 100}
        cells = [replace(cell, rows=small[cell.name]) for cell in cells if cell.name in small]
    if not cells:
        sys.exit(f"--cells must be among: {'; '.join(cell.name for cell in CELLS)}")
    log = args.out.with_suffix(".jsonl") if args.out and not args.quick else None
    records = [json.loads(line) for line in log.read_text().splitlines()] if log and log.exists() else []
    arrays = log.with_suffix(".npz") if log else None
    scored: dict[str, np.ndarray] = dict(np.load(arrays)) if arrays and arrays.exists() else {}
    with tempfile.TemporaryDirectory(prefix="headhunt-") as temporary:
        benchmark = Benchmark(args, Path(temporary))
        for cell in cells:
            for model in (SEARCH, *cell.references):
                if args.models is not None and model not in args.models:
                    continue
                for seed in range(args.seeds if model.startswith("plain") and not args.quick else 1):
                    key = f"{cell.name}, {model}, {seed}"
                    if key in scored:
                        continue
                    started = time.perf_counter()
                    scored[key], facts = benchmark.run(cell, model, seed)
                    task = benchmark.task(cell)
                    found = evaluate(task.problem_type, scored[key], task.splits["test"].targets, task.labels)
                    score = {name: round(value, 4) for name, value in vars(found.scores[cell.metric]).items()}
                    record = {"cell": cell.name, "model": model, "seed": seed, "score": score, **facts}
                    record |= {"seconds": round(time.perf_counter() - started, 1)}
                    print(json.dumps(record), flush=True)
                    records.append(record)
                    if log and arrays:
                        log.parent.mkdir(parents=True, exist_ok=True)
                        with log.open("a") as file:
                            file.write(json.dumps(record) + "\n")
                        with atomic_file(arrays) as packed:
                            np.savez_compressed(packed, **scored)
        summary = {cell.name: summarize(cell, benchmark.task(cell), scored, records) for cell in cells}
    finish(args, {"seconds": args.seconds, "cells": summary})


if __name__ == "__main__":
    main()
