"""Scikit-learn estimators: scikit-learn's own checks and common uses."""

from __future__ import annotations

import pickle
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import WORDS, sentences
from ensembles import TEXTS as ENSEMBLE_TEXTS
from ensembles import save_case
from multitask import make_predictor
from searches import QUICK
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils import estimator_checks

import headhunt
from headhunt import Head, Mlp, Recipe, Smart
from headhunt.errors import ModelError
from headhunt.sklearn import HeadClassifier, HeadRegressor

RECIPE = Recipe(epochs=1, learning_rate=1e-3)
LEARNS = Recipe(epochs=10, learning_rate=1e-2)
LONGER = Recipe(epochs=40, learning_rate=1e-2)
TEXTS, LABELS = sentences(96)


class Written:
    """Convert numeric rows to words, so that scikit-learn's checks, which use numeric tables, apply to texts.

    Nothing else is changed here, so that the checks test the estimator itself.
    """

    validated = True

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array, tags.input_tags.one_d_array, tags.input_tags.string = True, False, False
        tags.no_validation = not self.validated
        for kind in (tags.classifier_tags, tags.regressor_tags):
            if kind is not None:
                kind.poor_score = True  # a random encoder, trained for one epoch
        return tags

    def _texts(self, X, reset):
        numbers = None if hasattr(X, "toarray") else np.asarray(X)
        if numbers is not None and numbers.ndim == 2 and numbers.dtype.kind in "biuf" and np.isfinite(numbers).all():
            X = [" ".join(WORDS[int(np.clip(np.round(4 * value), -10, 10)) + 10] for value in row) for row in numbers]
        return super()._texts(X, reset)


class WrittenClassifier(Written, HeadClassifier):
    pass


class WrittenRegressor(Written, HeadRegressor):
    pass


class UnvalidatedClassifier(WrittenClassifier):
    validated = False


def settings(encoders) -> dict:
    return {"encoder": encoders(), "recipe": RECIPE, "device": "cpu", "precision": "fp32"}


@pytest.fixture
def classifier(encoders) -> HeadClassifier:
    return HeadClassifier(encoders(), recipe=LEARNS, random_state=0, device="cpu")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("estimator", [WrittenClassifier, WrittenRegressor])
def test_check_estimator_passes_except_documented_checks(estimator, encoders):
    page = (Path(__file__).parent.parent / "docs/howto/scikit-learn.md").read_text()
    exceptions = dict(re.findall(r"^\| `(check_\w+)` \| (.+?) \|$", page, re.MULTILINE))
    assert len(exceptions) > 5
    results = estimator_checks.check_estimator(
        estimator(**settings(encoders)), on_fail=None, expected_failed_checks=exceptions
    )
    names = {
        status: {result["check_name"] for result in results if result["status"] == status}
        for status in ("failed", "xfail")
    }
    assert names["failed"] == set()
    assert sum(result["status"] == "passed" for result in results) >= 40
    # Checks that pass must leave the documented list; two of them concern only one of the estimators.
    assert set(exceptions) - names["xfail"] <= {"check_classifiers_train", "check_fit2d_1sample"}


@pytest.mark.filterwarnings("ignore")
def test_check_classifiers_train_passes_without_column_validation(encoders):
    estimator_checks.check_classifiers_train("UnvalidatedClassifier", UnvalidatedClassifier(**settings(encoders)))


@pytest.mark.filterwarnings("ignore:Can't test estimator:sklearn.exceptions.SkipTestWarning")
def test_tags_declare_text_input():
    for estimator in (HeadClassifier(), HeadRegressor()):
        estimator_checks.check_estimator(estimator)
        tags = estimator.__sklearn_tags__().input_tags
        assert tags.string and tags.one_d_array and not tags.two_d_array


@pytest.mark.parametrize(
    "classes",
    [["bad", "good"], [3, 7], [False, True], [-1.0, 2.0], np.array(["bad", "good"], object), ["a ", "a"]],
    ids=["texts", "integers", "booleans", "floats", "objects", "texts that differ by a space"],
)
def test_predict_returns_classes_of_original_type(classes, classifier, tmp_path):
    classes = np.array(classes) if isinstance(classes, list) else classes
    y = classes[[int(label == "good") for label in LABELS]]
    assert classifier.fit(TEXTS, y) is classifier
    assert classifier.classes_.dtype == y.dtype == classifier.predict(TEXTS).dtype
    assert classifier.classes_.tolist() == sorted(classes.tolist())
    assert classifier.score(TEXTS, y) > 0.9
    proba = classifier.predict_proba(TEXTS)
    assert proba.shape == (96, 2) and np.allclose(proba.sum(1), 1)
    assert (classifier.classes_[proba.argmax(1)] == classifier.predict(TEXTS)).all()
    classifier.save(tmp_path / "model")
    again = HeadClassifier.load(tmp_path / "model")
    assert again.classes_.dtype == y.dtype and (again.predict(TEXTS) == classifier.predict(TEXTS)).all()


def test_save_keeps_class_names(classifier, tmp_path):
    classifier.fit(TEXTS, np.array(LABELS)).save(tmp_path / "model")
    model = headhunt.load(tmp_path / "model")
    assert model.labels == ("bad", "good")
    assert [prediction.label for prediction in model.predict(TEXTS[:4])] == classifier.predict(TEXTS[:4]).tolist()


def test_head_is_solved_unless_a_head_or_recipe_is_given(encoders):
    solved = HeadClassifier(encoders(), random_state=0).fit(TEXTS, LABELS)
    assert solved.predictor_.recipe.is_solved and solved.score(TEXTS, LABELS) > 0.7
    assert HeadRegressor(encoders()).fit(TEXTS, np.arange(96)).predictor_.recipe.is_solved
    trained = HeadClassifier(encoders(), head=Head(), recipe=replace(LEARNS, epochs=1)).fit(TEXTS, LABELS)
    assert not trained.predictor_.recipe.is_solved


def test_load_accepts_any_saved_model(encoders, tmp_path):
    predictor = headhunt.fit((TEXTS, LABELS), encoder=encoders(), spec=None, out=tmp_path / "model")
    estimator = HeadClassifier.load(tmp_path / "model", device="cpu")
    assert estimator.predict(TEXTS[:9]).tolist() == [prediction.label for prediction in predictor.predict(TEXTS[:9])]
    assert estimator.encoder == encoders() and estimator.recipe == predictor.recipe
    with pytest.raises(ModelError, match="HeadClassifier"):
        HeadRegressor.load(tmp_path / "model")


@pytest.mark.parametrize("estimator", [HeadClassifier, HeadRegressor])
def test_load_refuses_a_model_of_several_tasks(encoders, estimator, tmp_path):
    """Issue: it was loaded without classes, and `predict` asked for an argument that it does not have."""
    make_predictor(encoders()).save(tmp_path / "model")
    with pytest.raises(ModelError, match="headhunt export MODEL --task NAME"):
        estimator.load(tmp_path / "model", device="cpu")


def test_fit_trains_on_all_rows(classifier):
    facts = classifier.fit(TEXTS, LABELS).predictor_.facts
    assert facts["task"]["rows"] == {"train": 96}
    assert "test" not in facts


def test_random_state_makes_fit_reproducible(classifier):
    first = classifier.fit(TEXTS, LABELS).predict_proba(TEXTS)
    assert np.array_equal(clone(classifier).fit(TEXTS, LABELS).predict_proba(TEXTS), first)
    other = clone(classifier).set_params(random_state=np.random.RandomState(3)).fit(TEXTS, LABELS)
    assert not np.array_equal(other.predict_proba(TEXTS), first)


@pytest.mark.parametrize("how", ["list of texts", "array", "objects", "series", "tuple", "one column"])
def test_fit_accepts_containers_of_texts(how, classifier):
    import pandas as pd

    made = {
        "list of texts": list,
        "array": np.array,
        "objects": lambda texts: np.array(texts, object),
        "series": lambda texts: pd.Series(texts, index=range(100, 196)),
        "tuple": tuple,
        "one column": lambda texts: pd.DataFrame({"text": texts}),
    }[how](TEXTS)
    assert classifier.fit(made, LABELS).score(made, LABELS) > 0.9


def test_estimator_that_was_fitted_on_pairs_can_be_fitted_on_texts(encoders):
    """Issue: scikit-learn kept the number of columns of the first fit, and every prediction failed."""
    pairs = list(zip(TEXTS, TEXTS[::-1], strict=True))
    estimator = HeadClassifier(encoders(), recipe=replace(LEARNS, epochs=1), random_state=0).fit(pairs, LABELS)
    assert len(estimator.fit(TEXTS, LABELS).predict(TEXTS)) == len(TEXTS)


@pytest.mark.parametrize("how", ["list of pairs", "array", "frame"])
def test_fit_accepts_containers_of_pairs(how, encoders):
    import pandas as pd

    pairs = list(zip(TEXTS, TEXTS[::-1], strict=True))
    made = {"list of pairs": list, "array": np.array, "frame": lambda rows: pd.DataFrame(rows, columns=["a", "b"])}[
        how
    ](pairs)
    head = Head(pooling="mean", siamese="concat")
    estimator = HeadClassifier(encoders(), head=head, recipe=LEARNS, random_state=0).fit(made, LABELS)
    assert estimator.n_features_in_ == 2 and estimator.predictor_.pair
    assert estimator.score(made, LABELS) > 0.8
    if how != "frame":
        assert np.array_equal(estimator.predict(pairs), estimator.predict(made))
        with pytest.raises(ValueError, match="fitted on pairs of texts; X has single texts"):
            estimator.predict(np.array(TEXTS))
    else:
        assert estimator.feature_names_in_.tolist() == ["a", "b"]
        with pytest.raises(ValueError, match="feature names should match"):
            estimator.predict(made.rename(columns={"a": "c"}))


def test_classifier_supports_several_labels(encoders, tmp_path):
    y = np.array([[label == "good", label == "bad", False] for label in LABELS]).astype(int)
    y[0] = 0
    estimator = HeadClassifier(encoders(), head=Head(pooling="mean"), recipe=LONGER, random_state=0).fit(TEXTS, y)
    assert estimator.classes_.tolist() == [0, 1, 2]
    proba = estimator.predict_proba(TEXTS)
    assert proba.shape == (96, 3) and proba[:, 2].max() < 0.5  # no row has the third label
    assert estimator.predict(TEXTS).dtype.kind == "i" and estimator.score(TEXTS, y) > 0.8
    places = np.diff(np.sort(proba, axis=0), axis=0).argmax(0)  # between outputs, so that rounding does not decide
    thresholds = [float(np.sort(proba[:, i])[at : at + 2].mean()) for i, at in enumerate(places)]
    assert ((proba >= thresholds) != (proba >= 0.5)).any()
    estimator.predictor_.thresholds = thresholds
    estimator.save(tmp_path / "model")
    for decided in (estimator, HeadClassifier.load(tmp_path / "model")):
        assert (decided.predict(TEXTS) == (proba >= thresholds)).all()
        assert np.abs(decided.predict_proba(TEXTS) - proba).max() < 1e-6


def test_regressor_fits_saves_and_loads(encoders, tmp_path):
    y = np.array([10.0 if label == "good" else -10.0 for label in LABELS])
    estimator = HeadRegressor(encoders(), head=Head(pooling="mean"), recipe=LONGER, random_state=0).fit(TEXTS, y)
    assert estimator.score(TEXTS, y) > 0.8
    estimator.save(tmp_path / "model")
    assert np.allclose(HeadRegressor.load(tmp_path / "model").predict(TEXTS), estimator.predict(TEXTS), atol=1e-5)
    with pytest.raises(ModelError, match="HeadRegressor"):
        HeadClassifier.load(tmp_path / "model")


def test_classifier_works_in_pipelines_and_grid_search(classifier):
    X, y = np.array(TEXTS), np.array(LABELS)
    lower = make_pipeline(FunctionTransformer(np.char.lower), classifier)
    assert cross_val_predict(lower, X, y, cv=2, method="predict_proba").shape == (96, 2)
    grid = GridSearchCV(lower, {"headclassifier__recipe__learning_rate": [1e-9, 1e-2]}, cv=2).fit(X, y)
    assert grid.best_params_ == {"headclassifier__recipe__learning_rate": 1e-2}
    assert grid.best_estimator_[-1].recipe == LEARNS
    assert grid.score(X, y) > 0.9


@pytest.mark.slow
def test_cross_val_score_works_in_parallel(classifier):
    alone = cross_val_score(classifier, TEXTS, LABELS, cv=2)
    assert np.allclose(cross_val_score(classifier, TEXTS, LABELS, cv=2, n_jobs=2), alone)


def test_set_params_reaches_nested_fields():
    estimator = HeadClassifier("any", head=Head(pooling="mean", mlp=Mlp()), recipe=Recipe(smart=Smart()))
    params = estimator.get_params()
    assert params["recipe__learning_rate"] == Recipe().learning_rate and params["head__mlp__width"] == Mlp().width
    assert "recipe__learning_rate" not in estimator.get_params(deep=False)
    before = estimator.recipe
    estimator.set_params(recipe__smart__weight=2.0, recipe__learning_rate=1e-3, head__pooling="max", encoder="other")
    assert estimator.recipe == Recipe(smart=Smart(weight=2.0), learning_rate=1e-3) and before == Recipe(smart=Smart())
    assert estimator.head.pooling == "max" and estimator.encoder == "other"
    estimator.set_params(recipe=Recipe(epochs=3), recipe__learning_rate=0.5)
    assert estimator.recipe == Recipe(epochs=3, learning_rate=0.5)
    assert clone(estimator).get_params() == estimator.get_params()
    with pytest.raises(ValueError, match="recipe__rate is not a field of Recipe; known fields: "):
        estimator.set_params(recipe__rate=1e-3)
    for wrong in (
        {"recipe__speed": 1},
        {"recipe__lora__rank": 4},
        {"speed": 1},
        {"recipe__rate": 1e-3},
        {"recipe__learning_rate": -1.0},
    ):
        with pytest.raises(ValueError, match=r"recipe|speed|rate"):
            estimator.set_params(**wrong)


def test_pickle_contains_saved_folder_without_tensors(classifier):
    unfitted = pickle.loads(pickle.dumps(classifier))
    assert unfitted.get_params() == classifier.get_params()
    classifier.fit(TEXTS, LABELS)
    data = pickle.dumps(classifier)
    again = pickle.loads(data)
    assert np.array_equal(again.predict_proba(TEXTS), classifier.predict_proba(TEXTS))
    assert again.classes_.tolist() == ["bad", "good"] and not hasattr(clone(again), "predictor_")
    state = classifier.__getstate__()
    assert "model.safetensors" in state["_folder"] and "predictor_" not in state
    assert not re.search(rb"torch\._utils|_rebuild_|cbuiltins", data)  # no tensors except those in the folder
    classifier.device = "cuda:9"  # the model may be loaded on a machine without this device
    assert np.allclose(pickle.loads(pickle.dumps(classifier)).predict_proba(TEXTS), again.predict_proba(TEXTS))


@pytest.mark.parametrize(
    ("X", "y", "message"),
    [
        ("one text", LABELS, "found str"),
        (None, LABELS, "found NoneType"),
        ([], [], r"0 sample\(s\)"),
        (TEXTS, LABELS[:-1], "inconsistent numbers"),
        ([*TEXTS[:-1], None], LABELS, "row 95 has a missing value"),
        ([*TEXTS[:-1], float("nan")], LABELS, "row 95 has a missing value"),
        ([*TEXTS[:-1], 3], LABELS, "row 95 has int 3"),
        (np.zeros((96, 5)), LABELS, "found 5 columns"),
        ([["a", "b"], ["a"]] * 48, LABELS, "equally many texts in each row; found 1, 2"),
        (TEXTS, ["good"] * 96, "only one class"),
        (TEXTS, np.linspace(0, 1, 96), "Unknown label type"),
        (TEXTS, [None] * 96, "NaN|None|Unknown label type"),
        (TEXTS, None, "requires y to be passed"),
        (TEXTS[:4], LABELS[:4], "At least 8 are needed"),
    ],
)
def test_fit_refuses_invalid_data(X, y, message, classifier):
    with pytest.raises((ValueError, TypeError), match=message):
        classifier.fit(X, y)
    with pytest.raises(NotFittedError):
        classifier.predict(TEXTS)


def test_fit_refuses_contradictory_parameters(encoders):
    for wrong, message in (
        ({"search": "1m", "head": Head()}, "finds the head itself"),
        ({"search_options": {"trials": 3}}, "search_options= requires a search"),
        ({"recipe": {"learning_rate": 1}}, "must be a headhunt.Recipe"),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            HeadClassifier(encoders(), **wrong).fit(TEXTS, LABELS)
    with pytest.raises(TypeError, match="sample_weight"):
        HeadClassifier(encoders()).fit(TEXTS, LABELS, sample_weight=np.ones(96))
    with pytest.raises(ValueError, match="1d array"):
        HeadRegressor(encoders()).fit(TEXTS, np.ones((96, 2)))


def test_fit_with_search_keeps_run_and_result(encoders, tmp_path):
    options = {"trials": 1, "strategy": "random"}
    (tmp_path / "runs" / "fit-1").mkdir(parents=True)
    estimator = HeadClassifier(
        encoders(), search="none", search_options=options, run_dir=tmp_path / "runs", workers=0, random_state=0
    )
    estimator.fit(TEXTS, np.array(LABELS) == "good")
    assert estimator.result_.verdict.sentence
    assert estimator.search_.run_dir == tmp_path / "runs" / "fit-2"  # fit-1 existed
    assert estimator.predict(TEXTS).dtype == bool
    assert estimator.predictor_.labels == ("False", "True")
    again = pickle.loads(pickle.dumps(estimator))
    assert np.array_equal(again.predict(TEXTS), estimator.predict(TEXTS)) and again.result_ == estimator.result_


def test_classifier_loads_an_ensemble_and_pickles_it(encoders, tmp_path):
    mean = save_case(encoders(), "ensemble", tmp_path / "model")
    estimator = HeadClassifier.load(tmp_path / "model", device="cpu", precision="fp32")
    np.testing.assert_allclose(estimator.predict_proba(ENSEMBLE_TEXTS), mean, atol=1e-5)
    again = pickle.loads(pickle.dumps(estimator))
    np.testing.assert_allclose(again.predict_proba(ENSEMBLE_TEXTS), mean, atol=1e-5)


def test_fit_uses_the_ensemble_of_a_search(encoders, tmp_path, monkeypatch):
    monkeypatch.setattr("headhunt.engine.deliver.score_on", lambda *_: -1.0)  # so that the mean is better
    options = {"trials": 4, "strategy": "random", "space": QUICK}
    run = {"search": "none", "search_options": options, "run_dir": tmp_path, "workers": 0, "random_state": 0}
    estimator = HeadClassifier(encoders(), ensemble=True, precision="fp32", device="cpu", **run).fit(TEXTS, LABELS)
    assert estimator.result_.ensemble == "ensemble" and len(estimator.predictor_.facts["members"]) > 1
    saved = headhunt.load(tmp_path / "fit-1" / "ensemble", device="cpu", precision="fp32")
    np.testing.assert_allclose(estimator.predict_proba(TEXTS), saved.outputs(TEXTS), atol=1e-5)
    with pytest.raises(ValueError, match="ensemble= requires a search"):
        HeadClassifier(encoders(), ensemble=True).fit(TEXTS, LABELS)


@pytest.mark.real
def test_cross_validation_with_real_encoder(minilm):
    texts = ["a lovely film", "a dreadful film", "what a joy", "what a bore", "I liked it", "I hated it"] * 4
    frozen = Recipe(epochs=20, learning_rate=1e-2, freeze="all")
    model = HeadClassifier(minilm, head=Head(pooling="mean"), recipe=frozen, random_state=0)
    assert cross_val_score(model, texts, [True, False] * 12, cv=2).mean() > 0.9


def test_fit_waits_for_a_first_model_if_there_is_no_time(encoders):
    model = HeadClassifier(encoders(), search=0.001, workers=0).fit(TEXTS, LABELS)
    assert set(model.predict(TEXTS)) <= set(LABELS)


def test_fit_refuses_search_without_a_model(encoders, monkeypatch):
    monkeypatch.setattr("headhunt.engine.session.Session._first_models", lambda self: None)
    with pytest.raises(ModelError, match=r"give more than 0\.001"):
        HeadClassifier(encoders(), search=0.001, workers=0).fit(TEXTS, LABELS)
