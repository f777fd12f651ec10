"""Comparisons claim a gain about as rarely as their level promises, and an ensemble takes in only what helps."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import spearmanr

from headhunt.evaluation import compare, measure, metric_names, scorer

CLASSES = "single_label_classification"


def outputs_with_accuracy(targets: np.ndarray, accuracy: float | np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return outputs of a model that is right on each row with this probability."""
    correct = rng.random(len(targets)) < accuracy
    return np.eye(2)[np.where(correct, targets, 1 - targets)] * 0.8 + 0.1


def test_compare_rarely_separates_equal_models():
    rng = np.random.default_rng(0)
    claims = 0
    for turn in range(200):
        targets = rng.integers(0, 2, 400)
        model, baseline = (outputs_with_accuracy(targets, 0.8, rng) for _ in range(2))
        comparison = compare(CLASSES, "accuracy", [model], [baseline], targets, seed=turn)
        claims += comparison.low > 0
        assert not comparison.significant  # one training run of each is never enough
    assert claims <= 200 * 0.05  # 2.5 % are to be expected


def test_compare_accounts_for_randomness_in_training():
    """Training runs of one candidate differ by 3 points: if that is ignored, equal models often seem to differ."""
    rng = np.random.default_rng(1)
    claims = {"with": 0, "without": 0}
    for turn in range(150):
        targets = rng.integers(0, 2, 2000)
        model, baseline = (
            [outputs_with_accuracy(targets, 0.8 + rng.normal(0, 0.03), rng) for _ in range(4)] for _ in range(2)
        )
        claims["without"] += compare(CLASSES, "accuracy", model[:1], baseline[:1], targets, seed=turn).low > 0
        comparison = compare(CLASSES, "accuracy", model, baseline, targets, seed=turn)
        known = comparison.training_std_error > 0 and comparison.training_runs == 4
        claims["with"] += comparison.significant and known
    assert claims["without"] > 150 * 0.15 and claims["with"] <= 150 * 0.08


@pytest.mark.parametrize("metric", ["accuracy", pytest.param("macro_f1", marks=pytest.mark.slow)])
def test_compare_rarely_separates_equal_models_on_groups(metric):
    """Issue: 20 users with 20 rows each counted as 400 independent rows, and every third equal model was "better"."""
    rng = np.random.default_rng(5)
    groups, claims = np.repeat(np.arange(20), 20), {"rows": 0, "groups": 0}
    for turn in range(100):
        targets = np.tile([0, 1], 200)
        model, baseline = (outputs_with_accuracy(targets, rng.choice([0.6, 0.9], 20)[groups], rng) for _ in range(2))
        for name, given in (("rows", None), ("groups", groups)):
            comparison = compare(CLASSES, metric, [model], [baseline], targets, groups=given, seed=turn)
            claims[name] += comparison.low > 0 or comparison.high < 0
    assert claims["rows"] > 100 * 0.15 and claims["groups"] <= 100 * 0.09  # 5 % are to be expected


def test_groups_of_one_row_change_nothing():
    rng = np.random.default_rng(6)
    targets = rng.integers(0, 2, 200)
    model, baseline = (outputs_with_accuracy(targets, 0.8, rng) for _ in range(2))
    for metric in ("accuracy", "mcc"):
        plain, grouped = (
            compare(CLASSES, metric, [model], [baseline], targets, groups=groups)
            for groups in (None, np.arange(200)[::-1] * 7)
        )
        assert (grouped.gain, grouped.low) == pytest.approx((plain.gain, plain.low), abs=2e-3)


def test_compare_detects_gain_of_four_points():
    rng = np.random.default_rng(2)
    detected = 0
    for turn in range(60):
        targets = rng.integers(0, 2, 1000)
        baseline = outputs_with_accuracy(targets, 0.8, rng)
        wrong = np.flatnonzero(baseline.argmax(1) != targets)
        better = baseline.copy()
        better[rng.choice(wrong, 60, replace=False)] = 0
        fixed = (better.sum(1) == 0).nonzero()[0]
        better[fixed] = np.eye(2)[targets[fixed]]
        spoilt = rng.choice(np.flatnonzero(baseline.argmax(1) == targets), 20, replace=False)
        better[spoilt] = np.eye(2)[1 - targets[spoilt]]
        comparison = compare(CLASSES, "accuracy", [better] * 2, [baseline] * 2, targets, seed=turn)
        assert comparison.gain == pytest.approx(0.04)
        detected += comparison.significant
    assert detected >= 55


def test_compare_handles_regression_and_multi_label():
    rng = np.random.default_rng(3)
    truth = rng.normal(size=300)
    near, far = truth + rng.normal(0, 0.1, 300), truth + rng.normal(0, 2, 300)
    for metric in ("pearson", "spearman", "mse"):
        assert compare("regression", metric, [near] * 2, [far] * 2, truth).significant
    marks = (rng.random((300, 3)) < 0.3).astype(np.float32)
    assert compare("multi_label_classification", "micro_f1", [marks] * 2, [1 - marks] * 2, marks).significant


@pytest.mark.parametrize("problem_type", [CLASSES, "multi_label_classification", "regression"])
def test_scorer_of_weights_equals_measure_of_drawn_rows(problem_type):
    rng = np.random.default_rng(8)
    if problem_type == "regression":
        outputs, targets = rng.normal(size=60).round(1), rng.integers(0, 5, 60) / 3  # ties in both
    else:
        outputs = rng.random((60, 4))
        targets = rng.integers(0, 4, 60) if problem_type == CLASSES else (rng.random((60, 4)) < 0.4).astype(np.int64)
    drawn = rng.integers(0, 60, (3, 60))
    weights = np.array([np.bincount(rows, minlength=60) for rows in drawn], np.float64)
    for metric in metric_names(problem_type):
        expected = [measure(problem_type, metric, outputs[rows], targets[rows]) for rows in drawn]
        assert scorer(problem_type, metric, outputs, targets)(weights) == pytest.approx(expected, abs=1e-12)


def test_compare_of_rank_correlations_equals_a_bootstrap_with_scipy():
    rng = np.random.default_rng(9)
    truth = rng.normal(size=80)
    run, baseline = truth + rng.normal(0, 1, 80), truth + rng.normal(0, 1, 80)
    gains = [
        spearmanr(run[rows], truth[rows])[0] - spearmanr(baseline[rows], truth[rows])[0]
        for rows in np.random.default_rng(1).integers(0, 80, (400, 80))
    ]
    comparison = compare("regression", "spearman", [run], [baseline], truth)
    assert (comparison.high - comparison.low) / 3.92 == pytest.approx(np.std(gains), rel=0.1)


def test_compare_signs_lower_error_as_gain():
    truth = np.random.default_rng(4).normal(size=200)
    comparison = compare("regression", "mse", [truth + 0.1] * 2, [truth + 0.5] * 2, truth)
    assert comparison.gain == pytest.approx(0.25 - 0.01) and comparison.low > 0
    assert compare("regression", "mse", [truth + 0.5] * 2, [truth + 0.1] * 2, truth).gain == pytest.approx(-0.24)


def test_compare_of_model_with_itself_has_p_value_one():
    targets = np.arange(40) % 2
    outputs = outputs_with_accuracy(targets, 0.8, np.random.default_rng(6))
    comparison = compare(CLASSES, "accuracy", [outputs] * 2, [outputs] * 2, targets)
    assert comparison.gain == 0 and comparison.p_value == 1 and not comparison.significant


@pytest.mark.parametrize("rows", [2, 4, 10])
def test_compare_claims_nothing_from_a_handful_of_rows(rows):
    """Issue: two of four rows were a reliable gain, and two of two were certain."""
    targets = np.zeros(rows, int)
    right, wrong = np.eye(2)[targets], np.eye(2)[targets].copy()
    wrong[: max(2, rows // 4)] = [0.0, 1.0]
    comparison = compare("single_label_classification", "accuracy", [right] * 2, [wrong] * 2, targets)
    assert comparison.gain > 0 and not comparison.significant and comparison.p_value > 0.05


@pytest.mark.parametrize("rows", [4, 10, 40])
def test_compare_of_few_rows_rarely_separates_equal_models(rows):
    rng = np.random.default_rng(0)
    targets, claims = np.zeros(rows, int), 0
    for _ in range(400):
        models = [[np.eye(2)[(rng.random(rows) > 0.6).astype(int)] for _ in range(2)] for _ in range(2)]
        claims += compare("single_label_classification", "accuracy", *models, targets).significant
    assert claims / 400 < 0.05
