"""Stored activations: equal outputs and training for all encoder families, heads and kinds of pairs."""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import FAMILIES, sentences

from headhunt.data import Task
from headhunt.engine.trial_runner import FromCachedActivations, TrialRunner
from headhunt.engine.workers import RunnerSettings
from headhunt.modeling.architecture import Blocks, Convolutions, Head
from headhunt.modeling.pretrained import load_tokenizer
from headhunt.run.task import save_task
from headhunt.spec import Lora, Recipe, Smart, Spec
from headhunt.study.requests import EvaluateTrial, Request
from headhunt.training.activations import ActivationCache, FrozenEncoder, StoppedError
from headhunt.training.attach import attach
from headhunt.training.tokens import tokenise

pytestmark = pytest.mark.usefixtures("own_cache")


def one_text(count: int = 48) -> Task:
    texts, labels = sentences(count)
    return Task.load((texts, labels), test_share=0.2)


def pairs(count: int = 48) -> Task:
    texts, labels = sentences(count)
    rows = {"text": texts, "text_b": texts[::-1], "label": labels}
    return Task.load(rows, text="text", text_b="text_b", label="label")


def make_runner(task: Task, folder, stored: bool, cache_bytes: int | None = None) -> TrialRunner:
    save_task(task, folder / "task")
    options = {"metric": "accuracy", "device": "cpu", "precision": "fp32"}
    return TrialRunner(RunnerSettings(str(folder), cache_activations=stored, cache_bytes=cache_bytes, **options))


def open_training(runner: TrialRunner, spec: Spec, rows: int = 10):
    return runner.open(spec, np.arange(rows), Request(trial=0, spec=spec, seed=0))


def evaluate(runner: TrialRunner, spec: Spec, folder) -> tuple[np.ndarray, object]:
    path = folder / f"{runner.settings.cache_activations}.npz"
    outcome = runner.run(EvaluateTrial(trial=0, rung=0, fraction=1.0, seed=3, spec=spec, predictions=path))
    assert outcome.outcome == "ok", outcome
    with np.load(path) as arrays:
        return arrays["outputs"], outcome


CASES = {
    "embeddings frozen": (Head(pooling="mean"), Recipe(freeze="embeddings"), None),
    "lowest layer frozen": (Head(pooling="attention"), Recipe(freeze=1), 1),
    "all frozen": (Head(pooling="max"), Recipe(freeze="all"), 2),
    "plain, lowest layer frozen": (Head(), Recipe(freeze=1), 1),
    "plain, all frozen": (Head(), Recipe(freeze="all"), 2),
    "mix of all layers": (Head(pooling="mean", layers="mix"), Recipe(freeze=1), 1),
    "mix, all frozen": (Head(pooling="mean", layers="mix"), Recipe(freeze="all"), 2),
    "mean of two layers, all frozen": (Head(pooling="mean", layers=2), Recipe(freeze="all"), 2),
    "convolutions": (Head(pooling="mean", convolutions=Convolutions(channels=8)), Recipe(freeze=1), 1),
    "blocks": (Head(pooling="mean", blocks=Blocks(heads=2)), Recipe(freeze=1), 1),
    "smart": (Head(pooling="mean"), Recipe(freeze=1, smart=Smart(weight=1.0)), 1),
    "unfrozen gradually": (Head(pooling="mean"), Recipe(freeze=1, unfreeze="gradual"), 1),
    "lora": (Head(pooling="mean"), Recipe(freeze=1, lora=Lora(rank=2)), 1),
}
PAIR_CASES = {
    "cross": (Head(pooling="mean"), Recipe(freeze=1), 1),
    "cross, swapped": (Head(pooling="mean"), Recipe(freeze=1, swap_pairs=True), 1),
    "siamese cosine": (Head(pooling="mean", siamese="cosine"), Recipe(freeze=1), 1),
    "siamese concat, mixed": (Head(pooling="mean", siamese="concat", layers="mix"), Recipe(freeze=1), 1),
    "siamese, swapped": (Head(pooling="mean", siamese="concat"), Recipe(freeze="all", swap_pairs=True), 2),
    "siamese, smart": (Head(pooling="mean", siamese="difference"), Recipe(freeze=1, smart=Smart(weight=1.0)), 1),
}


def check_equal_training(task: Task, spec: Spec, layer: int, folder) -> None:
    """Check that training with and without stored activations gives nearly the same probabilities."""
    complete, outcome = evaluate(make_runner(task, folder, stored=False), spec, folder)
    assert outcome.extra["first_layer"] is None
    stored, outcome = evaluate(make_runner(task, folder, stored=True), spec, folder)
    assert outcome.extra["first_layer"] == layer
    assert np.abs(complete - stored).max() < 5e-3  # activations are stored with 16 bits
    assert (complete.argmax(1) == stored.argmax(1)).mean() > 0.97


@pytest.mark.parametrize("case", CASES)
def test_training_from_stored_activations_matches_complete_training(case, encoders, tmp_path):
    head, recipe, layer = CASES[case]
    recipe = replace(recipe, epochs=4, learning_rate=1e-3, batch_size=8)
    check_equal_training(one_text(), Spec(encoder=encoders(), head=head, recipe=recipe), layer, tmp_path)


@pytest.mark.parametrize("case", PAIR_CASES)
def test_training_from_stored_activations_matches_for_pairs(case, encoders, tmp_path):
    head, recipe, layer = PAIR_CASES[case]
    recipe = replace(recipe, epochs=4, learning_rate=1e-3, batch_size=8)
    check_equal_training(pairs(), Spec(encoder=encoders(), head=head, recipe=recipe), layer, tmp_path)


@pytest.mark.parametrize("family", ["bert", "electra", "modernbert"])
@pytest.mark.parametrize("freeze", [1, "all"])
@pytest.mark.parametrize("layers", [1, "mix"])
def test_smart_perturbs_same_layer_with_and_without_stored_activations(family, freeze, layers, encoders, tmp_path):
    """Loss and gradients of a strongly regularised step must not depend on stored activations."""
    # A large random start: otherwise rounding decides the direction of the perturbation.
    recipe = Recipe(freeze=freeze, encoder_dropout=0.0, smart=Smart(weight=100.0, radius=0.5, sigma=0.1, eta=1.0))
    spec = Spec(encoder=encoders(family), head=Head(pooling="mean", layers=layers, dropout=0.0), recipe=recipe)
    losses, gradients = [], []
    for stored in (False, True):
        runner = make_runner(one_text(), tmp_path, stored)
        ready = open_training(runner, spec, 8)
        training = ready.training
        with torch.no_grad():  # a larger output layer, so that the regulariser dominates the loss
            training.model.head.output.weight.mul_(100)
        training.model.train()
        for module in training.frozen:
            module.eval()
        with FromCachedActivations(runner, ready) as starting:
            assert (starting.layer is not None) == stored
            perturbation = training.perturbation()
            loss = sum(training._losses(np.arange(8), 0, perturbation))
            loss.backward()
            perturbation.remove()
        losses.append(loss.item())
        gradients.append(torch.cat([p.grad.flatten() for p in training.trained if p.grad is not None]))
    plain_loss = training._losses(np.arange(8), 0, None)[0].item()
    assert losses[0] > 1.1 * plain_loss
    assert losses[1] == pytest.approx(losses[0], rel=0.02)
    assert (gradients[1] - gradients[0]).norm() < 0.05 * gradients[0].norm()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("head", [Head(), Head(pooling="mean", layers="mix")], ids=["plain", "mix"])
def test_attach_starts_at_highest_layer_of_every_family(family, head, encoders, tmp_path):
    recipe = Recipe(freeze="all", epochs=8, learning_rate=2e-2, batch_size=8)
    layer = None if family == "albert" else 2  # all depths share one layer
    check_equal_training(one_text(), Spec(encoder=encoders(family), head=head, recipe=recipe), layer, tmp_path)


@pytest.mark.parametrize("family", ["roberta", "modernbert"])
def test_siamese_training_matches_in_other_families(family, encoders, tmp_path):
    recipe = Recipe(freeze=1, epochs=4, learning_rate=1e-3, batch_size=8)
    spec = Spec(encoder=encoders(family), head=Head(pooling="mean", siamese="concat"), recipe=recipe)
    check_equal_training(pairs(), spec, 1, tmp_path)


@pytest.mark.real
def test_training_from_stored_activations_matches_with_real_encoder(minilm, tmp_path):
    spec = Spec(
        encoder=minilm, head=Head(pooling="mean"), recipe=Recipe(freeze=4, epochs=2, learning_rate=1e-4, batch_size=16)
    )
    check_equal_training(one_text(), spec, 4, tmp_path)


def test_remove_restores_the_model(encoders, tmp_path):
    runner = make_runner(one_text(), tmp_path, stored=True)
    spec = Spec(encoder=encoders(), head=Head(pooling="mean"), recipe=Recipe(freeze=1))
    ready = open_training(runner, spec, 10)
    training = ready.training
    before = {name: value.clone() for name, value in training.model.state_dict().items()}
    with FromCachedActivations(runner, ready) as starting:
        assert starting.layer == 1
        assert len(training.model.state_dict()) < len(before)
    after = training.model.state_dict()
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("family", sorted({*FAMILIES} - {"albert"}))
def test_model_with_several_layers_predicts_after_remove(family, encoders, tmp_path):
    """Transformers adds the hooks that record hidden states in the first pass, which may be an attached one."""
    runner = make_runner(one_text(), tmp_path, stored=True)
    spec = Spec(encoder=encoders(family), head=Head(pooling="mean", layers="mix"), recipe=Recipe(freeze="all"))
    outputs = []
    for attached in (False, True):
        ready = open_training(runner, spec, 10)
        predictor = ready.predictor
        if attached:
            with FromCachedActivations(runner, ready) as starting:
                assert starting.layer is not None
                predictor.outputs(["a cat"])
        outputs.append(predictor.outputs(["the dog was good", "a cat"]))
    np.testing.assert_array_equal(outputs[0], outputs[1])


def test_attached_model_computes_rows_that_are_not_stored(encoders, tmp_path):
    runner = make_runner(one_text(), tmp_path, stored=True)
    spec = Spec(encoder=encoders(), head=Head(pooling="mean"), recipe=Recipe(freeze=1))
    ready = open_training(runner, spec, 10)
    training, predictor = ready.training, ready.predictor
    training.model.eval()
    texts = ["the dog was very very good", "a cat", runner.task.splits["train"].texts(0, 1)[0]]
    expected = predictor.outputs(texts)
    with FromCachedActivations(runner, ready):
        assert np.abs(predictor.outputs(texts) - expected).max() < 1e-3


def make_cache(encoder: str, folder, budget=None, count: int = 40) -> ActivationCache:
    texts, _ = sentences(count)
    tokens = tokenise(load_tokenizer(encoder), texts)
    return ActivationCache(FrozenEncoder(encoder, device=torch.device("cpu"), precision="fp32"), tokens, folder, budget)


def bytes_of_a_layer(encoder: str, folder) -> int:
    cache = make_cache(encoder, folder)
    return int(cache.tokens.lengths.sum()) * 16 * 2


def test_cache_is_shared_by_equal_encoders_and_texts(encoders, tmp_path, monkeypatch):
    first = make_cache(encoders(), tmp_path)
    assert first.nearest(2) == 2
    second = make_cache(encoders(), tmp_path)
    monkeypatch.setattr(FrozenEncoder, "states", None)  # computing again would fail
    assert second.nearest(2) == 2 and second.folder == first.folder
    assert second.nearest(1) == 1  # all layers of small data are stored in one pass


def test_cache_folder_depends_on_encoder_and_texts(encoders, tmp_path):
    folders = {
        make_cache(encoders(), tmp_path).folder,
        make_cache(encoders("roberta"), tmp_path).folder,
        make_cache(encoders(), tmp_path, count=41).folder,
    }
    assert len(folders) == 3


def test_cache_stores_fewer_layers_beyond_budget(encoders, tmp_path):
    cost = bytes_of_a_layer(encoders(), tmp_path / "a")
    cache = make_cache(encoders(), tmp_path / "b", budget=int(1.5 * cost))
    assert cache.nearest(0) == 0
    assert cache.nearest(2) == 0  # a second layer does not fit: the stored one is used


def test_cache_stores_sample_of_rows_or_nothing_with_small_budget(encoders, tmp_path):
    cost = bytes_of_a_layer(encoders(), tmp_path / "a")
    sample = make_cache(encoders(), tmp_path / "b", budget=cost // 2)
    assert sample.nearest(2) == 2
    texts = [sample.tokens.row(number).tobytes() for number in range(40)]
    missing = sample.fill(2, texts, range(40), np.zeros((40, 20, 16), np.float16))
    assert 10 <= len(missing) < 40
    assert make_cache(encoders(), tmp_path / "c", budget=cost // 50).nearest(2) == 0


def test_training_from_sample_of_rows_matches_complete_training(encoders, tmp_path):
    task = one_text()
    spec = Spec(
        encoder=encoders(),
        head=Head(pooling="mean"),
        recipe=Recipe(freeze="all", epochs=8, learning_rate=2e-2, batch_size=8),
    )
    complete, _ = evaluate(make_runner(task, tmp_path, stored=False), spec, tmp_path)
    runner = make_runner(task, tmp_path, stored=True, cache_bytes=5000)
    stored, outcome = evaluate(runner, spec, tmp_path)
    assert outcome.extra["first_layer"] == 2 and np.abs(complete - stored).max() < 5e-3


def test_cache_removes_least_recently_used(encoders, tmp_path):
    cost = bytes_of_a_layer(encoders(), tmp_path / "x")
    old = make_cache(encoders(), tmp_path / "a", budget=int(1.2 * cost))
    assert old.nearest(2) == 2
    os.utime(old.folder, (time.time() - 1e4,) * 2)
    new = make_cache(encoders("roberta"), tmp_path / "a", budget=int(1.2 * cost))
    assert new.nearest(2) == 2 and not old.folder.exists()


def test_cache_that_was_not_used_for_two_months_is_removed(encoders, tmp_path):
    old, recent = make_cache(encoders(), tmp_path), make_cache(encoders("roberta"), tmp_path)
    for cache, days in ((old, 61), (recent, 59)):
        cache.nearest(1)
        then = time.time() - days * 86_400
        os.utime(cache.folder, (then, then))
    make_cache(encoders("distilbert"), tmp_path).nearest(1)
    assert not old.folder.exists() and recent.folder.exists()


def test_cache_is_computed_again_after_removal(encoders, tmp_path):
    cache = make_cache(encoders(), tmp_path)
    shutil.rmtree(cache.folder)
    assert cache.nearest(1) == 1


def test_cache_removes_partial_directories_of_dead_workers(encoders, tmp_path):
    cache = make_cache(encoders(), tmp_path)
    partial = cache.folder / ".1.dead.partial"
    partial.mkdir()
    (partial / "values.npy").write_bytes(b"incomplete")
    assert cache.nearest(1) == 1 and not partial.exists()


def test_cache_computation_can_be_stopped(encoders, tmp_path):
    cache = make_cache(encoders(), tmp_path)
    cache.stop = lambda: True
    with pytest.raises(StoppedError):
        cache.nearest(1)
    cache.stop = lambda: False
    assert cache.nearest(1) == 1 and not list(cache.folder.glob("*.partial"))


@pytest.mark.parametrize("freeze", ["none", "embeddings"])
def test_nothing_is_stored_if_all_layers_are_trained(freeze, encoders, tmp_path):
    """Issue: for frozen embeddings alone, all rows passed through the whole encoder to be stored."""
    cache = make_cache(encoders(), tmp_path)
    runner = make_runner(one_text(), tmp_path / "run", stored=True)
    spec = Spec(encoder=encoders(), head=Head(pooling="mean"), recipe=Recipe(freeze=freeze))
    ready = open_training(runner, spec)
    assert attach(ready.training.model, [cache], spec.recipe) is None and not list(cache.folder.glob("*/values.npy"))
    assert runner.activation_caches(spec, ready.tokens) == []


def test_attach_does_nothing_if_outputs_differ(encoders, tmp_path, monkeypatch):
    """Nothing is attached if the layers above do not compute the same outputs."""
    import headhunt.training.attach as module

    monkeypatch.setattr(module, "_equivalent", {})
    monkeypatch.setattr(module._Skipped, "forward", lambda self, hidden, *args, **kwargs: hidden * 0)
    runner = make_runner(one_text(), tmp_path, stored=True)
    spec = Spec(encoder=encoders(), head=Head(pooling="mean"), recipe=Recipe(freeze=1))
    ready = open_training(runner, spec, 10)
    with FromCachedActivations(runner, ready) as starting:
        assert starting.layer is None


def test_attach_compares_a_trained_model_with_itself(encoders, tmp_path, monkeypatch):
    """Issue: one that continued from a checkpoint differed from the pretrained encoder, and nothing was attached."""
    import headhunt.training.attach as module

    monkeypatch.setattr(module, "_equivalent", {})
    runner = make_runner(one_text(), tmp_path, stored=True)
    spec = Spec(encoder=encoders(), head=Head(pooling="mean"), recipe=Recipe(freeze=1))
    ready = open_training(runner, spec, 10)
    with torch.no_grad():
        for parameter in ready.training.trained:
            parameter.add_(torch.randn_like(parameter))
    with FromCachedActivations(runner, ready) as starting:
        assert starting.layer == 1


def test_tables_of_relative_positions_are_frozen_with_the_layers_that_read_them(encoders, tmp_path):
    """Issue: MPNet's table was trained, and frozen layers without stored activations computed something else."""
    spec = Spec(
        encoder=encoders("mpnet"), head=Head(pooling="mean"), recipe=Recipe(freeze=1, epochs=4, learning_rate=3e-3)
    )
    found = [evaluate(make_runner(one_text(), tmp_path / str(stored), stored), spec, tmp_path)[0] for stored in (0, 1)]
    assert np.allclose(found[0], found[1], atol=5e-3)
    ready = open_training(make_runner(one_text(), tmp_path / "run", stored=False), spec)
    table = ready.training.model.base_model.encoder.relative_attention_bias
    assert not any(parameter.requires_grad for parameter in table.parameters())


def test_stored_embeddings_do_not_say_what_layers_return(encoders, tmp_path):
    """Issue: after a candidate with frozen embeddings, one with frozen layers of MPNet failed."""
    cache = make_cache(encoders("mpnet"), tmp_path)
    assert cache.has([1]) and cache.encoder.returns_tuples
    (cache.folder / "0" / "about.json").write_text('{"schema": 1, "returns_tuples": false}')
    cache._layers.pop(0, None)
    assert cache.has([0]) and cache.encoder.returns_tuples
