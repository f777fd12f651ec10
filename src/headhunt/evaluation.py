"""How good predictions are: metrics with bootstrap intervals, a table per class, a confusion matrix.

Metrics of classes are functions of the confusion matrix, so resampling rows is resampling its cells: a thousand
bootstrap samples of a million rows take milliseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

METRICS = {
    "classes": ("accuracy", "macro_f1", "weighted_f1", "mcc"),
    "labels": ("accuracy", "macro_f1", "weighted_f1", "micro_f1"),
    "number": ("mse", "pearson", "spearman"),
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

    kind: str
    rows: int
    scores: dict[str, Score]
    """By the names of METRICS."""
    classes: list[ClassRow] = field(default_factory=list)
    confusion: list[list[int]] = field(default_factory=list)
    """Classes: how often (true class, predicted class) came up."""

    def to_dict(self) -> dict[str, Any]:
        """Plain, JSON-able data."""
        return asdict(self)


def decide(kind: str, outputs: np.ndarray) -> np.ndarray:
    """Predictions from what `Predictor.outputs` gives: class ids, multi-hot rows, or the numbers themselves."""
    if kind == "classes":
        return outputs.argmax(-1)
    if kind == "labels":
        return (outputs >= 0.5).astype(np.int64)
    return outputs


def evaluate(
    kind: str, outputs: np.ndarray, targets: np.ndarray, labels: Sequence[str] = (), *, seed: int = 0
) -> Evaluation:
    """Scores predictions against targets.

    Args:
        kind: "classes", "labels" or "number".
        outputs: Probabilities (rows, labels), or numbers (rows,).
        targets: As `Split.targets` gives them.
        labels: Class names.
        seed: For the bootstrap.
    """
    predictions = decide(kind, outputs)
    rng = np.random.default_rng(seed)
    if kind == "number":
        return Evaluation(kind, len(targets), _numbers(predictions, targets, rng))
    if kind == "labels":
        return _several(predictions, targets.astype(np.int64), labels, rng)
    size = len(labels)
    confusion = np.bincount(targets * size + predictions, minlength=size * size).reshape(size, size)
    samples = rng.multinomial(len(targets), confusion.ravel() / len(targets), SAMPLES).reshape(-1, size, size)
    values, spread = _from_confusion(confusion[None]), _from_confusion(samples)
    scores = {name: _interval(values[name][0], spread[name]) for name in METRICS[kind]}
    hits = np.diag(confusion)
    return Evaluation(
        kind,
        len(targets),
        scores,
        _class_rows(labels, hits, confusion.sum(0), confusion.sum(1)),
        confusion.tolist(),
    )


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


def _several(
    predictions: np.ndarray, targets: np.ndarray, labels: Sequence[str], rng: np.random.Generator
) -> Evaluation:
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

    rows = len(targets)
    values = metrics(np.ones((1, rows)))
    draws = [
        metrics(rng.multinomial(rows, np.full(rows, 1 / rows), 50).astype(np.float64)) for _ in range(SAMPLES // 50)
    ]
    spread = {name: np.concatenate([draw[name] for draw in draws]) for name in values}
    scores = {name: _interval(values[name][0], spread[name]) for name in METRICS["labels"]}
    return Evaluation("labels", rows, scores, _class_rows(labels, hits.sum(0), made.sum(0), true.sum(0)))


def _numbers(predictions: np.ndarray, targets: np.ndarray, rng: np.random.Generator) -> dict[str, Score]:
    from scipy.stats import rankdata

    x, y = predictions.astype(np.float64), targets.astype(np.float64)

    def correlation(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        x, y = x - x.mean(-1, keepdims=True), y - y.mean(-1, keepdims=True)
        return _ratio((x * y).sum(-1), np.sqrt((x**2).sum(-1) * (y**2).sum(-1)))

    def metrics(rows: np.ndarray) -> dict[str, np.ndarray]:
        """From rows drawn (samples, rows)."""
        a, b = x[rows], y[rows]
        ranks = correlation(rankdata(a, axis=-1), rankdata(b, axis=-1))
        return {"mse": ((a - b) ** 2).mean(-1), "pearson": correlation(a, b), "spearman": ranks}

    values = metrics(np.arange(len(y))[None])
    draws = [metrics(rng.integers(0, len(y), (10, len(y)))) for _ in range(SAMPLES // 10)]
    return {
        name: _interval(values[name][0], np.concatenate([draw[name] for draw in draws])) for name in METRICS["number"]
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
