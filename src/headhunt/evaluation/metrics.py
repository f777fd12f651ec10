"""Metrics of predictions, with bootstrap intervals, scores per class and the confusion matrix.

scikit-learn's metrics are not used here: they take one sample at a time. Metrics of classes are functions of the
confusion matrix, so a thousand bootstrap samples of a million rows are drawn as matrices in milliseconds.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from headhunt.errors import HeadhuntError, did_you_mean
from headhunt.evaluation.bootstrap import BOOTSTRAP_SAMPLES, bootstrap_weights, ratio, regression_metrics

_CLASSES, _LABELS, _REGRESSION = "single_label_classification", "multi_label_classification", "regression"
MULTI_TASK = "multi_task"


@dataclass(frozen=True)
class Metric:
    """Facts about a metric: the only place where they are written down."""

    name: str
    """Name in options and files."""
    title: str
    """Name in text."""
    hub_name: str
    """Name in the metadata of the Hugging Face Hub."""
    problem_types: tuple[str, ...]
    proportion: bool = False
    """True if values are between 0 and 1 and shown as percentages."""
    higher_is_better: bool = True
    default_for: str | None = None
    """Problem type that uses this metric unless another is given."""

    @property
    def score_name(self) -> str:
        """Name of the score that a search maximizes: an error is negated."""
        return self.name if self.higher_is_better else f"−{self.name}"


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("accuracy", "accuracy", "accuracy", (_CLASSES, _LABELS), proportion=True, default_for=_CLASSES),
        Metric("macro_f1", "macro F1", "f1", (_CLASSES, _LABELS), proportion=True),
        Metric("weighted_f1", "weighted F1", "f1", (_CLASSES, _LABELS), proportion=True),
        Metric("micro_f1", "micro F1", "f1", (_LABELS,), proportion=True, default_for=_LABELS),
        Metric("mcc", "Matthews correlation", "matthews_correlation", (_CLASSES,)),
        Metric("mse", "mean squared error", "mse", (_REGRESSION,), higher_is_better=False),
        Metric("pearson", "Pearson's r", "pearsonr", (_REGRESSION,)),
        Metric("spearman", "Spearman's ρ", "spearmanr", (_REGRESSION,), default_for=_REGRESSION),
    )
}
"""Every metric, by name."""
DEFAULT_METRIC: dict[str, str] = {metric.default_for: name for name, metric in METRICS.items() if metric.default_for}
"""Name of the default metric, by problem type."""
MEAN = Metric("mean", "mean over tasks", "mean", ("multi_task",))
"""The score of several tasks. It has no entry in `METRICS`: its name in options and files lists those of the tasks."""


@dataclass(frozen=True)
class TaskPart:
    """The rows of one of several tasks."""

    problem_type: str
    metric: str
    outputs: np.ndarray
    targets: np.ndarray


def find_metric(name: str) -> Metric:
    """Return the metric of a name; several names, separated by commas, are the mean over tasks.

    Raises:
        ValueError: If there is no such metric.
    """
    for each in name.split(","):
        if each not in METRICS:
            raise ValueError(f"metric must be one of {', '.join(METRICS)}; found {each!r}.")
    return MEAN if "," in name else METRICS[name]


def parts_of(metric: str, outputs: np.ndarray, targets: np.ndarray) -> list[TaskPart]:
    """Return the rows of each of several tasks.

    Args:
        metric: Names of the metrics of the tasks, separated by commas. A metric of numbers means a task of numbers.
        outputs: Outputs of all rows (rows, outputs); a task uses the first ones, and the others are 0.
        targets: Of all rows, with the fields `task` and `value`.
    """
    parts = []
    for number, name in enumerate(metric.split(",")):
        rows = np.flatnonzero(targets["task"] == number)
        if _REGRESSION in METRICS[name].problem_types:
            parts.append(TaskPart(_REGRESSION, name, outputs[rows, 0], targets["value"][rows]))
        else:
            parts.append(TaskPart(_CLASSES, name, outputs[rows], targets["value"][rows].astype(np.int64)))
    return parts


def metric_names(problem_type: str) -> tuple[str, ...]:
    """Return the names of the metrics of a problem type."""
    return tuple(name for name, metric in METRICS.items() if problem_type in metric.problem_types)


def check_metric(problem_type: str, metric: str) -> None:
    """Raise an error if a problem type does not have this metric.

    Raises:
        HeadhuntError: If it does not.
    """
    if problem_type == MULTI_TASK:
        return  # its parts are checked one by one
    names = metric_names(problem_type)
    if metric not in names:
        hint = did_you_mean(metric, names)
        raise HeadhuntError(f"The metric must be one of {', '.join(names)} for this task; found {metric!r}.{hint}")


def format_score(metric: str, value: float) -> str:
    """Return a score in text: "90.2 %", "88.1 % macro_f1", "mcc 0.812"."""
    found = find_metric(metric)
    if found.proportion:
        return f"{value * 100:.1f} %" + ("" if metric == "accuracy" else f" {metric}")
    return f"{found.name} {value:.3f}"


def format_validation_score(metric: str, score: float) -> str:
    """Return a score that a search maximizes in text; an error, which is negated there, is shown as it is."""
    return format_score(metric, score if find_metric(metric).higher_is_better else -score)


def format_difference(metric: str, value: float, *, unit: bool = True) -> str:
    """Return a difference of two scores in text: "+3.6 points", "-0.012".

    Args:
        metric: Name of the metric.
        value: The difference.
        unit: Write "points" after a difference of proportions.
    """
    if find_metric(metric).proportion:
        return f"{value * 100:+.1f}" + (" points" if unit else "")
    return f"{value:+.3f}"


@dataclass(frozen=True)
class Score:
    """A value of a metric and its 95 % bootstrap interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.4f} [{self.low:.4f}, {self.high:.4f}]"


@dataclass(frozen=True)
class ClassScores:
    """Precision, recall and F1 of one class."""

    label: str
    rows: int
    precision: float
    recall: float
    f1: float


@dataclass(frozen=True)
class Evaluation:
    """Scores of predictions on some rows."""

    problem_type: str
    rows: int
    scores: dict[str, Score]
    """By the name of the metric."""
    classes: list[ClassScores] = field(default_factory=list)
    confusion: list[list[int]] = field(default_factory=list)
    """Counts of (true class, predicted class); empty unless each row has one class."""

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-serializable data."""
        return asdict(self)


def decide(problem_type: str, outputs: np.ndarray) -> np.ndarray:
    """Return predictions: class ids (rows,), multi-hot rows (rows, labels), or the numbers themselves (rows,).

    Args:
        problem_type: "single_label_classification", "multi_label_classification" or "regression".
        outputs: Probabilities (rows, labels), or numbers (rows,).
    """
    if problem_type == _CLASSES:
        return outputs.argmax(-1)
    if problem_type == _LABELS:
        return (outputs >= 0.5).astype(np.int64)
    return outputs


def measure(problem_type: str, metric: str, outputs: np.ndarray, targets: np.ndarray) -> float:
    """Return one metric without an interval, signed so that higher is better: an error (mse) is negated.

    Args:
        problem_type: "single_label_classification", "multi_label_classification" or "regression"; "multi_task" is the
            mean of the metrics of several tasks.
        metric: Name of the metric.
        outputs: Probabilities (rows, labels), or numbers (rows,).
        targets: True class ids, multi-hot rows or numbers.

    Raises:
        HeadhuntError: If this problem type does not have the metric.
    """
    if problem_type == MULTI_TASK:
        parts = parts_of(metric, outputs, targets)
        return float(np.mean([measure(part.problem_type, part.metric, part.outputs, part.targets) for part in parts]))
    return float(scorer(problem_type, metric, outputs, targets)(np.ones((1, len(targets))))[0])


def scorer(
    problem_type: str, metric: str, outputs: np.ndarray, targets: np.ndarray
) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function from weights of rows (samples, rows) to scores (samples,), signed as those of `measure`.

    A bootstrap sample is a weight of each row: how often it was drawn. Rows are sorted and counted only once.

    Args:
        problem_type: "single_label_classification", "multi_label_classification" or "regression".
        metric: Name of the metric.
        outputs: Probabilities (rows, labels), or numbers (rows,).
        targets: True class ids, multi-hot rows or numbers.

    Raises:
        HeadhuntError: If this problem type does not have the metric.
    """
    check_metric(problem_type, metric)
    metrics = _weighted_metrics(problem_type, outputs, targets)
    sign = 1.0 if METRICS[metric].higher_is_better else -1.0
    return lambda weights: sign * metrics(weights)[metric]


def _weighted_metrics(
    problem_type: str, outputs: np.ndarray, targets: np.ndarray
) -> Callable[[np.ndarray], dict[str, np.ndarray]]:
    """Return a function from weights of rows (samples, rows) to the metrics of a problem type (samples,)."""
    predictions = decide(problem_type, outputs)
    if problem_type == _REGRESSION:
        return regression_metrics(predictions, targets)
    if problem_type == _LABELS:
        return _multi_label_metrics(predictions, targets)
    return _class_metrics(predictions, targets, outputs.shape[1])


def evaluate(
    problem_type: str,
    outputs: np.ndarray,
    targets: np.ndarray,
    labels: Sequence[str] = (),
    *,
    groups: np.ndarray | None = None,
    seed: int = 0,
) -> Evaluation:
    """Return the scores of outputs against targets.

    Args:
        problem_type: "single_label_classification", "multi_label_classification" or "regression".
        outputs: Probabilities (rows, labels), or numbers (rows,).
        targets: True class ids, multi-hot rows or numbers, as `Split.targets`.
        labels: Class names.
        groups: Group of each row. Rows of a group, such as those of one user, count as one draw of the bootstrap.
        seed: Random seed of the bootstrap.
    """
    predictions = decide(problem_type, outputs)
    rng, rows = np.random.default_rng(seed), len(targets)
    if problem_type == _CLASSES:
        confusion = _confusion_matrix(predictions, targets, len(labels))
        classes, counts = class_scores(confusion, labels), confusion.tolist()
    else:
        counts, classes = [], []
    if problem_type == _LABELS:
        targets = targets.astype(np.int64)
        classes = _class_scores(labels, (predictions * targets).sum(0), predictions.sum(0), targets.sum(0))
    if problem_type == _CLASSES and groups is None:  # samples of the confusion matrix are as good as samples of rows
        samples = rng.multinomial(rows, confusion.ravel() / rows, BOOTSTRAP_SAMPLES).reshape(-1, *confusion.shape)
        values, sampled = _metrics_of_confusion(confusion[None]), _metrics_of_confusion(samples)
    else:
        metrics = _weighted_metrics(problem_type, outputs, targets)
        values = metrics(np.ones((1, rows)))
        draws = [metrics(weights) for weights in bootstrap_weights(rng, rows, BOOTSTRAP_SAMPLES, groups)]
        sampled = {name: np.concatenate([draw[name] for draw in draws]) for name in values}
    scores = {name: _score(values[name][0], sampled[name]) for name in metric_names(problem_type)}
    return Evaluation(problem_type, rows, scores, classes, counts)


def evaluate_tasks(
    metric: str, outputs: np.ndarray, targets: np.ndarray, labels: Sequence[Sequence[str]], *, seed: int = 0
) -> tuple[Evaluation, list[Evaluation]]:
    """Return the mean score of several tasks, and the scores of each task.

    Args:
        metric: Names of the metrics of the tasks, separated by commas.
        outputs: As for `parts_of`.
        targets: As for `parts_of`.
        labels: Class names of each task.
        seed: Random seed of the bootstrap.
    """
    parts = parts_of(metric, outputs, targets)
    evaluations = [
        evaluate(
            part.problem_type,
            part.outputs if part.problem_type == _REGRESSION else part.outputs[:, : len(names)],
            part.targets,
            names,
            seed=seed,
        )
        for part, names in zip(parts, labels, strict=True)
    ]
    scores = [each.scores[part.metric] for part, each in zip(parts, evaluations, strict=True)]
    return Evaluation(MULTI_TASK, len(targets), {metric: mean_score(scores)}), evaluations


def mean_score(scores: Sequence[Score]) -> Score:
    """Return the mean of scores on different rows, with its interval: their errors are independent."""
    value = float(np.mean([score.value for score in scores]))
    below, above = (
        float(np.sqrt(np.sum([(getattr(score, end) - score.value) ** 2 for score in scores]))) / len(scores)
        for end in ("low", "high")
    )
    return Score(value, value - below, value + above)


def class_scores(confusion: np.ndarray | Sequence[Sequence[int]], labels: Sequence[str]) -> list[ClassScores]:
    """Return precision, recall and F1 of each class.

    Args:
        confusion: Counts (true class, predicted class).
        labels: Class names.
    """
    matrix = np.asarray(confusion)
    return _class_scores(labels, np.diag(matrix), matrix.sum(0), matrix.sum(1))


def _confusion_matrix(predictions: np.ndarray, targets: np.ndarray, size: int) -> np.ndarray:
    # A comparison counts this per bootstrap sample: bincount takes a hundredth of the time of sklearn.metrics.
    return np.bincount(targets * size + predictions, minlength=size * size).reshape(size, size)


def _metrics_of_confusion(confusion: np.ndarray) -> dict[str, np.ndarray]:
    """Return metrics (samples,) of many confusion matrices (samples, true, predicted) at once."""
    confusion = confusion.astype(np.float64)
    return _metrics_of_counts(np.einsum("sii->si", confusion), confusion.sum(1), confusion.sum(2))


def _metrics_of_counts(hits: np.ndarray, predicted: np.ndarray, true: np.ndarray) -> dict[str, np.ndarray]:
    """Return metrics (samples,) of classes from counts of rows (samples, classes)."""
    total = true.sum(1)
    f1 = ratio(2 * hits, true + predicted)
    present = (true + predicted) > 0  # a class that is neither true nor predicted has no F1
    correct = hits.sum(1)
    expected = (true * predicted).sum(1)
    deviation = np.sqrt((total**2 - (predicted**2).sum(1)) * (total**2 - (true**2).sum(1)))
    return {
        "accuracy": correct / total,
        "macro_f1": ratio((f1 * present).sum(1), present.sum(1)),
        "weighted_f1": ratio((f1 * true).sum(1), total),
        "mcc": ratio(correct * total - expected, deviation),
    }


def _class_metrics(
    predictions: np.ndarray, targets: np.ndarray, size: int
) -> Callable[[np.ndarray], dict[str, np.ndarray]]:
    """Return a function from weights of rows (samples, rows) to metrics (samples,)."""
    correct = np.flatnonzero(predictions == targets)

    def count(classes: np.ndarray, weights: np.ndarray) -> np.ndarray:
        return np.array([np.bincount(classes, sample, minlength=size) for sample in weights])

    def metrics(weights: np.ndarray) -> dict[str, np.ndarray]:
        hits = count(targets[correct], weights[:, correct])
        return _metrics_of_counts(hits, count(predictions, weights), count(targets, weights))

    return metrics


def _multi_label_metrics(predictions: np.ndarray, targets: np.ndarray) -> Callable[[np.ndarray], dict[str, np.ndarray]]:
    """Return a function from weights of rows (samples, rows) to metrics (samples,)."""
    exact = (predictions == targets).all(1).astype(np.float64)
    predictions, targets = predictions.astype(np.float64), targets.astype(np.float64)  # integers multiply slowly
    both = predictions * targets

    def metrics(weights: np.ndarray) -> dict[str, np.ndarray]:
        f1 = f1_metrics(weights @ both, weights @ predictions, weights @ targets)
        return {"accuracy": weights @ exact / weights.sum(1), **f1}

    return metrics


def f1_metrics(hits: np.ndarray, predicted: np.ndarray, true: np.ndarray) -> dict[str, np.ndarray]:
    """Return the F1 metrics (samples,) of several labels from counts of rows (samples, labels).

    Args:
        hits: Rows that have the label and are predicted to have it.
        predicted: Rows that are predicted to have the label.
        true: Rows that have the label.
    """
    f1 = ratio(2 * hits, predicted + true)
    present = (predicted + true) > 0
    return {
        "macro_f1": ratio((f1 * present).sum(1), present.sum(1)),
        "weighted_f1": ratio((f1 * true).sum(1), true.sum(1)),
        "micro_f1": ratio(2 * hits.sum(1), (predicted + true).sum(1)),
    }


def _score(value: float, sampled: np.ndarray) -> Score:
    low, high = np.quantile(sampled, [0.025, 0.975])
    return Score(float(value), float(low), float(high))


def _class_scores(
    labels: Sequence[str], hits: np.ndarray, predicted: np.ndarray, true: np.ndarray
) -> list[ClassScores]:
    precision, recall, f1 = ratio(hits, predicted), ratio(hits, true), ratio(2 * hits, predicted + true)
    return [
        ClassScores(label, int(true[i]), float(precision[i]), float(recall[i]), float(f1[i]))
        for i, label in enumerate(labels)
    ]
