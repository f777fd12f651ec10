"""Rejection keeps the coverage it was asked for, and decisions are read strictly."""

from __future__ import annotations

import numpy as np
import pytest

from headhunt.errors import HeadhuntError, ModelError
from headhunt.evaluation import (
    Decisions,
    Rejection,
    RejectionRule,
    apply_temperature,
    bound_errors,
    check_rejection,
    fit_decisions,
    fit_temperature,
    reliability_bins,
    score_rejection,
)
from headhunt.evaluation.decisions import fit_rejection

CLASSES, LABELS = "single_label_classification", "multi_label_classification"
NAMES = ("a", "b", "oos")


def draw(rows: int, seed: int, outside: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Return calibrated probabilities of three classes, and classes drawn from them."""
    rng = np.random.default_rng(seed)
    probabilities = rng.dirichlet([1.0, 1.0, 4 * outside + 1e-3], rows)
    targets = np.array([rng.choice(3, p=row) for row in probabilities])
    return probabilities, targets


@pytest.mark.parametrize("coverage", [0.5, 0.9])
def test_rejection_keeps_its_coverage_on_new_rows_and_the_answers_are_better(coverage):
    outputs, targets = draw(3000, 0)
    sharp = outputs**2 / (outputs**2).sum(1, keepdims=True)  # overconfident
    decisions = fit_decisions(CLASSES, "accuracy", sharp, targets, NAMES, reject=RejectionRule(coverage))
    assert decisions.temperature == pytest.approx(2, rel=0.1) and decisions.thresholds is None
    new, truth = draw(3000, 1)
    scores = score_rejection(decisions.rejection, new, truth, NAMES, coverage)
    assert scores.coverage == pytest.approx(coverage, abs=0.03) and scores.asked == coverage
    assert scores.accuracy > scores.accuracy_of_all and scores.outside_rejected is None


def test_rejection_of_a_class_counts_only_the_rows_of_other_classes():
    outputs, targets = draw(3000, 2, outside=0.2)
    rule = RejectionRule(0.8, "oos")
    rejection = fit_decisions(CLASSES, "accuracy", outputs, targets, NAMES, reject=rule).rejection
    rejected = rejection.rejects(outputs, NAMES)
    assert rejected[outputs.argmax(1) == 2].all()
    assert (~rejected[targets != 2]).mean() == pytest.approx(0.8, abs=0.01)
    scores = score_rejection(rejection, outputs, targets, NAMES, 0.8)
    assert scores.outside_rows == (targets == 2).sum() and scores.outside_rejected > 0.5
    assert score_rejection(rejection, outputs, np.full(3000, 2), NAMES, 0.8) is None


def test_coverage_does_not_depend_on_the_number_of_rows_outside():
    outputs, targets = draw(3000, 4, outside=0.1)
    few = (targets != 2) | (np.arange(3000) % 10 == 0)
    rule = RejectionRule(0.8, "oos")
    rejection = fit_rejection(outputs, targets, NAMES, rule)
    assert rejection == fit_rejection(outputs[few], targets[few], NAMES, rule)
    found = [score_rejection(rejection, outputs[rows], targets[rows], NAMES) for rows in (few, slice(None))]
    assert found[0].coverage == found[1].coverage == pytest.approx(0.8, abs=1e-3) and found[0].asked is None
    assert found[0].outside_rows < found[1].outside_rows


def test_rejection_by_the_class_alone_if_it_takes_too_many():
    outputs = np.tile([0.3, 0.2, 0.5], (10, 1))
    rejection = fit_decisions(
        CLASSES, "accuracy", outputs, np.arange(10) % 2, NAMES, reject=RejectionRule(0.9, "oos")
    ).rejection
    assert rejection == Rejection(0.0, "oos") and rejection.rejects(outputs, NAMES).all()


def test_rule_is_refused_where_it_cannot_hold():
    with pytest.raises(HeadhuntError, match="reject= needs one class per row; this task is a regression"):
        RejectionRule().check("regression", ())
    with pytest.raises(HeadhuntError, match="reject= must be a share between 0 and 1"):
        RejectionRule(90).check(CLASSES, NAMES)
    with pytest.raises(HeadhuntError, match="reject_label= must be a class of the data"):
        RejectionRule(0.9, "other").check(CLASSES, NAMES)


@pytest.mark.parametrize(
    "data", [{}, {"threshold": 1.0}, {"threshold": "0.5"}, {"threshold": 0.5, "label": "x"}, [0.5]]
)
def test_check_rejection_refuses_other_data(data):
    with pytest.raises(ModelError, match="rejection must have a threshold"):
        check_rejection(data, CLASSES, NAMES)


def test_check_rejection_is_for_one_class_per_text():
    assert check_rejection(None, LABELS, NAMES) is None
    assert check_rejection({"threshold": 0.5, "label": "oos"}, CLASSES, NAMES) == Rejection(0.5, "oos")
    with pytest.raises(ModelError, match="one class per text only"):
        check_rejection({"threshold": 0.5}, LABELS, NAMES)


def test_fit_temperature_of_several_labels_undoes_overconfidence():
    rng = np.random.default_rng(4)
    logits = rng.normal(-2, 2, (4000, 3))
    targets = (rng.random(logits.shape) < 1 / (1 + np.exp(-logits))).astype(np.float32)
    sharp = 1 / (1 + np.exp(-2.5 * logits))
    temperature = fit_temperature(sharp, targets)
    assert temperature == pytest.approx(2.5, rel=0.1)
    calibrated = apply_temperature(sharp, temperature, several=True)
    before, after = (
        sum(group.rows * abs(group.confidence - group.accuracy) for group in reliability_bins(each, targets))
        for each in (sharp, calibrated)
    )
    assert after < before / 3 and sum(group.rows for group in reliability_bins(sharp, targets)) == 12_000


def test_decisions_of_numbers_are_empty():
    assert fit_decisions("regression", "mse", np.ones(3), np.ones(3), ()) == Decisions()


def test_bound_errors_holds_for_new_rows():
    rng = np.random.default_rng(5)
    errors = rng.normal(0, 2, 6000)
    bound = bound_errors(errors[:3000], np.zeros(3000), errors[3000:], np.zeros(3000))
    assert bound.level == 0.9 and bound.coverage == pytest.approx(0.9, abs=0.02)
    assert bound.error == pytest.approx(1.645 * 2, rel=0.05)
