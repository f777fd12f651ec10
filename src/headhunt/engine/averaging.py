"""Average the weights of several training runs of one candidate, and check that the average predicts as they do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from headhunt.modeling.averaging import average_weights
from headhunt.predictor import Predictor
from headhunt.storage import replace_directory, scratch_directory


def average_training_runs(
    models: Sequence[Path],
    out: Path,
    texts: Sequence[str],
    texts_b: Sequence[str] | None,
    load: Callable[[Path], Predictor],
    checked_rows: int = 100,
    tasks: np.ndarray | None = None,
) -> bool:
    """Write the average of the weights of several models, if it predicts as their mean prediction does.

    Training runs from the same initial weights mostly end in one region of low loss, where the average of the weights
    is as good as the mean of the predictions. Where they do not, the average is worse than each of them. The check
    needs texts that no model was trained on: the first half of each training text. The average is accepted if it is
    closer to the mean prediction than the models themselves are on average.

    Args:
        models: Saved models of one candidate.
        out: Folder of the average. It appears when it is accepted, and not before: a process may die at any moment.
        texts: First texts of the training rows.
        texts_b: Second texts, for pairs.
        load: Returns the predictor of a folder.
        checked_rows: Number of texts that the predictions are compared on.
        tasks: Number of each row's task, if there are several; the average must be accepted for each of them.

    Returns:
        True if the average was accepted.
    """
    rows = np.random.default_rng(0).permutation(len(texts))[:checked_rows]
    first = [_half(texts[row]) for row in rows]
    second = None if texts_b is None else [_half(texts_b[row]) for row in rows]
    of_rows = None if tasks is None else tasks[rows]
    outputs = [load(model).outputs(first, second, of_rows) for model in models]
    with scratch_directory(out.parent) as scratch:
        average = scratch / out.name
        average_weights(models, average)
        averaged = load(average).outputs(first, second, of_rows)
        chosen = [np.arange(len(rows))] if of_rows is None else [of_rows == task for task in np.unique(of_rows)]
        accepted = all(agrees(averaged[each], [output[each] for output in outputs]) for each in chosen)
        if accepted:
            replace_directory(average, out)
    return accepted


def agrees(average: np.ndarray, outputs: Sequence[np.ndarray]) -> bool:
    """Return whether the outputs of an average are closer to the mean of all outputs than these are on average."""
    mean = np.mean(outputs, axis=0)
    distances = [float(np.abs(output - mean).mean()) for output in outputs]
    return float(np.abs(average - mean).mean()) <= float(np.mean(distances))


def _half(text: str) -> str:
    return text[: (len(text) + 1) // 2]
