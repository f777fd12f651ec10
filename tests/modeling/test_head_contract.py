"""One contract for every pooling, block, pair mode and comparison. A new one is covered once it is in its table."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import sentences
from heads import CASES, LABELS, build_case, make

from headhunt.modeling import heads as modules
from headhunt.modeling.architecture import COMPARISONS, POOLINGS
from headhunt.modeling.build import embeddings_of, layers_of
from headhunt.modeling.pretrained import load_tokenizer
from headhunt.spec import Recipe
from headhunt.training.head_init import TrainingRows
from headhunt.training.loop import Training
from headhunt.training.objectives import Objective
from headhunt.training.tokens import tokenise

EVERY = pytest.mark.parametrize("case", CASES)


def trained(encoder: str, case: str, recipe: Recipe, steps: int) -> Training:
    _, pair = CASES[case]
    tokenizer = load_tokenizer(encoder)
    texts, labels = sentences(16)
    model = build_case(encoder, case, tokenizer)
    targets = np.array([LABELS.index(label) for label in labels])
    tokens = tokenise(tokenizer, texts, texts[::-1] if pair else None)
    data = TrainingRows(tokens, targets, Objective("single_label_classification"))
    training = Training(model, data, recipe, precision="fp32")
    for _, batch in zip(range(steps), training._batches(training.steps), strict=False):
        training._step(batch, None)
        training.step += 1
    return training


def test_tables_of_names_and_modules_are_equal():
    assert list(modules.POOLINGS) == list(POOLINGS)
    assert list(modules.COMPARISONS) == list(COMPARISONS)


@EVERY
def test_gradients_reach_every_trained_and_no_frozen_weight(encoders, case):
    training = trained(encoders(), case, Recipe(batch_size=8, freeze=1), steps=0)
    loss, _ = training._losses(np.arange(8), 0, None)
    loss.backward()
    missing = [
        n for n, p in training.model.named_parameters() if p.requires_grad and (p.grad is None or not p.grad.any())
    ]
    # A key's bias cancels in the softmax.
    assert [n for n in missing if not n.endswith("key.bias")] == []
    assert [n for n, p in training.model.named_parameters() if not p.requires_grad and p.grad is not None] == []
    frozen = {
        id(p) for module in [*embeddings_of(training.model), layers_of(training.model)[0]] for p in module.parameters()
    }
    assert all(p.requires_grad == (id(p) not in frozen) for p in training.model.parameters())


@EVERY
def test_training_changes_every_trained_and_no_frozen_weight(encoders, case):
    before = {n: p.clone() for n, p in trained(encoders(), case, Recipe(freeze=1), 0).model.named_parameters()}
    after = trained(encoders(), case, Recipe(batch_size=8, freeze=1, learning_rate=1e-3, warmup=0.0), 3).model
    same = {n for n, p in after.named_parameters() if torch.equal(p, before[n])}
    frozen = {n for n, p in after.named_parameters() if not p.requires_grad}
    assert frozen and same == frozen


@EVERY
@pytest.mark.parametrize("extra", [1, 7, 40])
def test_logits_do_not_depend_on_padding(encoders, case, extra):
    model, batch, _ = make(encoders(), case)
    fill = {"input_ids": model.config.pad_token_id or 0, "attention_mask": 0, "token_type_ids": 0}
    padded = {name: torch.nn.functional.pad(x, (0, extra), value=fill[name]) for name, x in batch.items()}
    with torch.no_grad():
        difference = (model(**batch).logits - model(**padded).logits).abs().max()
    assert difference < 1e-4
    alone = {name: x[:1, : int(batch["attention_mask"][0].sum())] for name, x in batch.items()}
    with torch.no_grad():
        assert torch.allclose(model(**alone).logits, model(**batch).logits[:1], atol=1e-4)
