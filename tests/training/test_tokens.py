"""Tokens equal the tokenizer's own output, with truncation, swapped pairs and batches."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import WORDS, make_tokenizer, sentences

from headhunt.modeling.pretrained import load_tokenizer
from headhunt.training.tokens import CHUNK, SpecialTokens, by_length, shuffled_by_length, tokenise

STYLES = ("bert", "roberta", "distilbert", "modernbert")
TEXTS = sentences(12, seed=5)[0]
OTHERS = sentences(12, seed=6)[0]
EVERY = pytest.mark.parametrize("style", STYLES)


def words(count: int, start: int = 0) -> str:
    return " ".join(WORDS[(start + i) % len(WORDS)] for i in range(count))


def compare(batch, expected) -> None:
    assert batch.keys() == expected.keys()
    for name, value in expected.items():
        assert batch[name].tolist() == value.tolist(), name


# ------------------------------------------------------------------------------------------------ special tokens


@EVERY
def test_tokenise_single_texts_matches_tokenizer(style):
    tokenizer = make_tokenizer(style)
    batch = tokenise(tokenizer, TEXTS).batch(np.arange(12))
    compare(batch, tokenizer(TEXTS, padding=True, return_tensors="pt"))


@EVERY
def test_tokenise_pairs_matches_tokenizer(style):
    tokenizer = make_tokenizer(style)
    tokens = tokenise(tokenizer, TEXTS, OTHERS)
    compare(tokens.batch(np.arange(12)), tokenizer(TEXTS, OTHERS, padding=True, return_tensors="pt"))
    assert len(tokens) == 12 and tokens.lengths.tolist() == [len(ids) for ids in tokenizer(TEXTS, OTHERS)["input_ids"]]


@EVERY
def test_batch_of_swapped_pairs_matches_tokenizer(style):
    tokenizer = make_tokenizer(style)
    swap = np.arange(12) % 3 == 0
    first = [b if swapped else a for a, b, swapped in zip(TEXTS, OTHERS, swap, strict=True)]
    second = [a if swapped else b for a, b, swapped in zip(TEXTS, OTHERS, swap, strict=True)]
    rows = np.arange(12)[::-1]
    batch = tokenise(tokenizer, TEXTS, OTHERS).batch(rows, swap[rows])
    compare(batch, tokenizer(first[::-1], second[::-1], padding=True, return_tensors="pt"))


def test_special_tokens_of_tokenizers():
    bert, roberta = make_tokenizer("bert"), make_tokenizer("roberta")
    assert SpecialTokens.of(bert, pair=False) == SpecialTokens((0,), (), (2,), pad=1, types=True)
    assert SpecialTokens.of(bert, pair=True) == SpecialTokens((0,), (2,), (2,), pad=1, types=True)
    assert SpecialTokens.of(roberta, pair=True) == SpecialTokens((0,), (2, 2), (2,), pad=1, types=False)


@pytest.mark.real
def test_tokenise_matches_real_tokenizer(minilm):
    tokenizer = load_tokenizer(minilm)
    texts = ["A naïve café, 12.5 % off!", "short", "", "ünïcödé 🙂 text " * 30]
    others = ["unbelievably so", "[CLS] literal", "", "two"]
    options = {"padding": True, "return_tensors": "pt"}
    compare(tokenise(tokenizer, texts, max_length=512).batch(np.arange(4)), tokenizer(texts, **options))
    compare(tokenise(tokenizer, texts, others, max_length=512).batch(np.arange(4)), tokenizer(texts, others, **options))


def test_tokenise_treats_special_tokens_in_text_as_text(encoders):
    tokenizer = load_tokenizer(encoders())
    row = tokenise(tokenizer, ["good [SEP] bad [CLS]"]).row(0).tolist()
    special = {tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.pad_token_id}
    assert row[0] == tokenizer.cls_token_id and row[-1] == tokenizer.sep_token_id
    assert not special & set(row[1:-1]) and len(row) > 4


def test_tokenise_empty_text_gives_special_tokens_only():
    tokens = tokenise(make_tokenizer("bert"), ["", "good"], ["", ""])
    assert tokens.row(0).tolist() == [0, 2, 2] and len(tokens.row(1)) == 4
    assert tokens.batch(np.array([0, 1]), np.array([True, True]))["input_ids"][0].tolist() == [0, 2, 2, 1]


def test_tokenise_no_texts_gives_no_rows():
    for others in (None, []):
        tokens = tokenise(make_tokenizer("bert"), [], others)
        assert len(tokens) == 0 and len(tokens.ids) == 0


def test_tokenise_handles_more_texts_than_a_chunk():
    texts = [words(1 + i % 5, i) for i in range(CHUNK + 10)]
    tokenizer = make_tokenizer("bert")
    tokens = tokenise(tokenizer, texts)
    assert len(tokens) == CHUNK + 10
    for i in (0, CHUNK - 1, CHUNK, CHUNK + 9):
        assert tokens.row(i).tolist() == tokenizer(texts[i])["input_ids"]


# ------------------------------------------------------------------------------------------------ truncation


@EVERY
@pytest.mark.parametrize("max_length", [4, 7, 20])
def test_truncation_at_end_matches_tokenizer(style, max_length):
    tokenizer = make_tokenizer(style)
    texts = [words(n) for n in (1, 5, 6, 18, 19, 50)]
    batch = tokenise(tokenizer, texts, max_length=max_length).batch(np.arange(6))
    compare(batch, tokenizer(texts, truncation=True, max_length=max_length, padding=True, return_tensors="pt"))


def test_truncation_in_middle_keeps_both_ends():
    tokenizer = make_tokenizer("bert")
    ids = tokenizer(words(20), add_special_tokens=False)["input_ids"]
    row = tokenise(tokenizer, [words(20)], max_length=9, truncation="middle").row(0).tolist()
    assert row == [0, *ids[:4], *ids[-3:], 2]
    assert tokenise(tokenizer, [words(7)], max_length=9, truncation="middle").row(0).tolist() == [0, *ids[:7], 2]


@EVERY
@pytest.mark.parametrize("truncation", ["end", "middle"])
@pytest.mark.parametrize(("first", "second"), [(3, 30), (30, 3), (30, 30), (9, 9), (8, 8), (1, 1), (10, 7)])
def test_truncation_of_pairs_cuts_longer_text_first(style, truncation, first, second):
    tokenizer = make_tokenizer(style)
    fixed = 4 if style == "roberta" else 3
    tokens = tokenise(tokenizer, [words(first)], [words(second, 3)], max_length=16 + fixed, truncation=truncation)
    kept = int(tokens.firsts[0]), len(tokens.row(0)) - fixed - int(tokens.firsts[0])
    assert sum(kept) == min(16, first + second)
    assert kept == {(3, 30): (3, 13), (30, 3): (13, 3), (10, 7): (9, 7)}.get((first, second), (min(8, first),) * 2)


@EVERY
def test_tokenise_each_applies_max_length_to_each_text(style):
    tokenizer = make_tokenizer(style)
    tokens = tokenise(tokenizer, [words(30), words(2)], [words(30, 3), words(30)], max_length=12, each=True)
    fixed = 4 if style == "roberta" else 3
    assert tokens.firsts.tolist() == [10, 2]
    assert (tokens.lengths - fixed).tolist() == [20, 12]


# ------------------------------------------------------------------------------------------------ batches


@pytest.mark.parametrize(("rows", "size"), [(1, 8), (8, 8), (100, 8), (1000, 7)])
def test_batches_contain_every_row_once(rows, size):
    lengths = np.random.default_rng(0).integers(1, 200, rows)
    for batches in (shuffled_by_length(lengths, size, np.random.default_rng(1), pool=4), by_length(lengths, size)):
        batches = list(batches)
        assert sorted(np.concatenate(batches).tolist()) == list(range(rows))
        assert max(map(len, batches)) <= size and len(batches) <= -(-rows // size) + rows // (4 * size)


def test_shuffled_by_length_is_random_with_little_padding():
    lengths = np.random.default_rng(0).integers(1, 200, 4096)
    first = list(shuffled_by_length(lengths, 16, np.random.default_rng(1)))
    again = list(shuffled_by_length(lengths, 16, np.random.default_rng(1)))
    other = list(shuffled_by_length(lengths, 16, np.random.default_rng(2)))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    padded = sum(len(rows) * lengths[rows].max() for rows in first)
    assert padded < 1.2 * lengths.sum(), "random batches need almost twice as much padding"
    means = [lengths[rows].mean() for rows in first]
    assert abs(np.corrcoef(np.arange(len(means)), means)[0, 1]) < 0.2, "batches must not be sorted by length"
    pairs = [{tuple(sorted(rows.tolist())) for rows in batches} for batches in (first, other)]
    assert not pairs[0] & pairs[1], "the neighbours of a row must vary"


def test_by_length_starts_with_longest():
    lengths = np.random.default_rng(0).integers(1, 200, 100)
    order = np.concatenate(list(by_length(lengths, 16)))
    assert (np.diff(lengths[order]) <= 0).all()
