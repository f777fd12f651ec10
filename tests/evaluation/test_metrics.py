"""Metrics equal those of scikit-learn and scipy, and their intervals cover the truth at their level."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics

from headhunt.errors import HeadhuntError
from headhunt.evaluation import (
    DEFAULT_METRIC,
    METRICS,
    check_metric,
    class_scores,
    decide,
    evaluate,
    format_difference,
    format_score,
    measure,
    metric_names,
)


def random_outputs(classes: int, rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities that lean towards uneven random targets."""
    rng = np.random.default_rng(seed)
    targets = rng.choice(classes, rows, p=rng.dirichlet(np.full(classes, 0.7)))
    outputs = rng.dirichlet(np.ones(classes), rows)
    outputs[np.arange(rows), targets] += 0.3 * rng.random(rows)
    return outputs / outputs.sum(1, keepdims=True), targets


def names(count: int) -> list[str]:
    return [f"class {i}" for i in range(count)]


def check(evaluation, expected: dict[str, float], problem_type: str) -> None:
    assert tuple(evaluation.scores) == metric_names(problem_type) and evaluation.scores.keys() == expected.keys()
    for name, score in evaluation.scores.items():
        assert score.value == pytest.approx(expected[name], abs=1e-9), name
        assert score.low <= score.value + 0.05 and score.high >= score.value - 0.05
    json.dumps(evaluation.to_dict(), allow_nan=False)


def check_table(evaluation, targets: np.ndarray, predictions: np.ndarray, count: int) -> None:
    table = metrics.precision_recall_fscore_support(targets, predictions, labels=range(count), zero_division=0)
    for i, row in enumerate(evaluation.classes):
        assert [row.precision, row.recall, row.f1, row.rows] == pytest.approx([column[i] for column in table])


@pytest.mark.parametrize(("classes", "rows", "seed"), [(2, 50, 0), (2, 1000, 1), (5, 40, 2), (30, 200, 3), (3, 1, 4)])
@pytest.mark.filterwarnings("ignore::UserWarning")  # scikit-learn's, about classes that are absent
def test_evaluate_classes_equals_scikit_learn(classes, rows, seed):
    outputs, targets = random_outputs(classes, rows, seed)
    predicted = outputs.argmax(1)
    evaluation = evaluate("single_label_classification", outputs, targets, names(classes))
    expected = {
        "accuracy": metrics.accuracy_score(targets, predicted),
        "macro_f1": metrics.f1_score(targets, predicted, average="macro", zero_division=0),
        "weighted_f1": metrics.f1_score(targets, predicted, average="weighted", zero_division=0),
        "mcc": metrics.matthews_corrcoef(targets, predicted),
    }
    check(evaluation, expected, "single_label_classification")
    check_table(evaluation, targets, predicted, classes)
    assert evaluation.confusion == metrics.confusion_matrix(targets, predicted, labels=range(classes)).tolist()
    assert [row.label for row in evaluation.classes] == names(classes) and evaluation.rows == rows


@pytest.mark.parametrize(("labels", "rows", "seed"), [(2, 60, 0), (6, 300, 1), (4, 5, 2)])
def test_evaluate_multi_label_equals_scikit_learn(labels, rows, seed):
    rng = np.random.default_rng(seed)
    targets = (rng.random((rows, labels)) < np.linspace(0.1, 0.6, labels)).astype(np.float32)
    outputs = np.clip(0.3 * targets + 0.7 * rng.random((rows, labels)), 0, 1)
    predicted = (outputs >= 0.5).astype(int)
    present = (targets.sum(0) + predicted.sum(0)) > 0
    evaluation = evaluate("multi_label_classification", outputs, targets, names(labels))
    expected = {
        "accuracy": metrics.accuracy_score(targets.astype(int), predicted),
        "macro_f1": metrics.f1_score(targets, predicted, average=None, zero_division=0)[present].mean(),
        "weighted_f1": metrics.f1_score(targets, predicted, average="weighted", zero_division=0),
        "micro_f1": metrics.f1_score(targets, predicted, average="micro", zero_division=0),
    }
    check(evaluation, expected, "multi_label_classification")
    check_table(evaluation, targets.astype(int), predicted, labels)
    assert evaluation.confusion == []


@pytest.mark.parametrize(("rows", "seed", "ties"), [(40, 0, False), (500, 1, True), (3, 2, False)])
def test_evaluate_regression_equals_scipy(rows, seed, ties):
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
    evaluation = evaluate("regression", outputs, targets)
    for name, score in evaluation.scores.items():
        assert score.value == pytest.approx(expected[name], abs=1e-6), name
        assert score.low <= score.high
    assert tuple(evaluation.scores) == metric_names("regression") and not evaluation.classes


def coverage(truth: dict[str, float], draw, problem_type: str, trials: int = 200) -> dict[str, float]:
    covered = dict.fromkeys(truth, 0)
    for seed in range(trials):
        scores = evaluate(problem_type, *draw(np.random.default_rng(seed)), names(3), seed=seed).scores
        for name, value in truth.items():
            covered[name] += scores[name].low <= value <= scores[name].high
    return {name: hits / trials for name, hits in covered.items()}


def test_evaluate_intervals_of_classes_cover_truth_at_their_level():
    joint = np.array([[0.30, 0.10, 0.05], [0.05, 0.25, 0.05], [0.02, 0.03, 0.15]])

    def draw(rng: np.random.Generator, rows: int = 300):
        cells = rng.choice(9, rows, p=joint.ravel())
        return np.eye(3)[cells % 3], cells // 3

    f1 = 2 * np.diag(joint) / (joint.sum(0) + joint.sum(1))
    true, predicted = joint.sum(1), joint.sum(0)
    spread = np.sqrt((1 - (predicted**2).sum()) * (1 - (true**2).sum()))
    mcc = (np.trace(joint) - (true * predicted).sum()) / spread
    truth = {"accuracy": np.trace(joint), "macro_f1": f1.mean(), "weighted_f1": (f1 * true).sum(), "mcc": mcc}
    for name, share in coverage(truth, draw, "single_label_classification").items():
        assert 0.90 <= share <= 0.99, name


def test_evaluate_intervals_of_regression_cover_truth_at_their_level():
    def draw(rng: np.random.Generator, rows: int = 100):
        targets = rng.normal(size=rows)
        return 0.6 * targets + 0.8 * rng.normal(size=rows), targets

    truth = {"pearson": 0.6, "mse": 0.16 + 0.64, "spearman": 6 / np.pi * np.arcsin(0.3)}
    for name, share in coverage(truth, draw, "regression", trials=80).items():
        assert 0.86 <= share <= 1.0, name


def test_evaluate_intervals_of_multi_label_cover_truth_at_their_level():
    def draw(rng: np.random.Generator, rows: int = 200):
        targets = (rng.random((rows, 3)) < 0.4).astype(np.int64)
        return np.where(rng.random((rows, 3)) < 0.8, targets, 1 - targets).astype(float), targets

    f1 = 2 * 0.32 / (0.4 + 0.32 + 0.12)
    truth = {"accuracy": 0.8**3, "micro_f1": f1, "macro_f1": f1}
    for name, share in coverage(truth, draw, "multi_label_classification").items():
        assert 0.89 <= share <= 0.99, name


def test_evaluate_intervals_narrow_with_more_rows():
    width = {}
    for rows in (100, 10_000):
        score = evaluate("single_label_classification", *random_outputs(3, rows, 0), names(3)).scores["accuracy"]
        width[rows] = score.high - score.low
    assert width[100] / width[10_000] == pytest.approx(10, rel=0.3)


def test_evaluate_interval_depends_only_on_seed():
    outputs, targets = random_outputs(3, 80, 0)
    first, again, other = (
        evaluate("single_label_classification", outputs, targets, names(3), seed=seed) for seed in (0, 0, 1)
    )
    assert first == again and first.scores["mcc"] != other.scores["mcc"]
    assert first.scores["mcc"].value == other.scores["mcc"].value


def test_evaluate_single_predicted_class():
    outputs, targets = np.tile([0.9, 0.1], (20, 1)), np.arange(20) % 2
    evaluation = evaluate("single_label_classification", outputs, targets, names(2))
    assert evaluation.scores["accuracy"].value == 0.5 and evaluation.scores["mcc"].value == 0
    assert evaluation.scores["macro_f1"].value == pytest.approx(1 / 3)
    assert evaluation.classes[1].precision == 0 == evaluation.classes[1].recall


def test_evaluate_all_correct_and_all_wrong():
    targets = np.arange(30) % 3
    right = evaluate("single_label_classification", np.eye(3)[targets], targets, names(3)).scores
    assert all((score.value, score.low, score.high) == pytest.approx((1, 1, 1)) for score in right.values())
    wrong = evaluate("single_label_classification", np.eye(3)[(targets + 1) % 3], targets, names(3)).scores
    assert wrong["accuracy"].value == wrong["macro_f1"].high == 0 and wrong["mcc"].value < 0


def test_evaluate_ignores_absent_class():
    outputs, targets = np.eye(3)[[0, 1, 1, 0]], np.array([0, 1, 0, 0])
    two = evaluate("single_label_classification", outputs[:, :2], targets, names(2)).scores
    three = evaluate("single_label_classification", outputs, targets, names(3))
    assert {name: score.value for name, score in three.scores.items()} == pytest.approx(
        {name: score.value for name, score in two.items()}
    )
    assert three.classes[2].rows == 0 and np.shape(three.confusion) == (3, 3)


def test_evaluate_constant_numbers_have_zero_correlation():
    targets = np.arange(10, dtype=np.float32)
    for outputs, truth in ((np.full(10, 3.0), targets), (targets, np.full(10, 3.0, np.float32)), (targets[:1], [2.0])):
        scores = evaluate("regression", np.asarray(outputs), np.asarray(truth)).scores
        assert scores["pearson"].value == scores["spearman"].value == 0
        assert all(np.isfinite([score.value, score.low, score.high]).all() for score in scores.values())


def test_evaluate_multi_label_without_any_label():
    scores = evaluate("multi_label_classification", np.zeros((6, 2)), np.zeros((6, 2), np.float32), names(2)).scores
    assert scores["accuracy"].value == 1 and scores["micro_f1"].value == 0 == scores["weighted_f1"].high


def test_decide_returns_ids_multi_hot_rows_or_numbers():
    assert decide("single_label_classification", np.array([[0.2, 0.8], [0.6, 0.4]])).tolist() == [1, 0]
    assert decide("multi_label_classification", np.array([[0.5, 0.49]])).tolist() == [[1, 0]]
    assert decide("regression", np.array([1.5])).tolist() == [1.5]


def test_metric_table_has_one_default_per_problem_type():
    for problem_type, name in DEFAULT_METRIC.items():
        assert problem_type in METRICS[name].problem_types
    assert set(DEFAULT_METRIC) == {kind for metric in METRICS.values() for kind in metric.problem_types}
    assert metric_names("single_label_classification") == ("accuracy", "macro_f1", "weighted_f1", "mcc")
    assert metric_names("multi_label_classification") == ("accuracy", "macro_f1", "weighted_f1", "micro_f1")
    assert metric_names("regression") == ("mse", "pearson", "spearman")
    assert METRICS["mse"].score_name == "−mse" and METRICS["mcc"].score_name == "mcc"


def test_measure_negates_error_and_equals_evaluate():
    targets = np.arange(10, dtype=np.float32)
    assert measure("regression", "mse", targets + 2, targets) == -4
    outputs, classes = random_outputs(3, 60, 0)
    scores = evaluate("single_label_classification", outputs, classes, names(3)).scores
    for name, score in scores.items():
        assert measure("single_label_classification", name, outputs, classes) == pytest.approx(score.value)


def test_check_metric_names_the_metrics_of_the_problem_type():
    check_metric("regression", "pearson")
    with pytest.raises(HeadhuntError, match="one of mse, pearson, spearman for this task; found 'accuracy'"):
        check_metric("regression", "accuracy")


def test_class_scores_equal_those_of_evaluate():
    outputs, targets = random_outputs(4, 80, 1)
    evaluation = evaluate("single_label_classification", outputs, targets, names(4))
    assert class_scores(evaluation.confusion, names(4)) == evaluation.classes


def test_format_score_shows_proportions_as_percentages():
    assert format_score("accuracy", 0.9021) == "90.2 %" and format_score("macro_f1", 0.88) == "88.0 % macro_f1"
    assert format_score("mcc", 0.8123) == "mcc 0.812" and format_score("mse", 1.5) == "mse 1.500"


def test_format_difference_shows_points_with_sign():
    assert format_difference("accuracy", 0.036) == "+3.6 points"
    assert format_difference("accuracy", -0.036, unit=False) == "-3.6"
    assert format_difference("spearman", -0.0123) == "-0.012"


@pytest.mark.parametrize("problem_type", ["single_label_classification", "multi_label_classification", "regression"])
def test_interval_of_copied_rows_is_that_of_the_rows(problem_type):
    """Nine copies of each row tell nothing new: with groups the interval is as wide as before they were copied."""
    rng = np.random.default_rng(0)
    outputs, targets = rng.random((60, 3)), rng.integers(0, 3, 60)
    if problem_type == "multi_label_classification":
        targets = rng.integers(0, 2, (60, 3)).astype(np.float32)
    elif problem_type == "regression":
        outputs, targets = outputs[:, 0], outputs[:, 0] + rng.normal(size=60)
    groups = np.repeat(np.arange(60), 9)
    before = evaluate(problem_type, outputs, targets, names(3))
    copied = evaluate(problem_type, np.repeat(outputs, 9, 0), np.repeat(targets, 9, 0), names(3), groups=groups)
    for name, score in before.scores.items():
        found = copied.scores[name]
        assert found.value == pytest.approx(score.value)
        assert found.high - found.low == pytest.approx(score.high - score.low, rel=0.2)
