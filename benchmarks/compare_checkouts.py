"""Measure the speed of this checkout divided by that of another, with the same benchmark scripts.

Each repeat runs every script in the old and in the new checkout, in alternating order. A ratio above 1 means that the
new checkout is faster. The interval is a 95 % t-interval of the mean log ratio over the repeats.

    python benchmarks/compare_checkouts.py --data DIR --old DIR --out FILE

`overhead` is the throughput of a search: trials per second, in one process and on Ray. Quick runs of `corpus` and
`service` are short; `--full service` measures a minute of each service, `--corpus-rows 100000` more shards.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from measure import encoder_folder, finish, options
from scipy.stats import t

NEW = Path(__file__).parent.parent
# Training and prediction alone, without the Trainer that benchmarks/throughput.py compares with.
SPEED = """
import json, sys, time
from pathlib import Path
sys.path.insert(0, "benchmarks")
import throughput
from headhunt.data import Task

data, encoder = Path(sys.argv[1]), sys.argv[2]
task = Task.load(data / "sst2", limit=256, seed=0)
texts = (task.splits["test"].texts() * 3)[:3000]
runs = {"headhunt": throughput.headhunt_epoch(task, encoder), "predict": throughput.prediction(task, encoder, texts)[0]}
seconds = {name: [] for name in runs}
for turn in range(4):
    for name, run in runs.items():
        began = time.perf_counter()
        run()
        if turn:
            seconds[name].append(time.perf_counter() - began)
print(json.dumps({"seconds": seconds}))
"""
Speeds = dict[str, float]


def _inverse_seconds(result: dict[str, Any], names: dict[str, str]) -> Speeds:
    return {title: 1 / min(result["seconds"][name]) for name, title in names.items()}


def _throughput(result: dict[str, Any]) -> Speeds:
    return _inverse_seconds(result, {"headhunt": "training", "predict": "prediction"})


def _features(result: dict[str, Any]) -> Speeds:
    return _inverse_seconds(result, {"from_half": "cached, half frozen", "head_alone": "cached, head alone"})


def _overhead(result: dict[str, Any]) -> Speeds:
    rates = result["trials_per_second"]
    return {"trials in one process": max(rates["inline"]), "trials on Ray": max(rates["ray"])}


def _service(result: dict[str, Any]) -> Speeds:
    return {"service": float(result["texts_per_second"]["service"])}


def _corpus(result: dict[str, Any]) -> Speeds:
    return {"corpus": float(result["rows_a_second"])}


SCRIPTS: dict[str, Callable[[dict[str, Any]], Speeds]] = {
    "throughput": _throughput,
    "features": _features,
    "overhead": _overhead,
    "service": _service,
    "corpus": _corpus,
}


def run(checkout: Path, script: str, args: argparse.Namespace, encoder: str, extra: list[str]) -> Speeds:
    """Run a script of a checkout and return its speeds."""
    if script == "throughput":
        command, extra = [sys.executable, "-c", SPEED, str(args.data.absolute()), encoder], []
    else:
        command = [sys.executable, f"benchmarks/{script}.py", "--data", str(args.data.absolute()), "--encoder", encoder]
        if script == "corpus" and args.corpus_rows and not args.quick:
            extra = ["--rows", str(args.corpus_rows)]
        elif script != "features":
            extra = [word for word in extra if word == "--quick"]  # only features.py has --repeats
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src")}
    process = subprocess.run([*command, *extra], cwd=checkout, env=environment, capture_output=True, text=True)
    if process.returncode:
        sys.exit(f"{script}.py of {checkout} failed:\n{process.stderr[-2000:]}")
    return SCRIPTS[script](json.loads(process.stdout.strip().splitlines()[-1]))


def interval(ratios: list[float]) -> tuple[float, float, float]:
    """Return the geometric mean of the ratios and its 95 % interval."""
    logs = [math.log(ratio) for ratio in ratios]
    half = float(t.ppf(0.975, len(logs) - 1)) * stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else math.inf
    return tuple(round(math.exp(value), 3) for value in (mean(logs), mean(logs) - half, mean(logs) + half))  # type: ignore[return-value]


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--old", type=Path, required=True, help="the checkout to compare with")
    parser.add_argument("--repeats", type=int, default=5, help="runs of each script in each checkout")
    parser.add_argument("--scripts", nargs="*", default=list(SCRIPTS), help="scripts to run")
    parser.add_argument("--corpus-rows", type=int, default=None, help="rows of the corpus; default: a quick run")
    parser.add_argument("--full", nargs="*", default=[], help="scripts that run at full size")
    args = parser.parse_args()
    encoder = encoder_folder(args.encoder)
    repeats = 1 if args.quick else args.repeats
    ratios: dict[str, list[float]] = {}
    for turn in range(repeats):
        for script in args.scripts:
            extra = ["--repeats", "1"] if script in args.full and not args.quick else ["--quick"]
            order = [("old", args.old.absolute()), ("new", NEW.absolute())]
            speeds = {
                name: run(checkout, script, args, encoder, extra)
                for name, checkout in (order if turn % 2 == 0 else order[::-1])
            }
            for name in speeds["new"]:
                ratios.setdefault(name, []).append(speeds["new"][name] / speeds["old"][name])
            print(turn, script, {name: round(values[-1], 3) for name, values in ratios.items()}, flush=True)
    result = {
        name: dict(zip(("ratio", "low", "high"), interval(values), strict=True)) for name, values in ratios.items()
    }
    finish(args, {"new_vs_old": result, "repeats": repeats, "ratios": ratios})


if __name__ == "__main__":
    main()
