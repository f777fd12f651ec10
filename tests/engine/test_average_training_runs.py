"""The average of training runs: accepted where it predicts as they do, refused where it does not."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from model_folders import make_predictor

from headhunt.engine.averaging import agrees, average_training_runs
from headhunt.modeling.build import output_of
from headhunt.predictor import Predictor

TEXTS = ["a good film with a plot", "a bad plot that was awful", "the dog sleeps", "it was a good movie"]


def test_average_agrees_if_it_is_closer_to_the_mean_than_the_models():
    outputs = [np.array([[0.9, 0.1]]), np.array([[0.5, 0.5]])]
    assert agrees(np.array([[0.7, 0.3]]), outputs)
    assert agrees(np.array([[0.5, 0.5]]), outputs), "as close as the models"
    assert not agrees(np.array([[0.2, 0.8]]), outputs)


@pytest.fixture
def saved(encoders, tmp_path):
    """Return a function that saves a model whose weights are moved by a seed, or whose hidden units are reversed."""

    def save(name: str, seed: int = 0, *, reverse: bool = False):
        predictor, _ = make_predictor(encoders(), "mlp")
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in predictor.model.head.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
            if reverse:
                hidden = [layer for layer in predictor.model.head.mlp.modules() if isinstance(layer, torch.nn.Linear)][
                    -1
                ]
                hidden.weight.copy_(hidden.weight.flip(0))
                hidden.bias.copy_(hidden.bias.flip(0))
                output = output_of(predictor.model)
                output.weight.copy_(output.weight.flip(1))
        return predictor.save(tmp_path / name)

    return save


def load(folder):
    return Predictor.load(folder, precision="fp32")


def test_average_of_models_that_are_near_each_other_is_saved(saved, tmp_path):
    models = [saved(f"run-{seed}", seed) for seed in range(3)]
    assert average_training_runs(models, tmp_path / "average", TEXTS, None, load)
    assert load(tmp_path / "average").facts["averaged"] == 3


def test_average_appears_only_after_the_check(saved, tmp_path):
    """A process that dies during the check must not leave an average that was never checked."""
    models, out = [saved(f"run-{seed}", seed) for seed in range(2)], tmp_path / "average"

    def fail_at_the_average(folder):
        assert not out.exists()
        if folder not in models:
            raise KeyboardInterrupt
        return load(folder)

    with pytest.raises(KeyboardInterrupt):
        average_training_runs(models, out, TEXTS, None, fail_at_the_average)
    assert not out.exists() and not list(tmp_path.glob(".*"))


def test_average_that_predicts_otherwise_than_its_models_is_refused(saved, tmp_path):
    """Hidden units in another order compute the same, but their average computes something else."""
    models = [saved("run"), saved("reversed", reverse=True)]
    np.testing.assert_allclose(*(load(model).outputs(TEXTS) for model in models), atol=1e-5)
    assert not average_training_runs(models, tmp_path / "average", TEXTS, None, load)
    assert not (tmp_path / "average").exists()
