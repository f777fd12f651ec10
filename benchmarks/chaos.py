"""Nothing is lost: `kill -9` of the driver at random moments, and of Ray's workers, with the real encoder.

Driver: a search in one process (`--workers 0`, fixed seed) is killed 30 times at random moments and resumed each time;
the ledger must only ever grow, no rung of a candidate may have two results, and the final leaderboard must be that of a
search nobody disturbed. Workers: of a search on two Ray workers, worker processes are killed 20 times; it must go on
and end, and every loss must be in the ledger.

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


def headhunt(*words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "headhunt.cli", *words]
    with Path(os.environ["CHAOS_LOG"]).open("a") as log:  # the child keeps its own copy
        return subprocess.Popen(command, stdout=log, stderr=log, text=True, start_new_session=True)


def results_of(folder: Path) -> list[tuple[int, int, str, Any]]:
    """Return every result in the ledger, in order; a torn last line is not a record."""
    path = RunDirectory(folder).ledger
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    events = [decode(line)[1] for line in lines]
    return [(e.trial, e.rung, e.outcome, e.score) for e in events if isinstance(e, TrialFinished)]


def repeats(results: list[tuple[int, int, str, Any]]) -> int:
    settled = [(trial, rung) for trial, rung, outcome, _ in results if outcome != "lost"]
    return len(settled) - len(set(settled))


def leaderboard(folder: Path) -> list[tuple[int, int, float]]:
    words = [sys.executable, "-m", "headhunt.cli", "status", str(folder), "--json"]
    board = json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)["leaderboard"]
    return [(row["trial"], row["rung"], row["score"]) for row in board]


def kill_drivers(common: list[str], folder: Path, kills: int, rng: random.Random) -> dict[str, Any]:
    """Searches once in peace and once with kills."""
    began = time.monotonic()
    assert headhunt("search", *common, "--workers", "0", "--out", str(folder / "peace")).wait() == 0
    peace_s = time.monotonic() - began
    disturbed = folder / "chaos"
    seen: list[Any] = []
    lost = done = 0
    process = headhunt("search", *common, "--workers", "0", "--out", str(disturbed))
    while done < kills:
        # From its first moments on, and mostly long enough to get a result: who is always killed sooner never ends.
        time.sleep(rng.uniform(1, 15))
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        elif process.returncode != 0 and RunDirectory(disturbed).exists():
            sys.exit(f"the search failed with {process.returncode}")
        done += 1
        found = results_of(disturbed)
        lost += seen != found[: len(seen)]
        seen = found
        directory = RunDirectory(disturbed)
        again = directory.settings.exists() and (directory.task / INFO).exists()
        if again:
            process = headhunt("resume", str(disturbed), "--workers", "0")
        else:  # killed before there was anything to resume
            shutil.rmtree(disturbed, ignore_errors=True)
            process = headhunt("search", *common, "--workers", "0", "--out", str(disturbed))
        print(f"kill {done}: {len(found)} results", flush=True)
    assert process.wait() == 0
    found = results_of(disturbed)
    lost += seen != found[: len(seen)]
    return {
        "driver_kills": done,
        "lost": lost,
        "repeated": repeats(found),
        "same_leaderboard": leaderboard(folder / "peace") == leaderboard(disturbed),
        "results": len(found),
        "undisturbed_s": round(peace_s, 1),
    }


def worker_pids() -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes().startswith(b"ray::Worker"):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def kill_workers(common: list[str], folder: Path, kills: int, rng: random.Random) -> dict[str, Any]:
    run = folder / "workers"
    process = headhunt("search", *common, "--workers", "2", "--out", str(run))
    done = 0
    while done < kills and process.poll() is None:
        time.sleep(rng.uniform(1, 4))
        if pids := worker_pids():
            os.kill(rng.choice(pids), signal.SIGKILL)
            done += 1
            print(f"worker kill {done}: {len(results_of(run))} results", flush=True)
    code = process.wait()
    found = results_of(run)
    result = RunDirectory(run).read_result()
    return {
        "worker_kills": done,
        "workers_exit_code": code,
        "losses_in_ledger": sum(outcome == "lost" for _, _, outcome, _ in found),
        "workers_repeated": repeats(found),
        "workers_ended": result.reason if result else None,
        "workers_model": (run / "model" / "headhunt.json").exists(),
        "workers_results": len(found),
    }


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--only", choices=("drivers", "workers"))
    args = parser.parse_args()
    encoder = encoder_folder(args.encoder)
    rng = random.Random(0)
    kills, workers, trials = (2, 1, 6) if args.quick else (30, 20, 80)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        os.environ |= {"HEADHUNT_CACHE": made, "CHAOS_LOG": str(folder / "log.txt"), "TOKENIZERS_PARALLELISM": "false"}
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
