"""Thresholds of several labels: fitted, applied and cross-fitted."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headhunt.errors import HeadhuntError, ModelError
from headhunt.evaluation import (
    apply_thresholds,
    check_thresholds,
    cross_fit_thresholds,
    decide,
    evaluate,
    fit_thresholds,
    measure,
    metric_names,
)
from headhunt.evaluation import thresholds as module

LABELS = "multi_label_classification"
METRICS = metric_names(LABELS)
EVERY_METRIC = pytest.mark.parametrize("metric", METRICS)


def rare_labels(
    rows: int, labels: int, seed: int, *, signal: float = 2.0, shift: float = -2.0
) -> tuple[np.ndarray, np.ndarray]:
    """Return float32 probabilities, too low by `shift` logits, and targets; the last labels are the rarest."""
    rng = np.random.default_rng(seed)
    targets = (rng.random((rows, labels)) < np.geomspace(0.3, 0.02, labels)).astype(np.float32)
    logits = rng.normal(size=targets.shape) + signal * targets + shift
    return (1 / (1 + np.exp(-logits))).astype(np.float32), targets


def score(metric: str, outputs: np.ndarray, targets: np.ndarray, thresholds: np.ndarray | None) -> float:
    return measure(LABELS, metric, apply_thresholds(outputs, thresholds), targets)


def common_threshold(outputs: np.ndarray, targets: np.ndarray, metric: str, monkeypatch) -> float:
    monkeypatch.setattr(module, "SHRINKAGE", 1e12)
    values = set(fit_thresholds(outputs, targets, metric).tolist())
    monkeypatch.undo()
    assert len(values) == 1
    return values.pop()


# ------------------------------------------------------------------------------------------------ fitting


@EVERY_METRIC
@settings(max_examples=40, deadline=None)
@given(rows=st.integers(1, 80), labels=st.integers(1, 6), seed=st.integers(0, 10**6), shift=st.floats(-4, 4))
def test_fit_thresholds_is_never_worse_than_one_half_on_fitting_rows(metric, rows, labels, seed, shift):
    outputs, targets = rare_labels(rows, labels, seed, shift=shift)
    thresholds = fit_thresholds(outputs, targets, metric)
    assert thresholds.shape == (labels,) and ((thresholds > 0) & (thresholds < 1)).all()
    assert score(metric, outputs, targets, thresholds) >= score(metric, outputs, targets, None) - 1e-9


@EVERY_METRIC
def test_common_threshold_is_the_best_of_all(metric, monkeypatch):
    for seed in range(5):
        outputs, targets = rare_labels(200, 4, seed)
        common = common_threshold(outputs, targets, metric, monkeypatch)
        scores = [score(metric, outputs, targets, np.full(4, value)) for value in module.THRESHOLDS]
        assert score(metric, outputs, targets, np.full(4, common)) == pytest.approx(max(scores), abs=1e-9)


@EVERY_METRIC
def test_fit_thresholds_without_shrinkage_finds_the_best_threshold_of_each_label(metric, monkeypatch):
    monkeypatch.setattr(module, "SHRINKAGE", 1e-9)
    monkeypatch.setattr(module, "_KERNEL", np.eye(len(module.THRESHOLDS)))
    grid = module.THRESHOLDS[60:300:6]
    outputs, targets = rare_labels(400, 2, seed=3)
    assert targets.sum(0).min() > 3
    outputs[:, 1] **= 2  # its best threshold is another one
    best = max(score(metric, outputs, targets, np.array([a, b])) for a in grid for b in grid)
    fitted = score(metric, outputs, targets, fit_thresholds(outputs, targets, metric))
    assert fitted >= best - (0.02 if metric == "accuracy" else 1e-9)  # labels are decided one by one


def test_fit_thresholds_moves_rare_labels_towards_the_common_threshold(monkeypatch):
    outputs, targets = rare_labels(4000, 3, seed=1)
    outputs[:, 1:] **= 2  # two labels need a lower threshold
    targets[:, 2] *= np.cumsum(targets[:, 2]) <= 5
    common = common_threshold(outputs, targets, "macro_f1", monkeypatch)
    frequent, rare = fit_thresholds(outputs, targets, "macro_f1")[1:]
    expected = 5 / (5 + module.SHRINKAGE)  # five positive rows
    monkeypatch.setattr(module, "SHRINKAGE", 1e-9)
    alone = fit_thresholds(outputs, targets, "macro_f1")

    def logit(p: float) -> float:
        return float(np.log(p / (1 - p)))

    def moved(label: int, threshold: float) -> float:
        return (logit(threshold) - logit(common)) / (logit(alone[label]) - logit(common))

    assert moved(1, frequent) > 0.85
    assert moved(2, rare) == pytest.approx(expected, abs=0.05)


@EVERY_METRIC
def test_label_without_positives_gets_the_common_threshold(metric, monkeypatch):
    outputs, targets = rare_labels(500, 3, seed=2)
    targets[:, 1] = 0
    common = common_threshold(outputs, targets, metric, monkeypatch)
    assert fit_thresholds(outputs, targets, metric)[1] == common


@EVERY_METRIC
def test_fit_thresholds_improves_other_rows(metric):
    gains = []
    for seed in range(4):
        outputs, targets = rare_labels(1500, 8, seed, shift=-3.0)
        thresholds = fit_thresholds(outputs[:1000], targets[:1000], metric)
        gains.append(
            score(metric, outputs[1000:], targets[1000:], thresholds)
            - score(metric, outputs[1000:], targets[1000:], None)
        )
    assert min(gains) > 0.02


def test_fit_thresholds_keeps_one_half_where_it_separates_all_rows():
    targets = np.array([[1, 0], [0, 1], [1, 1], [0, 0]])
    for metric in METRICS:
        assert fit_thresholds(np.where(targets, 0.9, 0.1), targets, metric).tolist() == [0.5, 0.5]
        assert fit_thresholds(np.zeros((0, 2)), np.zeros((0, 2)), metric).tolist() == [0.5, 0.5]


def test_fit_thresholds_is_deterministic_and_leaves_its_arguments_alone():
    outputs, targets = rare_labels(300, 5, seed=4)
    before = outputs.copy(), targets.copy()
    first, second = (fit_thresholds(outputs, targets, "accuracy") for _ in range(2))
    assert (first == second).all() and (outputs == before[0]).all() and (targets == before[1]).all()
    order = np.random.default_rng(0).permutation(300)
    assert (fit_thresholds(outputs[order], targets[order], "accuracy") == first).all()


def test_fit_thresholds_refuses_invalid_arguments():
    outputs, targets = rare_labels(10, 3, seed=0)
    with pytest.raises(HeadhuntError, match="must be one of accuracy, macro_f1, weighted_f1, micro_f1"):
        fit_thresholds(outputs, targets, "mcc")
    with pytest.raises(HeadhuntError, match="must be probabilities"):
        fit_thresholds(np.full((10, 3), np.nan), targets, "micro_f1")


# ------------------------------------------------------------------------------------------------ applying


def test_apply_thresholds_makes_every_function_decide_at_the_thresholds():
    outputs, targets = rare_labels(400, 4, seed=5)
    thresholds = np.array([0.05, 0.2, 0.7, float(outputs[7, 3])])  # the last is reached exactly
    scores = apply_thresholds(outputs, thresholds)
    predictions = (outputs.astype(np.float64) >= thresholds).astype(int)
    assert (decide(LABELS, scores) == predictions).all() and predictions[7, 3] == 1
    expected = evaluate(LABELS, predictions.astype(float), targets, list("abcd"))
    assert evaluate(LABELS, scores, targets, list("abcd")) == expected
    assert apply_thresholds(outputs, None) is outputs


def test_apply_thresholds_does_not_round_a_probability_up_to_its_threshold():
    below = np.nextafter(np.float32(0.01), np.float32(0))
    assert decide(LABELS, apply_thresholds(np.array([[below]]), [0.01])).tolist() == [[0]]


@pytest.mark.parametrize(
    "thresholds",
    [
        [0.5],
        [0.1, 0.2, 0.3],
        [0.0, 0.5],
        [0.5, 1.0],
        [float("nan"), 0.5],
        [0.5, float("inf")],
        [True, False],
        ["0.5", "0.5"],
        [[0.5, 0.5]],
        [[0.5], [0.5, 0.5]],
        [None, 0.5],
        {"a": 0.5, "b": 0.5},
        "ab",
        0.5,
    ],
)
def test_check_thresholds_refuses_all_but_one_probability_for_each_label(thresholds):
    with pytest.raises(ModelError, match="thresholds must be 2 numbers between 0 and 1"):
        check_thresholds(thresholds, LABELS, 2)


def test_check_thresholds_returns_numbers():
    assert check_thresholds(np.array([0.25, 0.5]), LABELS, 2) == (0.25, 0.5)
    assert check_thresholds([0.25, 0.5], LABELS, 2) == (0.25, 0.5)
    assert check_thresholds(None, LABELS, 2) is None


# ------------------------------------------------------------------------------------------------ cross-fitting


@EVERY_METRIC
def test_cross_fit_thresholds_never_uses_the_target_of_the_same_row(metric):
    outputs, targets = rare_labels(40, 3, seed=6)
    scores = cross_fit_thresholds(outputs, targets, metric)
    changed_elsewhere = 0
    for row in range(40):
        flipped = targets.copy()
        flipped[row] = 1 - flipped[row]
        other = cross_fit_thresholds(outputs, flipped, metric)
        assert (other[row] == scores[row]).all()
        changed_elsewhere += (other != scores).any()
    assert changed_elsewhere, "the targets must matter for the test to be meaningful"


def test_cross_fit_thresholds_of_noise_score_at_chance():
    same_rows, honest, chance = [], [], []
    for seed in range(20):
        outputs, targets = rare_labels(150, 12, seed, signal=0.0)
        same_rows.append(score("macro_f1", outputs, targets, fit_thresholds(outputs, targets, "macro_f1")))
        honest.append(measure(LABELS, "macro_f1", cross_fit_thresholds(outputs, targets, "macro_f1"), targets))
        chance.append(measure(LABELS, "macro_f1", np.ones_like(outputs), targets))  # the best without information
    assert np.mean(honest) < np.mean(chance)
    assert np.mean(same_rows) > np.mean(chance) + 0.004, "fitting and scoring on the same rows must be too optimistic"


def test_cross_fit_thresholds_depends_on_seed_only():
    outputs, targets = rare_labels(100, 3, seed=7)
    first, second, other = (cross_fit_thresholds(outputs, targets, "micro_f1", seed=seed) for seed in (0, 0, 1))
    assert (first == second).all() and (first != other).any()
    assert cross_fit_thresholds(outputs[:1], targets[:1], "micro_f1").tolist() == [pytest.approx(outputs[0].tolist())]
