"""What training minimises: the loss of each problem_type of task, and SMART beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from headhunt.modeling.build import output_of
from headhunt.spec import Recipe, Smart


@dataclass(frozen=True)
class Objective:
    """The loss of one task, and what its targets look like while training.

    A number is learned as its distance from the mean in standard deviations; `fold` writes the scale into the output
    layer afterwards, so that the finished model gives the number itself.
    """

    problem_type: str
    smoothing: float = 0.0
    weights: Tensor | None = None
    """Classes: what each counts (classes,). Labels: what a positive counts (labels,)."""
    mean: float = 0.0
    scale: float = 1.0

    @classmethod
    def of(cls, problem_type: str, targets: np.ndarray, outputs: int, recipe: Recipe) -> Objective:
        """The objective for these training targets."""
        if problem_type == "regression":
            spread = float(np.std(targets))
            return cls(problem_type, mean=float(np.mean(targets)), scale=spread if spread > 1e-12 else 1.0)
        weights = None
        if recipe.class_weights:
            if problem_type == "single_label_classification":
                counts = np.bincount(targets, minlength=outputs)
                weights = len(targets) / (np.maximum(counts, 1) * np.count_nonzero(counts))
            else:
                counts = targets.sum(0)
                # Very rare labels would otherwise drown all others.
                weights = np.clip((len(targets) - counts) / np.maximum(counts, 1), 1, 20)
        return cls(
            problem_type,
            smoothing=recipe.label_smoothing,
            weights=None if weights is None else torch.as_tensor(weights, dtype=torch.float32),
        )

    def targets(self, values: np.ndarray) -> Tensor:
        """Targets as the loss takes them."""
        if self.problem_type == "regression":
            return torch.as_tensor((values - self.mean) / self.scale, dtype=torch.float32)
        return torch.as_tensor(
            values, dtype=torch.long if self.problem_type == "single_label_classification" else torch.float32
        )

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The mean loss of a batch; logits (batch, outputs)."""
        logits = logits.float()
        weights = None if self.weights is None else self.weights.to(logits.device)
        if self.problem_type == "regression":
            return functional.mse_loss(logits.squeeze(-1), targets)
        if self.problem_type == "multi_label_classification":
            smooth = targets * (1 - self.smoothing) + self.smoothing / 2
            return functional.binary_cross_entropy_with_logits(logits, smooth, pos_weight=weights)
        return functional.cross_entropy(logits, targets, weight=weights, label_smoothing=self.smoothing)

    def divergence(self, moved: Tensor, still: Tensor) -> Tensor:
        """How far two answers are apart, per batch: symmetric KL for classes and labels, squared error for a number."""
        wide = torch.promote_types(moved.dtype, torch.float32)
        moved, still = moved.to(wide), still.to(wide)
        if self.problem_type == "regression":
            return functional.mse_loss(moved, still)
        if self.problem_type == "multi_label_classification":
            # Each label is a class of its own: (p - q)(logit p - logit q) is the symmetric KL of two coins.
            return ((moved.sigmoid() - still.sigmoid()) * (moved - still)).sum(-1).mean()
        p, q = moved.log_softmax(-1), still.log_softmax(-1)
        return ((p.exp() - q.exp()) * (p - q)).sum(-1).mean()

    def answers(self, outputs: np.ndarray) -> np.ndarray:
        """What a model that is not folded yet gives, in the units of the targets."""
        return outputs * self.scale + self.mean if self.problem_type == "regression" else outputs

    def fold(self, model: nn.Module) -> None:
        """Writes the scale of a number into the output layer."""
        if self.problem_type == "regression" and (self.mean, self.scale) != (0.0, 1.0):
            output = output_of(model)
            with torch.no_grad():
                output.weight.mul_(self.scale)
                output.bias.mul_(self.scale).add_(self.mean)


class Perturbation:
    """Moves what a module gives by `delta`, in every call while there is one.

    One hook serves one text, a cross pair (one sequence) and a siamese pair (two sequences in one batch): what enters
    the encoder is moved wherever it is made, so the regulariser needs to know nothing about pairs.
    """

    def __init__(self, module: nn.Module) -> None:
        self.delta: Tensor | None = None
        self.entered: Tensor | None = None
        self.handle = module.register_forward_hook(self._move)

    def _move(self, module: nn.Module, inputs: object, output: Tensor) -> Tensor:
        self.entered = output.detach()
        return output if self.delta is None else output + self.delta

    def remove(self) -> None:
        """Takes the hook off."""
        self.handle.remove()


def smart(
    logits: Callable[[], Tensor],
    still: Tensor,
    perturbation: Perturbation,
    settings: Smart,
    divergence: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:
    """The smoothness regulariser, λ not included: max over small moves of the divergence from `still`, one step.

    Args:
        logits: Runs the model on the batch once more, with the same dropout as gave `still`.
        still: The unmoved logits (batch, outputs), with their graph.
        perturbation: Where the move is made; it has just seen the batch.
        settings: λ, radius, σ, η, ε.
        divergence: Of moved and unmoved logits.
    """
    entered = perturbation.entered
    assert entered is not None
    noise = torch.randn_like(entered, dtype=torch.float32)
    # The gradient has the same direction however small the start is: 16-bit arithmetic gets a start it can see.
    visible = max(settings.sigma, 0.02) if torch.is_autocast_enabled(entered.device.type) else settings.sigma
    start = (noise * visible).requires_grad_()
    perturbation.delta = start
    try:
        (gradient,) = torch.autograd.grad(divergence(logits(), still.detach()), start)
        uphill = gradient / (_largest(gradient) + torch.finfo(torch.float32).tiny)
        step = settings.sigma * noise + settings.eta * uphill
        size = settings.radius * entered.float().square().mean().sqrt()
        perturbation.delta = size * step / (_largest(step) + settings.epsilon)
        return divergence(logits(), still)
    finally:
        perturbation.delta = None


def _largest(x: Tensor) -> Tensor:
    """The largest absolute value of each token's vector (…, tokens, 1)."""
    return x.abs().amax(-1, keepdim=True)
