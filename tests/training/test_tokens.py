"""Token ids equal the tokenizer's own, whatever is cut, swapped or batched."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import WORDS, make_tokenizer, sentences

from headhunt.modeling.build import load_tokenizer
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


# ------------------------------------------------------------------------------------------------ frames


@EVERY
def test_one_text_is_framed_as_the_tokenizer_frames_it(style):
    tokenizer = make_tokenizer(style)
    batch = tokenise(tokenizer, TEXTS).batch(np.arange(12))
    compare(batch, tokenizer(TEXTS, padding=True, return_tensors="pt"))


@EVERY
def test_pairs_are_framed_as_the_tokenizer_frames_them(style):
    tokenizer = make_tokenizer(style)
    tokens = tokenise(tokenizer, TEXTS, OTHERS)
    compare(tokens.batch(np.arange(12)), tokenizer(TEXTS, OTHERS, padding=True, return_tensors="pt"))
    assert len(tokens) == 12 and tokens.lengths.tolist() == [len(ids) for ids in tokenizer(TEXTS, OTHERS)["input_ids"]]


@EVERY
def test_swapped_pairs_are_what_the_tokenizer_makes_of_them(style):
    tokenizer = make_tokenizer(style)
    swap = np.arange(12) % 3 == 0
    first = [b if change else a for a, b, change in zip(TEXTS, OTHERS, swap, strict=True)]
    second = [a if change else b for a, b, change in zip(TEXTS, OTHERS, swap, strict=True)]
    rows = np.arange(12)[::-1]
    batch = tokenise(tokenizer, TEXTS, OTHERS).batch(rows, swap[rows])
    compare(batch, tokenizer(first[::-1], second[::-1], padding=True, return_tensors="pt"))


def test_frames():
    bert, roberta = make_tokenizer("bert"), make_tokenizer("roberta")
    assert SpecialTokens.of(bert, pair=False) == SpecialTokens((0,), (), (2,), pad=1, types=True)
    assert SpecialTokens.of(bert, pair=True) == SpecialTokens((0,), (2,), (2,), pad=1, types=True)
    assert SpecialTokens.of(roberta, pair=True) == SpecialTokens((0,), (2, 2), (2,), pad=1, types=False)


@pytest.mark.real
def test_the_real_tokenizer_agrees(minilm):
    tokenizer = load_tokenizer(minilm)
    texts = ["A naïve café, 12.5 % off!", "short", "", "ünïcödé 🙂 text " * 30]
    others = ["unbelievably so", "[CLS] literal", "", "two"]
    options = {"padding": True, "return_tensors": "pt"}
    compare(tokenise(tokenizer, texts, max_length=512).batch(np.arange(4)), tokenizer(texts, **options))
    compare(tokenise(tokenizer, texts, others, max_length=512).batch(np.arange(4)), tokenizer(texts, others, **options))


def test_special_tokens_in_a_text_stay_text(encoders):
    tokenizer = load_tokenizer(encoders())
    row = tokenise(tokenizer, ["good [SEP] bad [CLS]"]).row(0).tolist()
    special = {tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.pad_token_id}
    assert row[0] == tokenizer.cls_token_id and row[-1] == tokenizer.sep_token_id
    assert not special & set(row[1:-1]) and len(row) > 4


def test_an_empty_text_is_its_frame():
    tokens = tokenise(make_tokenizer("bert"), ["", "good"], ["", ""])
    assert tokens.row(0).tolist() == [0, 2, 2] and len(tokens.row(1)) == 4
    assert tokens.batch(np.array([0, 1]), np.array([True, True]))["input_ids"][0].tolist() == [0, 2, 2, 1]


def test_no_texts_are_no_tokens():
    for others in (None, []):
        tokens = tokenise(make_tokenizer("bert"), [], others)
        assert len(tokens) == 0 and len(tokens.ids) == 0


def test_more_texts_than_are_tokenised_at_a_time():
    texts = [words(1 + i % 5, i) for i in range(CHUNK + 10)]
    tokenizer = make_tokenizer("bert")
    tokens = tokenise(tokenizer, texts)
    assert len(tokens) == CHUNK + 10
    for i in (0, CHUNK - 1, CHUNK, CHUNK + 9):
        assert tokens.row(i).tolist() == tokenizer(texts[i])["input_ids"]


# ------------------------------------------------------------------------------------------------ truncation


@EVERY
@pytest.mark.parametrize("max_length", [4, 7, 20])
def test_the_end_is_cut_as_the_tokenizer_cuts_it(style, max_length):
    tokenizer = make_tokenizer(style)
    texts = [words(n) for n in (1, 5, 6, 18, 19, 50)]
    batch = tokenise(tokenizer, texts, max_length=max_length).batch(np.arange(6))
    compare(batch, tokenizer(texts, truncation=True, max_length=max_length, padding=True, return_tensors="pt"))


def test_the_middle_is_cut_so_that_both_ends_stay():
    tokenizer = make_tokenizer("bert")
    ids = tokenizer(words(20), add_special_tokens=False)["input_ids"]
    row = tokenise(tokenizer, [words(20)], max_length=9, truncation="middle").row(0).tolist()
    assert row == [0, *ids[:4], *ids[-3:], 2]
    assert tokenise(tokenizer, [words(7)], max_length=9, truncation="middle").row(0).tolist() == [0, *ids[:7], 2]


@EVERY
@pytest.mark.parametrize("truncation", ["end", "middle"])
@pytest.mark.parametrize(("first", "second"), [(3, 30), (30, 3), (30, 30), (9, 9), (8, 8), (1, 1), (10, 7)])
def test_of_a_pair_the_longer_text_gives_way(style, truncation, first, second):
    tokenizer = make_tokenizer(style)
    fixed = 4 if style == "roberta" else 3
    tokens = tokenise(tokenizer, [words(first)], [words(second, 3)], max_length=16 + fixed, truncation=truncation)
    kept = int(tokens.firsts[0]), len(tokens.row(0)) - fixed - int(tokens.firsts[0])
    assert sum(kept) == min(16, first + second)
    assert kept == {(3, 30): (3, 13), (30, 3): (13, 3), (10, 7): (9, 7)}.get((first, second), (min(8, first),) * 2)


@EVERY
def test_each_text_of_a_pair_may_have_the_whole_length(style):
    tokenizer = make_tokenizer(style)
    tokens = tokenise(tokenizer, [words(30), words(2)], [words(30, 3), words(30)], max_length=12, each=True)
    fixed = 4 if style == "roberta" else 3
    assert tokens.firsts.tolist() == [10, 2]
    assert (tokens.lengths - fixed).tolist() == [20, 12]


# ------------------------------------------------------------------------------------------------ batches


@pytest.mark.parametrize(("rows", "size"), [(1, 8), (8, 8), (100, 8), (1000, 7)])
def test_every_row_comes_once_per_epoch(rows, size):
    lengths = np.random.default_rng(0).integers(1, 200, rows)
    for batches in (shuffled_by_length(lengths, size, np.random.default_rng(1), pool=4), by_length(lengths, size)):
        batches = list(batches)
        assert sorted(np.concatenate(batches).tolist()) == list(range(rows))
        assert max(map(len, batches)) <= size and len(batches) <= -(-rows // size) + rows // (4 * size)


def test_batches_are_of_like_length_and_still_random():
    lengths = np.random.default_rng(0).integers(1, 200, 4096)
    first = list(shuffled_by_length(lengths, 16, np.random.default_rng(1)))
    again = list(shuffled_by_length(lengths, 16, np.random.default_rng(1)))
    other = list(shuffled_by_length(lengths, 16, np.random.default_rng(2)))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    padded = sum(len(rows) * lengths[rows].max() for rows in first)
    assert padded < 1.2 * lengths.sum(), "random batches would pad to almost twice as much"
    means = [lengths[rows].mean() for rows in first]
    assert abs(np.corrcoef(np.arange(len(means)), means)[0, 1]) < 0.2, "not from short to long"
    pairs = [{tuple(sorted(rows.tolist())) for rows in batches} for batches in (first, other)]
    assert not pairs[0] & pairs[1], "a row meets others each time"


def test_prediction_begins_with_the_longest():
    lengths = np.random.default_rng(0).integers(1, 200, 100)
    found = np.concatenate(list(by_length(lengths, 16)))
    assert (np.diff(lengths[found]) <= 0).all()
