"""Only the embeddings of tokens that occur are trained, with the same result but for weight decay of the others."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from conftest import FAMILIES, sentences
from safetensors.torch import load_file

from headhunt.data import Task
from headhunt.engine.assembly import prepare
from headhunt.modeling.architecture import Head
from headhunt.spec import Recipe, Spec
from headhunt.training.dropout import quick_dropout
from headhunt.training.loop import CHECKPOINT
from headhunt.training.used_tokens import UsedTokens

RECIPE = Recipe(epochs=2, batch_size=4, learning_rate=1e-2, weight_decay=0.0)


def open_training(encoder: str, recipe: Recipe = RECIPE, pair: bool = False):
    texts, labels = sentences(16)
    rows = {"text": texts, "label": labels} | ({"text_b": texts[::-1]} if pair else {})
    names = {"text": "text", "label": "label"} | ({"text_b": "text_b"} if pair else {})
    task = Task.load(rows, **names, test_share=0.0, validation_share=0)
    head = Head(pooling="mean", siamese="combined" if pair else None)
    spec = Spec(encoder=encoder, head=head, recipe=recipe)
    return prepare(task, task.splits["train"], spec, device="cpu", precision="fp32")[0]


def state_of(training) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in training.model.state_dict().items()}


def train(training) -> dict[str, torch.Tensor]:
    for _ in training.reports():
        pass
    return state_of(training)


@pytest.mark.parametrize("pair", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_result_is_that_of_training_the_complete_table(encoders, monkeypatch, family, pair):
    training = open_training(encoders(family), pair=pair)
    used, before = training.used_tokens, state_of(training)
    assert used is not None and len(used.rows) < used.table.num_embeddings
    after = train(training)
    monkeypatch.setattr(UsedTokens, "find", lambda model, tokens: None)
    complete = open_training(encoders(family), pair=pair)
    assert complete.used_tokens is None
    for name, value in train(complete).items():
        torch.testing.assert_close(
            after[name], value, rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
        )
    changed = (after[used.name] != before[used.name]).any(1)
    assert changed.any() and changed.sum() <= len(used.rows)


def test_tokens_that_do_not_occur_stay_as_they_are_with_weight_decay(encoders):
    training = open_training(encoders(), replace(RECIPE, weight_decay=0.1))
    name, before = training.used_tokens.name, state_of(training)
    after, occurring = train(training), torch.as_tensor(training.tokens.ids).unique()
    others = torch.ones(len(before[name]), dtype=torch.bool).index_fill(0, occurring.long(), False)
    assert torch.equal(after[name][others], before[name][others])
    assert not torch.equal(after[name][occurring.long()], before[name][occurring.long()])


def test_model_can_be_used_at_every_report_and_afterwards(encoders):
    training = open_training(encoders())
    ids = torch.arange(training.used_tokens.table.num_embeddings)[None, :8]
    seen = []
    for _ in training.reports(2):
        training.model.eval()
        seen.append(training.model(input_ids=ids).logits.detach())
        training._set_modes()
    assert not torch.equal(*seen)
    assert torch.equal(training.finish()(input_ids=ids).logits, seen[-1])


def test_checkpoint_has_the_used_rows_only(encoders, tmp_path):
    training = open_training(encoders())
    next(iter(training.reports(2)))
    training.save(tmp_path)
    used, stored = training.used_tokens, load_file(tmp_path / CHECKPOINT)
    assert stored[f"weight/{used.name}"].shape == stored[f"exp_avg/{used.name}"].shape == used.rows.shape
    expected = train(training)
    continued = open_training(encoders())
    continued.restore(tmp_path)
    assert torch.equal(continued.used_tokens.table.weight[used._used], stored[f"weight/{used.name}"])
    found = train(continued)
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_frozen_embeddings_and_large_vocabularies_are_left_as_they_are(encoders, monkeypatch):
    assert open_training(encoders(), replace(RECIPE, freeze="embeddings")).used_tokens is None
    monkeypatch.setattr("headhunt.training.used_tokens.LARGEST_SHARE", 0.0)
    assert open_training(encoders()).used_tokens is None


def test_encoders_with_their_own_code_are_left_as_they_are(encoders, monkeypatch):
    training = open_training(encoders())
    model, device = training.model, torch.device("cpu")
    monkeypatch.setattr(type(model.base_model), "__module__", "transformers_modules.encoder.modeling")
    assert UsedTokens.find(model, training.tokens) is None
    with quick_dropout(model, device):
        assert model.base_model.config._attn_implementation == "sdpa"
