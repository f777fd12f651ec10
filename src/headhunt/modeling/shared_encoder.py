"""Sharing of one encoder by several heads, which then runs once per batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from headhunt.modeling.model import HeadhuntForSequenceClassification


class _SharedEncoder(torch.nn.Module):
    """An encoder shared by several heads, which returns its last output again for equal inputs."""

    def __init__(self, encoder: torch.nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self._inputs: dict[str, Any] = {}
        self._output: Any = None

    def forward(self, **inputs: Any) -> Any:
        """Return the output of the encoder with the hidden states of all layers."""
        tensors = {name: x for name, x in inputs.items() if isinstance(x, torch.Tensor)}
        same = tensors.keys() == self._inputs.keys() and all(
            torch.equal(x, self._inputs[n]) for n, x in tensors.items()
        )
        if not same:
            self._inputs, self._output = tensors, self.encoder(**{**inputs, "output_hidden_states": True})
        return self._output


def share_encoders(models: Sequence[PreTrainedModel]) -> None:
    """Replace equal encoders of several models by one that runs once per batch."""
    shared: list[_SharedEncoder] = []
    for model in models:
        if not isinstance(model, HeadhuntForSequenceClassification):
            continue
        weights = model.encoder.state_dict()
        for encoder in shared:
            known = encoder.encoder.state_dict()
            if known.keys() == weights.keys() and all(torch.equal(known[name], x) for name, x in weights.items()):
                model.encoder = encoder
                break
        else:
            shared.append(_SharedEncoder(model.encoder))
            model.encoder = shared[-1]
