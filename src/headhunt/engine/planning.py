"""Fit a search to its time: decide from the speed of the encoder which rows and epochs fit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from headhunt.data.division import count_large_folds
from headhunt.run.plan import THREAD_EXPONENT, Plan
from headhunt.run.task import TaskInfo

MEASURED_ROWS, MEASURED_SECONDS = 128, 1.0  # of the measurement that a plan is based on
TRAINING_FACTOR = 3.3  # cost of a training example, relative to a pass through the frozen encoder
SOLVED_ROWS = 20_000  # rows that a head is solved on at most: their features take a gigabyte
COUNTED_ROWS, COUNTED_RATE = 30_000, 250.0  # rows whose words are counted at most, and for each second of the search
SOLVED_FRACTION, ONLY_SOLVED_FRACTION = (
    0.25,
    0.6,
)  # of the time, for its features; where one epoch of training is longer
HELD_OUT_ROWS, HELD_OUT_FRACTION, LEAST_HELD_OUT = 2000, 0.05, 200  # rows; share of the time to predict them; rows
TEST_ROWS, LEAST_TEST_ROWS, TEST_FRACTION = 2000, 500, 0.05
COMPARING_FRACTION = 0.25  # of the time, for comparing encoders
CLOSING_SECONDS = 3.0  # for saving and loading at the end
LEAST_EPOCHS = 1.0


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
    known: dict[str, Any] = {"rows": rows, "folds": task.folds, "seconds": seconds}
    known |= {"rows_per_second": round(rate, 2), "examples_per_second": round(rate / TRAINING_FACTOR, 2)}
    held_out = task.rows.get("validation") or max(1, rows // count_large_folds(rows))
    held_out = rows if task.folds > 1 else min(held_out, HELD_OUT_ROWS)
    if seconds is None:
        solved, counted = min(rows, SOLVED_ROWS), min(rows, COUNTED_ROWS)
        return Plan(
            used_rows=rows, held_out=held_out, solved_rows=solved, counted_rows=counted, test_rows=test, **known
        )
    test = min(test, max(LEAST_TEST_ROWS, round(TEST_FRACTION * seconds * rate)))
    if task.folds == 1:
        held_out = min(held_out, max(LEAST_HELD_OUT, round(HELD_OUT_FRACTION * seconds * rate)))
    fraction = SOLVED_FRACTION if left * rate / TRAINING_FACTOR >= rows else ONLY_SOLVED_FRACTION
    solved = min(rows, SOLVED_ROWS, max(LEAST_HELD_OUT, round(fraction * seconds * rate * alone**THREAD_EXPONENT)))
    training = max(5.0, left - CLOSING_SECONDS - (solved + 2 * test) / rate / alone**THREAD_EXPONENT)
    examples = training * rate / TRAINING_FACTOR / (2 if workers < 2 else 1)  # of each of the two that come first
    used = rows if task.folds > 1 else min(rows, max(solved, round(examples / LEAST_EPOCHS)))
    epochs = round(min(1000.0, max(LEAST_EPOCHS, examples / used)), 2)
    counted = min(rows, COUNTED_ROWS, max(solved, round(COUNTED_RATE * seconds)))
    known |= {"used_rows": used, "solved_rows": solved, "counted_rows": counted}
    return Plan(held_out=held_out, test_rows=test, epochs=epochs, **known)


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
