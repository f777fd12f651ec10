"""TimeBudget: one deadline, a bounded reserve, and estimates with a margin, all on a virtual clock."""

from __future__ import annotations

import math

import pytest

from headhunt.study.budget import LARGEST_RESERVE, MARGIN, TimeBudget


class Clock:
    """A clock that is moved by hand."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_budget_without_limit_never_ends(clock):
    budget = TimeBudget(None, clock=clock)
    budget.reserve(50)
    clock.now += 1e9
    assert budget.deadline is None and budget.search_deadline is None
    assert budget.left() == math.inf and not budget.search_is_over() and budget.fits(1e9)


def test_shortened_budget_ends_soon_but_not_later_than_before(clock):
    for seconds, left in ((None, 60), (3600, 60), (20, 20), (-5, -5)):
        budget = TimeBudget(seconds, clock=clock)
        budget.shorten(60)
        assert budget.left() == left


def test_budget_ends_the_search_early_enough_for_the_reserve(clock):
    budget = TimeBudget(100, clock=clock)
    budget.reserve(20)
    assert (budget.deadline, budget.search_deadline) == (1100, 1080)
    clock.now = 1079
    assert not budget.search_is_over() and budget.left() == 21
    clock.now = 1080
    assert budget.search_is_over()


def test_budget_reserves_a_bounded_fraction_of_the_total(clock):
    budget = TimeBudget(100, clock=clock)
    budget.reserve(1000)
    assert budget.search_deadline == pytest.approx(1100 - 100 * LARGEST_RESERVE)
    rest = TimeBudget(10, total=100, clock=clock)  # what is left of 100 s after a resume
    rest.reserve(8)
    assert rest.search_deadline == pytest.approx(1010 - 8)


def test_budget_fits_work_with_a_margin(clock):
    budget = TimeBudget(100, clock=clock)
    assert budget.fits(None) and budget.fits(100 / MARGIN) and not budget.fits(100 / MARGIN + 0.1)
    budget.reserve(20)
    assert not budget.fits(75)
