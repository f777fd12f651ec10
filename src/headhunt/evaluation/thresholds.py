"""Decision thresholds of several labels, fitted to out-of-fold probabilities.

Probabilities of rare labels seldom reach 0.5, so a model that decides there misses most of them. A threshold of each
label alone overfits labels with few positive rows, so it is moved towards one threshold that all labels share.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from headhunt.errors import HeadhuntError, ModelError
from headhunt.evaluation.metrics import check_metric, f1_metrics

MULTI_LABEL = "multi_label_classification"
STEP = 0.05
"""Distance of neighbouring thresholds, in logits."""
LOGITS = STEP * np.arange(-180, 181)
THRESHOLDS = np.round(1 / (1 + np.exp(-LOGITS)), 6)
"""The thresholds to choose from (361,); 0.5 is the one in the middle."""
SMOOTHING = 0.15
"""Standard deviation, in logits, of the kernel that smooths the counts of each label."""
SHRINKAGE = 5  # benchmarks/thresholds.py
"""Positive rows at which the threshold of a label is half-way between the common one and its own."""
MAX_PASSES = 10
"""Updates of micro F1."""
FOLDS = 5
"""Groups of rows whose thresholds are fitted on the others."""
_MIDDLE = len(THRESHOLDS) // 2


def fit_thresholds(outputs: np.ndarray, targets: np.ndarray, metric: str) -> np.ndarray:
    """Return the threshold of each label (labels,): a row has a label if its probability is at least the threshold.

    The common threshold maximizes the metric on these rows. The thresholds of single labels maximize F1, or the number
    of right decisions for accuracy, on smoothed counts. They are then moved towards the common one: half-way in logits
    for `SHRINKAGE` positive rows, all the way without any. If they score lower than the common threshold, that one is
    returned for all labels.

    Args:
        outputs: Probabilities (rows, labels) of rows that the model was not trained on.
        targets: 0 or 1 (rows, labels).
        metric: "micro_f1", "macro_f1", "weighted_f1" or "accuracy".

    Raises:
        HeadhuntError: If several labels do not have the metric, or the outputs are no probabilities.
    """
    return _fit(_bin(outputs, targets, metric), targets, metric)


def apply_thresholds(outputs: np.ndarray, thresholds: Sequence[float] | np.ndarray | None) -> np.ndarray:
    """Return decision scores: `outputs - thresholds + 0.5`.

    Functions that decide at 0.5 (`decide`, `measure`, `evaluate`, `compare`) decide at the thresholds if they get these
    scores. Scores are not probabilities: they can be below 0 or above 1, and must not be shown or calibrated.

    Args:
        outputs: Probabilities (rows, labels).
        thresholds: Of the labels (labels,) or of rows and labels (rows, labels); None returns the outputs unchanged.
    """
    if thresholds is None:
        return outputs
    # In float32, a probability just below its threshold would be rounded to a score of 0.5.
    return outputs.astype(np.float64) - np.asarray(thresholds, np.float64) + 0.5


def cross_fit_thresholds(outputs: np.ndarray, targets: np.ndarray, metric: str, seed: int = 0) -> np.ndarray:
    """Return the decision scores of `apply_thresholds`, with thresholds of each row fitted on other rows.

    A metric of these scores is an honest estimate; with thresholds fitted on the same rows it would be too high.

    Args:
        outputs: Probabilities (rows, labels) of rows that the model was not trained on.
        targets: 0 or 1 (rows, labels).
        metric: "micro_f1", "macro_f1", "weighted_f1" or "accuracy".
        seed: Random seed of the groups of rows; the thresholds of a group are fitted on all others.

    Raises:
        HeadhuntError: If several labels do not have the metric, or the outputs are no probabilities.
    """
    bins = _bin(outputs, targets, metric)
    thresholds = np.full(outputs.shape, 0.5)
    fold_of = np.random.default_rng(seed).permutation(len(outputs)) % FOLDS
    for fold in range(FOLDS):
        others = fold_of != fold
        thresholds[~others] = _fit(bins[others], targets[others], metric)
    return apply_thresholds(outputs, thresholds)


def check_thresholds(thresholds: Any, problem_type: str, labels: int) -> tuple[float, ...] | None:
    """Return the thresholds of a model as numbers; None if it has none.

    Args:
        thresholds: Of unknown content, as read from a file.
        problem_type: Problem type of the model.
        labels: Number of labels of the model.

    Raises:
        ModelError: If there is not one number strictly between 0 and 1 for each of several labels.
    """
    if thresholds is None:
        return None
    if problem_type != MULTI_LABEL:
        raise ModelError("is for models of several labels only; leave it out.", "thresholds")
    try:
        values = np.asarray(thresholds)
    except ValueError:  # lists of different lengths
        values = np.empty(0)
    if values.shape != (labels,) or values.dtype.kind != "f" or not ((values > 0) & (values < 1)).all():
        raise ModelError(
            f"thresholds must be {labels} numbers between 0 and 1, one for each label; found {str(thresholds)[:80]}"
        )
    return tuple(values.tolist())


def _bin(outputs: np.ndarray, targets: np.ndarray, metric: str) -> np.ndarray:
    """Return the number of thresholds that each probability reaches (rows, labels), after checking the arguments."""
    check_metric(MULTI_LABEL, metric)
    if not np.isfinite(outputs).all():
        raise HeadhuntError("must be probabilities; found values that are not numbers.", "outputs")
    bins = np.empty(outputs.shape, np.int16, order="F")  # columns are read one by one
    for label, column in enumerate(outputs.T):
        bins[:, label] = np.searchsorted(THRESHOLDS, column.astype(np.float64), side="right")
    return bins


def _fit(bins: np.ndarray, targets: np.ndarray, metric: str) -> np.ndarray:
    """Return the threshold of each label from the bins of `_bin`."""
    targets = np.asfortranarray(targets, bool)
    hits, predicted = _counts(bins, targets), _counts(bins)
    true = targets.sum(0).astype(np.float64)
    if metric == "accuracy":
        common_scores = _accuracies(bins, targets)
    else:
        common_scores = f1_metrics(hits.T, predicted.T, np.tile(true, (len(THRESHOLDS), 1)))[metric]
    common = int(_nearest_best(common_scores[None], _MIDDLE)[0])

    if metric == "accuracy":
        best = _nearest_best((2 * hits - predicted) @ _KERNEL, common)
    elif metric == "micro_f1":
        best = _maximize_micro_f1(hits @ _KERNEL, predicted @ _KERNEL, true, common)
    else:  # a mean over labels is highest where each of them is
        f1 = 2 * (hits @ _KERNEL) / np.maximum(predicted @ _KERNEL + true[:, None], 1)
        best = _nearest_best(f1, common)

    chosen = np.round(common + true / (true + SHRINKAGE) * (best - common)).astype(np.int64)
    if metric == "accuracy":
        score = ((bins > chosen) == targets).all(1).mean() if len(bins) else 0.0
    else:
        labels = np.arange(len(true))
        score = f1_metrics(hits[None, labels, chosen], predicted[None, labels, chosen], true[None])[metric][0]
    if score < common_scores[common]:
        chosen[:] = common
    return THRESHOLDS[chosen]


def _counts(bins: np.ndarray, chosen: np.ndarray | None = None) -> np.ndarray:
    """Return for each label and threshold the number of rows, of the chosen ones, that reach it (labels, 361)."""
    size = len(THRESHOLDS) + 1
    columns = [bins[:, i] if chosen is None else bins[chosen[:, i], i] for i in range(bins.shape[1])]
    counts = np.array([np.bincount(column, minlength=size) for column in columns]).reshape(-1, size)
    return counts[:, ::-1].cumsum(1)[:, ::-1][:, 1:].astype(np.float64)


def _nearest_best(scores: np.ndarray, place: int) -> np.ndarray:
    """Return the column of the highest score in each row; of equal ones, the nearest to a place."""
    highest = scores.max(1, keepdims=True)
    best = scores >= highest - 1e-9 * np.maximum(1, np.abs(highest))
    return np.where(best, np.abs(np.arange(scores.shape[1]) - place), scores.shape[1]).argmin(1)


def _maximize_micro_f1(hits: np.ndarray, predicted: np.ndarray, true: np.ndarray, common: int) -> np.ndarray:
    """Return for each label the position of its threshold.

    Micro F1 exceeds a value v if 2 hits - v (predicted + true), summed over labels, exceeds 0. Each label can therefore
    be maximized alone, and v is then updated (Dinkelbach's method).
    """
    labels, value = np.arange(len(true)), 0.0
    best = np.full(len(true), common)
    for _ in range(MAX_PASSES):
        previous, value = value, 2 * hits[labels, best].sum() / max(1.0, (predicted[labels, best] + true).sum())
        if value <= previous:
            break
        best = _nearest_best(2 * hits - value * predicted, common)
    return best


def _accuracies(bins: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Return the share of rows without any mistake at each common threshold (361,)."""
    size = len(THRESHOLDS)
    low = np.where(targets, 0, bins).max(1, initial=0)
    high = np.where(targets, bins, size).min(1, initial=size)
    right = low < high  # a row is right from `low` to just below `high`
    changes = np.bincount(low[right], minlength=size + 1) - np.bincount(high[right], minlength=size + 1)
    return changes.cumsum()[:size] / max(1, len(bins))


def _kernel() -> np.ndarray:
    """Return the matrix (361, 361) that smooths counts along the thresholds."""
    distances = np.abs(LOGITS[:, None] - LOGITS[None]) / SMOOTHING
    # Without tails, equal scores stay equal, and rounding does not choose among them.
    weights = np.where(distances <= 4, np.exp(-0.5 * distances**2), 0.0)
    return weights / weights.sum(0)


_KERNEL = _kernel()


def decision_scores(problem_type: str, metric: str, outputs: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Return out-of-fold outputs as they are scored: for several labels, with cross-fitted thresholds.

    Args:
        problem_type: "single_label_classification", "multi_label_classification" or "regression".
        metric: Name of the metric.
        outputs: Out-of-fold outputs of a model.
        targets: True values.
    """
    if problem_type != "multi_label_classification":
        return outputs
    return cross_fit_thresholds(outputs, targets, metric)
