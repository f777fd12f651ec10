"""Predictors: outputs, saving and loading, and use by transformers alone."""

from __future__ import annotations

import json
import subprocess

import numpy as np
import pandas
import pytest
import torch
from conftest import WORDS, sentences
from multitask import make_predictor as make_tasks_predictor

from headhunt.errors import ModelError
from headhunt.modeling.architecture import Convolutions, Head, Mlp
from headhunt.modeling.build import build
from headhunt.modeling.pretrained import load_tokenizer
from headhunt.predictor import Predictor
from headhunt.spec import Recipe, Spec
from headhunt.training.tokens import SpecialTokens

LABELS = {
    "single_label_classification": ("bad", "good", "so so"),
    "multi_label_classification": ("cat", "dog"),
    "regression": (),
}
CUSTOM = Head(convolutions=Convolutions(channels=8), pooling="attention", mlp=Mlp(width=8))
SIAMESE = Head(pooling="mean", siamese="concat")
RECIPE = Recipe(max_length=24, truncation="middle")
# name: head, problem type, pair
CASES = {
    "plain": (Head(), "single_label_classification", False),
    "plain-pair": (Head(), "single_label_classification", True),
    "custom": (CUSTOM, "single_label_classification", False),
    "custom-pair": (CUSTOM, "single_label_classification", True),
    "siamese": (SIAMESE, "single_label_classification", True),
    "labels": (Head(), "multi_label_classification", False),
    "number": (CUSTOM, "regression", False),
}
EVERY = pytest.mark.parametrize("case", CASES)
TEXTS = [*sentences(20, seed=1)[0], "good [SEP] bad", "the movie was very very very good"]
OTHERS = [*sentences(20, seed=2)[0], "not [CLS] it", "a"]


@pytest.fixture(scope="module")
def made(encoders):
    """Return a function that makes the predictor of a case, with weights large enough for outputs to differ."""
    kept: dict[str, Predictor] = {}

    def get(case: str) -> Predictor:
        if case not in kept:
            head, problem_type, pair = CASES[case]
            tokenizer = load_tokenizer(encoders())
            separators = SpecialTokens.of(tokenizer, pair=True).between
            model = build(
                encoders(), head, problem_type=problem_type, labels=LABELS[problem_type], separators=separators, seed=1
            )
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2)) * 0.2)
            spec = Spec(encoder=encoders(), head=head, recipe=RECIPE)
            options = {
                "problem_type": problem_type,
                "labels": LABELS[problem_type],
                "pair": pair,
                "spec": spec,
                "precision": "fp32",
            }
            kept[case] = Predictor(model, tokenizer, **options, facts={"seed": 3})
        return kept[case]

    return get


def outputs_of(predictor: Predictor, texts=TEXTS, others=OTHERS) -> np.ndarray:
    return predictor.outputs(texts, others if predictor.pair else None)


@EVERY
def test_load_restores_outputs_and_attributes(made, case, tmp_path):
    saved = made(case)
    loaded = Predictor.load(saved.save(tmp_path / "model"), precision="fp32")
    np.testing.assert_allclose(outputs_of(loaded), outputs_of(saved), atol=1e-6)
    assert np.ptp(outputs_of(saved), axis=0).min() > 0.01, "outputs must differ for the test to be meaningful"
    for name in ("problem_type", "labels", "pair", "spec", "recipe", "facts"):
        assert getattr(loaded, name) == getattr(saved, name), name
    modes = {path.name: path.stat().st_mode for path in (tmp_path / "model").iterdir()}
    assert len(set(modes.values())) == 1, f"weights that only one user can read: {modes}"
    again = Predictor.load(loaded.save(tmp_path / "again"), precision="fp32")
    np.testing.assert_allclose(outputs_of(again), outputs_of(saved), atol=1e-6)


def test_load_restores_recipe_without_spec(made, tmp_path):
    known = made("plain")
    options = {
        "problem_type": "single_label_classification",
        "labels": known.labels,
        "pair": False,
        "recipe": RECIPE,
        "precision": "fp32",
    }
    saved = Predictor(known.model, known.tokenizer, **options)
    loaded = Predictor.load(saved.save(tmp_path / "model"), precision="fp32")
    assert loaded.recipe == RECIPE and loaded.spec is None
    long = [" ".join(WORDS * 3), " ".join(WORDS[::-1] * 3)]
    assert loaded.tokenise(long).lengths.tolist() == [24, 24]
    np.testing.assert_allclose(loaded.outputs(long), saved.outputs(long), atol=1e-6)


@EVERY
def test_outputs_keep_order_of_texts(made, case, monkeypatch):
    predictor = made(case)
    monkeypatch.setattr("headhunt.predictor.WINDOW", 50)
    rng = np.random.default_rng(0)
    texts, others = ([" ".join(rng.choice(WORDS, rng.integers(1, 40))) for _ in range(130)] for _ in range(2))
    done: list[int] = []
    outputs = predictor.outputs(texts, others if predictor.pair else None, batch=16, progress=done.append)
    assert sum(done) == 130 == len(outputs)
    for i in (0, 1, 49, 50, 77, 129):
        alone = outputs_of(predictor, [texts[i]], [others[i]])
        np.testing.assert_allclose(outputs[i], alone[0], atol=1e-5)


def test_prediction_of_every_problem_type(made):
    classes = made("plain")
    row = classes.predict(TEXTS[0])[0]
    assert row.label == max(row.probabilities, key=row.probabilities.get) and tuple(row.probabilities) == classes.labels
    assert row.probability == row.probabilities[row.label] and sum(row.probabilities.values()) == pytest.approx(1)
    labels = made("labels")
    both, one, none = (labels.prediction(np.array(p)) for p in ((0.9, 0.6), (0.2, 0.5), (0.1, 0.2)))
    assert (both.label, both.probability) == (["cat", "dog"], 0.6)
    assert (one.label, one.probability) == (["dog"], 0.5) and (none.label, none.probability) == ([], None)
    number = made("number").predict([TEXTS[0]])[0]
    assert isinstance(number.label, float) and number.probability is None and number.probabilities == {}


@EVERY
def test_outputs_of_no_texts_are_empty(made, case):
    predictor = made(case)
    empty = outputs_of(predictor, [], [])
    assert empty.shape == ((0,) if predictor.problem_type == "regression" else (0, len(predictor.labels)))
    assert predictor.predict([], [] if predictor.pair else None) == []


@pytest.mark.parametrize("make", [np.array, pandas.Series, tuple])
def test_predict_takes_arrays_and_series(made, make):
    """Issue: "the truth value of an array is ambiguous"."""
    predictor = made("plain")
    texts = ["a cat", "the dog was good"]
    assert predictor.predict(make(texts)) == predictor.predict(texts)
    assert predictor.predict(make([])) == []


@pytest.mark.parametrize("missing", [None, float("nan"), pandas.NA])
def test_predict_refuses_missing_texts(made, missing):
    with pytest.raises(ModelError, match=r"texts= must contain texts; row 1 has a missing value"):
        made("plain").predict(["a cat", missing])


def test_unknown_precision_is_refused(made):
    """Issue: fp16 was ignored without a word."""
    predictor = made("plain")
    odd = Predictor(
        predictor.model,
        predictor.tokenizer,
        problem_type=predictor.problem_type,
        labels=predictor.labels,
        pair=False,
        spec=predictor.spec,
        precision="fp16",
    )
    with pytest.raises(ModelError, match="precision= must be auto, fp32 or bf16; found 'fp16'"):
        odd.predict(["a cat"])


def test_predict_refuses_wrong_number_of_texts(made):
    with pytest.raises(ModelError, match="one text for each prediction; found two"):
        made("plain").predict(["a"], ["b"])
    with pytest.raises(ModelError, match="two texts for each prediction; found one"):
        made("plain-pair").predict(["a"])
    with pytest.raises(ModelError, match=r"texts= and texts_b .* found 2 and 1"):
        made("plain-pair").predict(["a", "b"], ["c"])
    with pytest.raises(ModelError, match="list of texts"):
        made("plain").outputs("one string")


def test_load_refuses_folders_without_valid_model(made, encoders, tmp_path):
    for folder in (tmp_path, encoders()):
        with pytest.raises(ModelError, match=r"saved model.*headhunt\.json"):
            Predictor.load(folder)
    with pytest.raises(ModelError, match=r"nothing must be .* does not exist\. Check the path"):
        Predictor.load(tmp_path / "nothing")
    folder = made("plain").save(tmp_path / "model")
    card = json.loads((folder / "headhunt.json").read_text())
    for wrong in ({**card, "schema": 2}, {**card, "recipe": {"rat": 1}}, {**card, "spec": {"hed": {}}}, [card]):
        (folder / "headhunt.json").write_text(json.dumps(wrong))
        with pytest.raises(ModelError, match=r"cannot be loaded.*Save the model again"):
            Predictor.load(folder)


def test_load_explains_run_directories_and_exports(made, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "ledger.jsonl").touch()
    with pytest.raises(ModelError, match=r"run directory .* no model yet; resume the search"):
        Predictor.load(run)
    made("plain").save(run / "model")
    with pytest.raises(ModelError, match=rf"run directory of a search, not a model\. Use {run / 'model'}\."):
        Predictor.load(run)
    (run / "model" / "model.onnx").touch()
    with pytest.raises(ModelError, match=r"is an ONNX export.*can label a corpus.*headhunt serve"):
        Predictor.load(run / "model")


def test_interrupted_save_leaves_no_loadable_folder(made, tmp_path, monkeypatch):
    predictor = made("plain")
    folder = predictor.save(tmp_path / "model")
    Predictor.load(folder)
    monkeypatch.setattr(type(predictor.tokenizer), "save_pretrained", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        predictor.save(folder)
    with pytest.raises(ModelError, match=r"no headhunt\.json"):
        Predictor.load(folder)


def test_predictor_repr(made):
    assert repr(made("plain-pair")).startswith("Predictor(two texts → 3 classes, 0.0 M")
    assert "one text → a number" in repr(made("number"))


# ------------------------------------------------------------------------------------------------ thresholds


def two_labels(encoder: str, head: Head, thresholds=None) -> Predictor:
    labels = LABELS["multi_label_classification"]
    options = {"problem_type": "multi_label_classification", "labels": labels}
    model = build(encoder, head, **options, seed=1)
    return Predictor(model, load_tokenizer(encoder), **options, pair=False, precision="fp32", thresholds=thresholds)


@pytest.mark.parametrize("head", [Head(), CUSTOM], ids=["plain", "custom"])
def test_thresholds_are_saved_in_the_config_and_decide(encoders, head, tmp_path):
    saved = two_labels(encoders(), head)
    assert saved.thresholds is None and "thresholds" not in json.loads(
        (saved.save(tmp_path / "without") / "config.json").read_text()
    )
    saved.thresholds = np.array([0.1, 0.75])
    assert saved.thresholds == (0.1, 0.75) and saved.model.config.thresholds == [0.1, 0.75]
    folder = saved.save(tmp_path / "with")
    assert json.loads((folder / "config.json").read_text())["thresholds"] == [0.1, 0.75]
    assert "from a probability of 0.1 to 0.75" in " ".join((folder / "README.md").read_text().split())
    loaded = Predictor.load(folder, precision="fp32")
    assert loaded.thresholds == (0.1, 0.75)
    np.testing.assert_allclose(outputs_of(loaded), outputs_of(two_labels(encoders(), head)), atol=1e-6)
    low, high, none = (loaded.prediction(np.array(p)) for p in ((0.1, 0.7), (0.05, 0.75), (0.09, 0.74)))
    assert (low.label, low.probability, low.probabilities) == (["cat"], 0.1, {"cat": 0.1, "dog": 0.7})
    assert (high.label, high.probability) == (["dog"], 0.75) and (none.label, none.probability) == ([], None)
    assert Predictor.load(tmp_path / "without").thresholds is None


def test_thresholds_are_not_taken_from_the_encoder(encoders, tmp_path):
    """A saved model can be the encoder of another task, whose labels are others."""
    other_task = two_labels(encoders(), Head(), [0.1, 0.75]).save(tmp_path / "model")
    predictor = two_labels(str(other_task), Head())
    assert predictor.thresholds is None and not hasattr(predictor.model.config, "thresholds")


def test_save_writes_the_thresholds_of_the_predictor_that_is_saved(encoders, tmp_path):
    first = two_labels(encoders(), Head(), [0.1, 0.75])
    options = {"problem_type": first.problem_type, "labels": first.labels, "pair": False}
    Predictor(first.model, first.tokenizer, **options)  # has none
    assert Predictor.load(first.save(tmp_path / "model")).thresholds == (0.1, 0.75)


@pytest.mark.parametrize("thresholds", [[0.5], [0.5, 1.0], [0.0, 0.5], [float("nan"), 0.5], "half", ["0.5", "0.5"]])
def test_load_refuses_invalid_thresholds(encoders, thresholds, tmp_path):
    predictor = two_labels(encoders(), Head(), [0.1, 0.75])
    folder = predictor.save(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "thresholds": thresholds}))
    with pytest.raises(ModelError, match=r"cannot be loaded: (thresholds must be 2 numbers between 0 and 1|NaN)"):
        Predictor.load(folder)
    with pytest.raises(ModelError, match="thresholds must be 2 numbers"):
        predictor.thresholds = thresholds
    assert predictor.thresholds == (0.1, 0.75)


def test_thresholds_are_refused_without_several_labels(made):
    with pytest.raises(ModelError, match="thresholds= is for models of several labels only"):
        made("plain").thresholds = [0.2, 0.3, 0.4]


# ------------------------------------------------------------------------------------------------ transformers alone


PIPELINE = """
import importlib.util, json, sys
from transformers import pipeline
assert importlib.util.find_spec("headhunt") is None
answers = {}
for case in json.load(open(sys.argv[1])):
    pipe = pipeline("text-classification", model=case["folder"], trust_remote_code=case["code"], device="cpu")
    answers[case["name"]] = [pipe(row, top_k=None) for row in case["rows"]]
json.dump(answers, open(sys.argv[2], "w"))
"""


def test_transformers_pipeline_gives_same_outputs_without_headhunt(made, tmp_path, outside):
    work = []
    for case, (head, _, pair) in CASES.items():
        rows = [{"text": a, "text_pair": b} if pair else a for a, b in zip(TEXTS, OTHERS, strict=True)]
        folder = made(case).save(tmp_path / case)
        work.append({"name": case, "folder": str(folder), "code": not head.plain, "rows": rows})
    (tmp_path / "work.json").write_text(json.dumps(work))
    (tmp_path / "run.py").write_text(PIPELINE)
    words = [str(tmp_path / name) for name in ("run.py", "work.json", "answers.json")]
    done = subprocess.run(
        [outside["OUTSIDE_PYTHON"], *words], env=outside, capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr[-2000:]
    answers = json.loads((tmp_path / "answers.json").read_text())
    for case, (_, problem_type, _) in CASES.items():
        names = LABELS[problem_type] or ("score",)
        scores = [{entry["label"]: entry["score"] for entry in row} for row in answers[case]]
        found = np.array([[row[name] for name in names] for row in scores])
        np.testing.assert_allclose(found, outputs_of(made(case)).reshape(found.shape), atol=1e-5, err_msg=case)


@pytest.mark.parametrize("siamese", [None, "combined"])
def test_predict_tasks_equals_predictions_task_by_task(encoders, siamese, monkeypatch):
    monkeypatch.setattr("headhunt.predictor.WINDOW", 3)
    monkeypatch.setattr("headhunt.predictor.BATCH", 2)
    model = make_tasks_predictor(encoders(), head=Head(pooling="mean", siamese=siamese), task_layers=1)
    texts, others = sentences(7)[0], sentences(7, seed=1)[0]
    found = model.predict_tasks(texts)
    assert list(found) == ["mood", "topic", "length"]
    pairs = model.predict_tasks(texts, others)
    assert list(pairs) == ["same", "near"]
    for name, predictions in {**found, **pairs}.items():
        expected = model.predict(texts, others if name in pairs else None, task=name)
        for one, other in zip(predictions, expected, strict=True):
            assert (one.label, one.probabilities) == (
                pytest.approx(other.label, abs=1e-5) if isinstance(other.label, float) else other.label,
                pytest.approx(other.probabilities, abs=1e-5),
            )
    chosen = model.predict_tasks("a good film", tasks=["length", "mood"])
    assert list(chosen) == ["length", "mood"] and len(chosen["mood"]) == 1
    assert model.predict_tasks([], tasks=["mood"]) == {"mood": []}
    for tasks, message in ((["same"], "takes two texts"), (["other"], "must be one of mood, topic")):
        with pytest.raises(ModelError, match=message):
            model.predict_tasks("a good film", tasks=tasks)
    with pytest.raises(ModelError, match="this model has one"):
        model.for_task("mood").predict_tasks("a good film")
