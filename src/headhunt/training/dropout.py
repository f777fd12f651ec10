"""Speed up dropout on a CPU.

Torch draws random numbers sequentially on a CPU, which takes much of a training step. Here one random byte decides
about each element, so that the dropout rate is rounded to 1/256. The bytes are seeded by torch's generator, so that
dropout remains reproducible.

With dropout, torch's fused attention on a CPU computes in float32 step by step. Here these steps keep the precision of
their input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from headhunt.modeling.build import has_own_code

QUICK_ATTENTION = "sdpa_with_quick_dropout"


@contextmanager
def quick_dropout(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Replace the dropout layers and the attention of a model on a CPU within the context."""
    on_cpu = device.type == "cpu"
    layers = [module for module in model.modules() if type(module) is nn.Dropout] if on_cpu else []
    # An encoder with its own code may know the usual names of attention only.
    parts = [each for each in model.modules() if isinstance(each, PreTrainedModel)] if on_cpu else []
    parts = [] if any(map(has_own_code, parts)) else parts
    # A model and its encoder may share a configuration.
    configs = {id(part.config): part.config for part in parts if part.config._attn_implementation == "sdpa"}.values()
    for layer in layers:
        layer.forward = _forward_of(layer)  # type: ignore[method-assign,assignment]
    for config in configs:
        config._attn_implementation = QUICK_ATTENTION
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward
        for config in configs:
            config._attn_implementation = "sdpa"


def _forward_of(layer: nn.Dropout) -> Callable[[Tensor], Tensor]:
    def forward(x: Tensor) -> Tensor:
        return _drop(x, layer.p) if layer.training else x

    return forward


def _drop(x: Tensor, rate: float) -> Tensor:
    """Return a tensor with dropout."""
    dropped = round(rate * 256)
    if not 0 < dropped < 256:
        return nn.functional.dropout(x, rate)
    count, seed = x.numel(), int(torch.randint(2**62, ()))
    drawn = np.random.SFC64(seed).random_raw(-(-count // 8)).view(np.uint8)[:count]  # eight bytes in each number
    kept = torch.from_numpy((drawn >= dropped).view(np.int8)).view(x.shape)  # converted faster than booleans
    return x * kept.to(x.dtype).mul_(256 / (256 - dropped))


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """Return what `sdpa_attention_forward` of transformers returns, with faster dropout."""
    simple = key.shape[1] == query.shape[1] and options.get("position_bias") is None
    if not dropout or not simple or getattr(module, "is_causal", False) or options.get("is_causal"):
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **options
        )
    scores = (query * (query.shape[-1] ** -0.5 if scaling is None else scaling)) @ key.transpose(-1, -2)
    if attention_mask is not None and attention_mask.dtype == torch.bool:
        scores = scores.masked_fill_(~attention_mask, torch.finfo(scores.dtype).min)
    elif attention_mask is not None:
        scores = scores + attention_mask
    output = _drop(scores.softmax(-1), dropout) @ value
    return output.transpose(1, 2).contiguous(), None


AttentionInterface.register(QUICK_ATTENTION, attention)
AttentionMaskInterface.register(QUICK_ATTENTION, sdpa_mask)
