"""Features of the output layer: each row is computed once, and a stop keeps what was computed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import numpy as np
import pytest
import torch
from conftest import sentences

from headhunt.modeling.architecture import Head, Mlp
from headhunt.modeling.build import build, output_of
from headhunt.modeling.pretrained import load_tokenizer
from headhunt.training import features as module
from headhunt.training.activations import StoppedError
from headhunt.training.features import Features, feature_blocks
from headhunt.training.tokens import SpecialTokens, Tokens, tokenise

HEADS = {
    "plain": (Head(), False),
    "mean": (Head(pooling="mean"), False),
    "solved": (Head(layers="concat", pooling="cls_mean_max"), False),
    "solved-pair": (Head(layers="concat", pooling="cls_mean_max", siamese="combined"), True),
    "mlp": (Head(pooling="mean", mlp=Mlp(width=9)), False),
}


class CountedTokens:
    """Tokens that record the rows of each batch."""

    def __init__(self, tokens: Tokens, passes: list[list[int]]) -> None:
        self.lengths, self._tokens, self._passes = tokens.lengths, tokens, passes

    def __len__(self) -> int:
        return len(self._tokens)

    def batches(self, rows: np.ndarray, size: int) -> Iterator[np.ndarray]:
        return self._tokens.batches(rows, size)

    def batch(self, rows: np.ndarray) -> dict[str, torch.Tensor]:
        self._passes.append(rows.tolist())
        return self._tokens.batch(rows)


def make(encoder: str, case: str = "solved", rows: int = 20) -> tuple[Features, list[list[int]]]:
    """Return features that are not computed yet, and a list that collects the rows of forward passes."""
    head, pair = HEADS[case]
    tokenizer = load_tokenizer(encoder)
    separators = SpecialTokens.of(tokenizer, pair=True).between
    labels = ("a", "b", "c")
    problem_type = "single_label_classification"
    model = build(encoder, head, problem_type=problem_type, labels=labels, separators=separators)
    texts = sentences(rows, seed=3)[0]
    tokens = tokenise(tokenizer, texts, texts[::-1] if pair else None, each=head.siamese is not None)
    passes: list[list[int]] = []
    features = Features(model, CountedTokens(tokens, passes), "fp32")  # type: ignore[arg-type]
    return features, passes


@pytest.mark.parametrize("case", HEADS)
def test_features_are_the_inputs_of_the_output_layer(encoders, case):
    features, _ = make(encoders(), case)
    rows = np.array([7, 0, 3, 19, 7])
    values = features.get(rows)
    output = output_of(features.model)
    assert values.shape == (5, output.in_features) and values.dtype == np.float32
    with torch.inference_mode():
        logits = output(torch.from_numpy(values)).numpy()
        expected = features.model(**features.tokens.batch(rows)).logits.numpy()
    assert np.abs(logits - expected).max() < 1e-5
    assert sum(feature_blocks(features.model)) == output.in_features
    assert not features.module._forward_pre_hooks, "the hook must be removed"


def test_features_compute_each_row_once(encoders, monkeypatch):
    monkeypatch.setattr(module, "BATCH_SIZE", 4)
    features, passes = make(encoders())
    first = features.get(np.array([4, 4, 9, 2, 1, 0]))
    assert sorted(chain(*passes)) == [0, 1, 2, 4, 9]
    again = features.get(np.array([9, 15, 4]))
    assert sorted(chain(*passes)) == [0, 1, 2, 4, 9, 15]
    assert np.array_equal(again[[0, 2]], first[[2, 0]])
    everything = features.get(np.arange(20))
    assert sorted(chain(*passes)) == list(range(20))
    assert np.abs(everything - make(encoders())[0].get(np.arange(20))).max() < 1e-5
    seconds = features.seconds
    assert seconds > 0
    features.get(np.arange(20))
    assert features.seconds == seconds and len(list(chain(*passes))) == 20


def test_features_keep_computed_rows_after_a_stop(encoders, monkeypatch):
    monkeypatch.setattr(module, "BATCH_SIZE", 4)
    features, passes = make(encoders())
    with pytest.raises(StoppedError):
        features.get(np.arange(20), lambda: len(passes) == 2)
    assert len(list(chain(*passes))) == 8
    assert not features.module._forward_pre_hooks and features.seconds > 0
    values = features.get(np.arange(20))
    assert sorted(chain(*passes)) == list(range(20)), "no row is computed twice"
    assert np.abs(values - make(encoders())[0].get(np.arange(20))).max() < 1e-5


def test_features_stopped_before_the_first_batch_have_no_rows(encoders):
    features, passes = make(encoders())
    with pytest.raises(StoppedError):
        features.get(np.arange(20), lambda: True)
    assert passes == []
    assert len(features.get(np.arange(20))) == 20


def test_features_of_a_training_model_have_no_dropout(encoders):
    features, _ = make(encoders())
    features.model.train()
    values = features.get(np.arange(20))
    assert np.array_equal(values, make(encoders())[0].get(np.arange(20)))
