"""Fit a penalized linear model of pooled features and word counts, for every problem type."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from headhunt.spec import MANY_CLASSES
from headhunt.spec.spec import ONE_CLASS
from headhunt.training.activations import StoppedError

PENALTIES = (10.0, 3.0, 1.0, 0.3, 0.1, 0.03)  # relative to features of unit length; tried in this order
LOG_PENALTIES = (1.0, 0.3, 0.1, 0.03, 0.01, 0.001)  # of the log loss: few rows of many classes need small ones
COMPONENTS = 500  # principal components of the pooled features: time grows with them, accuracy hardly
LANDMARKS = 1000  # rows that the components are of; with no more rows, nothing is lost
MULTI_LABEL = "multi_label_classification"
FOLDS = 5
HELD_OUT_ROWS = 500  # rows that penalty and calibration are chosen on, at least: a whole number of folds
THRESHOLD_ROWS = 2000  # the same for several labels, whose decision thresholds are fitted on these rows too
ITERATIONS, MEMORY = 30, 6  # of L-BFGS
TOLERANCE = 1e-4  # relative decrease of the loss that ends it
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
    """A linear model of raw features and word counts: standardization and calibration are part of its weights."""

    weight: np.ndarray
    """(outputs, features)"""
    bias: np.ndarray
    """(outputs,)"""
    penalty: float
    held_out: HeldOut | None = None
    words: np.ndarray | None = None
    """(outputs, columns of the word counts)"""
    loss: float = np.inf
    """Of held-out rows."""

    def logits(self, features: np.ndarray, words: Any = None) -> np.ndarray:
        """Return the outputs (rows, outputs) of features (rows, features) and of sparse word counts (rows, columns)."""
        logits = features @ self.weight.T + self.bias
        return np.asarray(logits if self.words is None else logits + words @ self.words.T)


def fit_linear(
    features: np.ndarray,
    blocks: Sequence[int],
    targets: np.ndarray,
    problem_type: str,
    outputs: int,
    *,
    solver: str | None = None,
    words: Any = None,
    last_mean: slice | None = None,
    groups: np.ndarray | None = None,
    balanced: bool = False,
    seed: int = 0,
    stop: Callable[[], bool] = lambda: False,
) -> LinearModel:
    """Fit a linear model of standardized features and word counts.

    The loss is the squared error, with classes as -1 and 1, or the log loss of many classes: a squared error spends its
    effort on the many zeros of each row. Every block of features has the same weight in the penalty, however wide it
    is. The mean of the last layer, which many encoders were trained to tell texts apart by, weighs as much as all
    blocks together if that has the smaller loss on held-out rows, of a sample if there are many. The penalty has the
    smallest loss on them too. They also calibrate the outputs: a temperature for classes, a scale and a shift for
    several labels.

    Args:
        features: Features (rows, features); without columns if there are only word counts.
        blocks: Widths of the consecutive blocks of features.
        targets: Class ids, multi-hot rows or numbers.
        problem_type: "single_label_classification", "multi_label_classification" or "regression".
        outputs: Number of outputs.
        solver: "ridge" for the squared error or "logistic" for the log loss; by default that of a solved head.
        words: Sparse word counts (rows, columns), in rows of unit length.
        last_mean: The features that are the mean of the encoder's last layer, if there are others.
        groups: Group of each row; rows of a group are held out together.
        balanced: Weight each row inversely to the square root of its class's frequency.
        seed: Random seed of the folds.
        stop: Called in every iteration.

    Raises:
        StoppedError: If `stop` returns True.
    """
    log_loss = problem_type == ONE_CLASS and (solver == "logistic" if solver else outputs > MANY_CLASSES)
    groups = np.arange(len(targets)) if groups is None else groups
    weights = np.ones((len(targets), 1), np.float32)
    if balanced and problem_type == ONE_CLASS:
        weights[:, 0] = np.bincount(targets)[targets] ** -0.5
        weights /= weights.mean()

    def fit(rows: np.ndarray | slice, emphasized: slice | None) -> LinearModel:
        center, scale = standardization(features[rows], blocks, emphasized)
        parts: list[Any] = [((features[rows] - center) * scale).astype(np.float32)]
        parts += [] if words is None else [words[rows]]
        problem = _Problem(parts, targets[rows], problem_type, outputs, log_loss, weights[rows], stop)
        folds = grouped_folds(groups[rows], np.random.default_rng(seed))
        needed = THRESHOLD_ROWS if problem_type == MULTI_LABEL else HELD_OUT_ROWS
        return _solve(problem, folds[: -(-needed * len(folds) // len(targets[rows]))], center, scale)

    every, sample = slice(None), _spread_sample(len(targets))
    # Products are small, and threads that compete for busy cores wait for each other most of the time.
    with threadpool_limits(1, "blas"):
        if last_mean is None or len(blocks) == 1:
            return fit(every, None)
        # benchmarks/testbed/last_layer.py
        equal, emphasized = fit(sample, None), fit(sample, last_mean)
        chosen = equal if equal.loss <= emphasized.loss else emphasized
        return chosen if len(sample) == len(targets) else fit(every, None if chosen is equal else last_mean)


def _solve(problem: _Problem, folds: Sequence[np.ndarray], center: np.ndarray, scale: np.ndarray) -> LinearModel:
    """Choose the penalty of a problem, and return its solution for features before standardization."""
    penalty, loss, logits, start = problem.choose_penalty(folds)
    factor, shift = 1.0, 0.0
    held_out = None
    if logits is not None:
        rows = np.concatenate(folds)
        factor, shift = calibration(logits, problem.targets[rows], problem.problem_type)
        held_out = HeldOut(rows, (problem.rescale(logits) * factor + shift).astype(np.float32))
    (weight, *more), bias = problem.solve(penalty, start)
    weight = weight.T * scale * factor
    return LinearModel(
        weight.astype(np.float32),
        (bias * factor + shift - weight @ center).astype(np.float32),
        penalty,
        held_out,
        (more[0].T * factor).astype(np.float32) if more else None,
        loss,
    )


class _Problem:
    """The minimization of a penalized loss over rows, in few coordinates.

    These are the principal components of the features. With few rows they include the word counts, so that there are
    no more coordinates than rows and nothing is lost. With many rows, word counts are coordinates themselves.

    Args:
        parts: Features (rows, features), and sparse word counts if there are any.
        targets: Targets of the rows.
        problem_type: The problem type.
        outputs: Number of outputs.
        log_loss: Minimize the log loss of classes in place of the squared error.
        weights: Weight of each row (rows, 1).
        stop: Called in every iteration.
    """

    def __init__(
        self,
        parts: list[Any],
        targets: np.ndarray,
        problem_type: str,
        outputs: int,
        log_loss: bool,
        weights: np.ndarray,
        stop: Callable[[], bool],
    ) -> None:
        few = len(targets) <= LANDMARKS
        joined = parts if few else parts[:1]
        components, self._bases = _principal_components(joined, len(targets) if few else COMPONENTS)
        self._parts = [components, *parts[len(joined) :]]
        self.targets, self.problem_type, self._log_loss, self._stop = targets, problem_type, log_loss, stop
        self._weights = weights
        self._mean, self._spread = 0.0, 1.0
        if problem_type == "regression":
            self._mean, self._spread = float(np.mean(targets)), float(np.std(targets)) or 1.0
            encoded = ((targets - self._mean) / self._spread)[:, None]
        else:
            encoded = np.eye(outputs)[targets] if problem_type == ONE_CLASS else np.asarray(targets)
        self._encoded = (encoded if log_loss or problem_type == "regression" else encoded * 2 - 1).astype(np.float32)

    def rescale(self, logits: np.ndarray) -> np.ndarray:
        """Return logits in the units of the targets."""
        return logits * self._spread + self._mean

    def choose_penalty(self, folds: Sequence[np.ndarray]) -> tuple[float, float, np.ndarray | None, np.ndarray | None]:
        """Return the penalty with the smallest loss of held-out rows, this loss, their logits and a solution.

        Penalties are tried from the largest to the first that is worse than the one before.
        """
        if not folds:
            return 1.0, np.inf, None, None
        rows = np.concatenate(folds)
        best: tuple[float, float, np.ndarray | None, np.ndarray | None] = (1.0, np.inf, None, None)
        solutions: list[np.ndarray | None] = [None] * len(folds)
        kept = [np.setdiff1d(np.arange(len(self.targets)), fold) for fold in folds]
        learned = [([part[each] for part in self._parts], each) for each in kept]
        left_out = [[part[fold] for part in self._parts] for fold in folds]
        for penalty in LOG_PENALTIES if self._log_loss else PENALTIES:
            found = [self._minimize(*each, penalty, start) for each, start in zip(learned, solutions, strict=True)]
            logits = np.concatenate([_logits(part, each) for part, each in zip(left_out, found, strict=True)])
            solutions = [*found]
            loss = self._held_out_loss(logits, rows)
            if loss > best[1]:
                break
            best = penalty, loss, logits, solutions[0]
        return best

    def _held_out_loss(self, logits: np.ndarray, rows: np.ndarray) -> float:
        targets, weights = self.targets[rows], self._weights[rows]
        if self.problem_type == "regression":
            return float(np.square(logits - self._encoded[rows]).mean())
        factor, shift = calibration(logits, targets, self.problem_type)
        logits = logits * factor + shift
        if self.problem_type == ONE_CLASS:
            from scipy.special import log_softmax

            return float(-(weights[:, 0] * log_softmax(logits, axis=1)[np.arange(len(rows)), targets]).mean())
        return float((np.logaddexp(0, logits) - targets * logits).mean())

    def solve(self, penalty: float, start: np.ndarray | None) -> tuple[list[np.ndarray], np.ndarray]:
        """Return the weights (columns, outputs) of each part and the biases, in the units of the targets."""
        found = self._minimize(self._parts, np.arange(len(self.targets)), penalty, start) * self._spread
        width = self._parts[0].shape[1]
        weights = [basis @ found[:width] for basis in self._bases]
        weights += [found[width:-1]] if len(self._parts) > 1 else []
        return weights, found[-1] + self._mean

    def _minimize(self, parts: list[Any], rows: np.ndarray, penalty: float, start: np.ndarray | None) -> np.ndarray:
        """Return the weights, and below them the biases, with the smallest loss of rows."""
        encoded, weights = self._encoded[rows], self._weights[rows]
        share = (encoded * weights).mean(0)
        curvature = float((share * (1 - share)).mean()) if self._log_loss else 1.0
        squares = [
            np.asarray(part.multiply(part).sum(0)).ravel() if _sparse(part) else (part**2).sum(0) for part in parts
        ]
        penalties = np.append(np.full(sum(map(len, squares)), penalty, np.float32), np.float32(1e-3))[:, None]
        # In these coordinates all directions are about equally curved, which saves most iterations.
        scale = 1 / np.sqrt(curvature * np.append(np.concatenate(squares), len(rows))[:, None] + penalties)
        scale, penalties[-1] = scale.astype(np.float32), 0

        def evaluate(scaled: np.ndarray) -> tuple[float, np.ndarray]:
            if self._stop():
                raise StoppedError
            solution = scale * scaled
            logits = _logits(parts, solution)
            if self._log_loss:
                logits -= logits.max(1, keepdims=True)
                residual = np.exp(logits)
                total = residual.sum(1, keepdims=True)
                losses = np.log(total) - (logits * encoded).sum(1, keepdims=True)
                residual = residual / total - encoded
            else:
                residual = logits - encoded
                losses = np.square(residual) / 2
            residual *= weights
            loss = (losses * weights).sum(dtype=np.float64) + (penalties * solution**2).sum(dtype=np.float64) / 2
            gradient = np.concatenate([*(part.T @ residual for part in parts), residual.sum(0, keepdims=True)])
            return float(loss), scale * (gradient + penalties * solution)

        zeros = np.zeros((len(scale), encoded.shape[1]), np.float32)
        return np.asarray(scale * _lbfgs(evaluate, zeros if start is None else start / scale))


def _sparse(part: Any) -> bool:
    return not isinstance(part, np.ndarray)


def _logits(parts: list[Any], solution: np.ndarray) -> np.ndarray:
    """Return the logits of rows, from the weights of each part's columns and, below them, the biases."""
    splits = np.cumsum([part.shape[1] for part in parts])[:-1]
    weights = np.split(solution[:-1], splits)
    return np.asarray(sum(part @ weight for part, weight in zip(parts, weights, strict=True)) + solution[-1])


def _lbfgs(evaluate: Callable[[np.ndarray], tuple[float, np.ndarray]], point: np.ndarray) -> np.ndarray:
    """Minimize a convex function, given its value and gradient, whose curvature is about 1 everywhere.

    SciPy's takes ten times as long for a million variables: it allows for bounds.
    """
    loss, gradient = evaluate(point)
    pairs: deque[tuple[np.ndarray, np.ndarray, float]] = deque(maxlen=MEMORY)
    for _ in range(ITERATIONS):
        direction, factors = -gradient, []
        for step, change, product in reversed(pairs):
            factors.append(float(np.vdot(step, direction)) / product)
            direction -= factors[-1] * change
        if pairs:
            direction *= pairs[-1][2] / float(np.vdot(pairs[-1][1], pairs[-1][1]))
        for (step, change, product), factor in zip(pairs, reversed(factors), strict=True):
            direction += (factor - float(np.vdot(change, direction)) / product) * step
        slope, size = float(np.vdot(direction, gradient)), 1.0
        for _ in range(10):
            new_loss, new_gradient = evaluate(point + size * direction)
            if new_loss <= loss + 1e-4 * size * slope:
                break
            size /= 2
        else:
            return point
        step, change = size * direction, new_gradient - gradient
        product, decrease = float(np.vdot(step, change)), loss - new_loss
        point, loss, gradient = point + step, new_loss, new_gradient
        if decrease <= TOLERANCE * loss:
            break
        if product > 0:
            pairs.append((step, change, product))
    return point


def _principal_components(parts: list[Any], most: int) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return the principal components (rows, components) of a sample of rows, and what computes them from each part."""
    from scipy.linalg import eigh

    rows = parts[0].shape[0]
    chosen = [part[_spread_sample(rows)] for part in parts]
    products = [part @ part.T for part in chosen]
    gram = sum(product.toarray() if _sparse(product) else product for product in products)
    values, vectors = eigh(gram, subset_by_index=[max(0, len(gram) - most), len(gram) - 1], overwrite_a=True)
    used = values > max(1e-6 * float(values[-1]), 1e-12)
    vectors = vectors[:, used] / np.sqrt(values[used])
    bases = [part.T @ vectors for part in chosen]
    return np.asarray(sum(part @ basis for part, basis in zip(parts, bases, strict=True))), bases


def _spread_sample(rows: int) -> np.ndarray:
    """Return at most `LANDMARKS` rows, spread over all."""
    return np.linspace(0, rows - 1, min(rows, LANDMARKS)).astype(int)


def standardization(
    features: np.ndarray, blocks: Sequence[int], emphasized: slice | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the center and the scale of each feature; after it, rows are about as long as 1.

    All blocks have the same sum of squares, but emphasized features have as much as all blocks together.
    """
    center = features.mean(0, dtype=np.float64)
    spread = features.std(0, dtype=np.float64)
    constant = spread <= np.maximum(SMALLEST_STD * np.abs(center), 1e-8)
    share = 1 / (np.repeat(np.asarray(blocks, np.float64), blocks) * len(blocks))
    if emphasized is not None:
        share[emphasized] *= len(blocks)
        share /= 2
    return center, np.where(constant, 0.0, np.sqrt(share) / np.where(constant, 1.0, spread))


def grouped_folds(groups: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """Return the rows of each fold; rows of a group are in the same fold."""
    names, groups = np.unique(groups, return_inverse=True)
    fold_of = rng.permutation(len(names)) % max(1, min(FOLDS, len(names)))
    rows = [np.flatnonzero(fold_of[groups] == fold) for fold in range(int(fold_of.max()) + 1)]
    return [part for part in rows if 0 < len(part) < len(groups)]


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
