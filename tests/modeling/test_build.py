"""Building models: encoders with their own code, and encoders that share one layer."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
from conftest import make_tokenizer, sentences

from headhunt.data import Task
from headhunt.engine.assembly import prepare
from headhunt.errors import ModelError
from headhunt.modeling.architecture import Head
from headhunt.modeling.build import build
from headhunt.modeling.pretrained import freezable_layers, load_config
from headhunt.predictor import Predictor
from headhunt.spec import Recipe, Space, Spec

CONFIGURATION = """
from transformers import BertConfig

class FoldedConfig(BertConfig):
    model_type = "folded"
"""
MODEL = """
from transformers import BertModel
from .configuration_folded import FoldedConfig

class FoldedModel(BertModel):
    config_class = FoldedConfig
"""
LOAD = """
import sys
import numpy as np
from headhunt.predictor import Predictor
predictor = Predictor.load(sys.argv[1], precision="fp32", trust_remote_code=True)
np.save(sys.argv[2], predictor.outputs(sys.argv[3:]))
"""


@pytest.fixture
def encoder_with_code(encoders, tmp_path, request) -> str:
    """A folder with an encoder of a type that transformers does not know, and its code."""
    import shutil

    model_type = f"folded_{request.node.callspec.id}"  # a type is registered once per process

    folder = tmp_path / "encoder"
    shutil.copytree(encoders(), folder)
    (folder / "configuration_folded.py").write_text(CONFIGURATION.replace("folded", model_type))
    (folder / "modeling_folded.py").write_text(MODEL)
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": model_type, "architectures": ["FoldedModel"]}
    config["auto_map"] = {
        "AutoConfig": "configuration_folded.FoldedConfig",
        "AutoModel": "modeling_folded.FoldedModel",
    }
    (folder / "config.json").write_text(json.dumps(config))
    make_tokenizer("bert").save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(Head(), id="plain", marks=pytest.mark.slow),
        pytest.param(Head(pooling="mean", layers="mix"), id="mix"),
    ],
)
def test_encoder_with_own_code_trains_saves_and_loads(encoder_with_code, head, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    texts, labels = sentences(16)
    task = Task.load({"train": {"text": texts, "label": labels}, "test": {"text": texts, "label": labels}})
    spec = Spec(encoder=encoder_with_code, head=head, recipe=Recipe(epochs=1))
    options = {"device": "cpu", "precision": "fp32"}
    with pytest.raises(ModelError, match="trust_remote_code"):
        prepare(task, task.splits["train"], spec, **options)
    training, predictor = prepare(task, task.splits["train"], spec, trust_remote_code=True, **options)
    list(training.reports(1))
    training.finish()
    folder = predictor.save(tmp_path / "model")
    np.testing.assert_allclose(
        Predictor.load(folder, precision="fp32").outputs(texts), predictor.outputs(texts), atol=1e-6
    )
    command = [sys.executable, "-c", LOAD, str(folder), str(tmp_path / "outputs.npy"), *texts]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    np.testing.assert_allclose(np.load(tmp_path / "outputs.npy"), predictor.outputs(texts), atol=1e-6)
    refused = subprocess.run(
        [sys.executable, "-c", LOAD.replace(", trust_remote_code=True", ""), *command[3:]],
        capture_output=True,
        text=True,
    )
    assert "Give trust_remote_code to run this code" in refused.stderr


@pytest.mark.parametrize(("family", "layers"), [("bert", 2), ("albert", 0), ("distilbert", 2), ("modernbert", 2)])
def test_freezable_layers_excludes_shared_layers(encoders, family, layers):
    assert freezable_layers(load_config(encoders(family))) == layers


def test_default_space_offers_albert_only_freezes_that_work(encoders):
    texts, labels = sentences(8)
    task = Task.load({"train": {"text": texts, "label": labels}, "test": {"text": texts, "label": labels}})
    space = Space.load("default", freezable_layers(load_config(encoders("albert"))))
    options = space.tree["recipe"]["freeze"].options
    assert options == ("none", "embeddings", "all")
    for freeze in options:
        prepare(task, task.splits["train"], Spec(encoder=encoders("albert"), recipe=Recipe(freeze=freeze)))


@pytest.mark.parametrize("labels", [("a", "b"), ("a", "b", "c")])
def test_plain_head_is_new_if_the_encoder_comes_with_a_classifier(encoders, tmp_path, labels):
    """Issue: with another number of labels the encoder was refused, and with the same its classifier was kept."""
    options = {"problem_type": "single_label_classification", "labels": labels}
    trained = build(encoders(), Head(), problem_type="single_label_classification", labels=("x", "y"), seed=5)
    trained.save_pretrained(tmp_path)
    first, again, other = (build(str(tmp_path), Head(), **options, seed=seed) for seed in (1, 1, 2))
    assert first.classifier.weight.shape[0] == len(labels)
    assert (first.classifier.weight == again.classifier.weight).all()
    assert (first.classifier.weight != other.classifier.weight).any()
    if len(labels) == 2:
        assert (first.classifier.weight != trained.classifier.weight).any()
    for name, weight in trained.base_model.state_dict().items():
        assert (first.base_model.state_dict()[name] == weight).all(), name
