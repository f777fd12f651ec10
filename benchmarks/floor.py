"""Measure whether a search delivers what simple tools give in the same seconds: the floor.

Every cell is one search of a set in so many seconds, on a calm or a busy machine, beside scikit-learn (word counts, and
the last layer of the encoder) and a short fine-tuning loop with the same seconds. The references are scripts of a
folder that is given with `--tools`: `make.py` writes the sets, `reference.py` and `plain.py` print their figures.

    python benchmarks/floor.py --tools DIR --sets DIR --out benchmarks/results/floor.jsonl

Cells that are in the file are not measured again.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from measure import encoder_folder

SETS = ("sst2", "trec6", "ag_news", "banking77", "umsab_sentiment")
TICKETS = ("--metric", "macro_f1", "--order", "opened_at")


def cells(only: str | None) -> Iterator[tuple[str, str, int]]:
    """Yield set, rows and seconds, the most telling first."""
    short = [(name, "500", seconds) for seconds in (60, 180) for name in SETS]
    long = [(name, rows, 300) for rows in ("5000", "all") for name in SETS]
    tickets = [("tickets", "all", seconds) for seconds in (60, 180, 600)]
    yield from (cell for cell in [*short, *tickets, *long] if only is None or f"{cell[0]} {cell[1]} {cell[2]}" in only)


@contextmanager
def load(busy: bool) -> Iterator[None]:
    """Keep all cores busy, or do nothing."""
    processes = [multiprocessing.Process(target=_spin, daemon=True) for _ in range(os.cpu_count() or 1) if busy]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.kill()


def _spin() -> None:
    while True:
        pass


def run(command: list[str], **options: Any) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[:4])} failed: {done.stderr[-1000:]}")
    return done.stdout


def search(train: Path, test: Path, encoder: str, seconds: int, extra: tuple[str, ...], draw: int) -> dict[str, Any]:
    """Run a search and return what it delivers, scored on all test rows."""
    import pandas
    from sklearn.metrics import accuracy_score, f1_score

    with tempfile.TemporaryDirectory() as folder:
        out, began = Path(folder) / "run", time.perf_counter()
        command = [sys.executable, "-m", "headhunt.cli", "search", str(train), "--test", str(test), "--out", str(out)]
        run([*command, "--encoder", encoder, "--time", f"{seconds}s", "--seed", str(draw), *extra])
        took = time.perf_counter() - began
        result = json.loads((out / "result.json").read_text())
        labeled, inputs = Path(folder) / "labeled.csv", Path(folder) / "test.csv"
        rows = pandas.read_csv(test, keep_default_na=False)
        rows[["text"]].to_csv(inputs, index=False)
        predict = [sys.executable, "-m", "headhunt.cli", "predict", str(out / "model"), "--input", str(inputs)]
        run([*predict, "--out", str(labeled)])
        said = pandas.read_csv(labeled, keep_default_na=False)
        column = next(name for name in ("prediction", "label", said.columns[-1]) if name in said)
        truth, guess = rows.label.astype(str), said[column].astype(str)
    return {
        "accuracy": round(float(accuracy_score(truth, guess)), 4),
        "macro_f1": round(float(f1_score(truth, guess, average="macro")), 4),
        "took": round(took, 1),
        "delivered": result["verdict"]["delivered"],
        "model_from": result["model_from"],
        "rows": result["trained_rows"],
        "tested": {
            name: round(scores[result["metric"]]["value"], 4) for name, scores in result["test"]["scores"].items()
        },
        "sentence": result["verdict"]["sentence"],
    }


def measure(name: str, rows: str, seconds: int, args: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of one cell."""
    files = [args.sets / (f"{name}_train.csv" if name == "tickets" else f"{name}_{rows}_train.csv")]
    files.append(args.sets / f"{name}_test.csv")
    train, test = map(str, files)
    encoder, found = encoder_folder(args.encoder), {}
    with load(args.busy):
        found["headhunt"] = search(*files, encoder, seconds, TICKETS if name == "tickets" else (), args.draw)
        if not args.busy and not args.searches:
            lines = run([sys.executable, str(args.tools / "plain.py"), train, test, encoder, str(seconds)]).splitlines()
            found["plain loop"] = json.loads(lines[-1])
    if not args.searches:
        lines = run([sys.executable, str(args.tools / "reference.py"), train, test, encoder]).splitlines()
        found["scikit-learn"] = [json.loads(line) for line in lines if line.startswith("{")]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tools", type=Path, required=True, help="folder with reference.py and plain.py")
    parser.add_argument("--sets", type=Path, required=True, help="folder with the sets that make.py wrote")
    parser.add_argument("--encoder", help="folder of the encoder")
    parser.add_argument("--only", help="cells to measure, such as 'sst2 500 60, trec6 500 180'")
    parser.add_argument("--busy", action="store_true", help="keep all cores busy meanwhile")
    parser.add_argument("--searches", action="store_true", help="leave the references out")
    parser.add_argument("--draw", type=int, default=0, help="seed of the search")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    known = [json.loads(line) for line in args.out.read_text().splitlines()] if args.out.exists() else []
    for name, rows, seconds in cells(args.only):
        cell = {"set": name, "rows": rows, "seconds": seconds, "busy": args.busy, "draw": args.draw}
        if any(cell.items() <= row.items() for row in known):
            continue
        row = cell | measure(name, rows, seconds, args)
        with args.out.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
