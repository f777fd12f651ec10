"""The contrastive loss: its value, its effect on features, solving again, resuming and where it has no effect."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import sentences
from torch import nn
from torch.nn import functional

from headhunt.data import Task
from headhunt.engine.assembly import prepare
from headhunt.modeling.architecture import Head
from headhunt.modeling.build import heads_of
from headhunt.spec import Recipe, Spec
from headhunt.training.features import Features
from headhunt.training.head_init import solve_again
from headhunt.training.objectives import Contrast

RECIPE = Recipe(learning_rate=3e-3, epochs=4, batch_size=8, head_init="solved", standardize=True, contrastive=1.0)


def task_of(count: int = 32) -> Task:
    texts, labels = sentences(count)
    return Task.load({"train": {"text": texts, "label": labels}, "test": {"text": texts, "label": labels}})


def start(encoder: str, **changes):
    task = task_of()
    spec = Spec(encoder=encoder, head=Head(pooling="mean"), recipe=replace(RECIPE, **changes))
    return prepare(task, task.splits["train"], spec, device="cpu", precision="fp32")


class Passing(nn.Module):
    """A head that has features only."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout = nn.Identity()


@pytest.mark.parametrize("classes", [[0, 0, 1, 2, 1], [0, 0, 0, 0, 0], [0, 1, 2, 3, 4]])
def test_loss_is_the_squared_error_of_all_cosines(classes):
    features, head = torch.randn(5, 7, generator=torch.Generator().manual_seed(0)), Passing()
    contrast = Contrast(head)  # type: ignore[arg-type]
    head.dropout(features)
    same, different = [], []
    for first in range(5):
        for second in range(5):
            if first != second:
                cosine = functional.cosine_similarity(features[first], features[second], dim=0)
                equal = classes[first] == classes[second]
                (same if equal else different).append((float(cosine) - equal) ** 2)
    expected = sum(np.mean(part) for part in (same, different) if part)
    assert float(contrast.loss(torch.tensor(classes))) == pytest.approx(expected, rel=1e-5)
    assert float(contrast.loss(functional.one_hot(torch.tensor(classes), 5).float())) == pytest.approx(
        expected, rel=1e-5
    )


def test_features_of_a_class_become_similar(encoders):
    found = {}
    for weight in (0.0, 10.0):
        training, _ = start(encoders(), contrastive=weight)
        list(training.reports(1))
        head, rows = heads_of(training.model)[0], np.arange(len(training.tokens))
        contrast = Contrast(head)
        Features(training.model, training.tokens.take(rows), "fp32", head.dropout).get(rows)
        with torch.no_grad():
            found[weight] = float(
                contrast.loss(training.targets[np.concatenate(list(training.tokens.batches(rows, 64)))])
            )
    assert found[10.0] < 0.8 * found[0.0]


def test_output_layer_is_solved_again_and_keeps_the_size_of_its_logits(encoders):
    training, _ = start(encoders(), contrastive=0.0)
    list(training.reports(1))
    head, rows = heads_of(training.model)[0], np.arange(len(training.tokens))
    features = Features(training.model, training.tokens, "fp32", head.output).get(rows)

    def logits() -> np.ndarray:
        with torch.no_grad():
            found = head.output(torch.from_numpy(features)).numpy()
        return found - found.mean(1, keepdims=True)

    trained = logits()
    solve_again(training.model, training.tokens, training.targets.numpy(), "fp32")
    assert not np.allclose(trained, logits())
    assert logits().std() == pytest.approx(trained.std(), rel=1e-3)
    assert (logits().argmax(1) == training.targets.numpy()).mean() > 0.9


@pytest.mark.parametrize("changes", [{}, {"head_init": "random"}, {"smart": "on"}, {"freeze": 1}])
def test_training_resumes_to_the_same_weights(encoders, tmp_path, changes):
    from headhunt.spec import Smart

    changes = {name: Smart() if name == "smart" else value for name, value in changes.items()}
    complete, _ = start(encoders(), **changes)
    list(complete.reports(2))
    half, _ = start(encoders(), **changes)
    list(half.reports(2, until=0.5))
    half.save(tmp_path)
    resumed, _ = start(encoders(), **changes)
    resumed.restore(tmp_path)
    list(resumed.reports(2))
    state = resumed.finish().state_dict()
    for name, value in complete.finish().state_dict().items():
        torch.testing.assert_close(state[name], value, rtol=1e-4, atol=1e-5)


def test_it_has_no_effect_where_there_is_nothing_to_compare():
    spec = Spec(encoder="any", head=Head(pooling="mean"), recipe=Recipe(contrastive=1.0))
    assert spec.canonical("single_label_classification").recipe.contrastive == 1.0
    for problem_type in ("multi_label_classification", "regression", "multi_task"):
        assert spec.canonical(problem_type).recipe.contrastive == 0.0
    for other in (replace(spec, head=Head()), replace(spec, head=Head(siamese="cosine"))):
        assert other.canonical().recipe.contrastive == 0.0
    assert replace(spec, recipe=Recipe(contrastive=1.0, freeze="all")).canonical().recipe.contrastive == 0.0
    assert spec.hash != replace(spec, recipe=Recipe()).hash
    with pytest.raises(ValueError, match="contrastive must be 0 to 100; found -1"):
        Recipe(contrastive=-1)


@pytest.mark.parametrize("labels", [["a", "b"], [0.5, 1.5], [["a"], ["a", "b"]]], ids=["classes", "numbers", "labels"])
@pytest.mark.parametrize("head", [Head(), Head(pooling="mean"), Head(pooling="mean", siamese="concat")])
def test_a_spec_file_with_it_trains_on_any_task(encoders, labels, head):
    """A spec file is not checked against the task."""
    texts, _ = sentences(16)
    columns = {"text": texts, **({"text_b": texts[::-1]} if head.siamese else {}), "label": labels * 8}
    task = Task.load({"train": columns, "test": columns})
    spec = Spec(encoder=encoders(), head=head, recipe=replace(RECIPE, epochs=1))
    training, _ = prepare(task, task.splits["train"], spec, device="cpu", precision="fp32")
    assert np.isfinite([report.loss for report in training.reports(1)]).all()
