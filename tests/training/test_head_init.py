"""Standardised features and solved initial weights: folded without a change, resumed exactly, and a better start."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import sentences

from headhunt.data import Task
from headhunt.engine.assembly import prepare
from headhunt.modeling.architecture import Head, Mlp
from headhunt.modeling.build import output_of
from headhunt.predictor import Predictor
from headhunt.spec import Recipe, Spec
from headhunt.training.features import Features, feature_blocks, last_mean
from headhunt.training.head_init import Standardizer, prepare_heads
from headhunt.training.linear import fit_linear
from headhunt.training.loop import Training

HEADS = {
    "mean": Head(pooling="mean"),
    "concat": Head(layers="concat", pooling="cls_mean_max"),
    "mlp": Head(pooling="mean_max", mlp=Mlp(layers=2, width=9)),
    "siamese": Head(pooling="mean", siamese="combined"),
    "siamese-mlp": Head(pooling="mean", siamese="concat", mlp=Mlp(width=8)),
}
RECIPE = Recipe(epochs=2, batch_size=8, learning_rate=1e-3, standardize=True)


def task_of(pair: bool = False, problem_type: str = "single_label_classification", count: int = 40) -> Task:
    texts, labels = sentences(count)
    columns = {"text": texts, **({"text_b": [texts[0]] * count} if pair else {}), "label": labels}
    if problem_type == "regression":
        columns["label"] = [900.0 + len(text) for text in texts]
    elif problem_type == "multi_label_classification":
        columns["label"] = [
            [label, "long"] if len(text) > 25 else [label] for text, label in zip(texts, labels, strict=True)
        ]
    return Task.load({"train": columns, "test": columns})


def start(task: Task, encoder: str, head: Head, recipe: Recipe = RECIPE) -> tuple[Training, Predictor]:
    spec = Spec(encoder=encoder, head=head, recipe=recipe)
    training, predictor = prepare(task, task.splits["train"], spec, device="cpu", precision="fp32")
    assert isinstance(training, Training)
    return training, predictor


def logits_of(training: Training) -> np.ndarray:
    training.model.eval()
    with torch.inference_mode():
        return training.model(**training.tokens.batch(np.arange(len(training.tokens)))).logits.numpy()


@pytest.mark.parametrize("head_init", ["random", "solved"])
@pytest.mark.parametrize("case", HEADS)
def test_finish_folds_the_standardizer_without_a_change(encoders, case, head_init, tmp_path):
    head = HEADS[case]
    task = task_of(head.siamese is not None)
    training, predictor = start(task, encoders(), head, replace(RECIPE, head_init=head_init))
    list(training.reports(2))
    assert len(training.standardizers) == 1
    before = logits_of(training)
    assert np.ptp(before) > 1e-2
    training.finish()
    assert not training.standardizers and not training.model.head.dropout._forward_pre_hooks
    assert np.abs(logits_of(training) - before).max() < 1e-5 * max(1.0, np.abs(before).max())
    train = task.splits["train"]
    expected = predictor.outputs(train.texts(), train.texts_b())
    loaded = Predictor.load(predictor.save(tmp_path / "model"), precision="fp32")
    assert np.abs(loaded.outputs(train.texts(), train.texts_b()) - expected).max() < 1e-6


@pytest.mark.parametrize("case", ["mean", "mlp"])
def test_finish_folds_standardizer_and_scale_of_regression_targets(encoders, case):
    training, predictor = start(task_of(problem_type="regression"), encoders(), HEADS[case])
    list(training.reports(1))
    expected = training.objective.rescale(logits_of(training)[:, 0])
    training.finish()
    outputs = predictor.outputs(task_of(problem_type="regression").splits["train"].texts())
    assert np.abs(outputs - expected).max() < 1e-3 and abs(outputs.mean() - 930) < 30


@pytest.mark.parametrize("head_init", ["random", "solved"])
@pytest.mark.parametrize("case", ["concat", "mlp", "siamese"])
def test_training_resumed_from_a_checkpoint_equals_uninterrupted_training(encoders, case, head_init, tmp_path):
    head = HEADS[case]
    task = task_of(head.siamese is not None)
    recipe = replace(RECIPE, head_init=head_init)
    complete, _ = start(task, encoders(), head, recipe)
    list(complete.reports(3))
    first, _ = start(task, encoders(), head, recipe)
    next(iter(first.reports(3)))
    assert 0 < first.step < first.steps
    first.save(tmp_path)
    rest, _ = start(task, encoders(), head, recipe)
    rest.restore(tmp_path)
    list(rest.reports(3))
    for training in (complete, rest):
        training.finish()
    other = rest.model.state_dict()
    assert [name for name, value in complete.model.state_dict().items() if not torch.equal(value, other[name])] == []


@pytest.mark.parametrize("standardize", [False, True])
@pytest.mark.parametrize("case", ["plain", "mean", "concat", "siamese"])
@pytest.mark.parametrize("problem_type", ["single_label_classification", "multi_label_classification", "regression"])
def test_solved_start_has_a_lower_loss_than_a_random_one(encoders, case, problem_type, standardize):
    head = HEADS.get(case, Head())
    task = task_of(head.siamese is not None, problem_type)
    losses = {}
    for head_init in ("random", "solved"):
        recipe = replace(RECIPE, standardize=standardize, head_init=head_init)
        training, _ = start(task, encoders(), head, recipe)
        prepare_heads(training.model, training.data, recipe, standardizers=training.standardizers, precision="fp32")
        losses[head_init] = float(training.objective.loss(torch.from_numpy(logits_of(training)), training.targets))
    assert losses["solved"] < losses["random"]


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("class_weights", [False, True])
@pytest.mark.parametrize("case", ["plain", "mlp"])
def test_several_labels_start_from_their_frequencies(encoders, case, class_weights, smoothing):
    """No other bias has a lower loss before the head has learned anything else."""
    recipe = replace(RECIPE, class_weights=class_weights, label_smoothing=smoothing, standardize=False)
    task = task_of(problem_type="multi_label_classification")
    training, _ = start(task, encoders(), HEADS.get(case, Head()), recipe)
    next(training.reports(until=0.0), None)
    output = output_of(training.model)
    logits = output.bias.detach().expand(len(training.targets), -1).clone().requires_grad_()
    training.objective.loss(logits, training.targets).backward()
    assert logits.grad.sum(0).abs().max() < 0.01
    assert output.bias.abs().max() > 0.1


def test_many_classes_start_from_the_solution_of_a_solved_head(encoders):
    """With many classes that is logistic regression: a squared error leaves a far larger log loss."""
    texts = [f"{first} {second} text" for first in "abcdefg" for second in "hijklmnop"]
    labels = [str(row % 21) for row in range(len(texts))]
    task = Task.load({"train": {"text": texts * 2, "label": labels * 2}, "test": {"text": texts, "label": labels}})
    recipe = replace(RECIPE, head_init="solved")
    training, _ = start(task, encoders(), HEADS["concat"], recipe)
    targets, rows = training.targets.numpy(), np.arange(len(training.tokens))
    features = Features(training.model, training.tokens, "fp32").get(rows)
    mean = last_mean(training.model)
    blocks = feature_blocks(training.model)
    expected = fit_linear(features, blocks, targets, "single_label_classification", 21, last_mean=mean).logits(features)
    prepare_heads(training.model, training.data, recipe, standardizers=training.standardizers, precision="fp32")
    np.testing.assert_allclose(logits_of(training), expected, rtol=1e-2, atol=1e-2)


def test_standardizer_gives_features_of_mean_zero_and_unit_spread(encoders):
    training, _ = start(task_of(), encoders(), HEADS["mean"])
    features = Features(training.model, training.tokens, "fp32").get(np.arange(40))
    training.standardizers[0].fit(features)
    scaled = Features(training.model, training.tokens, "fp32").get(np.arange(40))
    assert np.abs(scaled.mean(0)).max() < 1e-4 and np.abs(scaled.std(0) - 1).max() < 1e-3


def test_standardizer_does_not_magnify_features_that_hardly_vary(encoders):
    training, _ = start(task_of(), encoders(), HEADS["mean"])
    features = np.random.default_rng(0).standard_normal((30, 16)).astype(np.float32)
    features[:, 3], features[:, 5] = 2.0, 1e-5 * features[:, 5]
    standardizer = training.standardizers[0]
    standardizer.fit(features)
    scaled = (torch.from_numpy(features) - standardizer.center) / standardizer.spread
    assert torch.isfinite(scaled).all() and scaled[:, [3, 5]].abs().max() < 0.01
    standardizer.fit(np.ones((4, 16), np.float32))
    assert torch.isfinite(1 / standardizer.spread).all()


def test_head_init_has_no_effect_with_hidden_layers(encoders):
    """Also in a recipe that was not brought into its canonical form."""
    weights = []
    for head_init in ("random", "solved"):
        training, _ = start(task_of(), encoders(), HEADS["mlp"], replace(RECIPE, head_init=head_init))
        list(training.reports(1))
        weights.append(output_of(training.model).weight.detach().clone())
    assert torch.equal(*weights)


def test_head_is_prepared_once_although_training_starts_twice(encoders):
    complete, _ = start(task_of(), encoders(), HEADS["mean"], replace(RECIPE, head_init="solved"))
    list(complete.reports(2))
    twice, _ = start(task_of(), encoders(), HEADS["mean"], replace(RECIPE, head_init="solved"))
    assert list(twice.reports(2, until=0.0)) == [] and twice.step == 0
    list(twice.reports(2))
    assert torch.equal(output_of(twice.model).weight, output_of(complete.model).weight)


def test_plain_head_has_no_standardizer(encoders):
    training, _ = start(task_of(), encoders(), Head())
    list(training.reports(1))
    assert not training.standardizers


def test_standardizer_is_the_identity_before_it_is_fitted(encoders):
    training, _ = start(task_of(), encoders(), HEADS["mean"], replace(RECIPE, standardize=False))
    before = logits_of(training)
    Standardizer(training.model.head, training.model.device)
    assert np.array_equal(logits_of(training), before)


@pytest.mark.parametrize("siamese", ["cosine", "dot"])
def test_head_on_a_similarity_does_not_start_from_a_solution(encoders, siamese):
    """Issue: a similarity is standardised with the first batch, and weights that were solved before did not fit it."""
    head = Head(pooling="mean", siamese=siamese)
    recipe = replace(RECIPE, head_init="solved", standardize=False)
    spec = Spec(encoder=encoders(), head=head, recipe=recipe)
    assert spec.canonical().recipe.head_init == "random"
    training, _ = start(task_of(pair=True), encoders(), head, recipe)
    before = output_of(training.model).weight.detach().clone()
    next(iter(training.reports(4)))
    changed = (output_of(training.model).weight - before).abs().max()
    assert changed < 10 * recipe.learning_rate * recipe.head_lr_multiplier
