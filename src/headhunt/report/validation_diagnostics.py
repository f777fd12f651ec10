"""Evaluation of the winner and the plain head on validation rows, for a search without a test result.

Candidates were chosen by these rows, so the winner's scores are too optimistic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from headhunt.data import Task
from headhunt.data.splitting import join_column_groups
from headhunt.evaluation import (
    decision_scores,
    evaluate,
    find_mistakes,
    reliability_bins,
)
from headhunt.run.directory import read_predictions
from headhunt.run.results import PLAIN, WINNER, TestResult, results_of_tasks
from headhunt.run.schema import RunError
from headhunt.run.task import open_task


def evaluate_validation(task_folder: Path, predictions: Mapping[str, Path], metric: str) -> TestResult | None:
    """Return the evaluation on validation rows; None if the winner's predictions are missing or do not fit the data.

    Args:
        task_folder: The data of the run.
        predictions: Files with the predictions of `winner` and, if there are any, of `plain`.
        metric: The metric of the search.
    """
    known = {role: read for role, path in predictions.items() if (read := _read(path)) is not None}
    if WINNER not in known:
        return None
    rows, winner_outputs = known[WINNER]
    task = open_task(task_folder)
    splits = [task.splits[name] for name in ("train", "validation") if name in task.splits]
    targets = np.concatenate([split.targets for split in splits])
    if len(rows) == 0 or rows.max() >= len(targets):
        return None
    targets = targets[rows]
    # Only predictions of the same rows can be compared.
    outputs = {role: outputs for role, (other_rows, outputs) in known.items() if np.array_equal(other_rows, rows)}
    if task.tasks:
        return results_of_tasks(task.tasks, metric, outputs, targets)
    decisions = {role: decision_scores(task.problem_type, metric, given, targets) for role, given in outputs.items()}
    every_group = join_column_groups(splits)
    groups = None if every_group is None else every_group[rows]
    evaluations = {
        role: evaluate(task.problem_type, given, targets, task.labels, groups=groups)
        for role, given in decisions.items()
    }
    found = TestResult(
        len(rows),
        {role: evaluation.scores for role, evaluation in evaluations.items()},
        calibration=() if task.problem_type == "regression" else tuple(reliability_bins(winner_outputs, targets)),
    )
    if task.problem_type != "single_label_classification":
        return found
    return replace(
        found,
        confusion={role: evaluation.confusion for role, evaluation in evaluations.items()},
        mistakes=find_mistakes(
            winner_outputs,
            targets,
            task.labels,
            lambda position: _texts(task, int(rows[position])),
            outputs.get(PLAIN),
        ),
    )


def _texts(task: Task, row: int) -> tuple[str, str | None]:
    """Return the texts of a row, counted through the training rows and then the validation rows."""
    in_train = row < len(task.splits["train"])
    split = task.splits["train" if in_train else "validation"]
    row = row if in_train else row - len(task.splits["train"])
    second = split.texts_b(row, row + 1)
    return split.texts(row, row + 1)[0], second[0] if second else None


def _read(path: Path) -> tuple[np.ndarray, np.ndarray] | None:
    try:
        return read_predictions(path)
    except RunError:
        return None
