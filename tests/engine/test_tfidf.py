"""The TF-IDF reference model: shapes, missing classes, pairs, sampling, determinism."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from conftest import WORDS, sentences

from headhunt.engine import tfidf
from headhunt.engine.tfidf import fit_tfidf

SINGLE, MULTI, NUMBERS = "single_label_classification", "multi_label_classification", "regression"


def reviews(count: int, seed: int = 0) -> tuple[list[str], np.ndarray]:
    """Return texts and classes: 1 if the text is good."""
    texts, labels = sentences(count, seed)
    return texts, np.array([label == "good" for label in labels], dtype=np.int64)


def pairs(count: int, seed: int = 0) -> tuple[list[str], list[str], np.ndarray]:
    """Return pairs of texts with the share of words they have in common."""
    rng = np.random.default_rng(seed)
    first, second, shares = [], [], []
    for _ in range(count):
        words = rng.choice(WORDS, 6, replace=False)
        common = int(rng.integers(0, 7))
        others = [word for word in WORDS if word not in words]
        first.append(" ".join(words))
        second.append(" ".join([*words[:common], *rng.choice(others, 6 - common, replace=False)]))
        shares.append(common / 6)
    return first, second, np.array(shares, dtype=np.float32)


def test_fit_tfidf_learns_classes():
    texts, targets = reviews(120)
    model = fit_tfidf(texts, None, targets, SINGLE, 2)
    new_texts, new_targets = reviews(60, seed=1)
    outputs = model.outputs(new_texts)
    assert outputs.shape == (60, 2) and model.rows == 120
    assert np.allclose(outputs.sum(axis=1), 1)
    assert (outputs.argmax(axis=1) == new_targets).mean() > 0.95


def test_fit_tfidf_aligns_probabilities_with_label_ids_if_classes_are_missing():
    texts, targets = reviews(80)
    for ids in (np.array([1, 3]), np.array([0, 4])):
        outputs = fit_tfidf(texts, None, ids[targets], SINGLE, 5).outputs(texts)
        assert outputs.shape == (80, 5) and np.allclose(outputs.sum(axis=1), 1)
        assert (outputs.argmax(axis=1) == ids[targets]).all()
        assert (outputs > 0).all() and np.delete(outputs, ids, axis=1).max() < 1e-5


def test_fit_tfidf_learns_more_than_two_classes():
    texts = [f"{word} {other}" for word in WORDS[:12] for other in WORDS]
    targets = np.repeat(np.arange(12), len(WORDS))
    outputs = fit_tfidf(texts, None, targets, SINGLE, 12).outputs([f"{word} unknown" for word in WORDS[:12]])
    assert (outputs.argmax(axis=1) == np.arange(12)).mean() > 0.8


def test_fit_tfidf_learns_several_labels_with_constant_ones():
    texts, good = reviews(120)
    cat = np.array(["cat" in text.split() for text in texts])
    targets = np.stack([good, np.zeros(120), cat, np.ones(120)], axis=1).astype(np.float32)
    outputs = fit_tfidf(texts, None, targets, MULTI, 4).outputs(texts)
    assert outputs.shape == (120, 4) and ((outputs > 0) & (outputs < 1)).all()
    assert ((outputs > 0.5) == (targets > 0.5)).mean(axis=0).min() > 0.95


def test_fit_tfidf_probabilities_are_calibrated():
    texts, targets = reviews(600)
    flipped = np.random.default_rng(0).random(600) < 0.2
    outputs = fit_tfidf(texts[:400], None, np.where(flipped, 1 - targets, targets)[:400], SINGLE, 2).outputs(
        texts[400:]
    )
    assert 0.7 < outputs.max(axis=1).mean() < 0.9  # 80 % of the labels are right


def test_fit_tfidf_compares_pairs():
    first, second, shares = pairs(400)
    model = fit_tfidf(first[:300], second[:300], shares[:300], NUMBERS, 1)
    outputs = model.outputs(first[300:], second[300:])
    assert outputs.shape == (100,)
    assert np.corrcoef(outputs, shares[300:])[0, 1] > 0.9
    classes = fit_tfidf(first[:300], second[:300], (shares[:300] > 0.5).astype(int), SINGLE, 2)
    assert (classes.outputs(first[300:], second[300:]).argmax(axis=1) == (shares[300:] > 0.5)).mean() > 0.85


def test_pair_features_are_both_texts_difference_product_and_cosines():
    from scipy import sparse

    words, characters = (
        np.array([[0.6, 0.8], [1, 0], [1, 0], [0, 1]]),
        np.array([[0.6, 0.8], [1, 0], [0.8, 0.6], [1, 0]]),
    )
    features = tfidf._features([sparse.csr_matrix(words), sparse.csr_matrix(characters)], pair=True).toarray()
    expected = [[0.6, 0.8, 1, 0, 0.4, 0.8, 0.6, 0, 0.6, 0.96], [1, 0, 0, 1, 1, 1, 0, 0, 0, 1]]
    assert np.allclose(features, expected)


def test_fit_tfidf_compares_pairs_without_character_ngrams(monkeypatch):
    monkeypatch.setattr(tfidf, "PAIR_CHARACTER_NGRAMS_UP_TO", 0)
    first, second, shares = pairs(400)
    outputs = fit_tfidf(first[:300], second[:300], shares[:300], NUMBERS, 1).outputs(first[300:], second[300:])
    assert np.corrcoef(outputs, shares[300:])[0, 1] > 0.9


def test_fit_tfidf_predicts_numbers():
    texts, good = reviews(120)
    outputs = fit_tfidf(texts, None, 3.0 + 2.0 * good, NUMBERS, 1).outputs(texts)
    assert outputs.shape == (120,) and np.abs(outputs - (3 + 2 * good)).mean() < 0.5


def test_fit_tfidf_reads_words_of_one_letter_and_scripts_without_spaces():
    texts = ["很好的电影", "很差的电影", "非常好看", "非常难看", "好", "差"] * 10
    targets = np.array([1, 0, 1, 0, 1, 0] * 10)
    assert (fit_tfidf(texts, None, targets, SINGLE, 2).outputs(texts).argmax(axis=1) == targets).all()


@pytest.mark.parametrize(
    ("problem_type", "targets", "expected"),
    [
        (SINGLE, np.array([0, 1, 1, 1]), [0.25, 0.75]),
        (MULTI, np.array([[0, 1], [0, 1], [1, 0], [0, 1]], dtype=np.float32), [0.25, 0.75]),
        (NUMBERS, np.array([1.0, 2.0, 3.0, 2.0]), 2.0),
    ],
    ids=["classes", "labels", "numbers"],
)
def test_fit_tfidf_is_constant_without_words(problem_type, targets, expected):
    model = fit_tfidf(["", " ", "", ""], None, targets, problem_type, 2)
    assert model.penalty is None
    assert np.allclose(model.outputs(["", "word", "x"]), [expected] * 3, atol=1e-5)


def test_fit_tfidf_is_constant_with_one_class():
    model = fit_tfidf(["a film", "a cat", "a dog"], None, np.array([2, 2, 2]), SINGLE, 3)
    assert np.allclose(model.outputs(["a film"]), [[0, 0, 1]], atol=1e-5)


def test_fit_tfidf_takes_few_rows():
    texts, targets = reviews(8)
    assert fit_tfidf(texts, None, targets, SINGLE, 2).outputs(texts).shape == (8, 2)


def test_fit_tfidf_is_deterministic():
    texts, targets = reviews(100)
    first, second = (fit_tfidf(texts, None, targets, SINGLE, 2, seed=3).outputs(texts) for _ in range(2))
    assert np.array_equal(first, second)


def test_fit_tfidf_samples_rows_to_fit_the_time_and_the_limit(monkeypatch):
    texts, targets = reviews(2000)
    assert fit_tfidf(texts, None, targets, SINGLE, 2).rows == 2000
    fewer = fit_tfidf(texts, None, targets, SINGLE, 2, seconds=0.2).rows
    assert 50 < fewer < 2000
    assert 50 <= fit_tfidf(texts, None, targets, SINGLE, 2, seconds=0.1).rows < fewer
    assert fit_tfidf(texts, texts, targets, SINGLE, 2, seconds=0.2).rows < fewer
    assert fit_tfidf(texts, None, targets, SINGLE, 2, seconds=1e-9).rows == 50
    monkeypatch.setattr(tfidf, "MAX_ROWS", 300)
    assert fit_tfidf(texts, None, targets, SINGLE, 2).rows == 300


def test_fit_tfidf_leaves_out_character_ngrams_of_much_text(monkeypatch):
    texts, targets = reviews(100)
    near = ["goodish movie", "badly movie"]  # known only by their characters
    assert np.ptp(fit_tfidf(texts, None, targets, SINGLE, 2).outputs(near)[:, 1]) > 0.1
    monkeypatch.setattr(tfidf, "CHARACTER_NGRAMS_UP_TO", 100)
    assert np.ptp(fit_tfidf(texts, None, targets, SINGLE, 2).outputs(near)[:, 1]) < 1e-9


def test_tfidf_imports_scikit_learn_lazily():
    code = "import sys; from headhunt.engine import tfidf; sys.exit('sklearn' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
