"""Ensembles as one model: the mean of the members' outputs, shared encoders, cuts, thresholds and calibration."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from ensembles import (
    CASES,
    END,
    MEAN,
    MIDDLE,
    NUMBER,
    PROBLEM_TYPES,
    SEVERAL,
    TEXTS,
    make_member,
    make_members,
    save_case,
    second_texts,
)
from model_folders import CODE, FILES

import headhunt
from headhunt.engine.ensemble import encoders_with_equal_tokenizer, join
from headhunt.errors import ModelError
from headhunt.evaluation import Decisions
from headhunt.modeling.architecture import Head
from headhunt.predictor import Predictor


def load(folder) -> Predictor:
    return headhunt.load(folder, device="cpu", precision="fp32")


@pytest.mark.parametrize("problem_type", PROBLEM_TYPES)
@pytest.mark.parametrize("case", CASES)
def test_ensemble_predicts_the_mean_of_its_members(encoders, tmp_path, case, problem_type):
    mean = save_case(encoders(), case, tmp_path / "model", problem_type)
    assert np.ptp(mean, axis=0).min() > 1e-3, "the outputs must differ between texts"
    assert {path.name for path in (tmp_path / "model").iterdir()} == FILES | CODE | {"ensemble.py"}
    loaded = load(tmp_path / "model")
    np.testing.assert_allclose(loaded.outputs(TEXTS, second_texts(case)), mean, atol=2e-5, rtol=1e-5)
    again = load(loaded.save(tmp_path / "again"))
    np.testing.assert_allclose(again.outputs(TEXTS, second_texts(case)), mean, atol=2e-5, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["roberta", "distilbert", "albert", "electra", "modernbert"])
@pytest.mark.parametrize("case", CASES)
def test_ensemble_of_every_family_predicts_the_mean_of_its_members(encoders, tmp_path, case, family):
    mean = save_case(encoders(family), case, tmp_path / "model")
    np.testing.assert_allclose(load(tmp_path / "model").outputs(TEXTS, second_texts(case)), mean, atol=2e-5)


def test_ensemble_stores_and_runs_equal_encoders_once(encoders, tmp_path):
    mean = save_case(encoders(), "ensemble", tmp_path / "model")
    loaded = load(tmp_path / "model")
    assert [entry["encoder"] for entry in loaded.model.config.members] == [0, 0, 2]
    owner, sharing, plain = loaded.model.members
    assert sharing.encoder is None
    weights = sum(parameter.numel() for parameter in loaded.model.parameters())
    assert weights == sum(parameter.numel() for part in (owner, sharing.head, plain) for parameter in part.parameters())
    calls = []
    owner.encoder.register_forward_hook(lambda *_: calls.append(1))
    np.testing.assert_allclose(loaded.outputs(TEXTS), mean, atol=1e-5)
    assert len(calls) == 1


def test_ensemble_calibrates_by_its_temperature(encoders, tmp_path):
    members = make_members(encoders(), "ensemble")
    mean = np.mean([member.outputs(TEXTS) for member in members], axis=0)
    ensemble = join(members)
    ensemble.calibrate(2.0)
    loaded = load(ensemble.save(tmp_path / "model"))
    scaled = np.sqrt(mean) / np.sqrt(mean).sum(1, keepdims=True)
    np.testing.assert_allclose(loaded.outputs(TEXTS), scaled, atol=1e-5)
    assert loaded.facts["temperature"] == 2.0


def test_calibrate_divides_the_logits_of_a_single_model(encoders):
    predictor = make_members(encoders(), "ensemble")[1]
    before = predictor.outputs(TEXTS)
    predictor.calibrate(2.0)
    np.testing.assert_allclose(
        predictor.outputs(TEXTS), np.sqrt(before) / np.sqrt(before).sum(1, keepdims=True), atol=1e-5
    )


def test_joined_models_are_saved_as_one_that_names_them(encoders, tmp_path):
    join(make_members(encoders(), "ensemble"), {"trials": [0, 1, 2]}).save(tmp_path / "ensemble")
    assert {path.name for path in (tmp_path / "ensemble").iterdir()} == FILES | CODE | {"ensemble.py"}
    loaded = load(tmp_path / "ensemble")
    assert loaded.facts["trials"] == [0, 1, 2] and len(loaded.facts["members"]) == 3 and loaded.spec is None
    expected = np.mean([member.outputs(TEXTS) for member in make_members(encoders(), "ensemble")], axis=0)
    np.testing.assert_allclose(loaded.outputs(TEXTS), expected, atol=1e-5)
    assert repr(loaded).startswith("Predictor(one text → 2 classes")
    assert "The mean of 3 models." in loaded._repr_html_()
    assert "are the mean of 3 models" in (tmp_path / "ensemble" / "README.md").read_text()


def test_ensemble_decides_by_its_own_thresholds_or_the_mean_of_its_members(encoders, tmp_path):
    def joined(decisions):
        members = make_members(encoders(), "ensemble", SEVERAL)[:2]
        members[0].thresholds = [0.1, 0.3]
        ensemble = join(members)
        ensemble.decide_by(decisions)
        return load(ensemble.save(tmp_path / "model"))

    mean, own = joined(Decisions()), joined(Decisions(thresholds=(0.2, 0.6)))
    assert mean.thresholds == pytest.approx((0.3, 0.4)) and own.thresholds == (0.2, 0.6)
    assert mean.prediction(np.array([0.29, 0.41])).label == ["bad", "good"][1:]
    assert own.prediction(np.array([0.29, 0.41])).label == ["bad"]
    assert join(make_members(encoders(), "ensemble", SEVERAL)).thresholds is None


def test_join_refuses_models_of_different_tasks_and_tokenizers(encoders):
    options = {"trained": False, "pair": False}
    classes = make_member(encoders(), MEAN, END, **options)
    with pytest.raises(ModelError, match="models of one task; found problem_type"):
        join([classes, make_member(encoders(), MEAN, END, problem_type=NUMBER, **options)])
    with pytest.raises(ModelError, match="equal tokenizers"):
        join([classes, make_member(encoders("roberta"), MEAN, END, **options)])
    with pytest.raises(ModelError, match="must be single models"):
        join([classes, join([make_member(encoders(), MEAN, END, **options)])])
    with pytest.raises(ModelError, match="at least one member"):
        join([])


def test_encoders_with_equal_tokenizer_are_found(encoders):
    names = [encoders("bert"), encoders("roberta"), encoders("electra"), encoders("bert"), encoders("distilbert")]
    assert encoders_with_equal_tokenizer(names) == [encoders("bert"), encoders("electra")], "others have no token types"


@pytest.mark.parametrize("pair", [False, True])
def test_cut_keeps_the_tokens_that_each_member_was_trained_on(encoders, pair):
    """Every way of cutting texts, with texts of many lengths, gives the tokens of the tokenizer."""
    heads = [MEAN, Head(pooling="mean", siamese="concat")] if pair else [MEAN]
    recipes = [replace(recipe, max_length=length) for recipe in (END, MIDDLE) for length in (8, 11, 16)]
    options = {"trained": False, "pair": pair}
    members = [make_member(encoders(), head, recipe, **options) for head in heads for recipe in recipes]
    words = ["the", "film", "was", "a", "good", "plot"]
    texts = [" ".join(words[i % 6] for i in range(length)) for length in range(40)]
    others = ([texts[i * 7 % 40] for i in range(40)]) if pair else None
    expected = [member.tokenise(texts, others).batch(np.arange(40)) for member in members]
    takes = [member.takes for member in members]
    ensemble = join(members)
    batch = ensemble.tokenise(texts, others).batch(np.arange(40))
    inputs = [batch[name] for name in ("input_ids", "attention_mask", "token_type_ids")]
    for take, tokens in zip(takes, expected, strict=True):
        cut = ensemble.model.cut(*inputs, *take)
        for tensor, name in zip(cut, ("input_ids", "attention_mask", "token_type_ids"), strict=True):
            assert torch.equal(tensor, tokens[name]), (take, name)
