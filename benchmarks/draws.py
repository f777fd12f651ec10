"""Draw training and test rows of data sets for the benchmarks, and fit the simple model that a search is compared with.

Test rows whose texts are among the training rows are left out, and at most 2,000 are drawn. Training rows are a random
sample in which every class or label occurs at least twice, if the data set has two such rows.

The official test rows of clinc150 are 18 % out of scope, the training rows 0.7 %. Only those in scope are used as test
rows, which is the usual "in-scope accuracy". The training rows keep theirs. clinc150_oos has all test rows.

The simple model is a linear one on the frozen encoder. It gets the same time as the search and uses as many training
rows as fit into it. Predicting the test rows is not counted, neither here nor for the model of the search.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas

from headhunt.data import Task

CLASSES, LABELS, REGRESSION = "single_label_classification", "multi_label_classification", "regression"
MAX_TEST_ROWS = 2_000


@dataclass(frozen=True)
class DataSet:
    """A data set of the data directory."""

    problem_type: str = CLASSES
    pair: bool = False
    test: str = "test"
    """The split that the test rows are drawn from."""
    without: str | None = None
    """Class whose test rows are left out."""
    folder: str | None = None
    """Subdirectory of the data directory; by default the name."""


DATA_SETS = {
    "sst2": DataSet(test="dev"),
    "ag_news": DataSet(),
    "clinc150": DataSet(without="oos"),
    "clinc150_oos": DataSet(folder="clinc150"),
    "goemotions": DataSet(LABELS),
    "reuters90": DataSet(LABELS),
    "imdb": DataSet(),
    "stsb": DataSet(REGRESSION, pair=True),
    "mrpc": DataSet(pair=True),
    "cr": DataSet(),
    "subj": DataSet(),
    "mpqa": DataSet(),
    "rte": DataSet(pair=True, test="dev"),
}


@dataclass(frozen=True)
class Drawn:
    """Files of drawn rows, and the facts that are needed to use them."""

    train: Path
    test: Path
    problem_type: str
    pair: bool

    def options(self) -> list[str]:
        """Return the arguments of `headhunt search` that select these rows."""
        return [str(self.train), "--test", str(self.test), "--problem-type", self.problem_type]


def draw(name: str, data: Path, folder: Path, rows: int | None, test_rows: int = MAX_TEST_ROWS) -> Drawn:
    """Write the rows of a data set to files.

    Args:
        name: A name in DATA_SETS.
        data: Directory with a subdirectory per data set.
        folder: Directory for the files.
        rows: Number of training rows; None is all.
        test_rows: Number of test rows at most.
    """
    chosen = DATA_SETS[name]
    columns = ["text", "text_b", "label"] if chosen.pair else ["text", "label"]
    source = data / (chosen.folder or name)
    train = pandas.read_parquet(source / "train.parquet")[columns]
    test = pandas.read_parquet(source / f"{chosen.test}.parquet")[columns]
    train = sample(train, rows, chosen.problem_type)
    seen = set(zip(*(train[column] for column in columns[:-1]), strict=True))
    unseen = [key not in seen for key in zip(*(test[column] for column in columns[:-1]), strict=True)]
    test = test[unseen]
    if chosen.without is not None:
        test = test[test.label != chosen.without]
    test = test.sample(min(test_rows, len(test)), random_state=0)
    drawn = Drawn(folder / f"{name}_train.parquet", folder / f"{name}_test.parquet", chosen.problem_type, chosen.pair)
    train.to_parquet(drawn.train, index=False)
    test.to_parquet(drawn.test, index=False)
    return drawn


def sample(frame: pandas.DataFrame, rows: int | None, problem_type: str, seed: int = 0) -> pandas.DataFrame:
    """Return a random sample of rows in which every class or label occurs at least twice, if it can."""
    if rows is None or rows >= len(frame):
        return frame
    order = np.random.default_rng(seed).permutation(len(frame))
    chosen: list[int] = []
    if problem_type != REGRESSION:
        counts: Counter[str] = Counter()
        for position in order:
            label = frame.label.iloc[position]
            labels = [label] if isinstance(label, str) else list(label)
            if any(counts[name] < 2 for name in labels):
                chosen.append(position)
                counts.update(labels)
    kept = set(chosen)
    chosen += [position for position in order if position not in kept]
    # Shuffled again, so that rare labels are not all at the beginning.
    return frame.iloc[np.random.default_rng(seed).permutation(chosen[:rows])]


MAX_ENCODED_ROWS = 20_000
TUNING_ROWS = 2_000  # rows that the penalty is chosen on
TUNING_SHARE = 0.7  # of the time; what has been compared by then decides
FOLDS = 3
# Inverse penalties, those that are best most often first.
DENSE_PENALTIES = (0.01, 0.1, 1.0, 0.001, 10.0)
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
