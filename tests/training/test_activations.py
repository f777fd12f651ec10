"""Stored activations: the same answers, the same training, whatever the family, the head and the pair mode."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import FAMILIES, sentences

from headhunt.data import Task
from headhunt.engine.trial_runner import Starting, TrialRunner
from headhunt.modeling.architecture import Blocks, Convolutions, Head
from headhunt.modeling.build import load_tokenizer
from headhunt.run.task import save_task
from headhunt.spec import Lora, Recipe, Smart, Spec
from headhunt.training.activations import ActivationCache, FrozenEncoder, StoppedError, attach
from headhunt.training.tokens import tokenise


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADHUNT_CACHE", str(tmp_path / "cache"))


def one_text(count: int = 48) -> Task:
    texts, labels = sentences(count)
    return Task.load((texts, labels), test_share=0.2)


def pairs(count: int = 48) -> Task:
    texts, labels = sentences(count)
    rows = {"text": texts, "text_b": texts[::-1], "label": labels}
    return Task.load(rows, text="text", text_b="text_b", label="label")


def bench_of(task: Task, folder, stored: bool, precision: str = "fp32") -> TrialRunner:
    save_task(task, folder / "task")
    return TrialRunner(folder, metric="accuracy", device="cpu", precision=precision, stored=stored)


def judge(bench: TrialRunner, spec: Spec, folder) -> tuple[np.ndarray, object]:
    path = folder / f"{bench._stored}.npz"
    asked = {"trial": 0, "rung": 0, "fraction": 1.0, "seed": 3, "predictions": str(path)}
    outcome = bench.run(Request(spec=spec.to_dict(), **asked))
    assert outcome.outcome == "ok", outcome
    with np.load(path) as found:
        return found["outputs"], outcome


CASES = {
    "embeddings frozen": (Head(pooling="mean"), Recipe(freeze="embeddings"), 0),
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


def same_either_way(task: Task, spec: Spec, layer: int, folder) -> None:
    """Trained from stored activations and the long way: one outcome, nearly the same probabilities."""
    long, outcome = judge(bench_of(task, folder, stored=False), spec, folder)
    assert outcome.extra["from_layer"] is None
    short, outcome = judge(bench_of(task, folder, stored=True), spec, folder)
    assert outcome.extra["from_layer"] == layer
    assert np.abs(long - short).max() < 5e-3  # activations are kept in 16 bits
    assert (long.argmax(1) == short.argmax(1)).mean() > 0.97


@pytest.mark.parametrize("case", CASES)
def test_training_from_stored_activations_is_training(case, encoders, tmp_path):
    head, recipe, layer = CASES[case]
    recipe = replace(recipe, epochs=4, learning_rate=1e-3, batch_size=8)
    same_either_way(one_text(), Spec(encoder=encoders(), head=head, recipe=recipe), layer, tmp_path)


@pytest.mark.parametrize("case", PAIR_CASES)
def test_pairs_too(case, encoders, tmp_path):
    head, recipe, layer = PAIR_CASES[case]
    recipe = replace(recipe, epochs=4, learning_rate=1e-3, batch_size=8)
    same_either_way(pairs(), Spec(encoder=encoders(), head=head, recipe=recipe), layer, tmp_path)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("head", [Head(), Head(pooling="mean", layers="mix")], ids=["plain", "mix"])
def test_every_family_starts_where_it_can(family, head, encoders, tmp_path):
    recipe = Recipe(freeze="all", epochs=8, learning_rate=2e-2, batch_size=8)
    layer = 0 if family == "albert" else 2  # its one layer is shared by all depths
    same_either_way(one_text(), Spec(encoder=encoders(family), head=head, recipe=recipe), layer, tmp_path)


@pytest.mark.parametrize("family", ["roberta", "modernbert"])
def test_siamese_pairs_in_other_families(family, encoders, tmp_path):
    recipe = Recipe(freeze=1, epochs=4, learning_rate=1e-3, batch_size=8)
    spec = Spec(encoder=encoders(family), head=Head(pooling="mean", siamese="concat"), recipe=recipe)
    same_either_way(pairs(), spec, 1, tmp_path)


@pytest.mark.real
def test_the_real_encoder(minilm, tmp_path):
    spec = Spec(
        encoder=minilm, head=Head(pooling="mean"), recipe=Recipe(freeze=4, epochs=2, learning_rate=1e-4, batch_size=16)
    )
    same_either_way(one_text(), spec, 4, tmp_path)


def test_a_model_is_whole_again_afterwards(encoders, tmp_path):
    bench = bench_of(one_text(), tmp_path, stored=True)
    spec = Spec(encoder=encoders(), head=Head(pooling="mean"), recipe=Recipe(freeze=1))
    training, _, tokens = bench.open(spec, np.arange(10), 0)
    before = {name: value.clone() for name, value in training.model.state_dict().items()}
    with Starting(bench, training, tokens, spec) as starting:
        assert starting.layer == 1
        assert len(training.model.state_dict()) < len(before)
    after = training.model.state_dict()
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)


def test_a_text_that_is_not_stored_is_computed(encoders, tmp_path):
    bench = bench_of(one_text(), tmp_path, stored=True)
    spec = Spec(encoder=encoders(), head=Head(pooling="mean"), recipe=Recipe(freeze=1))
    training, predictor, tokens = bench.open(spec, np.arange(10), 0)
    training.model.eval()
    texts = ["the dog was very very good", "a cat", bench.task.splits["train"].texts(0, 1)[0]]
    whole = predictor.outputs(texts)
    with Starting(bench, training, tokens, spec):
        assert np.abs(predictor.outputs(texts) - whole).max() < 1e-3


def store_of(encoder: str, folder, budget=None, count: int = 40) -> ActivationCache:
    texts, _ = sentences(count)
    tokens = tokenise(load_tokenizer(encoder), texts)
    return ActivationCache(FrozenEncoder(encoder, device=torch.device("cpu"), precision="fp32"), tokens, folder, budget)


def bytes_of_a_layer(encoder: str, folder) -> int:
    store = store_of(encoder, folder)
    return int(store.tokens.lengths.sum()) * 16 * 2


def test_activations_are_stored_once_for_everybody(encoders, tmp_path, monkeypatch):
    first = store_of(encoders(), tmp_path)
    assert first.nearest(2) == 2
    second = store_of(encoders(), tmp_path)
    monkeypatch.setattr(FrozenEncoder, "states", None)  # whoever computes now fails
    assert second.nearest(2) == 2 and second.folder == first.folder
    assert second.nearest(1) == 1  # small data is stored at every layer in one pass


def test_another_encoder_or_other_texts_have_a_store_of_their_own(encoders, tmp_path):
    folders = {
        store_of(encoders(), tmp_path).folder,
        store_of(encoders("roberta"), tmp_path).folder,
        store_of(encoders(), tmp_path, count=41).folder,
    }
    assert len(folders) == 3


def test_beyond_the_budget_there_are_fewer_layers(encoders, tmp_path):
    cost = bytes_of_a_layer(encoders(), tmp_path / "a")
    store = store_of(encoders(), tmp_path / "b", budget=int(1.5 * cost))
    assert store.nearest(0) == 0
    assert store.nearest(2) == 0  # a second layer does not fit: it starts from the one there is


def test_then_a_sample_and_then_none(encoders, tmp_path):
    cost = bytes_of_a_layer(encoders(), tmp_path / "a")
    sample = store_of(encoders(), tmp_path / "b", budget=cost // 2)
    assert sample.nearest(2) == 2
    missing = sample.fill(2, list(range(40)), np.zeros((40, 20, 16), np.float16))
    assert 10 <= len(missing) < 40
    assert store_of(encoders(), tmp_path / "c", budget=cost // 50).nearest(2) is None


def test_a_sample_gives_the_same_training(encoders, tmp_path):
    task = one_text()
    spec = Spec(
        encoder=encoders(),
        head=Head(pooling="mean"),
        recipe=Recipe(freeze="all", epochs=8, learning_rate=2e-2, batch_size=8),
    )
    long, _ = judge(bench_of(task, tmp_path, stored=False), spec, tmp_path)
    bench = bench_of(task, tmp_path, stored=True)
    bench._budget = 5000
    short, outcome = judge(bench, spec, tmp_path)
    assert outcome.extra["from_layer"] == 2 and np.abs(long - short).max() < 5e-3


def test_the_oldest_store_makes_room(encoders, tmp_path):
    import os

    cost = bytes_of_a_layer(encoders(), tmp_path / "x")
    old = store_of(encoders(), tmp_path / "a", budget=int(1.2 * cost))
    assert old.nearest(2) == 2
    os.utime(old.folder, (1, 1))
    new = store_of(encoders("roberta"), tmp_path / "a", budget=int(1.2 * cost))
    assert new.nearest(2) == 2 and not old.folder.exists()


def test_a_store_that_others_removed_is_made_again(encoders, tmp_path):
    store = store_of(encoders(), tmp_path)
    shutil.rmtree(store.folder)
    assert store.nearest(1) == 1


def test_what_a_dead_worker_left_is_cleared_away(encoders, tmp_path):
    store = store_of(encoders(), tmp_path)
    (store.folder / "tmpdead").mkdir()
    (store.folder / "tmpdead" / "1.npy").write_bytes(b"half")
    assert store.nearest(1) == 1 and not (store.folder / "tmpdead").exists()


def test_storing_can_be_stopped(encoders, tmp_path):
    store = store_of(encoders(), tmp_path)
    store.stop = lambda: True
    with pytest.raises(StoppedError):
        store.nearest(1)
    store.stop = lambda: False
    assert store.nearest(1) == 1 and not list(store.folder.glob("tmp*"))


def test_trained_embeddings_start_nowhere(encoders, tmp_path):
    store = store_of(encoders(), tmp_path)
    bench = bench_of(one_text(), tmp_path / "run", stored=True)
    training, _, _ = bench.open(Spec(encoder=encoders(), head=Head(pooling="mean")), np.arange(10), 0)
    assert attach(training.model, [store], training.recipe) is None


def test_a_family_that_works_otherwise_is_left_alone(encoders, tmp_path, monkeypatch):
    """Where the part above a layer does not give what it gave, nothing is attached."""
    import headhunt.training.activations as features

    monkeypatch.setattr(features, "_AGREED", {})
    monkeypatch.setattr(features._Passed, "forward", lambda self, hidden, *args, **kwargs: hidden * 0)
    bench = bench_of(one_text(), tmp_path, stored=True)
    spec = Spec(encoder=encoders(), head=Head(pooling="mean"), recipe=Recipe(freeze=1))
    training, _, tokens = bench.open(spec, np.arange(10), 0)
    with Starting(bench, training, tokens, spec) as starting:
        assert starting.layer is None
