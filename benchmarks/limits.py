"""Does `--max-latency` hold? The limit is the median of a search without one; the winner is measured again.

A search on 500 rows of trec6 tells the latency of every fully judged candidate. A second search may take no more than
the median of these. The model of its winner is then loaded and measured in a new process, one thread, on an otherwise
idle machine. `winner_vs_limit`: what it takes as a share of the limit; at most 1.1 is wanted.

    python benchmarks/limits.py --data DIR --out benchmarks/results/limits.json
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
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
taken = [latency(predictor, split.texts(0, 256), split.texts_b(0, 256), 1, 200).p50_ms for _ in range(3)]
print(json.dumps(min(taken)))
"""


def search(words: list[str], folder: Path, seconds: int, encoder: str, *limit: str) -> SearchResult:
    command = [sys.executable, "-m", "headhunt.cli", "search", *words, "--encoder", encoder, *limit]
    command += ["--time", f"{seconds}s", "--out", str(folder), "--workers", "2"]
    subprocess.run(command, check=True)
    result = RunDirectory(folder).read_result()
    assert result is not None
    return result


def latencies(folder: Path) -> list[float]:
    """Of every candidate that was judged in full."""
    results = [result for trial in read_state(RunDirectory(folder)).trials for result in trial.results.values()]
    return [result.extra["latency_ms"] for result in results if "latency_ms" in (result.extra or {})]


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--seconds", type=int, default=180)
    args = parser.parse_args()
    seconds = 25 if args.quick else args.seconds
    encoder = encoder_folder(args.encoder)
    with tempfile.TemporaryDirectory() as made:
        os.environ |= {"HEADHUNT_CACHE": made, "TOKENIZERS_PARALLELISM": "false"}
        words = draw("trec6", args.data, Path(made))
        free = search(words, Path(made) / "free", seconds, encoder)
        known = latencies(Path(made) / "free")
        limit = round(float(np.median(known)), 3)
        bound = search(words, Path(made) / "bound", seconds, encoder, "--max-latency", f"{limit}ms")
        refused = sum(rung.failed for rung in bound.rungs)
        model = f"models/{bound.winner_model}" if bound.winner_model else bound.model
        done = subprocess.run(
            [sys.executable, "-c", MEASURE, str(Path(made) / "bound"), str(Path(made) / "bound" / model)],
            stdout=subprocess.PIPE, text=True, check=True,
        )  # fmt: skip
        again = float(done.stdout)
    finish(
        args,
        {
            "winner_vs_limit": round(again / limit, 3),
            "limit_ms": limit,
            "winner_ms": again,
            "candidates_measured": len(known),
            "latencies_ms": [min(known), max(known)],
            "refused": refused,
            "winner": [free["best"]["spec"]["head"], bound["best"]["spec"]["head"]],
        },
    )


if __name__ == "__main__":
    main()
