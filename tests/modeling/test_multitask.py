"""Models of several tasks: shared and copied layers, models of one task, folders that transformers loads."""

from __future__ import annotations

import json
import subprocess

import pytest
import torch
from conftest import FAMILIES
from transformers import AutoModelForSequenceClassification

from headhunt.errors import ModelError
from headhunt.modeling.architecture import Head
from headhunt.modeling.build import build_tasks, heads_of, layers_of, load_tokenizer
from headhunt.training.tokens import SpecialTokens

TASKS = [
    {"name": "mood", "problem_type": "single_label_classification", "labels": ["bad", "fine", "good"], "pair": False},
    {"name": "same", "problem_type": "single_label_classification", "labels": ["no", "yes"], "pair": True},
    {"name": "size", "problem_type": "regression", "labels": [], "pair": True},
]
TEXTS, OTHERS = ["a good movie", "the dog was bad , very bad"], ["it is a great film", "the cat sleeps"]


def make_model(encoder: str, head: Head | None = None, **options):
    tokenizer = load_tokenizer(encoder)
    separators = SpecialTokens.of(tokenizer, pair=True).between
    model = build_tasks(encoder, head or Head(), TASKS, separators=separators, **options)
    return model.eval(), tokenizer


def logits_of(model, tokenizer, name: str, **options) -> torch.Tensor:
    pair = next(each["pair"] for each in TASKS if each["name"] == name)
    inputs = tokenizer(TEXTS, OTHERS if pair else None, padding=True, return_tensors="pt")
    with torch.inference_mode():
        return model(**inputs, **options).logits


def test_copied_layers_belong_to_one_task_and_the_others_to_all(encoders):
    model, tokenizer = make_model(encoders(), task_layers=1)
    before = {task["name"]: logits_of(model, tokenizer, task["name"], task=task["name"]) for task in TASKS}
    lower, upper = layers_of(model)
    with torch.no_grad():
        upper.copies[1].intermediate.dense.weight.normal_()
    after = {task["name"]: logits_of(model, tokenizer, task["name"], task=task["name"]) for task in TASKS}
    assert torch.equal(after["mood"], before["mood"]) and torch.equal(after["size"], before["size"])
    assert not torch.allclose(after["same"], before["same"])
    with torch.no_grad():
        lower.intermediate.dense.weight.normal_()
    for name, logits in after.items():
        assert not torch.allclose(logits_of(model, tokenizer, name, task=name), logits)


@pytest.mark.parametrize(
    ("task_layers", "frozen", "copied"), [(0, 0, 0), (1, 0, 1), (5, 0, 2), ("all", 0, 2), ("all", 1, 1)]
)
def test_number_of_copied_layers(encoders, task_layers, frozen, copied):
    model, _ = make_model(encoders(), task_layers=task_layers, frozen_layers=frozen)
    assert model.config.task_layers == copied
    assert [hasattr(layer, "switch") for layer in layers_of(model)] == [False] * (2 - copied) + [True] * copied


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("siamese", [None, "combined"])
def test_model_of_one_task_has_the_same_logits_and_loads_like_any_other(encoders, tmp_path, family, siamese):
    layers = 0 if family == "albert" else 1
    head = Head(pooling="mean", siamese=siamese, layers="mix")
    model, tokenizer = make_model(encoders(family), head, task_layers=layers)
    if layers:  # copies that differ
        with torch.no_grad():
            for copies in layers_of(model)[-1].copies:
                for parameter in copies.parameters():
                    parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(tmp_path / "all")
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path / "all")
    for number, task in enumerate(TASKS):
        expected = logits_of(model, tokenizer, task["name"], task=number)
        assert expected.shape == (2, max(1, len(task["labels"])))
        single = model.for_task(task["name"])
        assert torch.allclose(logits_of(single, tokenizer, task["name"]), expected, atol=1e-6)
        single.save_pretrained(tmp_path / task["name"])
        again = AutoModelForSequenceClassification.from_pretrained(tmp_path / task["name"])
        assert torch.allclose(logits_of(again, tokenizer, task["name"]), expected, atol=1e-6)
        assert torch.allclose(logits_of(loaded, tokenizer, task["name"], task=task["name"]), expected, atol=1e-6)


def test_models_of_one_task_share_their_weights(encoders):
    model, tokenizer = make_model(encoders(), task_layers=1)
    single = model.for_task("mood")
    before = logits_of(single, tokenizer, "mood")
    with torch.no_grad():
        model.heads[0].output.bias.add_(1.0)
    assert torch.allclose(logits_of(single, tokenizer, "mood"), before + 1)
    assert len(layers_of(model)[-1].copies) == 3  # the model itself is unchanged


def test_plain_heads_start_from_the_encoders_pooler(encoders):
    model, _ = make_model(encoders())
    first, *others = heads_of(model)
    assert all(torch.equal(first.pooling.dense.weight, head.pooling.dense.weight) for head in others)
    assert first.pooling.dense.weight is not others[0].pooling.dense.weight


def test_layers_of_an_encoder_that_shares_one_are_not_copied(encoders):
    with pytest.raises(ModelError, match="task_layers must be 0"):
        make_model(encoders("albert"), task_layers=1)


def test_unknown_task_is_refused(encoders):
    model, tokenizer = make_model(encoders())
    with pytest.raises(ValueError, match=r"task must be one of mood, same, size; found 'other'"):
        logits_of(model, tokenizer, "mood", task="other")


def test_folder_loads_without_headhunt(encoders, tmp_path, outside):
    model, tokenizer = make_model(encoders(), Head(pooling="mean", siamese="combined"), task_layers=1)
    with torch.no_grad():
        for head in model.heads:
            head.output.weight.normal_()
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    script = f"""
import json, torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer
model = AutoModelForSequenceClassification.from_pretrained({str(tmp_path / "model")!r}, trust_remote_code=True).eval()
tokenizer = AutoTokenizer.from_pretrained({str(tmp_path / "model")!r}, trust_remote_code=True)
inputs = tokenizer({TEXTS!r}, {OTHERS!r}, padding=True, return_tensors="pt")
with torch.inference_mode():
    print(json.dumps(model(**inputs, task="same").logits.tolist()))
"""
    done = subprocess.run([outside["OUTSIDE_PYTHON"], "-c", script], env=outside, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    expected = logits_of(model, tokenizer, "same", task="same")
    assert torch.allclose(torch.tensor(json.loads(done.stdout.splitlines()[-1])), expected, atol=1e-5)
