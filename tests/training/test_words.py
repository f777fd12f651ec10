"""Word counts: the same numbers in NumPy, PyTorch and ONNX Runtime, and solved heads with them or of nothing else."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import FAMILIES, WORDS, sentences

from headhunt.data import Task
from headhunt.engine.assembly import prepare
from headhunt.engine.ensemble import join
from headhunt.modeling.pretrained import load_tokenizer
from headhunt.modeling.words import BUCKETS, FACTOR, PRIME, ngrams
from headhunt.predictor import Predictor
from headhunt.spec import Spec, solved
from headhunt.training.solve import Solving
from headhunt.training.tokens import tokenise
from headhunt.training.words import WordTable, count_ngrams


def task_of(pair: bool = False, count: int = 48) -> Task:
    texts, labels = sentences(count)
    second = {"text_b": [texts[i - i % 4 // 2 * 5] for i in range(count)]} if pair else {}
    if pair:
        labels = ["other" if i % 4 // 2 else "same" for i in range(count)]
    columns = {"text": texts, **second, "label": labels}
    return Task.load({"train": columns, "test": columns})


def solve(task: Task, spec: Spec, *, precision: str = "fp32") -> tuple[Solving, Predictor]:
    training, predictor = prepare(task, task.splits["train"], spec, device="cpu", precision=precision)
    assert isinstance(training, Solving)
    assert len(list(training.reports())) == 1
    training.finish()
    return training, predictor


def spec_of(encoder: str, words: str, pair: bool = False) -> Spec:
    return solved(encoder, pair=pair, words=words)


def test_buckets_are_those_of_exact_integers():
    ids = [7, 250_000, 2_000_000_000, 7, 0, 31]
    for numbers in (np.array(ids), torch.tensor(ids)):
        found = [list(map(int, buckets)) for buckets, _ in ngrams(numbers, numbers * 0 + 1)]
        expected = [[(each + 1) % BUCKETS for each in ids]]
        keys = [each + 1 for each in ids]
        for offset in (1, 2):
            keys = [(key * FACTOR + later + 1) % PRIME for key, later in zip(keys, ids[offset:], strict=False)]
            expected.append([key % BUCKETS for key in keys])
        assert found == expected


def test_no_ngram_contains_special_tokens_or_two_texts():
    texts = np.array([0, 1, 1, 1, 0, 2, 2, 0, 3])
    found = [owner.tolist() for _, owner in ngrams(np.arange(9), texts)]
    assert found == [[0, 1, 1, 1, 0, 2, 2, 0, 3], [0, 1, 1, 0, 0, 2, 0, 0], [0, 1, 0, 0, 0, 0, 0]]


def test_counts_are_those_of_each_text_and_of_what_they_share(encoders):
    tokenizer = load_tokenizer(encoders())
    a, b, c = WORDS[:3]
    tokens = tokenise(tokenizer, [f"{a} {b} {a}", "", c], [f"{b} {a} {c}", a, ""])
    first, second, shared = (part.toarray() for part in count_ngrams(tokens))
    buckets = [tokenizer.convert_tokens_to_ids(word) + 1 for word in (a, b, c)]
    assert [part[0, buckets].tolist() for part in (first, second, shared)] == [[2, 1, 0], [1, 1, 1], [1, 1, 0]]
    assert [part.sum(1).tolist() for part in (first, second)] == [[6, 0, 1], [6, 1, 0]]
    assert shared.sum(1).tolist() == [3, 0, 0], "both words and the second pair of words"


@pytest.mark.parametrize("pair", [False, True], ids=["one", "pair"])
@pytest.mark.parametrize("family", FAMILIES)
def test_model_counts_in_padded_batches_what_the_solver_counted(encoders, family, pair):
    training, predictor = solve(task_of(pair), spec_of(encoders(family), "alone", pair))
    words, tokens = predictor.model.words, training.features.tokens
    rows = np.arange(len(tokens))
    expected = training._table.features(count_ngrams(tokens), rows).toarray()
    assert expected.shape == (48, words.weight.shape[1]) and len(training._table.buckets) > 20
    batch = tokens.batch(rows)
    with torch.inference_mode():
        counted = words.count(batch["input_ids"], batch["attention_mask"]).numpy()
        alone = [
            words.count(*(tokens.batch(rows[i : i + 1])[n] for n in ("input_ids", "attention_mask"))) for i in (0, 5)
        ]
    assert np.abs(counted - expected).max() < 1e-5
    assert np.abs(torch.cat(alone).numpy() - expected[[0, 5]]).max() < 1e-5
    lengths = np.square(expected).sum(1)
    assert lengths.max() <= 1 + 1e-5 and lengths.min() > 0.1


def test_rare_ngrams_have_no_weight_but_count_in_the_length(encoders):
    a, b, c = WORDS[:3]
    tokens = tokenise(load_tokenizer(encoders()), [f"{a} {b}", f"{a} {c}", f"{a} {b}"])
    counts = count_ngrams(tokens)
    table = WordTable.of(counts, np.arange(3))
    assert len(table.buckets) == 3 and table.idf.argmax() == 3, "two words and the pair of both are in two texts"
    features = table.features(counts, np.arange(3)).toarray()
    assert np.square(features[0]).sum() == pytest.approx(1, abs=1e-5)
    assert np.square(features[1]).sum() < 0.5


@pytest.mark.parametrize("pair", [False, True], ids=["one", "pair"])
@pytest.mark.parametrize("words", ["beside", "alone"])
def test_saved_model_predicts_as_the_solution(encoders, tmp_path, words, pair):
    task, spec = task_of(pair), spec_of(encoders(), words, pair)
    training, predictor = solve(task, spec)
    expected = predictor.activate(torch.from_numpy(training.predict(np.arange(48)))).numpy()
    folder = predictor.save(tmp_path / "model")
    loaded = Predictor.load(folder, device=torch.device("cpu"), precision="fp32")
    train = task.splits["train"]
    assert np.abs(loaded.outputs(train.texts(), train.texts_b()) - expected).max() < 1e-4
    assert loaded.spec.head == spec.head
    training.save(tmp_path / "checkpoint")
    other, restored = prepare(task, train, spec, seed=9, device="cpu", precision="fp32")
    other.restore(tmp_path / "checkpoint")
    assert np.array_equal(other.predict(np.arange(48)), training.predict(np.arange(48)))
    assert np.abs(restored.outputs(train.texts(), train.texts_b()) - expected).max() < 1e-4


@pytest.mark.xdist_group("onnx")
@pytest.mark.parametrize("pair", [False, True], ids=["one", "pair"])
@pytest.mark.parametrize("words", ["beside", "alone"])
def test_exported_graph_counts_as_the_model(encoders, tmp_path, words, pair):
    from headhunt.delivery.onnx import runtime
    from headhunt.delivery.onnx.export import export

    task = task_of(pair)
    _, predictor = solve(task, spec_of(encoders(), words, pair))
    exported = export(predictor.save(tmp_path / "model"), tmp_path / "onnx")
    assert exported.difference < 1e-4
    texts, texts_b = task.splits["train"].texts(), task.splits["train"].texts_b()
    found = runtime.Model(tmp_path / "onnx").outputs(texts, texts_b)
    assert np.abs(found - predictor.outputs(texts, texts_b)).max() < 1e-4
    if words == "alone":
        assert (tmp_path / "onnx" / "model.onnx").stat().st_size < 1.3 * 4 * BUCKETS, "the encoder is not in the graph"


def test_words_change_the_prediction_and_are_seen_by_the_solver(encoders):
    task = task_of()
    without, _ = solve(task, solved(encoders()))
    with_words, _ = solve(task, spec_of(encoders(), "beside"))
    assert np.abs(without.predict(np.arange(48)) - with_words.predict(np.arange(48))).max() > 1e-3


def test_words_alone_never_run_the_encoder(encoders, tmp_path):
    task = task_of()
    spec = spec_of(encoders(), "alone")
    training, predictor = prepare(task, task.splits["train"], spec, device="cpu", precision="fp32")

    def refuse(*args: object) -> None:
        raise AssertionError("the encoder ran")

    predictor.model.encoder.register_forward_pre_hook(refuse)
    list(training.reports())
    logits = training.predict(np.arange(48))
    training.finish()
    outputs = predictor.outputs(task.splits["train"].texts())
    assert np.abs(outputs - predictor.activate(torch.from_numpy(logits)).numpy()).max() < 1e-5
    assert (outputs.argmax(1) == task.splits["train"].targets).mean() > 0.9


@pytest.mark.parametrize("words", ["beside", "alone"])
def test_word_counts_keep_their_outputs_under_autocast(encoders, words):
    training, predictor = solve(task_of(), spec_of(encoders(), words))
    batch = training.features.tokens.batch(np.arange(48))
    with torch.inference_mode():
        expected = predictor.model.words(batch["input_ids"], batch["attention_mask"])
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = predictor.model.words(batch["input_ids"], batch["attention_mask"])
    assert found.dtype == torch.float32 and torch.equal(found, expected)


@pytest.mark.parametrize("words", ["beside", "alone"])
def test_calibration_divides_the_logits_of_words_too(encoders, words):
    """Issue: probabilities of a calibrated model were not those that its rejection was fitted on."""
    _, predictor = solve(task_of(), spec_of(encoders(), words))
    texts = ["a good film", "the plot was awful"]
    before = np.sqrt(predictor.outputs(texts))
    predictor.calibrate(2.0)
    np.testing.assert_allclose(predictor.outputs(texts), before / before.sum(1, keepdims=True), atol=1e-5)


def test_ensemble_averages_models_with_and_without_word_counts(encoders, tmp_path):
    task = task_of()
    texts = task.splits["train"].texts()
    specs = (solved(encoders()), spec_of(encoders(), "beside"), spec_of(encoders(), "alone"))
    members = [solve(task, spec)[1] for spec in specs]
    outputs = np.mean([member.outputs(texts) for member in members], 0)
    folder = join(members).save(tmp_path / "joint")
    loaded = Predictor.load(folder, device=torch.device("cpu"), precision="fp32")
    assert np.abs(loaded.outputs(texts) - outputs).max() < 1e-4


def test_balanced_solution_predicts_rare_classes_more_often(encoders):
    texts, labels = sentences(96)
    kept = [i for i, label in enumerate(labels) if label == labels[0] or i % 12 < 3]
    columns = {"text": [texts[i] for i in kept], "label": [labels[i] for i in kept]}
    task = Task.load({"train": columns, "test": columns})
    rare = int(np.bincount(task.splits["train"].targets).argmin())
    leanings = []
    for balanced in (False, True):
        training, _ = solve(task, solved(encoders(), words="alone", balanced=balanced))
        logits = training.predict(np.arange(len(kept)))
        margins = logits[:, rare] - logits[:, 1 - rare]
        leanings.append(margins.mean() / margins.std())
    assert leanings[1] > leanings[0]
