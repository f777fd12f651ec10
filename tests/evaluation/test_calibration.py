"""Temperature scaling undoes overconfidence, and reliability bins measure it."""

from __future__ import annotations

import numpy as np
import pytest

from headhunt.evaluation import ReliabilityBin, expected_calibration_error, fit_temperature, reliability_bins


@pytest.fixture(scope="module")
def calibrated() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Logits, their probabilities, and targets drawn from these."""
    rng = np.random.default_rng(5)
    logits = rng.normal(0, 1.5, (4000, 3))
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    return logits, probabilities, np.array([rng.choice(3, p=row) for row in probabilities])


def test_fit_temperature_undoes_overconfidence(calibrated):
    logits, _, targets = calibrated
    sharp = np.exp(logits * 2.5)
    assert fit_temperature(sharp / sharp.sum(1, keepdims=True), targets) == pytest.approx(2.5, rel=0.1)


def test_reliability_bins_cover_every_row_and_match_calibrated_model(calibrated):
    _, probabilities, targets = calibrated
    bins = reliability_bins(probabilities, targets)
    assert sum(group.rows for group in bins) == 4000
    assert max(abs(group.confidence - group.accuracy) for group in bins) < 0.1
    assert expected_calibration_error(bins) < 0.03


def test_reliability_bins_of_few_rows_hold_one_row_each():
    bins = reliability_bins(np.array([[0.9, 0.1], [0.4, 0.6]]), np.array([1, 1]))
    assert bins == [ReliabilityBin(0.6, 1.0, 1), ReliabilityBin(0.9, 0.0, 1)]
    assert reliability_bins(np.zeros((1, 2)), np.array([0]), bins=10)[0].rows == 1


def test_expected_calibration_error_weights_bins_by_rows():
    bins = [ReliabilityBin(0.5, 0.5, 10), ReliabilityBin(0.9, 0.7, 30)]
    assert expected_calibration_error(bins) == pytest.approx(0.15)
    assert expected_calibration_error([]) == 0
