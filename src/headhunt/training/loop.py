"""Train a candidate: a generator of reports that can be stopped, saved and resumed in another process.

Row order, dropout and noise of a step depend only on the seed and the number of the step. A checkpoint therefore
consists of the trained weights, the optimiser's moments and the step, and several training runs in one process are
independent.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from headhunt.errors import ModelError
from headhunt.modeling.build import embeddings_of, heads_of
from headhunt.run.clock import steady_time
from headhunt.spec import Recipe
from headhunt.storage import atomic_path
from headhunt.training.device import autocast, pick_device, set_seed
from headhunt.training.dropout import quick_dropout
from headhunt.training.head_init import Standardizer, TrainingRows, prepare_heads, solve_again
from headhunt.training.objectives import Contrast, Perturbation, smart
from headhunt.training.optim import LowRank, freeze, module_below_trained, optimiser, schedule, unfreezing
from headhunt.training.pace import Pace
from headhunt.training.tokens import Tokens
from headhunt.training.used_tokens import UsedTokens

SCHEMA = 2
CHECKPOINT = "training.safetensors"
LARGEST_GRADIENT = 1.0  # norm at which gradients are clipped


@dataclass(frozen=True)
class Report:
    """Progress of a training run."""

    examples: int
    """Examples seen so far."""
    total: int
    """Examples of the complete training run."""
    loss: float
    """Mean loss since the last report."""
    seconds: float
    """Training time so far, including the time before a checkpoint."""

    @property
    def done(self) -> float:
        """Fraction of the training run that is complete."""
        return self.examples / self.total


class Training:
    """A training run of one candidate. Iterate over `reports()` and stop at any time; resume with `save`, `restore`.

    Args:
        model: The model; moved to the device and trained in place.
        data: The training rows.
        recipe: Training hyperparameters.
        seed: Random seed of row order, dropout and noise.
        device: Device to train on; the fastest available by default.
        precision: "auto", "fp32" or "bf16".
        gradient_accumulation_steps: Number of micro-batches per step. The gradient is that of the complete batch.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        data: TrainingRows,
        recipe: Recipe,
        *,
        seed: int = 0,
        device: torch.device | None = None,
        precision: str = "auto",
        gradient_accumulation_steps: int = 1,
    ) -> None:
        self.device = device or pick_device()
        self.model = model.to(self.device)
        self.tokens, self.objective, self.recipe, self.seed = data.tokens, data.objective, recipe, seed
        self.precision, self.gradient_accumulation_steps = precision, gradient_accumulation_steps
        self.targets = data.objective.targets(data.targets).to(self.device)
        self.data = replace(data, targets=self.targets.cpu().numpy())
        self.frozen = freeze(model, recipe)
        lowest = recipe.freeze if isinstance(recipe.freeze, int) else 0
        self.low_rank = LowRank(model, recipe.lora, lowest) if recipe.lora else None
        self.optimiser = optimiser(model, recipe)
        self.used_tokens = self._find_used_tokens()
        self.trained = [p for group in self.optimiser.param_groups for p in group["params"]]
        heads = heads_of(model) if recipe.standardize else []
        self.standardizers = [Standardizer(head, model.device) for head in heads]
        self.starts = unfreezing(self.optimiser.param_groups, recipe)
        self.factor = schedule(recipe)
        self.steps_per_epoch = data.tokens.steps_per_epoch(recipe.batch_size, recipe.task_sampling)
        self.pace = Pace(max(1, round(recipe.epochs * self.steps_per_epoch)))
        self.step = 0
        self.examples = 0
        self.seconds = 0.0
        self._prepared = False
        self._contrast: Contrast | None = None

    @property
    def steps(self) -> int:
        """Number of steps of the complete training run."""
        return self.pace.total

    @property
    def total(self) -> int:
        """Examples of the complete training run."""
        epochs, steps = divmod(self.steps, self.steps_per_epoch)
        return epochs * len(self.tokens) + min(steps * self.recipe.batch_size, len(self.tokens))

    def reports(
        self,
        count: int = 9,
        *,
        until: float = 1.0,
        stop: Callable[[], bool] = lambda: False,
        deadline: float | None = None,
    ) -> Iterator[Report]:
        """Train, and yield a report after each `1 / count` of the training run.

        Args:
            count: Number of reports of a complete training run.
            until: Fraction of the training run to end at, with a report.
            stop: Called after every step; true ends the generator without a report.
            deadline: When to be done, on `steady_time`: the number of steps is fitted to it. None trains as planned.
        """
        if self.step == 0 and not self._prepared:
            prepare_heads(
                self.model,
                self.data,
                self.recipe,
                standardizers=self.standardizers,
                precision=self.precision,
                seed=self.seed,
                stop=stop,
            )
            self._prepared = True
        marks = {math.ceil(self.pace.planned * (i + 1) / count) for i in range(count)}
        perturbation = self.perturbation() if self.recipe.smart else None
        self._contrast = self._find_contrast()
        self._set_modes()
        started, losses = time.perf_counter(), []
        try:
            with (
                quick_dropout(self.model, self.device),
                self.used_tokens.replace() if self.used_tokens else nullcontext(),
            ):
                for batches in self._batches(until):
                    began = time.perf_counter()
                    losses.append(self._step(batches, perturbation))
                    self.step += 1
                    self.examples += sum(map(len, batches))
                    if deadline is not None:
                        self.pace.follow(self.step, time.perf_counter() - began, deadline - steady_time())
                    if self._contrast and self.step == self.steps and self.recipe.head_init == "solved":
                        solve_again(self.model, self.tokens, self.data.targets, self.precision, self.seed)
                    if self.step in marks or self.step == self.steps_until(until):
                        mean = torch.stack(losses).mean().item()
                        self.seconds += time.perf_counter() - started
                        yield Report(self.examples, self.total, mean, self.seconds)
                        started, losses = time.perf_counter(), []
                    if stop():
                        self.seconds += time.perf_counter() - started
                        return
        finally:
            for hook in (perturbation, self._contrast):
                if hook is not None:
                    hook.remove()

    def _find_used_tokens(self) -> UsedTokens | None:
        """Let the optimiser train the embeddings of the tokens that occur, in place of all."""
        used = UsedTokens.find(self.model, self.tokens) if isinstance(self.tokens, Tokens) else None
        if used is not None:
            for group in self.optimiser.param_groups:
                group["params"] = [used.rows if each is used.table.weight else each for each in group["params"]]
        return used

    def _write_used_tokens(self) -> None:
        if self.used_tokens is not None:
            self.used_tokens.write()

    def _find_contrast(self) -> Contrast | None:
        """Return the contrastive loss, if the recipe has one and it applies to the task and the head."""
        heads, problem_type = heads_of(self.model), getattr(self.objective, "problem_type", None)
        applies = problem_type == "single_label_classification" and heads and heads[0].compare is None
        return Contrast(heads[0]) if self.recipe.contrastive and applies else None

    def _set_modes(self) -> None:
        """Set what is trained to training mode and frozen modules to evaluation mode."""
        self.model.train()
        for module in self.frozen:
            module.eval()

    def perturbation(self) -> Perturbation:
        """Return a new perturbation of the input of the lowest trained layer, for SMART."""
        module = module_below_trained(self.model, self.recipe)
        return Perturbation(module, embeddings_of(self.model)[0], self.tokens.special.pad)

    def steps_until(self, fraction: float) -> int:
        """Return the number of steps of this fraction of the training run."""
        return self.steps if fraction >= 1 else math.ceil(self.steps * fraction - 1e-9)

    def finish(self) -> PreTrainedModel:
        """Merge low-rank updates and the scale of regression targets into the weights, and return the model."""
        if self.low_rank is not None:
            self.low_rank.merge()
            self.low_rank = None
        for standardizer in self.standardizers:
            standardizer.fold()
        self.standardizers = []
        self.objective.fold(self.model)
        return self.model.eval()

    def _batches(self, until: float) -> Iterator[list[np.ndarray]]:
        """Yield the batches of each step: one, or one of every task."""
        size, sampling = self.recipe.batch_size, self.recipe.task_sampling
        while self.step < self.steps_until(until):
            epoch, done = divmod(self.step, self.steps_per_epoch)
            rng = np.random.default_rng([self.seed, epoch])
            for index, batches in enumerate(self.tokens.epoch(size, sampling, rng)):
                if index >= done and self.step < self.steps_until(until):
                    yield batches

    def _step(self, batches: list[np.ndarray], perturbation: Perturbation | None) -> Tensor:
        for group in self.optimiser.param_groups:
            group["lr"] = group["rate"] * self.factor(self.pace.progress(self.step))
        for group, start in zip(self.optimiser.param_groups, self.starts, strict=False):
            for parameter in group["params"]:  # AdamW leaves a weight without a gradient as it is
                parameter.requires_grad_(self.pace.progress(self.step) >= start - 1e-9)
        total = torch.zeros((), device=self.device)
        number = 0
        for rows in batches:
            for micro_batch, regularised in self._micro_batches(rows, perturbation is not None):
                loss, added = self._losses(micro_batch, number, perturbation if regularised else None)
                loss = loss * self._share(micro_batch, rows)
                if added is not None:
                    loss = loss + added * (len(micro_batch) / len(rows))
                loss.backward()
                total += loss.detach() / len(batches)
                number += 1
        torch.nn.utils.clip_grad_norm_(self.trained, LARGEST_GRADIENT)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        self._write_used_tokens()
        return total

    def _share(self, part: np.ndarray, rows: np.ndarray) -> float:
        """Return the share of some rows of a batch in its mean loss."""
        objective = self.objective.of_task(self.tokens.tasks_of(rows))
        return objective.share(self.targets[part], self.targets[rows])

    def _micro_batches(self, rows: np.ndarray, smart: bool) -> list[tuple[np.ndarray, bool]]:
        """Return the micro-batches of a batch, each with True if SMART applies to it.

        SMART applies to alternating halves of the rows, which estimates the same mean at a lower cost.
        """
        turn = self.step % 2
        halves = [(rows[turn::2], True), (rows[1 - turn :: 2], False)] if smart else [(rows, False)]
        return [
            (micro_batch, regularised)
            for half, regularised in halves
            if len(half)
            for micro_batch in np.array_split(half, min(self.gradient_accumulation_steps, len(half)))
        ]

    def _losses(self, rows: np.ndarray, number: int, perturbation: Perturbation | None) -> tuple[Tensor, Tensor | None]:
        """Return the mean loss of some rows, and what SMART and the contrastive loss add to it."""
        randomness = np.random.SeedSequence([self.seed, self.step, number])
        swap = np.random.default_rng(randomness).random(len(rows)) < 0.5 if self.recipe.swap_pairs else None
        batch = {name: x.to(self.device, non_blocking=True) for name, x in self.tokens.batch(rows, swap).items()}
        seed = int(randomness.generate_state(1, np.uint64)[0] >> np.uint64(1))
        objective = self.objective.of_task(self.tokens.tasks_of(rows))

        def logits() -> Tensor:
            set_seed(seed, self.device)  # the same dropout in every pass over this batch
            return self.model(**batch).logits

        with autocast(self.device, self.precision):
            clean = logits()
            loss, added = objective.loss(clean, self.targets[rows]), None
            # SMART's further passes replace the features of this one.
            contrastive = self.recipe.contrastive * self._contrast.loss(self.targets[rows]) if self._contrast else None
            if perturbation is not None and self.recipe.smart is not None:
                added = smart(logits, clean, perturbation, self.recipe.smart, objective.divergence)
                added = 2 * self.recipe.smart.weight * added  # twice: it also stands for the other half
            if contrastive is not None:
                added = contrastive if added is None else added + contrastive
        return loss, added

    def save(self, folder: str | Path) -> None:
        """Write a checkpoint with the trained weights, the optimiser's moments and the position, without pickle.

        Moments are left out at the end of the training run, because nothing resumes from there.
        """
        tensors = {}
        for name, value in self._buffers().items():
            tensors[f"buffer/{name}"] = value.contiguous()
        for name, parameter in self._trained_by_name().items():
            tensors[f"weight/{name}"] = parameter.detach().contiguous()
            for moment, value in self.optimiser.state.get(parameter, {}).items() if self.step < self.steps else ():
                tensors[f"{moment}/{name}"] = torch.as_tensor(value).contiguous()
        position: dict[str, Any] = {
            "schema": SCHEMA,
            "step": self.step,
            "examples": self.examples,
            "seconds": self.seconds,
            "cuts": self.pace.cuts,
            "identity": self._identity(),
        }
        with atomic_path(Path(folder) / CHECKPOINT) as path:
            save_file(tensors, path, metadata={"training": json.dumps(position)})

    def restore(self, folder: str | Path) -> None:
        """Resume from a checkpoint that `save` wrote.

        Raises:
            ModelError: If it belongs to another recipe, seed or data.
        """
        path = Path(folder) / CHECKPOINT
        with safe_open(path, "pt") as file:
            position = json.loads(file.metadata()["training"])
        if position["schema"] != SCHEMA or position["identity"] != self._identity():
            raise ModelError(f"{path} must be a checkpoint of the same recipe, seed and rows; it is of another run.")
        tensors = load_file(path)
        with torch.no_grad():
            for name, value in self._buffers().items():
                value.copy_(tensors[f"buffer/{name}"])
            for name, parameter in self._trained_by_name().items():
                parameter.copy_(tensors[f"weight/{name}"])
                moments = [key for key in ("step", "exp_avg", "exp_avg_sq") if f"{key}/{name}" in tensors]
                if moments:
                    state = {key: tensors[f"{key}/{name}"].to(parameter.device) for key in moments}
                    self.optimiser.state[parameter] = state
        self._write_used_tokens()
        self.pace = Pace(self.pace.planned, position["cuts"])
        self.step, self.examples, self.seconds = position["step"], position["examples"], position["seconds"]

    def _trained_by_name(self) -> dict[str, torch.nn.Parameter]:
        trained = set(map(id, self.trained))  # a layer that is not unfrozen yet has no gradient, but will be trained
        named = dict(self.model.named_parameters())
        if self.used_tokens is not None:
            named[self.used_tokens.name] = self.used_tokens.rows
        return {name: p for name, p in named.items() if id(p) in trained}

    def _buffers(self) -> dict[str, Tensor]:
        """Return the state of a head that is not learned by gradients."""
        parameters = dict(self.model.named_parameters(remove_duplicate=False))  # tied weights have several names
        buffers = {name: value for name, value in self.model.state_dict().items() if name not in parameters}
        for number, standardizer in enumerate(self.standardizers):
            name = f"standardizer.{number}." if number else "standardizer."
            buffers |= {f"{name}center": standardizer.center, f"{name}spread": standardizer.spread}
        return buffers

    def _identity(self) -> list[Any]:
        return [repr(self.recipe), self.seed, len(self.tokens), self.tokens.checksum]
