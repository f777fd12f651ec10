"""Measure whether searches lose results when their driver or their workers are killed with SIGKILL.

Driver: a search in one process (`--workers 0`, fixed seed) is killed 30 times at random times and resumed each time.
The ledger must only grow, and no rung of a trial may have two results. The final leaderboard must equal that of an
uninterrupted search. Workers: worker processes of a search with two workers are killed 20 times. The search must
finish, and the ledger must record every lost trial.

    python benchmarks/chaos.py --data DIR --out benchmarks/results/chaos.json
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from measure import encoder_folder, finish, options

from headhunt.run.directory import RunDirectory
from headhunt.run.events import TrialFinished, decode
from headhunt.run.task import INFO

SPACE = """
[head]
layers = [1, 2, "mix"]
pooling = ["cls", "mean", "max", "mean_max", "attention"]
dropout = { float = [0.0, 0.4] }
mlp = { optional = true, width = [64, 128] }
[recipe]
epochs = 3.0
learning_rate = { log = [2e-5, 5e-4] }
head_lr_multiplier = { log = [1.0, 30.0] }
freeze = [5, "all"]
"""


def start_headhunt(*words: str) -> subprocess.Popen[str]:
    """Start a command in a new process group."""
    command = [sys.executable, "-m", "headhunt.cli", *words]
    with Path(os.environ["CHAOS_LOG"]).open("a") as log:  # the child process has its own file descriptor
        return subprocess.Popen(command, stdout=log, stderr=log, text=True, start_new_session=True)


def read_results(folder: Path) -> list[tuple[int, int, str, Any]]:
    """Return every result in the ledger, in order; a torn last line is not a record."""
    path = RunDirectory(folder).ledger
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    events = [decode(line)[1] for line in lines]
    return [(e.trial, e.rung, e.outcome, e.score) for e in events if isinstance(e, TrialFinished)]


def count_repeats(results: list[tuple[int, int, str, Any]]) -> int:
    """Return the number of results beyond the first of each rung of a trial."""
    settled = [(trial, rung) for trial, rung, outcome, _ in results if outcome != "lost"]
    return len(settled) - len(set(settled))


def leaderboard(folder: Path) -> list[tuple[int, int, float]]:
    """Return trial, rung and score of each row of the leaderboard."""
    words = [sys.executable, "-m", "headhunt.cli", "status", str(folder), "--json"]
    rows = json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)["leaderboard"]
    return [(row["trial"], row["rung"], row["score"]) for row in rows]


def kill_drivers(common: list[str], folder: Path, kills: int, rng: random.Random) -> dict[str, Any]:
    """Run a search once without and once with kills of its driver, and compare them."""
    started = time.monotonic()
    assert start_headhunt("search", *common, "--workers", "0", "--out", str(folder / "undisturbed")).wait() == 0
    undisturbed_s = time.monotonic() - started
    killed_run = folder / "killed"
    previous: list[Any] = []
    lost = done = 0
    process = start_headhunt("search", *common, "--workers", "0", "--out", str(killed_run))
    while done < kills:
        # Early kills are included, but most come after a result: a search that never gets a result never ends.
        time.sleep(rng.uniform(1, 15))
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        elif process.returncode != 0 and RunDirectory(killed_run).exists():
            sys.exit(f"The search failed with exit code {process.returncode}.")
        done += 1
        results = read_results(killed_run)
        lost += previous != results[: len(previous)]
        previous = results
        directory = RunDirectory(killed_run)
        resumable = directory.settings.exists() and (directory.task / INFO).exists()
        if resumable:
            process = start_headhunt("resume", str(killed_run), "--workers", "0")
        else:  # killed before it wrote its settings and task
            shutil.rmtree(killed_run, ignore_errors=True)
            process = start_headhunt("search", *common, "--workers", "0", "--out", str(killed_run))
        print(f"kill {done}: {len(results)} results", flush=True)
    assert process.wait() == 0
    results = read_results(killed_run)
    lost += previous != results[: len(previous)]
    return {
        "driver_kills": done,
        "lost": lost,
        "repeated": count_repeats(results),
        "same_leaderboard": leaderboard(folder / "undisturbed") == leaderboard(killed_run),
        "results": len(results),
        "undisturbed_s": round(undisturbed_s, 1),
    }


def worker_pids() -> list[int]:
    """Return the process ids of all local workers on this machine."""
    pids = []
    for path in Path("/proc").glob("[0-9]*/comm"):
        try:
            if path.read_bytes().startswith(b"headhunt "):
                pids.append(int(path.parent.name))
        except OSError:
            continue
    return pids


def kill_workers(common: list[str], folder: Path, kills: int, rng: random.Random) -> dict[str, Any]:
    """Run a search with two workers and kill worker processes at random times."""
    run = folder / "workers"
    process = start_headhunt("search", *common, "--workers", "2", "--out", str(run))
    done = 0
    while done < kills and process.poll() is None:
        time.sleep(rng.uniform(1, 4))
        if pids := worker_pids():
            os.kill(rng.choice(pids), signal.SIGKILL)
            done += 1
            print(f"worker kill {done}: {len(read_results(run))} results", flush=True)
    code = process.wait()
    results = read_results(run)
    result = RunDirectory(run).read_result()
    return {
        "worker_kills": done,
        "workers_exit_code": code,
        "losses_in_ledger": sum(outcome == "lost" for _, _, outcome, _ in results),
        "workers_repeated": count_repeats(results),
        "workers_ended": result.reason if result else None,
        "workers_model": (run / "model" / "headhunt.json").exists(),
        "workers_results": len(results),
    }


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--only", choices=("drivers", "workers"), help="kill only these")
    args = parser.parse_args()
    encoder = encoder_folder(args.encoder)
    rng = random.Random(0)
    kills, workers, trials = (2, 1, 6) if args.quick else (30, 20, 80)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        os.environ |= {
            "HEADHUNT_CACHE": temporary,
            "CHAOS_LOG": str(folder / "log.txt"),
            "TOKENIZERS_PARALLELISM": "false",
        }
        (folder / "space.toml").write_text(SPACE)
        common = [
            str(args.data / "trec6"),
            "--encoder",
            encoder,
            "--limit",
            "60",
            "--space",
            str(folder / "space.toml"),
        ]
        common += ["--time", "none", "--seed", "1"]
        try:
            result = (
                {} if args.only == "workers" else kill_drivers([*common, "--trials", str(trials)], folder, kills, rng)
            )
            print(json.dumps(result), flush=True)
            result |= (
                {} if args.only == "drivers" else kill_workers([*common, "--trials", str(trials)], folder, workers, rng)
            )
        except BaseException:
            print((folder / "log.txt").read_text()[-3000:])
            raise
    result["kills"] = result.get("driver_kills", 0) + result.get("worker_kills", 0)
    finish(args, result)


if __name__ == "__main__":
    main()
