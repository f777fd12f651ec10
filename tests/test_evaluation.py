"""Metrics equal those of scikit-learn and scipy, and their intervals hold the truth as often as they claim."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics

from headhunt.evaluation import METRICS, decide, evaluate


def chance(classes: int, rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities that lean towards uneven random targets."""
    rng = np.random.default_rng(seed)
    targets = rng.choice(classes, rows, p=rng.dirichlet(np.full(classes, 0.7)))
    outputs = rng.dirichlet(np.ones(classes), rows)
    outputs[np.arange(rows), targets] += 0.3 * rng.random(rows)
    return outputs / outputs.sum(1, keepdims=True), targets


def names(count: int) -> list[str]:
    return [f"class {i}" for i in range(count)]


def check(found, expected: dict[str, float], problem_type: str) -> None:
    assert tuple(found.scores) == METRICS[problem_type] and found.scores.keys() == expected.keys()
    for name, score in found.scores.items():
        assert score.value == pytest.approx(expected[name], abs=1e-9), name
        assert score.low <= score.value + 0.05 and score.high >= score.value - 0.05
    json.dumps(found.to_dict(), allow_nan=False)


def check_table(found, targets: np.ndarray, predictions: np.ndarray, count: int) -> None:
    table = metrics.precision_recall_fscore_support(targets, predictions, labels=range(count), zero_division=0)
    for i, row in enumerate(found.classes):
        assert [row.precision, row.recall, row.f1, row.rows] == pytest.approx([column[i] for column in table])


@pytest.mark.parametrize(("classes", "rows", "seed"), [(2, 50, 0), (2, 1000, 1), (5, 40, 2), (30, 200, 3), (3, 1, 4)])
@pytest.mark.filterwarnings("ignore::UserWarning")  # scikit-learn's, about classes that are absent
def test_classes_equal_scikit_learn(classes, rows, seed):
    outputs, targets = chance(classes, rows, seed)
    made = outputs.argmax(1)
    found = evaluate("single_label_classification", outputs, targets, names(classes))
    expected = {
        "accuracy": metrics.accuracy_score(targets, made),
        "macro_f1": metrics.f1_score(targets, made, average="macro", zero_division=0),
        "weighted_f1": metrics.f1_score(targets, made, average="weighted", zero_division=0),
        "mcc": metrics.matthews_corrcoef(targets, made),
    }
    check(found, expected, "single_label_classification")
    check_table(found, targets, made, classes)
    assert found.confusion == metrics.confusion_matrix(targets, made, labels=range(classes)).tolist()
    assert [row.label for row in found.classes] == names(classes) and found.rows == rows


@pytest.mark.parametrize(("labels", "rows", "seed"), [(2, 60, 0), (6, 300, 1), (4, 5, 2)])
def test_several_labels_equal_scikit_learn(labels, rows, seed):
    rng = np.random.default_rng(seed)
    targets = (rng.random((rows, labels)) < np.linspace(0.1, 0.6, labels)).astype(np.float32)
    outputs = np.clip(0.3 * targets + 0.7 * rng.random((rows, labels)), 0, 1)
    made = (outputs >= 0.5).astype(int)
    present = (targets.sum(0) + made.sum(0)) > 0
    found = evaluate("multi_label_classification", outputs, targets, names(labels))
    expected = {
        "accuracy": metrics.accuracy_score(targets.astype(int), made),
        "macro_f1": metrics.f1_score(targets, made, average=None, zero_division=0)[present].mean(),
        "weighted_f1": metrics.f1_score(targets, made, average="weighted", zero_division=0),
        "micro_f1": metrics.f1_score(targets, made, average="micro", zero_division=0),
    }
    check(found, expected, "multi_label_classification")
    check_table(found, targets.astype(int), made, labels)
    assert found.confusion == []


@pytest.mark.parametrize(("rows", "seed", "ties"), [(40, 0, False), (500, 1, True), (3, 2, False)])
def test_numbers_equal_scipy(rows, seed, ties):
    rng = np.random.default_rng(seed)
    targets = rng.normal(size=rows).astype(np.float32)
    outputs = (targets + rng.normal(size=rows)).astype(np.float32)
    if ties:
        targets, outputs = targets.round(), outputs.round()
    expected = {
        "mse": metrics.mean_squared_error(targets, outputs),
        "pearson": stats.pearsonr(targets.astype(float), outputs.astype(float)).statistic,
        "spearman": stats.spearmanr(targets, outputs).statistic,
    }
    found = evaluate("regression", outputs, targets)
    for name, score in found.scores.items():
        assert score.value == pytest.approx(expected[name], abs=1e-6), name
        assert score.low <= score.high
    assert tuple(found.scores) == METRICS["regression"] and not found.classes


def share_of_intervals_that_hold(
    truth: dict[str, float], draw, problem_type: str, trials: int = 200
) -> dict[str, float]:
    held = dict.fromkeys(truth, 0)
    for seed in range(trials):
        scores = evaluate(problem_type, *draw(np.random.default_rng(seed)), names(3), seed=seed).scores
        for name, value in truth.items():
            held[name] += scores[name].low <= value <= scores[name].high
    return {name: hits / trials for name, hits in held.items()}


def test_intervals_of_classes_hold_the_truth_about_as_often_as_they_claim():
    joint = np.array([[0.30, 0.10, 0.05], [0.05, 0.25, 0.05], [0.02, 0.03, 0.15]])

    def draw(rng: np.random.Generator, rows: int = 300):
        cells = rng.choice(9, rows, p=joint.ravel())
        return np.eye(3)[cells % 3], cells // 3

    f1 = 2 * np.diag(joint) / (joint.sum(0) + joint.sum(1))
    true, made = joint.sum(1), joint.sum(0)
    spread = np.sqrt((1 - (made**2).sum()) * (1 - (true**2).sum()))
    mcc = (np.trace(joint) - (true * made).sum()) / spread
    truth = {"accuracy": np.trace(joint), "macro_f1": f1.mean(), "weighted_f1": (f1 * true).sum(), "mcc": mcc}
    for name, share in share_of_intervals_that_hold(truth, draw, "single_label_classification").items():
        assert 0.90 <= share <= 0.99, name


def test_intervals_of_numbers_hold_the_truth_about_as_often_as_they_claim():
    def draw(rng: np.random.Generator, rows: int = 100):
        targets = rng.normal(size=rows)
        return 0.6 * targets + 0.8 * rng.normal(size=rows), targets

    truth = {"pearson": 0.6, "mse": 0.16 + 0.64, "spearman": 6 / np.pi * np.arcsin(0.3)}
    for name, share in share_of_intervals_that_hold(truth, draw, "regression", trials=80).items():
        assert 0.86 <= share <= 1.0, name


def test_intervals_of_several_labels_hold_the_truth_about_as_often_as_they_claim():
    def draw(rng: np.random.Generator, rows: int = 200):
        targets = (rng.random((rows, 3)) < 0.4).astype(np.int64)
        return np.where(rng.random((rows, 3)) < 0.8, targets, 1 - targets).astype(float), targets

    f1 = 2 * 0.32 / (0.4 + 0.32 + 0.12)
    truth = {"accuracy": 0.8**3, "micro_f1": f1, "macro_f1": f1}
    for name, share in share_of_intervals_that_hold(truth, draw, "multi_label_classification").items():
        assert 0.89 <= share <= 0.99, name


def test_more_rows_make_narrower_intervals():
    width = {}
    for rows in (100, 10_000):
        score = evaluate("single_label_classification", *chance(3, rows, 0), names(3)).scores["accuracy"]
        width[rows] = score.high - score.low
    assert width[100] / width[10_000] == pytest.approx(10, rel=0.3)


def test_the_seed_alone_decides_the_interval():
    outputs, targets = chance(3, 80, 0)
    first, again, other = (
        evaluate("single_label_classification", outputs, targets, names(3), seed=seed) for seed in (0, 0, 1)
    )
    assert first == again and first.scores["mcc"] != other.scores["mcc"]
    assert first.scores["mcc"].value == other.scores["mcc"].value


def test_one_class_predicted_for_all():
    outputs, targets = np.tile([0.9, 0.1], (20, 1)), np.arange(20) % 2
    found = evaluate("single_label_classification", outputs, targets, names(2))
    assert found.scores["accuracy"].value == 0.5 and found.scores["mcc"].value == 0
    assert found.scores["macro_f1"].value == pytest.approx(1 / 3)
    assert found.classes[1].precision == 0 == found.classes[1].recall


def test_all_right_and_all_wrong():
    targets = np.arange(30) % 3
    right = evaluate("single_label_classification", np.eye(3)[targets], targets, names(3)).scores
    assert all((score.value, score.low, score.high) == pytest.approx((1, 1, 1)) for score in right.values())
    wrong = evaluate("single_label_classification", np.eye(3)[(targets + 1) % 3], targets, names(3)).scores
    assert wrong["accuracy"].value == wrong["macro_f1"].high == 0 and wrong["mcc"].value < 0


def test_a_class_that_is_absent_counts_for_nothing():
    outputs, targets = np.eye(3)[[0, 1, 1, 0]], np.array([0, 1, 0, 0])
    two = evaluate("single_label_classification", outputs[:, :2], targets, names(2)).scores
    three = evaluate("single_label_classification", outputs, targets, names(3))
    assert {name: score.value for name, score in three.scores.items()} == pytest.approx(
        {name: score.value for name, score in two.items()}
    )
    assert three.classes[2].rows == 0 and np.shape(three.confusion) == (3, 3)


def test_constant_numbers_have_no_correlation_and_raise_nothing():
    targets = np.arange(10, dtype=np.float32)
    for outputs, truth in ((np.full(10, 3.0), targets), (targets, np.full(10, 3.0, np.float32)), (targets[:1], [2.0])):
        scores = evaluate("regression", np.asarray(outputs), np.asarray(truth)).scores
        assert scores["pearson"].value == scores["spearman"].value == 0
        assert all(np.isfinite([score.value, score.low, score.high]).all() for score in scores.values())


def test_no_label_anywhere():
    found = evaluate("multi_label_classification", np.zeros((6, 2)), np.zeros((6, 2), np.float32), names(2)).scores
    assert found["accuracy"].value == 1 and found["micro_f1"].value == 0 == found["weighted_f1"].high


def test_decide():
    assert decide("single_label_classification", np.array([[0.2, 0.8], [0.6, 0.4]])).tolist() == [1, 0]
    assert decide("multi_label_classification", np.array([[0.5, 0.49]])).tolist() == [[1, 0]]
    assert decide("regression", np.array([1.5])).tolist() == [1.5]
