"""Look at a search: its models on disk, what they predict for validation rows, and how good that is."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from headhunt.data import Split
from headhunt.data.splitting import join_column_groups
from headhunt.evaluation import (
    Comparison,
    Decisions,
    Evaluation,
    compare,
    decision_scores,
    evaluate,
    evaluate_tasks,
    fit_decisions,
    measure,
)
from headhunt.run.directory import RunDirectory, is_model, read_predictions
from headhunt.run.plan import Plan
from headhunt.run.settings import SearchSettings
from headhunt.run.state import State, Trial
from headhunt.run.task import TaskInfo, open_task, tested_rows
from headhunt.study.budget import worker_timeout
from headhunt.study.requests import Request
from headhunt.study.study import Study

JobT = TypeVar("JobT", bound=Request)


@dataclass
class View:
    """A search as stages see it when they decide."""

    directory: RunDirectory
    task: TaskInfo
    settings: SearchSettings
    study: Study
    plan: Plan

    @property
    def state(self) -> State:
        """The state of the search."""
        return self.study.state

    @property
    def metric(self) -> str:
        """The metric of the search."""
        return self.settings.metric

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
        rows = tested_rows(test, self.plan.test_rows)
        return test if rows is None else test.take(rows)

    def models_of(self, trial: Trial | None) -> list[Path]:
        """Return the saved models of a trial, the first seed first."""
        return [] if trial is None else self.directory.final_models(trial.number)

    def fitted(self) -> list[Trial]:
        """Return the trials with a model on disk."""
        return [trial for trial in self.state.trials if is_model(self.directory.final_model(trial.number, 0))]

    def training_facts(self, trial: Trial, seed: int = 0) -> tuple[int, dict[str, Any]]:
        """Return the examples that a model was trained with, and what is recorded about its training run."""
        done = self.state.jobs.get(f"FitAllRows/{self.directory.final_model(trial.number, seed).name}")
        if done is not None:
            return done.examples, done.extra
        result = trial.results.get(trial.best[0]) if trial.best else None
        return (result.examples, dict(result.extra.get("training") or {})) if result and not seed else (0, {})

    def fit_seconds(self) -> float:
        """Return the longest time that fitting a model took so far; 0 before any."""
        seconds = [done.seconds for key, done in self.state.jobs.items() if key.startswith("FitAllRows/")]
        top, tuned = self.study.ladder.top, [trial for trial in self.state.trials if not trial.is_solved]
        if self.study.resampling.leaves_model:
            seconds += [trial.results[top].seconds for trial in tuned if top in trial.results]
        return max(seconds, default=0.0)

    def predictions(self, trial: Trial | None) -> tuple[np.ndarray, np.ndarray] | None:
        """Return validation rows and a trial's outputs for them, from its highest rung; None if there are none."""
        if trial is None:
            return None
        paths = [self.directory.last_predictions(trial.number, 0)]  # of a model that was trained again, after a resume
        paths += [self.directory.predictions(trial.number, trial.best[0])] if trial.best else []
        return next((read_predictions(path) for path in paths if path.exists()), None)

    def held_out(self, trial: Trial | None) -> tuple[np.ndarray, np.ndarray] | None:
        """Return a trial's outputs and the targets of rows that it was not trained on; None if there are none."""
        found = self.predictions(trial)
        return None if found is None else (found[1], self.validation_targets[found[0]])

    def score(self, outputs: np.ndarray, targets: np.ndarray) -> float:
        """Return the score of out-of-fold outputs."""
        decisions = decision_scores(self.task.problem_type, self.metric, outputs, targets)
        return measure(self.task.problem_type, self.metric, decisions, targets)

    def compare(self, first: Trial, second: Trial) -> Comparison | None:
        """Compare two trials on the validation rows that both have predicted; None if there are none."""
        found, other = self.predictions(first), self.predictions(second)
        if found is None or other is None:
            return None
        rows, here, there = np.intersect1d(found[0], other[0], return_indices=True)
        if not len(rows):
            return None
        targets, problem_type = self.validation_targets[rows], self.task.problem_type
        pair = [
            decision_scores(problem_type, self.metric, outputs, targets)
            for outputs in (found[1][here], other[1][there])
        ]
        return compare(problem_type, self.metric, pair[:1], pair[1:], targets, groups=self.groups_of(rows))

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

    def decisions(self, held_out: tuple[np.ndarray, np.ndarray] | None) -> Decisions:
        """Return thresholds, temperature and rejection of a model, fitted on outputs of `held_out`."""
        if held_out is None or self.task.tasks:
            return Decisions()
        (outputs, targets), task, settings = held_out, self.task, self.settings
        return fit_decisions(
            task.problem_type,
            self.metric,
            outputs,
            targets,
            task.labels,
            calibrate=settings.calibrate,
            reject=settings.rejection,
        )

    def request(self, job: type[JobT], trial: Trial, seed: int = 0, **fields: Any) -> JobT:
        """Return a request about a trial; seed 0 is the one it was searched with."""
        defaults = {"spec": trial.spec, "worker_timeout": worker_timeout(self.fit_seconds() or None)}
        return job(
            trial=trial.number,
            seed=self.study.seed_of(trial.number) + seed,
            gradient_accumulation_steps=trial.gradient_accumulation_steps,
            **{**defaults, **fields},
        )
