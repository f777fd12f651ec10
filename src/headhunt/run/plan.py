"""Fit a search to its time: decide from the speed of the encoder which rows and epochs fit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from headhunt.data.division import count_large_folds
from headhunt.run.resampling import CrossValidation, Holdout, Resampling
from headhunt.run.task import TaskInfo

THREAD_EXPONENT = 0.8  # of the speed-up by several threads; a worker has one
MEASURED_ROWS, MEASURED_SECONDS = 128, 1.0  # of the measurement that a plan is based on
TRAINING_FACTOR = 3.3  # cost of a training example, relative to a pass through the frozen encoder
SOLVED_ROWS = 20_000  # rows that a head is solved on at most: their features take a gigabyte
COUNTED_ROWS, COUNTED_RATE = 30_000, 250.0  # rows whose words are counted at most, and for each second of the search
SOLVED_FRACTION = 0.25  # of the time, for its features
ONLY_SOLVED_FRACTION = 0.6  # of the time, where one epoch of training is longer
HELD_OUT_ROWS, HELD_OUT_FRACTION, LEAST_HELD_OUT = 2000, 0.05, 200  # rows; share of the time to predict them; rows
TEST_ROWS, LEAST_TEST_ROWS, TEST_FRACTION = 2000, 500, 0.05
COMPARING_FRACTION = 0.25  # of the time, for comparing encoders
CLOSING_SECONDS = 3.0  # for saving and loading at the end
LEAST_EPOCHS = 1.0


@dataclass(frozen=True)
class Plan:
    """Rows, epochs and rates of a search, decided once from a measurement."""

    rows: int
    """Training rows of the task."""
    used_rows: int
    """Rows that a candidate is trained on at most; fewer than all only where the time is too short for one epoch."""
    held_out: int
    """Rows that candidates are evaluated on: held-out ones or, with cross-validation, all, each once."""
    solved_rows: int
    """Rows that a head is solved on."""
    counted_rows: int
    """Rows whose words are counted, for the model that needs no encoder."""
    test_rows: int
    """Test rows that are predicted at the end; 0 without test rows."""
    folds: int = 1
    """Cross-validation folds; 1 where rows are held out instead."""
    epochs: float | None = None
    """Largest number of epochs of a candidate; None is as many as its recipe has."""
    encoders: tuple[str, ...] = ()
    """Encoders that are compared by their solved heads, that of the plain head first; empty if there is one."""
    costs: tuple[float, ...] = ()
    """Cost of each of these encoders, relative to the first."""
    rows_per_second: float = 0.0
    """Measured rate of one worker: texts or pairs through the frozen encoder."""
    examples_per_second: float = 0.0
    """Estimated rate of one worker: training examples of the plain head."""
    seconds: float | None = None
    """Time of the search; None is no limit."""

    def __post_init__(self) -> None:
        for name in ("rows", "used_rows", "held_out", "solved_rows", "counted_rows", "folds"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1; found {getattr(self, name)}.")
        if not all(0 < cost < math.inf for cost in self.costs):
            raise ValueError(f"costs must be above 0; found {self.costs}.")
        if self.epochs is not None and not 0 < self.epochs <= 1000:
            raise ValueError(f"epochs must be above 0, up to 1000; found {self.epochs}.")

    @property
    def cross_validates(self) -> bool:
        """Whether candidates are evaluated out of fold."""
        return self.folds > 1

    @property
    def resampling(self) -> Resampling:
        """How candidates are trained and evaluated."""
        return CrossValidation(self.folds) if self.cross_validates else Holdout()

    def cost_of(self, encoder: str) -> float:
        """Return the cost of an encoder, relative to that of the plain head."""
        return dict(zip(self.encoders, self.costs, strict=False)).get(encoder, 1.0)

    def rows_at(self, fraction: float) -> int | None:
        """Return the number of training rows at a rung; None with cross-validation."""
        return self.resampling.rows(max(1, round(fraction * self.used_rows)))

    def epoch_seconds(self) -> float | None:
        """Estimate the seconds of one epoch of a complete evaluation of a candidate; None if the rate is not known."""
        if not self.examples_per_second:
            return None
        return self.resampling.examples(self.used_rows) / self.examples_per_second

    def prediction_seconds(self, rows: int, encoder: str | None = None) -> float:
        """Estimate the seconds that one worker takes to predict so many rows."""
        cost = 1.0 if encoder is None else self.cost_of(encoder)
        return rows * cost / self.rows_per_second if self.rows_per_second else 0.0

    @property
    def sentence(self) -> str:
        """The plan in one line."""
        time = "no time limit" if self.seconds is None else format_duration(self.seconds)
        trained = "all rows" if self.used_rows >= self.rows - self.held_out else f"{_about(self.used_rows)} rows"
        epochs = "" if self.epochs is None else f", for up to {self.epochs:.3g} epochs"
        return f"{self.rows:,} rows, {time}: candidates are trained on {trained}{epochs}"


def make_plan(
    task: TaskInfo, measured: Mapping[str, Any], *, seconds: float | None, left: float, workers: int, alone: int
) -> Plan:
    """Return the plan of a search.

    Args:
        task: Description of the data.
        measured: Rows that pass through the frozen encoder per second, and the threads that did it.
        seconds: Time of the search; None is no limit.
        left: Seconds that are left of it.
        workers: Number of workers.
        alone: Threads of a request that runs alone.
    """
    rate = float(measured["rows_per_second"]) / float(measured["threads"]) ** THREAD_EXPONENT
    rows, test = task.rows["train"], min(task.rows.get("test", 0), TEST_ROWS)
    held_out = task.rows.get("validation") or max(1, rows // count_large_folds(rows))
    held_out = rows if task.folds > 1 else min(held_out, HELD_OUT_ROWS)
    solved, counted, used, epochs = min(rows, SOLVED_ROWS), min(rows, COUNTED_ROWS), rows, None
    if seconds is not None:
        test = min(test, max(LEAST_TEST_ROWS, round(TEST_FRACTION * seconds * rate)))
        if task.folds == 1:
            held_out = min(held_out, max(LEAST_HELD_OUT, round(HELD_OUT_FRACTION * seconds * rate)))
        fraction = SOLVED_FRACTION if left * rate / TRAINING_FACTOR >= rows else ONLY_SOLVED_FRACTION
        solved = min(solved, max(LEAST_HELD_OUT, round(fraction * seconds * rate * alone**THREAD_EXPONENT)))
        training = max(5.0, left - CLOSING_SECONDS - (solved + 2 * test) / rate / alone**THREAD_EXPONENT)
        examples = training * rate / TRAINING_FACTOR / (2 if workers < 2 else 1)  # of each of the two that come first
        used = rows if task.folds > 1 else min(rows, max(solved, round(examples / LEAST_EPOCHS)))
        epochs = round(min(1000.0, max(LEAST_EPOCHS, examples / used)), 2)
        counted = min(counted, max(solved, round(COUNTED_RATE * seconds)))
    return Plan(
        rows=rows,
        used_rows=used,
        held_out=held_out,
        solved_rows=solved,
        counted_rows=counted,
        test_rows=test,
        folds=task.folds,
        epochs=epochs,
        rows_per_second=round(rate, 2),
        examples_per_second=round(rate / TRAINING_FACTOR, 2),
        seconds=seconds,
    )


def with_encoders(plan: Plan, costs: Mapping[str, float]) -> Plan:
    """Return the plan with the encoders that there is time to compare: that of the plain head, then the cheapest.

    Args:
        plan: The plan for the first encoder.
        costs: Cost of each encoder.
    """
    first, *others = costs
    left = math.inf if plan.seconds is None else COMPARING_FRACTION * plan.seconds
    chosen = [first]
    for encoder in sorted(others, key=costs.__getitem__):
        left -= plan.prediction_seconds(plan.solved_rows) * costs[encoder] / costs[first]
        if left > 0:
            chosen.append(encoder)
    return replace(plan, encoders=tuple(chosen), costs=tuple(costs[each] / costs[first] for each in chosen))


def format_duration(seconds: float) -> str:
    """Return a duration in words, such as 90 s, 5 min or 2 h."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.3g} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"


def _about(rows: int) -> str:
    """Return a number with two significant digits."""
    digits = max(0, len(str(rows)) - 2)
    return f"{round(rows, -digits):,}"
