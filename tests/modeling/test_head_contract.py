"""One contract for every pooling, block, pair mode and comparison. A new one is covered once it is in its table.

What a saved folder gives without Headhunt is held to the same list in test_delivery_folder.py.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import sentences

from headhunt.modeling import heads
from headhunt.modeling.architecture import COMPARISONS, POOLINGS, Blocks, Convolutions, Head, Mlp
from headhunt.modeling.build import build, embeddings_of, layers_of, load_tokenizer
from headhunt.spec import Recipe
from headhunt.training.loop import Training
from headhunt.training.objectives import Objective
from headhunt.training.tokens import SpecialTokens, tokenise

PARTS = {
    "conv": Head(convolutions=Convolutions(layers=2, channels=12, kernel=5, skip=False), pooling="mean"),
    "conv-skip": Head(convolutions=Convolutions(layers=2, channels=12, kernel=3, skip=True), pooling="mean"),
    "blocks": Head(blocks=Blocks(layers=2, heads=3), pooling="mean"),
    "conv-blocks": Head(convolutions=Convolutions(channels=10), blocks=Blocks(heads=4), pooling="attention"),
    "mlp": Head(pooling="mean", mlp=Mlp(layers=2, width=9)),
    "layers-2": Head(layers=2, pooling="mean"),
    "mix": Head(layers="mix", pooling="mean"),
}
CASES: dict[str, tuple[Head, bool]] = {
    "plain": (Head(), False),
    **{f"pooling-{name}": (Head(pooling=name, mlp=Mlp(width=8)), False) for name in POOLINGS},
    **{name: (head, False) for name, head in PARTS.items()},
    "cross-plain": (Head(), True),
    "cross": (Head(pooling="mean"), True),
    **{f"siamese-{name}": (Head(pooling="mean", siamese=name), True) for name in COMPARISONS},
    "siamese-mlp-attention": (Head(pooling="attention", siamese="concat", mlp=Mlp(width=8)), True),
}
LABELS = ("bad", "good")
EVERY = pytest.mark.parametrize("case", CASES)


def make(
    encoder: str, case: str, problem_type: str = "single_label_classification"
) -> tuple[torch.nn.Module, dict[str, torch.Tensor], object]:
    """A model with weights large enough to make any difference visible, and a batch of uneven lengths."""
    head, pair = CASES[case]
    tokenizer = load_tokenizer(encoder)
    separators = SpecialTokens.of(tokenizer, pair=True).between
    labels = () if problem_type == "regression" else LABELS
    model = build(encoder, head, problem_type=problem_type, labels=labels, separators=separators, seed=1).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2)) * 0.1)
    texts = sentences(6, seed=3)[0]
    tokens = tokenise(tokenizer, texts, texts[::-1] if pair else None)
    return model, tokens.batch(np.arange(6)), tokenizer


def trained(encoder: str, case: str, recipe: Recipe, steps: int) -> Training:
    head, pair = CASES[case]
    tokenizer = load_tokenizer(encoder)
    texts, labels = sentences(16)
    separators = SpecialTokens.of(tokenizer, pair=True).between
    model = build(encoder, head, problem_type="single_label_classification", labels=LABELS, separators=separators)
    targets = np.array([LABELS.index(label) for label in labels])
    tokens = tokenise(tokenizer, texts, texts[::-1] if pair else None)
    training = Training(model, tokens, targets, Objective("single_label_classification"), recipe, precision="fp32")
    for _, batch in zip(range(steps), training._batches(training.steps), strict=False):
        training._train(batch, None)
        training.step += 1
    return training


def test_the_tables_are_twins():
    assert list(heads.POOLINGS) == list(POOLINGS)
    assert list(heads.COMPARISONS) == list(COMPARISONS)


@EVERY
def test_gradients_reach_all_that_is_trained_and_nothing_frozen(encoders, case):
    training = trained(encoders(), case, Recipe(batch_size=8, freeze=1), steps=0)
    loss = training._loss(np.arange(8), 0, None)
    loss.backward()
    missing = [
        n for n, p in training.model.named_parameters() if p.requires_grad and (p.grad is None or not p.grad.any())
    ]
    # A key's bias shifts all scores of a query alike, and softmax does not see it.
    assert [n for n in missing if not n.endswith("key.bias")] == []
    assert [n for n, p in training.model.named_parameters() if not p.requires_grad and p.grad is not None] == []
    frozen = {
        id(p) for module in [*embeddings_of(training.model), layers_of(training.model)[0]] for p in module.parameters()
    }
    assert all(p.requires_grad == (id(p) not in frozen) for p in training.model.parameters())


@EVERY
def test_frozen_weights_stay_bit_equal_and_the_rest_moves(encoders, case):
    before = {n: p.clone() for n, p in trained(encoders(), case, Recipe(freeze=1), 0).model.named_parameters()}
    after = trained(encoders(), case, Recipe(batch_size=8, freeze=1, learning_rate=1e-3, warmup=0.0), 3).model
    same = {n for n, p in after.named_parameters() if torch.equal(p, before[n])}
    frozen = {n for n, p in after.named_parameters() if not p.requires_grad}
    assert frozen and same == frozen


@EVERY
@pytest.mark.parametrize("extra", [1, 7, 40])
def test_padding_changes_nothing(encoders, case, extra):
    model, batch, _ = make(encoders(), case)
    fill = {"input_ids": model.config.pad_token_id or 0, "attention_mask": 0, "token_type_ids": 0}
    padded = {name: torch.nn.functional.pad(x, (0, extra), value=fill[name]) for name, x in batch.items()}
    with torch.no_grad():
        difference = (model(**batch).logits - model(**padded).logits).abs().max()
    assert difference < 1e-4
    alone = {name: x[:1, : int(batch["attention_mask"][0].sum())] for name, x in batch.items()}
    with torch.no_grad():
        assert torch.allclose(model(**alone).logits, model(**batch).logits[:1], atol=1e-4)
