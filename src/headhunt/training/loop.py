"""The training loop: a generator of reports that can be left at any of them, saved, and gone on with elsewhere.

All chance in a step is a function of the seed and the step's number: the order of rows, dropout, noise. So the state to
go on from is the trained weights, the optimiser's moments and one number, and two trainings in one process do not
disturb each other.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from headhunt.errors import ModelError
from headhunt.modeling.build import embeddings_of
from headhunt.spec import Recipe
from headhunt.training.device import autocast, pick_device
from headhunt.training.dropout import quick_dropout
from headhunt.training.objectives import Objective, Perturbation, smart
from headhunt.training.optim import LowRank, freeze, optimiser, schedule
from headhunt.training.tokens import Tokens, shuffled_by_length

SCHEMA = 1
LARGEST_GRADIENT = 1.0


@dataclass(frozen=True)
class Report:
    """Where a training stands."""

    examples: int
    """Examples seen so far."""
    total: int
    """Examples the whole budget holds."""
    loss: float
    """Mean loss since the last report."""
    seconds: float
    """Training time so far, saved and resumed parts included."""

    @property
    def done(self) -> float:
        """Share of the budget used."""
        return self.examples / self.total


class Training:
    """One candidate being trained. Iterate over `reports()`; leave when you like; `save` and `restore` to go on.

    Args:
        model: The model; moved to the device and trained in place.
        tokens: The training texts.
        targets: Their targets, as `Split.targets` gives them.
        objective: What is minimised.
        recipe: How.
        seed: For the order of rows, dropout and noise.
        device: Where; the fastest there is unless told.
        precision: "auto", "fp32" or "bf16".
        gradient_accumulation_steps: Number of micro-batches per step. The result is that of the whole batch.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokens: Tokens,
        targets: np.ndarray,
        objective: Objective,
        recipe: Recipe,
        *,
        seed: int = 0,
        device: torch.device | None = None,
        precision: str = "auto",
        gradient_accumulation_steps: int = 1,
    ) -> None:
        self.device = device or pick_device()
        self.model = model.to(self.device)
        self.tokens, self.objective, self.recipe, self.seed = tokens, objective, recipe, seed
        self.precision, self.gradient_accumulation_steps = precision, gradient_accumulation_steps
        self.targets = objective.targets(targets).to(self.device)
        self.frozen = freeze(model, recipe)
        lowest = recipe.freeze if isinstance(recipe.freeze, int) else 0
        self.low_rank = LowRank(model, recipe.lora, lowest) if recipe.lora else None
        self.optimiser = optimiser(model, recipe)
        self.trained = [p for group in self.optimiser.param_groups for p in group["params"]]
        self.factor = schedule(recipe)
        self.steps_per_epoch = math.ceil(len(tokens) / recipe.batch_size)
        self.steps = max(1, round(recipe.epochs * self.steps_per_epoch))
        self.step = 0
        self.examples = 0
        self.seconds = 0.0

    @property
    def total(self) -> int:
        """Examples the whole budget holds."""
        whole, rest = divmod(self.steps, self.steps_per_epoch)
        return whole * len(self.tokens) + min(rest * self.recipe.batch_size, len(self.tokens))

    def reports(
        self, count: int = 9, *, until: float = 1.0, stop: Callable[[], bool] = lambda: False
    ) -> Iterator[Report]:
        """Trains, and yields a report after each `1 / count` of the budget, the last when it is used up.

        Args:
            count: How many reports the whole budget gives.
            until: The share of the budget to end at, with a report.
            stop: Asked after every step; true ends the training there, without a report.
        """
        last = self.steps_until(until)
        marks = {math.ceil(self.steps * (i + 1) / count) for i in range(count)} | {last}
        perturbation = Perturbation(embeddings_of(self.model)[-1]) if self.recipe.smart else None
        self.model.train()
        for module in self.frozen:
            module.eval()
        started, losses = time.perf_counter(), []
        try:
            with quick_dropout(self.model, self.device):
                for rows in self._batches(last):
                    losses.append(self._train(rows, perturbation))
                    self.step += 1
                    self.examples += len(rows)
                    if self.step in marks:
                        mean = torch.stack(losses).mean().item()
                        self.seconds += time.perf_counter() - started
                        yield Report(self.examples, self.total, mean, self.seconds)
                        started, losses = time.perf_counter(), []
                    if stop():
                        self.seconds += time.perf_counter() - started
                        return
        finally:
            if perturbation is not None:
                perturbation.remove()

    def steps_until(self, share: float) -> int:
        """The step at which this share of the budget is used up."""
        return self.steps if share >= 1 else math.ceil(self.steps * share - 1e-9)

    def finish(self) -> PreTrainedModel:
        """Merges low-rank updates and the scale of a number into the weights; the training is over."""
        if self.low_rank is not None:
            self.low_rank.merge()
            self.low_rank = None
        self.objective.fold(self.model)
        return self.model.eval()

    def _batches(self, last: int) -> Iterator[np.ndarray]:
        lengths = self.tokens.lengths
        while self.step < last:
            epoch, done = divmod(self.step, self.steps_per_epoch)
            rng = np.random.default_rng([self.seed, epoch])
            for index, rows in enumerate(shuffled_by_length(lengths, self.recipe.batch_size, rng)):
                if index >= done and self.step < last:
                    yield rows

    def _train(self, rows: np.ndarray, perturbation: Perturbation | None) -> Tensor:
        for group in self.optimiser.param_groups:
            group["lr"] = group["rate"] * self.factor(self.step / self.steps)
        total = torch.zeros((), device=self.device)
        for number, (part, moved) in enumerate(self._parts(rows, perturbation is not None)):
            loss = self._loss(part, number, perturbation if moved else None) * (len(part) / len(rows))
            loss.backward()
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(self.trained, LARGEST_GRADIENT)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        return total

    def _parts(self, rows: np.ndarray, smart: bool) -> list[tuple[np.ndarray, bool]]:
        """A batch in the parts it is computed in, and whether SMART looks at each.

        It looks at every other row, in turn, which estimates the same mean at a lower cost.
        """
        turn = self.step % 2
        halves = [(rows[turn::2], True), (rows[1 - turn :: 2], False)] if smart else [(rows, False)]
        return [
            (part, moved)
            for half, moved in halves
            if len(half)
            for part in np.array_split(half, min(self.gradient_accumulation_steps, len(half)))
        ]

    def _loss(self, rows: np.ndarray, part: int, perturbation: Perturbation | None) -> Tensor:
        chance = np.random.SeedSequence([self.seed, self.step, part])
        swap = np.random.default_rng(chance).random(len(rows)) < 0.5 if self.recipe.swap_pairs else None
        batch = {name: x.to(self.device, non_blocking=True) for name, x in self.tokens.batch(rows, swap).items()}
        seed = int(chance.generate_state(1, np.uint64)[0] >> np.uint64(1))

        def logits() -> Tensor:
            torch.manual_seed(seed)  # the same dropout in every pass over this batch
            return self.model(**batch).logits

        with autocast(self.device, self.precision):
            still = logits()
            loss = self.objective.loss(still, self.targets[rows])
            if perturbation is not None and self.recipe.smart is not None:
                added = smart(logits, still, perturbation, self.recipe.smart, self.objective.divergence)
                loss = loss + 2 * self.recipe.smart.weight * added  # twice: it stands for the other rows too
        return loss

    def save(self, folder: str | Path) -> None:
        """Writes all that is needed to go on: trained weights, moments, and where it stands. No pickle.

        Moments are left out once the budget is used up: nobody goes on from there.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {}
        for name, value in self._buffers().items():
            tensors[f"buffer/{name}"] = value.contiguous()
        for name, parameter in self._trained_by_name().items():
            tensors[f"weight/{name}"] = parameter.detach().contiguous()
            for moment, value in self.optimiser.state.get(parameter, {}).items() if self.step < self.steps else ():
                tensors[f"{moment}/{name}"] = torch.as_tensor(value).contiguous()
        where = {
            "schema": SCHEMA,
            "step": self.step,
            "examples": self.examples,
            "seconds": self.seconds,
            "identity": self._identity(),
        }
        # One file, put in place at once: whoever dies while writing leaves the last state whole.
        partial = folder / "training.partial"
        save_file(tensors, partial, metadata={"training": json.dumps(where)})
        partial.replace(folder / "training.safetensors")

    def restore(self, folder: str | Path) -> None:
        """Goes on from what `save` wrote.

        Raises:
            ModelError: If it belongs to another recipe, seed or data.
        """
        path = Path(folder) / "training.safetensors"
        with safe_open(path, "pt") as file:
            where = json.loads(file.metadata()["training"])
        if where["schema"] != SCHEMA or where["identity"] != self._identity():
            raise ModelError(f"{path} must be a training of the same recipe, seed and rows; it is one of another.")
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
        self.step, self.examples, self.seconds = where["step"], where["examples"], where["seconds"]

    def _trained_by_name(self) -> dict[str, torch.nn.Parameter]:
        return {name: p for name, p in self.model.named_parameters() if p.requires_grad}

    def _buffers(self) -> dict[str, Tensor]:
        """What a head has learned other than by gradients."""
        parameters = dict(self.model.named_parameters())
        return {name: value for name, value in self.model.state_dict().items() if name not in parameters}

    def _identity(self) -> list[Any]:
        return [repr(self.recipe), self.seed, len(self.tokens), int(self.tokens.ids.sum(dtype=np.int64))]
