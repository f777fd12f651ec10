"""Divide the rows of a task into those to train on and those to evaluate on."""

from __future__ import annotations

import numpy as np

from headhunt.data import Task
from headhunt.data.division import count_large_folds
from headhunt.run.task import TaskInfo

Fold = tuple[np.ndarray, np.ndarray]
"""Rows to train on and rows to evaluate on."""


def make_folds(task: Task, seed: int = 0) -> list[Fold]:
    """Return, for each training run of a candidate, the rows to train on and the rows to evaluate on.

    Positions count the training rows first, then the validation rows if the user gave some.
    """
    train = len(task.splits["train"])
    if "validation" in task.splits:
        return [(np.arange(train), train + np.arange(len(task.splits["validation"])))]
    folds = TaskInfo.of(task).folds
    if folds > 1:
        return task.folds(folds, seed)
    return [task.first_fold(count_large_folds(train), seed)]


def fold_name(number: int) -> str:
    """Return the name of a fold's directory in a checkpoint."""
    return f"fold-{number}"


def baseline_loss(problem_type: str, targets: np.ndarray) -> float:
    """Return the loss of a model that knows nothing but how frequent each label is."""
    if problem_type == "regression":
        return 1.0
    if problem_type == "multi_label_classification":
        p = targets.mean(0).clip(1e-9, 1 - 1e-9)
        return float(-(p * np.log(p) + (1 - p) * np.log(1 - p)).mean())
    p = np.bincount(targets) / len(targets)
    return float(-(p[p > 0] * np.log(p[p > 0])).sum())
