"""The answer of a model for one text: outputs, thresholds and rejection as a label and its probability."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headhunt.evaluation.decisions import Rejection


@dataclass(frozen=True)
class Prediction:
    """The prediction for one text or pair."""

    label: str | list[str] | float | None
    """The class, the labels, or the number; None if the text is rejected."""
    probability: float | None
    """Probability of the best class, or of the least probable of several labels; None in regression."""
    probabilities: dict[str, float]
    """Probability of every label; empty in regression."""
    rejected: bool = False
    """True if the model does not answer this text."""

    @classmethod
    def of_row(
        cls,
        row: np.ndarray,
        problem_type: str,
        labels: Sequence[str],
        thresholds: Sequence[float] | None = None,
        rejection: Rejection | None = None,
    ) -> Prediction:
        """Return the prediction from the outputs of a model for one row.

        Args:
            row: Probabilities (labels,), or a number.
            problem_type: As in transformers.
            labels: Class names; empty in regression.
            thresholds: Probability from which a row has a label, for each of several labels; 0.5 by default.
            rejection: The texts that the model does not answer.
        """
        if problem_type == "regression":
            return cls(float(row), None, {})
        probabilities = dict(zip(labels, row.tolist(), strict=True))
        if problem_type == "single_label_classification":
            best = max(probabilities, key=probabilities.__getitem__)
            if rejection and rejection.rejects(row[None], labels)[0]:
                return cls(None, probabilities[best], probabilities, rejected=True)
            return cls(best, probabilities[best], probabilities)
        lowest = thresholds or (0.5,) * len(labels)
        chosen = {name: p for (name, p), least in zip(probabilities.items(), lowest, strict=True) if p >= least}
        return cls(list(chosen), min(chosen.values(), default=None), probabilities)
