"""Measure how good the model of a search is after 60 and 300 seconds, from 100 rows to a million.

Each cell is one search with default options, given as a command: a data set, a number of rows, a time limit, and either
one encoder or several to choose from (the column "auto"). `draws.py` describes the rows. The delivered model is loaded
and predicts all test rows. Two references get the same time: the frozen encoder with a linear model, and TF-IDF with
one (`references.py`). The frozen encoder is always the first one, also beside searches that choose from several.

    python benchmarks/anytime.py --data DIR --encoder DIR --encoders DIR,DIR,DIR --out benchmarks/results/anytime.jsonl
    python benchmarks/anytime.py --summary --out benchmarks/results/anytime.jsonl

Each cell is one line of the `.jsonl` file; the predictions are in the `.npz` file beside it. Cells in the file are not
repeated, unless their command failed. `--summary` compares and checks what is there and draws `anytime.svg`.

`first_model_s` is the time from the start of the command until a model is on disk that has an out-of-fold score.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from draws import CLASSES, LABELS, MAX_TEST_ROWS, MILLION, Drawn, draw
from measure import RESULTS, encoder_folders, finish, options, provenance
from references import Reference, fit_frozen, fit_tfidf

from headhunt.data import Task
from headhunt.evaluation import DEFAULT_METRIC, evaluate
from headhunt.run.directory import RunDirectory
from headhunt.run.events import ModelSaved, TrialFinished, decode
from headhunt.run.ledger import read_state
from headhunt.run.results import SearchResult

GRID = ("sst2", "ag_news", "clinc150", "goemotions", "stsb", "mrpc")
MODES = ((60, False), (300, False), (300, True))  # seconds, and whether the search chooses from several encoders
SEARCH_TASKS = ("search_sst2", "search_trec6", "search_mrpc")


@dataclass(frozen=True)
class Cell:
    """One search of the grid."""

    dataset: str
    rows: int | None
    """Training rows; None is all."""
    seconds: int
    auto: bool = False
    """Whether the search chooses from several encoders."""

    @property
    def name(self) -> str:
        """The name in files and patterns, such as "sst2-500-60s" or "mrpc-all-300s-auto"."""
        return f"{self.dataset}-{self.rows or 'all'}-{self.seconds}s{'-auto' if self.auto else ''}"


def list_cells() -> list[Cell]:
    """Return all cells, the most informative first."""
    cells = [Cell(task, 500, 300, auto) for auto in (False, True) for task in SEARCH_TASKS]
    # The earlier figure for clinc150 had 3,000 rows with the test rows, so 2,400 to train on. Both are measured.
    cells += [Cell("search_trec6", 500, 60), Cell("goemotions", 2_000, 180)]
    cells += [Cell("clinc150", 3_000, 180), Cell("clinc150", 2_400, 180)]
    for rows, datasets in (
        (500, GRID),
        (None, GRID),
        (None, (MILLION,)),
        (5_000, ("sst2", "ag_news")),
        (100, ("sst2", "ag_news")),
    ):
        cells += [Cell(dataset, rows, *mode) for mode in MODES for dataset in datasets]
    return cells


def run_command(words: list[str], limit: float) -> tuple[int, float, float, str]:
    """Run a command; return its exit code, its start in seconds since 1970, its duration and its output.

    A command that takes three times its limit is killed with everything it started.
    """
    environment = os.environ | {"TOKENIZERS_PARALLELISM": "false"}
    began, started = time.time(), time.monotonic()
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            words, stdout=output, stderr=subprocess.STDOUT, text=True, env=environment, start_new_session=True
        )
        try:
            code = process.wait(timeout=3 * limit + 120)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            code = process.wait()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
        seconds = time.monotonic() - started
        output.seek(0)
        return code, began, seconds, output.read()


def first_evaluated_model(directory: RunDirectory) -> float | None:
    """Return the time, in seconds since 1970, at which a saved model first had an out-of-fold score."""
    scored: dict[int, float] = {}
    saved: dict[int, float] = {}
    for line in directory.ledger.read_bytes().split(b"\n")[:-1]:
        at, event = decode(line)
        if isinstance(event, TrialFinished) and event.score is not None:
            scored.setdefault(event.trial, at)
        elif isinstance(event, ModelSaved):
            saved.setdefault(event.trial, at)
    return min((max(at, scored[trial]) for trial, at in saved.items() if trial in scored), default=None)


def delivered_predictions(model: Path, task: Task) -> np.ndarray:
    """Return what a user of the saved model gets for the test rows, with its own thresholds."""
    import headhunt

    test = task.splits["test"]
    predictor = headhunt.load(model)
    labels = [prediction.label for prediction in predictor.predict(test.texts(), test.texts_b())]
    numbers = {name: number for number, name in enumerate(task.labels)}
    if task.problem_type == CLASSES:
        return np.array([numbers[str(label)] for label in labels])
    if task.problem_type == LABELS:
        hot = np.zeros((len(labels), len(numbers)), np.int64)
        for row, names in enumerate(labels):
            hot[row, [numbers[name] for name in names]] = 1  # type: ignore[union-attr]
        return hot
    return np.array(labels, np.float64)


def as_outputs(problem_type: str, predictions: np.ndarray, count: int) -> np.ndarray:
    """Return predictions in the form of a model's outputs: a class id becomes a row with a single 1."""
    return np.eye(count)[predictions.astype(int)] if problem_type == CLASSES else predictions


def score(task: Task, predictions: np.ndarray) -> dict[str, float]:
    """Return the score of predictions of the test rows by the default metric, with its interval."""
    outputs = as_outputs(task.problem_type, predictions, len(task.labels))
    scores = evaluate(task.problem_type, outputs, task.splits["test"].targets, task.labels).scores
    value = scores[DEFAULT_METRIC[task.problem_type]]
    return {"score": round(value.value, 4), "low": round(value.low, 4), "high": round(value.high, 4)}


def find_plan(directory: RunDirectory, output: str) -> str | None:
    """Return the plan of the search in one line: as stored with the result, or as printed."""
    if directory.result.is_file():
        plan = directory.read_plan()
        if plan is not None:
            return plan.sentence
    match = re.search(r"^.*\bcompared on\b.*$", output, re.MULTILINE)
    return match.group().strip() if match else None


def validation_score(result: SearchResult | None) -> float | None:
    """Return the out-of-fold score of the delivered candidate."""
    if result is None:
        return None
    summary = result.plain if result.verdict.delivered == "plain" else result.winner
    return summary.score if summary else None


class Benchmark:
    """The cells that have been measured and the files they are stored in.

    Args:
        log: The `.jsonl` file.
        encoders: Directories of encoders by name; the first one is used where a cell has only one.
        data: Directory with a subdirectory per data set.
        test_rows: Test rows of a data set at most.
    """

    def __init__(self, log: Path, encoders: dict[str, str], data: Path, test_rows: int) -> None:
        self.log, self.encoders, self.data, self.test_rows = log, encoders, data, test_rows
        self.rows = read_rows(log)
        self.arrays = read_arrays(log)

    def run(self, cell: Cell, folder: Path) -> None:
        """Measure a cell in an empty directory and store it."""
        drawn = draw(cell.dataset, self.data, folder, cell.rows, self.test_rows)
        row, delivered = self._search(cell, drawn, folder)
        task = Task.load(drawn.train, test=drawn.test, problem_type=drawn.problem_type)  # type: ignore[arg-type]
        row |= {"train_rows": len(task.splits["train"]), "test_rows": len(task.splits["test"])}
        predictions = {"targets": task.splits["test"].targets}
        if delivered.exists():
            predictions["delivered"] = delivered_predictions(delivered, task)
            row["delivered"] = score(task, predictions["delivered"])
        for name, reference in self._references(cell, task).items():
            predictions[name] = reference.predictions
            facts = {"rows": reference.rows, "seconds": reference.seconds, "penalty": reference.penalty}
            row[name] = score(task, reference.predictions) | facts | {"threshold": reference.threshold}
        self._store(row, predictions)

    def _search(self, cell: Cell, drawn: Drawn, folder: Path) -> tuple[dict[str, Any], Path]:
        """Run the search of a cell; return what is known about it and the directory of its model."""
        names = list(self.encoders) if cell.auto else list(self.encoders)[:1]
        out = folder / "run"
        words = [
            "--encoder",
            ",".join(self.encoders[name] for name in names),
            "--time",
            f"{cell.seconds}s",
            "--json",
            "--out",
            str(out),
        ]
        command = [sys.executable, "-m", "headhunt.cli", "search", *drawn.options(), *words]
        code, began, seconds, output = run_command(command, cell.seconds)
        if code:
            print(output[-3000:], flush=True)
        directory = RunDirectory(out)
        result = directory.read_result()
        started = directory.ledger.is_file()
        first = first_evaluated_model(directory) if started else None
        trials = read_state(directory).trials if started else []
        shown = f"headhunt search TRAIN --test TEST --problem-type {drawn.problem_type} --encoder {','.join(names)}"
        row = {
            "cell": cell.name,
            "dataset": cell.dataset,
            "rows": cell.rows,
            "seconds": cell.seconds,
            "auto": cell.auto,
            "encoders": names,
            "problem_type": drawn.problem_type,
            "pair": drawn.pair,
            "metric": DEFAULT_METRIC[drawn.problem_type],  # type: ignore[index]
            "first_model_s": None if first is None else round(first - began, 1),
            "delivered": None,
            "delivered_model": result.verdict.delivered if result else None,
            "validation": validation_score(result),
            "candidates": sum(any(r.score is not None for r in trial.results.values()) for trial in trials),
            "tested": bool(result and result.test),
            "wall_s": round(seconds, 1),
            "exit": code,
            "plan": find_plan(directory, output),
            "search": f"{shown} --time {cell.seconds}s --json",
        }
        return row, directory.model

    def _references(self, cell: Cell, task: Task) -> dict[str, Reference]:
        """Return the reference models; those of a cell with the same rows and time are used again."""
        twin = replace(cell, auto=not cell.auto).name
        known = next((row for row in self.rows if row["cell"] == twin), {})
        if all(f"{twin}/{name}" in self.arrays and name in known for name in ("frozen", "tfidf")):
            return {
                name: Reference(
                    self.arrays[f"{twin}/{name}"],
                    *(known[name][fact] for fact in ("rows", "seconds", "penalty", "threshold")),
                )
                for name in ("frozen", "tfidf")
            }
        return {
            "frozen": fit_frozen(task, next(iter(self.encoders.values())), cell.seconds),
            "tfidf": fit_tfidf(task, cell.seconds),
        }

    def _store(self, row: dict[str, Any], predictions: dict[str, np.ndarray]) -> None:
        """Write the predictions, then the line, so that a line always has its predictions."""
        row |= provenance()
        self.rows = [other for other in self.rows if other["cell"] != row["cell"]] + [row]
        self.arrays = {name: a for name, a in self.arrays.items() if name.partition("/")[0] != row["cell"]}
        self.arrays |= {f"{row['cell']}/{name}": compact(array) for name, array in predictions.items()}
        self.log.parent.mkdir(parents=True, exist_ok=True)
        partial = self.log.with_suffix(".partial.npz")
        np.savez_compressed(partial, **self.arrays)  # type: ignore[arg-type]
        partial.replace(self.log.with_suffix(".npz"))
        with self.log.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
        shown = ("cell", "first_model_s", "delivered", "frozen", "tfidf", "candidates", "tested", "wall_s", "exit")
        print(json.dumps({name: row.get(name) for name in shown}), flush=True)


def compact(array: np.ndarray) -> np.ndarray:
    """Return predictions in a smaller type."""
    return array.astype(np.float32 if array.dtype.kind == "f" else np.int16)


def read_rows(log: Path) -> list[dict[str, Any]]:
    """Return the last line of each cell that is stored."""
    lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
    return list({row["cell"]: row for row in map(json.loads, lines)}.values())


def read_arrays(log: Path) -> dict[str, np.ndarray]:
    """Return the predictions that are stored beside a log, by cell and model."""
    path = log.with_suffix(".npz")
    if not path.exists():
        return {}
    with np.load(path, allow_pickle=False) as arrays:
        return dict(arrays)


def choose_cells(args: Namespace, several: bool) -> list[Cell]:
    """Return the cells that the options select."""
    cells = [cell for cell in list_cells() if several or not cell.auto]
    patterns = args.cells.split(",") if args.cells else []
    if patterns:
        cells = [cell for cell in cells if any(fnmatch.fnmatch(cell.name, pattern) for pattern in patterns)]
    if args.quick:
        cells = cells if patterns else [cell for cell in cells if cell.name == "goemotions-2000-180s"]
        cells = [replace(cell, rows=20_000 if cell.dataset == MILLION else 100, seconds=40) for cell in cells]
    return list(dict.fromkeys(cells))


def main() -> None:
    parser = options(__doc__, data=False)
    parser.add_argument("--data", type=Path, metavar="DIR", help="directory with a subdirectory per data set")
    parser.add_argument(
        "--encoders", default="", metavar="DIR,DIR", help="encoders of the cells that choose from several"
    )
    parser.add_argument("--cells", default="", metavar="PATTERN", help='only these cells, such as "sst2-*,*-60s"')
    parser.add_argument("--summary", action="store_true", help="compare, check and draw the cells that are stored")
    args = parser.parse_args()
    log = args.out or RESULTS / "anytime.jsonl"
    if args.summary:
        from anytime_summary import summarize

        finish(Namespace(out=log.with_suffix(".json")), summarize(log))
        return
    if args.data is None:
        parser.error("--data is required, except with --summary")
    encoders = encoder_folders(args.encoder, args.encoders)
    with tempfile.TemporaryDirectory() as temporary:
        if args.quick and not args.out:
            log = Path(temporary) / "anytime.jsonl"
        benchmark = Benchmark(log, encoders, args.data, 200 if args.quick else MAX_TEST_ROWS)
        done = {row["cell"] for row in benchmark.rows if row["exit"] == 0}
        for cell in choose_cells(args, len(encoders) > 1):
            if cell.name not in done:
                with tempfile.TemporaryDirectory() as folder:
                    os.environ["HEADHUNT_CACHE"] = f"{folder}/cache"  # nothing is left from earlier cells
                    benchmark.run(cell, Path(folder))
        finish(Namespace(out=None), {"cells": len(benchmark.rows), "each": benchmark.rows})


if __name__ == "__main__":
    main()
