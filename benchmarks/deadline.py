"""Measure whether ten searches with a time limit of 120 s end on time with a model that loads.

In one search, a single training step takes minutes (eight wide convolutions, all rows in one batch). In another,
candidates need more memory than the machine has. Each search is a separate command with 500 training rows. Its model is
then loaded with transformers only. `first_model_s` is the time from the start of the command to the first loadable
model, on SST sentences.

    python benchmarks/deadline.py --data DIR --out benchmarks/results/deadline.json
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from measure import encoder_folder, finish, options

from headhunt.run.directory import RunDirectory
from headhunt.run.ledger import read_state

HANGS = """
[head]
pooling = ["mean", "max", "attention"]
convolutions = { layers = 8, channels = 1024, kernel = 31, skip = [false, true] }
[recipe]
batch_size = 512
learning_rate = { log = [1e-5, 1e-4] }
freeze = ["embeddings", 2, 3, 4]
"""
HUNGRY = """
[head]
pooling = ["mean", "max", "attention"]
convolutions = { layers = 1, channels = 4096, kernel = 3, skip = [false, true] }
blocks = { layers = 8, heads = [1, 4, 8] }
[recipe]
learning_rate = { log = [1e-5, 1e-4] }
freeze = ["embeddings", 2, 3, 4]
"""
LOAD_MODEL = """
import sys
from transformers import pipeline
classify = pipeline("text-classification", model=sys.argv[1], trust_remote_code=True)
print(classify([{"text": "a fine film", "text_pair": "a good movie"}] if sys.argv[2] == "pair" else ["a fine film"]))
"""


def run_search(name: str, words: list[str], folder: Path, limit: float, pair: bool, watch: bool) -> dict[str, Any]:
    """Run a search; return its duration, its outcomes and whether its model loads.

    With `watch`, also measure the time to the first model.
    """
    out = folder / name
    started = time.monotonic()
    command = [sys.executable, "-m", "headhunt.cli", "search", *words, "--time", f"{limit}s", "--out", str(out)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    first = None
    while watch and process.poll() is None and first is None:
        if (out / "best" / "headhunt.json").exists():
            first = time.monotonic() - started
        time.sleep(0.1)
    output, _ = process.communicate(timeout=limit * 3)
    seconds = time.monotonic() - started
    if process.returncode:
        print(output, flush=True)
    loading = subprocess.run(
        [sys.executable, "-c", LOAD_MODEL, str(out / "model"), "pair" if pair else "single"],
        capture_output=True,
        text=True,
    )
    directory = RunDirectory(out)
    trials = read_state(directory).trials
    outcomes = Counter(outcome.outcome for trial in trials for outcome in trial.results.values())
    result = directory.read_result()
    scores = result.test.scores if result and result.test else {}
    test = {name: round(metrics["accuracy"].value, 4) for name, metrics in scores.items()}
    row = {"run": name, "seconds": round(seconds, 1), "exit": process.returncode, "loads": loading.returncode == 0}
    row |= {"outcomes": dict(outcomes), "model_from": result.model_from if result else None, "test": test}
    if watch:
        row["first_model_s"] = None if first is None else round(first, 1)
    if loading.returncode:
        print(loading.stderr[-1500:], flush=True)
    print(json.dumps(row), flush=True)
    return row


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--runs", type=int, default=10, help="number of searches")
    parser.add_argument("--only", nargs="*", help="only these: sst2, trec6, mrpc, hangs or hungry")
    # --abreast is the former name, in the command of the committed result.
    parser.add_argument("--parallel", "--abreast", type=int, default=1, help="searches at a time; they share the cores")
    args = parser.parse_args()
    encoder = encoder_folder(args.encoder)
    limit, count = (25, 1) if args.quick else (120, args.runs)
    tasks = {"sst2": "cs224n_sst5", "trec6": "trec6", "mrpc": "mrpc"}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        os.environ |= {"HEADHUNT_CACHE": temporary, "TOKENIZERS_PARALLELISM": "false"}
        for name, text in (("hangs", HANGS), ("hungry", HUNGRY)):
            (folder / f"{name}.toml").write_text(text)
        plans = [*("sst2", "trec6", "mrpc") * 3][: count - 2 if count > 2 else count]
        plans += ["hangs", "hungry"] if count > 2 else []
        plans = args.only or plans
        cores = len(os.sched_getaffinity(0))

        def run_plan(number: int, plan: str) -> dict[str, Any]:
            task = plan if plan in tasks else "sst2"
            words = [str(args.data / tasks[task]), "--encoder", encoder, "--limit", "500", "--seed", str(number)]
            words += ["--problem-type", "single_label_classification", "--workers", str(max(1, cores // args.parallel))]
            words += ["--space", str(folder / f"{plan}.toml")] if plan not in tasks else []
            return run_search(f"{number}-{plan}", words, folder, limit, task == "mrpc", plan == "sst2")

        with ThreadPoolExecutor(args.parallel) as pool:
            rows = list(pool.map(run_plan, range(len(plans)), plans))
    late = [row for row in rows if row["seconds"] > limit + 5]
    on_time = [row for row in rows if row["exit"] == 0 and row["loads"] and row not in late]
    first_models = [row["first_model_s"] for row in rows if row.get("first_model_s") is not None]
    result: dict[str, Any] = {"on_time_with_model": len(on_time), "runs": len(rows), "limit_s": limit}
    result |= {"longest_s": max(row["seconds"] for row in rows), "first_model_s": max(first_models, default=None)}
    finish(args, {**result, "each": rows})


if __name__ == "__main__":
    main()
