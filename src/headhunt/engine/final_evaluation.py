"""Build requests about trials, wait for workers and estimate time, for the final evaluation and for ablations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from headhunt.run.directory import RunDirectory, read_predictions
from headhunt.run.state import Outcome, State, Trial
from headhunt.run.task import TaskInfo, open_task
from headhunt.study.budget import TimeBudget
from headhunt.study.executors import Executor
from headhunt.study.requests import Request
from headhunt.study.runtime_estimates import full_budget_seconds
from headhunt.study.study import MINIMUM_WORKER_TIMEOUT, WORKER_TIMEOUT_FACTOR, Study

MAXIMUM_MEMBERS = 6  # trials in an ensemble
JobT = TypeVar("JobT", bound=Request)


@dataclass
class FinalEvaluation:
    """The trials of a finished search, the workers, and the time that is left."""

    directory: RunDirectory
    task: TaskInfo
    metric: str
    study: Study
    calibrate: bool = False
    trust_remote_code: bool = False
    show_stage: Callable[[str], None] = lambda stage: None
    """Called with the current stage; an empty string refreshes the view."""

    @property
    def state(self) -> State:
        """The state of the search."""
        return self.study.state

    @property
    def budget(self) -> TimeBudget:
        """The time of the search."""
        return self.study.budget

    @property
    def executor(self) -> Executor:
        """The workers."""
        return self.study.executor

    @property
    def folds(self) -> int:
        """Number of cross-validation folds."""
        return self.task.folds

    @property
    def workers(self) -> int:
        """Number of workers, at least 1."""
        return max(1, self.executor.workers)

    @cached_property
    def validation_targets(self) -> np.ndarray:
        """Targets of all rows that trials are evaluated on, in the order of their positions."""
        task = open_task(self.directory.task)
        return np.concatenate([task.splits[name].targets for name in ("train", "validation") if name in task.splits])

    @cached_property
    def test_targets(self) -> np.ndarray:
        """Targets of the test rows."""
        return np.asarray(open_task(self.directory.task, ("test",)).splits["test"].targets)

    def fully_evaluated(self) -> list[Trial]:
        """Return the trials with a score at the top rung, best first."""
        top = self.study.ladder.top
        return [trial for trial in self.state.leaderboard() if trial.best and trial.best[0] == top]

    def predictions(self, trial: Trial) -> tuple[np.ndarray, np.ndarray] | None:
        """Return the rows and outputs of a trial's highest rung, if they are on disk."""
        path = self.directory.predictions(trial.number, trial.best[0]) if trial.best else None
        return read_predictions(path) if path is not None and path.exists() else None

    def request(self, job: type[JobT], trial: Trial, seed: int = 0, **fields: Any) -> JobT:
        """Return a request about a trial; seed 0 is the one it was searched with."""
        seconds = self.training_seconds(trial) * max(1, self.folds)
        timeout = max(MINIMUM_WORKER_TIMEOUT, WORKER_TIMEOUT_FACTOR * seconds) if seconds else None
        return job(
            trial=trial.number,
            spec=trial.spec,
            seed=self.study.seed_of(trial.number) + seed,
            gradient_accumulation_steps=trial.gradient_accumulation_steps,
            **{"deadline": self.budget.deadline, "worker_timeout": timeout, **fields},
        )

    def run(self, requests: Sequence[Request], deadline: float | None) -> list[tuple[Request, Outcome]]:
        """Send requests to the workers and wait for them, until the deadline at most.

        A request that was lost with its worker or ran out of memory runs once more; after memory, with half the
        micro-batch.
        """
        done: list[tuple[Request, Outcome]] = []
        for request in requests:
            self.executor.submit(replace(request, deadline=deadline))
        while len(done) < len(requests) and (deadline is None or self.budget.now() < deadline + 1.0):
            timeout = 1.0 if deadline is None else min(1.0, max(0.05, deadline + 1.0 - self.budget.now()))
            for request, outcome in self.executor.wait(timeout):
                if outcome.outcome in ("lost", "memory") and not request.attempt:
                    steps = request.gradient_accumulation_steps * (2 if outcome.outcome == "memory" else 1)
                    self.executor.submit(replace(request, attempt=1, gradient_accumulation_steps=steps))
                else:
                    done.append((request, outcome))
            self.show_stage("")
        if len(done) < len(requests):
            self.executor.stop()
        return done

    def before_deadline(self, seconds: float) -> float | None:
        """Return the time so many seconds before the deadline; None without a deadline."""
        return None if self.budget.deadline is None else self.budget.deadline - seconds

    def training_seconds(self, trial: Trial) -> float:
        """Estimate the seconds to train a candidate on all rows, from what its trial took."""
        seconds = full_budget_seconds(trial, self.study.ladder.fractions, trial.best[0]) if trial.best else None
        return (seconds or 0.0) / max(1, self.folds - 1)

    def prediction_seconds(self, trial: Trial) -> float:
        """Estimate the seconds a model of this candidate takes for the test rows: a third of training on as many."""
        epochs = max(1.0, trial.spec.recipe.epochs)
        fraction = self.task.rows.get("test", 0) / max(1, self.task.rows["train"])
        return self.training_seconds(trial) / epochs / 3 * fraction

    def minimum_seconds(self, best: Trial | None) -> float:
        """Estimate the seconds of the least there is to do: two models on all rows and all predictions of test rows.

        The longest training run and its predictions are sequential; the rest is shared by the workers.
        """
        trials = [trial for trial in (best, self.state.plain) if trial is not None]
        training = [self.training_seconds(trial) for trial in trials]
        predicting = max((self.prediction_seconds(trial) for trial in trials), default=0.0)
        models = 2 + 2 * self.folds + MAXIMUM_MEMBERS * self.folds / 2  # an ensemble seldom has the most members
        shared = (sum(training) + predicting * models) / self.workers
        return max(1.25 * max(training, default=0.0) + 2 * predicting, 1.1 * shared) + 5.0


def best_with_training_run(study: Study, folds: int) -> Trial | None:
    """Return the best trial with at least one complete training run."""
    ranked = [
        (rank, trial)
        for trial in study.state.trials
        for rung in trial.results
        if (rank := rank_with_training_run(study, folds, trial, rung)) is not None
    ]
    return max(ranked, key=lambda item: item[0])[1] if ranked else None


def rank_with_training_run(study: Study, folds: int, trial: Trial, rung: int) -> tuple[int, float, int] | None:
    """Return the rank of a trial with a complete training run: its rung, its score, then the earlier trial first."""
    score = trial.results[rung].score
    complete = study.ladder.fractions[rung] * folds >= 1 - 1e-9
    return (rung, score, -trial.number) if complete and score is not None else None


def missing(requests: Sequence[tuple[Request, Path]]) -> list[Request]:
    """Return the requests whose file is not on disk yet."""
    return [request for request, path in requests if not path.exists()]
