"""The best epoch, plateaus and gradual unfreezing: chosen on held-out training rows, and a function of the step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import sentences

from headhunt.data import Task
from headhunt.engine.assembly import prepare
from headhunt.modeling.architecture import Head
from headhunt.modeling.build import embeddings_of, layers_of
from headhunt.spec import Recipe, Space, Spec
from headhunt.training.stopping import hold_out

NOISY = Recipe(epochs=6, batch_size=8, learning_rate=2e-2, schedule="constant", freeze="embeddings", stopping="best")
GRADUAL = Recipe(epochs=4, batch_size=8, learning_rate=1e-3, warmup=0.0, unfreeze="gradual")


def open_training(encoder: str, recipe: Recipe, count: int = 60):
    """Return a training on sentences with random labels, which more epochs do not make better."""
    texts, labels = sentences(count)
    labels = np.random.default_rng(0).permutation(labels).tolist()
    task = Task.load({"text": texts, "label": labels}, text="text", label="label", test_share=0.0, validation_share=0)
    spec = Spec(encoder=encoder, head=Head(pooling="mean"), recipe=recipe)
    return prepare(task, task.splits["train"], spec, device="cpu", precision="fp32")[0]


def weights(training) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in training.model.state_dict().items()}


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("kind", ["classes", "numbers", "labels"])
def test_hold_out_takes_a_stratified_tenth(kind):
    rng = np.random.default_rng(0)
    targets = {"classes": np.arange(1000) % 4, "numbers": rng.normal(size=1000), "labels": rng.random((1000, 3))}[kind]
    rows, held = hold_out(targets, 1)
    assert sorted([*rows, *held]) == list(range(1000)) and len(held) == 100
    assert not np.array_equal(held, hold_out(targets, 4)[1]) and np.array_equal(held, hold_out(targets, 1)[1])
    if kind == "classes":
        assert np.bincount(targets[held]).tolist() == [25] * 4
    if kind == "numbers":
        assert abs(targets[held].mean() - targets.mean()) < 0.05


def test_hold_out_keeps_a_row_of_every_class_and_leaves_few_rows_alone():
    targets = np.r_[np.zeros(30, int), np.arange(1, 31)]
    rows, held = hold_out(targets, 0)
    assert set(targets[rows]) == set(targets) and 0 < len(held) <= 20
    assert len(hold_out(np.zeros(39, int), 0)[1]) == 0 and len(hold_out(np.zeros(40, int), 0)[1]) == 20


def test_weights_of_the_best_epoch_are_kept(encoders):
    training = open_training(encoders(), replace(NOISY, epochs=7))
    assert len(training.tokens) == len(training.targets) == 40 and len(training.held_out.tokens) == 20
    scores, found = [], []
    for _ in training.reports(7):
        scores.append(training.held_out._measure(training.model, "fp32"))
        training._set_modes()
        found.append(weights(training))
    best = scores.index(max(scores[:-1]))  # the last report is of the weights that are kept
    assert scores[-1] == scores[best] and equal(found[-1], found[best]), "the steps of the last epoch are undone"
    assert not equal(found[0], found[1])


def test_plateau_ends_the_training_with_the_best_weights(encoders):
    training, best = (
        open_training(encoders(), replace(NOISY, epochs=12, stopping=each)) for each in ("plateau", "best")
    )
    reports = list(training.reports(6))
    list(best.reports(6))
    assert training.step == training.steps and training.examples < training.total == best.examples
    assert reports[-1].examples == training.examples and training.held_out._since == 2
    assert training.held_out._score <= best.held_out._score


@pytest.mark.parametrize("recipe", [NOISY, replace(NOISY, stopping="plateau", epochs=5), GRADUAL])
def test_resumed_training_ends_with_the_same_weights(encoders, recipe, tmp_path):
    whole = open_training(encoders(), recipe)
    list(whole.reports(8))
    for _ in (part := open_training(encoders(), recipe)).reports(8):
        part.save(tmp_path)
        break
    for share in (0.4, 0.7, 1.0):
        stopped, part = part, open_training(encoders(), recipe)
        part.restore(tmp_path)
        if recipe.stopping:
            assert part.held_out.position == stopped.held_out.position
            assert equal(part.held_out.best, stopped.held_out.best)
        list(part.reports(8, until=share))
        part.save(tmp_path)
    assert equal(weights(whole), weights(part)) and part.examples == whole.examples
    finished = open_training(encoders(), recipe)
    finished.restore(tmp_path)
    assert finished.step == finished.steps and equal(weights(finished), weights(whole))


@pytest.mark.parametrize("freeze", ["none", "embeddings", 1])
def test_layers_are_unfrozen_from_the_top_in_the_first_half(encoders, freeze):
    training = open_training(encoders(), replace(GRADUAL, freeze=freeze))
    parts = {"head": training.model.head, "embeddings": embeddings_of(training.model)[0]}
    parts |= {f"layer {number}": layer for number, layer in enumerate(layers_of(training.model))}
    units = {"none": ["layer 1", "layer 0", "embeddings"], "embeddings": ["layer 1", "layer 0"], 1: ["layer 1"]}[freeze]
    starts = {"head": 0} | {name: training.steps_until(0.5 * (n + 1) / len(units)) for n, name in enumerate(units)}

    def read() -> dict[str, torch.Tensor]:
        return {name: torch.cat([x.detach().flatten() for x in part.parameters()]) for name, part in parts.items()}

    before = read()
    for _ in training.reports(training.steps):
        after = read()
        changed = {name for name in parts if not torch.equal(before[name], after[name])}
        assert changed == {name for name, start in starts.items() if start < training.step}
        before = after
    assert training.step == training.steps and max(starts.values()) <= training.steps / 2


def test_stopping_and_unfreezing_are_choices_of_a_space():
    space = Space.from_dict({"recipe": {"stopping": ["off", "best", "plateau"], "unfreeze": ["off", "gradual"]}})
    drawn = [space.draw(seed, encoder="any").recipe for seed in range(40)]
    assert {each.stopping for each in drawn} == {None, "best", "plateau"}
    assert {each.unfreeze for each in drawn} == {None, "gradual"}
    assert Spec(encoder="any", recipe=Recipe(freeze="all", unfreeze="gradual")).canonical().recipe.unfreeze is None
