"""Solve a candidate's output layer in closed form, on features of an encoder that is not trained."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import load_file, save_file
from torch import nn
from transformers import PreTrainedModel

from headhunt.modeling.build import heads_of, output_of
from headhunt.storage import atomic_path
from headhunt.training.features import Features, TaskFeatures, feature_blocks, last_mean
from headhunt.training.logistic import fit_linear
from headhunt.training.loop import CHECKPOINT, Report
from headhunt.training.objectives import Objective, TaskObjectives
from headhunt.training.ridge import HeldOut, LinearModel


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
        return fit_linear(
            features,
            feature_blocks(self.model),
            self.targets,
            self.objective.problem_type,
            self._outputs,
            solver=self._solver,
            last_mean=last_mean(self.model),
            groups=self._groups,
            seed=self._seed,
        )

    def predict(self, rows: np.ndarray, stop: Callable[[], bool] = lambda: False) -> np.ndarray:
        """Return the logits (rows, outputs) of rows of the task, from their features."""
        assert self._solution is not None
        return self._solution.logits(self.features.get(rows, stop))

    @property
    def held_out(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Rows of the task that the model has learned from, and their logits by models without them, if known."""
        found = self._solution.held_out if self._solution is not None else None
        return None if found is None else (self.rows[found.rows], found.logits)

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
        if (held_out := self._solution.held_out) is not None:
            arrays |= {"held_out.rows": held_out.rows, "held_out.logits": np.ascontiguousarray(held_out.logits)}
        with atomic_path(Path(folder) / CHECKPOINT) as path:
            save_file(arrays, path)

    def restore(self, folder: str | Path) -> None:
        """Read a solution that `save` wrote."""
        arrays = load_file(Path(folder) / CHECKPOINT)
        held_out = None
        if "held_out.rows" in arrays:
            held_out = HeldOut(arrays["held_out.rows"], arrays["held_out.logits"])
            if held_out.rows.max(initial=0) >= len(self.rows) or len(held_out.rows) != len(held_out.logits):
                raise ValueError("the checkpoint is of other rows")
        self._use(LinearModel(arrays["weight"], arrays["bias"], float(arrays["penalty"][0]), held_out))

    def _use(self, solution: LinearModel) -> None:
        _set_output(output_of(self.model), solution)
        self._solution, self.step = solution, 1


class SolvingTasks:
    """The solution of a candidate for several tasks, with the interface of a `Training`: each head is solved alone.

    Args:
        model: The model; its output layers are replaced in place.
        features: Features of all rows of the tasks.
        rows: The rows to learn from.
        targets: Their targets.
        tasks: Problem type and number of outputs of each task.
        groups: Group of each row; the rows of a group are held out together when the penalty is chosen.
        seed: Random seed of the folds within the rows.
    """

    steps = 1

    def __init__(
        self,
        model: PreTrainedModel,
        features: TaskFeatures,
        rows: np.ndarray,
        targets: np.ndarray,
        *,
        tasks: Sequence[tuple[str, int]],
        groups: np.ndarray | None = None,
        seed: int = 0,
    ) -> None:
        self.model, self.features, self.rows, self.targets = model, features, rows, targets
        self.objective = TaskObjectives(tuple(Objective(problem_type) for problem_type, _ in tasks))
        self.step = self.examples = 0
        self.seconds = 0.0
        self._tasks, self._groups, self._seed = tasks, groups, seed
        self._solutions: list[LinearModel] = []

    def steps_until(self, fraction: float) -> int:
        """Return the number of steps of this fraction of the training run: always one."""
        return 1

    def reports(
        self, count: int = 1, *, until: float = 1.0, stop: Callable[[], bool] = lambda: False
    ) -> Iterator[Report]:
        """Compute the features, solve for the output layer of each task and yield one report."""
        if self.step:
            return
        began = time.perf_counter()
        solutions, losses = [], []
        for number, (head, (problem_type, outputs)) in enumerate(zip(heads_of(self.model), self._tasks, strict=True)):
            chosen = np.flatnonzero(self.targets["task"] == number)
            values = self.targets["value"][chosen]
            if problem_type != "regression":
                values = values.astype(np.int64)
            features = self.features.of_task(number, self.rows[chosen], stop)
            groups = None if self._groups is None else self._groups[chosen]
            solution = fit_linear(
                features,
                feature_blocks(head),
                values,
                problem_type,
                outputs,
                last_mean=last_mean(head),
                groups=groups,
                seed=self._seed,
            )
            objective = Objective(problem_type)
            logits = torch.from_numpy(solution.logits(features))
            losses.append(float(objective.loss(logits, objective.targets(values))))
            solutions.append(solution)
        self._use(solutions)
        self.examples = len(self.rows)
        self.seconds = time.perf_counter() - began
        yield Report(self.examples, self.examples, float(np.mean(losses)), self.seconds)

    def predict(self, rows: np.ndarray, stop: Callable[[], bool] = lambda: False) -> np.ndarray:
        """Return the logits (rows, most outputs of any task) of rows of the tasks, from their features."""
        logits = np.zeros((len(rows), max(outputs for _, outputs in self._tasks)), np.float32)
        tasks = self.features.tokens.tasks[rows]
        for number, solution in enumerate(self._solutions):
            chosen = np.flatnonzero(tasks == number)
            if len(chosen):
                found = solution.logits(self.features.of_task(number, rows[chosen], stop))
                logits[chosen, : found.shape[1]] = found
        return logits

    def finish(self) -> PreTrainedModel:
        """Return the model."""
        return self.model.eval()

    def save(self, folder: str | Path) -> None:
        """Write the solutions."""
        arrays: dict[str, np.ndarray] = {}
        for number, solution in enumerate(self._solutions):
            arrays[f"{number}.weight"] = np.ascontiguousarray(solution.weight)
            arrays[f"{number}.bias"] = solution.bias
            arrays[f"{number}.penalty"] = np.array([solution.penalty])
        with atomic_path(Path(folder) / CHECKPOINT) as path:
            save_file(arrays, path)

    def restore(self, folder: str | Path) -> None:
        """Read solutions that `save` wrote."""
        arrays = load_file(Path(folder) / CHECKPOINT)
        self._use(
            [
                LinearModel(arrays[f"{i}.weight"], arrays[f"{i}.bias"], float(arrays[f"{i}.penalty"][0]))
                for i in range(len(self._tasks))
            ]
        )

    def _use(self, solutions: list[LinearModel]) -> None:
        for head, solution in zip(heads_of(self.model), solutions, strict=True):
            _set_output(head.output, solution)
        self._solutions, self.step = solutions, 1


def _set_output(output: nn.Linear, solution: LinearModel) -> None:
    with torch.no_grad():
        output.weight.copy_(torch.from_numpy(np.ascontiguousarray(solution.weight)))
        output.bias.copy_(torch.from_numpy(solution.bias))
