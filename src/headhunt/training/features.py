"""Compute the features that the output layer of a model classifies."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from headhunt.modeling.build import heads_of, output_of
from headhunt.modeling.heads import HeadModule
from headhunt.training.activations import StoppedError
from headhunt.training.device import autocast
from headhunt.training.task_tokens import TaskTokens
from headhunt.training.tokens import Tokens
from headhunt.training.words import count_ngrams

BATCH_SIZE = 64


class Features:
    """The inputs of a model's output layer, computed once for each row that is asked for.

    Args:
        model: The model, on its device; its encoder and head must not be trained meanwhile.
        tokens: The rows.
        precision: "auto", "fp32" or "bf16".
        module: The layer whose inputs are the features; the output layer by default.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokens: Tokens | TaskTokens,
        precision: str = "auto",
        module: nn.Module | None = None,
    ) -> None:
        self.model, self.tokens, self.precision = model, tokens, precision
        self.seconds = 0.0
        """Time that the passes through the encoder took so far."""
        self.module = module or output_of(model)
        self._position = np.full(len(tokens), -1, np.int64)
        self._values: np.ndarray | None = None

    @cached_property
    def ngrams(self) -> list[Any]:
        """Sparse counts (rows, buckets) of the n-grams of all rows, which need no encoder; see `count_ngrams`."""
        assert isinstance(self.tokens, Tokens)
        return count_ngrams(self.tokens)

    def get(self, rows: np.ndarray, stop: Callable[[], bool] = lambda: False) -> np.ndarray:
        """Return features (rows, features).

        Raises:
            StoppedError: If `stop` returns True before they are complete; what was computed is kept.
        """
        missing = np.unique(rows[self._position[rows] < 0])
        if len(missing):
            self._compute(missing, stop)
        assert self._values is not None
        return self._values[self._position[rows]]

    def _compute(self, rows: np.ndarray, stop: Callable[[], bool]) -> None:
        began = time.perf_counter()
        done, parts = [], []
        self.model.eval()
        inputs: list[Tensor] = []
        handle = self.module.register_forward_pre_hook(lambda module, args: inputs.append(args[0]))
        try:
            with torch.inference_mode(), autocast(self.model.device, self.precision):
                for chosen in self.tokens.batches(rows, BATCH_SIZE):
                    if stop():
                        raise StoppedError
                    batch = self.tokens.batch(chosen)
                    self.model(**{name: x.to(self.model.device) for name, x in batch.items()})
                    parts.append(inputs.pop().float().cpu().numpy())
                    done.append(chosen)
        finally:
            handle.remove()
            if parts:
                before = [] if self._values is None else [self._values]
                start = len(self._values) if self._values is not None else 0
                computed = np.concatenate(done)
                self._position[computed] = np.arange(start, start + len(computed))
                self._values = np.concatenate([*before, *parts])
            self.seconds += time.perf_counter() - began


class InitialFeatures:
    """The features of all rows of a task, before a model is trained; models with the same initial weights share them.

    All rows are computed at once, so that the values do not depend on which model is trained first.

    Args:
        tokens: The rows.
        precision: "auto", "fp32" or "bf16".
    """

    def __init__(self, tokens: Tokens, precision: str = "auto") -> None:
        self.tokens, self.precision = tokens, precision
        self._values: np.ndarray | None = None

    def get(
        self,
        model: PreTrainedModel,
        module: nn.Module,
        rows: np.ndarray,
        stop: Callable[[], bool] = lambda: False,
    ) -> np.ndarray:
        """Return features (rows, features), from a model that has not been trained yet; see `Features`.

        Raises:
            StoppedError: If `stop` returns True before they are complete.
        """
        if self._values is None:
            self._values = Features(model, self.tokens, self.precision, module).get(np.arange(len(self.tokens)), stop)
        return self._values[rows]


class TaskFeatures:
    """The features of several tasks.

    Args:
        model: The model; see `Features`.
        tokens: The rows of all tasks.
        precision: "auto", "fp32" or "bf16".
    """

    def __init__(self, model: PreTrainedModel, tokens: TaskTokens, precision: str = "auto") -> None:
        self.tokens = tokens
        self.parts = [
            Features(model, tokens.of_task(number), precision, head.output)
            for number, head in enumerate(heads_of(model))
        ]

    @property
    def seconds(self) -> float:
        """Time that the passes through the encoder took so far."""
        return sum(part.seconds for part in self.parts)

    def get(self, rows: np.ndarray, stop: Callable[[], bool] = lambda: False) -> None:
        """Compute the features of rows of any task."""
        for number, part in enumerate(self.parts):
            chosen = rows[self.tokens.tasks[rows] == number]
            if len(chosen):
                part.get(self.tokens.positions[chosen], stop)


def feature_blocks(model: PreTrainedModel | HeadModule) -> tuple[int, ...]:
    """Return the widths of the blocks of features that the output layer of a model, or of a head, classifies."""
    head = _head(model)
    if head is None:
        return (output_of(model).in_features,)
    return (head.output.in_features,) if len(head.mlp) else tuple(head.feature_blocks)


def last_mean(model: PreTrainedModel | HeadModule) -> slice | None:
    """Return which of these features are the mean of the last layer, if there are others and this is known."""
    head = _head(model)
    return None if head is None or len(head.mlp) else head.last_mean


def _head(model: PreTrainedModel | HeadModule) -> HeadModule | None:
    return model if isinstance(model, HeadModule) else next(iter(heads_of(model)), None)
