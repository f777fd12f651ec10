"""Models of several tasks: shared and copied layers, models of one task, folders that transformers loads."""

from __future__ import annotations

import json
import subprocess
from collections import Counter

import pytest
import torch
from conftest import FAMILIES
from multitask import make_predictor
from transformers import AutoModelForSequenceClassification

from headhunt.data import tasks
from headhunt.errors import ModelError
from headhunt.modeling import multitask
from headhunt.modeling.architecture import Head
from headhunt.modeling.build import build_tasks, embeddings_of, heads_of, layers_of
from headhunt.modeling.pretrained import load_tokenizer
from headhunt.predictor import Predictor
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


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("layers", [0, 1, "all"])
def test_several_tasks_at_once_equal_one_by_one_and_shared_layers_run_once(encoders, family, layers):
    if family == "albert" and layers:
        pytest.skip("ALBERT has one layer at all depths, which is not copied")
    head = Head(pooling="mean", siamese="combined", layers="mix")
    model, tokenizer = make_model(encoders(family), head, task_layers=layers)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    tasks = ["same", "size"]
    expected = [logits_of(model, tokenizer, name, task=name) for name in tasks]
    passes = Counter()
    shared = [*embeddings_of(model), *(layer for layer in layers_of(model) if not hasattr(layer, "switch"))]
    for number, module in enumerate(shared):
        count_calls(module, passes, number)
    inputs = tokenizer(TEXTS, OTHERS, padding=True, return_tensors="pt")
    with torch.inference_mode():
        found = model.forward_tasks(**inputs, tasks=tasks)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(found, expected, strict=True))
    repeats = 2 if family == "albert" else 1  # its one layer is called at every depth
    assert passes and max(passes.values()) <= repeats and len(passes) == len(shared)
    assert torch.equal(logits_of(model, tokenizer, "same", task="same"), expected[0]), "nothing is left behind"


def count_calls(module, calls: Counter, key: int) -> None:
    """Count how often a module computes, not how often it is called."""
    compute = type(module).forward

    def forward(*args, **kwargs):
        calls[key] += 1
        return compute(module, *args, **kwargs)

    module.forward = forward


@pytest.fixture(scope="module")
def saved(encoders, tmp_path_factory):
    """A folder of a model of three tasks, and its configuration."""
    folder = make_predictor(encoders(), ("mood", "length", "same"), task_layers=1).save(tmp_path_factory.mktemp("all"))
    return folder, json.loads((folder / "config.json").read_text())


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ({"tasks": None}, "tasks must be a list of at most 64 tasks; found None"),
        ({"tasks": []}, "must have tasks; found none"),
        ({"tasks": 10**30}, "tasks must be a list"),
        ({"tasks": [{}] * 65}, "at most 64 tasks; found 65"),
        ({"tasks": ["mood"]}, r"tasks\[0\] must have a name"),
        ({0: {"name": "../mood"}}, r"name of tasks\[0\] must be letters"),
        ({0: {"name": "same"}}, "Every task must have its own name"),
        ({0: {"labels": [1, 2, 3]}}, "must be a list of strings"),
        ({0: {"labels": ["a", "a", "b"]}}, r"Every label of tasks\[0\] must be different"),
        ({0: {"labels": []}}, "regression without"),
        ({0: {"problem_type": "multi_label_classification"}}, "found 'multi_label_classification'"),
        ({0: {"pair": 1}}, r"pair of tasks\[0\] must be true or false"),
        ({0: {"head": {"pooling": "nothing"}}}, "pooling must be one of"),
        ({0: {"head": {"mlp": {"layers": 10**9}}}}, "mlp.layers must be 1 to 8"),
        ({0: {"head": {"siamese": "cosine"}}}, "must compare two texts only if it gets two"),
        ({0: {"labels": ["bad", "good"]}}, "cannot be loaded"),
        ({0: {"head": {"mlp": {}}}}, "weights lack|cannot be loaded"),
        ({"task_layers": -1}, "task_layers must be a whole number from 0 to 1000; found -1"),
        ({"task_layers": True}, "found True"),
        ({"task_layers": 10**30}, "found 1000"),
        ({"task_layers": 3}, "does not have 3 layers"),
        ({"task_layers": 0}, "cannot be loaded"),
        ({"task_layers": 2}, "weights lack"),
        ({"swap": True}, "cannot be loaded"),
        ({"drop": 2}, "weights are of other tasks than its config.json"),
    ],
    ids=repr,
)
def test_damaged_configuration_is_refused(saved, damage, message):
    folder, config = saved
    config = json.loads(json.dumps(config))
    if damage.pop("swap", False):
        config["tasks"].reverse()
    if "drop" in damage:
        del config["tasks"][damage.pop("drop")]
    for key, value in damage.items():
        if isinstance(key, int):
            config["tasks"][key] |= value
        else:
            config[key] = value
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=message):
        Predictor.load(folder)


def test_tasks_of_data_and_of_models_have_the_same_limits():
    assert (tasks.NAME.pattern, tasks.MOST_TASKS) == (multitask.NAME.pattern, multitask.MOST_TASKS)


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
