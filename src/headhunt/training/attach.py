"""Attach stored activations to a model in place of its frozen layers.

The model's own code runs unchanged above the frozen layers. Rows that are not stored are computed, so that an attached
model has the same outputs as before for any text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from headhunt.modeling.build import embeddings_of, heads_of, layers_of
from headhunt.spec import Recipe
from headhunt.training.activations import ActivationCache
from headhunt.training.device import autocast
from headhunt.training.optim import frozen_layers

TOLERANCE = 0.05  # largest relative difference between an attached and a complete encoder
_equivalent: dict[tuple[str, int, str], bool] = {}  # results of `_is_close` by encoder class, layer and weights


def attach(model: PreTrainedModel, caches: Sequence[ActivationCache], recipe: Recipe) -> Attached | None:
    """Let a model start from stored activations, at the highest layer that its recipe and the caches allow.

    Args:
        model: The model, on its device.
        caches: Caches of the model's encoder; every row is looked up in each.
        recipe: Recipe that says which layers are frozen.

    Returns:
        None if no layer is frozen, nothing is stored, or the family of encoders is not supported. Embeddings alone
        are computed as fast as they are read.
    """
    encoder = caches[0].encoder
    frozen = frozen_layers(recipe, encoder.depth)
    if not frozen:
        return None
    layer = min(cache.nearest(frozen) for cache in caches)
    below = range(max(0, encoder.depth + 1 - layers_taken(model)), layer)  # empty for heads that read the last layer
    if not layer or not all(cache.has([*below, layer]) for cache in caches):
        return None
    key = (type(model.base_model).__name__, layer, encoder.fingerprint)
    # The model itself: its upper layers may be trained already, if it continues from a checkpoint.
    complete = None if key in _equivalent else _last_state(model, caches[0])
    attached = Attached(model, caches, layer)
    if complete is not None:
        try:
            _equivalent[key] = _is_close(_last_state(model, caches[0]), complete)
        except Exception:  # the code of a family may fail in any way without its layers
            _equivalent[key] = False
    if _equivalent[key]:
        return attached
    attached.remove()
    return None


class Attached:
    """A model whose frozen layers are replaced by stored activations until `remove` is called.

    Args:
        model: The model; its embeddings and lowest layers must be frozen.
        caches: Caches to look activations up in.
        layer: The layer to start from.
    """

    def __init__(self, model: PreTrainedModel, caches: Sequence[ActivationCache], layer: int) -> None:
        self.layer = layer
        self._model, self._replaced = model, list[tuple[nn.Module, str, nn.Module]]()
        taken = layers_taken(model)
        if taken != 1:
            _record_hidden_states(model, caches[0])
        lookup = _Lookup(caches, layer)
        embeddings = embeddings_of(model)
        self._replace(embeddings[0], lookup)
        for module in embeddings[1:]:
            self._replace(module, _Skipped(module, False))
        for module in layers_of(model)[:layer]:
            self._replace(module, _Skipped(module, caches[0].encoder.returns_tuples))
        self._hooks: list[Any] = []
        if taken != 1:
            computed = caches[0].encoder.depth + 1 - layer  # hidden states from the input of the first layer upwards
            below = range(max(0, computed + layer - taken), layer)
            for head in heads_of(model):
                hook = head.register_forward_pre_hook(
                    lambda module, args: ((*map(lookup.states, below), *args[0][-computed:]), *args[1:])
                )
                self._hooks.append(hook)

    def _replace(self, old: nn.Module, new: nn.Module) -> None:
        for parent in self._model.modules():
            for name, child in parent.named_children():
                if child is old:
                    setattr(parent, name, new)
                    self._replaced.append((parent, name, old))
                    return

    def remove(self) -> None:
        """Restore the model's own layers."""
        for parent, name, module in self._replaced:
            setattr(parent, name, module)
        for hook in self._hooks:
            hook.remove()
        self._replaced, self._hooks = [], []


def layers_taken(model: PreTrainedModel) -> int:
    """Return the number of layers that the head of a model reads; the heads of several tasks read the same."""
    return max((head.take for head in heads_of(model)), default=1)


def _record_hidden_states(model: PreTrainedModel, cache: ActivationCache) -> None:
    """Run the encoder once: in the first pass transformers adds hooks to all layers, which record hidden states."""
    row = cache.tokens.batch(np.argsort(cache.tokens.lengths)[:1])
    with torch.inference_mode():
        model.base_model(**{name: x.to(model.device) for name, x in row.items()}, output_hidden_states=True)


class _Lookup(nn.Module):
    """Replacement for the embeddings that returns the stored input of a layer, looked up by token ids."""

    def __init__(self, caches: Sequence[ActivationCache], layer: int) -> None:
        super().__init__()
        self._caches, self._layer = caches, layer
        self._pad = caches[0].tokens.special.pad
        self._batch: tuple[np.ndarray, dict[str, Any]] | None = None

    def forward(self, input_ids: Tensor, *args: Any, **others: Any) -> Tensor:
        self._batch = (input_ids.cpu().numpy().astype(np.int32), {"input_ids": input_ids, **others})
        return self.states(self._layer)

    def states(self, layer: int) -> Tensor:
        """Return the input of a layer for the current batch (batch, tokens, width)."""
        assert self._batch is not None
        ids, inputs = self._batch
        lengths = ids.shape[1] - (ids != self._pad)[:, ::-1].argmax(1)
        keys = [line[:length].tobytes() for line, length in zip(ids, lengths, strict=True)]
        stored = self._caches[0].load(layer)
        assert stored is not None
        out, missing = np.zeros((*ids.shape, stored[0].shape[1]), np.float16), list(range(len(keys)))
        for cache in self._caches:
            missing = cache.fill(layer, keys, missing, out)
        states = torch.from_numpy(out).to(inputs["input_ids"].device, torch.float32)
        if missing:
            states[missing] = self._compute(layer, np.array(missing), inputs, lengths)
        return states

    def _compute(self, layer: int, positions: np.ndarray, inputs: dict[str, Any], lengths: np.ndarray) -> Tensor:
        """Return the input of a layer for rows that are not stored."""
        chosen = torch.from_numpy(positions).to(inputs["input_ids"].device)
        batch = {"input_ids": inputs["input_ids"][chosen]}
        if isinstance(inputs.get("token_type_ids"), Tensor):
            batch["token_type_ids"] = inputs["token_type_ids"][chosen]
        steps = torch.arange(batch["input_ids"].shape[1], device=chosen.device)
        batch["attention_mask"] = (steps[None] < torch.from_numpy(lengths[positions]).to(chosen.device)[:, None]).long()
        return self._caches[0].encoder.states(batch, [layer])[layer].float()


class _Skipped(nn.Module):
    """Replacement for a frozen layer that returns its input."""

    def __init__(self, layer: nn.Module, returns_tuples: bool) -> None:
        super().__init__()
        self._returns_tuples = returns_tuples
        for name, value in vars(layer).items():  # some families read attributes of their layers
            if isinstance(value, str | int) and not name.startswith("_"):
                setattr(self, name, value)

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        return (hidden_states,) if self._returns_tuples else hidden_states


def _last_state(model: PreTrainedModel, cache: ActivationCache) -> Tensor:
    """Return the last hidden states of the encoder of a model for the longest two texts (tokens, width)."""
    rows = np.argsort(cache.tokens.lengths)[-2:]
    batch = {name: x.to(cache.encoder.device) for name, x in cache.tokens.batch(rows).items()}
    mode = model.training
    model.eval()
    try:
        with torch.inference_mode(), autocast(cache.encoder.device, cache.encoder.precision):
            state = model.base_model(**batch).last_hidden_state.float()
    finally:
        model.train(mode)
    return state[batch["attention_mask"].bool()]


def _is_close(attached: Tensor, complete: Tensor) -> bool:
    """Return True if an attached encoder computes the same as the complete one; some families do not."""
    return bool((attached - complete).norm() < TOLERANCE * complete.norm())
