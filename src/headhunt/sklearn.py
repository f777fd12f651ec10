"""Headhunt among scikit-learn's estimators: a classifier and a regressor of texts, or of pairs of texts.

Hides how arrays, series and frames become a task, how classes of any type become names and come back, and how a fitted
model is pickled: as the bytes of the folder that `save` writes, weights as safetensors, no code.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import (
    assert_all_finite,
    check_consistent_length,
    check_is_fitted,
    column_or_1d,
    validate_data,
)

from headhunt.data import Task
from headhunt.data.labels import ProblemType
from headhunt.errors import ModelError
from headhunt.modeling.architecture import Head
from headhunt.predictor import Predictor
from headhunt.run.results import SearchResult
from headhunt.spec import DEFAULT_ENCODER, Recipe, Spec, plain
from headhunt.training.device import pick_device

TIME = "10m"  # of a search that is asked for without saying how long
CLASSES = "classes"  # where a saved model keeps the classes as they were given
JSON_KINDS = "biufUO"  # kinds of arrays whose values JSON can hold
Labels = tuple[
    ProblemType, Sequence[Any], Sequence[str]
]  # the kind of task, the targets by their places, the labels' names


class _HeadEstimator(BaseEstimator):
    """What classifier and regressor share."""

    def __init__(
        self,
        encoder: str | None = None,
        *,
        head: Head | None = None,
        recipe: Recipe | None = None,
        search: str | float | bool | None = None,
        search_options: Mapping[str, Any] | None = None,
        run_dir: str | Path | None = None,
        workers: int | None = None,
        random_state: int | np.random.RandomState | None = None,
        device: str | None = None,
        precision: str = "auto",
        trust_remote_code: bool = False,
        verbose: bool = False,
    ) -> None:
        self.encoder = encoder
        self.head = head
        self.recipe = recipe
        self.search = search
        self.search_options = search_options
        self.run_dir = run_dir
        self.workers = workers
        self.random_state = random_state
        self.device = device
        self.precision = precision
        self.trust_remote_code = trust_remote_code
        self.verbose = verbose

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.one_d_array = True
        tags.input_tags.two_d_array = False  # no table of numbers; that pairs are n × 2 has no tag
        return tags

    # Parameters: `recipe__learning_rate` and the like reach into the parts of a candidate, which are frozen.

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The parameters; with `deep`, also what is in the head and in the recipe, as `recipe__learning_rate`."""
        params = super().get_params(deep)
        if deep:
            params |= dict(_inside("head", self.head)) | dict(_inside("recipe", self.recipe))
        return params

    def set_params(self, **params: Any) -> Self:
        """Sets parameters; `recipe__learning_rate` sets one item of the recipe and leaves the others as they are."""
        for key in sorted(params, key=lambda key: key.count("__")):  # wholes before their parts
            name, *path = key.split("__")
            if path and name in ("head", "recipe"):
                setattr(self, name, _put(getattr(self, name), path, params[key], key))
            else:
                super().set_params(**{key: params[key]})
        return self

    # Fitting

    def _fit(self, X: Any, y: Any, read: Callable[[Any], Labels]) -> Self:
        texts, texts_b = self._texts(X, reset=True)
        if y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None.")
        check_consistent_length(texts, y)
        problem_type, targets, names = read(y)
        self._check_parameters()
        given = self.random_state
        seed = int(given) if isinstance(given, int | np.integer) else int(check_random_state(given).randint(2**31 - 1))
        task = _task(texts, texts_b, targets, problem_type, names, seed, test_share=0.2 if self.search else 0.0)
        self.result_: SearchResult | None = None
        self.predictor_ = self._search(task, seed) if self.search else self._train(task, seed)
        self.predictor_.facts |= self._facts()
        return self

    def _facts(self) -> dict[str, Any]:
        """What a saved model has to keep for this estimator."""
        return {}

    def _check_parameters(self) -> None:
        for name, wanted in (("head", Head), ("recipe", Recipe)):
            found = getattr(self, name)
            if found is not None and not isinstance(found, wanted):
                raise TypeError(f"{name} must be a headhunt.{wanted.__name__} or None; found {found!r}.")
            if found is not None and self.search:
                raise ValueError(f"A search finds the {name} itself; give either {name} or search.")
        if self.search_options and not self.search:
            raise ValueError("search_options are for a search; give search too, as search='10m'.")

    def _train(self, task: Task, seed: int) -> Predictor:
        from headhunt.engine.api import fit
        from headhunt.report.notebook import training_bar

        standard = plain(self.encoder or DEFAULT_ENCODER, len(task.splits["train"]))
        spec = Spec(encoder=standard.encoder, head=self.head or Head(), recipe=self.recipe or standard.recipe)
        with training_bar("training") if self.verbose else nullcontext() as show:
            return fit(
                task,
                spec=spec,
                seed=seed,
                device=self.device,
                precision=self.precision,
                trust_remote_code=self.trust_remote_code,
                on_report=show,
            )

    def _search(self, task: Task, seed: int) -> Predictor:
        from headhunt.engine.search import search
        from headhunt.evaluation import DEFAULT_METRIC
        from headhunt.report.notebook import live_view
        from headhunt.report.terminal import SearchView

        options = dict(self.search_options or {})
        options.setdefault("metric", DEFAULT_METRIC[task.problem_type])
        with _folder(self.run_dir) as folder:
            found = search(
                task,
                out=folder,
                encoder=self.encoder,
                time=TIME if self.search is True else self.search,
                workers=self.workers,
                seed=seed,
                device=self.device,
                precision=self.precision,
                trust_remote_code=self.trust_remote_code,
                view=self.verbose and (live_view(options["metric"]) or SearchView(options["metric"])),
                **options,
            )
            self.result_ = found.result
            if self.run_dir is not None:
                self.search_ = found
            model = found.model_dir
            if model is None:
                raise ModelError(f"The search ended before its first model was trained; give more than {self.search}.")
            return _load(model, self.device, self.precision)

    # Answering

    def _outputs(self, X: Any) -> np.ndarray:
        check_is_fitted(self, "predictor_")
        return self.predictor_.outputs(*self._texts(X, reset=False))

    def _texts(self, X: Any, reset: bool) -> tuple[list[str], list[str] | None]:
        """Texts, and second texts where these are pairs; refuses all else."""
        if isinstance(X, str | bytes) or X is None:
            raise ValueError(f"X must hold one text, or two, per row; found {type(X).__name__}. Give a list of texts.")
        if hasattr(X, "toarray"):
            raise TypeError("X must hold texts; sparse data was passed, which holds numbers.")
        if not hasattr(X, "__len__") and not hasattr(X, "__array__"):
            X = list(X)
        columns = _columns(X)
        if not columns[0]:
            raise ValueError("X must hold at least one text; found 0 sample(s).")
        for column in columns:
            _check_texts(column)
        if not reset and (len(columns) == 2) != self.predictor_.pair:
            fitted, given = ("pairs of texts", "single texts") if self.predictor_.pair else ("single texts", "pairs")
            raise ValueError(f"{type(self).__name__} was fitted on {fitted}; X has {given}.")
        validate_data(self, X, reset=reset, skip_check_array=True)  # notes names and number of columns
        return columns[0], columns[1] if len(columns) == 2 else None

    # Keeping

    def save(self, folder: str | Path) -> Path:
        """Writes the fitted model as a folder that Headhunt and transformers load; `load` reads it again."""
        check_is_fitted(self, "predictor_")
        return self.predictor_.save(folder)

    @classmethod
    def load(cls, folder: str | Path, **params: Any) -> Self:
        """A fitted estimator from any folder that Headhunt saved. Runs no code from the folder.

        Args:
            folder: What `save`, `headhunt.fit` or a search wrote.
            params: Parameters of the estimator; encoder, head and recipe are the model's own unless given.

        Raises:
            ModelError: If the folder holds no such model, or one of another problem_type.
        """
        predictor = _load(folder, params.get("device"), params.get("precision", "auto"))
        spec = predictor.spec
        own = {"encoder": spec.encoder, "head": spec.head, "recipe": spec.recipe} if spec else {}
        estimator = cls(**{**own, **params})
        estimator._take(predictor)
        return estimator

    def _take(self, predictor: Predictor) -> None:
        self.predictor_ = predictor
        self.result_ = None
        if predictor.pair:
            self.n_features_in_ = 2

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        predictor = state.pop("predictor_", None)
        state.pop("search_", None)  # a folder on this machine
        if predictor is not None:
            with tempfile.TemporaryDirectory() as folder:
                predictor.save(folder)
                paths = [path for path in Path(folder).rglob("*") if path.is_file()]
                state["_folder"] = {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
        return state

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        state = dict(state)
        files: Mapping[str, bytes] = state.pop("_folder", {})
        super().__setstate__(state)
        if files:
            with tempfile.TemporaryDirectory() as folder:
                for name, content in files.items():
                    path = Path(folder) / name
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(content)
                self.predictor_ = _load(folder, _there(self.device), self.precision)


def _load(folder: str | Path, device: str | None, precision: str) -> Predictor:
    from headhunt.predictor import Predictor
    from headhunt.training.device import pick_device

    return Predictor.load(folder, device=pick_device(device), precision=precision)


class HeadClassifier(ClassifierMixin, _HeadEstimator):
    """Classifies texts, or pairs of texts: one class each, or any of several labels.

    X holds one text per row (a list, an array, a series) or two (a list of pairs, an n × 2 array, a frame with two
    columns). y holds classes of any type, which come back as they were given; or, for several labels at once, an n × k
    array of 0 and 1. All rows are trained on; a search sets a fifth of them aside for its verdict.

    Weights of rows are not supported: `fit` takes no `sample_weight`. `recipe=Recipe(class_weights=True)` lets each
    class count alike.

    Args:
        encoder: A Hugging Face name or a folder.
        head: What sits on the encoder; its own plain head unless given.
        recipe: How it is trained; a fair recipe for the plain head unless given.
        search: How long to search for head and recipe, as "10m" or a number of seconds; True for ten minutes, None to
            train the one candidate that is given.
        search_options: What else `headhunt.search` takes: trials, space, strategy, metric, max_latency …
        run_dir: A folder in which each search is kept, in a folder of its own; not kept unless given.
        workers: Processes that search side by side; 0 searches in this one; one per core or GPU unless given.
        random_state: A number for the same result every time; None for another every time.
        device: "cuda", "mps" or "cpu"; the fastest there is unless given.
        precision: "auto", "fp32" or "bf16".
        trust_remote_code: Whether code that comes with the encoder may run.
        verbose: Whether to show how it goes.

    Attributes:
        classes_: The classes, sorted; the places of the columns for several labels.
        predictor_: The model, a `headhunt.Predictor`.
        result_: The `SearchResult` of a search; None without one.
        search_: The search, where `run_dir` keeps it.
        n_features_in_: 2 for pairs; not there for single texts, as for every vectoriser.
    """

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags

    def fit(self, X: Any, y: Any) -> Self:
        """Trains, or searches and then trains.

        Args:
            X: Texts or pairs of texts.
            y: Classes, or an n × k array of 0 and 1.

        Raises:
            ValueError: If X or y cannot be used as given.
            HeadhuntError: If the texts or the encoder cannot be used; the message says why.
        """
        return self._fit(X, y, self._read_classes)

    def _read_classes(self, y: Any) -> Labels:
        check_classification_targets(y)
        several = type_of_target(y) == "multilabel-indicator"
        if several:
            hot = np.asarray(y.toarray() if hasattr(y, "toarray") else y) != 0
            classes = np.arange(hot.shape[1])
            targets: list[Any] = [[str(place) for place in np.flatnonzero(row)] for row in hot]
        else:
            y = column_or_1d(y, warn=True)
            assert_all_finite(y, input_name="y")
            classes, codes = np.unique(y, return_inverse=True)
            targets = codes.tolist()
            if len(classes) < 2:
                raise ValueError(f"At least 2 classes are needed; y has only one class, {classes[0]!r}.")
        if classes.dtype.kind not in JSON_KINDS:
            raise ValueError(f"y must hold texts, numbers or truth values; found {classes.dtype}.")
        self.classes_ = classes
        return "multi_label_classification" if several else "single_label_classification", targets, _names(classes)

    def _facts(self) -> dict[str, Any]:
        return {CLASSES: {"dtype": self.classes_.dtype.str, "values": self.classes_.tolist()}}

    def predict(self, X: Any) -> np.ndarray:
        """The class of each row; for several labels, an n × k array of 0 and 1."""
        outputs = self._outputs(X)
        if self.predictor_.problem_type == "multi_label_classification":
            return (outputs >= 0.5).astype(np.int64)
        return self.classes_[outputs.argmax(1)]

    def predict_proba(self, X: Any) -> np.ndarray:
        """The probability of each class, n × k; for several labels, of each label by itself."""
        outputs = self._outputs(X).astype(np.float64)
        return (
            outputs
            if self.predictor_.problem_type == "multi_label_classification"
            else outputs / outputs.sum(1, keepdims=True)
        )

    def _take(self, predictor: Predictor) -> None:
        if predictor.problem_type == "regression":
            raise _other_kind("HeadRegressor", "a number")
        super()._take(predictor)
        known = predictor.facts.get(CLASSES) or {}
        values = known.get("values", list(predictor.labels))
        self.classes_ = np.array(values, known.get("dtype"))
        if predictor.problem_type == "multi_label_classification" and not known:
            self.classes_ = np.arange(len(values))


class HeadRegressor(RegressorMixin, _HeadEstimator):
    """Predicts a number for a text, or for a pair of texts.

    X, parameters and attributes are as for `HeadClassifier`; y holds one number per row. Weights of rows are not
    supported: `fit` takes no `sample_weight`.
    """

    def fit(self, X: Any, y: Any) -> Self:
        """Trains, or searches and then trains.

        Args:
            X: Texts or pairs of texts.
            y: Numbers, one per row.

        Raises:
            ValueError: If X or y cannot be used as given.
            HeadhuntError: If the texts or the encoder cannot be used; the message says why.
        """
        return self._fit(X, y, self._read_numbers)

    def _read_numbers(self, y: Any) -> Labels:
        y = column_or_1d(y, dtype=np.float64, warn=True)
        assert_all_finite(y, input_name="y")
        return "regression", y.tolist(), ()

    def predict(self, X: Any) -> np.ndarray:
        """The number of each row."""
        return self._outputs(X).astype(np.float64)

    def _take(self, predictor: Predictor) -> None:
        if predictor.problem_type != "regression":
            raise _other_kind("HeadClassifier", "classes")
        super()._take(predictor)


def _other_kind(which: str, what: str) -> ModelError:
    return ModelError(f"The model in this folder predicts {what}; load it with {which}.")


def _task(
    texts: list[str],
    texts_b: list[str] | None,
    targets: Sequence[Any],
    problem_type: ProblemType,
    names: Sequence[str],
    seed: int,
    test_share: float,
) -> Task:
    """The rows as a task: labels go in as their places, which need no reading, and get their names afterwards."""
    columns = {"text": texts, "label": targets} | ({} if texts_b is None else {"text_b": texts_b})
    second = None if texts_b is None else "text_b"
    task = Task.load(
        columns,
        text="text",
        text_b=second,
        label="label",
        problem_type=problem_type,
        seed=seed,
        test_share=test_share,
        name="texts",
    )
    if problem_type == "regression":
        return task
    if problem_type == "multi_label_classification":  # those that no row has are columns too
        places = [int(name) for name in task.labels]
        for split in task.splits.values():
            hot = np.zeros((len(split), len(names)), np.float32)
            hot[:, places] = split.targets
            split.targets = hot
    return replace(task, labels=tuple(names))


def _names(classes: np.ndarray) -> list[str]:
    """Classes as a saved model calls them; by their places where words do not tell them apart."""
    names = [str(value).strip() for value in classes.tolist()]
    apart = len(set(names)) == len(names) and all(names)
    return names if apart else [str(place) for place in range(len(names))]


def _columns(X: Any) -> list[list[Any]]:
    """One column of X, or two."""
    if hasattr(X, "iloc") and hasattr(X, "columns"):  # a frame: each column by itself keeps texts as they are
        columns = [list(X.iloc[:, place]) for place in range(X.shape[1])]
    else:
        rows = X.to_numpy() if hasattr(X, "to_numpy") else X if isinstance(X, list | tuple) else np.asarray(X)
        if isinstance(rows, np.ndarray):
            rows = rows.tolist() if rows.ndim else [rows.item()]
        rows = list(rows)
        if not rows or not all(isinstance(row, list | tuple | np.ndarray) for row in rows):
            return [rows]
        widths = {len(row) for row in rows}
        if len(widths) > 1:
            raise ValueError(f"X must have as many texts in each row; found {', '.join(map(str, sorted(widths)))}.")
        columns = [list(column) for column in zip(*rows, strict=True)]
    if len(columns) not in (1, 2):
        raise ValueError(f"X must hold one text, or two, per row; found {len(columns)} columns.")
    return columns


def _check_texts(column: Sequence[Any]) -> None:
    for place, text in enumerate(column):
        if not isinstance(text, str):
            found = "a missing value (NaN)" if text is None or text != text else f"{type(text).__name__} {text!r:.40}"
            raise ValueError(f"X must hold texts; row {place} has {found}.")


def _inside(prefix: str, part: Any) -> Iterator[tuple[str, Any]]:
    """What a part of a candidate consists of, down to the last item."""
    for item in fields(part) if is_dataclass(part) else ():
        name, value = f"{prefix}__{item.name}", getattr(part, item.name)
        yield name, value
        yield from _inside(name, value)


def _put(part: Any, path: Sequence[str], value: Any, key: str) -> Any:
    """The same part with one item changed."""
    first, *rest = path
    if not is_dataclass(part) or isinstance(part, type):
        raise ValueError(f"{key} is an item of a part that is not there; give the part first, as recipe=Recipe().")
    known = [item.name for item in fields(part)]
    if first not in known:
        raise ValueError(f"Invalid parameter {key!r}: {type(part).__name__} has {', '.join(known)}.")
    return replace(part, **{first: _put(getattr(part, first), rest, value, key) if rest else value})


@contextmanager
def _folder(parent: str | Path | None) -> Iterator[Path]:
    """A new folder for a search: in the parent, where it stays, or for the time being."""
    if parent is None:
        folder = Path(tempfile.mkdtemp(prefix="headhunt-"))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return
    number = 1
    while True:
        folder = Path(parent) / f"fit-{number}"
        try:
            folder.mkdir(parents=True)
            break
        except FileExistsError:  # of an earlier fit, or of one in another process
            number += 1
    yield folder


def _there(device: str | None) -> str | None:
    """The device a model was trained on, if this machine has it too."""
    try:
        pick_device(device)
    except ModelError:
        return None
    return device
