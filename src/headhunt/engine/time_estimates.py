"""Estimate how long the steps of a final evaluation take, and decide which rows and epochs its trainings have."""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace

from headhunt.data.division import count_large_folds
from headhunt.run.directory import RunDirectory
from headhunt.run.plan import THREAD_EXPONENT, Plan
from headhunt.run.state import State, Trial
from headhunt.run.task import TaskInfo
from headhunt.spec import FEW_ROWS, Spec
from headhunt.storage import directory_size
from headhunt.study.budget import LARGEST_RESERVE, TimeBudget
from headhunt.study.executors import Executor
from headhunt.study.requests import AverageModels
from headhunt.study.study import Study

ENSEMBLE_BYTES = 8 << 30  # of all models of an ensemble
MAXIMUM_MEMBERS = 6  # trials in an ensemble
TRAINING_RUNS = 3  # on all rows, of the winner and of the plain head, as far as the time goes
AVERAGING_SECONDS = 3.0  # for averaging their weights, apart from the models that are loaded and checked
LOADING_RATE = 100e6  # bytes of a model that are loaded per second, on a slow disk
RUNS_FRACTION = 0.65  # of the time of a search, for a final evaluation with several training runs
OPTIONAL_FRACTION = 0.05  # of the time of a search, for predicting the test rows with models of folds
LAST_TRAINING = 0.5  # fraction of the time of a search on large data, for the last training runs
ROWS_RESERVE = 0.65  # largest reserve there
# A rank correlation takes long to bootstrap: seconds per row and training run, and training runs that are compared.
RANKING_SECONDS, RANKED_TEST_RUNS, RANKED_VALIDATION_RUNS = 1e-4, 12, 24
SLOWEST_RATE = 0.85  # of training that is estimated, relative to the estimate
PREPARING_ROWS = 2000  # rows that a head is prepared with before it is trained, at most: `head_init.ROWS`


@dataclass
class TimeEstimates:
    """A search, and how long the steps of its final evaluation take."""

    directory: RunDirectory
    task: TaskInfo
    metric: str
    study: Study
    plan: Plan | None = None

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

    def tuned(self) -> list[Trial]:
        """Return the trials that train the encoder, without the plain head, best first."""
        trials = self.state.leaderboard()
        return [trial for trial in trials if not trial.is_plain and trial.spec.recipe.freeze != "all"]

    def has_space_for(self, models: int) -> bool:
        """Return whether so many models fit into the disk budget of an ensemble, and half of the free disk."""
        size = models * self._model_bytes()
        return size <= min(ENSEMBLE_BYTES, shutil.disk_usage(self.directory.path).free // 2)

    def _model_bytes(self) -> int:
        """Return the size of a saved model."""
        model = self.directory.best_model(self.state.model.folder if self.state.model else None, ended=False)
        return directory_size(model) if model else 0

    def before_deadline(self, seconds: float) -> float | None:
        """Return the time so many seconds before the deadline; None without a deadline."""
        return None if self.budget.deadline is None else self.budget.deadline - seconds

    def training_seconds(self, trial: Trial) -> float:
        """Estimate the seconds to train a candidate on all rows, from what its trial took."""
        seconds = self.study.full_budget_seconds(trial, trial.best[0]) if trial.best else None
        if seconds is None and self.plan and self.trains_at_once and not trial.is_solved:
            epoch = (self.plan.epoch_seconds() or 0.0) * self.plan.cost_of(trial.spec.encoder)
            seconds = trial.spec.recipe.epochs * epoch
        return (seconds or 0.0) / max(1, self.folds - 1)

    def has_time_for(self, trial: Trial) -> bool:
        """Return whether a candidate can be trained on all rows in the time that is left, or has a saved model."""
        saved = self.state.model is not None and self.state.model.trial == trial.number
        if self.budget.deadline is None or self.by_rows or self.trains_at_once or trial.is_solved or saved:
            return True
        if self.directory.final_models(trial.number):
            return True
        trials = [trial, *([self.state.plain] if self.state.plain else [])]
        training = [self.training_seconds(each) for each in trials]
        left = self.budget.left()
        testing = min(self.closing_seconds(trials, 1) + 3.0, 0.5 * left)  # as the last training leaves for it
        return max(*training, sum(training) / self.workers) <= left - testing - 2.0

    @property
    def by_rows(self) -> bool:
        """True if candidates were compared on samples of rows, so that the last training may see more of them."""
        return self.plan is not None and self.plan.by_rows

    @property
    def few_rows(self) -> bool:
        """True if there are so few training rows that a known recipe wins unless another is clearly better."""
        return not self.by_rows and self.task.rows["train"] <= FEW_ROWS

    @property
    def trains_at_once(self) -> bool:
        """True if the best known recipe for few rows and the plain head are trained on all rows without evaluation."""
        evaluated = (trial.results for trial in self.state.trials if not trial.is_solved)  # after a resume
        return self.plan is not None and not self.plan.compares and not any(evaluated)

    @property
    def largest_reserve(self) -> float:
        """Largest fraction of the total time that is reserved for the final evaluation."""
        return ROWS_RESERVE if self.by_rows else LARGEST_RESERVE

    def rows_of_fit(self, trial: Trial) -> int | None:
        """Return the number of rows that a solved head learns from in the end; None for all of them."""
        return self.study.rows_of(trial, trial.best[0]) if trial.best else None

    def last_training(
        self, trials: Sequence[Trial], seconds: float, most: float = math.inf
    ) -> dict[int, tuple[int | None, Spec]]:
        """Return the rows and the spec of each trial's last training run, which must end within so many seconds.

        With cross-validation, these are all rows and the spec as it is; if it has not been evaluated, with as many of
        its epochs as fit. Otherwise as many rows as fit, for one epoch; then as many epochs as fit: up to those of the
        spec or, if there is a limit and the models are evaluated themselves, those of the space. All trials get equal
        rows and epochs, so that they can be compared.

        Args:
            trials: The trials.
            seconds: Time of the training runs.
            most: Examples that each may see at most.
        """
        if not self.by_rows or self.plan is None:
            seconds = SLOWEST_RATE * (seconds - self.finishing_seconds)
            return {trial.number: (None, self._fitted(trial, seconds, most)) for trial in trials}
        plan, tuned = self.plan, [trial for trial in trials if not trial.is_solved]
        available = max(1, min(self.task.rows["train"] - self.set_aside, plan.final_rows))
        seconds = max(0.0, seconds - self.finishing_seconds)
        fitting = [(seconds - self._preparing_seconds(trial)) * self.examples_per_second(trial) for trial in tuned]
        examples = min(most, max(0.0, min(fitting, default=seconds)))
        rows = round(min(available, max(1.0, examples)))
        longest = self.study.candidates.epochs if self.grows and examples < math.inf else 0.0
        last: dict[int, tuple[int | None, Spec]] = {}
        for trial in trials:
            recipe = trial.spec.recipe
            epochs = min(max(recipe.epochs, longest), max(1.0, round(examples / rows, 2)))
            if trial.is_solved:
                last[trial.number] = (self.rows_of_fit(trial), trial.spec)
            else:
                last[trial.number] = (rows, replace(trial.spec, recipe=replace(recipe, epochs=epochs)))
        return last

    def _fitted(self, trial: Trial, seconds: float, most: float) -> Spec:
        """Return the spec of a trial; if it has not been evaluated, with no more epochs than fit."""
        recipe, needed = trial.spec.recipe, self.training_seconds(trial)
        if not self.trains_at_once or trial.is_solved or not needed:
            return trial.spec
        epochs = min(recipe.epochs * seconds / needed, most / self.task.rows["train"])
        return replace(trial.spec, recipe=replace(recipe, epochs=max(1.0, min(recipe.epochs, round(epochs, 2)))))

    @property
    def grows(self) -> bool:
        """True if the models of the last training runs are evaluated themselves."""
        return self.plan is not None and self.plan.grows

    @property
    def set_aside(self) -> int:
        """Number of training rows that the last training does not see, because its model is evaluated on them."""
        if not self.grows or "validation" in self.task.rows:
            return 0
        return self.task.rows["train"] // count_large_folds(self.task.rows["train"])

    @property
    def finishing_seconds(self) -> float:
        """Estimate the seconds after the last training: its model is evaluated itself, or its head is solved again."""
        if self.plan is None or not (self.plan.grows or self.trains_at_once):
            return 0.0
        return 2.0 + self.plan.validation_rows / max(1e-9, self.plan.rows_per_second)

    def _preparing_seconds(self, trial: Trial) -> float:
        """Estimate the seconds until a training begins: some heads are solved or standardised on a sample first."""
        recipe = trial.spec.recipe
        if self.plan is None or not (recipe.standardize or recipe.head_init == "solved"):
            return 0.0
        return min(PREPARING_ROWS, self.task.rows["train"]) / max(1e-9, self.plan.rows_per_second)

    def examples_per_second(self, trial: Trial) -> float:
        """Return the training rate of a trial, from its highest rung."""
        result = trial.results[trial.best[0]] if trial.best else None
        seconds = result.extra.get("training_seconds") if result else None
        if result is None or not result.examples or not seconds:
            return self.plan.examples_per_second if self.plan and self.plan.examples_per_second else 1.0
        return float(result.examples / seconds)

    def prediction_seconds(self, trial: Trial, rows: int | None = None) -> float:
        """Estimate the seconds a model of this candidate takes for so many rows.

        Training a head on a frozen encoder reads stored activations; prediction always runs the encoder.

        Args:
            trial: The candidate.
            rows: Number of rows; by default those of the test.
        """
        if self.plan is None or not self.plan.rows_per_second:
            return self._third_of_training(trial, rows)
        count = self.plan.test_rows if rows is None else rows
        encoder = count / self.plan.rows_per_second * self.plan.cost_of(trial.spec.encoder)
        # Training on few rows has many small steps, which say little about the time of a prediction.
        return 2.0 + encoder if self.by_rows or self.few_rows else max(encoder, self._third_of_training(trial, rows))

    def _third_of_training(self, trial: Trial, rows: int | None = None) -> float:
        """Return the seconds of a third of training on so many rows; by default as many as the test has."""
        epochs = max(1.0, trial.spec.recipe.epochs)
        tested = self.plan.test_rows if self.plan else self.task.rows.get("test", 0)
        fraction = (tested if rows is None else rows) / max(1, self.task.rows["train"])
        return self.training_seconds(trial) / epochs / 3 * fraction

    def minimum_seconds(self, best: Trial | None) -> float:
        """Estimate the seconds of the least there is to do: two models on all rows and all predictions of test rows.

        The longest training run and its predictions are sequential; the rest is shared by the workers.
        """
        if self.trains_at_once:
            return 5.0  # the search ends by itself, after solving heads
        if self.plan and self.plan.only_solves:
            # The model is saved when it is solved; predicting the test rows is all that may be left.
            speed = self.plan.rows_per_second * (self.executor.threads_alone or 1) ** THREAD_EXPONENT
            return self.plan.test_rows / max(1e-9, speed) + self.bootstrap_seconds + 5.0
        plain = None if self.state.plain is best else self.state.plain
        trials = [trial for trial in (best, plain) if trial is not None]
        training = [self.training_seconds(trial) for trial in trials]
        if self.plan and self.grows and self.plan.seconds and any(trial.best for trial in self.tuned()):
            training.append(LAST_TRAINING * self.plan.seconds)
        predicting = max((self.prediction_seconds(trial) for trial in trials), default=0.0)
        # Models of folds can be left out. An ensemble seldom has the most members.
        complete = all(trial.best and trial.best[0] == self.study.ladder.top for trial in trials)
        models = 2 * self.folds + MAXIMUM_MEMBERS * self.folds / 2 if complete and not self.by_rows else 0
        optional = models * max(map(self._third_of_training, trials), default=0.0)
        optional = min(optional, OPTIONAL_FRACTION * self.budget.total * self.workers or math.inf)
        shared = (sum(training) + 2 * predicting + optional) / self.workers
        # On few rows the first candidate is worth the risk that the time ends with the best model so far.
        margin, passes = (1.0, 1) if self.few_rows else (1.25, 2)
        alone = max(margin * max(training, default=0.0) + passes * predicting, 1.1 * shared)
        candidate = best is not None and not best.is_solved and not best.is_plain  # until there is one, search on
        if candidate and not self.by_rows and self.budget.deadline is not None:
            run = max(max(training), sum(training) / self.workers)
            several = [1.1 * (runs * run + self.closing_seconds(trials, runs)) for runs in range(2, TRAINING_RUNS + 1)]
            affordable = [seconds for seconds in several if seconds <= RUNS_FRACTION * self.budget.total]
            alone = max(alone, *affordable, 0.0)
        return alone + self.bootstrap_seconds + 5.0

    def closing_seconds(self, trials: Sequence[Trial], runs: int) -> float:
        """Estimate the seconds of what must follow so many training runs of each trial.

        The first model of each predicts the test rows; after several runs, so does their average.
        """
        predicting = sum(map(self.prediction_seconds, trials)) / self.workers
        margin = 1.0 if self.trains_at_once else 1.5  # every second is worth more in training
        return margin * predicting if runs == 1 else 2 * predicting + self.averaging_seconds(trials, runs)

    def averaging_seconds(self, trials: Sequence[Trial], runs: int) -> float:
        """Estimate the seconds of averaging so many models of each trial.

        Each model is loaded and predicts the rows of the check, and so does the average.
        """
        loading = self._model_bytes() / LOADING_RATE
        each = [loading + self.prediction_seconds(trial, AverageModels.checked_rows) for trial in trials]
        return AVERAGING_SECONDS + (runs + 1) * max(max(each, default=0.0), sum(each) / self.workers)

    @property
    def bootstrap_seconds(self) -> float:
        """Estimate the seconds of comparing finalists and tested models; next to none unless numbers are predicted."""
        if self.task.problem_type != "regression":
            return 0.0
        test, train = self.task.rows.get("test", 0), self.task.rows["train"]
        test = min(test, self.plan.test_rows) if self.plan else test
        validation = min(train, self.plan.validation_rows) if self.plan else train
        return RANKING_SECONDS * (test * RANKED_TEST_RUNS + validation * RANKED_VALIDATION_RUNS)
