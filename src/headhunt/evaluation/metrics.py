"""How good predictions are: metrics with bootstrap intervals, a table per class, a confusion matrix.

Metrics of classes are functions of the confusion matrix, so resampling rows is resampling its cells: a thousand
bootstrap samples of a million rows take milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from headhunt.errors import HeadhuntError

METRICS = {
    "single_label_classification": ("accuracy", "macro_f1", "weighted_f1", "mcc"),
    "multi_label_classification": ("accuracy", "macro_f1", "weighted_f1", "micro_f1"),
    "regression": ("mse", "pearson", "spearman"),
}
DEFAULT_METRIC = {
    "single_label_classification": "accuracy",
    "multi_label_classification": "micro_f1",
    "regression": "spearman",
}
SAMPLES = 1000


@dataclass(frozen=True)
class Score:
    """A metric and its 95 % bootstrap interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.4f} [{self.low:.4f}, {self.high:.4f}]"


@dataclass(frozen=True)
class ClassRow:
    """How one class fared."""

    label: str
    rows: int
    precision: float
    recall: float
    f1: float


@dataclass(frozen=True)
class Evaluation:
    """How good predictions are on some rows."""

    problem_type: str
    rows: int
    scores: dict[str, Score]
    """By the names of METRICS."""
    classes: list[ClassRow] = field(default_factory=list)
    confusion: list[list[int]] = field(default_factory=list)
    """Classes: how often (true class, predicted class) came up."""

    def to_dict(self) -> dict[str, Any]:
        """Plain, JSON-able data."""
        return asdict(self)


def decide(problem_type: str, outputs: np.ndarray) -> np.ndarray:
    """Predictions from what `Predictor.outputs` gives: class ids, multi-hot rows, or the numbers themselves."""
    if problem_type == "single_label_classification":
        return outputs.argmax(-1)
    if problem_type == "multi_label_classification":
        return (outputs >= 0.5).astype(np.int64)
    return outputs


def measure(problem_type: str, metric: str, outputs: np.ndarray, targets: np.ndarray) -> float:
    """One metric, turned so that higher is better, without an interval: what candidates are compared by.

    Raises:
        HeadhuntError: If this kind of task has no such metric.
    """
    check_metric(problem_type, metric)
    predictions = decide(problem_type, outputs)
    if problem_type == "regression":
        value = _of_numbers(predictions.astype(np.float64), targets.astype(np.float64), np.arange(len(targets))[None])
        return float(-value["mse"][0] if metric == "mse" else value[metric][0])
    if problem_type == "multi_label_classification":
        return float(_of_several(predictions, targets.astype(np.int64))(np.ones((1, len(targets))))[metric][0])
    return float(_from_confusion(_confusion(predictions, targets, outputs.shape[1])[None])[metric][0])


def check_metric(problem_type: str, metric: str) -> None:
    """Refuses a metric that this kind of task does not have."""
    if metric not in METRICS[problem_type]:
        raise HeadhuntError(
            f"The metric must be one of {', '.join(METRICS[problem_type])} for this task; found {metric!r}."
        )


def greedy_mean(
    problem_type: str, metric: str, outputs: Sequence[np.ndarray], targets: np.ndarray, most: int
) -> list[int]:
    """Which outputs to average: the best alone, then whichever helps most, as long as none hurts.

    The best is the best by the metric; what helps is judged by the squared error, which moves with every answer where
    the accuracy of a few hundred rows jumps by chance.

    Args:
        problem_type: "single_label_classification", "multi_label_classification" or "regression".
        metric: What is compared.
        outputs: Of each model, for the same rows.
        targets: The truth.
        most: Models in the mean at most.
    """
    truth = np.eye(outputs[0].shape[1])[targets] if problem_type == "single_label_classification" else targets

    def error(chosen: list[int]) -> float:
        return float(np.square(np.mean([outputs[i] for i in chosen], axis=0) - truth).mean())

    chosen = [max(range(len(outputs)), key=lambda i: (measure(problem_type, metric, outputs[i], targets), -error([i])))]
    while len(chosen) < min(most, len(outputs)):
        errors = {i: error([*chosen, i]) for i in range(len(outputs)) if i not in chosen}
        pick = min(errors, key=errors.__getitem__)
        if errors[pick] >= error(chosen):
            break
        chosen.append(pick)
    return chosen


@dataclass(frozen=True)
class Comparison:
    """How much better one model is than another on the same rows, and how sure that is."""

    gain: float
    """The difference of the metric, turned so that above 0 is better."""
    low: float
    high: float
    p: float
    """Of a difference as large as this, either way, if there were none."""
    spread: float
    """The standard error that chance in training adds to that of the rows."""
    trainings: int = 1
    """How many trainings of each were compared."""

    @property
    def sure(self) -> bool:
        """Whether the whole interval is above 0; one training of each says nothing of chance in training."""
        return self.low > 0 and self.trainings > 1


def compare(
    problem_type: str,
    metric: str,
    ours: Sequence[np.ndarray],
    theirs: Sequence[np.ndarray],
    targets: np.ndarray,
    *,
    seed: int = 0,
) -> Comparison:
    """The gain of one candidate over another, paired by rows and by trainings.

    Two sources of chance make the interval: which rows are in the test (a bootstrap over rows, the same rows for both),
    and chance in training. The second is seen in how far the gains of several pairs of trainings differ. Without it two
    trainings of the same candidate would often seem to differ reliably; one pair alone says nothing of it.

    Args:
        problem_type: "single_label_classification", "multi_label_classification" or "regression".
        metric: What is compared.
        ours: Outputs of one or more trainings of the candidate.
        theirs: Of the other, as many: the i-th of both learned from the same rows.
        targets: The truth.
        seed: For the bootstrap.
    """
    rng = np.random.default_rng(seed)
    samples = SAMPLES if len(targets) <= 20_000 else SAMPLES // 5

    def mean(outputs: Sequence[np.ndarray], rows: np.ndarray | slice) -> float:
        return float(np.mean([measure(problem_type, metric, one[rows], targets[rows]) for one in outputs]))

    gain = mean(ours, slice(None)) - mean(theirs, slice(None))
    if metric == "accuracy":
        # A mean over rows: what the bootstrap would find, without it.
        right = [np.mean([_right(problem_type, one, targets) for one in outputs], axis=0) for outputs in (ours, theirs)]
        by_rows = float(np.std(right[0] - right[1]) / np.sqrt(len(targets)))
    else:
        draws = [rng.integers(0, len(targets), len(targets)) for _ in range(samples)]
        by_rows = float(np.std([mean(ours, rows) - mean(theirs, rows) for rows in draws]))
    gains = [mean([one], slice(None)) - mean([other], slice(None)) for one, other in zip(ours, theirs, strict=True)]
    freedom = len(gains) - 1
    by_chance = float(np.var(gains, ddof=1)) / len(gains) if freedom else 0.0
    variance = by_rows**2 + by_chance
    # Welch and Satterthwaite: what is known from few trainings is known less well.
    degrees = variance**2 / (by_chance**2 / freedom) if by_chance > 0 else np.inf
    from scipy.stats import norm, t

    law = norm if np.isinf(degrees) else t(degrees)
    error = float(np.sqrt(variance))
    half = float(law.ppf(0.975)) * error
    p = float(2 * law.sf(abs(gain) / error)) if error > 0 else float(gain == 0)
    return Comparison(gain, gain - half, gain + half, p, float(np.sqrt(by_chance)), len(gains))


def _right(problem_type: str, outputs: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """1 where an answer is wholly right (rows,)."""
    same = decide(problem_type, outputs) == targets
    return (same if same.ndim == 1 else same.all(1)).astype(np.float64)


def fit_temperature(probabilities: np.ndarray, targets: np.ndarray) -> float:
    """What logits are divided by so that probabilities of held-out rows are as likely as can be; 1 changes nothing."""
    from scipy.optimize import minimize_scalar

    logits = np.log(np.clip(probabilities, 1e-9, 1.0))

    def loss(log_temperature: float) -> float:
        scaled = logits / np.exp(log_temperature)
        scaled = scaled - scaled.max(1, keepdims=True)
        chosen = scaled[np.arange(len(targets)), targets]
        return float(np.mean(np.log(np.exp(scaled).sum(1)) - chosen))

    return float(np.exp(minimize_scalar(loss, bounds=(-2.0, 2.0), method="bounded").x))


def reliability(probabilities: np.ndarray, targets: np.ndarray, bins: int = 10) -> list[dict[str, float]]:
    """How often answers given with about the same confidence are right, in bins of equal size."""
    confidence, right = probabilities.max(1), probabilities.argmax(1) == targets
    order = np.argsort(confidence, kind="stable")
    return [
        {"confidence": float(confidence[part].mean()), "accuracy": float(right[part].mean()), "rows": len(part)}
        for part in np.array_split(order, min(bins, len(order)))
        if len(part)
    ]


def evaluate(
    problem_type: str, outputs: np.ndarray, targets: np.ndarray, labels: Sequence[str] = (), *, seed: int = 0
) -> Evaluation:
    """Scores predictions against targets.

    Args:
        problem_type: "single_label_classification", "multi_label_classification" or "regression".
        outputs: Probabilities (rows, labels), or numbers (rows,).
        targets: As `Split.targets` gives them.
        labels: Class names.
        seed: For the bootstrap.
    """
    predictions = decide(problem_type, outputs)
    rng = np.random.default_rng(seed)
    if problem_type == "regression":
        return Evaluation(problem_type, len(targets), _numbers(predictions, targets, rng))
    if problem_type == "multi_label_classification":
        return _several(predictions, targets.astype(np.int64), labels, rng)
    size = len(labels)
    confusion = _confusion(predictions, targets, size)
    samples = rng.multinomial(len(targets), confusion.ravel() / len(targets), SAMPLES).reshape(-1, size, size)
    values, spread = _from_confusion(confusion[None]), _from_confusion(samples)
    scores = {name: _interval(values[name][0], spread[name]) for name in METRICS[problem_type]}
    hits = np.diag(confusion)
    return Evaluation(
        problem_type,
        len(targets),
        scores,
        _class_rows(labels, hits, confusion.sum(0), confusion.sum(1)),
        confusion.tolist(),
    )


def _confusion(predictions: np.ndarray, targets: np.ndarray, size: int) -> np.ndarray:
    return np.bincount(targets * size + predictions, minlength=size * size).reshape(size, size)


def _from_confusion(confusion: np.ndarray) -> dict[str, np.ndarray]:
    """Metrics of many confusion matrices (samples, true, predicted) at once."""
    confusion = confusion.astype(np.float64)
    total = confusion.sum((1, 2))
    hits = np.einsum("sii->si", confusion)
    true, predicted = confusion.sum(2), confusion.sum(1)
    f1 = _ratio(2 * hits, true + predicted)
    present = (true + predicted) > 0  # a class that is neither there nor predicted has no F1
    correct = hits.sum(1)
    together = (true * predicted).sum(1)
    spread = np.sqrt((total**2 - (predicted**2).sum(1)) * (total**2 - (true**2).sum(1)))
    return {
        "accuracy": correct / total,
        "macro_f1": _ratio((f1 * present).sum(1), present.sum(1)),
        "weighted_f1": _ratio((f1 * true).sum(1), total),
        "mcc": _ratio(correct * total - together, spread),
    }


def _of_several(predictions: np.ndarray, targets: np.ndarray) -> Callable[[np.ndarray], dict[str, np.ndarray]]:
    exact = (predictions == targets).all(1).astype(np.float64)
    hits, made, true = predictions * targets, predictions, targets

    def metrics(weights: np.ndarray) -> dict[str, np.ndarray]:
        """From how often each row is drawn (samples, rows)."""
        right, said, there = weights @ hits, weights @ made, weights @ true
        f1 = _ratio(2 * right, said + there)
        present = (said + there) > 0
        return {
            "accuracy": weights @ exact / weights.sum(1),
            "macro_f1": _ratio((f1 * present).sum(1), present.sum(1)),
            "weighted_f1": _ratio((f1 * there).sum(1), there.sum(1)),
            "micro_f1": _ratio(2 * right.sum(1), (said + there).sum(1)),
        }

    return metrics


def _several(
    predictions: np.ndarray, targets: np.ndarray, labels: Sequence[str], rng: np.random.Generator
) -> Evaluation:
    metrics = _of_several(predictions, targets)
    rows = len(targets)
    values = metrics(np.ones((1, rows)))
    draws = [
        metrics(rng.multinomial(rows, np.full(rows, 1 / rows), 50).astype(np.float64)) for _ in range(SAMPLES // 50)
    ]
    spread = {name: np.concatenate([draw[name] for draw in draws]) for name in values}
    scores = {name: _interval(values[name][0], spread[name]) for name in METRICS["multi_label_classification"]}
    right = (predictions * targets).sum(0)
    return Evaluation(
        "multi_label_classification", rows, scores, _class_rows(labels, right, predictions.sum(0), targets.sum(0))
    )


def _of_numbers(x: np.ndarray, y: np.ndarray, rows: np.ndarray) -> dict[str, np.ndarray]:
    """From rows drawn (samples, rows)."""
    from scipy.stats import rankdata

    def correlation(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        x, y = x - x.mean(-1, keepdims=True), y - y.mean(-1, keepdims=True)
        return _ratio((x * y).sum(-1), np.sqrt((x**2).sum(-1) * (y**2).sum(-1)))

    a, b = x[rows], y[rows]
    ranks = correlation(rankdata(a, axis=-1), rankdata(b, axis=-1))
    return {"mse": ((a - b) ** 2).mean(-1), "pearson": correlation(a, b), "spearman": ranks}


def _numbers(predictions: np.ndarray, targets: np.ndarray, rng: np.random.Generator) -> dict[str, Score]:
    x, y = predictions.astype(np.float64), targets.astype(np.float64)
    values = _of_numbers(x, y, np.arange(len(y))[None])
    draws = [_of_numbers(x, y, rng.integers(0, len(y), (10, len(y)))) for _ in range(SAMPLES // 10)]
    return {
        name: _interval(values[name][0], np.concatenate([draw[name] for draw in draws]))
        for name in METRICS["regression"]
    }


def _interval(value: float, spread: np.ndarray) -> Score:
    low, high = np.quantile(spread, [0.025, 0.975])
    return Score(float(value), float(low), float(high))


def _class_rows(labels: Sequence[str], hits: np.ndarray, made: np.ndarray, true: np.ndarray) -> list[ClassRow]:
    precision, recall, f1 = _ratio(hits, made), _ratio(hits, true), _ratio(2 * hits, made + true)
    return [
        ClassRow(label, int(true[i]), float(precision[i]), float(recall[i]), float(f1[i]))
        for i, label in enumerate(labels)
    ]


def _ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """`above / below`, zero where there is nothing below."""
    below = np.asarray(below, np.float64)
    return np.divide(above, below, out=np.zeros_like(below), where=below > 0)
