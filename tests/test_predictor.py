"""What is saved answers as what was trained: loaded again, in any order, and by transformers alone."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import WORDS, sentences

import headhunt
from headhunt.errors import ModelError
from headhunt.modeling.architecture import Convolutions, Head, Mlp
from headhunt.modeling.build import build, load_tokenizer
from headhunt.predictor import Ensemble, Predictor, open_model, save_ensemble
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
# name: head, problem_type, whether it takes pairs
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
    """A predictor by case, with weights large enough to make its answers differ."""
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


def ask(predictor: Predictor, texts=TEXTS, others=OTHERS) -> np.ndarray:
    return predictor.outputs(texts, others if predictor.pair else None)


@EVERY
def test_what_is_loaded_answers_as_what_was_saved(made, case, tmp_path):
    saved = made(case)
    loaded = Predictor.load(saved.save(tmp_path / "model"), precision="fp32")
    np.testing.assert_allclose(ask(loaded), ask(saved), atol=1e-6)
    assert np.ptp(ask(saved), axis=0).min() > 0.01, "a model that says the same of everything proves nothing"
    for name in ("problem_type", "labels", "pair", "spec", "recipe", "facts"):
        assert getattr(loaded, name) == getattr(saved, name), name
    again = Predictor.load(loaded.save(tmp_path / "again"), precision="fp32")
    np.testing.assert_allclose(ask(again), ask(saved), atol=1e-6)


def test_length_and_truncation_are_kept_where_the_spec_is_not_known(made, tmp_path):
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
def test_the_order_of_many_texts_of_uneven_length_is_kept(made, case, monkeypatch):
    predictor = made(case)
    monkeypatch.setattr("headhunt.predictor.WINDOW", 50)
    rng = np.random.default_rng(0)
    texts, others = ([" ".join(rng.choice(WORDS, rng.integers(1, 40))) for _ in range(130)] for _ in range(2))
    done: list[int] = []
    found = predictor.outputs(texts, others if predictor.pair else None, batch=16, progress=done.append)
    assert sum(done) == 130 == len(found)
    for i in (0, 1, 49, 50, 77, 129):
        alone = ask(predictor, [texts[i]], [others[i]])
        np.testing.assert_allclose(found[i], alone[0], atol=1e-5)


def test_answers_in_words(made):
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
def test_no_texts_give_no_answers(made, case):
    predictor = made(case)
    empty = ask(predictor, [], [])
    assert empty.shape == ((0,) if predictor.problem_type == "regression" else (0, len(predictor.labels)))
    assert predictor.predict([], [] if predictor.pair else None) == []


def test_the_wrong_number_of_texts_is_refused(made):
    with pytest.raises(ModelError, match="one text for each answer; found two"):
        made("plain").predict(["a"], ["b"])
    with pytest.raises(ModelError, match="two texts for each answer; found one"):
        made("plain-pair").predict(["a"])
    with pytest.raises(ModelError, match="found 2 and 1"):
        made("plain-pair").predict(["a", "b"], ["c"])
    with pytest.raises(ModelError, match="list of texts"):
        made("plain").outputs("one string")


def test_folders_that_are_not_ours_are_refused(made, encoders, tmp_path):
    for folder in (tmp_path, encoders()):
        with pytest.raises(ModelError, match=r"Headhunt saved.*headhunt\.json"):
            Predictor.load(folder)
    with pytest.raises(ModelError, match=r"nothing must be .* not there\. Check the path"):
        Predictor.load(tmp_path / "nothing")
    folder = made("plain").save(tmp_path / "model")
    card = json.loads((folder / "headhunt.json").read_text())
    for wrong in ({**card, "schema": 2}, {**card, "recipe": {"rat": 1}}, {**card, "spec": {"hed": {}}}, [card]):
        (folder / "headhunt.json").write_text(json.dumps(wrong))
        with pytest.raises(ModelError, match=r"cannot be loaded.*Save the model again"):
            Predictor.load(folder)


def test_a_folder_beside_the_model_is_told_apart(made, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "ledger.jsonl").touch()
    with pytest.raises(ModelError, match=rf"run directory .* no model yet: headhunt resume {run} --time"):
        open_model(run)
    made("plain").save(run / "model")
    with pytest.raises(ModelError, match=rf"run directory of a search\. Use {run / 'model'}\."):
        open_model(run)
    made("plain").save(run / "ensemble" / "000001-0")
    save_ensemble(run / "ensemble", {})
    with pytest.raises(ModelError, match=rf"cannot be exported, pushed.* yet\. Give one model: {run / 'model'}\."):
        Predictor.load(run / "ensemble")
    (run / "model" / "model.onnx").touch()
    with pytest.raises(ModelError, match=r"is an ONNX export.*predict\.py.*headhunt serve"):
        open_model(run / "model")


def test_a_save_that_breaks_off_does_not_look_finished(made, tmp_path, monkeypatch):
    predictor = made("plain")
    folder = predictor.save(tmp_path / "model")
    Predictor.load(folder)
    monkeypatch.setattr(type(predictor.tokenizer), "save_pretrained", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        predictor.save(folder)
    with pytest.raises(ModelError, match=r"no headhunt\.json"):
        Predictor.load(folder)


def test_it_says_what_it_is(made):
    assert repr(made("plain-pair")).startswith("Predictor(two texts → 3 classes, 0.0 M")
    assert "one text → a number" in repr(made("number"))


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


def test_the_pipeline_of_transformers_gives_the_same_answers_without_headhunt(made, tmp_path, outside):
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
        np.testing.assert_allclose(found, ask(made(case)).reshape(found.shape), atol=1e-5, err_msg=case)


def with_head(encoder: str, head: Head, seed: int, length: int = 24) -> Predictor:
    tokenizer = load_tokenizer(encoder)
    between = SpecialTokens.of(tokenizer, pair=True).between
    model = build(
        encoder,
        head,
        problem_type="single_label_classification",
        labels=LABELS["single_label_classification"],
        separators=between,
        seed=seed,
    )
    with torch.no_grad():
        for parameter in model.head.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed)) * 0.5)
    spec = Spec(encoder=encoder, head=head, recipe=replace(RECIPE, max_length=length))
    options = {
        "labels": LABELS["single_label_classification"],
        "pair": bool(head.siamese),
        "spec": spec,
        "precision": "fp32",
    }
    return Predictor(model, tokenizer, problem_type="single_label_classification", **options)


@pytest.mark.parametrize("siamese", [None, "concat"])
def test_an_ensemble_answers_the_mean_and_runs_a_shared_encoder_once(encoders, tmp_path, siamese):
    heads = [Head(pooling="mean", siamese=siamese), Head(pooling="max", siamese=siamese)]
    heads.append(Head(pooling="mean", layers="mix", siamese=siamese))
    members = [with_head(encoders(), head, seed, 24 if seed < 2 else 8) for seed, head in enumerate(heads)]
    alone = np.mean([ask(member) for member in members], axis=0)
    for i, member in enumerate(members):
        member.save(tmp_path / f"member-{i}")
    save_ensemble(tmp_path, {"trials": [1, 2, 3]})
    loaded = headhunt.load(tmp_path, device="cpu", precision="fp32")
    assert isinstance(loaded, Ensemble) and loaded.facts["trials"] == [1, 2, 3]
    calls = []
    encoder = loaded.members[0].model.encoder.encoder
    assert all(member.model.encoder is loaded.members[0].model.encoder for member in loaded.members)
    encoder.register_forward_hook(lambda *_: calls.append(1))
    np.testing.assert_allclose(ask(loaded), alone, atol=1e-5)
    assert len(calls) == 2, "once for each length the texts are cut to"
    assert loaded.predict(TEXTS[0], OTHERS[0] if siamese else None)[0].label in LABELS["single_label_classification"]
    with pytest.raises(ModelError, match="several models"):
        Predictor.load(tmp_path)


def test_members_with_encoders_of_their_own_keep_them(encoders):
    members = [with_head(encoders(), Head(pooling="mean"), seed) for seed in (0, 1)]
    with torch.no_grad():
        next(members[1].model.encoder.parameters()).add_(0.5)
    alone = np.mean([ask(member) for member in members], axis=0)
    np.testing.assert_allclose(ask(Ensemble(members)), alone, atol=1e-5)
