"""Compare windows with cutting long texts, and measure the accuracy of a model that rejects texts.

IMDb, 1,000 training rows: the same head (mean pooling) and recipe, with texts cut at 128 and at 512 tokens and with up
to eight windows of 128 tokens, combined by mean, max and attention. Fine-tuned with `--seeds` seeds, and with the
encoder frozen and the head solved. Test accuracy, seconds of training, and milliseconds per test text.

CLINC150 with its out-of-scope rows, 2,000 training rows: one search with `--reject 0.9 --reject-label oos`. Coverage of
the in-scope test rows, accuracy of the answers, accuracy without rejecting, and the share of the out-of-scope rows that
are rejected.

    python benchmarks/long_texts.py --data DIR --encoder DIR --out benchmarks/results/long_texts.json

`draws.py` describes the rows. Gains are those over cutting at 128 tokens, over training runs with the same seeds, with
95 % intervals. Results in the `.jsonl` file beside the result are not repeated; the predictions are in the `.npz` file
beside it.
"""

from __future__ import annotations

import json
import tempfile
import time
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from draws import CLASSES, draw
from measure import encoder_folder, finish, options

import headhunt
from headhunt import Head, Task
from headhunt.engine.assembly import prepare
from headhunt.evaluation import compare, evaluate
from headhunt.spec import Spec, plain, solved
from headhunt.storage import atomic_file

BASE = "cut at 128"
READINGS: dict[str, tuple[int, str | None]] = {
    BASE: (128, None),
    "cut at 512": (512, None),
    "windows, mean": (128, "mean"),
    "windows, max": (128, "max"),
    "windows, attention": (128, "attention"),
}
REJECT = "clinc150, reject"
ROWS, REJECT_ROWS, TEST_ROWS = 1_000, 2_000, 2_000


def spec_of(encoder: str, training: str, reading: str, quick: bool) -> Spec:
    """Return the candidate of a cell."""
    length, windows = READINGS[reading]
    if quick:
        length //= 4
    if training == "solved":
        spec = solved(encoder)
        return replace(spec, head=replace(spec.head, windows=windows), recipe=replace(spec.recipe, max_length=length))
    spec = plain(encoder, ROWS)
    recipe = replace(spec.recipe, max_length=length, epochs=0.5 if quick else 3.0)
    return replace(spec, head=Head(pooling="mean", windows=windows), recipe=recipe)


def run(task: Task, spec: Spec, seed: int) -> tuple[np.ndarray, dict[str, float]]:
    """Train a candidate; return its probabilities for the test rows and its times."""
    test = task.splits["test"]
    started = time.perf_counter()
    training, predictor = prepare(task, task.splits["train"], spec, seed=seed)
    for _ in training.reports():
        pass
    training.finish()
    trained = time.perf_counter()
    outputs = predictor.outputs(test.texts())
    predicted = time.perf_counter() - trained
    times = {"training_s": round(trained - started, 1), "ms_per_text": round(1000 * predicted / len(test), 2)}
    return outputs, times


def reject(args: Namespace, folder: Path, encoder: str) -> dict[str, Any]:
    """Search with a rejection; return coverage and accuracy on test rows."""
    rows, test_rows = (400, 200) if args.quick else (REJECT_ROWS, 5_500)
    drawn = draw("clinc150_oos", args.data, folder, rows, test_rows)
    task = Task.load(drawn.train, test=drawn.test, problem_type=CLASSES)
    limits: dict[str, Any] = {"time": args.seconds}
    if args.quick:
        limits = {"time": 15, "workers": 0, "max_length": 16}
    out = folder / "clinc150"
    search = headhunt.search(task, out=out, encoder=encoder, reject=0.9, reject_label="oos", view=False, **limits)
    while (found := search.result) is None or found.test is None or found.test.rejection is None:  # a busy machine
        search = headhunt.resume(out, time=60)
    return {name: _rounded(value) for name, value in asdict(found.test.rejection).items()}


def _rounded(value: Any) -> Any:
    return round(value, 4) if isinstance(value, float) else value


def summarize(
    task: Task, records: list[dict[str, Any]], outputs: Mapping[str, np.ndarray], trainings: tuple[str, ...]
) -> dict[str, Any]:
    """Return the scores and times of each cell, and its gain over cutting at 128 tokens."""
    targets, summary = task.splits["test"].targets, {}
    for training in trainings:
        for reading in READINGS:
            found = [each for each in records if (each.get("training"), each.get("reading")) == (training, reading)]
            if not found:
                continue
            entry: dict[str, Any] = {"accuracy": round(float(np.mean([each["accuracy"] for each in found])), 4)}
            entry |= {name: round(float(np.median([each[name] for each in found])), 2) for name in TIMES}
            entry["seeds"] = [each["accuracy"] for each in found]
            pairs = [
                (outputs[f"{training}, {reading}, {each['seed']}"], outputs[f"{training}, {BASE}, {each['seed']}"])
                for each in found
                if reading != BASE and f"{training}, {BASE}, {each['seed']}" in outputs
            ]
            if pairs:
                runs, baseline = map(list, zip(*pairs, strict=True))
                gain = compare(CLASSES, "accuracy", runs, baseline, targets)
                entry["gain"] = {name: round(getattr(gain, name), 4) for name in ("gain", "low", "high", "p_value")}
            summary[f"{training}, {reading}"] = entry
    return summary


TIMES = ("training_s", "ms_per_text")


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--seconds", type=float, default=300.0, help="time of the search with rejection")
    parser.add_argument("--seeds", type=int, default=3, help="training runs of each fine-tuned model")
    args = parser.parse_args()
    encoder = encoder_folder(args.encoder)
    log = args.out.with_suffix(".jsonl") if args.out and not args.quick else None
    records = [json.loads(line) for line in log.read_text().splitlines()] if log and log.exists() else []
    arrays = log.with_suffix(".npz") if log else None
    outputs: dict[str, np.ndarray] = dict(np.load(arrays)) if arrays and arrays.exists() else {}

    def keep(record: dict[str, Any]) -> None:
        print(json.dumps(record), flush=True)
        records.append(record)
        if log and arrays:
            log.parent.mkdir(parents=True, exist_ok=True)
            with log.open("a") as file:
                file.write(json.dumps(record) + "\n")
            with atomic_file(arrays) as packed:
                np.savez_compressed(packed, **outputs)

    trainings = ("solved",) if args.quick else ("solved", "fine-tuned")
    readings = (BASE, "windows, mean") if args.quick else tuple(READINGS)
    with tempfile.TemporaryDirectory(prefix="headhunt-") as temporary:
        folder = Path(temporary)
        rows, test_rows = (40, 40) if args.quick else (ROWS, TEST_ROWS)
        drawn = draw("imdb", args.data, folder, rows, test_rows)
        task = Task.load(drawn.train, test=drawn.test, problem_type=CLASSES)
        for training in trainings:
            for reading in readings:
                if training == "solved" and reading == "windows, attention":
                    continue  # attention has weights, which a solved head has none of
                for seed in range(args.seeds if training == "fine-tuned" else 1):
                    key = f"{training}, {reading}, {seed}"
                    if key in outputs:
                        continue
                    outputs[key], times = run(task, spec_of(encoder, training, reading, args.quick), seed)
                    score = evaluate(CLASSES, outputs[key], task.splits["test"].targets, task.labels).scores["accuracy"]
                    record = {"training": training, "reading": reading, "seed": seed, **times}
                    keep(
                        record
                        | {"accuracy": round(score.value, 4), "low": round(score.low, 4), "high": round(score.high, 4)}
                    )
        if not any(REJECT in record for record in records):
            keep({REJECT: reject(args, folder, encoder)})
        summary = summarize(task, records, outputs, trainings)
    rejected = next(record[REJECT] for record in records if REJECT in record)
    finish(args, {"imdb": summary, REJECT: rejected, "test_rows": test_rows, "rows": rows})


if __name__ == "__main__":
    main()
