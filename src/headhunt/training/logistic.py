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

COMPONENTS = 1000  # principal components that the model sees: time grows with them, accuracy hardly
PENALTY = 1e-3  # relative to features of unit length
ITERATIONS = 60
MORE_ITERATIONS = 20  # with all rows, from the solution without a fifth of them


def fit_linear(
    features: np.ndarray,
    blocks: Sequence[int],
    targets: np.ndarray,
    problem_type: str,
    outputs: int,
    *,
    solver: str | None = None,
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
        groups: Group of each row; rows of a group are held out together.
        seed: Random seed of the folds within the rows.
    """
    many = problem_type == "single_label_classification" and outputs > MANY_CLASSES
    threads = torch.get_num_threads()
    if solver == "logistic" or (solver is None and many):
        return fit_logistic(features, blocks, targets, outputs, groups=groups, seed=seed, threads=threads)
    return fit_ridge(features, blocks, targets, problem_type, outputs, groups=groups, seed=seed, threads=threads)


def fit_logistic(
    features: np.ndarray,
    blocks: Sequence[int],
    targets: np.ndarray,
    outputs: int,
    *,
    groups: np.ndarray | None = None,
    seed: int = 0,
    threads: int | None = None,
) -> LinearModel:
    """Fit a linear model of standardised features by its log loss.

    With many classes, a squared error spends its effort on the many zeros of each row. The penalty is small and fixed;
    the temperature is that of a model without a fifth of the rows.

    Args:
        features: Features (rows, features).
        blocks: Widths of the consecutive blocks of features; each has the same weight in the penalty.
        targets: Class of each row.
        outputs: Number of classes.
        groups: Group of each row; rows of a group are held out together.
        seed: Random seed of the fold that is held out.
        threads: Threads of the linear algebra library; by default it decides.
    """
    with threadpool_limits(threads, "blas"):
        center, scale = standardization(features, blocks)
        scaled = ((features - center) * scale).astype(np.float32)
        components, basis = _principal_components(scaled)
        rng = np.random.default_rng(seed)
        labels = np.arange(len(targets)) if groups is None else np.unique(groups, return_inverse=True)[1]
        held_out = next(iter(grouped_folds(labels, rng)), np.arange(0))
        factor, weight, bias = 1.0, np.zeros((components.shape[1], outputs)), np.zeros(outputs)
        if len(held_out):
            kept = np.setdiff1d(np.arange(len(targets)), held_out)
            weight, bias = _minimize(components[kept], targets[kept], weight, bias, ITERATIONS)
            logits = components[held_out] @ weight + bias
            factor, _ = calibration(logits, targets[held_out], "single_label_classification")
        more = MORE_ITERATIONS if len(held_out) else ITERATIONS
        weight, bias = _minimize(components, targets, weight, bias, more)
        weight = ((basis @ weight) * scale[:, None]).T * factor
        return LinearModel(weight.astype(np.float32), (bias * factor - weight @ center).astype(np.float32), PENALTY)


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
