"""The linear model of solved heads: the solution, its penalty, calibration, word counts and tiny data."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from scipy.special import log_softmax

from headhunt.training import linear
from headhunt.training.activations import StoppedError
from headhunt.training.linear import PENALTIES, fit_linear, grouped_folds, standardization

ONE_CLASS = "single_label_classification"
PROBLEM_TYPES = (ONE_CLASS, "multi_label_classification", "regression")
CLASSES = 30


def make_data(
    rows: int, features: int, problem_type: str = ONE_CLASS, *, noise: float = 1.0, seed: int = 0
) -> tuple[np.ndarray, np.ndarray, int]:
    """Return features of different scales and means, targets that depend on them, and the number of outputs."""
    rng = np.random.default_rng(seed)
    signal = rng.standard_normal((rows, features))
    scores = signal[:, :3] @ np.array([[1.0, -1.0, 0.0], [0.0, 1.0, -1.0], [-1.0, 0.5, 1.0]])
    scores += noise * rng.standard_normal(scores.shape)
    values = signal * rng.uniform(0.5, 4.0, features) + rng.uniform(-5, 5, features)
    targets: np.ndarray
    if problem_type == ONE_CLASS:
        targets = scores.argmax(1)
    elif problem_type == "multi_label_classification":
        targets = (scores > 0.3).astype(np.float32)
    else:
        return values.astype(np.float32), 1000.0 + 50 * scores[:, 0], 1
    return values.astype(np.float32), targets, 3


def make_classes(rows: int, width: int = 40, noise: float = 1.0, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return features of thirty classes."""
    rng = np.random.default_rng(seed)
    centers = np.random.default_rng(99).normal(size=(CLASSES, width))
    targets = rng.integers(0, CLASSES, rows)
    return (centers[targets] + noise * rng.normal(size=(rows, width))).astype(np.float32) * 3 + 5, targets


def make_words(rows: int, targets: np.ndarray, seed: int = 0) -> csr_matrix:
    """Return sparse counts in rows of unit length, some of whose columns are more frequent in one class."""
    rng = np.random.default_rng(seed)
    counts = (rng.random((rows, 60)) < 0.05 + 0.3 * (np.arange(60) % 5 == targets[:, None] % 5)).astype(np.float32)
    counts[:, 0] = 1
    return csr_matrix(counts / np.linalg.norm(counts, axis=1, keepdims=True))


def fully(monkeypatch, **settings: object) -> None:
    """Minimize to the end and leave out the calibration."""
    for name, value in {"ITERATIONS": 500, "TOLERANCE": 1e-9, "calibration": lambda *_: (1.0, 0.0), **settings}.items():
        monkeypatch.setattr(linear, name, value)


@pytest.mark.parametrize("landmarks", [20, 1000])
@pytest.mark.parametrize("problem_type", PROBLEM_TYPES)
def test_solution_is_the_ridge_regression_of_scikit_learn(monkeypatch, problem_type, landmarks):
    from sklearn.linear_model import Ridge

    fully(monkeypatch, LANDMARKS=landmarks)
    values, targets, outputs = make_data(60, 12, problem_type)
    words = make_words(60, np.arange(60))
    solution = fit_linear(values, [1, 3, 8], targets, problem_type, outputs, words=words)
    assert solution.weight.shape == (outputs, 12) and solution.weight.dtype == np.float32
    assert solution.penalty in PENALTIES
    width = np.repeat([1, 3, 8], [1, 3, 8])
    scaled = (values - values.mean(0, dtype=np.float64)) / values.std(0, dtype=np.float64) / np.sqrt(3 * width)
    encoded = {
        ONE_CLASS: lambda: np.eye(3)[targets] * 2 - 1,
        "multi_label_classification": lambda: targets * 2 - 1,
        "regression": lambda: targets - targets.mean(),
    }[problem_type]()
    both = np.hstack([scaled, words.toarray()])
    expected = Ridge(alpha=solution.penalty, solver="svd").fit(both, encoded).predict(both).reshape(60, -1)
    expected += targets.mean() if problem_type == "regression" else 0
    assert np.abs(solution.logits(values, words) - expected).max() < 1e-3 * max(1.0, np.std(encoded))


@pytest.mark.parametrize("landmarks", [100, 1000])
def test_solution_of_many_classes_is_the_logistic_regression_of_scikit_learn(monkeypatch, landmarks):
    from sklearn.linear_model import LogisticRegression

    fully(monkeypatch, LOG_PENALTIES=(0.1,), LANDMARKS=landmarks)
    features, targets = make_classes(400)
    words = make_words(400, targets)
    center, scale = standardization(features, [40])
    both = np.hstack([(features - center) * scale, words.toarray()])
    expected = LogisticRegression(C=10.0, max_iter=5000, tol=1e-8).fit(both, targets)
    logits = fit_linear(features, [40], targets, ONE_CLASS, CLASSES, words=words).logits(features, words)
    assert np.abs(log_softmax(logits, axis=1) - expected.predict_log_proba(both)).max() < 0.02


def test_balanced_solution_weights_rows_by_the_root_of_their_class(monkeypatch):
    from sklearn.linear_model import LogisticRegression

    fully(monkeypatch, LOG_PENALTIES=(0.1,))
    features, targets = make_classes(400)
    kept = (targets < 5) | (np.arange(400) % 4 == 0)
    features, targets = features[kept], targets[kept]
    center, scale = standardization(features, [40])
    scaled, weights = (features - center) * scale, np.bincount(targets)[targets] ** -0.5
    model = LogisticRegression(C=10.0, max_iter=5000, tol=1e-8).fit(scaled, targets, weights / weights.mean())
    expected = model.predict_log_proba(scaled)
    logits = fit_linear(features, [40], targets, ONE_CLASS, CLASSES, balanced=True).logits(features)
    assert np.abs(log_softmax(logits, axis=1) - expected).max() < 0.02
    plain = fit_linear(features, [40], targets, ONE_CLASS, CLASSES).logits(features)
    assert np.abs(log_softmax(plain, axis=1) - expected).max() > 0.1


def test_held_out_logits_are_those_of_models_fitted_without_the_fold(monkeypatch):
    from sklearn.linear_model import Ridge

    fully(monkeypatch)
    values, targets, _ = make_data(50, 6, "regression")
    held_out = fit_linear(values, [6], targets, "regression", 1).held_out
    assert held_out is not None and sorted(held_out.rows.tolist()) == list(range(50))
    solution = fit_linear(values, [6], targets, "regression", 1)
    scaled = (values - values.mean(0)) / values.std(0) / np.sqrt(6)
    for fold in grouped_folds(np.arange(50), np.random.default_rng(0)):
        kept = np.setdiff1d(np.arange(50), fold)
        refitted = Ridge(alpha=solution.penalty, solver="svd").fit(scaled[kept], targets[kept])
        found = held_out.logits[np.isin(held_out.rows, fold), 0]
        assert np.abs(found - refitted.predict(scaled[fold])).max() < 1e-2 * targets.std()


def test_word_counts_tell_classes_apart_with_and_without_features():
    features, targets = make_classes(600, noise=4.0)
    words = make_words(600, targets)
    rows, unseen = np.arange(400), np.arange(400, 600)
    none = np.zeros((600, 0), np.float32)
    correct = {}
    for name, given, counts in (("features", features, None), ("both", features, words), ("words", none, words)):
        blocks = [40] if given.shape[1] else []
        model = fit_linear(
            given[rows], blocks, targets[rows] % 5, ONE_CLASS, 5, words=None if counts is None else counts[rows]
        )
        logits = model.logits(given[unseen], None if counts is None else counts[unseen])
        correct[name] = float((logits.argmax(1) == targets[unseen] % 5).mean())
    assert min(correct["both"], correct["words"]) > correct["features"] + 0.3


def test_log_loss_tells_many_classes_apart_better_than_a_squared_error():
    features, targets = make_classes(300, noise=1.2)
    unseen, truth = make_classes(2000, noise=1.2, seed=1)
    models = [fit_linear(features, [40], targets, ONE_CLASS, CLASSES, solver=name) for name in (None, "ridge")]
    accuracy = [float((model.logits(unseen).argmax(1) == truth).mean()) for model in models]
    assert accuracy[0] > accuracy[1] > 0.5


def with_noise(rows: int, noise_width: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return features whose last 40 tell the classes apart, behind blocks of noise."""
    features, targets = make_classes(rows, noise=1.5, seed=seed)
    return np.hstack([np.random.default_rng(seed + 7).normal(size=(rows, noise_width)), features]), targets


@pytest.mark.parametrize("landmarks", [150, 1000])
@pytest.mark.parametrize("solver", ["ridge", "logistic"])
def test_last_layer_weighs_as_much_as_all_others_if_held_out_rows_say_so(monkeypatch, solver, landmarks):
    monkeypatch.setattr(linear, "LANDMARKS", landmarks)
    features, targets = with_noise(200, 400, seed=0)
    unseen, truth = with_noise(1000, 400, seed=1)

    def fit(last_mean: slice | None) -> linear.LinearModel:
        return fit_linear(features, [40] * 11, targets, ONE_CLASS, CLASSES, solver=solver, last_mean=last_mean)

    equal, emphasized, of_noise = (fit(part) for part in (None, slice(400, 440), slice(40, 80)))
    accuracy = [float((model.logits(unseen).argmax(1) == truth).mean()) for model in (equal, emphasized)]
    assert accuracy[1] > accuracy[0] + 0.05 and emphasized.loss < equal.loss
    np.testing.assert_array_equal(of_noise.weight, equal.weight)


def test_fit_is_stopped_in_every_iteration():
    features, targets = make_classes(100)
    calls = []
    fit_linear(features, [40], targets, ONE_CLASS, CLASSES, stop=lambda: bool(calls.append(1)))
    assert len(calls) > 20
    for last in (0, len(calls) // 2, len(calls) - 1):
        answers = iter([False] * last + [True])
        with pytest.raises(StoppedError):
            fit_linear(features, [40], targets, ONE_CLASS, CLASSES, stop=answers.__next__)


@pytest.mark.parametrize("rows", [30, 80])
def test_principal_components_of_all_rows_keep_their_products(rows):
    scaled = np.random.default_rng(0).normal(size=(rows, 50)).astype(np.float32)
    words = make_words(rows, np.arange(rows))
    components, bases = linear._principal_components([scaled, words], rows)
    assert components.shape == (rows, rows)
    assert np.allclose(scaled @ bases[0] + words @ bases[1], components, atol=1e-3)
    assert np.allclose(components @ components.T, scaled @ scaled.T + (words @ words.T).toarray(), atol=1e-2)
    assert linear._principal_components([scaled], 10)[0].shape == (rows, 10)


@pytest.mark.parametrize("problem_type", PROBLEM_TYPES)
@pytest.mark.parametrize("rows", [20, 100])
def test_constant_features_are_ignored(problem_type, rows):
    values, targets, outputs = make_data(rows, 40, problem_type)
    rounding = np.random.default_rng(3).uniform(-1e-3, 1e-3, (rows, 1))
    extra = np.concatenate([np.zeros((rows, 1)), np.full((rows, 1), -7.5), 1000 + rounding], 1).astype(np.float32)
    solution = fit_linear(np.hstack([values, extra]), [43], targets, problem_type, outputs)
    assert (solution.weight[:, 40:] == 0).all()
    changed = np.hstack([values, extra + 100]).astype(np.float32)
    assert np.array_equal(solution.logits(changed), solution.logits(np.hstack([values, extra])))


def test_constant_features_alone_predict_the_mean():
    targets = np.array([1.0, 2.0, 6.0, 7.0])
    solution = fit_linear(np.full((4, 5), 3.0, np.float32), [5], targets, "regression", 1)
    assert not solution.weight.any() and solution.bias == pytest.approx([4.0], rel=1e-3)


@pytest.mark.parametrize("rows", range(1, 7))
@pytest.mark.parametrize("problem_type", PROBLEM_TYPES)
def test_a_few_rows_are_enough(rows, problem_type):
    values, targets, outputs = make_data(rows, 30, problem_type)
    logits = fit_linear(values, [10, 20], targets, problem_type, outputs).logits(values)
    assert logits.shape == (rows, outputs) and np.isfinite(logits).all()
    if problem_type == ONE_CLASS and rows > 1 and len(set(targets)) == rows:
        assert logits.argmax(1).tolist() == targets.tolist(), "few rows in many features can be separated"
    if rows == 1 and problem_type == "regression":
        assert logits[0, 0] == pytest.approx(targets[0], rel=1e-5)


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_a_few_rows_of_many_classes_are_enough(rows):
    features, targets = make_classes(rows)
    logits = fit_linear(features, [20, 20], targets, ONE_CLASS, CLASSES).logits(features)
    assert logits.shape == (rows, CLASSES) and np.isfinite(logits).all()


def test_equal_rows_and_absent_classes_predict_the_most_frequent_class():
    features, targets = np.full((6, 4), 2.0, np.float32), np.array([0, 0, 0, 0, 1, 1])
    logits = fit_linear(features, [4], targets, ONE_CLASS, 25, balanced=False).logits(features[:1])
    assert np.isfinite(logits).all() and logits.argmax() == 0


@pytest.mark.parametrize("outputs", [1, 2, 3])
def test_the_only_class_is_predicted(outputs):
    values = make_data(12, 8)[0]
    logits = fit_linear(values, [8], np.full(12, outputs - 1), ONE_CLASS, outputs).logits(values)
    assert np.isfinite(logits).all() and (logits.argmax(1) == outputs - 1).all()


def test_labels_may_never_or_always_apply():
    values, targets, _ = make_data(40, 8, "multi_label_classification")
    targets[:, 0], targets[:, 1] = 0, 1
    logits = fit_linear(values, [8], targets, "multi_label_classification", 3).logits(values)
    assert np.isfinite(logits).all() and (logits[:, 0] < 0).all() and (logits[:, 1] > 0).all()
    assert np.ptp(logits[:, 2]) > 1


def test_equal_numbers_are_predicted():
    values = make_data(9, 8)[0]
    logits = fit_linear(values, [8], np.full(9, -3.5), "regression", 1).logits(values)
    assert logits == pytest.approx(np.full((9, 1), -3.5), abs=1e-5)


def test_numbers_of_any_scale_are_learned():
    values, targets, _ = make_data(300, 10, "regression", noise=0.1)
    solution = fit_linear(values[:200], [10], targets[:200], "regression", 1)
    errors = solution.logits(values[200:])[:, 0] - targets[200:]
    assert np.abs(errors).mean() < 0.15 * targets.std()


@pytest.mark.parametrize("problem_type", PROBLEM_TYPES)
def test_fit_is_deterministic(problem_type):
    values, targets, outputs = make_data(70, 20, problem_type)
    groups = np.arange(70) // 3
    first, second = (
        fit_linear(values, [5, 15], targets, problem_type, outputs, groups=groups, seed=4) for _ in range(2)
    )
    assert np.array_equal(first.weight, second.weight) and np.array_equal(first.bias, second.bias)
    assert first.penalty == second.penalty


def test_noise_leads_to_a_larger_penalty():
    penalties = []
    for noise in (0.01, 30.0):
        values, targets, outputs = make_data(120, 40, "regression", noise=noise)
        penalties.append(fit_linear(values, [40], targets, "regression", outputs).penalty)
    assert penalties[0] < 0.1 * penalties[1]


def test_folds_keep_the_rows_of_a_group_together():
    groups = np.random.default_rng(0).integers(0, 12, 80)
    folds = grouped_folds(groups, np.random.default_rng(1))
    assert sorted(np.concatenate(folds).tolist()) == list(range(80))
    for number, rows in enumerate(folds):
        others = np.concatenate([other for i, other in enumerate(folds) if i != number])
        assert not set(groups[rows]) & set(groups[others])
    assert grouped_folds(np.zeros(6, np.int64), np.random.default_rng(1)) == [], "one group cannot be held out"


def test_groups_of_duplicates_are_held_out_together():
    """Copies of a row with a random label predict each other: without groups, no penalty seems best."""
    rng = np.random.default_rng(0)
    values, targets = rng.standard_normal((40, 60)).astype(np.float32), rng.standard_normal(40)
    copies, targets = np.repeat(values, 3, axis=0), np.repeat(targets, 3)
    alone = fit_linear(copies, [60], targets, "regression", 1).penalty
    grouped = fit_linear(copies, [60], targets, "regression", 1, groups=np.repeat(np.arange(40), 3)).penalty
    assert alone < 0.1 * grouped


def test_one_fold_is_held_out_of_many_rows_and_all_of_them_for_thresholds(monkeypatch):
    monkeypatch.setattr(linear, "HELD_OUT_ROWS", 100)
    monkeypatch.setattr(linear, "THRESHOLD_ROWS", 300)
    for problem_type, expected in zip(PROBLEM_TYPES, (120, 360, 120), strict=True):
        values, targets, outputs = make_data(600, 10, problem_type)
        held_out = fit_linear(values, [10], targets, problem_type, outputs).held_out
        assert held_out is not None and len(held_out.rows) == len(held_out.logits) == expected


@pytest.mark.parametrize("noise", [0.1, 1.0, 2.0])
@pytest.mark.parametrize("problem_type", PROBLEM_TYPES[:2])
def test_calibration_improves_the_log_loss_of_rows_not_trained_on(monkeypatch, noise, problem_type):
    values, targets, outputs = make_data(1200, 20, problem_type, noise=noise)
    monkeypatch.setattr(linear, "PENALTIES", (1.0,))

    def loss_of_others() -> float:
        logits = fit_linear(values[:200], [20], targets[:200], problem_type, outputs).logits(values[200:])
        if problem_type == "multi_label_classification":
            return float((np.logaddexp(0, logits) - targets[200:] * logits).mean())
        return float(-log_softmax(logits, axis=1)[np.arange(1000), targets[200:]].mean())

    calibrated = loss_of_others()
    monkeypatch.setattr(linear, "calibration", lambda *_: (1.0, 0.0))
    assert calibrated < loss_of_others()


def test_logits_of_many_classes_are_calibrated():
    features, targets = make_classes(600, noise=2.0)
    unseen, truth = make_classes(2000, noise=2.0, seed=1)
    logits = fit_linear(features, [40], targets, ONE_CLASS, CLASSES).logits(unseen)
    losses = [-log_softmax(factor * logits, axis=1)[np.arange(len(truth)), truth].mean() for factor in (0.6, 1.0, 1.6)]
    assert losses[1] < losses[0] and losses[1] < losses[2]
