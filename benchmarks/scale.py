"""The driver alone: 20,000 toy trials on 64 simulated workers in virtual time, and its ledger read again.

A training takes virtual time (90 s in full, give or take), the driver's own time is real and its workers wait for it:
proposing, promoting, writing and syncing the ledger to disk. `decision_p99_ms` is the driver's time for each request it
sends out, `decision_cpu_p99_ms` what of it was not waiting for the disk or for other processes; `busy` is the share of
all worker time spent training, the end included, when the last ones are waited for; `replay_s` is what it takes to read
the ledger into a state, and `resume_s` until the search could go on.

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
from toy import Toy, Virtual

from headhunt.run.directory import Run
from headhunt.run.state import Outcome
from headhunt.spec import Space
from headhunt.study.candidates import Candidates
from headhunt.study.study import Limits, Study

FULL = 90.0  # virtual seconds of a full training


def evaluate(request: Request) -> Outcome:
    """A toy training that adds the examples of its rung; some take thrice as long as others."""
    outcome = Toy("ridge")(request)
    pace = random.Random(f"pace/{request.seed}").uniform(0.5, 1.5)
    share = request.fraction * (2 / 3 if request.attempt else 1)  # the rung below has been paid for
    return replace(outcome, seconds=FULL * pace * share)


def search(folder: Path, trials: int, executor: Virtual) -> Study:
    run = Run(folder, write=True)
    candidates = Candidates(Space.load("default"), encoder="toy")
    return Study(run, candidates, executor, limits=Limits(trials=trials), clock=lambda: executor.now)


def main() -> None:
    parser = options(__doc__, data=False, encoder=False)
    parser.add_argument("--trials", type=int, default=20_000)
    parser.add_argument("--workers", type=int, default=64)
    parser.add_argument(
        "--folder", type=Path, default=None, help="where the run is kept; a temporary folder unless given"
    )
    args = parser.parse_args()
    trials = 1_000 if args.quick else args.trials
    with tempfile.TemporaryDirectory(dir=args.folder) as temporary:
        folder = Path(temporary)
        executor = Virtual(args.workers, evaluate)
        began = time.perf_counter()
        study = search(folder, trials, executor)
        reason = study.go()
        seconds = time.perf_counter() - began
        state = study.state
        study.run.close()

        began = time.perf_counter()
        again = Run(folder).state
        replay_s = time.perf_counter() - began
        assert again == state, "The ledger must hold all that the search knew."

        began = time.perf_counter()
        search(folder, trials + 1, Virtual(args.workers, evaluate)).run.close()
        resume_s = time.perf_counter() - began

        turns = [turn for turn in executor.turns if turn[-1]]
        decisions = np.array([spent / sent for spent, _, sent in turns for _ in range(sent)])
        alone = np.array([cpu / sent for _, cpu, sent in turns for _ in range(sent)])
        result = {
            "decision_p99_ms": round(float(np.percentile(decisions, 99)) * 1000, 2),
            "decision_p50_ms": round(float(np.median(decisions)) * 1000, 2),
            "decision_max_ms": round(float(decisions.max()) * 1000, 2),
            "decision_cpu_p99_ms": round(float(np.percentile(alone, 99)) * 1000, 2),
            "busy": round(executor.busy / (args.workers * executor.now), 4),
            "replay_s": round(replay_s, 3),
            "resume_s": round(resume_s, 3),
            "trials": len(state.trials),
            "results": len(state.settled),
            "records": len(read(folder / "ledger.jsonl")[0]),
            "ledger_mb": round((folder / "ledger.jsonl").stat().st_size / 1e6, 1),
            "workers": args.workers,
            "virtual_hours": round(executor.now / 3600, 2),
            "seconds": round(seconds, 1),
            "ended": reason,
        }
    finish(args, result)


if __name__ == "__main__":
    main()
