"""Ensembles that the contract tests of a saved model cover, with the mean of their members' outputs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from conftest import WORDS, sentences
from heads import LABELS, solve_output

from headhunt.engine.ensemble import join
from headhunt.modeling.architecture import Head, Mlp
from headhunt.modeling.build import build
from headhunt.modeling.pretrained import load_tokenizer
from headhunt.predictor import Predictor
from headhunt.spec import Recipe, Spec, solved
from headhunt.training.tokens import SpecialTokens

CLASSES, SEVERAL, NUMBER = "single_label_classification", "multi_label_classification", "regression"
PROBLEM_TYPES = (CLASSES, SEVERAL, NUMBER)
MEAN = Head(pooling="mean", mlp=Mlp(width=8))
SIAMESE = Head(pooling="mean", siamese="combined")
END = Recipe(max_length=12)
MIDDLE = Recipe(max_length=12, truncation="middle")
# Members: head, recipe, and whether the encoder is trained. Frozen encoders are equal.
CASES: dict[str, list[tuple[Head, Recipe, bool]]] = {
    "ensemble": [(solved("any").head, END, False), (MEAN, END, False), (Head(), END, True)],
    "ensemble-cuts": [(Head(), END, True), (MEAN, MIDDLE, False), (MEAN, Recipe(max_length=9), False)],
    "ensemble-pair": [(solved("any", pair=True).head, END, False), (SIAMESE, END, True), (SIAMESE, END, False)],
    "ensemble-pair-cuts": [(solved("any", pair=True).head, END, False), (Head(), END, True), (MEAN, MIDDLE, False)],
}
TEXTS = [*sentences(6, seed=3)[0], "", "good [SEP] bad", " ".join(WORDS), " ".join(WORDS[::-1] * 3), "the " * 300]


def make_member(
    encoder: str, head: Head, recipe: Recipe, *, trained: bool, pair: bool, problem_type: str = CLASSES, seed: int = 1
) -> Predictor:
    """Return a predictor with a head of random weights, on the pretrained encoder or a changed one."""
    labels = () if problem_type == NUMBER else LABELS
    tokenizer = load_tokenizer(encoder)
    separators = SpecialTokens.of(tokenizer, pair=True).between
    model = build(encoder, head, problem_type=problem_type, labels=labels, separators=separators, seed=seed).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if trained or name.startswith("head."):
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)
    if head in (solved("any").head, solved("any", pair=True).head):
        solve_output(model, tokenizer, problem_type, pair)
    spec = Spec(encoder=encoder, head=head, recipe=recipe)
    return Predictor(model, tokenizer, problem_type=problem_type, labels=labels, pair=pair, spec=spec, precision="fp32")


def make_members(encoder: str, case: str, problem_type: str = CLASSES) -> list[Predictor]:
    """Return the members of a case."""
    options = {"pair": "pair" in case, "problem_type": problem_type}
    return [
        make_member(encoder, head, recipe, trained=trained, seed=seed, **options)
        for seed, (head, recipe, trained) in enumerate(CASES[case], 1)
    ]


def second_texts(case: str) -> list[str] | None:
    """Return the second texts of pairs; None for a case of single texts."""
    return TEXTS[4:] + TEXTS[:4] if "pair" in case else None


def save_case(encoder: str, case: str, folder: Path, problem_type: str = CLASSES) -> np.ndarray:
    """Save the ensemble of a case; return the mean of its members' outputs for the texts."""
    members = make_members(encoder, case, problem_type)
    mean = np.mean([member.outputs(TEXTS, second_texts(case)) for member in members], axis=0)
    join(members).save(folder)
    return mean
