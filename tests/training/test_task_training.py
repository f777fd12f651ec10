"""Training on several tasks: batches of one task, own and shared weights, checkpoints, cached activations."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from multitask import make_tasks

from headhunt.engine.assembly import prepare
from headhunt.modeling.architecture import Head
from headhunt.modeling.build import layers_of
from headhunt.spec import Recipe, Smart, Spec
from headhunt.spec.spec import TASK_SAMPLINGS
from headhunt.training.activations import ActivationCache, FrozenEncoder
from headhunt.training.attach import attach

RECIPE = Recipe(epochs=2, batch_size=8, learning_rate=1e-3, max_length=32)
TASK = make_tasks()


def start(encoder, head=None, **recipe):
    spec = Spec(encoder=encoder, head=head or Head(pooling="mean"), recipe=replace(RECIPE, **recipe))
    training, predictor = prepare(TASK, TASK.splits["train"], spec, seed=1, device="cpu", precision="fp32")
    return training, predictor


@pytest.mark.parametrize("sampling", TASK_SAMPLINGS)
def test_epoch_has_batches_of_one_task_in_proportion(encoders, sampling):
    training, _ = start(encoders())
    tokens, rows = training.tokens, np.bincount(training.tokens.tasks)
    steps = list(tokens.epoch(8, sampling, np.random.default_rng(0)))
    assert len(steps) == tokens.steps_per_epoch(8, sampling)
    assert all(len(set(tokens.tasks[batch])) == 1 for step in steps for batch in step)
    counts = Counter(int(tokens.tasks[batch[0]]) for step in steps for batch in step)
    batches = -(-rows // 8)
    if sampling == "proportional":
        assert [counts[task] for task in range(3)] == batches.tolist()
        seen = np.concatenate([batch for step in steps for batch in step])
        assert sorted(seen) == list(range(len(tokens)))
    elif sampling == "sqrt":
        shares = np.sqrt(rows) / np.sqrt(rows).sum() * batches.sum()
        assert sum(counts.values()) == batches.sum()
        assert all(abs(counts[task] - shares[task]) < 1 for task in range(3))
    else:
        assert all([int(tokens.tasks[batch[0]]) for batch in step] == [0, 1, 2] for step in steps)


def test_batches_of_prediction_have_one_task(encoders):
    training, _ = start(encoders())
    tokens = training.tokens
    batches = list(tokens.batches(np.arange(len(tokens)), 16))
    assert sorted(np.concatenate(batches)) == list(range(len(tokens)))
    for batch in batches:
        inputs = tokens.batch(batch)
        assert set(tokens.tasks[batch]) == {int(inputs["task"])}
        assert inputs["token_type_ids"].any() == (int(inputs["task"]) == 1)  # the second texts of pairs


def test_step_changes_what_its_task_uses_and_nothing_else(encoders):
    training, _ = start(encoders(), task_layers=1)
    model, (lower, upper) = training.model, layers_of(training.model)
    names = {f"layer of {task}": copy for task, copy in enumerate(upper.copies)}
    names |= {f"head of {task}": head for task, head in enumerate(model.heads)} | {"shared layer": lower}
    before = {name: [p.detach().clone() for p in part.parameters()] for name, part in names.items()}
    training.model.train()
    training.step = 1  # the first step has a learning rate of 0
    batch = np.flatnonzero(training.tokens.tasks == 1)[:8]
    training._step([batch], None)
    changed = {
        name
        for name, part in names.items()
        if any(not torch.equal(new, old) for new, old in zip(part.parameters(), before[name], strict=True))
    }
    assert changed == {"layer of 1", "head of 1", "shared layer"}


def test_summed_gradients_are_those_of_each_task(encoders):
    training, _ = start(encoders(), task_sampling="sum")
    step = next(training.tokens.epoch(8, "sum", np.random.default_rng(0)))
    training.model.eval()
    weight = layers_of(training.model)[0].intermediate.dense.weight
    expected = 0
    for number, batch in enumerate(step):
        training._losses(batch, number, None)[0].backward()
        expected = expected + weight.grad.clone()
        weight.grad = None
    for parameter in training.trained:
        parameter.grad = None
    kept = {}
    training.optimiser.step = lambda: kept.update(gradient=weight.grad.clone())
    clipped = torch.nn.utils.clip_grad_norm_
    torch.nn.utils.clip_grad_norm_ = lambda *args: None
    try:
        training._step(step, None)
    finally:
        torch.nn.utils.clip_grad_norm_ = clipped
    assert torch.allclose(kept["gradient"], expected, atol=1e-6)


@pytest.mark.parametrize(
    "options", [{"task_layers": 1, "task_sampling": "sqrt"}, {"task_sampling": "sum", "smart": Smart()}]
)
def test_training_continues_from_a_checkpoint(encoders, tmp_path, options):
    options = {"standardize": True, "head_init": "solved", **options}
    head = Head(pooling="mean", siamese="combined")
    complete, predictor = start(encoders(), head, **options)
    losses = [report.loss for report in complete.reports(4)]
    first, _ = start(encoders(), head, **options)
    list(first.reports(4, until=0.5))
    first.save(tmp_path)
    second, resumed = start(encoders(), head, **options)
    second.restore(tmp_path)
    assert [report.loss for report in second.reports(4)] == losses[2:]
    complete.finish(), second.finish()
    texts = TASK.splits["test"].texts(), TASK.splits["test"].texts_b(), TASK.splits["test"].tasks
    assert np.array_equal(predictor.outputs(*texts), resumed.outputs(*texts))


def test_training_learns_every_task(encoders):
    training, predictor = start(encoders(), Head(pooling="mean"), epochs=12, learning_rate=6e-3, task_layers="all")
    list(training.reports(1))
    training.finish()
    train = TASK.splits["train"]
    outputs = predictor.outputs(train.texts(), train.texts_b(), train.tasks)
    mood, length = (np.flatnonzero(train.tasks == number) for number in (0, 2))
    assert np.mean(outputs[mood].argmax(1) == train.targets["value"][mood]) > 0.9
    assert np.corrcoef(outputs[length, 0], train.targets["value"][length])[0, 1] > 0.9
    assert abs(outputs[length, 0].mean() - train.targets["value"][length].mean()) < 1  # in the units of the targets


@pytest.mark.parametrize("siamese", [None, "combined"])
def test_cached_activations_change_nothing(encoders, own_cache, siamese):
    head, outputs = Head(pooling="mean", siamese=siamese, layers="mix"), []
    for attached in (False, True):
        training, predictor = start(encoders(), head, freeze=1, task_layers="all", epochs=1)
        if attached:
            encoder = FrozenEncoder(encoders(), device=torch.device("cpu"), precision="fp32")
            parts = [
                part.split_pairs() if siamese and part.firsts is not None else part for part in training.tokens.parts
            ]
            caches = [ActivationCache(encoder, part, own_cache) for part in parts]
            replaced = attach(training.model, caches, training.recipe)
            assert replaced is not None and replaced.layer == 1
        list(training.reports(1))
        training.model.eval()
        outputs.append(predictor.tokens_to_outputs(training.tokens))
    assert np.abs(outputs[0] - outputs[1]).max() < 0.02  # activations are stored in 16 bits


def test_solved_heads_are_solved_task_by_task(encoders, tmp_path):
    spec = Spec(encoder=encoders(), head=Head(layers="concat", siamese="combined"), recipe=Recipe(solver="ridge"))
    outputs = []
    for _ in range(2):
        solving, predictor = prepare(TASK, TASK.splits["train"], spec.canonical("multi_task"), device="cpu")
        if outputs:
            solving.restore(tmp_path)
        else:
            assert len(list(solving.reports())) == 1
            solving.save(tmp_path)
        rows = np.arange(len(solving.rows))
        logits = torch.from_numpy(solving.predict(rows))
        from_features = predictor.activate(logits, solving.features.tokens.tasks_of(rows)).numpy()
        outputs.append(predictor.tokens_to_outputs(solving.features.tokens))
        assert np.abs(outputs[-1] - from_features).max() < 1e-3
    assert np.array_equal(*outputs)
