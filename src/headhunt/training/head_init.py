"""Prepare a head for training: standardise its features and set its first weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from headhunt.modeling.build import heads_of, output_of
from headhunt.modeling.heads import HeadModule, Similarity
from headhunt.spec import Recipe
from headhunt.training.features import Features, InitialFeatures, feature_blocks, last_mean
from headhunt.training.linear import fit_linear
from headhunt.training.objectives import Objective, TaskObjectives
from headhunt.training.task_tokens import TaskTokens
from headhunt.training.tokens import Tokens

ROWS = 2000  # training rows that mean, standard deviation and initial weights are computed from


@dataclass(frozen=True)
class TrainingRows:
    """The rows that a model is trained on."""

    tokens: Tokens | TaskTokens
    targets: np.ndarray
    """Their targets, as in `Split.targets`."""
    objective: Objective | TaskObjectives
    """The training objective."""
    initial: tuple[InitialFeatures, np.ndarray] | None = None
    """Initial features of all rows of the only task, which trainings share, and the numbers of these rows."""


class Standardizer:
    """A hook that standardises the features a head classifies, until they are folded into the next layer.

    Args:
        head: The head.
        device: Its device.
    """

    def __init__(self, head: HeadModule, device: torch.device) -> None:
        self._head = head
        width = sum(head.feature_blocks)
        self.center = torch.zeros(width, device=device)
        self.spread = torch.ones(width, device=device)
        self._handle = self._head.dropout.register_forward_pre_hook(self._apply)

    def _apply(self, module: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
        return ((args[0].float() - self.center) / self.spread,)

    def fit(self, features: np.ndarray) -> None:
        """Take mean and standard deviation from features (rows, features) that are not standardised."""
        spread = features.std(0, dtype=np.float64)
        typical = float(np.median(spread)) or 1.0
        self.center = torch.as_tensor(features.mean(0, dtype=np.float64), dtype=torch.float32).to(self.center.device)
        # A feature that hardly varies would be noise with the weight of a signal.
        spread = np.maximum(spread, max(1e-6, 1e-2 * typical))
        self.spread = torch.as_tensor(spread, dtype=torch.float32).to(self.spread.device)

    def fold(self) -> None:
        """Write mean and standard deviation into the layer that reads the features, and remove the hook."""
        layer = next((part for part in self._head.mlp if isinstance(part, nn.Linear)), self._head.output)
        with torch.no_grad():
            layer.weight.div_(self.spread)
            layer.bias.sub_(layer.weight @ self.center)
        self._handle.remove()


def prepare_heads(
    model: PreTrainedModel,
    data: TrainingRows,
    recipe: Recipe,
    *,
    standardizers: Sequence[Standardizer],
    precision: str = "auto",
    seed: int = 0,
    stop: Callable[[], bool] = lambda: False,
) -> None:
    """Fit the standardizers and set the initial weights that a recipe asks for, before the first step.

    Args:
        model: The model.
        data: The training rows, with targets as the objective takes them.
        recipe: Training hyperparameters.
        standardizers: The standardizer of each head's features, if the recipe has them.
        precision: "auto", "fp32" or "bf16".
        seed: Random seed of the sample of rows.
        stop: Called between batches.

    Raises:
        StoppedError: If `stop` returns True.
    """
    for number, head in enumerate(heads_of(model) or (None,)):
        part = data if isinstance(data.tokens, Tokens) else _rows_of_task(data, number)
        if len(part.tokens):  # an ablation leaves a task out
            # Hooks run in the order they were added, so the standardizer, which is still the identity, changes nothing.
            features = Features(model, part.tokens, precision, head.dropout if head else None)
            standardizer = standardizers[number] if standardizers else None
            _prepare_head(head, features, part, recipe, standardizer=standardizer, seed=seed, stop=stop)


def _rows_of_task(data: TrainingRows, number: int) -> TrainingRows:
    """Return the rows of one of several tasks."""
    assert isinstance(data.tokens, TaskTokens) and isinstance(data.objective, TaskObjectives)
    rows, objective = np.flatnonzero(data.tokens.tasks == number), data.objective.parts[number]
    targets = data.targets[rows]
    targets = targets if objective.problem_type == "regression" else targets.astype(np.int64)
    return TrainingRows(data.tokens.take(rows), targets, objective)


def _prepare_head(
    head: HeadModule | None,
    features: Features,
    data: TrainingRows,
    recipe: Recipe,
    *,
    standardizer: Standardizer | None,
    seed: int,
    stop: Callable[[], bool],
) -> None:
    """Prepare one head, or the encoder's own if it is None, with rows of its task.

    Args:
        head: The head.
        features: What its dropout gets for these rows.
        data: The rows, with targets as the objective takes them.
        recipe: Training hyperparameters.
        standardizer: The standardizer of the head's features, if the recipe has one.
        seed: Random seed of the sample of rows.
        stop: Called between batches.

    Raises:
        StoppedError: If `stop` returns True.
    """
    model, targets, objective = features.model, data.targets, data.objective
    assert isinstance(objective, Objective)
    output = head.output if head else output_of(model)
    frequencies = objective.initial_bias(targets)
    if frequencies is not None and output.bias is not None:
        with torch.no_grad():
            output.bias.copy_(frequencies)
    # A similarity is standardised with the first batch: weights that fit it before do not fit it afterwards.
    fixed = head is None or not (len(head.mlp) or isinstance(head.compare, Similarity))
    solved = recipe.head_init == "solved" and fixed
    if standardizer is None and not solved:
        return
    rows = np.sort(np.random.default_rng(seed).permutation(len(data.tokens))[:ROWS])
    if data.initial is None:
        values = features.get(rows, stop)
    else:
        shared, numbers = data.initial
        values = shared.get(model, features.module, numbers[rows], stop)
    if standardizer is not None:
        standardizer.fit(values)
    if solved:
        labels = targets[rows]
        if objective.problem_type == "single_label_classification" and labels.ndim == 2:
            labels = labels.argmax(1)  # probabilities of another model
        blocks, mean = feature_blocks(head or model), last_mean(head or model)
        solution = fit_linear(
            values, blocks, labels, objective.problem_type, output.out_features, last_mean=mean, seed=seed, stop=stop
        )
        weight = torch.from_numpy(solution.weight).to(output.weight)
        bias = torch.from_numpy(solution.bias).to(output.bias)
        with torch.no_grad():
            if standardizer is not None:
                bias = bias + weight @ standardizer.center
                weight = weight * standardizer.spread
            output.weight.copy_(weight)
            output.bias.copy_(bias)


def solve_again(
    model: PreTrainedModel, tokens: Tokens | TaskTokens, targets: np.ndarray, precision: str = "auto", seed: int = 0
) -> None:
    """Solve the output layer of the only head on the features of the trained encoder, which it lags behind.

    The size of the logits stays: these rows have been trained on, so they cannot tell how certain the model may be.

    Args:
        model: The model, before its standardizers are folded.
        tokens: The training rows.
        targets: Class of each row, or its probabilities.
        precision: "auto", "fp32" or "bf16".
        seed: Random seed of the sample of rows.
    """
    assert isinstance(tokens, Tokens)
    head = heads_of(model)[0]
    if len(head.mlp):
        return
    rows = np.sort(np.random.default_rng(seed).permutation(len(tokens))[:ROWS])
    features = Features(model, tokens, precision, head.output).get(rows)
    labels = targets[rows] if targets.ndim == 1 else targets[rows].argmax(1)
    output = head.output
    before = features @ output.weight.detach().cpu().numpy().T + output.bias.detach().cpu().numpy()
    blocks, mean = feature_blocks(head), last_mean(head)
    solution = fit_linear(
        features, blocks, labels, "single_label_classification", output.out_features, last_mean=mean, seed=seed
    )
    sizes = [float(np.std(logits - logits.mean(1, keepdims=True))) for logits in (before, solution.logits(features))]
    factor = sizes[0] / sizes[1] if sizes[1] > 0 else 1.0
    with torch.no_grad():
        output.weight.copy_(torch.from_numpy(solution.weight * factor))
        output.bias.copy_(torch.from_numpy(solution.bias * factor))
