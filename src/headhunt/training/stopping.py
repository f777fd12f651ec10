"""Choose the epoch of a training run on rows that are held out of its training rows.

The rows that a candidate is scored on play no part, so that its score stays honest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from headhunt.spec import Recipe
from headhunt.training.device import autocast
from headhunt.training.objectives import Objective
from headhunt.training.tokens import Tokens

SHARE, LEAST_ROWS = 0.1, 20  # of the training rows; at most half of them
PATIENCE = 2  # epochs without a better score after which a plateau ends the training
BATCH_SIZE = 64


def hold_out(targets: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions of the rows to train on and of those that are held out; none of these if there are few rows.

    Classes and numbers are stratified. A class keeps at least one row to train on.

    Args:
        targets: Targets of all training rows.
        seed: Random seed.
    """
    everything = np.arange(len(targets))
    count = max(LEAST_ROWS, round(SHARE * len(targets)))
    if count > len(targets) // 2:
        return everything, everything[:0]
    rng = np.random.default_rng([seed, count])
    order = rng.permutation(len(targets))
    if targets.ndim == 1:
        order = order[np.argsort(targets[order], kind="stable")]
    places = ((np.arange(count) + rng.random()) * len(targets) / count).astype(int)  # at equal distances
    held = np.sort(order[places])
    if targets.ndim == 1 and targets.dtype.kind in "iu":
        left = np.bincount(targets) - np.bincount(targets[held], minlength=targets.max() + 1)
        held = held[left[targets[held]] > 0]
    return np.setdiff1d(everything, held), held


class HeldOut:
    """Held-out rows of a training run, and the weights of the epoch that is best on them so far.

    The score is the accuracy where each row has one class, with the loss for equal accuracies, and the loss otherwise.

    Args:
        tokens: Tokens of the rows.
        targets: Their targets, as the objective has them.
        objective: The training objective.
        recipe: Recipe that says whether a plateau ends the training.
    """

    def __init__(self, tokens: Tokens, targets: Tensor, objective: Objective, recipe: Recipe) -> None:
        self.tokens, self.targets, self.objective = tokens, targets, objective
        self.ends_on_plateau = recipe.stopping == "plateau"
        self.best: dict[str, Tensor] = {}
        self._score, self._since = (-math.inf, -math.inf), 0

    def score(self, model: PreTrainedModel, precision: str, state: Mapping[str, Tensor]) -> bool:
        """Score the model and keep its weights if they are the best so far.

        Args:
            model: The model, which is left in evaluation mode.
            precision: "auto", "fp32" or "bf16".
            state: The weights to keep, by name.

        Returns:
            Whether the training should end: the last epochs were no better, and the recipe says so.
        """
        score = self._measure(model, precision)
        self._since += 1
        if score > self._score or not self.best:
            self._score, self._since = score, 0
            self.best = {name: value.detach().clone() for name, value in state.items()}
        return self.ends_on_plateau and self._since >= PATIENCE

    def _measure(self, model: PreTrainedModel, precision: str) -> tuple[float, float]:
        model.eval()
        targets, loss, correct = self.targets.to(model.device), 0.0, 0
        with torch.no_grad(), autocast(model.device, precision):
            for rows in self.tokens.batches(np.arange(len(self.tokens)), BATCH_SIZE):
                batch = {name: x.to(model.device) for name, x in self.tokens.batch(rows).items()}
                logits = model(**batch).logits.float()
                loss += self.objective.loss(logits, targets[rows]).item() * len(rows)
                if self.objective.problem_type == "single_label_classification":
                    correct += int((logits.argmax(-1) == targets[rows]).sum())
        return correct / len(self.tokens), -loss / len(self.tokens)

    def copy_best_to(self, state: Mapping[str, Tensor]) -> None:
        """Write the best weights into a model."""
        with torch.no_grad():
            for name, value in self.best.items():
                state[name].copy_(value)

    @property
    def position(self) -> list[Any]:
        """The best score and the epochs since, for a checkpoint."""
        return [list(self._score), self._since] if self.best else [None, self._since]

    def restore(self, position: list[Any], best: dict[str, Tensor]) -> None:
        """Continue from a checkpoint."""
        score, self._since = position
        self._score = (-math.inf, -math.inf) if score is None else (float(score[0]), float(score[1]))
        self.best = best
