"""Folders of saved models with every head, and the files in them."""

from __future__ import annotations

import torch
from heads import CASES, LABELS, WINDOW, make

from headhunt.predictor import Predictor
from headhunt.spec import Recipe, Spec

FILES = {"config.json", "headhunt.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "README.md"}
CODE = {"architecture.py", "configuration.py", "encoder.py", "heads.py", "model.py", "words.py"}


def make_predictor(
    encoder: str, case: str, problem_type: str = "single_label_classification"
) -> tuple[Predictor, dict[str, torch.Tensor]]:
    """Return an untrained predictor with a head of the contract suite, and a batch of inputs."""
    model, batch, tokenizer = make(encoder, case, problem_type)
    head, pair = CASES[case]
    labels = () if problem_type == "regression" else LABELS
    spec = Spec(encoder=encoder, head=head, recipe=Recipe(max_length=WINDOW) if head.windows else Recipe())
    predictor = Predictor(
        model, tokenizer, problem_type=problem_type, labels=labels, pair=pair, spec=spec, precision="fp32"
    )
    return predictor, batch
