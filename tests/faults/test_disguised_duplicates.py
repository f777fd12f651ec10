"""Copies of test texts in the training rows are seen, whatever a reader does not see is changed in them."""

from __future__ import annotations

import random
import unicodedata

import pytest
from labelled_rows import ADJECTIVES, NOUNS

from headhunt.data import Task
from headhunt.data.diagnostics import count_leaks

COPIES = 40


def full_width(text: str) -> str:
    return "".join(chr(ord(letter) + 0xFEE0) if "!" <= letter <= "~" else letter for letter in text)


DISGUISES = {
    "as it is": str,
    "upper case": str.upper,
    "punctuation": lambda text: " -- ".join(text.split()) + "!",
    "decomposed accents": lambda text: unicodedata.normalize("NFD", text),
    "zero-width spaces": lambda text: "\u200b".join(text),
    "soft hyphens": lambda text: text.replace("e", "e\u00ad"),
    "direction marks": lambda text: f"\u202b{text}\u202c",
    "full-width letters": full_width,
    "HTML tags": lambda text: f"<p class='a'>{text.replace(' ', '<br/>', 1)}</p>",
    "HTML entities": lambda text: f"&quot;{text.replace(' ', '&nbsp;')}&quot;",
    "ligatures": lambda text: text.replace("fi", "\ufb01"),
    "curly quotes and no-break spaces": lambda text: f"\u201c{text}\u201d".replace(" ", "\u00a0"),
}


def make_rows(number: int, seed: int) -> list[tuple[str, str]]:
    rng = random.Random(seed)
    words = [*ADJECTIVES, *NOUNS, "cr\u00e8me", "na\u00efve", "fine", "five"]
    texts = [" ".join(rng.choice(words) for _ in range(12)) for _ in range(number)]
    return [(f"{text} cr\u00e8me fine", rng.choice(["good", "bad"])) for text in texts]


@pytest.mark.parametrize("disguise", DISGUISES)
def test_disguised_copies_are_seen_as_leaks(disguise):
    train, test = make_rows(200, 1), make_rows(100, 2)
    copies = [(DISGUISES[disguise](text), label) for text, label in test[:COPIES]]
    task = Task.load([*train, *copies], test=test)
    assert count_leaks(task.splits)["test"]["same"] == COPIES
    assert any(f"{COPIES} test rows leak" in warning for warning in task.warnings)


def test_texts_that_differ_in_markup_alone_stay_apart():
    marked = ["<b>", "<i>", "&lt;", "&gt;", "a <b> c", "a < b"]
    rows = [*make_rows(60, 3), *((text, "good") for text in marked)]
    train = Task.load(rows, test=make_rows(10, 4)).splits["train"]
    assert len(set(train.keys)) == len(set(train.near)) == len(train)
