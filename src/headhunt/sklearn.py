"""Scikit-learn estimators: a classifier and a regressor of texts or pairs of texts.

A fitted estimator is pickled as the bytes of the folder that `save` writes: weights as safetensors, without code.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import fields, is_dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_consistent_length, check_random_state, column_or_1d
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import assert_all_finite, check_is_fitted, validate_data

from headhunt.data import Task
from headhunt.data.labels import ProblemType
from headhunt.data.sources import find_wrong_text, text_columns
from headhunt.engine.api import fit
from headhunt.errors import ModelError
from headhunt.evaluation import DEFAULT_METRIC, apply_thresholds, decide
from headhunt.modeling.architecture import Head
from headhunt.predictor import Predictor
from headhunt.run.results import SearchResult
from headhunt.spec import DEFAULT_ENCODER, Recipe, Spec, plain
from headhunt.training.device import pick_device

DEFAULT_TIME = "10m"  # with search=True
CLASSES = "classes"  # key of the original classes in the facts of a saved model
JSON_KINDS = "biufUO"  # kinds of arrays whose values JSON can represent
Labels = tuple[ProblemType, Sequence[Any], Sequence[str]]  # problem type, encoded targets, label names


class _HeadEstimator(BaseEstimator):
    """Base class of the classifier and the regressor."""

    def __init__(
        self,
        encoder: str | None = None,
        *,
        head: Head | None = None,
        recipe: Recipe | None = None,
        search: str | float | bool | None = None,
        search_options: Mapping[str, Any] | None = None,
        ensemble: bool = False,
        run_dir: str | Path | None = None,
        workers: int | None = None,
        random_state: int | np.random.RandomState | None = None,
        device: str | None = None,
        precision: str = "auto",
        trust_remote_code: bool = False,
        verbose: bool = False,
    ) -> None:
        self.encoder, self.head, self.recipe = encoder, head, recipe
        self.search, self.search_options, self.run_dir, self.workers = search, search_options, run_dir, workers
        self.ensemble = ensemble
        self.random_state, self.device, self.precision = random_state, device, precision
        self.trust_remote_code, self.verbose = trust_remote_code, verbose

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.one_d_array = True
        tags.input_tags.two_d_array = False  # no numeric tables; scikit-learn has no tag for n × 2 texts
        return tags

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters; with `deep`, also the fields of head and recipe, such as `recipe__learning_rate`."""
        params = super().get_params(deep)
        if deep:
            params |= dict(_nested_fields("head", self.head)) | dict(_nested_fields("recipe", self.recipe))
        return params

    def set_params(self, **params: Any) -> Self:
        """Set parameters; `recipe__learning_rate` sets one field of the recipe."""
        for key in sorted(params, key=lambda key: key.count("__")):  # recipe before recipe__learning_rate
            name, *path = key.split("__")
            if path and name in ("head", "recipe"):
                setattr(self, name, _replace_nested(getattr(self, name), path, params[key], key))
            else:
                super().set_params(**{key: params[key]})
        return self

    def _fit(self, X: Any, y: Any, encode: Callable[[Any], Labels]) -> Self:
        texts, texts_b = self._texts(X, reset=True)
        if y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None.")
        check_consistent_length(texts, y)
        labels = encode(y)
        self._check_parameters()
        state = self.random_state
        seed = int(state) if isinstance(state, int | np.integer) else int(check_random_state(state).randint(2**31 - 1))
        task = _task(texts, texts_b, labels, seed, test_share=0.2 if self.search else 0.0)
        options = {"device": self.device, "precision": self.precision, "trust_remote_code": self.trust_remote_code}
        self.result_: SearchResult | None = None
        self.predictor_ = self._search(task, seed, options) if self.search else self._train(task, seed, options)
        return self

    def _check_parameters(self) -> None:
        for name, expected in (("head", Head), ("recipe", Recipe)):
            value = getattr(self, name)
            if value is not None and not isinstance(value, expected):
                raise TypeError(f"{name}= must be a headhunt.{expected.__name__} or None; found {value!r}.")
            if value is not None and self.search:
                raise ValueError(f"A search finds the {name} itself; give either {name}= or search=.")
        for name in ("search_options", "ensemble"):
            if getattr(self, name) and not self.search:
                raise ValueError(f"{name}= requires a search; give search= too, for example search='10m'.")

    def _train(self, task: Task, seed: int, options: dict[str, Any]) -> Predictor:
        from headhunt.report.notebook import training_bar

        spec = None
        if self.head or self.recipe:
            standard = plain(self.encoder or DEFAULT_ENCODER, len(task.splits["train"]))
            spec = Spec(encoder=standard.encoder, head=self.head or Head(), recipe=self.recipe or standard.recipe)
        with training_bar("training") if self.verbose else nullcontext() as progress:
            return fit(task, encoder=self.encoder, spec=spec, seed=seed, on_report=progress, **options)

    def _search(self, task: Task, seed: int, options: dict[str, Any]) -> Predictor:
        from headhunt.engine.search import search
        from headhunt.report.notebook import LiveView, in_notebook
        from headhunt.report.terminal import search_view

        options = {"metric": DEFAULT_METRIC[task.problem_type], **options, **(self.search_options or {})}
        options |= {"deliver": "ensemble"} if self.ensemble else {}
        shown = [LiveView() if in_notebook() else search_view()] if self.verbose else []
        options = {"callbacks": shown, **options}
        time = DEFAULT_TIME if self.search is True else self.search
        kept = None if self.run_dir is None else _new_run_dir(Path(self.run_dir))
        with nullcontext(kept) if kept else tempfile.TemporaryDirectory(prefix="headhunt-") as folder:
            search_ = search(
                task, out=folder, encoder=self.encoder, time=time, workers=self.workers, seed=seed, **options
            )
            self.result_ = search_.result
            if kept:
                self.search_ = search_
            if search_.model_dir is None:
                raise ModelError(f"The search ended before its first model was trained; give more than {self.search}.")
            return self._load(search_.model_dir)

    def _outputs(self, X: Any) -> np.ndarray:
        check_is_fitted(self, "predictor_")
        return self.predictor_.outputs(*self._texts(X, reset=False))

    def _texts(self, X: Any, reset: bool) -> tuple[list[str], list[str] | None]:
        """Return the texts of X, and the second texts of pairs; raise ValueError for anything else."""
        if isinstance(X, str | bytes) or X is None:
            raise ValueError(f"X must be a list with one or two texts per row; found {type(X).__name__}.")
        if hasattr(X, "toarray"):
            raise TypeError("X must contain texts; found sparse data.")
        if not hasattr(X, "__len__") and not hasattr(X, "__array__"):
            X = list(X)
        columns = text_columns(X)
        if not columns[0]:
            raise ValueError("X must contain at least one text; found 0 sample(s).")
        for column in columns:
            if wrong := find_wrong_text(column):
                raise ValueError(f"X must contain texts; {wrong}.")
        if not reset and (len(columns) == 2) != self.predictor_.pair:
            fitted, given = ("pairs of texts", "single texts") if self.predictor_.pair else ("single texts", "pairs")
            raise ValueError(f"{type(self).__name__} was fitted on {fitted}; X has {given}.")
        if reset:
            self.__dict__.pop("n_features_in_", None)  # of an earlier fit; a list of texts has no columns
        validate_data(self, X, reset=reset, skip_check_array=True)  # records names and number of columns
        return columns[0], columns[1] if len(columns) == 2 else None

    def save(self, folder: str | Path) -> Path:
        """Save the fitted model as a folder that Headhunt and transformers can load."""
        check_is_fitted(self, "predictor_")
        return self.predictor_.save(folder)

    @classmethod
    def load(cls, folder: str | Path, **params: Any) -> Self:
        """Return a fitted estimator from a folder that Headhunt saved. No code from the folder is run.

        Args:
            folder: Folder written by `save`, `headhunt.fit` or a search.
            params: Parameters of the estimator; encoder, head and recipe default to those of the model.

        Raises:
            ModelError: If the folder contains no such model, or one of another problem type.
        """
        estimator = cls(**params)
        predictor = estimator._load(folder)
        if spec := predictor.spec:
            defaults = {"encoder": spec.encoder, "head": spec.head, "recipe": spec.recipe}
            estimator.set_params(**{name: value for name, value in defaults.items() if name not in params})
        estimator._set_predictor(predictor)
        return estimator

    def _load(self, folder: str | Path, device: str | None = None) -> Predictor:
        options: dict[str, Any] = {"precision": self.precision, "trust_remote_code": self.trust_remote_code}
        predictor = Predictor.load(folder, device=pick_device(device or self.device), **options)
        if predictor.tasks:
            raise ModelError(
                "An estimator takes a model of one task; the one in this folder has several. Save one of them to a "
                "folder of its own: headhunt export MODEL --task NAME --out FOLDER"
            )
        return predictor

    def _set_predictor(self, predictor: Predictor) -> None:
        if isinstance(self, RegressorMixin) != (predictor.problem_type == "regression"):
            other = (
                "numbers; load it with HeadRegressor"
                if predictor.problem_type == "regression"
                else "classes; load it with HeadClassifier"
            )
            raise ModelError(f"The model in this folder predicts {other}.")
        self.predictor_ = predictor
        self.result_ = None
        if predictor.pair:
            self.n_features_in_ = 2

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        predictor = state.pop("predictor_", None)
        state.pop("search_", None)  # refers to a folder on this machine
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
                try:
                    self.predictor_ = self._load(folder)
                except ModelError:  # this machine may not have the device of the parameter
                    self.predictor_ = self._load(folder, str(pick_device()))


class HeadClassifier(ClassifierMixin, _HeadEstimator):
    """Classifier of texts or pairs of texts, with one class or several labels per row.

    X contains one text per row (list, array or series) or two (list of pairs, n × 2 array or data frame with two
    columns). y contains classes of any type, or an n × k array of 0 and 1 for several labels. All rows are trained on;
    a search holds out a fifth of them for its final test. `fit` has no `sample_weight`; use
    `recipe=Recipe(class_weights=True)` to balance classes.

    Args:
        encoder: Hugging Face model name or local folder.
        head: Architecture of the head; the plain head if a recipe is given.
        recipe: Training hyperparameters; a standard recipe if a head is given, so that `head=Head()` fine-tunes the
            encoder. With neither, a head is solved on the frozen encoder, in seconds.
        search: Time to search for head and recipe, as "10m" or seconds; True for ten minutes, None for no search.
        search_options: Further arguments of `headhunt.search`, such as trials, space, strategy, metric or reject.
        ensemble: Use the mean of up to three models of a search, which takes longer to predict, if it is better than
            the best one on validation rows.
        run_dir: Folder in which each search is kept in its own subfolder; not kept by default.
        workers: Number of worker processes of a search; 0 runs in this process; by default one per core or GPU.
        random_state: Random seed; None for a different result every time.
        device: "cuda", "mps" or "cpu"; the fastest available by default.
        precision: "auto", "fp32" or "bf16".
        trust_remote_code: Allow code that comes with the encoder to run.
        verbose: Show progress.

    Attributes:
        classes_: The sorted classes; for several labels, the column numbers.
        predictor_: The model, a `headhunt.Predictor`.
        result_: The `SearchResult` of a search; None without a search.
        search_: The search, if `run_dir` keeps it.
        n_features_in_: 2 for pairs; not set for single texts.
    """

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags

    def fit(self, X: Any, y: Any) -> Self:
        """Train a model, after a search if requested.

        Args:
            X: Texts or pairs of texts.
            y: Classes, or an n × k array of 0 and 1.

        Raises:
            ValueError: If X or y cannot be used as given.
            HeadhuntError: If the texts or the encoder cannot be used.
        """
        self._fit(X, y, self._encode_classes)
        self.predictor_.facts[CLASSES] = {"dtype": self.classes_.dtype.str, "values": self.classes_.tolist()}
        return self

    def _encode_classes(self, y: Any) -> Labels:
        check_classification_targets(y)
        several = type_of_target(y) == "multilabel-indicator"
        if several:
            hot = np.asarray(y.toarray() if hasattr(y, "toarray") else y) != 0
            classes = np.arange(hot.shape[1])
            targets: list[Any] = [[str(column) for column in np.flatnonzero(row)] for row in hot]
        else:
            y = column_or_1d(y, warn=True)
            assert_all_finite(y, input_name="y")
            classes, codes = np.unique(y, return_inverse=True)
            targets = codes.tolist()
            if len(classes) < 2:
                raise ValueError(f"y must have at least 2 classes; found only one class, {classes[0]!r}.")
        if classes.dtype.kind not in JSON_KINDS:
            raise ValueError(f"y must contain texts, numbers or booleans; found {classes.dtype}.")
        self.classes_ = classes
        return "multi_label_classification" if several else "single_label_classification", targets, _names(classes)

    def predict(self, X: Any) -> np.ndarray:
        """Return the class of each row; for several labels, an n × k array of 0 and 1.

        A rejected text gets the class of `reject_label`, if the model has one, and its most probable class otherwise.
        """
        outputs = self._outputs(X)
        if self.predictor_.problem_type == "multi_label_classification":
            return decide(self.predictor_.problem_type, apply_thresholds(outputs, self.predictor_.thresholds))
        chosen, rejection = outputs.argmax(1), self.predictor_.rejection
        if rejection is not None and rejection.label is not None:
            labels = self.predictor_.labels
            chosen[rejection.rejects(outputs, labels)] = labels.index(rejection.label)
        return self.classes_[chosen]

    def rejects(self, X: Any) -> np.ndarray:
        """Return True for each row that the model does not answer; False for all if it was not asked to reject any."""
        outputs, rejection = self._outputs(X), self.predictor_.rejection
        if rejection is None:
            return np.zeros(len(outputs), bool)
        return rejection.rejects(outputs, self.predictor_.labels)

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probability of each class, n × k; for several labels, each label is independent."""
        outputs = self._outputs(X).astype(np.float64)
        if self.predictor_.problem_type == "multi_label_classification":
            return outputs
        return outputs / outputs.sum(1, keepdims=True)

    def _set_predictor(self, predictor: Predictor) -> None:
        super()._set_predictor(predictor)
        known = predictor.facts.get(CLASSES) or {}
        values = known.get("values", list(predictor.labels))
        self.classes_ = np.array(values, known.get("dtype"))
        if predictor.problem_type == "multi_label_classification" and not known:
            self.classes_ = np.arange(len(values))


class HeadRegressor(RegressorMixin, _HeadEstimator):
    """Regressor of texts or pairs of texts.

    X, parameters and attributes are those of `HeadClassifier`; y contains one number per row.
    """

    def fit(self, X: Any, y: Any) -> Self:
        """Train a model, after a search if requested.

        Args:
            X: Texts or pairs of texts.
            y: Numbers, one per row.
        """
        return self._fit(X, y, self._encode_numbers)

    def _encode_numbers(self, y: Any) -> Labels:
        y = column_or_1d(y, dtype=np.float64, warn=True)
        assert_all_finite(y, input_name="y")
        return "regression", y.tolist(), ()

    def predict(self, X: Any) -> np.ndarray:
        """Return the predicted number of each row."""
        return self._outputs(X).astype(np.float64)


def _task(texts: list[str], texts_b: list[str] | None, labels: Labels, seed: int, test_share: float) -> Task:
    """Return a task with these rows. Labels are given as column numbers and named afterwards."""
    problem_type, targets, names = labels
    columns = {"text": texts, "label": targets} | ({} if texts_b is None else {"text_b": texts_b})
    roles: dict[str, Any] = {name: name for name in columns}
    task = Task.load(columns, **roles, problem_type=problem_type, seed=seed, test_share=test_share, name="texts")
    if problem_type == "regression":
        return task
    if problem_type == "multi_label_classification":  # add columns of labels that no row has
        known = [int(name) for name in task.labels]
        for split in task.splits.values():
            hot = np.zeros((len(split), len(names)), np.float32)
            hot[:, known] = split.targets
            split.targets = hot
    return replace(task, labels=tuple(names))


def _names(classes: np.ndarray) -> list[str]:
    """Return the names of classes in a saved model; their positions if their texts are not distinct."""
    names = [str(value).strip() for value in classes.tolist()]
    distinct = len(set(names)) == len(names) and all(names)
    return names if distinct else [str(position) for position in range(len(names))]


def _nested_fields(prefix: str, part: Any) -> Iterator[tuple[str, Any]]:
    """Yield the fields of a head or recipe, recursively, with names such as `recipe__smart__weight`."""
    for item in fields(part) if is_dataclass(part) else ():
        name, value = f"{prefix}__{item.name}", getattr(part, item.name)
        yield name, value
        yield from _nested_fields(name, value)


def _replace_nested(part: Any, path: Sequence[str], value: Any, key: str) -> Any:
    """Return the same head or recipe with one field changed."""
    first, *rest = path
    if not is_dataclass(part) or isinstance(part, type):
        raise ValueError(f"{key} is a field of a part that is None; give the part first, for example recipe=Recipe().")
    names = [item.name for item in fields(part)]
    if first not in names:
        raise ValueError(f"{key} is not a field of {type(part).__name__}; known fields: {', '.join(names)}.")
    return replace(part, **{first: _replace_nested(getattr(part, first), rest, value, key) if rest else value})


def _new_run_dir(parent: Path) -> Path:
    """Create and return a new subfolder for a search."""
    for number in count(1):
        with suppress(FileExistsError):  # of an earlier fit, or of another process
            (parent / f"fit-{number}").mkdir(parents=True)
            return parent / f"fit-{number}"
    raise AssertionError("unreachable")
