"""Tests of rungs, brackets and promotions."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headhunt.study.ladder import Ladder, Rung, Rungs


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.one_of(st.none(), st.integers(0, 5)), st.booleans()), max_size=60),
    st.integers(2, 4),
)
def test_rung_promotes_each_of_its_best_once(steps, eta):
    rung, scores, promoted = Rung(eta), {}, set()
    for trial, (score, promote) in enumerate(steps):
        rung.add(trial, None if score is None else score / 10)
        if score is not None:
            scores[trial] = score
        top = sorted(scores, key=lambda number: (-scores[number], number))[: (trial + 1) // eta]
        promotable = [number for number in top if number not in promoted]
        entry = rung.promotable()
        assert (None if entry is None else -entry[1]) == (promotable[0] if promotable else None)
        assert {-entry[1] for entry in rung.waiting()} == scores.keys() - promoted
        if promote and promotable:
            rung.mark_promoted(promotable[0])
            promoted.add(promotable[0])


def test_brackets_alternate_by_hyperband_weights():
    ladder = Ladder((1 / 9, 1 / 3, 1.0), brackets=3)
    assert ladder.weights() == [9, 5, 3]
    assert Counter(map(ladder.bracket, range(170))) == {0: 90, 1: 50, 2: 30}
    assert Ladder((1.0,)).bracket(7) == 0


@pytest.mark.parametrize("fractions", [(), (0.5,), (0.5, 0.3, 1.0), (-1.0, 1.0), (0.0, 1.0), (0.0, 1 / 3, 1.0)])
def test_ladder_rejects_fractions_that_do_not_rise_from_above_0_to_1(fractions):
    with pytest.raises(ValueError, match="above 0 and rise to 1"):
        Ladder(fractions)


@pytest.mark.parametrize("arguments", [{"eta": 1}, {"brackets": 0}])
def test_ladder_rejects_invalid_eta_and_brackets(arguments):
    with pytest.raises(ValueError, match="eta must be at least 2 and brackets at least 1"):
        Ladder(**arguments)


def test_rungs_promote_from_the_highest_rung_first():
    rungs = Rungs(Ladder((0.1, 0.3, 1.0), eta=2))
    for trial in range(4):
        rungs.add(trial, 0, 0, trial / 10)
        rungs.add(trial + 10, 1, 1, trial / 10)
    assert rungs.next_promotion() == (13, 2)
    rungs.started(13, 1, 2)
    rungs.started(12, 1, 2)
    assert rungs.next_promotion() == (3, 1)
    assert rungs.checkpoints_to_keep()[:2] == [(11, 1), (10, 1)]


def test_rungs_waiting_merges_brackets_by_score():
    rungs = Rungs(Ladder((0.1, 0.3, 1.0)))
    for trial, (bracket, score) in enumerate([(0, 0.3), (1, 0.5), (0, 0.4), (1, 0.2)]):
        rungs.add(trial, bracket, 1, score)
    rungs.started(2, 0, 2)
    assert list(rungs.waiting(1)) == [(1, 0.5), (0, 0.3), (3, 0.2)]


def test_checkpoints_to_keep_limits_fully_trained_trials():
    rungs = Rungs(Ladder((0.5, 1.0)))
    for trial in range(5):
        rungs.add(trial, 0, 1, trial / 10)
        rungs.add(trial + 10, 0, 0, trial / 10)
    assert rungs.checkpoints_to_keep(finalists=2) == [(4, 1), (3, 1), *((number, 0) for number in range(14, 9, -1))]
