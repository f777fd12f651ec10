"""Fit ridge regression in closed form, with the penalty and the calibration chosen by cross-validation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from threadpoolctl import threadpool_limits

PENALTIES = np.logspace(-3, 3, 13)  # relative to features of unit length
FOLDS = 5
CHOOSING_ROWS = 2000  # rows that the penalty is chosen on; the eigendecomposition takes their third power in time
SMALLEST_STD = 3e-3  # relative to the mean; features that vary less are constant but for rounding


@dataclass(frozen=True)
class HeldOut:
    """Predictions of training rows, each by a model that was fitted without the row's fold."""

    rows: np.ndarray
    """Positions of the rows among those that the model was fitted to."""
    logits: np.ndarray
    """(rows, outputs)"""


@dataclass(frozen=True)
class LinearModel:
    """A linear model of raw features: standardisation and calibration are part of its weights."""

    weight: np.ndarray
    """(outputs, features)"""
    bias: np.ndarray
    """(outputs,)"""
    penalty: float
    held_out: HeldOut | None = None

    def logits(self, features: np.ndarray) -> np.ndarray:
        """Return the outputs (rows, outputs) of features (rows, features)."""
        return np.asarray(features @ self.weight.T + self.bias)


def fit_ridge(
    features: np.ndarray,
    blocks: Sequence[int],
    targets: np.ndarray,
    problem_type: str,
    outputs: int,
    *,
    groups: np.ndarray | None = None,
    seed: int = 0,
    threads: int | None = None,
) -> LinearModel:
    """Fit a linear model of standardised features.

    Classes are regressed on as -1 and 1, one column each. Every block of features has the same weight in the penalty,
    however wide it is. The penalty has the smallest squared error of held-out predictions, which follow exactly from
    one eigendecomposition. The outputs are then scaled to be logits: a temperature for classes, a scale and a shift for
    several labels.

    Args:
        features: Features (rows, features).
        blocks: Widths of the consecutive blocks of features.
        targets: Targets as in `Split.targets`.
        problem_type: "single_label_classification", "multi_label_classification" or "regression".
        outputs: Number of outputs.
        groups: Group of each row; rows of a group are held out together.
        seed: Random seed of the folds.
        threads: Threads of the linear algebra library; by default it decides.
    """
    # Threads that compete for busy cores wait for each other most of the time.
    with threadpool_limits(threads, "blas"):
        return _fit(features, blocks, targets, problem_type, outputs, groups, seed)


def _fit(
    features: np.ndarray,
    blocks: Sequence[int],
    targets: np.ndarray,
    problem_type: str,
    outputs: int,
    groups: np.ndarray | None,
    seed: int,
) -> LinearModel:
    center, scale = standardization(features, blocks)
    scaled = ((features - center) * scale).astype(np.float32)
    encoded = _encode(targets, problem_type, outputs)
    rng = np.random.default_rng(seed)
    rows = np.sort(rng.permutation(len(scaled))[:CHOOSING_ROWS])
    folds = grouped_folds(
        np.arange(len(rows)) if groups is None else np.unique(groups[rows], return_inverse=True)[1], rng
    )
    penalty, held_out = _choose_penalty(gram_matrix(scaled[rows]), encoded[rows], folds)
    mean = encoded.mean(0)
    weight = _solve(scaled, encoded - mean, penalty)
    factor, shift = calibration(held_out, targets[rows], problem_type)
    weight = (weight * scale[:, None]).T * factor
    bias = (mean * factor + shift) - weight @ center
    predicted = None if held_out is None else HeldOut(rows, (held_out * factor + shift).astype(np.float32))
    return LinearModel(weight.astype(np.float32), bias.astype(np.float32), penalty, predicted)


def standardization(features: np.ndarray, blocks: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return the center and the scale of each feature; all blocks have the same sum of squares after it."""
    center = features.mean(0, dtype=np.float64)
    spread = features.std(0, dtype=np.float64)
    width = np.repeat(np.asarray(blocks, np.float64), blocks)
    constant = spread <= np.maximum(SMALLEST_STD * np.abs(center), 1e-8)
    return center, np.where(constant, 0.0, 1 / np.where(constant, 1.0, spread)) / np.sqrt(width * len(blocks))


def _encode(targets: np.ndarray, problem_type: str, outputs: int) -> np.ndarray:
    """Return targets (rows, outputs): the number itself, or -1 and 1."""
    if problem_type == "regression":
        return np.asarray(targets, np.float64)[:, None]
    if problem_type == "single_label_classification":
        return np.eye(outputs)[targets] * 2 - 1
    return np.asarray(targets, np.float64) * 2 - 1


def grouped_folds(groups: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """Return the rows of each fold; rows of a group are in the same fold."""
    count = int(groups.max()) + 1
    fold_of = rng.permutation(count) % max(1, min(FOLDS, count))
    rows = [np.flatnonzero(fold_of[groups] == fold) for fold in range(int(fold_of.max()) + 1)]
    return [part for part in rows if 0 < len(part) < len(groups)]


def gram_matrix(scaled: np.ndarray) -> np.ndarray:
    """Return the products (rows, rows) of all pairs of rows."""
    return np.asarray((scaled @ scaled.T), np.float64)


def _choose_penalty(
    gram: np.ndarray, encoded: np.ndarray, folds: Sequence[np.ndarray]
) -> tuple[float, np.ndarray | None]:
    """Return the penalty with the smallest error of held-out predictions, and these predictions."""
    if not folds:
        return 1.0, None
    held_out = list(_leave_fold_out(gram, encoded, folds))
    errors = [np.square(predictions - encoded).mean() for predictions in held_out]
    best = int(np.argmin(errors))
    return float(PENALTIES[best]), held_out[best]


def _leave_fold_out(gram: np.ndarray, encoded: np.ndarray, folds: Sequence[np.ndarray]) -> Iterator[np.ndarray]:
    """Yield, for each penalty, what models without a fold predict for it, without fitting them.

    With the hat matrix H and the residuals e of the fit to all rows, the residuals of the rows S of a fold that is left
    out are (I - H_SS)^-1 e_S.
    """
    values, vectors = np.linalg.eigh(gram)
    projected = vectors.T @ (encoded - encoded.mean(0))
    for penalty in PENALTIES:
        shrinkage = np.clip(values, 0, None) / (np.clip(values, 0, None) + penalty)
        residual = encoded - encoded.mean(0) - vectors @ (shrinkage[:, None] * projected)
        predictions = np.empty_like(encoded)
        for rows in folds:
            part = vectors[rows]
            hat = (part * shrinkage) @ part.T + 1 / len(encoded)  # the last term is the intercept
            left_out = np.linalg.solve(np.eye(len(rows)) - hat, residual[rows])
            predictions[rows] = encoded[rows] - left_out
        yield predictions


def _solve(scaled: np.ndarray, centered: np.ndarray, penalty: float) -> np.ndarray:
    """Return the weights (features, outputs), from the smaller of the two equivalent systems of equations."""
    from scipy.linalg import cho_factor, cho_solve

    rows, features = scaled.shape
    if rows <= features:
        system = gram_matrix(scaled)
        system.flat[:: rows + 1] += penalty
        dual = cho_solve(cho_factor(system, overwrite_a=True), centered)
        return np.asarray(scaled.T @ dual.astype(np.float32), np.float64)
    system = np.asarray(scaled.T @ scaled, np.float64)
    system.flat[:: features + 1] += penalty
    return np.asarray(cho_solve(cho_factor(system, overwrite_a=True), scaled.T @ centered))


def calibration(held_out: np.ndarray | None, targets: np.ndarray, problem_type: str) -> tuple[float, float]:
    """Return the factor and the shift that turn held-out predictions into logits."""
    if problem_type == "regression" or held_out is None:
        return 1.0, 0.0
    from scipy.optimize import minimize, minimize_scalar
    from scipy.special import expit, log_softmax

    if problem_type == "single_label_classification":

        def loss(exponent: float) -> float:
            log_probabilities = log_softmax(np.exp(exponent) * held_out, axis=1)
            return float(-log_probabilities[np.arange(len(targets)), targets].mean())

        return float(np.exp(minimize_scalar(loss, bounds=(-1.0, 4.0), method="bounded").x)), 0.0

    def loss_and_gradient(parameters: np.ndarray) -> tuple[float, np.ndarray]:
        logits = parameters[0] * held_out + parameters[1]
        difference = expit(logits) - targets
        value = (np.logaddexp(0, logits) - targets * logits).mean()
        return float(value), np.array([(difference * held_out).mean(), difference.mean()])

    factor, shift = minimize(loss_and_gradient, [2.0, 0.0], jac=True, bounds=[(1e-3, 100.0), (-20.0, 20.0)]).x
    return float(factor), float(shift)
