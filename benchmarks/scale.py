"""Measure the time of the study's decisions: 20,000 toy trials on 64 simulated workers in virtual time.

Full training takes 45 to 135 s of virtual time. The study's own time is real, and idle workers wait for it: proposals,
promotions, writing the ledger and syncing it to disk.

- `decision_p99_ms`: time of the study per submitted request.
- `decision_cpu_p99_ms`: CPU time of the same, without waiting for the disk or other processes.
- `busy`: fraction of all worker time spent training, including the end of the search when workers run out of requests.
- `replay_s`: time to read the ledger into a state.
- `resume_s`: time until a resumed search can start its next trial.

    python benchmarks/scale.py --out benchmarks/results/scale.json
"""

from __future__ import annotations

import random
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from measure import finish, options
from toy import Toy, VirtualExecutor

from headhunt.run.directory import RunDirectory
from headhunt.run.ledger import LedgerWriter, read_state
from headhunt.run.state import Outcome
from headhunt.spec import Space
from headhunt.study.budget import Limits
from headhunt.study.candidates import Candidates
from headhunt.study.requests import EvaluateTrial
from headhunt.study.study import Study

FULL_SECONDS = 90.0  # virtual seconds of full training, on average


def evaluate(request: EvaluateTrial) -> Outcome:
    """Return a toy outcome with its virtual time. The slowest trials take three times as long as the fastest."""
    outcome = Toy("ridge")(request)
    pace = random.Random(f"pace/{request.seed}").uniform(0.5, 1.5)
    added = request.fraction * (2 / 3 if request.attempt else 1)  # without the rung below
    return replace(outcome, seconds=FULL_SECONDS * pace * added)


def open_study(folder: Path, trials: int, executor: VirtualExecutor) -> Study:
    """Open a study in a new or existing run directory."""
    ledger = LedgerWriter(RunDirectory(folder))
    candidates = Candidates(Space.load("default"), encoder="toy")
    return Study(ledger, candidates, executor, limits=Limits(trials=trials), clock=lambda: executor.now)


def main() -> None:
    parser = options(__doc__, data=False, encoder=False)
    parser.add_argument("--trials", type=int, default=20_000, help="number of trials")
    parser.add_argument("--workers", type=int, default=64, help="number of simulated workers")
    parser.add_argument("--folder", type=Path, default=None, help="parent of the temporary run directory")
    args = parser.parse_args()
    trials = 1_000 if args.quick else args.trials
    with tempfile.TemporaryDirectory(dir=args.folder) as temporary:
        folder = Path(temporary)
        executor = VirtualExecutor(args.workers, evaluate)
        started = time.perf_counter()
        study = open_study(folder, trials, executor)
        reason = study.run()
        search_s = time.perf_counter() - started
        state = study.state
        study.ledger.close()

        started = time.perf_counter()
        replayed = read_state(RunDirectory(folder))
        replay_s = time.perf_counter() - started
        assert replayed == state, "The replayed state must equal the state of the search."

        started = time.perf_counter()
        open_study(folder, trials + 1, VirtualExecutor(args.workers, evaluate)).ledger.close()
        resume_s = time.perf_counter() - started

        ledger = RunDirectory(folder).ledger.read_bytes()
        turns = [turn for turn in executor.turns if turn[-1]]
        decisions = np.array([seconds / requests for seconds, _, requests in turns for _ in range(requests)])
        cpu_decisions = np.array([cpu / requests for _, cpu, requests in turns for _ in range(requests)])
        result = {
            "decision_p99_ms": round(float(np.percentile(decisions, 99)) * 1000, 2),
            "decision_p50_ms": round(float(np.median(decisions)) * 1000, 2),
            "decision_max_ms": round(float(decisions.max()) * 1000, 2),
            "decision_cpu_p99_ms": round(float(np.percentile(cpu_decisions, 99)) * 1000, 2),
            "busy": round(executor.busy / (args.workers * executor.now), 4),
            "replay_s": round(replay_s, 3),
            "resume_s": round(resume_s, 3),
            "trials": len(state.trials),
            "results": len(state.settled),
            "records": len(ledger.splitlines()),
            "ledger_mb": round(len(ledger) / 1e6, 1),
            "workers": args.workers,
            "virtual_hours": round(executor.now / 3600, 2),
            "seconds": round(search_s, 1),
            "ended": reason,
        }
    finish(args, result)


if __name__ == "__main__":
    main()
