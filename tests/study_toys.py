"""Toy search spaces, evaluation functions, executors and clocks for tests of the study, without training."""

from __future__ import annotations

import math
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

from headhunt.run import clock as run_clock
from headhunt.run.directory import RunDirectory
from headhunt.run.events import STOPPED
from headhunt.run.ledger import LedgerWriter
from headhunt.run.settings import SearchOptions
from headhunt.run.state import Outcome
from headhunt.spec import Choice, Int, Log, Maybe, Space, Spec
from headhunt.study.budget import TimeBudget
from headhunt.study.candidates import Candidates
from headhunt.study.executors import InlineExecutor, evaluate_safely
from headhunt.study.ladder import Ladder
from headhunt.study.loop import Loop
from headhunt.study.registry import create_strategy
from headhunt.study.requests import EvaluateTrial
from headhunt.study.study import Study

TINY = Space(
    "tiny",
    {
        "head": {"pooling": Choice(("cls", "mean", "max")), "mlp": Maybe({"width": Int(8, 64)})},
        "recipe": {"learning_rate": Log(1e-5, 1e-3), "freeze": Choice(("none", "embeddings"))},
    },
)
RUNGS = {"rungs": 3, "brackets": 2}
"""More than the default, so that tests show more."""
LADDER = Ladder.of(3, 3, 2)


def toy_options(**options) -> SearchOptions:
    """Return options of a search without a time limit, solved heads and priors."""
    return SearchOptions(**{"time": None, "strategy": "bohb", "solved": False, **options})


def true_score(spec: Spec) -> float:
    """Return the score of full training without noise."""
    loss = 0.05 * math.log(spec.recipe.learning_rate / 8e-5) ** 2 + 0.05 * (spec.head.pooling != "mean")
    return 0.9 - loss - 0.04 * (spec.head.mlp is None) - 0.04 * (spec.recipe.freeze == "all")


def evaluate_toy(request: EvaluateTrial) -> Outcome:
    """Return a noisy score that rises with the fraction of training."""
    noise = random.Random(f"{request.seed}/{request.rung}").gauss(0, 0.005)
    score = true_score(request.spec) - 0.05 * (1 - request.fraction) + noise
    return Outcome("ok", score, request.fraction, 100)


def evaluate_flaky(request: EvaluateTrial) -> Outcome:
    """Fail in every possible way, depending only on the trial. A lost worker succeeds on its second attempt."""
    failure = request.seed % 7
    if failure == 0:
        return Outcome("collapsed")
    if failure == 1 and request.attempt == 0:
        return Outcome("lost")
    if failure == 2:
        raise RuntimeError("something else")
    if failure == 3 and request.gradient_accumulation_steps == 1:
        raise MemoryError
    return evaluate_toy(request)


def open_study(
    folder: Path,
    evaluate: Callable[[EvaluateTrial], Outcome] = evaluate_toy,
    *,
    space=TINY,
    executor=None,
    encoders=(),
    rows=500,
    plan=None,
    notify=print,
    clock=run_clock.steady_time,
    disk=None,
    of_strategy=None,
    **options,
) -> Search:
    """Open a search in a new or existing run directory; 14 trials and RUNGS unless other options are given."""
    default = {} if plan is not None and plan.resampling.leaves_model else RUNGS
    settings = toy_options(**{"trials": 14, **default, **options})
    candidates = Candidates(space, encoder=encoders[0] if encoders else "toy", encoders=encoders, rows=rows)
    budget = TimeBudget(settings.time, clock=clock)
    study = Study(LedgerWriter(RunDirectory(folder)), candidates, settings, budget, disk=disk)
    if of_strategy:
        study.strategy = create_strategy(settings.strategy, candidates, settings.seed, **of_strategy)
    return Search(study, executor or InlineExecutor(evaluate), plan, notify)


class Search:
    """A study with the loop that runs it; attributes are those of the study."""

    def __init__(self, study: Study, executor, plan=None, notify=print) -> None:
        self.study = study
        study.follow(plan)
        self.loop = Loop(study.ledger, executor, study.budget, notify, study)

    def __getattr__(self, name: str):
        return getattr(self.study, name)

    def run(self) -> str:
        """Compare candidates until a limit is reached; return which."""
        self.loop.run(self.study)
        return self.study.end()


def run_study(folder: Path, evaluate: Callable[[EvaluateTrial], Outcome] = evaluate_toy, **arguments) -> Search:
    """Run a study to its end, without waiting for the disk: durability is tested with the ledger."""
    with mock.patch("os.fsync"):
        study = open_study(folder, evaluate, **arguments)
        try:
            study.run()
        finally:
            study.ledger.close()
    return study


def leaderboard(study: Search) -> list[tuple[int, str, tuple[int, float] | None]]:
    """Return number, hash and best result of every scored trial, best first."""
    return [(trial.number, trial.hash, trial.best) for trial in study.state.leaderboard()]


class ShuffledExecutor:
    """An executor with several workers whose requests finish in random order."""

    threads_alone = None

    def __init__(self, evaluate: Callable[[EvaluateTrial], Outcome], seed: int = 0, workers: int = 4) -> None:
        self.workers, self.evaluate, self.rng = workers, evaluate, random.Random(seed)
        self.running: list[EvaluateTrial] = []

    def submit(self, request: EvaluateTrial) -> None:
        self.running.append(request)
        assert len(self.running) <= self.workers

    def wait(self, timeout: float | None = None) -> list[tuple[EvaluateTrial, Outcome]]:
        request = self.running.pop(self.rng.randrange(len(self.running)))
        return [(request, evaluate_safely(self.evaluate, request))]

    def stop(self) -> None:
        self.running.clear()

    def close(self) -> None:
        pass


class VirtualClock:
    """A clock that moves only when a test moves it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class ToyRunner:
    """A runner for Ray workers whose action is the encoder of a request's spec: raise, die, hang, wait or ok."""

    def __init__(self, name: str) -> None:
        if name == "broken":
            raise ValueError("cannot be created")

    def run(self, request: EvaluateTrial, stop: Callable[[], bool]) -> Outcome:
        action = request.spec.encoder
        if action == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if action == "hang":
            time.sleep(1000)
        if action == "wait":
            while not stop():
                time.sleep(0.05)
            return Outcome(STOPPED)
        if action == "raise":
            raise ValueError("as requested")
        return Outcome("ok", score=float(request.trial))


class SkewedRunner:
    """A runner on a machine with another time; it works until the deadline, as a long training run does."""

    def __init__(self, skew: float) -> None:
        real = time.time
        time.time = lambda: real() + skew  # in its own process
        run_clock._OFFSET += skew

    def run(self, request: EvaluateTrial, stop: Callable[[], bool]) -> Outcome:
        began = time.monotonic()
        while run_clock.steady_time() < request.deadline and time.monotonic() - began < 20:
            time.sleep(0.02)
        return Outcome(STOPPED, extra={"worked": time.monotonic() - began})
