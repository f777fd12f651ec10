"""Ridge regression in closed form: exact held-out predictions, the solution, its calibration and tiny data."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import log_softmax

from headhunt.training import ridge
from headhunt.training.ridge import PENALTIES, fit_ridge

PROBLEM_TYPES = ("single_label_classification", "multi_label_classification", "regression")


def make_data(
    rows: int, features: int, problem_type: str = "single_label_classification", *, noise: float = 1.0, seed: int = 0
) -> tuple[np.ndarray, np.ndarray, int]:
    """Return features of different scales and means, targets that depend on them, and the number of outputs."""
    rng = np.random.default_rng(seed)
    signal = rng.standard_normal((rows, features))
    scores = signal[:, :3] @ np.array([[1.0, -1.0, 0.0], [0.0, 1.0, -1.0], [-1.0, 0.5, 1.0]])
    scores += noise * rng.standard_normal(scores.shape)
    values = signal * rng.uniform(0.5, 4.0, features) + rng.uniform(-5, 5, features)
    targets: np.ndarray
    if problem_type == "single_label_classification":
        targets = scores.argmax(1)
    elif problem_type == "multi_label_classification":
        targets = (scores > 0.3).astype(np.float32)
    else:
        return values.astype(np.float32), 1000.0 + 50 * scores[:, 0], 1
    return values.astype(np.float32), targets, 3


def center(features: np.ndarray) -> np.ndarray:
    return features - features.mean(0)


@pytest.mark.parametrize("features", [4, 90])
@pytest.mark.parametrize("problem_type", PROBLEM_TYPES)
def test_leave_fold_out_equals_models_fitted_without_the_fold(features, problem_type):
    from sklearn.linear_model import Ridge

    values, targets, outputs = make_data(41, features, problem_type)
    scaled = center(values.astype(np.float64)) / 10
    encoded = ridge._encode(targets, problem_type, outputs)
    folds = ridge.grouped_folds(np.arange(41), np.random.default_rng(1))
    assert sorted(np.concatenate(folds).tolist()) == list(range(41)) and len(folds) == 5
    held_out = list(ridge._leave_fold_out(scaled @ scaled.T, encoded, folds))
    assert len(held_out) == len(PENALTIES)
    for penalty, predictions in zip(PENALTIES, held_out, strict=True):
        for rows in folds:
            kept = np.setdiff1d(np.arange(41), rows)
            refitted = Ridge(alpha=penalty, solver="svd").fit(scaled[kept], encoded[kept])
            expected = refitted.predict(scaled[rows]).reshape(len(rows), -1)
            assert np.abs(predictions[rows] - expected).max() < 1e-6 * np.abs(encoded).max()


@pytest.mark.parametrize("features", [3, 30, 200])
@pytest.mark.parametrize("problem_type", PROBLEM_TYPES)
def test_fit_ridge_equals_scikit_learn_on_standardised_features(monkeypatch, features, problem_type):
    from sklearn.linear_model import Ridge

    monkeypatch.setattr(ridge, "calibration", lambda *_: (1.0, 0.0))
    values, targets, outputs = make_data(60, features, problem_type)
    solution = fit_ridge(values, [features], targets, problem_type, outputs)
    standardised = center(values.astype(np.float64)) / values.std(0, dtype=np.float64) / np.sqrt(features)
    encoded = ridge._encode(targets, problem_type, outputs)
    expected = Ridge(alpha=solution.penalty, solver="svd").fit(standardised, encoded).predict(standardised)
    assert solution.weight.shape == (outputs, features) and solution.weight.dtype == np.float32
    assert solution.penalty in PENALTIES
    difference = solution.logits(values) - expected.reshape(60, -1)
    assert np.abs(difference).max() < 2e-4 * max(1.0, encoded.std())


def test_fit_ridge_gives_every_block_the_same_share_of_the_penalty(monkeypatch):
    from sklearn.linear_model import Ridge

    monkeypatch.setattr(ridge, "calibration", lambda *_: (1.0, 0.0))
    values, targets, outputs = make_data(50, 12)
    solution = fit_ridge(values, [1, 3, 8], targets, "single_label_classification", outputs)
    width = np.repeat([1, 3, 8], [1, 3, 8])
    standardised = center(values.astype(np.float64)) / values.std(0, dtype=np.float64) / np.sqrt(3 * width)
    encoded = ridge._encode(targets, "single_label_classification", outputs)
    expected = Ridge(alpha=solution.penalty, solver="svd").fit(standardised, encoded).predict(standardised)
    assert np.abs(solution.logits(values) - expected).max() < 2e-4


@pytest.mark.parametrize("penalty", [1e-3, 1.0, 1e3])
def test_solve_gives_the_same_weights_from_both_systems(penalty):
    rng = np.random.default_rng(0)
    square = rng.standard_normal((30, 30)).astype(np.float32)
    targets = rng.standard_normal((30, 2))
    dual = ridge._solve(square, targets, penalty)
    # A row of zeros changes nothing but selects the system of the features.
    primal = ridge._solve(np.vstack([square, np.zeros((1, 30), np.float32)]), np.vstack([targets, [[0, 0]]]), penalty)
    exact = np.linalg.solve(square.T.astype(float) @ square + penalty * np.eye(30), square.T.astype(float) @ targets)
    largest = np.abs(exact).max()
    assert np.abs(dual - exact).max() < 2e-3 * largest and np.abs(primal - exact).max() < 2e-3 * largest


@pytest.mark.parametrize("problem_type", PROBLEM_TYPES)
@pytest.mark.parametrize("rows", [20, 100])  # both systems of equations
def test_fit_ridge_ignores_constant_features(problem_type, rows):
    values, targets, outputs = make_data(rows, 40, problem_type)
    rounding = np.random.default_rng(3).uniform(-1e-3, 1e-3, (rows, 1))
    extra = np.concatenate([np.zeros((rows, 1)), np.full((rows, 1), -7.5), 1000 + rounding], 1).astype(np.float32)
    solution = fit_ridge(np.hstack([values, extra]), [43], targets, problem_type, outputs)
    assert (solution.weight[:, 40:] == 0).all()
    changed = np.hstack([values, extra + 100]).astype(np.float32)
    assert np.array_equal(solution.logits(changed), solution.logits(np.hstack([values, extra])))


def test_fit_ridge_with_constant_features_alone_predicts_the_mean():
    targets = np.array([1.0, 2.0, 6.0, 7.0])
    solution = fit_ridge(np.full((4, 5), 3.0, np.float32), [5], targets, "regression", 1)
    assert not solution.weight.any() and solution.bias == pytest.approx([4.0])


@pytest.mark.parametrize("rows", range(1, 7))
@pytest.mark.parametrize("problem_type", PROBLEM_TYPES)
def test_fit_ridge_takes_a_few_rows(rows, problem_type):
    values, targets, outputs = make_data(rows, 30, problem_type)
    solution = fit_ridge(values, [10, 20], targets, problem_type, outputs)
    logits = solution.logits(values)
    assert logits.shape == (rows, outputs) and np.isfinite(logits).all()
    if problem_type == "single_label_classification" and rows > 1 and len(set(targets)) == rows:
        assert logits.argmax(1).tolist() == targets.tolist(), "few rows in many features can be separated"
    if rows == 1 and problem_type == "regression":
        assert logits[0, 0] == pytest.approx(targets[0], rel=1e-5)


@pytest.mark.parametrize("outputs", [1, 2, 3])
def test_fit_ridge_predicts_the_only_class(outputs):
    values = make_data(12, 8)[0]
    logits = fit_ridge(values, [8], np.full(12, outputs - 1), "single_label_classification", outputs).logits(values)
    assert np.isfinite(logits).all() and (logits.argmax(1) == outputs - 1).all()


def test_fit_ridge_takes_labels_that_never_or_always_apply():
    values, targets, _ = make_data(40, 8, "multi_label_classification")
    targets[:, 0], targets[:, 1] = 0, 1
    logits = fit_ridge(values, [8], targets, "multi_label_classification", 3).logits(values)
    assert np.isfinite(logits).all() and (logits[:, 0] < 0).all() and (logits[:, 1] > 0).all()
    assert np.ptp(logits[:, 2]) > 1


def test_fit_ridge_takes_equal_regression_targets():
    values = make_data(9, 8)[0]
    logits = fit_ridge(values, [8], np.full(9, -3.5), "regression", 1).logits(values)
    assert logits == pytest.approx(np.full((9, 1), -3.5), abs=1e-5)


def test_fit_ridge_learns_regression_targets_of_any_scale():
    values, targets, _ = make_data(300, 10, "regression", noise=0.1)
    later, expected, _ = make_data(300, 10, "regression", noise=0.1)
    solution = fit_ridge(values[:200], [10], targets[:200], "regression", 1)
    errors = solution.logits(later[200:])[:, 0] - expected[200:]
    assert np.abs(errors).mean() < 0.15 * expected.std()


@pytest.mark.parametrize("problem_type", PROBLEM_TYPES)
def test_fit_ridge_is_deterministic(problem_type):
    values, targets, outputs = make_data(70, 20, problem_type)
    groups = np.arange(70) // 3
    first, second = (
        fit_ridge(values, [5, 15], targets, problem_type, outputs, groups=groups, seed=4) for _ in range(2)
    )
    assert np.array_equal(first.weight, second.weight) and np.array_equal(first.bias, second.bias)
    assert first.penalty == second.penalty


def test_fit_ridge_chooses_a_larger_penalty_for_noise():
    penalties = [fit_ridge(*of(noise)).penalty for noise in (0.01, 30.0)]
    assert penalties[0] < 0.1 * penalties[1]


def of(noise: float) -> tuple[np.ndarray, list[int], np.ndarray, str, int]:
    values, targets, outputs = make_data(120, 40, "regression", noise=noise)
    return values, [40], targets, "regression", outputs


def test_folds_keep_the_rows_of_a_group_together():
    groups = np.random.default_rng(0).integers(0, 12, 80)
    folds = ridge.grouped_folds(np.unique(groups, return_inverse=True)[1], np.random.default_rng(1))
    assert sorted(np.concatenate(folds).tolist()) == list(range(80))
    for number, rows in enumerate(folds):
        others = np.concatenate([other for i, other in enumerate(folds) if i != number])
        assert not set(groups[rows]) & set(groups[others])
    assert ridge.grouped_folds(np.zeros(6, np.int64), np.random.default_rng(1)) == [], "one group cannot be held out"


def test_fit_ridge_holds_out_groups_of_duplicates_together():
    """Copies of a row with a random label predict each other: without groups, no penalty seems best."""
    rng = np.random.default_rng(0)
    values, targets = rng.standard_normal((40, 60)).astype(np.float32), rng.standard_normal(40)
    copies, targets = np.repeat(values, 3, axis=0), np.repeat(targets, 3)
    alone = fit_ridge(copies, [60], targets, "regression", 1).penalty
    grouped = fit_ridge(copies, [60], targets, "regression", 1, groups=np.repeat(np.arange(40), 3)).penalty
    assert alone < 0.1 * grouped


def test_fit_ridge_chooses_the_penalty_on_a_sample_of_many_rows(monkeypatch):
    values, targets, outputs = make_data(400, 10)
    monkeypatch.setattr(ridge, "CHOOSING_ROWS", 100)
    sizes = []
    gram = ridge.gram_matrix
    monkeypatch.setattr(ridge, "gram_matrix", lambda scaled: sizes.append(len(scaled)) or gram(scaled))
    logits = fit_ridge(values, [10], targets, "single_label_classification", outputs).logits(values)
    assert sizes == [100] and (logits.argmax(1) == targets).mean() > 0.6


@pytest.mark.parametrize("noise", [0.1, 1.0, 2.0])
@pytest.mark.parametrize("problem_type", PROBLEM_TYPES[:2])
def test_calibration_improves_the_log_loss_of_rows_not_trained_on(monkeypatch, noise, problem_type):
    values, targets, outputs = make_data(1200, 20, problem_type, noise=noise)

    def held_out_loss() -> float:
        logits = fit_ridge(values[:200], [20], targets[:200], problem_type, outputs).logits(values[200:])
        if problem_type == "multi_label_classification":
            return float((np.logaddexp(0, logits) - targets[200:] * logits).mean())
        return float(-log_softmax(logits, axis=1)[np.arange(1000), targets[200:]].mean())

    calibrated = held_out_loss()
    monkeypatch.setattr(ridge, "calibration", lambda *_: (1.0, 0.0))
    raw = held_out_loss()
    assert calibrated < raw


def test_calibration_keeps_the_predicted_classes(monkeypatch):
    values, targets, outputs = make_data(100, 20)
    calibrated = fit_ridge(values, [20], targets, "single_label_classification", outputs).logits(values)
    monkeypatch.setattr(ridge, "calibration", lambda *_: (1.0, 0.0))
    raw = fit_ridge(values, [20], targets, "single_label_classification", outputs).logits(values)
    assert (calibrated.argmax(1) == raw.argmax(1)).all()
