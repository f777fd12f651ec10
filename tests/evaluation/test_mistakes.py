"""The mistakes that are listed are the ones a person learns most from."""

from __future__ import annotations

import numpy as np

from headhunt.evaluation import confident_mistakes

TARGETS = np.array([0, 0, 0, 1, 1])
OUTPUTS = np.array([[0.9, 0.1], [0.2, 0.8], [0.1, 0.9], [0.95, 0.05], [0.4, 0.6]])


def test_confident_mistakes_sorts_by_confidence():
    mistakes = confident_mistakes(OUTPUTS, TARGETS)
    assert [(one.row, one.target, one.predicted) for one in mistakes] == [(3, 1, 0), (2, 0, 1), (1, 0, 1)]
    assert [one.confidence for one in mistakes] == [0.95, 0.9, 0.8] and mistakes[0].plain is None


def test_confident_mistakes_puts_rows_that_the_plain_head_gets_right_first():
    plain = np.eye(2)[[0, 0, 1, 0, 1]]
    mistakes = confident_mistakes(OUTPUTS, TARGETS, plain)
    assert [(one.row, one.plain) for one in mistakes] == [(1, 0), (3, 0), (2, 1)]


def test_confident_mistakes_respects_limit_and_allows_none():
    assert len(confident_mistakes(OUTPUTS, TARGETS, limit=2)) == 2
    assert confident_mistakes(np.eye(2)[TARGETS], TARGETS) == []
