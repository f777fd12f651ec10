"""Fit TF-IDF features with a linear model, a reference that needs no encoder and takes seconds.

Features are TF-IDF weights of words and pairs of neighbouring words and, for little text, of character n-grams within
words. The model is a linear support vector machine with calibrated probabilities, or ridge regression for numbers.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headhunt.data.labels import ProblemType

MAX_ROWS = 50_000
"""Larger training data is sampled."""
MAX_TEXT = 10_000
"""Characters of one text that are read."""
CHARACTER_NGRAMS_UP_TO, PAIR_CHARACTER_NGRAMS_UP_TO = 500_000, 1_000_000
"""Total characters of the training texts up to which character n-grams are added, for single texts and for pairs.

Of pairs only the cosine of the n-grams is used. It has nearly all of the gain at a fraction of the cost.
"""
PENALTIES: dict[str, tuple[float, ...]] = {"classes": (0.1, 0.3, 1.0, 3.0), "numbers": (0.3, 1.0, 3.0, 10.0)}
"""Values to choose from: `C` of the support vector machine, `alpha` of ridge regression."""
MANY_OUTPUTS = 50
"""With more labels than this the penalty is not chosen, which would take longer than the fit."""
CHOICE_ROWS = 4_000
"""Rows on which the penalty is chosen."""
SMALLEST = 1e-6
"""Smallest probability, also of classes that are not among the training rows."""

# Seconds per character on one core, measured with a margin: features of words, the same with character n-grams, and one
# fit of one label with each of the two.
FEATURE_SECONDS = (1.5e-6, 6e-6)
FIT_SECONDS = (2.5e-8, 1e-7)


@dataclass(frozen=True)
class _Calibration:
    """Map from scores of the linear model to probabilities."""

    scale: float = 1.0
    shift: float = 0.0


@dataclass(frozen=True)
class TfidfModel:
    """A fitted TF-IDF model.

    Attributes:
        rows: The number of training rows used, after sampling.
        penalty: The chosen `C` or `alpha`; None if the model is constant, for want of words or of different targets.
    """

    rows: int
    penalty: float | None
    _problem_type: ProblemType
    _prior: np.ndarray
    _vectorizers: Sequence[Any] = ()
    _estimators: Sequence[Any] = ()
    _calibration: _Calibration = _Calibration()

    def outputs(self, texts: Sequence[str], texts_b: Sequence[str] | None = None) -> np.ndarray:
        """Return probabilities (rows, labels), or numbers (rows,) for regression.

        Args:
            texts: Texts.
            texts_b: Second texts, for pairs.
        """
        if self.penalty is None:
            return np.tile(self._prior, (len(texts), 1) if self._prior.ndim else len(texts))
        weights = [vectorizer.transform(_stack(texts, texts_b)) for vectorizer in self._vectorizers]
        features = _features(weights, texts_b is not None)
        scores = _scores(self._estimators, features, self._problem_type, self._prior)
        return _probabilities(scores, self._problem_type, self._calibration)


def fit_tfidf(
    texts: Sequence[str],
    texts_b: Sequence[str] | None,
    targets: np.ndarray,
    problem_type: ProblemType,
    outputs: int,
    *,
    seconds: float = 30.0,
    seed: int = 0,
) -> TfidfModel:
    """Fit TF-IDF features and a linear model.

    The result is a function of the arguments: time is estimated from the amount of text, not measured.

    Args:
        texts: Training texts.
        texts_b: Second texts, for pairs.
        targets: Classes: integers (n,). Several labels: multi-hot (n, k). Numbers: (n,).
        problem_type: "single_label_classification", "multi_label_classification" or "regression".
        outputs: Number of labels; 1 for regression.
        seconds: Time that the fit may take on one core; rows are sampled to fit into it.
        seed: Random seed of the sample and of the rows on which the penalty is chosen.
    """
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(texts))[:MAX_ROWS]
    order = order[: _rows_within(order, texts, texts_b, outputs, seconds)]
    targets = np.asarray(targets)[order]
    sample = _stack([texts[i] for i in order], None if texts_b is None else [texts_b[i] for i in order])
    prior = _prior(targets, problem_type, outputs)
    vectorizers, weights = _fit_vectorizers(sample, texts_b is not None)
    if not vectorizers or not _varies(targets):
        return TfidfModel(len(order), None, problem_type, prior)
    features = _features(weights, texts_b is not None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # liblinear reports that it stopped early, which is meant
        penalty, calibration = _choose(features, targets, problem_type, prior)
        estimators = _fit_linear(features, targets, problem_type, penalty)
    return TfidfModel(len(order), penalty, problem_type, prior, vectorizers, estimators, calibration)


def _rows_within(
    order: np.ndarray, texts: Sequence[str], texts_b: Sequence[str] | None, outputs: int, seconds: float
) -> int:
    """Return how many rows of an order fit into the time; at least 50."""
    total = np.cumsum([_length(texts[i]) + (_length(texts_b[i]) if texts_b else 0) for i in order])
    fits = 2 if outputs > MANY_OUTPUTS else 1 + len(PENALTIES["classes"])
    with_characters = (total <= _character_limit(texts_b is not None)).astype(int)
    per_character = np.array(FEATURE_SECONDS) + np.array(FIT_SECONDS) * fits * outputs
    fitting = np.flatnonzero(total * per_character[with_characters] <= seconds)
    # With character n-grams a row costs more, so the last row that fits may follow rows that do not.
    return max(int(fitting[-1]) + 1 if len(fitting) else 0, min(50, len(order)))


def _length(text: str) -> int:
    return min(len(text), MAX_TEXT)


def _character_limit(pair: bool) -> int:
    return PAIR_CHARACTER_NGRAMS_UP_TO if pair else CHARACTER_NGRAMS_UP_TO


def _fit_vectorizers(texts: Sequence[str], pair: bool) -> tuple[list[Any], list[Any]]:
    """Return the vectorizers that find something to count in the texts, and the weights of the texts by each."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    settings: dict[str, Any] = {"sublinear_tf": True, "preprocessor": _prepare}
    # One-letter words count too: "I", and the words of some languages.
    kinds = [TfidfVectorizer(ngram_range=(1, 2), token_pattern=r"(?u)\b\w+\b", **settings)]  # noqa: S106 - a pattern of words, not a secret
    if sum(map(_length, texts)) <= _character_limit(pair):
        kinds.append(TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 5), min_df=min(2, len(texts)), **settings))
    vectorizers, weights = [], []
    for vectorizer in kinds:
        with contextlib.suppress(ValueError):  # no word, or none that occurs often enough
            weights.append(vectorizer.fit_transform(texts))
            vectorizers.append(vectorizer)
    return vectorizers, weights


def _stack(texts: Sequence[str], texts_b: Sequence[str] | None) -> Sequence[str]:
    return texts if texts_b is None else [*texts, *texts_b]


def _prepare(text: str) -> str:
    return text[:MAX_TEXT].lower()


def _features(weights: Sequence[Any], pair: bool) -> Any:
    """Return a sparse matrix: the weights, or for pairs [a; b; |a−b|; a∘b; cosine].

    Args:
        weights: The weights by each vectorizer; of pairs, all first texts before all second texts.
        pair: True for pairs.
    """
    from scipy import sparse

    if not pair:
        return sparse.hstack(weights).tocsr()
    blocks: list[Any] = []
    for matrix in weights:
        a, b = matrix[: matrix.shape[0] // 2], matrix[matrix.shape[0] // 2 :]
        product = a.multiply(b)
        # The first vectorizer counts words, the second one characters.
        blocks += [] if blocks else [a, b, abs(a - b), product]
        blocks.append(sparse.csr_matrix(product.sum(axis=1)))
    return sparse.hstack(blocks).tocsr()


def _fit_linear(features: Any, targets: np.ndarray, problem_type: ProblemType, penalty: float) -> list[Any]:
    """Return one estimator, or one per label (None if the label is the same in all rows)."""
    from sklearn.linear_model import Ridge
    from sklearn.svm import LinearSVC

    if problem_type == "regression":
        return [Ridge(alpha=penalty, solver="sparse_cg", tol=1e-4).fit(features, targets)]
    columns = targets.T if problem_type == "multi_label_classification" else [targets]
    settings = {"C": penalty, "dual": True, "tol": 0.1, "max_iter": 200, "random_state": 0}
    return [LinearSVC(**settings).fit(features, column) if _varies(column) else None for column in columns]


def _scores(estimators: Sequence[Any], features: Any, problem_type: ProblemType, prior: np.ndarray) -> np.ndarray:
    """Return the scores of the labels (rows, labels), or numbers (rows,)."""
    if problem_type == "regression":
        return np.asarray(estimators[0].predict(features), dtype=float)
    rows = features.shape[0]
    if problem_type == "multi_label_classification":
        # A label that never varies gets the score that stands for its share.
        constants = np.where(prior > 0.5, 10.0, -10.0)
        columns = [
            np.full(rows, constant) if estimator is None else estimator.decision_function(features)
            for estimator, constant in zip(estimators, constants, strict=True)
        ]
        return np.stack(columns, axis=1)
    (estimator,) = estimators
    decision = estimator.decision_function(features)
    known = np.stack([-decision, decision], axis=1) if decision.ndim == 1 else decision
    scores = np.full((rows, len(prior)), -np.inf)
    scores[:, estimator.classes_.astype(int)] = known
    return scores


def _probabilities(scores: np.ndarray, problem_type: ProblemType, calibration: _Calibration) -> np.ndarray:
    """Return calibrated probabilities of scores; numbers as they are."""
    from scipy.special import expit, softmax

    if problem_type == "regression":
        return scores
    logits = calibration.scale * scores + calibration.shift
    if problem_type == "multi_label_classification":
        return np.clip(expit(logits), SMALLEST, 1 - SMALLEST)
    likely = np.maximum(softmax(logits, axis=1), SMALLEST)
    return likely / likely.sum(axis=1, keepdims=True)


def _choose(
    features: Any, targets: np.ndarray, problem_type: ProblemType, prior: np.ndarray
) -> tuple[float, _Calibration]:
    """Return the penalty and calibration with the lowest loss on a quarter of the rows, which are in random order."""
    penalties: tuple[float, ...] = PENALTIES["numbers" if problem_type == "regression" else "classes"]
    if prior.size > MANY_OUTPUTS:
        penalties = (1.0,)
    rows = min(features.shape[0], CHOICE_ROWS)
    cut = rows - rows // 4
    if rows < 20 or not _varies(targets[:cut]):
        return 1.0, _Calibration()
    best: tuple[float, float, _Calibration] | None = None
    for penalty in penalties:
        estimators = _fit_linear(features[:cut], targets[:cut], problem_type, penalty)
        scores = _scores(estimators, features[cut:rows], problem_type, prior)
        loss, calibration = _calibrate(scores, targets[cut:rows], problem_type)
        if best is None or loss < best[0]:
            best = loss, penalty, calibration
    assert best is not None
    return best[1], best[2]


def _calibrate(scores: np.ndarray, targets: np.ndarray, problem_type: ProblemType) -> tuple[float, _Calibration]:
    """Return the lowest loss (squared error or negative log-likelihood) and the calibration that has it."""
    if problem_type == "regression":
        return float(np.mean((scores - targets) ** 2)), _Calibration()
    shifts = np.arange(-2.0, 2.1, 0.5) if problem_type == "multi_label_classification" else (0.0,)
    candidates = [
        _Calibration(float(scale), float(shift)) for scale in 2.0 ** np.arange(-1, 5.1, 0.5) for shift in shifts
    ]
    losses = [_loss(_probabilities(scores, problem_type, each), targets, problem_type) for each in candidates]
    lowest = int(np.argmin(losses))
    return losses[lowest], candidates[lowest]


def _loss(probabilities: np.ndarray, targets: np.ndarray, problem_type: ProblemType) -> float:
    """Return the mean negative log-likelihood."""
    if problem_type == "multi_label_classification":
        return float(-np.mean(np.log(np.where(targets > 0.5, probabilities, 1 - probabilities))))
    return float(-np.mean(np.log(probabilities[np.arange(len(targets)), targets.astype(int)])))


def _prior(targets: np.ndarray, problem_type: ProblemType, outputs: int) -> np.ndarray:
    """Return the shares of the labels (labels,), or the mean ()."""
    if problem_type == "regression":
        return np.asarray(targets.mean(), dtype=float)
    if problem_type == "multi_label_classification":
        return np.clip(targets.mean(axis=0), SMALLEST, 1 - SMALLEST)
    shares = np.maximum(np.bincount(targets.astype(int), minlength=outputs) / len(targets), SMALLEST)
    return shares / shares.sum()


def _varies(targets: np.ndarray) -> bool:
    """Return True if the targets are not all equal."""
    return bool((targets != targets[:1]).any())
