"""The contents of a run directory that reports show, each file read once.

A search may be running, finished or interrupted: parts that are not known yet are None or empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from headhunt.data.splitting import join_column_groups
from headhunt.evaluation import decision_scores, evaluate, find_metric, find_mistakes, reliability_bins
from headhunt.run.directory import RunDirectory, read_predictions
from headhunt.run.ledger import read_state
from headhunt.run.plan import Plan
from headhunt.run.results import PLAIN, WINNER, AblationResult, Importances, SearchResult, TestResult, results_of_tasks
from headhunt.run.schema import RunError
from headhunt.run.settings import SearchSettings
from headhunt.run.state import State, Trial
from headhunt.run.task import TaskInfo, open_task
from headhunt.spec import Leaf, Space, Spec
from headhunt.storage import read_json
from headhunt.study.candidates import Candidates

TEST_ROWS, VALIDATION_ROWS = "test rows", "validation rows"


class RunData:
    """The contents of one run directory.

    Args:
        folder: The run directory.

    Raises:
        RunError: If there is no run in the folder.
    """

    def __init__(self, folder: str | Path) -> None:
        self.directory = RunDirectory(Path(folder))
        self.state: State = read_state(self.directory)
        self.settings: SearchSettings = self.directory.read_settings()
        self.task: TaskInfo = self.directory.read_task_info()
        self.result: SearchResult | None = self.directory.read_result()
        self.plan: Plan | None = self.directory.read_plan()
        self.ablation: AblationResult | None = self.directory.read_ablation()
        self.importances: Importances | None = self.directory.read_importances()

    @property
    def metric(self) -> str:
        """The name of the score that was maximized; an error is negated."""
        return find_metric(self.settings.metric).score_name

    @property
    def model(self) -> Path | None:
        """The best model on disk."""
        saved = self.state.model.folder if self.state.model else None
        return self.directory.best_model(saved, self.state.ended is not None)

    @cached_property
    def winner(self) -> Trial | None:
        """The trial that the search ended with, or the best so far."""
        if self.result is None:
            return self.state.best
        summary = self.result.winner or self.result.plain
        if summary is None or summary.trial >= len(self.state.trials):
            return None
        if summary.score is None and self.result.winner is None:
            return None  # a winner without a score was trained at once, on all rows
        return self.state.trials[summary.trial]

    @property
    def plain_won(self) -> bool:
        """True if the winner is the plain head."""
        return self.winner is not None and self.winner is self.state.plain

    @property
    def fractions(self) -> tuple[float, ...]:
        """The fraction of a trial's budget at each rung."""
        return self.state.started.fractions if self.state.started else ()

    @property
    def versions(self) -> dict[str, str]:
        """Library versions."""
        recorded = self.result.versions if self.result else {}
        return recorded or (self.state.started.versions if self.state.started else {})

    @property
    def test_evaluations(self) -> int:
        """Number of times that models predicted the test rows."""
        return max(self.state.test_evaluations, self.result.test_evaluations if self.result else 0)

    @cached_property
    def leaves(self) -> dict[str, Leaf]:
        """The searched leaves of the space, by path."""
        space = Space.from_dict(self.settings.space)
        known: dict[str, Any] = {"pair": self.task.pair}
        if self.task.tasks:  # their choices have no effect on one task
            known["problem_type"] = self.task.problem_type
        return Candidates(space, encoder=self.settings.encoder, **known).leaves

    @cached_property
    def evaluation(self) -> tuple[TestResult | None, str]:
        """The evaluation of winner and plain head, and its rows: test rows, or validation rows before a test."""
        if self.result is not None and self.result.test is not None and self.result.test.scores:
            return self.result.test, TEST_ROWS
        trials = {WINNER: self.winner, PLAIN: self.state.plain}
        predictions = {
            role: self.directory.predictions(trial.number, trial.best[0])
            for role, trial in trials.items()
            if trial is not None and trial.best
        }
        return evaluate_validation(self.directory.task, predictions, self.settings.metric), VALIDATION_ROWS

    @property
    def layers(self) -> int | None:
        """The number of layers of the first encoder; None if it is not known."""
        return self._layers(self.settings.encoder)

    def layers_of(self, spec: Spec) -> int | None:
        """Return the number of layers of a candidate's encoder; None if it is not known."""
        return spec.shape.depth if spec.shape else self._layers(spec.encoder)

    def _layers(self, encoder: str) -> int | None:
        """Read the number of layers from the configuration of a model on disk with this encoder, or of the encoder."""
        places = [Path(encoder)]
        if self.model is not None and _encoder_of(self.model) == encoder:
            places.insert(0, self.model)
        for place in places:
            config = _read(place / "config.json")
            for part in (config, config.get("encoder")):
                for name in ("num_hidden_layers", "n_layers", "num_layers"):
                    if isinstance(part, dict) and isinstance(part.get(name), int):
                        return int(part[name])
        return None


def evaluate_validation(task_folder: Path, predictions: Mapping[str, Path], metric: str) -> TestResult | None:
    """Return the evaluation on validation rows; None if the winner's predictions are missing or do not fit the data.

    Candidates were chosen by these rows, so the winner's scores are too optimistic.

    Args:
        task_folder: The data of the run.
        predictions: Files with the predictions of `winner` and, if there are any, of `plain`.
        metric: The metric of the search.
    """
    known = {role: read for role, path in predictions.items() if (read := _predictions(path)) is not None}
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
    calibration = () if task.problem_type == "regression" else tuple(reliability_bins(winner_outputs, targets))
    found = TestResult(len(rows), {role: each.scores for role, each in evaluations.items()}, calibration=calibration)
    if task.problem_type != "single_label_classification":
        return found

    def texts(position: int) -> tuple[str, str | None]:
        """Return the texts of a row, counted through the training rows and then the validation rows."""
        row, first = int(rows[position]), len(splits[0])
        split, row = (splits[0], row) if row < first else (splits[1], row - first)
        second = split.texts_b(row, row + 1)
        return split.texts(row, row + 1)[0], second[0] if second else None

    mistakes = find_mistakes(winner_outputs, targets, task.labels, texts, outputs.get(PLAIN))
    return replace(found, confusion={role: each.confusion for role, each in evaluations.items()}, mistakes=mistakes)


def _predictions(path: Path) -> tuple[np.ndarray, np.ndarray] | None:
    try:
        return read_predictions(path)
    except RunError:
        return None


def _encoder_of(model: Path) -> str | None:
    """Return the encoder that a saved model was made from; None if it is not known, or was built from a shape."""
    spec = _read(model / "headhunt.json").get("spec")
    return str(spec.get("encoder")) if isinstance(spec, dict) and not spec.get("shape") else None


def _read(path: Path) -> dict[str, Any]:
    try:
        data = read_json(path)
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}
