"""Speed up dropout on a CPU.

Torch draws random numbers sequentially on a CPU, which takes much of a training step. Here one random byte decides
about each element, so that the dropout rate is rounded to 1/256. The bytes are seeded by torch's generator, so that
dropout remains reproducible.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn


@contextmanager
def quick_dropout(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Replace the dropout layers of a model on a CPU within the context."""
    layers = [module for module in model.modules() if type(module) is nn.Dropout] if device.type == "cpu" else []
    for layer in layers:
        layer.forward = _fast_forward(layer)  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


def _fast_forward(layer: nn.Dropout) -> Callable[[Tensor], Tensor]:
    def forward(x: Tensor) -> Tensor:
        dropped = round(layer.p * 256)
        if not layer.training or not 0 < dropped < 256:
            return nn.functional.dropout(x, layer.p, layer.training)
        seed = int(torch.randint(2**62, ()))
        drawn = np.random.Generator(np.random.SFC64(seed)).bytes(x.numel())
        kept = torch.from_numpy(np.frombuffer(drawn, np.uint8) >= dropped).view(x.shape)
        return x * kept.to(x.dtype).mul_(256 / (256 - dropped))

    return forward
