"""The average of saved models: its weights, its folder, and models that cannot be averaged."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from heads import LABELS
from model_folders import CODE, FILES, make_predictor
from safetensors.torch import load_file, save_file

from headhunt.errors import ModelError
from headhunt.modeling.averaging import average_weights
from headhunt.predictor import Predictor


@pytest.fixture
def saved(encoders, tmp_path):
    """Return a function that saves a model of a case, with its weights moved by random numbers of a seed."""

    def save(name: str, seed: int, case: str = "siamese-cosine"):
        predictor, _ = make_predictor(encoders(), case)
        with torch.no_grad():
            for parameter in predictor.model.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed)) * 0.05)
        predictor.facts |= {"seed": seed, "test": {"accuracy": 0.9}}
        return predictor.save(tmp_path / name)

    return save


@pytest.mark.parametrize("case", ["plain", "mlp", "siamese-cosine"])
def test_average_has_the_mean_of_the_weights_in_an_ordinary_folder(saved, tmp_path, case):
    folders = [saved(f"run-{seed}", seed, case) for seed in range(3)]
    average_weights(folders, tmp_path / "soup")
    expected = [load_file(folder / "model.safetensors") for folder in folders]
    averaged = load_file(tmp_path / "soup" / "model.safetensors")
    assert averaged.keys() == expected[0].keys()
    for name, tensor in averaged.items():
        assert tensor.dtype == expected[0][name].dtype
        if tensor.is_floating_point():
            mean = torch.stack([weights[name] for weights in expected]).mean(0)
            torch.testing.assert_close(tensor, mean, atol=1e-6, rtol=1e-5)
    predictor = Predictor.load(tmp_path / "soup", precision="fp32")
    assert predictor.facts["averaged"] == 3 and "test" not in predictor.facts, "the test was of one training run"
    assert predictor.labels == LABELS and predictor.spec == Predictor.load(folders[0]).spec
    names = {path.name for path in (tmp_path / "soup").iterdir()}
    assert names == (FILES - {"README.md"}) | (CODE if case != "plain" else set())


def test_average_of_one_model_is_that_model(saved, tmp_path):
    folder = saved("run", 0)
    average_weights([folder, folder], tmp_path / "soup")
    texts, others = ["a good film", "a bad plot"], ["it was bad", "the dog sleeps"]
    outputs = [Predictor.load(path, precision="fp32").outputs(texts, others) for path in (folder, tmp_path / "soup")]
    np.testing.assert_array_equal(*outputs)


def test_average_keeps_sixteen_bits_and_adds_in_thirty_two(saved, tmp_path):
    folders = [saved(f"run-{seed}", seed, "mlp") for seed in range(3)]
    for folder, value in zip(folders, (256.0, 1.0, 1.0), strict=True):
        weights = load_file(folder / "model.safetensors")
        weights["head.output.bias"] = torch.full((2,), value, dtype=torch.bfloat16)
        save_file(weights, folder / "model.safetensors", {"format": "pt"})
    average_weights(folders, tmp_path / "soup")
    bias = load_file(tmp_path / "soup" / "model.safetensors")["head.output.bias"]
    assert torch.equal(bias, torch.full((2,), 86.0, dtype=torch.bfloat16)), "256 + 1 is 256 in 16 bits"


def test_average_refuses_models_of_different_specs(saved, tmp_path):
    first, other = saved("first", 0, "mlp"), saved("other", 0, "mix")
    with pytest.raises(ModelError, match=r"models of one spec .* differ in spec, config\.json"):
        average_weights([first, other], tmp_path / "soup")
    info = json.loads((first / "headhunt.json").read_text())
    twin = saved("twin", 1, "mlp")
    (twin / "headhunt.json").write_text(json.dumps({**info, "labels": ["good", "bad"]}))
    with pytest.raises(ModelError, match="differ in labels"):
        average_weights([first, twin], tmp_path / "soup")
    with pytest.raises(ModelError, match="must be a model that Headhunt saved"):
        average_weights([first, tmp_path], tmp_path / "soup")
    with pytest.raises(ModelError, match="found none"):
        average_weights([], tmp_path / "soup")
    assert not (tmp_path / "soup").exists()


def test_average_refuses_different_tensors(saved, tmp_path):
    first, other = saved("first", 0), saved("other", 1)
    weights = load_file(other / "model.safetensors")
    changes = {
        "same tensors": {name: x for name, x in weights.items() if name != "head.output.bias"},
        "same shape and type": {**weights, "head.output.bias": torch.zeros(3)},
        "whole numbers must be equal": {**weights, "head.compare.fitted": ~weights["head.compare.fitted"]},
    }
    for message, changed in changes.items():
        save_file(changed, other / "model.safetensors", {"format": "pt"})
        with pytest.raises(ModelError, match=message):
            average_weights([first, other], tmp_path / "soup")
    (other / "model.safetensors").rename(other / "model-00001-of-00001.safetensors")
    with pytest.raises(ModelError, match="same weight files"):
        average_weights([first, other], tmp_path / "soup")
    assert not (tmp_path / "soup").exists()
