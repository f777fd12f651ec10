"""Calibration of class probabilities: temperature scaling, reliability bins and the expected calibration error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class ReliabilityBin:
    """Rows that were predicted with about the same confidence."""

    confidence: float
    """Mean probability of the predicted class."""
    accuracy: float
    rows: int


def fit_temperature(probabilities: np.ndarray, targets: np.ndarray) -> float:
    """Return the temperature that maximizes the likelihood of the targets; 1 changes nothing.

    Args:
        probabilities: Of each class (rows, classes), for rows that the model was not trained on.
        targets: True class ids (rows,).
    """
    from scipy.optimize import minimize_scalar

    logits = np.log(np.clip(probabilities, 1e-9, 1.0))

    def loss(log_temperature: float) -> float:
        scaled = logits / np.exp(log_temperature)
        scaled = scaled - scaled.max(1, keepdims=True)
        true_logits = scaled[np.arange(len(targets)), targets]
        return float(np.mean(np.log(np.exp(scaled).sum(1)) - true_logits))

    return float(np.exp(minimize_scalar(loss, bounds=(-2.0, 2.0), method="bounded").x))


def reliability_bins(probabilities: np.ndarray, targets: np.ndarray, bins: int = 10) -> list[ReliabilityBin]:
    """Return the accuracy at each level of confidence, in bins with equally many rows.

    `sklearn.calibration.calibration_curve` is not used: it does not count rows, and tied confidences empty its bins.

    Args:
        probabilities: Of each class (rows, classes).
        targets: True class ids (rows,).
        bins: Maximum number of bins.
    """
    confidence, correct = probabilities.max(1), probabilities.argmax(1) == targets
    order = np.argsort(confidence, kind="stable")
    return [
        ReliabilityBin(float(confidence[rows].mean()), float(correct[rows].mean()), len(rows))
        for rows in np.array_split(order, min(bins, len(order)))
        if len(rows)
    ]


def expected_calibration_error(bins: Sequence[ReliabilityBin]) -> float:
    """Return the mean distance between confidence and accuracy, weighted by the rows of each bin."""
    total = sum(group.rows for group in bins)
    return sum(group.rows * abs(group.confidence - group.accuracy) for group in bins) / max(1, total)
