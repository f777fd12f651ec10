"""Kill drivers and stop workers of searches, and check that nothing is lost, repeated or left behind.

The searches train nothing: their workers write checkpoints and predictions as real ones do, slowly, so that most kills
meet a worker inside a save. Proposals depend on the seed alone, so that every search must end with the leaderboard of
an undisturbed one.

Drivers: the driver is killed with SIGKILL while its workers are alive, and the search is resumed at once. Workers:
worker processes are killed inside saves. Stops: a worker is stopped with SIGSTOP until it has exceeded its timeout, and
continues after its replacement has finished a trial. `chaos.py` kills searches that train.

    python benchmarks/faults.py --out benchmarks/results/faults.json
    python benchmarks/faults.py --drivers 200 --workers 750 --stops 20
    python benchmarks/faults.py --ray --drivers 200 --workers 50 --stops 5 --out benchmarks/results/faults_ray.json

Workers are forked processes, or actors on Ray with `--ray`.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from chaos import count_repeats, read_results
from measure import finish, options

from headhunt.run.directory import RunDirectory, read_predictions, write_arrays
from headhunt.run.ledger import LedgerWriter, read_state
from headhunt.run.settings import SearchOptions
from headhunt.run.state import Outcome
from headhunt.spec import Choice, Log, Space
from headhunt.storage import PARTIAL, atomic_file
from headhunt.study import budget
from headhunt.study.budget import TimeBudget
from headhunt.study.candidates import Candidates
from headhunt.study.executors import Executor, InlineExecutor
from headhunt.study.local_executor import LocalExecutor
from headhunt.study.loop import compare
from headhunt.study.ray_executor import RayExecutor
from headhunt.study.requests import EvaluateTrial
from headhunt.study.study import Study

ON_RAY = "HEADHUNT_FAULTS_ON_RAY"  # tells drivers where their workers run
HEAD, RECIPE = {"pooling": Choice(("cls", "mean", "max"))}, {"learning_rate": Log(1e-5, 1e-3)}
SPACE = Space("toy", {"head": HEAD, "recipe": RECIPE})
WORKERS = 2
TIMEOUT = 4.0  # seconds until an unresponsive worker is replaced
KILLS_PER_TRIAL = 2  # a trial that loses more workers fails by design
CHUNKS = 8  # writes per save


class ToyRunner:
    """A runner that saves a checkpoint and predictions slowly, and marks when it does.

    Args:
        saving: Directory with a file per process that is inside a save; it names the trial.
    """

    def __init__(self, saving: str = "") -> None:
        self._saving = Path(saving) if saving else None

    def run(self, request: EvaluateTrial, stop: Callable[[], bool] = lambda: False) -> Outcome:
        """Return a score that depends on the seed of the trial alone."""
        import numpy as np

        score = random.Random(f"score {request.seed}").random()
        marker = self._saving / str(os.getpid()) if self._saving else None
        if marker is not None:
            marker.write_text(str(request.trial))
        assert request.checkpoint is not None and request.predictions is not None
        with atomic_file(request.checkpoint / "fold-0" / "state") as file:
            for _ in range(CHUNKS):
                file.write(f"{score:.6f}\n".encode() * 1000)
                time.sleep(0.02 if marker is not None else 0.0)
        write_arrays(request.predictions, rows=np.arange(3), outputs=np.full(3, score))
        if marker is not None:
            marker.unlink()
        return Outcome("ok", score, 0.2, 100)


def search(run: Path, executor: Executor, trials: int) -> None:
    """Run or resume a toy search."""
    budget.LEAST_WORKER_TIMEOUT = TIMEOUT
    with LedgerWriter(RunDirectory(run)) as ledger:
        candidates = Candidates(SPACE, encoder="toy")
        # Without rungs, a trial that is given up does not change which others are promoted.
        options = SearchOptions(strategy="random", rungs=1, trials=trials, seed=1, solved=False, time=None)
        compare(Study(ledger, candidates, options, TimeBudget(None)), executor)


def drive(run: Path, trials: int) -> None:
    """Be the driver of a search, in a process of its own."""
    saving = run.with_name("saving")
    saving.mkdir(exist_ok=True)
    kind = RayExecutor if os.environ.get(ON_RAY) else LocalExecutor
    executor = kind("faults:ToyRunner", {"saving": str(saving)}, workers=WORKERS)
    try:
        search(run, executor, trials)
    finally:
        executor.close()


def start_driver(run: Path, trials: int) -> subprocess.Popen[str]:
    """Start a driver; its messages are appended to a file beside the run."""
    here = str(Path(__file__).parent)
    paths = os.pathsep.join([here, os.environ.get("PYTHONPATH", "")])
    words = [sys.executable, __file__, "--drive", str(run), "--trials", str(trials)]
    with run.with_name("log.txt").open("a") as log:
        return subprocess.Popen(
            words, stdout=log, stderr=log, text=True, start_new_session=True, env={**os.environ, "PYTHONPATH": paths}
        )


def wait_until(condition: Callable[[], object], process: subprocess.Popen[str], seconds: float = 120.0) -> bool:
    """Wait until a condition holds; return False if the process ends or the time is over before."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if condition():
            return True
        if process.poll() is not None:
            return False
        time.sleep(0.01)
    return False


def end(process: subprocess.Popen[str], run: Path) -> None:
    """Wait for a search to end."""
    if process.wait(timeout=3600) != 0:
        sys.exit(f"The search failed: {run.with_name('log.txt').read_text()[-3000:]}")


def kill_drivers(folder: Path, kills: int, rng: random.Random) -> dict[str, Any]:
    """Kill drivers that have live workers, and resume at once."""
    run, trials = folder / "drivers" / "run", 6 * kills + 10
    run.parent.mkdir()
    lost, done, previous = 0, 0, []
    process = start_driver(run, trials)
    while done < kills:
        before = len(read_results(run))
        if not wait_until(lambda before=before: len(read_results(run)) > before, process):  # type: ignore[misc]
            break
        time.sleep(rng.uniform(0.0, 0.3))
        process.kill()
        process.wait()
        done += 1
        results = read_results(run)
        lost += previous != results[: len(previous)]
        previous = results
        process = start_driver(run, trials)
        print(f"driver kill {done}: {len(results)} results", flush=True)
    end(process, run)
    return {"driver_kills": done, "lost": lost + (previous != read_results(run)[: len(previous)])} | check(run, trials)


def is_worker(pid: int) -> bool:
    """Return whether this is the process of a worker that lives."""
    folder = Path(f"/proc/{pid}")
    named = b"ray::" in (folder / "cmdline").read_bytes() or (folder / "comm").read_bytes().startswith(b"headhunt ")
    return named and "\nState:\tZ" not in (folder / "status").read_text()


def workers_in_saves(run: Path) -> dict[int, int]:
    """Return trial by process id of the workers that are inside a save."""
    inside = {}
    for path in run.with_name("saving").glob("[0-9]*"):
        try:
            text = path.read_text()
            if text and is_worker(int(path.name)):
                inside[int(path.name)] = int(text)
            elif text:
                path.unlink(missing_ok=True)  # of a worker that was killed
        except OSError:
            continue
    return inside


def disturb_workers(folder: Path, kills: int, stops: int, rng: random.Random) -> dict[str, Any]:
    """Kill workers inside saves; stop others past their timeout and continue them later."""
    run, trials = folder / "workers" / "run", 9 * kills + 60 * stops + 20
    run.parent.mkdir()
    process = start_driver(run, trials)
    killed: Counter[int] = Counter()
    stopped: list[int] = []
    continued = 0
    while sum(killed.values()) + len(stopped) < kills + stops and process.poll() is None:
        inside = {pid: trial for pid, trial in workers_in_saves(run).items() if killed[trial] < KILLS_PER_TRIAL}
        if not inside:
            time.sleep(0.005)
            continue
        pid, trial = rng.choice(sorted(inside.items()))
        try:
            ready = len(read_results(run)) > 2 * WORKERS  # there is no timeout before the first results
            if ready and len(stopped) < stops:
                continued += stop_past_timeout(pid, run, process, trial)
                stopped.append(trial)
            elif sum(killed.values()) < kills:
                os.kill(pid, signal.SIGKILL)
                killed[trial] += 1
            else:
                time.sleep(0.05)
                continue
        except ProcessLookupError:
            continue
        print(f"{sum(killed.values())} kills, {len(stopped)} stops: {len(read_results(run))} results", flush=True)
        time.sleep(rng.uniform(0.0, 0.1))
    end(process, run)
    counts = {"worker_kills": sum(killed.values()), "stops": len(stopped), "continued_alive": continued}
    return counts | check(run, trials, failed=set(stopped))


def stop_past_timeout(pid: int, run: Path, process: subprocess.Popen[str], trial: int) -> bool:
    """Stop a worker until its trial is given up and others have finished; return whether it was still there then."""
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_until(lambda: any(result[0] == trial for result in read_results(run)), process, 60.0)
        before = len(read_results(run))
        wait_until(lambda: len(read_results(run)) > before + WORKERS, process, 10.0)
    finally:
        try:
            os.kill(pid, signal.SIGCONT)
            alive = is_worker(pid)
        except (ProcessLookupError, FileNotFoundError):
            alive = False
    return alive


def check(run: Path, trials: int, failed: set[int] = frozenset()) -> dict[str, Any]:  # type: ignore[assignment]
    """Compare a search with an undisturbed one, and look for files that should not be there."""
    time.sleep(2.0)  # until workers of killed drivers have ended, too
    search(run, InlineExecutor(ToyRunner().run), trials)  # removes what late workers wrote
    undisturbed = run.with_name("undisturbed")
    search(undisturbed, InlineExecutor(ToyRunner().run), trials)
    expected = {trial.number: trial.best for trial in read_state(RunDirectory(undisturbed)).trials}
    directory, state = RunDirectory(run), read_state(RunDirectory(run))
    scores = {trial.number: trial.best for trial in state.trials}
    gave_up = {trial.number for trial in state.trials if any(r.outcome == "error" for r in trial.results.values())}
    differ = [number for number in expected if scores.get(number) != expected[number] and number not in failed]
    unreadable, strays = 0, [path for path in run.rglob("*") if path.name.endswith(PARTIAL)]
    for trial in state.trials:
        if trial.best is None:
            strays += run.glob(f"*/{trial.number:06d}-*")
        else:
            predictions = directory.predictions(trial.number, trial.best[0])
            unreadable += float(read_predictions(predictions)[1][0]) != trial.best[1]
    return {
        "results": len(state.settled),
        "repeated": count_repeats(read_results(run)),
        "different": len(differ),
        "given_up": len(gave_up & failed),
        "settled_wrongly": len(gave_up - failed),
        "unreadable": unreadable,
        "stray_files": len(strays),
    }


def main() -> None:
    parser = options(__doc__, data=False, encoder=False)
    parser.add_argument("--drivers", type=int, default=200, help="kills of drivers")
    parser.add_argument("--workers", type=int, default=750, help="kills of workers")
    parser.add_argument("--stops", type=int, default=20, help="workers that are stopped past their timeout")
    parser.add_argument("--ray", action="store_true", help="workers are actors on Ray")
    parser.add_argument("--drive", type=Path, help="used by the benchmark itself")
    parser.add_argument("--trials", type=int, help="used by the benchmark itself")
    args = parser.parse_args()
    if args.drive:
        drive(args.drive, args.trials)
        return
    if args.ray:
        os.environ[ON_RAY] = "1"
    counts = (1, 2, 1) if args.quick else (args.drivers, args.workers, args.stops)
    rng = random.Random(0)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        drivers = kill_drivers(Path(temporary), counts[0], rng)
        workers = disturb_workers(Path(temporary), *counts[1:], rng)
    failures = ("lost", "repeated", "different", "settled_wrongly", "unreadable", "stray_files")
    failed = sum(part.get(name, 0) for part in (drivers, workers) for name in failures)
    done = drivers["driver_kills"] + workers["worker_kills"] + workers["stops"]
    finish(args, {"drivers": drivers, "workers": workers, "disturbances": done, "failures": failed})


if __name__ == "__main__":
    main()
