"""Compute the features that the output layer of a model classifies."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from headhunt.modeling.build import output_of
from headhunt.modeling.model import HeadhuntForSequenceClassification
from headhunt.training.activations import StoppedError
from headhunt.training.device import autocast
from headhunt.training.tokens import Tokens, by_length

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
        self, model: PreTrainedModel, tokens: Tokens, precision: str = "auto", module: nn.Module | None = None
    ) -> None:
        self.model, self.tokens, self.precision = model, tokens, precision
        self.seconds = 0.0
        """Time that the passes through the encoder took so far."""
        self._module = module or output_of(model)
        self._position = np.full(len(tokens), -1, np.int64)
        self._values: np.ndarray | None = None

    @property
    def rows(self) -> np.ndarray:
        """Rows whose features are known."""
        return np.flatnonzero(self._position >= 0)

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
        handle = self._module.register_forward_pre_hook(lambda module, args: inputs.append(args[0]))
        try:
            with torch.inference_mode(), autocast(self.model.device, self.precision):
                for positions in by_length(self.tokens.lengths[rows], BATCH_SIZE):
                    if stop():
                        raise StoppedError
                    batch = self.tokens.batch(rows[positions])
                    self.model(**{name: x.to(self.model.device) for name, x in batch.items()})
                    parts.append(inputs.pop().float().cpu().numpy())
                    done.append(rows[positions])
        finally:
            handle.remove()
            if parts:
                before = [] if self._values is None else [self._values]
                start = len(self._values) if self._values is not None else 0
                computed = np.concatenate(done)
                self._position[computed] = np.arange(start, start + len(computed))
                self._values = np.concatenate([*before, *parts])
            self.seconds += time.perf_counter() - began


def feature_blocks(model: PreTrainedModel) -> tuple[int, ...]:
    """Return the widths of the blocks of features that the output layer classifies."""
    if isinstance(model, HeadhuntForSequenceClassification) and not len(model.head.mlp):
        return tuple(model.head.feature_blocks)
    return (output_of(model).in_features,)
