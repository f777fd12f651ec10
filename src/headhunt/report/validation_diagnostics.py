"""Evaluation of the winner and the plain head on validation rows, for a search without a test result.

Candidates were chosen by these rows, so the winner's scores are too optimistic.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from headhunt.data import Task
from headhunt.data.splitting import join_column_groups
from headhunt.evaluation import (
    DEFAULT_METRIC,
    decision_scores,
    evaluate,
    evaluate_tasks,
    find_mistakes,
    reliability_bins,
)
from headhunt.run.directory import read_predictions
from headhunt.run.results import PLAIN, WINNER, TaskResult, TestResult
from headhunt.run.schema import RunError
from headhunt.run.task import open_task


def evaluate_validation(
    task_folder: Path, predictions: Mapping[str, Path], metric: str | None = None
) -> TestResult | None:
    """Return the evaluation on validation rows; None if the winner's predictions are missing or do not fit the data.

    Args:
        task_folder: The data of the run.
        predictions: Files with the predictions of `winner` and, if there are any, of `plain`.
        metric: The metric of the search; by default that of the problem type. Several tasks need it.
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
        return _evaluate_tasks(task, outputs, targets, metric or "")
    metric = metric or DEFAULT_METRIC[task.problem_type]
    decisions = {role: decision_scores(task.problem_type, metric, given, targets) for role, given in outputs.items()}
    every_group = join_column_groups(splits)
    groups = None if every_group is None else every_group[rows]
    evaluations = {
        role: evaluate(task.problem_type, given, targets, task.labels, groups=groups)
        for role, given in decisions.items()
    }
    scores = {role: evaluation.scores for role, evaluation in evaluations.items()}
    if task.problem_type == "regression":
        return TestResult(len(rows), scores)
    if task.problem_type == "multi_label_classification":
        return TestResult(len(rows), scores, calibration=tuple(reliability_bins(winner_outputs, targets)))
    return TestResult(
        len(rows),
        scores,
        confusion={role: evaluation.confusion for role, evaluation in evaluations.items()},
        calibration=tuple(reliability_bins(winner_outputs, targets)),
        mistakes=find_mistakes(
            winner_outputs,
            targets,
            task.labels,
            lambda position: _texts(task, int(rows[position])),
            outputs.get(PLAIN),
        ),
    )


def _evaluate_tasks(task: Task, outputs: Mapping[str, np.ndarray], targets: np.ndarray, metric: str) -> TestResult:
    labels = [each.labels for each in task.tasks]
    scored = {role: evaluate_tasks(metric, given, targets, labels) for role, given in outputs.items()}
    results = tuple(
        TaskResult(
            each.name,
            name,
            scored[WINNER][1][number].rows,
            {role: tasks[number].scores for role, (_, tasks) in scored.items()},
            confusion={role: tasks[number].confusion for role, (_, tasks) in scored.items()},
        )
        for number, (each, name) in enumerate(zip(task.tasks, metric.split(","), strict=True))
    )
    return TestResult(len(targets), {role: mean.scores for role, (mean, _) in scored.items()}, tasks=results)


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
