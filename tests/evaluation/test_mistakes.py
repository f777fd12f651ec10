"""The mistakes that are listed are the ones a person learns most from."""

from __future__ import annotations

import numpy as np

from headhunt.evaluation import find_mistakes

LABELS = ("good", "bad")
TARGETS = np.array([0, 0, 0, 1, 1])
OUTPUTS = np.array([[0.9, 0.1], [0.2, 0.8], [0.1, 0.9], [0.95, 0.05], [0.4, 0.6]])


def read_texts(row: int) -> tuple[str, str | None]:
    return f"row {row}", "second" if row == 3 else None


def test_find_mistakes_sorts_by_confidence():
    mistakes = find_mistakes(OUTPUTS, TARGETS, LABELS, read_texts)
    assert [mistake.text for mistake in mistakes] == ["row 3", "row 2", "row 1"]
    assert [mistake.confidence for mistake in mistakes] == [0.95, 0.9, 0.8]
    assert (mistakes[0].label, mistakes[0].prediction, mistakes[0].text_b) == ("bad", "good", "second")
    assert mistakes[0].plain_prediction is None and mistakes[1].text_b is None


def test_find_mistakes_puts_rows_that_the_plain_head_gets_right_first():
    plain = np.eye(2)[[0, 0, 1, 0, 1]]
    mistakes = find_mistakes(OUTPUTS, TARGETS, LABELS, read_texts, plain)
    assert [(mistake.text, mistake.plain_prediction) for mistake in mistakes] == [
        ("row 1", "good"),
        ("row 3", "good"),
        ("row 2", "bad"),
    ]


def test_find_mistakes_respects_limit_and_returns_none_if_all_correct():
    assert len(find_mistakes(OUTPUTS, TARGETS, LABELS, read_texts, limit=2)) == 2
    assert find_mistakes(np.eye(2)[TARGETS], TARGETS, LABELS, read_texts) == ()
