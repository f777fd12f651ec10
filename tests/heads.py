"""Heads that every contract test covers, and models with them."""

from __future__ import annotations

import numpy as np
import torch
from conftest import sentences
from transformers import PreTrainedModel

from headhunt.modeling.architecture import COMPARISONS, POOLINGS, Blocks, Convolutions, Head, Mlp
from headhunt.modeling.build import build, output_of
from headhunt.modeling.pretrained import load_tokenizer
from headhunt.spec import solved
from headhunt.training.features import Features, feature_blocks
from headhunt.training.linear import fit_linear
from headhunt.training.tokens import SpecialTokens, tokenise

PARTS = {
    "conv": Head(convolutions=Convolutions(layers=2, channels=12, kernel=5, skip=False), pooling="mean"),
    "conv-skip": Head(convolutions=Convolutions(layers=2, channels=12, kernel=3, skip=True), pooling="mean"),
    "blocks": Head(blocks=Blocks(layers=2, heads=3), pooling="mean"),
    "conv-blocks": Head(convolutions=Convolutions(channels=10), blocks=Blocks(heads=4), pooling="attention"),
    "mlp": Head(pooling="mean", mlp=Mlp(layers=2, width=9)),
    "layers-2": Head(layers=2, pooling="mean"),
    "mix": Head(layers="mix", pooling="mean"),
    "concat": Head(layers="concat", pooling="mean_max", mlp=Mlp(width=8)),
}
CASES: dict[str, tuple[Head, bool]] = {
    "plain": (Head(), False),
    **{f"pooling-{name}": (Head(pooling=name, mlp=Mlp(width=8)), False) for name in POOLINGS},
    **{name: (head, False) for name, head in PARTS.items()},
    "cross-plain": (Head(), True),
    "cross": (Head(pooling="mean"), True),
    **{f"siamese-{name}": (Head(pooling="mean", siamese=name), True) for name in COMPARISONS},
    "siamese-mlp-attention": (Head(pooling="attention", siamese="concat", mlp=Mlp(width=8)), True),
    "windows": (Head(pooling="mean", windows="attention"), False),
    "windows-layers": (Head(pooling="mean_max", layers=2, windows="max", mlp=Mlp(width=8)), False),
    "solved": (solved("any").head, False),
    "solved-pair": (solved("any", pair=True).head, True),
}
SOLVED = ("solved", "solved-pair")  # `solve_output` gives them the weights that a search would
LABELS = ("bad", "good")
WINDOW = 8  # tokens of a window: most sentences have more


def build_case(
    encoder: str, case: str, tokenizer: object, problem_type: str = "single_label_classification", seed: int = 0
) -> PreTrainedModel:
    """Return the untrained model of a case."""
    head, _ = CASES[case]
    separators = SpecialTokens.of(tokenizer, pair=True).between
    labels = () if problem_type == "regression" else LABELS
    model = build(encoder, head, problem_type=problem_type, labels=labels, separators=separators, seed=seed)
    if head.windows:
        special = SpecialTokens.of(tokenizer, pair=False)
        model.config.window = [WINDOW, len(special.before), len(special.after)]
    return model


def make(
    encoder: str, case: str, problem_type: str = "single_label_classification"
) -> tuple[torch.nn.Module, dict[str, torch.Tensor], object]:
    """Return a model with weights large enough to show differences, a batch of uneven lengths, and the tokenizer."""
    _, pair = CASES[case]
    tokenizer = load_tokenizer(encoder)
    model = build_case(encoder, case, tokenizer, problem_type, seed=1).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2)) * 0.1)
    if case in SOLVED:
        solve_output(model, tokenizer, problem_type, pair)
    texts = sentences(6, seed=3)[0]
    tokens = tokenise(tokenizer, texts, texts[::-1] if pair else None)
    return model, tokens.batch(np.arange(6)), tokenizer


def solve_output(model: PreTrainedModel, tokenizer: object, problem_type: str, pair: bool) -> None:
    """Solve for the output layer, on texts whose targets are known."""
    texts, words = sentences(32, seed=6)
    # A comparison that ignores the order of texts can tell equal from different ones.
    second = [text if word == "good" else texts[i - 5] for i, (text, word) in enumerate(zip(texts, words, strict=True))]
    tokens = tokenise(tokenizer, texts, second if pair else None, each=pair)
    outputs = output_of(model).out_features
    good, long = np.array([word == "good" for word in words]), np.array([len(text) > 25 for text in texts])
    targets = {
        "single_label_classification": good.astype(np.int64),
        "multi_label_classification": np.stack([good, long, good & long], 1)[:, :outputs].astype(np.float32),
        "regression": np.array([len(text) / 10 for text in texts]),
    }[problem_type]
    features = Features(model, tokens, "fp32").get(np.arange(32))
    solution = fit_linear(features, feature_blocks(model), targets, problem_type, outputs)
    with torch.no_grad():
        output_of(model).weight.copy_(torch.from_numpy(solution.weight.copy()))
        output_of(model).bias.copy_(torch.from_numpy(solution.bias))
