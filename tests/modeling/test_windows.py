"""A head that reads windows sees every token of a long text, and nothing of its neighbours in the batch."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from conftest import WORDS, sentences

from headhunt import Head, Predictor, Recipe, Spec, Task
from headhunt.engine.assembly import prepare
from headhunt.errors import ModelError, SpecError
from headhunt.modeling.architecture import MAX_WINDOWS, WINDOWS, window_stride

LENGTH = 16
LONG = [" ".join(np.random.default_rng(i).choice(WORDS, 5 + 9 * i)) for i in range(8)]
TEXTS = ["", *LONG, *sentences(8)[0]]


def make(encoder: str, windows: str | None, **head) -> Predictor:
    """Return an untrained model whose outputs differ visibly."""
    task = Task.load(sentences(24))
    spec = Spec(encoder=encoder, head=Head(windows=windows, **head), recipe=Recipe(max_length=LENGTH))
    predictor = prepare(task, task.splits["train"], spec, precision="fp32")[1]
    with torch.no_grad():
        for parameter in predictor.model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3)) * 0.2)
    return predictor


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_model_splits_texts_as_the_tokens_do(encoders, family):
    predictor = make(encoders(family), "mean", pooling="mean")
    tokens = predictor.tokenise(TEXTS)
    ids, mask, read = predictor.model.split_windows(*list(tokens.batch(np.arange(len(TEXTS))).values())[:2])
    rows = [row[keep.bool()].tolist() for row, keep in zip(ids, mask, strict=True)]
    found = [row for row, counts in zip(rows, read.flatten().tolist(), strict=True) if counts]
    windows = tokens.split_windows(LENGTH)
    assert found == [windows.row(i).tolist() for i in range(len(windows))]
    assert read.shape[1] > 3 and not read.all() and max(map(len, rows)) <= LENGTH
    assert tokens.lengths.max() <= predictor.takes[0] == LENGTH + (MAX_WINDOWS - 1) * window_stride(LENGTH)


@pytest.mark.parametrize("windows", WINDOWS)
@pytest.mark.parametrize("head", [{"pooling": "mean"}, {"pooling": "attention", "layers": "mix"}])
def test_every_token_of_a_long_text_counts_and_other_texts_do_not(encoders, windows, head):
    predictor = make(encoders(), windows, **head)
    alone = np.concatenate([predictor.outputs([text]) for text in TEXTS])
    assert predictor.outputs(TEXTS) == pytest.approx(alone, abs=1e-5)
    words = LONG[-1].split()
    changed = [" ".join([*words[:at], "terrible", *words[at + 1 :]]) for at in (0, len(words) // 2, len(words) - 1)]
    assert all(np.abs(predictor.outputs([text]) - alone[8]).max() > 1e-6 for text in changed)
    cut = make(encoders(), None, **head)
    assert cut.outputs(changed[2:]) == pytest.approx(cut.outputs(LONG[-1:]), abs=1e-6)


def test_short_texts_have_the_outputs_of_a_head_without_windows(encoders):
    short = sentences(8)[0]
    outputs = [make(encoders(), windows, pooling="mean").outputs(short) for windows in (None, "mean", "max")]
    assert outputs[1] == pytest.approx(outputs[0], abs=1e-5) and outputs[2] == pytest.approx(outputs[0], abs=1e-5)


def test_windows_are_saved_with_the_model(encoders, tmp_path):
    predictor = make(encoders(), "attention", pooling="max", layers=2)
    loaded = Predictor.load(predictor.save(tmp_path / "model"), precision="fp32")
    assert loaded.takes == predictor.takes and loaded.outputs(TEXTS) == pytest.approx(
        predictor.outputs(TEXTS), abs=1e-6
    )
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert config["window"] == [LENGTH, 1, 1]
    (tmp_path / "model" / "config.json").write_text(json.dumps({**config, "window": [2, 1, 1]}))
    with pytest.raises(ModelError, match="window must be a length of 8 to 32768"):
        Predictor.load(tmp_path / "model")


def test_windows_are_refused_for_pairs(encoders):
    task = Task.load((TEXTS[1:], TEXTS[:0:-1], ["a", "b"] * 8))
    spec = Spec(encoder=encoders(), head=Head(pooling="mean", windows="mean"))
    with pytest.raises(ModelError, match=r"reads windows \(mean\) takes one text"):
        prepare(task, task.splits["train"], spec)
    with pytest.raises(ValueError, match="windows are for single texts"):
        Head(siamese="concat", windows="mean")
    with pytest.raises(SpecError, match="windows must be one of mean, max, attention"):
        Spec.from_dict({"encoder": "x", "head": {"windows": "sum"}})
    with pytest.raises(ValueError, match="windows mean or max"):
        Spec(encoder="x", head=Head(pooling="mean", windows="attention"), recipe=Recipe(solver="ridge"))
