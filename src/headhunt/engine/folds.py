"""Divide the rows of a task into those to train on and those to evaluate on, and read what a fold has left."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from headhunt.data import Task
from headhunt.data.division import count_large_folds
from headhunt.data.splitting import find_strata
from headhunt.run.plan import Plan
from headhunt.run.task import count_folds
from headhunt.storage import disk_failed, link_or_copy, remove

Fold = tuple[np.ndarray, np.ndarray]
"""Rows to train on and rows to evaluate on."""
OUTPUTS = "outputs.npy"  # predictions of a fold, in its checkpoint


@dataclass(frozen=True)
class WorkingRows:
    """The rows that candidates are trained and evaluated on: all rows of a task, or the sample of a plan."""

    positions: np.ndarray
    """Their positions among the training and validation rows of the task, ascending."""
    folds: list[Fold]
    """As positions among the working rows."""
    rank: np.ndarray
    """Of each working row in the order that samples are taken in."""

    def sample(self, rows: np.ndarray, count: int | None) -> np.ndarray:
        """Return the first rows in the order of samples: a larger sample contains a smaller one."""
        return rows if count is None else rows[np.argsort(self.rank[rows], kind="stable")[:count]]


def working_rows(task: Task, plan: Plan | None, seed: int = 0) -> WorkingRows:
    """Return the rows that a search works with.

    Args:
        task: The task, with its training rows and any validation rows.
        plan: The plan of the search; without one, all rows are used.
        seed: Random seed of folds and samples.
    """
    targets = np.concatenate([task.splits[name].targets for name in ("train", "validation") if name in task.splits])
    rank = np.empty(len(targets), np.int64)
    rank[stratified_order(targets, seed)] = np.arange(len(targets))
    everything = WorkingRows(np.arange(len(targets)), make_folds(task, seed), rank)
    if plan is None or len(everything.folds) > 1:
        return everything
    ((train, evaluated),) = everything.folds
    evaluated = np.sort(everything.sample(evaluated, plan.held_out))
    train = everything.sample(train, max(plan.used_rows, plan.solved_rows, plan.counted_rows))
    positions = np.sort(np.concatenate([train, evaluated]))
    fold = np.searchsorted(positions, np.sort(train)), np.searchsorted(positions, evaluated)
    return WorkingRows(positions, [fold], rank[positions])


def make_folds(task: Task, seed: int = 0) -> list[Fold]:
    """Return, for each training run of a candidate, the rows to train on and the rows to evaluate on.

    Positions count the training rows first, then the validation rows if the user gave some.
    """
    train = len(task.splits["train"])
    if "validation" in task.splits:
        return [(np.arange(train), train + np.arange(len(task.splits["validation"])))]
    folds = count_folds({name: len(split) for name, split in task.splits.items()})
    if folds > 1:
        return task.folds(folds, seed)
    return [task.first_fold(count_large_folds(train), seed)]


def stratified_order(targets: np.ndarray, seed: int = 0) -> np.ndarray:
    """Return the rows in a random order whose every beginning has about the classes of all rows.

    It has as many rows of each of several tasks, as far as they have so many: every task counts the same.

    Args:
        targets: Class ids, multi-hot rows, numbers, or targets of several tasks. Only class ids and tasks are
            stratified by.
        seed: Random seed.
    """
    rng = np.random.default_rng(seed)
    if targets.dtype.names:
        return _order_of_tasks(targets, seed)
    if targets.ndim > 1 or not np.issubdtype(targets.dtype, np.integer):
        return rng.permutation(len(targets))
    shuffled = rng.permutation(len(targets))
    counts = np.bincount(targets)
    by_class = shuffled[np.argsort(targets[shuffled], kind="stable")]
    starts = np.repeat(np.cumsum(counts) - counts, counts)
    position = (np.arange(len(targets)) - starts + rng.random(len(targets))) / np.repeat(counts, counts)
    return by_class[np.argsort(position, kind="stable")]


def _order_of_tasks(targets: np.ndarray, seed: int) -> np.ndarray:
    tasks = [np.flatnonzero(targets["task"] == number) for number in np.unique(targets["task"])]
    ordered = [rows[stratified_order(find_strata(targets[rows]), seed)] for rows in tasks]
    turn = np.concatenate([np.arange(len(rows)) for rows in ordered])
    return np.concatenate(ordered)[np.argsort(turn, kind="stable")]


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


def read_outputs(place: Path, rows: int) -> np.ndarray | None:
    """Return the predictions of a fold that is complete; None if they are missing or cannot be read."""
    path = place / OUTPUTS
    if not path.exists():
        return None
    try:
        outputs = np.load(path, allow_pickle=False)
        if len(outputs) == rows:
            return np.asarray(outputs)
    except (OSError, ValueError, EOFError, TypeError) as error:
        if disk_failed(error):
            raise
    remove(path)
    return None


def link_files(source: Path, target: Path) -> None:
    """Give the files of a fold's checkpoint a second name in another one; those that are there stay."""
    target.mkdir(parents=True, exist_ok=True)
    for file in source.iterdir():
        with suppress(FileExistsError):
            link_or_copy(file, target / file.name)
