"""Training objectives: the loss of each problem type, the contrastive loss and the SMART regulariser."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from headhunt.modeling.build import heads_of, output_of
from headhunt.modeling.heads import HeadModule
from headhunt.spec import Recipe, Smart


@dataclass(frozen=True)
class Objective:
    """The loss of one task and the transformation of its targets.

    Regression targets are standardised during training. `fold` writes mean and scale into the output layer afterwards,
    so that the finished model predicts the original values.
    """

    problem_type: str
    smoothing: float = 0.0
    weights: Tensor | None = None
    """Class weights (classes,) for single labels; weights of positives (labels,) for multiple labels."""
    mean: float = 0.0
    scale: float = 1.0

    @classmethod
    def of(cls, problem_type: str, targets: np.ndarray, outputs: int, recipe: Recipe) -> Objective:
        """Return the objective for these training targets."""
        if problem_type == "regression":
            spread = float(np.std(targets))
            return cls(problem_type, mean=float(np.mean(targets)), scale=spread if spread > 1e-12 else 1.0)
        weights = None
        if recipe.class_weights:
            if problem_type == "single_label_classification":
                counts = np.bincount(targets, minlength=outputs) if targets.ndim == 1 else targets.sum(0)
                weights = len(targets) / (np.maximum(counts, 1) * np.count_nonzero(counts))
            else:
                counts = targets.sum(0)
                # Without a limit, very rare labels would dominate all others.
                weights = np.clip((len(targets) - counts) / np.maximum(counts, 1), 1, 20)
        return cls(
            problem_type,
            smoothing=recipe.label_smoothing,
            weights=None if weights is None else torch.as_tensor(weights, dtype=torch.float32),
        )

    def targets(self, values: np.ndarray) -> Tensor:
        """Return targets in the form that `loss` requires."""
        if self.problem_type == "regression":
            return torch.as_tensor((values - self.mean) / self.scale, dtype=torch.float32)
        # Classes are numbers (rows,) or, from another model, probabilities (rows, classes).
        return torch.as_tensor(values, dtype=torch.long if values.ndim == 1 and self._one_label else torch.float32)

    @property
    def _one_label(self) -> bool:
        return self.problem_type == "single_label_classification"

    def initial_bias(self, targets: np.ndarray) -> Tensor | None:
        """Return the biases with which a model predicts the frequency of each label; None if a row has one label.

        Most labels are rare. From biases of zero, the first hundreds of steps would teach the encoder little else: on
        GoEmotions (2,000 rows, 28 labels) the plain head then predicts the most frequent label for every text, even
        after ten epochs.

        Args:
            targets: Targets of the training rows, as `loss` takes them.
        """
        if self.problem_type != "multi_label_classification":
            return None
        share = (targets.sum(0) + 0.5) / (len(targets) + 1)
        share = torch.as_tensor(share * (1 - self.smoothing) + self.smoothing / 2, dtype=torch.float32)
        return share.logit() if self.weights is None else share.logit() + self.weights.log()

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss of a batch; logits (batch, outputs)."""
        logits = logits.float()
        weights = None if self.weights is None else self.weights.to(logits.device)
        if self.problem_type == "regression":
            return functional.mse_loss(logits.squeeze(-1), targets)
        if self.problem_type == "multi_label_classification":
            smooth = targets * (1 - self.smoothing) + self.smoothing / 2
            return functional.binary_cross_entropy_with_logits(logits, smooth, pos_weight=weights)
        targets = targets.long() if targets.ndim == 1 else targets  # classes, or probabilities
        return functional.cross_entropy(logits, targets, weight=weights, label_smoothing=self.smoothing)

    def share(self, part: Tensor, whole: Tensor) -> float:
        """Return the share of a part of a batch in the batch's mean loss, by their targets."""
        if self.weights is None or not self._one_label or whole.ndim > 1 or len(part) == len(whole):
            return len(part) / len(whole)
        weights = self.weights.to(whole.device)
        return float(weights[part.long()].sum() / weights[whole.long()].sum())

    def divergence(self, perturbed: Tensor, clean: Tensor) -> Tensor:
        """Return the mean divergence of two outputs: symmetric KL for classification, squared error for regression."""
        dtype = torch.promote_types(perturbed.dtype, torch.float32)
        perturbed, clean = perturbed.to(dtype), clean.to(dtype)
        if self.problem_type == "regression":
            return functional.mse_loss(perturbed, clean)
        if self.problem_type == "multi_label_classification":
            # Labels are independent: (p - q)(logit p - logit q) is the symmetric KL of two Bernoulli distributions.
            return ((perturbed.sigmoid() - clean.sigmoid()) * (perturbed - clean)).sum(-1).mean()
        p, q = perturbed.log_softmax(-1), clean.log_softmax(-1)
        return ((p.exp() - q.exp()) * (p - q)).sum(-1).mean()

    def of_task(self, tasks: np.ndarray | None) -> Objective:
        """Return the objective of a batch: there is one task only."""
        return self

    def rescale(self, outputs: np.ndarray, tasks: np.ndarray | None = None) -> np.ndarray:
        """Return the outputs of a model that is not folded yet in the units of the targets."""
        return outputs * self.scale + self.mean if self.problem_type == "regression" else outputs

    def fold(self, model: nn.Module) -> None:
        """Write mean and scale of regression targets into the output layer."""
        self.fold_into(output_of(model))

    def fold_into(self, output: nn.Linear) -> None:
        """Write mean and scale of regression targets into an output layer."""
        if self.problem_type == "regression" and (self.mean, self.scale) != (0.0, 1.0):
            with torch.no_grad():
                output.weight.mul_(self.scale)
                output.bias.mul_(self.scale).add_(self.mean)


@dataclass(frozen=True)
class TaskObjectives:
    """The objectives of several tasks, with the interface of one. A batch has rows of one task."""

    parts: tuple[Objective, ...]

    @classmethod
    def of(cls, tasks: Sequence[tuple[str, int]], targets: np.ndarray, recipe: Recipe) -> TaskObjectives:
        """Return the objectives for the problem types and numbers of outputs of tasks and their training targets."""
        parts = []
        for number, (problem_type, outputs) in enumerate(tasks):
            values = targets["value"][targets["task"] == number]
            if problem_type != "regression":
                values = values.astype(np.int64)
            # A model that is only measured may have no row of a task.
            parts.append(
                Objective.of(problem_type, values, outputs, recipe) if len(values) else Objective(problem_type)
            )
        return cls(tuple(parts))

    def of_task(self, tasks: np.ndarray | None) -> Objective:
        """Return the objective of a batch, given the task of each of its rows."""
        assert tasks is not None
        return self.parts[int(tasks[0])]

    def targets(self, values: np.ndarray) -> Tensor:
        """Return targets in the form that the losses require, as numbers."""
        targets = torch.zeros(len(values))
        for number, part in enumerate(self.parts):
            rows = np.flatnonzero(values["task"] == number)
            found = values["value"][rows]
            found = found if part.problem_type == "regression" else found.astype(np.int64)
            targets[torch.from_numpy(rows)] = part.targets(found).float()
        return targets

    def rescale(self, outputs: np.ndarray, tasks: np.ndarray | None = None) -> np.ndarray:
        """Return the outputs of a model that is not folded yet in the units of the targets."""
        assert tasks is not None
        scaled = outputs.copy()
        for number, part in enumerate(self.parts):
            if part.problem_type == "regression":
                rows = tasks == number
                scaled[rows, 0] = part.rescale(outputs[rows, 0])
        return scaled

    def fold(self, model: nn.Module) -> None:
        """Write mean and scale of the regression targets of each task into its output layer."""
        for part, head in zip(self.parts, heads_of(model), strict=True):
            part.fold_into(head.output)


class Contrast:
    """A hook that keeps the features a head classifies, and the contrastive loss of a batch of them.

    Every pair of texts counts, as in SetFit (Tunstall et al. 2022), which passes each pair through the encoder.

    Args:
        head: The head.
    """

    def __init__(self, head: HeadModule) -> None:
        self._features: Tensor | None = None
        # First in line, before the features are standardised.
        self._handle = head.dropout.register_forward_pre_hook(self._keep, prepend=True)

    def _keep(self, module: nn.Module, args: tuple[Tensor]) -> None:
        self._features = args[0]

    def loss(self, targets: Tensor) -> Tensor:
        """Return the squared error of cosines, which should be 1 for texts of one class and 0 for others.

        Both kinds of pairs have the same weight.

        Args:
            targets: Class of each text of the last batch (batch,), or its probabilities (batch, classes).
        """
        assert self._features is not None
        classes = targets if targets.ndim == 1 else targets.argmax(1)
        features = functional.normalize(self._features.float(), dim=-1)
        cosines, same = features @ features.T, classes[:, None] == classes
        different, same = ~same, same & ~torch.eye(len(classes), dtype=torch.bool, device=same.device)
        parts = [(cosines[same] - 1).square(), cosines[different].square()]
        return torch.stack([part.sum() / max(1, part.numel()) for part in parts]).sum()

    def remove(self) -> None:
        """Remove the hook."""
        self._handle.remove()


class Perturbation:
    """A forward hook that adds `delta` to the output of a module while it is set.

    The output has one row per sequence, so that the regulariser is the same for single texts, joined pairs and siamese
    pairs.

    Args:
        module: The module; its output is a tensor, or a tuple that starts with one.
        embeddings: The module that takes token ids, to recognise padding.
        pad: Token id of padding.
    """

    def __init__(self, module: nn.Module, embeddings: nn.Module | None = None, pad: int = 0) -> None:
        self.delta: Tensor | None = None
        self.clean: Tensor | None = None
        self._pad = pad
        self._is_token: Tensor | None = None
        # First in line, so that transformers records the perturbed output among the hidden states.
        self._handles = [module.register_forward_hook(self._perturb, prepend=True)]
        if embeddings is not None:
            self._handles.append(embeddings.register_forward_pre_hook(self._find_padding, with_kwargs=True))

    @property
    def scale(self) -> Tensor:
        """Root mean square of the unperturbed output, without padding: stored activations have zeros there."""
        assert self.clean is not None
        state = self.clean.float()
        return (state if self._is_token is None else state[self._is_token]).square().mean().sqrt()

    def _find_padding(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._is_token = (kwargs["input_ids"] if "input_ids" in kwargs else args[0]) != self._pad

    def _perturb(self, module: nn.Module, inputs: object, output: Any) -> Any:
        state = output[0] if isinstance(output, tuple) else output
        self.clean = state.detach()
        if self.delta is None:
            return output
        state = state + self.delta
        return (state, *output[1:]) if isinstance(output, tuple) else state

    def remove(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()


def smart(
    logits: Callable[[], Tensor],
    clean: Tensor,
    perturbation: Perturbation,
    settings: Smart,
    divergence: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:
    """Return the SMART regulariser without its weight: the divergence after one ascent step from a random start.

    Args:
        logits: Function that runs the model on the batch again with the same dropout.
        clean: The unperturbed logits (batch, outputs), with their graph.
        perturbation: The perturbation, which has just seen the batch.
        settings: Radius, σ, η and ε.
        divergence: Divergence of perturbed and unperturbed logits.
    """
    state = perturbation.clean
    assert state is not None
    noise = torch.randn_like(state, dtype=torch.float32)
    # The direction of the gradient does not depend on the size of the start: 16-bit arithmetic needs a larger one.
    sigma = max(settings.sigma, 0.02) if torch.is_autocast_enabled(state.device.type) else settings.sigma
    start = (noise * sigma).requires_grad_()
    perturbation.delta = start
    try:
        (gradient,) = torch.autograd.grad(divergence(logits(), clean.detach()), start)
        ascent = gradient / (_largest(gradient) + torch.finfo(torch.float32).tiny)
        step = settings.sigma * noise + settings.eta * ascent
        size = settings.radius * perturbation.scale
        perturbation.delta = size * step / (_largest(step) + settings.epsilon)
        return divergence(logits(), clean)
    finally:
        perturbation.delta = None


def _largest(x: Tensor) -> Tensor:
    """Return the largest absolute value of each token's vector (…, tokens, 1)."""
    return x.abs().amax(-1, keepdim=True)
