"""Fit multinomial logistic regression with many classes in seconds, in the basis of the rows' principal components."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from headhunt.spec import MANY_CLASSES
from headhunt.training.ridge import (
    LinearModel,
    calibration,
    fit_ridge,
    gram_matrix,
    grouped_folds,
    standardization,
)

COMPONENTS = 500  # principal components that the model sees: time grows with them, accuracy hardly
PENALTY = 1e-3  # relative to features of unit length
ITERATIONS = 30  # twice as many are no better
MORE_ITERATIONS = 20  # with all rows, from the solution without a fifth of them
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)  # of the last layer's mean in the logits


def fit_linear(
    features: np.ndarray,
    blocks: Sequence[int],
    targets: np.ndarray,
    problem_type: str,
    outputs: int,
    *,
    solver: str | None = None,
    last_mean: slice | None = None,
    groups: np.ndarray | None = None,
    seed: int = 0,
) -> LinearModel:
    """Fit a linear model with a solver, by default the one of a solved head with as many classes.

    Args:
        features: Features (rows, features).
        blocks: Widths of the consecutive blocks of features.
        targets: Class ids, multi-hot rows or numbers.
        problem_type: "single_label_classification", "multi_label_classification" or "regression".
        outputs: Number of outputs.
        solver: "ridge" or "logistic".
        last_mean: The features among these that are the mean of the encoder's last layer; see `fit_logistic`.
        groups: Group of each row; rows of a group are held out together.
        seed: Random seed of the folds within the rows.
    """
    many = problem_type == "single_label_classification" and outputs > MANY_CLASSES
    threads = torch.get_num_threads()
    if solver == "logistic" or (solver is None and many):
        return fit_logistic(
            features, blocks, targets, outputs, last_mean=last_mean, groups=groups, seed=seed, threads=threads
        )
    return fit_ridge(features, blocks, targets, problem_type, outputs, groups=groups, seed=seed, threads=threads)


def fit_logistic(
    features: np.ndarray,
    blocks: Sequence[int],
    targets: np.ndarray,
    outputs: int,
    *,
    last_mean: slice | None = None,
    groups: np.ndarray | None = None,
    seed: int = 0,
    threads: int | None = None,
) -> LinearModel:
    """Fit a linear model of standardised features by its log loss.

    With many classes, a squared error spends its effort on the many zeros of each row. The penalty is small and fixed;
    the temperature is that of a model without a fifth of the rows.

    The mean of the last layer of a sentence encoder was trained to tell texts apart, and is one block of many here. So
    a second model sees it alone, and the logits are the mean of both, weighted by the log loss of the held-out fifth.

    Args:
        features: Features (rows, features).
        blocks: Widths of the consecutive blocks of features; each has the same weight in the penalty.
        targets: Class of each row.
        outputs: Number of classes.
        last_mean: The features that are the mean of the last layer; None fits a single model.
        groups: Group of each row; rows of a group are held out together.
        seed: Random seed of the fold that is held out.
        threads: Threads of the linear algebra library; by default it decides.
    """
    rng = np.random.default_rng(seed)
    labels = np.arange(len(targets)) if groups is None else np.unique(groups, return_inverse=True)[1]
    held_out = next(iter(grouped_folds(labels, rng)), np.arange(0))
    with threadpool_limits(threads, "blas"):
        models = [_Logistic(features, slice(None), blocks, outputs)]
        if not len(held_out):
            models[0].fit(np.arange(len(targets)), targets, ITERATIONS)
            return models[0].linear_model(1.0)
        if last_mean is not None and len(blocks) > 1:
            models.append(_Logistic(features, last_mean, [last_mean.stop - last_mean.start], outputs))
        kept = np.setdiff1d(np.arange(len(targets)), held_out)
        logits = []
        for model in models:
            model.fit(kept, targets[kept], ITERATIONS)
            logits.append(model.logits(held_out))
        factors = _mean_factors(logits, targets[held_out])
        found = []
        for model, factor in zip(models, factors, strict=True):
            if factor:
                model.fit(np.arange(len(targets)), targets, MORE_ITERATIONS)
                found.append(model.linear_model(factor))
    weight, bias = sum(part.weight for part in found), sum(part.bias for part in found)
    return LinearModel(np.asarray(weight), np.asarray(bias), PENALTY)


def _mean_factors(logits: Sequence[np.ndarray], targets: np.ndarray) -> list[float]:
    """Return the factors of models in their weighted mean, which has the smallest log loss of held-out rows."""
    from scipy.special import log_softmax

    factors = [calibration(part, targets, "single_label_classification")[0] for part in logits]
    if len(logits) == 1:
        return factors
    candidates = []
    for share in SHARES:
        weighted = [factors[0] * (1 - share), factors[1] * share]
        mean = weighted[0] * logits[0] + weighted[1] * logits[1]
        factor, _ = calibration(mean, targets, "single_label_classification")
        loss = -log_softmax(factor * mean, axis=1)[np.arange(len(targets)), targets].mean()
        candidates.append((float(loss), [factor * part for part in weighted]))
    return min(candidates)[1]


class _Logistic:
    """Logistic regression of some of the features, in the basis of their principal components.

    Args:
        features: Features (rows, features).
        used: The features that the model sees.
        blocks: Widths of the consecutive blocks of these.
        outputs: Number of classes.
    """

    def __init__(self, features: np.ndarray, used: slice, blocks: Sequence[int], outputs: int) -> None:
        self._used, self._features = used, features.shape[1]
        self._center, self._scale = standardization(features[:, used], blocks)
        scaled = ((features[:, used] - self._center) * self._scale).astype(np.float32)
        self._components, self._basis = _principal_components(scaled)
        self._weight, self._bias = np.zeros((self._components.shape[1], outputs)), np.zeros(outputs)

    def fit(self, rows: np.ndarray, targets: np.ndarray, iterations: int) -> None:
        """Minimise the log loss of rows, from the solution so far."""
        self._weight, self._bias = _minimize(self._components[rows], targets, self._weight, self._bias, iterations)

    def logits(self, rows: np.ndarray) -> np.ndarray:
        """Return the logits (rows, outputs) of rows of the features."""
        return np.asarray(self._components[rows] @ self._weight + self._bias)

    def linear_model(self, factor: float) -> LinearModel:
        """Return the model of raw features, all of them; its logits are multiplied by a factor."""
        weight = np.zeros((len(self._bias), self._features), np.float32)
        weight[:, self._used] = part = ((self._basis @ self._weight) * self._scale[:, None]).T * factor
        return LinearModel(weight, (self._bias * factor - part @ self._center).astype(np.float32), PENALTY)


def _principal_components(scaled: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the components (rows, components) of the rows, and the matrix (features, components) that computes them.

    They follow from the products of rows, or from those of features if there are fewer of these.
    """
    from scipy.linalg import eigh

    by_rows = len(scaled) <= scaled.shape[1]
    gram = gram_matrix(scaled if by_rows else scaled.T).astype(np.float32)
    size = len(gram)
    values, vectors = eigh(gram, subset_by_index=[max(0, size - COMPONENTS), size - 1], overwrite_a=True)
    used = values > max(1e-6 * float(values[-1]), 1e-12)
    if not used.any():  # all rows are equal
        return np.zeros((len(scaled), 1), np.float32), np.zeros((scaled.shape[1], 1), np.float32)
    vectors = vectors[:, used]
    if not by_rows:
        return scaled @ vectors, vectors
    root = np.sqrt(values[used])
    return vectors * root, scaled.T @ (vectors / root)


def _minimize(
    components: np.ndarray, targets: np.ndarray, weight: np.ndarray, bias: np.ndarray, iterations: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the weights (components, outputs) and biases (outputs,) with the smallest penalised log loss.

    The search begins with those given.
    """
    from scipy.optimize import minimize

    rows, (width, outputs) = len(components), weight.shape
    every, size = np.arange(rows), width * outputs
    start = np.concatenate([weight.ravel(), bias])
    transposed = np.ascontiguousarray(components.T)

    def loss_and_gradient(parameters: np.ndarray) -> tuple[float, np.ndarray]:
        weight = parameters[:size].reshape(width, outputs).astype(np.float32)
        logits = components @ weight + parameters[size:].astype(np.float32)
        logits -= logits.max(1, keepdims=True)
        probabilities = np.exp(logits)
        total = probabilities.sum(1, keepdims=True)
        loss = float((np.log(total[:, 0]) - logits[every, targets]).sum(dtype=np.float64))
        probabilities /= total
        probabilities[every, targets] -= 1
        gradient = transposed @ probabilities + np.float32(PENALTY) * weight
        loss += PENALTY / 2 * float(np.square(parameters[:size]).sum())
        return loss, np.concatenate([gradient.ravel(), probabilities.sum(0)]).astype(np.float64)

    options = {"maxiter": iterations, "maxcor": 5}
    found = minimize(loss_and_gradient, start, jac=True, method="L-BFGS-B", options=options).x
    return found[:size].reshape(width, outputs), found[size:]
