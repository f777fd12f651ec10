"""Simple models that a search is compared with: the frozen encoder with a linear model, and TF-IDF with one.

Both get the same time as the search and use as many training rows as fit into it. Predicting the test rows is not
counted, neither here nor for the model of the search.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from draws import CLASSES, REGRESSION

from headhunt.data import Task

MAX_ENCODED_ROWS = 20_000
TUNING_ROWS = 2_000  # rows that the penalty is chosen on
TUNING_SHARE = 0.7  # of the time; what has been compared by then decides
FOLDS = 3
# Inverse penalties, those that are best most often first.
DENSE_PENALTIES = (0.01, 0.1, 1.0, 0.001, 10.0)
SPARSE_PENALTIES = (10.0, 1.0, 100.0, 0.1)
FIRST_ROWS = 5_000  # rows of the first fit of TF-IDF; each further fit takes four times as many
BATCH = 64


@dataclass(frozen=True)
class Reference:
    """The predictions of a reference model and the cost of fitting it."""

    predictions: np.ndarray
    """Class ids (rows,), multi-hot rows (rows, labels) or numbers (rows,)."""
    rows: int
    """Training rows it was fitted on."""
    seconds: float
    """Time from loading the encoder or counting words to the fitted model."""
    penalty: float
    threshold: float | None = None
    """The common threshold of all labels, if a row may have several."""


def fit_frozen(task: Task, encoder: str, limit: float) -> Reference:
    """Fit a linear model on the mean of the encoder's last layer.

    Half of the time at most is used to encode; the rest is for the linear model.

    Args:
        task: The data.
        encoder: Directory of the encoder.
        limit: Seconds.
    """
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    started = time.monotonic()
    train, test = task.splits["train"], task.splits["test"]
    encode = _MeanEncoder(encoder)
    order = np.random.default_rng(0).permutation(len(train))[:MAX_ENCODED_ROWS]
    pieces: list[np.ndarray] = []
    for start in range(0, len(order), 16 * BATCH):
        rows = train.take(order[start : start + 16 * BATCH])
        pieces.append(encode(rows.texts(), rows.texts_b()))
        if time.monotonic() - started > limit / 2:
            break
    features = np.concatenate(pieces)
    targets = train.targets[order[: len(features)]]
    linear = _LinearModel(task.problem_type, DENSE_PENALTIES, lambda model: make_pipeline(StandardScaler(), model))
    linear.fit(features, targets, started + TUNING_SHARE * limit)
    seconds = time.monotonic() - started
    predictions = linear.predict(encode(test.texts(), test.texts_b()))
    return Reference(predictions, len(features), round(seconds, 2), linear.penalty, linear.threshold)


def frozen_outputs(task: Task, encoder: str) -> tuple[np.ndarray, np.ndarray]:
    """Return out-of-fold outputs of the training rows and outputs of the test rows, of the model of `fit_frozen`.

    Args:
        task: The data.
        encoder: Directory of the encoder.
    """
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    train, test, encode = task.splits["train"], task.splits["test"], _MeanEncoder(encoder)
    features = encode(train.texts(), train.texts_b())
    linear = _LinearModel(task.problem_type, DENSE_PENALTIES, lambda model: make_pipeline(StandardScaler(), model))
    linear.fit(features, train.targets, float("inf"))
    folds = np.arange(len(features)) % FOLDS
    held_out = linear._out_of_fold(features, train.targets, folds, linear.penalty)
    return held_out, linear._outputs(linear.model, encode(test.texts(), test.texts_b()))


def frozen_cosines(task: Task, encoder: str) -> np.ndarray:
    """Return the cosine of the two texts of each test row, from the mean of the frozen encoder's last layer."""
    encode, test = _MeanEncoder(encoder), task.splits["test"]
    first, second = encode(test.texts(), None), encode(test.texts_b() or [], None)
    cosines: np.ndarray = (first * second).sum(1) / np.linalg.norm(first, axis=1) / np.linalg.norm(second, axis=1)
    return cosines


def fit_tfidf(task: Task, limit: float) -> Reference:
    """Fit a linear model on the TF-IDF weights of words and pairs of words.

    The number of rows is raised as long as a fit on four times as many is expected to end in time.

    Args:
        task: The data.
        limit: Seconds.
    """
    started = time.monotonic()
    train, test = task.splits["train"], task.splits["test"]
    order = np.random.default_rng(0).permutation(len(train))
    size = min(FIRST_ROWS, len(order))
    while True:
        began = time.monotonic()
        rows = train.take(order[:size])
        features = _WordFeatures(task.pair)
        linear = _LinearModel(task.problem_type, SPARSE_PENALTIES)
        linear.fit(features.fit(rows.texts(), rows.texts_b()), rows.targets, started + TUNING_SHARE * limit)
        now = time.monotonic()
        if size == len(order) or now - started + 6 * (now - began) > limit:
            break
        size = min(4 * size, len(order))
    predictions = linear.predict(features.transform(test.texts(), test.texts_b()))
    return Reference(predictions, size, round(now - started, 2), linear.penalty, linear.threshold)


class _MeanEncoder:
    """The mean of the last layer of a frozen encoder; pairs become [|u − v|, u · v] of both texts."""

    def __init__(self, encoder: str) -> None:
        import torch
        from transformers import AutoModel

        from headhunt.modeling.pretrained import load_tokenizer, quiet
        from headhunt.training.device import pick_device

        self.device = pick_device()
        self.tokenizer = load_tokenizer(encoder)
        with quiet():
            self.model = AutoModel.from_pretrained(encoder, dtype=torch.float32).to(self.device).eval()

    def __call__(self, texts: Sequence[str], texts_b: Sequence[str] | None) -> np.ndarray:
        if texts_b is None:
            return self._encode(texts)
        first, second = self._encode(texts), self._encode(texts_b)
        return np.hstack([np.abs(first - second), first * second])

    def _encode(self, texts: Sequence[str]) -> np.ndarray:
        import torch

        from headhunt.training.device import autocast
        from headhunt.training.tokens import by_length, tokenise

        tokens = tokenise(self.tokenizer, texts)
        vectors = np.empty((len(texts), self.model.config.hidden_size), np.float32)
        with torch.inference_mode(), autocast(self.device, "auto"):
            for rows in by_length(tokens.lengths, BATCH):
                inputs = {name: tensor.to(self.device) for name, tensor in tokens.batch(rows).items()}
                hidden = self.model(**inputs).last_hidden_state.float()
                mask = inputs["attention_mask"][..., None].float()
                vectors[rows] = ((hidden * mask).sum(1) / mask.sum(1)).cpu().numpy()
        return vectors


class _WordFeatures:
    """TF-IDF weights of words and pairs of words; pairs of texts become [|u − v|, u · v]."""

    def __init__(self, pair: bool) -> None:
        from sklearn.feature_extraction.text import TfidfVectorizer

        self.pair = pair
        self.vectorizer = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"(?u)\b\w+\b")

    def fit(self, texts: Sequence[str], texts_b: Sequence[str] | None) -> Any:
        self.vectorizer.fit([*texts, *(texts_b or [])])
        return self.transform(texts, texts_b)

    def transform(self, texts: Sequence[str], texts_b: Sequence[str] | None) -> Any:
        from scipy.sparse import hstack

        first = self.vectorizer.transform(texts)
        if texts_b is None:
            return first
        second = self.vectorizer.transform(texts_b)
        return hstack([abs(first - second), first.multiply(second)]).tocsr()


class _LinearModel:
    """Logistic regression, one per label if a row may have several, or ridge regression.

    The penalty is chosen by cross-validation on at most TUNING_ROWS rows, and so is the threshold of labels.

    Args:
        problem_type: Problem type of the task.
        penalties: Inverse penalties to compare.
        wrap: Adds steps before the model.
    """

    def __init__(
        self, problem_type: str, penalties: Sequence[float], wrap: Callable[[Any], Any] = lambda model: model
    ) -> None:
        self.problem_type, self.penalties, self.wrap = problem_type, penalties, wrap
        self.penalty = penalties[0]
        self.threshold: float | None = None
        self.model: Any = None

    def _build(self, penalty: float) -> Any:
        from sklearn.linear_model import LogisticRegression, Ridge
        from sklearn.multiclass import OneVsRestClassifier

        if self.problem_type == "regression":
            return self.wrap(Ridge(alpha=1 / penalty))
        classifier = LogisticRegression(C=penalty, max_iter=200)
        return self.wrap(OneVsRestClassifier(classifier) if self.problem_type != CLASSES else classifier)

    def fit(self, features: Any, targets: np.ndarray, deadline: float) -> None:
        """Choose the penalty, as far as the time on the monotonic clock allows, and fit on all rows."""
        rows = min(TUNING_ROWS, len(targets))
        folds = np.arange(rows) % FOLDS
        best: float | None = None
        for penalty in self.penalties:
            outputs = self._out_of_fold(features[:rows], targets[:rows], folds, penalty)
            score, threshold = self._score(outputs, targets[:rows])
            if best is None or score > best:
                best, self.penalty, self.threshold = score, penalty, threshold
            if time.monotonic() > deadline:
                break
        self.model = self._fit(features, targets, self.penalty)

    def predict(self, features: Any) -> np.ndarray:
        """Return class ids, multi-hot rows or numbers."""
        return self._decide(self._outputs(self.model, features), self.threshold)

    def _fit(self, features: Any, targets: np.ndarray, penalty: float) -> Any:
        import warnings

        with warnings.catch_warnings():  # labels without a row in a fold, and steps that reach their limit
            warnings.simplefilter("ignore")
            return self._build(penalty).fit(features, targets)

    def _outputs(self, model: Any, features: Any) -> np.ndarray:
        if self.problem_type == CLASSES:
            return np.asarray(model.predict(features))
        return np.asarray(model.predict_proba(features) if self.problem_type != REGRESSION else model.predict(features))

    def _out_of_fold(self, features: Any, targets: np.ndarray, folds: np.ndarray, penalty: float) -> np.ndarray:
        pieces = [np.flatnonzero(folds == fold) for fold in range(FOLDS)]
        outputs = [
            self._outputs(self._fit(features[folds != fold], targets[folds != fold], penalty), features[rows])
            for fold, rows in enumerate(pieces)
        ]
        ordered = np.concatenate(outputs)
        restored = np.empty_like(ordered)
        restored[np.concatenate(pieces)] = ordered
        return restored

    def _score(self, outputs: np.ndarray, targets: np.ndarray) -> tuple[float, float | None]:
        """Return the score that the penalty is chosen by, and the best threshold of labels."""
        if self.problem_type == REGRESSION:
            return -float(np.square(outputs - targets).mean()), None
        if self.problem_type == CLASSES:
            return float((outputs == targets).mean()), None
        scores = {}
        for threshold in np.arange(1, 61) / 100:
            chosen = outputs >= threshold
            scores[float(threshold)] = 2 * (chosen & (targets > 0)).sum() / max(1, chosen.sum() + targets.sum())
        best = max(scores, key=scores.__getitem__)
        return float(scores[best]), best

    def _decide(self, outputs: np.ndarray, threshold: float | None) -> np.ndarray:
        return outputs if threshold is None else (outputs >= threshold).astype(np.int64)
