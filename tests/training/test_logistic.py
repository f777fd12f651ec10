"""Logistic regression in the basis of principal components: the solution, its calibration and tiny data."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import log_softmax

from headhunt.training import logistic
from headhunt.training.logistic import fit_logistic
from headhunt.training.ridge import fit_ridge, standardization

CLASSES = 30


def _draw(rows: int, width: int = 40, noise: float = 1.0, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    centers = np.random.default_rng(99).normal(size=(CLASSES, width))
    targets = rng.integers(0, CLASSES, rows)
    return (centers[targets] + noise * rng.normal(size=(rows, width))).astype(np.float32) * 3 + 5, targets


def test_fit_logistic_equals_scikit_learn_on_standardised_features(monkeypatch):
    from sklearn.linear_model import LogisticRegression

    monkeypatch.setattr(logistic, "ITERATIONS", 2000)
    monkeypatch.setattr(logistic, "PENALTY", 0.1)
    monkeypatch.setattr(logistic, "calibration", lambda *args: (1.0, 0.0))
    features, targets = _draw(400)
    center, scale = standardization(features, [40])
    scaled = (features - center) * scale
    expected = LogisticRegression(C=10.0, max_iter=5000, tol=1e-8).fit(scaled, targets)
    logits = fit_logistic(features, [40], targets, CLASSES).logits(features)
    difference = log_softmax(logits, axis=1) - expected.predict_log_proba(scaled)
    assert np.abs(difference).max() < 0.02


def test_fit_logistic_tells_many_classes_apart_better_than_ridge():
    features, targets = _draw(300, noise=1.2)
    unseen, truth = _draw(2000, noise=1.2, seed=1)
    logistic_model = fit_logistic(features, [40], targets, CLASSES)
    ridge = fit_ridge(features, [40], targets, "single_label_classification", CLASSES)
    accuracy = [float((model.logits(unseen).argmax(1) == truth).mean()) for model in (logistic_model, ridge)]
    assert accuracy[0] > accuracy[1] > 0.5


def test_fit_logistic_calibrates_its_logits():
    features, targets = _draw(600, noise=2.0)
    unseen, truth = _draw(2000, noise=2.0, seed=1)
    logits = fit_logistic(features, [40], targets, CLASSES).logits(unseen)
    losses = [-log_softmax(factor * logits, axis=1)[np.arange(len(truth)), truth].mean() for factor in (0.6, 1.0, 1.6)]
    assert losses[1] < losses[0] and losses[1] < losses[2]


def test_fit_logistic_holds_out_groups_together(monkeypatch):
    sizes: list[int] = []
    minimize = logistic._minimize
    monkeypatch.setattr(logistic, "_minimize", lambda c, t, *start: (sizes.append(len(t)), minimize(c, t, *start))[1])
    features, targets = _draw(100)
    fit_logistic(features, [40], targets, CLASSES, groups=np.repeat(np.arange(2), [90, 10]))
    assert sizes in ([90, 100], [10, 100])


def test_fit_logistic_uses_the_largest_components_only(monkeypatch):
    monkeypatch.setattr(logistic, "COMPONENTS", 10)
    features, targets = _draw(200)
    assert np.linalg.matrix_rank(fit_logistic(features, [40], targets, CLASSES).weight) <= 10


@pytest.mark.parametrize("rows", [30, 80])
def test_principal_components_are_the_same_from_rows_and_from_features(rows):
    scaled = np.random.default_rng(0).normal(size=(rows, 50)).astype(np.float32)
    components, basis = logistic._principal_components(scaled)
    assert components.shape == (rows, min(rows, 50)) and basis.shape == (50, min(rows, 50))
    assert np.allclose(scaled @ basis, components, atol=1e-3)
    assert np.allclose(components @ components.T, scaled @ scaled.T, atol=1e-2)


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_fit_logistic_takes_a_few_rows(rows):
    features, targets = _draw(rows)
    logits = fit_logistic(features, [20, 20], targets, CLASSES).logits(features)
    assert logits.shape == (rows, CLASSES) and np.isfinite(logits).all()


def test_fit_logistic_takes_equal_rows_and_absent_classes():
    logits = fit_logistic(np.full((6, 4), 2.0, np.float32), [4], np.array([0, 0, 0, 0, 1, 1]), 25).logits(
        np.full((1, 4), 2.0, np.float32)
    )
    assert np.isfinite(logits).all() and logits.argmax() == 0


def _with_noise(rows: int, noise_width: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return features whose last 40 tell the classes apart, behind blocks of noise."""
    features, targets = _draw(rows, noise=1.5, seed=seed)
    return np.hstack([np.random.default_rng(seed + 7).normal(size=(rows, noise_width)), features]), targets


def test_fit_logistic_prefers_the_last_layer_if_the_others_are_noise():
    features, targets = _with_noise(200, 400, seed=0)
    unseen, truth = _with_noise(1000, 400, seed=1)
    blocks, mean = [40] * 11, slice(400, 440)
    models = [fit_logistic(features, blocks, targets, CLASSES, last_mean=part) for part in (mean, None)]
    alone = fit_logistic(features[:, mean], [40], targets, CLASSES).logits(unseen[:, mean])
    both, every = (float((model.logits(unseen).argmax(1) == truth).mean()) for model in models)
    assert both > every + 0.05
    assert both > (alone.argmax(1) == truth).mean() - 0.02


def test_fit_logistic_leaves_out_a_last_layer_that_is_noise():
    features, targets = _draw(200)
    noisy = np.hstack([features, np.random.default_rng(0).normal(size=(200, 40)).astype(np.float32)])
    model = fit_logistic(noisy, [40, 40], targets, CLASSES, last_mean=slice(40, 80))
    assert np.allclose(model.weight, fit_logistic(noisy, [40, 40], targets, CLASSES).weight, atol=1e-4)


def test_fit_logistic_calibrates_the_mean_of_both_models():
    features, targets = _with_noise(600, 40, seed=0)
    unseen, truth = _with_noise(2000, 40, seed=1)
    logits = fit_logistic(features, [40, 40], targets, CLASSES, last_mean=slice(40, 80)).logits(unseen)
    losses = [-log_softmax(factor * logits, axis=1)[np.arange(len(truth)), truth].mean() for factor in (0.6, 1.0, 1.6)]
    assert losses[1] < losses[0] and losses[1] < losses[2]
