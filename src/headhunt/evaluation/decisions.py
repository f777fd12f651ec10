"""Turn outputs into answers, by settings fitted out of fold: thresholds, temperature and rejection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headhunt.errors import HeadhuntError, ModelError
from headhunt.evaluation.calibration import apply_temperature, fit_temperature
from headhunt.evaluation.thresholds import MULTI_LABEL, fit_thresholds

CLASSES = "single_label_classification"


@dataclass(frozen=True)
class RejectionRule:
    """The share of texts to answer, and the class to reject, as a search is asked for them."""

    coverage: float = 0.9
    """Share of the rows that are answered."""
    label: str | None = None
    """Class that stands for texts that fit no other class; None if the data has none."""

    def check(self, problem_type: str, labels: Sequence[str]) -> None:
        """Raise an error if a task cannot have this rule.

        Raises:
            HeadhuntError: If the rule does not fit the task.
        """
        if problem_type != CLASSES:
            raise HeadhuntError(f"needs one class per row; this task is a {problem_type}. Leave it out.", "reject")
        if not 0 < self.coverage < 1:
            raise HeadhuntError(f"must be a share between 0 and 1, such as 0.9; found {self.coverage:g}.", "reject")
        if self.label is not None and self.label not in labels:
            known = ", ".join(labels[:5]) + (" …" if len(labels) > 5 else "")
            raise HeadhuntError(f"must be a class of the data ({known}); found {self.label!r}.", "reject_label")


@dataclass(frozen=True)
class Rejection:
    """The texts that a model does not answer: those it is not sure of, and those of one class."""

    threshold: float
    """A text is answered if the probability of its best class is at least this."""
    label: str | None = None
    """Texts whose best class is this one are not answered."""

    def rejects(self, outputs: np.ndarray, labels: Sequence[str]) -> np.ndarray:
        """Return True for each row that is not answered (rows,).

        Args:
            outputs: Probabilities (rows, classes).
            labels: Class names.
        """
        rejected: np.ndarray = outputs.max(1) < self.threshold
        if self.label is not None:
            rejected |= outputs.argmax(1) == list(labels).index(self.label)
        return rejected


@dataclass(frozen=True)
class RejectionScores:
    """Coverage and accuracy of a model that rejects, on rows that took no part in fitting it."""

    asked: float | None
    """The coverage that was asked for; None if it is not known, as for a saved model."""
    threshold: float
    coverage: float
    """Share of the rows that are answered; rows of the class for texts that fit no other class do not count."""
    accuracy: float
    """Of the answered rows among them."""
    accuracy_of_all: float
    """Of all of them, if none were rejected."""
    label: str | None = None
    outside_rows: int = 0
    """Rows of that class."""
    outside_rejected: float | None = None
    """Share of these rows that are rejected."""


@dataclass(frozen=True)
class Decisions:
    """Thresholds, temperature and rejection of one model: how its outputs become answers."""

    thresholds: tuple[float, ...] | None = None
    """Of several labels, before the temperature is applied."""
    temperature: float | None = None
    rejection: Rejection | None = None
    """Of probabilities to which the temperature is applied."""


def fit_decisions(
    problem_type: str,
    metric: str,
    outputs: np.ndarray,
    targets: np.ndarray,
    labels: Sequence[str],
    *,
    calibrate: bool = False,
    reject: RejectionRule | None = None,
) -> Decisions:
    """Fit thresholds of several labels and, where asked for, a temperature and a rejection.

    Args:
        problem_type: "single_label_classification", "multi_label_classification" or "regression".
        metric: The metric that thresholds maximize.
        outputs: Outputs for rows that the model was not trained on.
        targets: True values.
        labels: Class names.
        calibrate: Whether to fit a temperature.
        reject: The rule for rejecting rows; implies a temperature.
    """
    if problem_type == "regression":
        return Decisions()
    thresholds = tuple(fit_thresholds(outputs, targets, metric).tolist()) if problem_type == MULTI_LABEL else None
    if not calibrate and reject is None:
        return Decisions(thresholds)
    temperature = round(fit_temperature(outputs, targets), 4)
    rejection = None
    if reject is not None:
        rejection = fit_rejection(apply_temperature(outputs, temperature, several=False), targets, labels, reject)
    return Decisions(thresholds, temperature, rejection)


def fit_rejection(outputs: np.ndarray, targets: np.ndarray, labels: Sequence[str], rule: RejectionRule) -> Rejection:
    """Return the highest threshold that keeps the coverage.

    Args:
        outputs: Calibrated probabilities (rows, classes) for rows that the model was not trained on.
        targets: True class ids (rows,).
        labels: Class names.
        rule: The coverage, and the class for texts that fit no other class; its rows do not count.
    """
    inside = np.ones(len(outputs), bool)
    if rule.label is not None:
        inside = targets != list(labels).index(rule.label)
    answered = inside & ~Rejection(0.0, rule.label).rejects(outputs, labels)
    kept = int(np.ceil(rule.coverage * inside.sum()))
    confidence = np.sort(outputs[answered].max(1))[::-1]
    # The class alone may reject more than is allowed. Rounding down keeps the last row whatever a float32 makes of it.
    threshold = float(np.floor(confidence[kept - 1] * 1e6) / 1e6) if 0 < kept <= len(confidence) else 0.0
    return Rejection(min(threshold, 0.999999), rule.label)


def score_rejection(
    rejection: Rejection,
    outputs: np.ndarray,
    targets: np.ndarray,
    labels: Sequence[str],
    asked: float | None = None,
) -> RejectionScores | None:
    """Return coverage and accuracy on some rows; None if there are none that should be answered.

    Args:
        rejection: The rejection.
        outputs: Calibrated probabilities (rows, classes).
        targets: True class ids (rows,).
        labels: Class names.
        asked: The coverage that was asked for, if known.
    """
    outside = np.zeros(len(outputs), bool)
    if rejection.label is not None:
        outside = targets == list(labels).index(rejection.label)
    if outside.all():
        return None
    answered, correct = ~rejection.rejects(outputs, labels), outputs.argmax(1) == targets
    inside = answered & ~outside
    return RejectionScores(
        asked=asked,
        threshold=rejection.threshold,
        coverage=float(answered[~outside].mean()),
        accuracy=float(correct[inside].mean()) if inside.any() else 0.0,
        accuracy_of_all=float(correct[~outside].mean()),
        label=rejection.label,
        outside_rows=int(outside.sum()),
        outside_rejected=float((~answered[outside]).mean()) if outside.any() else None,
    )


def check_rejection(data: Any, problem_type: str, labels: Sequence[str]) -> Rejection | None:
    """Return the rejection of a model from unknown data, as read from a file; None if it has none.

    Raises:
        ModelError: If it is not a threshold between 0 and 1 and None or one of the classes.
    """
    if data is None:
        return None
    if problem_type != CLASSES:
        raise ModelError("is for models of one class per text only; leave it out.", "rejection")
    given = data if isinstance(data, Mapping) else {}
    threshold, label = given.get("threshold"), given.get("label")
    if not isinstance(threshold, float) or not 0 <= threshold < 1 or (label is not None and label not in labels):
        raise ModelError(
            f"rejection must have a threshold between 0 and 1, and null or a class as its label; found {str(data)[:80]}"
        )
    return Rejection(threshold, label)


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
