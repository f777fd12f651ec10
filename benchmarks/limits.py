"""Measure whether the winner of a search with `--max-latency` stays below the limit.

A first search on 500 rows of trec6 has no limit. It measures the latency of every fully evaluated candidate. The median
of these latencies is the limit of a second search. The model of its winner is then loaded and measured in a new process
with one thread; the machine should otherwise be idle. `winner_vs_limit` is its latency divided by the limit. The target
is at most 1.1.

    python benchmarks/limits.py --data DIR --out benchmarks/results/limits.json
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

import numpy as np
from measure import encoder_folder, finish, options
from search import draw

from headhunt.run.directory import RunDirectory
from headhunt.run.ledger import read_state
from headhunt.run.results import SearchResult

MEASURE = """
import json, sys
from pathlib import Path
from headhunt.engine.profiling import latency
from headhunt.run.task import open_task
from headhunt.predictor import Predictor

split = open_task(Path(sys.argv[1]) / "task").splits["train"]
predictor = Predictor.load(sys.argv[2])
medians = [latency(predictor, split.texts(0, 256), split.texts_b(0, 256), 1, 200).p50_ms for _ in range(3)]
print(json.dumps(min(medians)))
"""


def search(words: list[str], folder: Path, seconds: int, encoder: str, *limit: str) -> SearchResult:
    """Run a search and return its result."""
    command = [sys.executable, "-m", "headhunt.cli", "search", *words, "--encoder", encoder, *limit]
    command += ["--time", f"{seconds}s", "--out", str(folder), "--workers", "2"]
    subprocess.run(command, check=True)
    result = RunDirectory(folder).read_result()
    assert result is not None
    return result


def latencies(folder: Path) -> list[float]:
    """Return the milliseconds per text of every fully evaluated candidate of a run."""
    results = [result for trial in read_state(RunDirectory(folder)).trials for result in trial.results.values()]
    return [result.extra["latency_ms"] for result in results if "latency_ms" in (result.extra or {})]


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--seconds", type=int, default=180, help="time limit of each search")
    args = parser.parse_args()
    seconds = 25 if args.quick else args.seconds
    encoder = encoder_folder(args.encoder)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        os.environ |= {"HEADHUNT_CACHE": temporary, "TOKENIZERS_PARALLELISM": "false"}
        words = draw("trec6", args.data, folder)
        unlimited = search(words, folder / "unlimited", seconds, encoder)
        measured = latencies(folder / "unlimited")
        limit = round(float(np.median(measured)), 3)
        limited = search(words, folder / "limited", seconds, encoder, "--max-latency", f"{limit}ms")
        refused = sum(rung.failed for rung in limited.rungs)
        directory = RunDirectory(folder / "limited")
        model = directory.models / limited.winner_model if limited.winner_model else directory.model
        command = [sys.executable, "-c", MEASURE, str(directory.path), str(model)]
        winner_ms = float(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
    finish(
        args,
        {
            "winner_vs_limit": round(winner_ms / limit, 3),
            "limit_ms": limit,
            "winner_ms": winner_ms,
            "candidates_measured": len(measured),
            "latencies_ms": [min(measured), max(measured)],
            "refused": refused,
            "winner": [asdict(result.winner.spec.head) if result.winner else None for result in (unlimited, limited)],
        },
    )


if __name__ == "__main__":
    main()
