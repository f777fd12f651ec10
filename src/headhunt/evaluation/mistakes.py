"""Selection of the misclassified rows that a person should read first."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from headhunt.evaluation.metrics import decide

MAX_MISTAKES = 10


@dataclass(frozen=True)
class Mistake:
    """A row that the model gets wrong."""

    text: str
    label: str
    prediction: str
    confidence: float
    """Probability of the predicted class."""
    text_b: str | None = None
    plain_prediction: str | None = None
    """The prediction of the plain head."""


def find_mistakes(
    outputs: np.ndarray,
    targets: np.ndarray,
    labels: Sequence[str],
    read_texts: Callable[[int], tuple[str, str | None]],
    plain_outputs: np.ndarray | None = None,
    limit: int = MAX_MISTAKES,
) -> tuple[Mistake, ...]:
    """Return the most confident misclassifications; those that the plain head gets right come first.

    Args:
        outputs: Probabilities of the model (rows, classes).
        targets: True class ids (rows,).
        labels: Class names.
        read_texts: Returns the text of a row, by its position in `outputs`, and its second text or None.
        plain_outputs: Probabilities of the plain head for the same rows.
        limit: Maximum number of mistakes.
    """
    predicted, confidence = decide("single_label_classification", outputs), outputs.max(1)
    plain = None if plain_outputs is None else decide("single_label_classification", plain_outputs)
    wrong = np.flatnonzero(predicted != targets)
    also_wrong = np.ones(len(wrong), bool) if plain is None else plain[wrong] != targets[wrong]
    rows = wrong[np.lexsort((-confidence[wrong], also_wrong))][:limit]  # lexsort: the last key decides first
    mistakes = []
    for row in map(int, rows):
        text, text_b = read_texts(row)
        mistakes.append(
            Mistake(
                text,
                labels[targets[row]],
                labels[predicted[row]],
                round(float(confidence[row]), 4),
                text_b,
                None if plain is None else labels[plain[row]],
            )
        )
    return tuple(mistakes)
