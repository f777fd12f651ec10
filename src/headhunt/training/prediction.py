"""Run a model over tokenised texts in batches, and over rows of several tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from headhunt.training.device import autocast
from headhunt.training.task_tokens import TaskTokens
from headhunt.training.tokens import Tokens

Compute = Callable[[dict[str, torch.Tensor], np.ndarray], torch.Tensor]


def run_batches(
    tokens: Tokens | TaskTokens,
    compute: Compute,
    *,
    device: torch.device,
    precision: str,
    batch: int,
    progress: Callable[[int], None] | None = None,
) -> np.ndarray:
    """Return what `compute` returns for batches of texts, in the order of the texts.

    Args:
        tokens: The tokenised texts; there must be at least one.
        compute: Called with the inputs of a batch and its rows.
        device: Device of the inputs.
        precision: "auto", "fp32" or "bf16".
        batch: Texts per forward pass.
        progress: Function called with the number of texts just predicted.
    """
    order, parts = [], []
    with torch.inference_mode(), autocast(device, precision):
        for rows in tokens.batches(np.arange(len(tokens)), batch):
            inputs = {name: x.to(device) for name, x in tokens.batch(rows).items()}
            order.append(rows)
            parts.append(compute(inputs, rows))
            if progress:
                progress(len(rows))
    values = torch.cat(parts).cpu().numpy()
    restored = np.empty_like(values)
    restored[np.concatenate(order)] = values
    return restored


def outputs_of_tasks(
    models: Sequence[Any],
    width: int,
    texts: Sequence[str],
    texts_b: Sequence[str] | None,
    tasks: np.ndarray,
    **options: Any,
) -> np.ndarray:
    """Return the outputs of rows of several tasks (rows, width), each of the model of its task.

    Args:
        models: The predictor of each task.
        width: Outputs of the task with the most; those that a task does not have are 0.
        texts: The texts, or the first texts of pairs.
        texts_b: The second texts of pairs; tasks of one text do not read them.
        tasks: Number of each row's task.
        options: Passed on to the models' `outputs`.
    """
    outputs = np.zeros((len(texts), width), np.float32)
    for number, model in enumerate(models):
        rows = np.flatnonzero(tasks == number).tolist()
        if not rows:
            continue
        first = [texts[row] for row in rows]
        second = [texts_b[row] for row in rows] if texts_b is not None and model.pair else None
        found = model.outputs(first, second, **options)
        outputs[rows, : found.shape[1] if found.ndim > 1 else 1] = found.reshape(len(rows), -1)
    return outputs
