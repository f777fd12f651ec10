"""Solve a candidate's output layer in closed form, on features of an encoder that is not trained."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file, save_file
from transformers import PreTrainedModel

from headhunt.modeling.build import output_of
from headhunt.storage import atomic_path
from headhunt.training.features import Features, feature_blocks
from headhunt.training.logistic import fit_logistic
from headhunt.training.loop import CHECKPOINT, Report
from headhunt.training.objectives import Objective
from headhunt.training.ridge import LinearModel, fit_ridge


class Solving:
    """The solution of one candidate, with the interface of a `Training`: it takes a single step.

    Args:
        model: The model; its output layer is replaced in place.
        features: Features of all rows of the task.
        rows: The rows to learn from.
        targets: Their targets.
        problem_type: "single_label_classification", "multi_label_classification" or "regression".
        outputs: Number of outputs.
        groups: Group of each row; the rows of a group are held out together when the penalty is chosen.
        seed: Random seed of the folds within the rows.
        solver: "ridge" or "logistic".
    """

    steps = 1

    def __init__(
        self,
        model: PreTrainedModel,
        features: Features,
        rows: np.ndarray,
        targets: np.ndarray,
        *,
        problem_type: str,
        outputs: int,
        groups: np.ndarray | None = None,
        seed: int = 0,
        solver: str = "ridge",
    ) -> None:
        self.model, self.features, self.rows, self.targets = model, features, rows, targets
        self.objective = Objective(problem_type)
        self.step = self.examples = 0
        self.seconds = 0.0
        self._outputs, self._groups, self._seed, self._solver = outputs, groups, seed, solver
        self._solution: LinearModel | None = None

    def steps_until(self, fraction: float) -> int:
        """Return the number of steps of this fraction of the training run: always one."""
        return 1

    def reports(
        self, count: int = 1, *, until: float = 1.0, stop: Callable[[], bool] = lambda: False
    ) -> Iterator[Report]:
        """Compute the features, solve for the output layer and yield one report."""
        if self.step:
            return
        began = time.perf_counter()
        features = self.features.get(self.rows, stop)
        solution = self._fit(features)
        self._use(solution)
        self.examples = len(self.rows)
        logits = torch.from_numpy(solution.logits(features))
        loss = float(self.objective.loss(logits, self.objective.targets(self.targets)))
        self.seconds = time.perf_counter() - began
        yield Report(self.examples, self.examples, loss, self.seconds)

    def _fit(self, features: np.ndarray) -> LinearModel:
        blocks = feature_blocks(self.model)
        shared: dict[str, Any] = {"groups": self._groups, "seed": self._seed, "threads": torch.get_num_threads()}
        if self._solver == "logistic":
            return fit_logistic(features, blocks, self.targets, self._outputs, **shared)
        return fit_ridge(features, blocks, self.targets, self.objective.problem_type, self._outputs, **shared)

    def predict(self, rows: np.ndarray, stop: Callable[[], bool] = lambda: False) -> np.ndarray:
        """Return the logits (rows, outputs) of rows of the task, from their features."""
        assert self._solution is not None
        return self._solution.logits(self.features.get(rows, stop))

    def finish(self) -> PreTrainedModel:
        """Return the model."""
        return self.model.eval()

    def save(self, folder: str | Path) -> None:
        """Write the solution."""
        assert self._solution is not None
        arrays = {
            "weight": np.ascontiguousarray(self._solution.weight),
            "bias": self._solution.bias,
            "penalty": np.array([self._solution.penalty]),
        }
        with atomic_path(Path(folder) / CHECKPOINT) as path:
            save_file(arrays, path)

    def restore(self, folder: str | Path) -> None:
        """Read a solution that `save` wrote."""
        arrays = load_file(Path(folder) / CHECKPOINT)
        self._use(LinearModel(arrays["weight"], arrays["bias"], float(arrays["penalty"][0])))

    def _use(self, solution: LinearModel) -> None:
        output = output_of(self.model)
        with torch.no_grad():
            output.weight.copy_(torch.from_numpy(np.ascontiguousarray(solution.weight)))
            output.bias.copy_(torch.from_numpy(solution.bias))
        self._solution, self.step = solution, 1
