"""Solve for a candidate's output layer, on features of an encoder that is not trained."""

from __future__ import annotations

import time
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file, save_file
from transformers import PreTrainedModel

from headhunt.modeling.build import heads_of, output_of
from headhunt.modeling.heads import HeadModule
from headhunt.storage import atomic_path
from headhunt.training.features import Features, TaskFeatures, feature_blocks, last_mean
from headhunt.training.linear import HeldOut, LinearModel, fit_linear
from headhunt.training.loop import CHECKPOINT, Report
from headhunt.training.objectives import Objective, TaskObjectives
from headhunt.training.words import WordTable


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
        solver: "ridge" or "logistic"; see `fit_linear`.
        balanced: Give rare classes more weight; see `fit_linear`.
        head: The head that is solved, for a model of several tasks.
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
        solver: str | None = "ridge",
        balanced: bool = False,
        head: HeadModule | None = None,
    ) -> None:
        self.model, self.features, self.rows, self.targets = model, features, rows, targets
        self.objective = Objective(problem_type)
        self.step = self.examples = 0
        self.seconds = 0.0
        self._outputs, self._groups, self._seed, self._solver = outputs, groups, seed, solver
        self._balanced, self._words = balanced, getattr(model, "words", None)
        self._head, self._output = head or model, head.output if head else output_of(model)
        self._uses_encoder = not getattr(model, "words_alone", False)
        self._solution: LinearModel | None = None
        self._table: WordTable | None = None

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
        table = None if self._words is None else WordTable.of(self.features.ngrams, self.rows)
        features, words = self._features(self.rows, table, stop)
        solution = self._fit(features, words, stop)
        self._use(solution, table)
        self.examples = len(self.rows)
        logits = torch.from_numpy(solution.logits(features, words))
        loss = float(self.objective.loss(logits, self.objective.targets(self.targets)))
        self.seconds = time.perf_counter() - began
        yield Report(self.examples, self.examples, loss, self.seconds)

    def _features(self, rows: np.ndarray, table: WordTable | None, stop: Callable[[], bool]) -> tuple[np.ndarray, Any]:
        """Return features of rows, none if only words are counted, and their word counts."""
        features = self.features.get(rows, stop) if self._uses_encoder else np.zeros((len(rows), 0), np.float32)
        return features, None if table is None else table.features(self.features.ngrams, rows)

    def _fit(self, features: np.ndarray, words: Any, stop: Callable[[], bool]) -> LinearModel:
        return fit_linear(
            features,
            feature_blocks(self._head) if self._uses_encoder else (),
            self.targets,
            self.objective.problem_type,
            self._outputs,
            solver=self._solver,
            words=words,
            last_mean=last_mean(self._head),
            balanced=self._balanced,
            groups=self._groups,
            seed=self._seed,
            stop=stop,
        )

    def predict(self, rows: np.ndarray, stop: Callable[[], bool] = lambda: False) -> np.ndarray:
        """Return the logits (rows, outputs) of rows of the task, from their features."""
        assert self._solution is not None
        return self._solution.logits(*self._features(rows, self._table, stop))

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
        with atomic_path(Path(folder) / CHECKPOINT) as path:
            save_file(self.arrays, path)

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """The solution as arrays."""
        assert self._solution is not None
        arrays = {
            "weight": np.ascontiguousarray(self._solution.weight),
            "bias": self._solution.bias,
            "penalty": np.array([self._solution.penalty]),
        }
        if self._table is not None and self._solution.words is not None:
            arrays |= {"words.buckets": self._table.buckets, "words.idf": self._table.idf}
            arrays["words.weight"] = np.ascontiguousarray(self._solution.words)
        if (held_out := self._solution.held_out) is not None:
            arrays |= {"held_out.rows": held_out.rows, "held_out.logits": np.ascontiguousarray(held_out.logits)}
        return arrays

    def restore(self, folder: str | Path) -> None:
        """Read a solution that `save` wrote."""
        self.use(load_file(Path(folder) / CHECKPOINT))

    def use(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Use a solution from its arrays."""
        held_out = None
        if "held_out.rows" in arrays:
            held_out = HeldOut(arrays["held_out.rows"], arrays["held_out.logits"])
            if held_out.rows.max(initial=0) >= len(self.rows) or len(held_out.rows) != len(held_out.logits):
                raise ValueError("the checkpoint is of other rows")
        table = WordTable(arrays["words.buckets"], arrays["words.idf"]) if "words.idf" in arrays else None
        words = arrays.get("words.weight")
        self._use(LinearModel(arrays["weight"], arrays["bias"], float(arrays["penalty"][0]), held_out, words), table)

    def _use(self, solution: LinearModel, table: WordTable | None) -> None:
        with torch.no_grad():
            if solution.weight.shape[1]:
                self._output.weight.copy_(torch.from_numpy(np.ascontiguousarray(solution.weight)))
            else:  # only words are counted
                self._output.weight.zero_()
            self._output.bias.copy_(torch.from_numpy(solution.bias))
        if self._words is not None:
            assert table is not None and solution.words is not None
            weight = torch.from_numpy(np.ascontiguousarray(solution.words))
            self._words.fill(torch.from_numpy(table.buckets), torch.from_numpy(table.idf), weight)
        self._solution, self._table, self.step = solution, table, 1


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
        self.model, self.features, self.rows = model, features, rows
        self.objective = TaskObjectives(tuple(Objective(problem_type) for problem_type, _ in tasks))
        self.step = self.examples = 0
        self.seconds = 0.0
        self._parts: list[Solving] = []
        for number, (head, (problem_type, outputs)) in enumerate(zip(heads_of(model), tasks, strict=True)):
            chosen = np.flatnonzero(targets["task"] == number)
            values = targets["value"][chosen]
            part = Solving(
                model,
                features.parts[number],
                features.tokens.positions[rows[chosen]],
                values if problem_type == "regression" else values.astype(np.int64),
                problem_type=problem_type,
                outputs=outputs,
                groups=None if groups is None else groups[chosen],
                seed=seed,
                solver=None,
                head=head,
            )
            self._parts.append(part)

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
        losses = [report.loss for part in self._parts for report in part.reports(stop=stop)]
        self.step = 1
        self.examples = len(self.rows)
        self.seconds = time.perf_counter() - began
        yield Report(self.examples, self.examples, float(np.mean(losses)), self.seconds)

    def predict(self, rows: np.ndarray, stop: Callable[[], bool] = lambda: False) -> np.ndarray:
        """Return the logits (rows, most outputs of any task) of rows of the tasks, from their features."""
        tasks = self.features.tokens.tasks[rows]
        logits = np.zeros((len(rows), max(head.output.out_features for head in heads_of(self.model))), np.float32)
        for number, part in enumerate(self._parts):
            chosen = np.flatnonzero(tasks == number)
            if len(chosen):
                found = part.predict(self.features.tokens.positions[rows[chosen]], stop)
                logits[chosen, : found.shape[1]] = found
        return logits

    def finish(self) -> PreTrainedModel:
        """Return the model."""
        return self.model.eval()

    def save(self, folder: str | Path) -> None:
        """Write the solutions."""
        parts = [{f"{number}.{name}": x for name, x in part.arrays.items()} for number, part in enumerate(self._parts)]
        with atomic_path(Path(folder) / CHECKPOINT) as path:
            save_file(dict(ChainMap(*parts)), path)

    def restore(self, folder: str | Path) -> None:
        """Read solutions that `save` wrote."""
        arrays = load_file(Path(folder) / CHECKPOINT)
        for number, part in enumerate(self._parts):
            start = f"{number}."
            part.use({name.removeprefix(start): x for name, x in arrays.items() if name.startswith(start)})
        self.step = 1
