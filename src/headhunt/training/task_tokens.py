"""Tokens of rows of several tasks, in batches of one task."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from headhunt.training.tokens import SpecialTokens, Tokens, by_length, shuffled_by_length


@dataclass(frozen=True)
class TaskTokens:
    """Rows of several tasks with the interface of `Tokens`. A batch has rows of one task, and its number as `task`."""

    parts: tuple[Tokens, ...]
    """The rows of each task."""
    tasks: np.ndarray
    """Number of each row's task."""
    positions: np.ndarray
    """Position of each row among those of its task."""

    @classmethod
    def join(cls, parts: Sequence[Tokens], tasks: np.ndarray) -> TaskTokens:
        """Return the rows of all tasks.

        Args:
            parts: The rows of each task, in their order.
            tasks: Number of each row's task.
        """
        positions = np.zeros(len(tasks), np.int64)
        for number in range(len(parts)):
            rows = np.flatnonzero(tasks == number)
            positions[rows] = np.arange(len(rows))
        return cls(tuple(parts), tasks, positions)

    def __len__(self) -> int:
        return len(self.tasks)

    @property
    def lengths(self) -> np.ndarray:
        """Number of tokens of each row."""
        lengths = np.zeros(len(self), np.int64)
        for number, part in enumerate(self.parts):
            rows = self.tasks == number
            lengths[rows] = part.lengths[self.positions[rows]]
        return lengths

    @property
    def special(self) -> SpecialTokens:
        """Special tokens of the first task; those of the others have the same padding."""
        return self.parts[0].special

    @property
    def checksum(self) -> int:
        """A number that tells tokens of different rows apart."""
        return sum(part.checksum * (number + 1) for number, part in enumerate(self.parts))

    def tasks_of(self, rows: np.ndarray) -> np.ndarray:
        """Return the number of each row's task."""
        return self.tasks[rows]

    def take(self, rows: np.ndarray) -> TaskTokens:
        """Return some of the rows, in the order given."""
        tasks = self.tasks[rows]
        parts = [part.take(self.positions[rows[tasks == number]]) for number, part in enumerate(self.parts)]
        return TaskTokens.join(parts, tasks)

    def of_task(self, number: int) -> TaskTokens:
        """Return the rows of one task."""
        return self.take(np.flatnonzero(self.tasks == number))

    def batch(self, rows: np.ndarray, swap: np.ndarray | None = None) -> dict[str, torch.Tensor]:
        """Return rows of one task as inputs of a model; see `Tokens.batch`."""
        number = int(self.tasks[rows[0]])
        return {**self.parts[number].batch(self.positions[rows], swap), "task": torch.tensor(number)}

    def batches(self, rows: np.ndarray, size: int) -> Iterator[np.ndarray]:
        """Yield rows in batches for prediction, task by task; see `Tokens.batches`."""
        for number, part in enumerate(self.parts):
            chosen = rows[self.tasks[rows] == number]
            for positions in by_length(part.lengths[self.positions[chosen]], size):
                yield chosen[positions]

    def steps_per_epoch(self, size: int, sampling: str) -> int:
        """Return the number of steps of `epoch`."""
        count = sum(math.ceil(len(part) / size) for part in self.parts)
        return math.ceil(count / self._present) if sampling == "sum" else count

    @property
    def _present(self) -> int:
        """Number of tasks that have rows."""
        return sum(len(part) > 0 for part in self.parts)

    def epoch(self, size: int, sampling: str, rng: np.random.Generator) -> Iterator[list[np.ndarray]]:
        """Yield the batches of each step of an epoch, which has as many batches whatever the sampling.

        Args:
            size: Rows of a batch.
            sampling: See `TASK_SAMPLINGS`. Where a task gets more batches than it has, its rows are shuffled again.
            rng: Random numbers.
        """
        steps = self.steps_per_epoch(size, sampling)
        present = [number for number, part in enumerate(self.parts) if len(part)]
        if sampling == "sum":
            queues = [self._batches_of(number, size, steps, rng) for number in present]
            yield from (list(batches) for batches in zip(*queues, strict=True))
            return
        sizes = np.array([len(self.parts[number]) for number in present], np.float64)
        counts = [math.ceil(rows / size) for rows in sizes]
        if sampling == "sqrt":
            counts = _apportion(np.sqrt(sizes), steps)
        batches = [
            batch
            for number, count in zip(present, counts, strict=True)
            for batch in self._batches_of(number, size, count, rng)
        ]
        for index in rng.permutation(len(batches)):
            yield [batches[index]]

    def _batches_of(self, number: int, size: int, count: int, rng: np.random.Generator) -> list[np.ndarray]:
        """Return so many batches of a task."""
        rows, batches = np.flatnonzero(self.tasks == number), list[np.ndarray]()
        lengths = self.parts[number].lengths[self.positions[rows]]
        while len(batches) < count:
            batches += [rows[positions] for positions in shuffled_by_length(lengths, size, rng)]
        return batches[:count]


def _apportion(shares: np.ndarray, total: int) -> list[int]:
    """Return whole numbers in these proportions that sum to a total, each at least 1."""
    exact = shares / shares.sum() * total
    counts = np.maximum(1, np.floor(exact)).astype(np.int64)
    while counts.sum() < total:
        counts[np.argmax(exact - counts)] += 1
    while counts.sum() > total:
        counts[np.argmax(np.where(counts > 1, counts - exact, -np.inf))] -= 1
    return [int(count) for count in counts]
