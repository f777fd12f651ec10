"""The real thing: searches of ten minutes on three tasks of 500 rows, `bohb` beside `random` and the plain head.

500 rows are drawn of the training split and up to 1,000 of the test split, by pandas' `sample` with seed 0. sst2 is
drawn from SST sentences (cs224n_sst5 without the neutral class). Each search is a command of its own with two workers.
Kept of each: the summary, what every rung cost, and the best score over time.

    python benchmarks/search.py --data DIR --out benchmarks/results/search.json

Searches that are in `search/` beside the result already are not repeated.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pandas
from measure import RESULTS, encoder_folder, finish, options

TASKS = ("trec6", "mrpc", "sst2")
STRATEGIES = ("bohb", "random")


def draw(name: str, data: Path, folder: Path, rows: int = 500, seed: int = 0) -> list[str]:
    """The words of a command that name this task's data."""
    source = data / ("cs224n_sst5" if name == "sst2" else name)
    train = pandas.read_parquet(source / "train.parquet")
    test = pandas.read_parquet(source / ("dev.parquet" if name == "sst2" else "test.parquet"))
    if name == "sst2":
        train, test = (frame[frame.label.astype(int) != 2] for frame in (train, test))
        train, test = (frame.assign(label=(frame.label.astype(int) > 2).astype(int)) for frame in (train, test))
    train = train.sample(min(rows, len(train)), random_state=seed)
    test = test[~test.text.isin(train.text)]
    test = test.sample(min(1000, len(test)), random_state=0)
    columns = ["text", "text_b", "label"] if name == "mrpc" else ["text", "label"]
    train[columns].to_parquet(folder / f"{name}_train.parquet")
    test[columns].to_parquet(folder / f"{name}_test.parquet")
    return [str(folder / f"{name}_train.parquet"), "--test", str(folder / f"{name}_test.parquet"), "--kind", "classes"]


def curve_of(folder: Path, top: int) -> list[tuple[float, float]]:
    """Seconds and the best score so far of fully judged candidates."""
    from headhunt.run import Run

    state = Run(folder).state
    curve, best = [], -1.0
    for (number, rung), at in zip(state.settled, state.times, strict=True):
        score = state.trials[number].results[rung].score
        if rung == top and score is not None and score > best:
            best = score
            curve.append((round(at, 1), round(score, 4)))
    return curve


def run_one(words: list[str], folder: Path, strategy: str, minutes: float, encoder: str, seed: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "headhunt.cli", "search", *words, "--encoder", encoder, "--strategy", strategy]
    command += ["--time", f"{minutes * 60:.0f}s", "--out", str(folder), "--workers", "2", "--seed", str(seed)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    print(done.stdout[-2500:], flush=True)
    if done.returncode:
        sys.exit(f"the search failed with {done.returncode}")
    result = json.loads((folder / "result.json").read_text())
    top = len(result["rungs"]) - 1
    for name in ("best", "plain"):
        if result[name]:
            result[name]["spec"].pop("encoder", None)
    return {**result, "curve": curve_of(folder, top), "seed": seed}


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--tasks", nargs="*", default=TASKS)
    parser.add_argument("--strategies", nargs="*", default=STRATEGIES)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    encoder = encoder_folder(args.encoder)
    tasks, strategies, minutes = args.tasks, args.strategies, args.minutes
    if args.quick:
        tasks, strategies, minutes = ["trec6"], ["bohb"], 0.6
    kept = RESULTS / "search"
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as made:
        os.environ |= {"HEADHUNT_CACHE": made, "TOKENIZERS_PARALLELISM": "false"}
        for strategy in strategies:
            for task in tasks:
                path = kept / f"{task}-{strategy}-{args.seed}.json"
                if path.exists() and not args.quick:
                    found = json.loads(path.read_text())
                else:
                    words = draw(task, args.data, Path(made))
                    found = run_one(words, Path(made) / f"{task}-{strategy}", strategy, minutes, encoder, args.seed)
                    if not args.quick:
                        kept.mkdir(parents=True, exist_ok=True)
                        path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
                test = {name: scores["accuracy"]["value"] for name, scores in found.get("test", {}).items()}
                result.setdefault(task, {})[strategy] = {
                    "test": test,
                    "judged": {name: found[name]["score"] if found[name] else None for name in ("best", "plain")},
                    "trials": found["trials"],
                    "rungs": [[row["results"], row["promoted"], row["seconds"]] for row in found["rungs"]],
                }
    finish(args, {"minutes": minutes, "rung_columns": ["results", "promoted", "worker seconds"], **result})


if __name__ == "__main__":
    main()
