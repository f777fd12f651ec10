"""Measure whether the mean of the last layer should weigh more than the other features of a solved head.

A solved head with word counts is fitted to 500 rows: with equal weights, and with the weight of the last layer that has
the smaller loss of held-out rows. The result is a line for each set and draw; those that are there are not repeated.

    python benchmarks/testbed/last_layer.py --data DIR --encoder DIR --out benchmarks/results/testbed_last_layer.jsonl
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np
import pandas

SETS = {
    "subj": "test", "cr": "test", "mpqa": "test", "mr": "test", "umsab_sentiment": "test", "clinc150": "test",
    "sst5": "test", "cola": "dev", "ag_news": "test", "trec6": "test", "banking77": "test", "sst2": "test",
}  # fmt: skip
"""Data sets and the split whose rows are predicted."""
DRAWS, ROWS, TEST_ROWS = 2, 500, 1_000


def measure_set(data: Path, name: str, draw: int, encoder: str) -> dict[str, float]:
    """Return the test accuracy with equal and with chosen weights."""
    from headhunt.data import Task
    from headhunt.engine.worker_data import WorkerData
    from headhunt.engine.workers import RunnerSettings
    from headhunt.run.directory import RunDirectory
    from headhunt.run.task import save_task
    from headhunt.spec import solved
    from headhunt.study.requests import FitAllRows
    from headhunt.training import solve

    train, test = (pandas.read_parquet(data / name / f"{split}.parquet") for split in ("train", SETS[name]))
    train = train.sample(frac=1, random_state=draw).drop_duplicates("text").groupby("label").head(ROWS)
    turn = train.groupby("label").cumcount() / train.groupby("label").label.transform("size")
    train = train.iloc[np.argsort(turn.to_numpy(), kind="stable")].head(ROWS)
    test = test[test.label.isin(train.label) & ~test.text.isin(train.text)].drop_duplicates("text")
    rows = pandas.concat([train, test.sample(min(TEST_ROWS, len(test)), random_state=0)])[["text", "label"]]
    with tempfile.TemporaryDirectory() as folder:
        task = Task.load(rows, test=rows.head(1), problem_type="single_label_classification")
        save_task(task, RunDirectory(Path(folder)).task)
        worker = WorkerData(RunnerSettings(directory=folder, metric="accuracy"))
        spec = solved(encoder, classes=len(task.labels), words="beside")
        learned, predicted = np.arange(ROWS), np.arange(ROWS, len(rows))
        scores, last_mean = {}, solve.last_mean
        for weights, find in {"equal": lambda head: None, "chosen": last_mean}.items():
            solve.last_mean = find
            training = worker.open(spec, learned, FitAllRows(trial=0, spec=spec, seed=0, out=Path(folder))).training
            for _ in training.reports():
                pass
            right = training.predict(predicted).argmax(1) == worker.targets[predicted]
            scores[weights] = round(100 * float(right.mean()), 2)
    return scores


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--encoder", required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    known = [json.loads(line) for line in args.out.read_text().splitlines()] if args.out.exists() else []
    for draw in range(DRAWS):
        for name in SETS:
            if not any((row["set"], row["draw"]) == (name, draw) for row in known):
                known.append({"set": name, "draw": draw, **measure_set(args.data, name, draw, args.encoder)})
                with args.out.open("a") as file:
                    file.write(json.dumps(known[-1]) + "\n")
    print({weights: round(float(np.mean([row[weights] for row in known])), 2) for weights in ("equal", "chosen")})


if __name__ == "__main__":
    main()
