"""Further pretraining: which tokens are masked, heads of every family, the cache, stopping and resuming."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from conftest import FAMILIES, sentences
from transformers import AutoModel

from headhunt.errors import ModelError
from headhunt.modeling.masked import TiedMaskedModel, build_masked
from headhunt.modeling.pretrained import load_tokenizer
from headhunt.storage import cache_root
from headhunt.training import pretraining as module
from headhunt.training.activations import StoppedError
from headhunt.training.masked import MaskedTraining, mask_tokens
from headhunt.training.pretraining import RECIPE, TooLittleTimeError, pretrain
from headhunt.training.tokens import tokenise

pytestmark = pytest.mark.usefixtures("own_cache")
TEXTS = sentences(300)[0]


def test_mask_tokens_follows_bert():
    rng, special = np.random.default_rng(0), [0, 1, 2]
    ids = rng.integers(0, 50, (400, 60))
    chosen, replaced = mask_tokens(ids, special, mask=99, vocabulary=50, rng=rng)
    possible = ids > 2
    assert not (chosen & ~possible).any() and (replaced == ids)[~chosen].all()
    assert chosen.sum() / possible.sum() == pytest.approx(0.15, abs=0.01)
    assert (replaced == 99)[chosen].mean() == pytest.approx(0.8, abs=0.02)
    assert (replaced == ids)[chosen].mean() == pytest.approx(0.1, abs=0.02)


def test_mask_tokens_takes_at_least_one():
    chosen, _ = mask_tokens(np.array([[0, 7, 2]]), [0, 2], mask=9, vocabulary=8, rng=np.random.default_rng(0))
    assert chosen.tolist() == [[False, True, False]]


@pytest.mark.parametrize("family", FAMILIES)
def test_encoder_of_every_family_is_trained_and_loads(tmp_path, encoders, family):
    encoder = encoders(family)
    done = pretrain(encoder, TEXTS, out=tmp_path / "new", epochs=1)
    before, after = (AutoModel.from_pretrained(each).state_dict() for each in (encoder, tmp_path / "new"))
    assert done.steps == 10 and done.texts == 300 and before.keys() == after.keys()
    same = {name for name in before if torch.equal(before[name], after[name])}
    assert all("pooler" in name for name in same), same  # a pooler is no part of it, and is kept
    ids = [load_tokenizer(str(each))("a good film")["input_ids"] for each in (encoder, tmp_path / "new")]
    assert ids[0] == ids[1]


def test_loss_falls(tmp_path, encoders, monkeypatch):
    from dataclasses import replace

    monkeypatch.setattr(module, "RECIPE", replace(RECIPE, learning_rate=3e-3))
    done = pretrain(encoders(), [f"good film {word} great" for word in ("the", "a")] * 200, out=tmp_path / "new")
    assert done.last_loss < 0.6 * done.first_loss


def test_unknown_family_gets_a_tied_head(encoders):
    tokenizer = load_tokenizer(encoders())
    model = TiedMaskedModel(AutoModel.from_pretrained(encoders()))
    embeddings = model.encoder.get_input_embeddings().weight
    tokens = tokenise(tokenizer, TEXTS, max_length=32)
    training = MaskedTraining(model, True, tokens, tokenizer, RECIPE, device=torch.device("cpu"))
    before = embeddings.detach().clone()
    reports = list(training.reports(3, until=0.2))
    assert reports[-1].loss < reports[0].loss + 0.5 and not torch.equal(before, embeddings)
    assert sum(p.numel() for p in training.trained) == sum(p.numel() for p in model.parameters())


def test_saved_head_is_used_again(tmp_path, encoders):
    model, new = build_masked(encoders())
    model.save_pretrained(tmp_path)
    again, new_again = build_masked(str(tmp_path))
    assert new and not new_again
    assert torch.equal(model.cls.predictions.transform.dense.weight, again.cls.predictions.transform.dense.weight)


def test_new_head_is_trained_before_the_encoder(encoders):
    tokenizer = load_tokenizer(encoders())
    model, new = build_masked(encoders())
    tokens = tokenise(tokenizer, TEXTS, max_length=32)
    training = MaskedTraining(model, new, tokens, tokenizer, RECIPE, device=torch.device("cpu"))
    before = model.bert.embeddings.word_embeddings.weight.detach().clone()
    dense = model.cls.predictions.transform.dense.weight.detach().clone()
    list(training.reports(until=0.09))
    assert torch.equal(before, model.bert.embeddings.word_embeddings.weight)
    assert not torch.equal(dense, model.cls.predictions.transform.dense.weight)
    list(training.reports(until=0.2))
    assert not torch.equal(before, model.bert.embeddings.word_embeddings.weight)


def test_cache_is_keyed_by_content(tmp_path, encoders):
    assert not pretrain(encoders(), TEXTS, out=tmp_path / "a", epochs=1).cached
    assert pretrain(encoders(), TEXTS, out=tmp_path / "b", epochs=1).cached
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in "ab"]
    assert weights[0] == weights[1]
    assert not pretrain(encoders(), TEXTS[1:], out=tmp_path / "c", epochs=1).cached
    assert not pretrain(encoders(), TEXTS, out=tmp_path / "d", epochs=1, seed=1).cached
    assert pretrain(encoders(), TEXTS, out=tmp_path / "e", seconds=60).epochs == 1  # what is there is fast enough


def test_damaged_cache_is_computed_again(tmp_path, encoders):
    pretrain(encoders(), TEXTS, out=tmp_path / "a", epochs=0.5)
    (stored,) = (cache_root() / "encoders").glob("*/model.safetensors")
    content = stored.read_bytes()
    stored.unlink()
    stored.write_bytes(content[:-1])
    assert not pretrain(encoders(), TEXTS, out=tmp_path / "b", epochs=0.5).cached
    assert (tmp_path / "b" / "model.safetensors").read_bytes() == content


def test_stopped_training_resumes_with_equal_weights(tmp_path, encoders):
    pretrain(encoders(), TEXTS, out=tmp_path / "a", epochs=1)
    for entry in (cache_root() / "encoders").iterdir():
        module.remove(entry)
    calls = iter(range(100))
    with pytest.raises(StoppedError):
        pretrain(encoders(), TEXTS, out=tmp_path / "b", epochs=1, stop=lambda: next(calls) == 4)
    assert not (tmp_path / "b").exists()
    reports = []
    pretrain(encoders(), TEXTS, out=tmp_path / "b", epochs=1, on_report=reports.append)
    assert len(reports) == 5  # the first five of ten steps are not repeated
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in "ab"]
    assert weights[0] == weights[1] and not list((cache_root() / "encoders").glob("*.checkpoint"))


def test_damaged_checkpoint_is_ignored(tmp_path, encoders):
    calls = iter(range(100))
    with pytest.raises(StoppedError):
        pretrain(encoders(), TEXTS, out=tmp_path / "b", epochs=1, stop=lambda: next(calls) == 4)
    (checkpoint,) = (cache_root() / "encoders").glob("*.checkpoint/*")
    checkpoint.write_bytes(checkpoint.read_bytes()[:100])
    assert pretrain(encoders(), TEXTS, out=tmp_path / "b", epochs=1).steps == 10


def test_steps_fit_the_time(tmp_path, encoders):
    with pytest.raises(TooLittleTimeError, match="no time to train the encoder further"):
        pretrain(encoders(), TEXTS * 10, out=tmp_path / "a", seconds=module.SAVING_SECONDS)
    assert not (tmp_path / "a").exists()
    done = pretrain(encoders(), TEXTS, out=tmp_path / "a", seconds=120)
    assert done.epochs == 3.0 and json.loads((tmp_path / "a" / "pretraining.json").read_text())["epochs"] == 3.0


def test_texts_without_known_tokens_are_refused(tmp_path, encoders):
    with pytest.raises(ModelError, match="2 texts without any"):
        pretrain(encoders(), ["!?", "xyz"], out=tmp_path / "a")
