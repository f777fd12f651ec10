"""Score the models of a search on the test rows of each of several tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from headhunt.engine.view import View
from headhunt.evaluation import compare, parts_of
from headhunt.run.results import TaskResult, TestResult, results_of_tasks


def score_tasks(
    view: View,
    outputs: Mapping[str, np.ndarray],
    runs: tuple[list[np.ndarray], list[np.ndarray]] | None,
) -> TestResult:
    """Return the mean scores of models on the test rows, and those of each task.

    Args:
        view: The search.
        outputs: Outputs of each model that was tested, by name.
        runs: Outputs of training runs of the winner and as many of the plain head, if both were tested.
    """
    result = results_of_tasks(view.task.tasks, view.metric, outputs, view.test.targets)
    if runs is None:
        return result
    return replace(
        result, tasks=tuple(_with_gain(each, number, view, runs) for number, each in enumerate(result.tasks))
    )


def _with_gain(
    result: TaskResult, number: int, view: View, runs: tuple[list[np.ndarray], list[np.ndarray]]
) -> TaskResult:
    """Return the result of a task with the winner's gain over the plain head."""
    parts = [[parts_of(view.metric, run, view.test.targets)[number] for run in each] for each in runs]
    winner, plain = ([part.outputs for part in each] for each in parts)
    part = parts[0][0]
    comparison = compare(part.problem_type, part.metric, winner, plain, part.targets)
    return replace(result, gain=comparison.gain, low=comparison.low, high=comparison.high)
