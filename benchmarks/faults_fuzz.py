"""Feed damaged files and requests to everything that reads them.

Every input must be accepted, or refused with a message for the user. No input may run code, write outside its folder,
take more than 20 s or more than 2 GB. Each kind of input has a process of its own.

    python benchmarks/faults_fuzz.py --inputs 20000 --out benchmarks/results/faults_fuzz.json

`failures` lists the kinds of input that broke a promise, with the end of the output.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from measure import finish, options

HERE = Path(__file__)
TESTS = HERE.parent.parent / "tests"


def run_target(name: str, inputs: int, seed: int) -> dict[str, Any]:
    """Fuzz one target in this process."""
    sys.path.insert(0, str(TESTS))
    from fuzz_targets import TARGETS
    from fuzzing import fuzz, peak_memory

    with tempfile.TemporaryDirectory() as folder:
        tally = fuzz(TARGETS[name], Path(folder), inputs, seed)
    return {
        "inputs": tally.inputs,
        **tally.results,
        "slowest_seconds": round(tally.slowest, 2),
        "peak_mb": peak_memory() >> 20,
    }


def target_names() -> list[str]:
    """Return the names of all targets."""
    code = f"import sys; sys.path.insert(0, {str(TESTS)!r}); from fuzz_targets import TARGETS; print(*TARGETS)"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()


def main() -> None:
    parser = options(__doc__, data=False, encoder=False)
    parser.add_argument("--inputs", type=int, default=20_000, help="number of inputs, of all kinds together")
    parser.add_argument("--seed", type=int, default=0, help="seed of the inputs")
    parser.add_argument("--targets", nargs="*", default=None, help="kinds of input; all by default")
    args = parser.parse_args()
    names = args.targets or target_names()
    inputs = 20 if args.quick else -(-args.inputs // len(names))
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    targets, failures = {}, {}
    started = time.perf_counter()
    for name in names:
        command = [sys.executable, HERE, "--one", json.dumps([name, inputs, args.seed])]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            failures[name] = f"exit code {done.returncode}: {done.stderr[-1500:]}"
            print(name, failures[name], flush=True)
        else:
            targets[name] = json.loads(done.stdout.splitlines()[-1])
            print(name, targets[name], flush=True)
    finish(
        args,
        {
            "inputs": sum(target["inputs"] for target in targets.values()),
            "failures": failures,
            "peak_mb": max((target["peak_mb"] for target in targets.values()), default=0),
            "slowest_seconds": max((target["slowest_seconds"] for target in targets.values()), default=0.0),
            "seconds": round(time.perf_counter() - started),
            "targets": targets,
        },
    )
    sys.exit(bool(failures))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(run_target(*json.loads(sys.argv[2]))))
    else:
        main()
