"""Calibration of probabilities: temperature scaling, reliability bins, the calibration error, and errors of numbers."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

ERROR_LEVEL = 0.9  # share of validation rows whose error is within the stated one


@dataclass(frozen=True)
class ReliabilityBin:
    """Predictions with about the same confidence: rows, or pairs of a row and a label if a row may have several."""

    confidence: float
    """Mean probability of the predicted class, or of the labels."""
    accuracy: float
    """Share of the predictions that are right; for several labels, share of the rows that have the label."""
    rows: int


@dataclass(frozen=True)
class ErrorBound:
    """Size of the errors of predicted numbers: a number has no probability that could be calibrated."""

    level: float
    """Share of the validation rows whose error is at most `error`."""
    error: float
    """Absolute error, fitted on rows that the model was not trained on."""
    coverage: float
    """Share of the test rows whose error is at most `error`."""


def fit_temperature(probabilities: np.ndarray, targets: np.ndarray) -> float:
    """Return the temperature that maximizes the likelihood of the targets; 1 changes nothing.

    Args:
        probabilities: Of each class or label (rows, classes), for rows that the model was not trained on.
        targets: True class ids (rows,), or multi-hot rows (rows, labels) if a row may have several labels.
    """
    from scipy.optimize import minimize_scalar
    from scipy.special import log_softmax

    logits, several = _logits(probabilities, targets.ndim == 2), targets.ndim == 2

    def loss(log_temperature: float) -> float:
        scaled = logits / np.exp(log_temperature)
        if several:
            return float(np.mean(np.logaddexp(0.0, scaled) - targets * scaled))
        return float(-np.mean(log_softmax(scaled, axis=1)[np.arange(len(targets)), targets]))

    return float(np.exp(minimize_scalar(loss, bounds=(-2.0, 2.0), method="bounded").x))


def apply_temperature(probabilities: np.ndarray, temperature: float | None, *, several: bool) -> np.ndarray:
    """Return the probabilities of logits divided by a temperature; None returns them unchanged.

    Args:
        probabilities: Of each class (rows, classes), or of each label (rows, labels) or (labels,).
        temperature: The temperature.
        several: Whether a row may have several labels.
    """
    if temperature is None:
        return probabilities
    from scipy.special import expit, softmax

    scaled = _logits(probabilities, several) / temperature
    return np.asarray(expit(scaled) if several else softmax(scaled, axis=1))


def reliability_bins(probabilities: np.ndarray, targets: np.ndarray, bins: int = 10) -> list[ReliabilityBin]:
    """Return the accuracy at each level of confidence, in bins with equally many predictions.

    For several labels, each label of each row is a prediction: its probability is compared with how often the rows
    have it. `sklearn.calibration.calibration_curve` is not used: it does not count rows, and tied confidences empty
    its bins.

    Args:
        probabilities: Of each class or label (rows, classes).
        targets: True class ids (rows,), or multi-hot rows (rows, labels).
        bins: Maximum number of bins.
    """
    if targets.ndim == 2:
        confidence, correct = probabilities.ravel(), targets.ravel() > 0
    else:
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


def bound_errors(
    outputs: np.ndarray, targets: np.ndarray, test_outputs: np.ndarray, test_targets: np.ndarray
) -> ErrorBound:
    """Return the error that most predicted numbers stay within, and how many of the test rows do.

    Args:
        outputs: Predicted numbers of rows that the model was not trained on.
        targets: Their true values.
        test_outputs: Predicted numbers of the test rows.
        test_targets: Their true values.
    """
    errors = np.sort(np.abs(outputs - targets))
    # The rank of split conformal prediction: one row more than the quantile, since the next row is a new one.
    rank = min(len(errors) - 1, int(np.ceil(ERROR_LEVEL * (len(errors) + 1))) - 1)
    error = float(errors[rank])
    return ErrorBound(ERROR_LEVEL, error, float((np.abs(test_outputs - test_targets) <= error).mean()))


def _logits(probabilities: np.ndarray, several: bool) -> np.ndarray:
    clipped = np.clip(np.asarray(probabilities, np.float64), 1e-9, 1.0)
    return np.log(clipped) - np.log(np.clip(1 - clipped, 1e-9, 1.0)) if several else np.log(clipped)
