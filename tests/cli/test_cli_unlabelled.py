"""`headhunt pretrain` and `headhunt distil`."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from command_line import refuse, saved_models, succeed
from conftest import sentences

from headhunt.engine import distillation
from headhunt.predictor import Predictor

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(scope="module")
def models(encoders, tmp_path_factory):
    return saved_models(encoders, tmp_path_factory)


@pytest.fixture
def texts(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(sentences(300, seed=7)[0]) + "\n")
    return path


def test_pretrain_saves_an_encoder_and_prints_next_command(encoders, tmp_path, texts):
    words = ("pretrain", encoders(), "--texts", texts, "--epochs", 1)
    printed = succeed(*words, "--out", tmp_path / "new")
    assert "300 texts, 1 epochs, 10 steps" in printed and "loss" in printed
    assert f"--encoder {encoders()},{tmp_path / 'new'}" in printed
    again = json.loads(succeed(*words, "--out", tmp_path / "again", "--json"))
    assert again["cached"] and again["steps"] == 10 and again["out"] == str(tmp_path / "again")
    refuse(*words, "--out", tmp_path / "new", fragments=["--out must be a new or empty folder"])
    refuse(
        "pretrain", encoders(), "--texts", texts, "--out", tmp_path / "x", "--epochs", 0, fragments=["--epochs must"]
    )


def test_pretrained_encoder_can_be_fitted(encoders, tmp_path, texts):
    succeed("pretrain", encoders(), "--texts", texts, "--epochs", 0.5, "--out", tmp_path / "new")
    (tmp_path / "data.csv").write_text(
        "text,label\n" + "\n".join(f"{t},{x}" for t, x in zip(*sentences(40), strict=True))
    )
    (tmp_path / "spec.json").write_text(json.dumps({"recipe": {"epochs": 1}}))
    words = ("--encoder", tmp_path / "new", "--spec", tmp_path / "spec.json")
    succeed("fit", tmp_path / "data.csv", *words, "--out", tmp_path / "model")
    assert Predictor.load(tmp_path / "model").spec.encoder == str(tmp_path / "new")


@pytest.mark.parametrize("problem_type", ["single_label_classification", "multi_label_classification", "regression"])
def test_distil_trains_a_student_and_measures_both(models, encoders, tmp_path, texts, problem_type, monkeypatch):
    recipe = replace(distillation.RECIPE, learning_rate=3e-3, batch_size=16, layer_decay=1.0)
    monkeypatch.setattr(distillation, "RECIPE", recipe)
    model, test, _ = models(problem_type)
    out = tmp_path / "student"
    words = ("distil", model, "--texts", texts, "--encoder", encoders("roberta"), "--out", out, "--epochs", 12)
    done = json.loads(succeed(*words, "--test", test, "--json"))
    assert done["texts"] == 270 and done["test_rows"] == 32
    assert done["teacher"]["cost"]["latency"]["1"]["p50_ms"] > 0 and done["student"]["cost"]["parameters"] > 0
    metric = {"single_label_classification": "accuracy", "regression": "pearson"}.get(problem_type, "micro_f1")
    student, teacher = (done[role]["scores"][metric]["value"] for role in ("student", "teacher"))
    assert student > teacher - 0.2 and done["agreement"] > 0.6
    loaded = Predictor.load(out)
    assert loaded.problem_type == problem_type and loaded.facts["distillation"]["texts"] == 270
    assert loaded.spec.encoder == encoders("roberta") and loaded.thresholds == Predictor.load(model).thresholds


def test_distil_prints_both_and_leaves_test_texts_out(models, encoders, tmp_path):
    model, test, _ = models()
    lines = [line.rsplit(",", 1)[0] for line in test.read_text().splitlines()[1:]]
    (tmp_path / "texts.txt").write_text("\n".join([*lines, *sentences(40, seed=9)[0]]))
    words = ("distil", model, "--texts", tmp_path / "texts.txt", "--encoder", encoders(), "--epochs", 1)
    printed = succeed(*words, "--test", test, "--out", tmp_path / "student")
    assert "teacher: " in printed and "student: " in printed and "accuracy" in printed and "they agree on" in printed
    seen = Predictor.load(tmp_path / "student").facts["distillation"]["texts"]
    assert seen <= 36  # a tenth is held out, and none of the test texts is learned from
    refuse(*words, "--test", test, "--out", tmp_path / "student", fragments=["--out must be a new or empty folder"])
    (tmp_path / "few.txt").write_text("a good film\n")
    few = ("distil", model, "--texts", tmp_path / "few.txt", "--encoder", encoders(), "--out", tmp_path / "x")
    refuse(*few, fragments=["--texts must hold at least 20 texts"])
