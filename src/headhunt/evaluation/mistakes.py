"""Selection of the misclassified rows that a person should read first."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headhunt.evaluation.metrics import decide

MAX_MISTAKES = 10


@dataclass(frozen=True)
class Mistake:
    """A misclassified row, by class ids."""

    row: int
    """Position in the outputs."""
    target: int
    predicted: int
    confidence: float
    """Probability of the predicted class."""
    plain: int | None = None
    """Class that the plain head predicts, if its outputs are known."""


def confident_mistakes(
    outputs: np.ndarray, targets: np.ndarray, plain_outputs: np.ndarray | None = None, limit: int = MAX_MISTAKES
) -> list[Mistake]:
    """Return the most confident misclassifications; those that the plain head gets right come first.

    Args:
        outputs: Probabilities of the model (rows, classes).
        targets: True class ids (rows,).
        plain_outputs: Probabilities of the plain head for the same rows.
        limit: Maximum number of mistakes.
    """
    predicted, confidence = decide("single_label_classification", outputs), outputs.max(1)
    plain = None if plain_outputs is None else decide("single_label_classification", plain_outputs)
    wrong = np.flatnonzero(predicted != targets)
    # lexsort: the last key decides first.
    also_wrong = np.ones(len(wrong), bool) if plain is None else plain[wrong] != targets[wrong]
    order = wrong[np.lexsort((-confidence[wrong], also_wrong))][:limit]
    return [
        Mistake(
            int(row),
            int(targets[row]),
            int(predicted[row]),
            round(float(confidence[row]), 4),
            None if plain is None else int(plain[row]),
        )
        for row in order
    ]
