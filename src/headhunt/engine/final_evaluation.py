"""Build requests about trials, wait for workers and read predictions, for the final evaluation and for ablations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from headhunt.data import Split
from headhunt.data.splitting import join_column_groups
from headhunt.engine.time_estimates import TimeEstimates
from headhunt.evaluation import (
    Decisions,
    Evaluation,
    RejectionRule,
    decision_scores,
    evaluate,
    evaluate_tasks,
    fit_decisions,
    measure,
)
from headhunt.run.directory import Key, is_model, read_predictions
from headhunt.run.events import DISK
from headhunt.run.results import TFIDF
from headhunt.run.state import Outcome, Trial
from headhunt.run.task import open_task, tested_rows
from headhunt.study.requests import EvaluateTfidf, RepeatPredictions, Request
from headhunt.study.runtime_estimates import worker_timeout

JobT = TypeVar("JobT", bound=Request)


@dataclass
class FinalEvaluation(TimeEstimates):
    """The trials of a finished search, the workers, and the time that is left."""

    calibrate: bool = False
    reject: RejectionRule | None = None
    trust_remote_code: bool = False
    show_stage: Callable[[str], None] = lambda stage: None
    """Called with the current stage; an empty string refreshes the view."""
    deliver: str = "best"

    @cached_property
    def validation_targets(self) -> np.ndarray:
        """Targets of all rows that trials are evaluated on, in the order of their positions."""
        task = open_task(self.directory.task)
        return np.concatenate([task.splits[name].targets for name in ("train", "validation") if name in task.splits])

    @cached_property
    def validation_groups(self) -> np.ndarray | None:
        """Groups of the same rows by the group column; None without one."""
        task = open_task(self.directory.task)
        return join_column_groups(task.splits[name] for name in ("train", "validation") if name in task.splits)

    @cached_property
    def test(self) -> Split:
        """The test rows that models predict: all of them, or the sample of the plan."""
        test = open_task(self.directory.task, ("test",)).splits["test"]
        rows = tested_rows(test, self.plan.test_rows if self.plan else None)
        return test if rows is None else test.take(rows)

    def fully_evaluated(self) -> list[Trial]:
        """Return the trials with a score at the top rung, best first."""
        top = self.study.ladder.top
        return [trial for trial in self.state.leaderboard() if trial.best and trial.best[0] == top]

    def plain_head(self, *, in_time: bool) -> Trial | None:
        """Return the plain head to compare with, if it has a result.

        Args:
            in_time: Whether the comparison must fit into the time of a search, which may be too short for any training.
        """
        plain = self.state.plain
        unfair = in_time and self.plan is not None and self.plan.only_solves
        return plain if plain is not None and (plain.best or self.trains_at_once) and not unfair else None

    def predictions(self, trial: Trial) -> tuple[np.ndarray, np.ndarray] | None:
        """Return the rows and outputs of a trial's highest rung, if they are on disk."""
        path = self.directory.predictions(trial.number, trial.best[0]) if trial.best else None
        return read_predictions(path) if path is not None and path.exists() else None

    def score(self, outputs: np.ndarray, targets: np.ndarray) -> float:
        """Return the score of out-of-fold outputs."""
        decisions = decision_scores(self.task.problem_type, self.metric, outputs, targets)
        return measure(self.task.problem_type, self.metric, decisions, targets)

    def groups_of(self, rows: np.ndarray) -> np.ndarray | None:
        """Return the groups of rows that trials are evaluated on; None without a group column."""
        return None if self.validation_groups is None else self.validation_groups[rows]

    def evaluate(self, outputs: np.ndarray, rows: np.ndarray) -> Evaluation:
        """Return the scores of outputs on rows that trials are evaluated on; of several tasks, the mean."""
        targets = self.validation_targets[rows]
        if self.task.tasks:
            return self.evaluate_tasks(outputs, targets)[0]
        groups = self.groups_of(rows)
        return evaluate(self.task.problem_type, outputs, targets, self.task.labels, groups=groups)

    def evaluate_tasks(self, outputs: np.ndarray, targets: np.ndarray) -> tuple[Evaluation, list[Evaluation]]:
        """Return the mean score of outputs of several tasks, and the scores of each task."""
        return evaluate_tasks(self.metric, outputs, targets, [task.labels for task in self.task.tasks])

    def held_out(self, trial: Trial | None, model: Path | None = None) -> tuple[np.ndarray, np.ndarray] | None:
        """Return outputs and targets of rows that a trial's models were not trained on, if they are on disk.

        They are those of the last training run, where it was evaluated itself, or of the trial's highest rung.

        Args:
            trial: The trial.
            model: Its saved model that is meant; by default that of the last training run, if there is one.
        """
        if trial is None:
            return None
        last, path = self.directory.final_model(trial.number, 0), self.directory.last_predictions(trial.number, 0)
        of_last = model in (None, last) and is_model(last) and path.exists()
        found = read_predictions(path) if of_last else self.predictions(trial)
        return None if found is None else (found[1], self.validation_targets[found[0]])

    def decisions(self, held_out: tuple[np.ndarray, np.ndarray] | None) -> Decisions:
        """Return thresholds, temperature and rejection of a model, fitted on outputs of `held_out`."""
        if held_out is None or self.task.tasks:
            return Decisions()
        (outputs, targets), task = held_out, self.task
        return fit_decisions(
            task.problem_type, self.metric, outputs, targets, task.labels, calibrate=self.calibrate, reject=self.reject
        )

    def request(self, job: type[JobT], trial: Trial, seed: int = 0, **fields: Any) -> JobT:
        """Return a request about a trial; seed 0 is the one it was searched with."""
        seconds = self.training_seconds(trial) * max(1, self.folds) or None
        defaults = {"spec": trial.spec, "deadline": self.budget.deadline, "worker_timeout": worker_timeout(seconds)}
        return job(
            trial=trial.number,
            seed=self.study.seed_of(trial.number) + seed,
            gradient_accumulation_steps=trial.gradient_accumulation_steps,
            **{**defaults, **fields},
        )

    def reference_request(self) -> EvaluateTfidf:
        """Return the request to evaluate TF-IDF with a linear model."""
        predictions = self.directory.reference_predictions(TFIDF)
        test = self.directory.test_predictions(TFIDF) if "test" in self.task.rows else None
        return self.request(EvaluateTfidf, self.state.trials[0], predictions=predictions, test_predictions=test)

    def repeat_predictions(self, keys: Sequence[Key]) -> list[Request]:
        """Return requests for predictions of trials, by trial and rung, whose files could not be read."""
        requests: list[Request] = []
        for number, rung in keys:
            trial = self.state.trials[number] if number < len(self.state.trials) else None
            if trial is None or rung not in trial.results or trial.results[rung].score is None:
                continue
            fields: dict[str, Any] = {"rung": rung, "fraction": self.study.ladder.fractions[rung]}
            fields["checkpoint"] = self.study.checkpoints.resume_from(number, rung, lower=not self.by_rows)
            fields["predictions"] = self.directory.predictions(number, rung)
            fields["rows"] = self.study.rows_of(trial, rung)
            requests.append(self.request(RepeatPredictions, trial, **fields))
        return requests

    def run(
        self, requests: Sequence[Request], deadline: float | None, finishing: float = 0.0
    ) -> list[tuple[Request, Outcome]]:
        """Send requests to the workers and wait for them, until the deadline at most.

        A request that was lost with its worker or ran out of memory runs once more; after memory, with half the
        micro-batch. While the disk fails, requests are repeated.

        Args:
            requests: The requests.
            deadline: When to stop waiting, in seconds since 1970; None is never.
            finishing: Seconds before the deadline at which training ends, so that its model can be evaluated and saved.
        """
        done: list[tuple[Request, Outcome]] = []
        repeated: list[Request] = []
        for request in requests:
            self.executor.submit(replace(request, deadline=None if deadline is None else deadline - finishing))
        while len(done) < len(requests) and (deadline is None or self.budget.now() < deadline + 1.0):
            timeout = 1.0 if deadline is None else min(1.0, max(0.05, deadline + 1.0 - self.budget.now()))
            for request, outcome in self.executor.wait(timeout):
                if outcome.outcome == DISK:
                    self.study.pause.disk_failed(request.name, str(outcome.extra.get("message")))
                    repeated.append(request)
                elif outcome.outcome in ("lost", "memory") and not request.attempt:
                    steps = request.gradient_accumulation_steps * (2 if outcome.outcome == "memory" else 1)
                    self.executor.submit(replace(request, attempt=1, gradient_accumulation_steps=steps))
                else:
                    self.study.pause.succeeded(request.name)
                    done.append((request, outcome))
            if repeated:
                self.study.pause.sleep(timeout)
            while repeated and not self.study.pause.active:
                self.executor.submit(repeated.pop())
            self.show_stage("")
        if len(done) < len(requests):
            self.executor.stop()
        return done


def missing(requests: Sequence[tuple[Request, Path]]) -> list[Request]:
    """Return the requests whose file is not on disk yet."""
    return [request for request, path in requests if not path.exists()]
