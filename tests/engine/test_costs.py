"""The Pareto front of score, latency and size."""

from __future__ import annotations

from headhunt.engine.deliver import candidate_costs, pareto_front
from headhunt.run.results import CandidateCost
from headhunt.run.state import Outcome, State, Trial


def test_front_has_candidates_that_no_other_beats():
    items = [
        CandidateCost(0, 0.90, 10.0, 90.0),
        CandidateCost(1, 0.90, 10.0, 80.0),  # beats 0
        CandidateCost(2, 0.80, 2.0, 95.0),  # the fastest
        CandidateCost(3, 0.70, 5.0, 10.0),  # the smallest
        CandidateCost(4, 0.69, 6.0, 11.0),  # beaten by 3
    ]
    assert pareto_front(items) == {1, 2, 3}
    assert pareto_front([items[0], items[0]]) == {0}  # equal ones do not beat each other


def test_costs_are_those_of_the_top_rung():
    def trial(number: int, rung: int, score: float | None, **extra: object) -> Trial:
        return Trial(number, {}, str(number), None, "bohb", 0, {rung: Outcome("ok", score, extra=extra)})

    state = State()
    state.trials += [
        trial(0, 2, 0.8, latency_ms=9.0, megabytes=90.0),
        trial(1, 2, 0.9, latency_ms=4.0, megabytes=80),
        trial(2, 1, 0.95, latency_ms=1.0, megabytes=1.0),  # not fully evaluated
        trial(3, 2, None, latency_ms=1.0, megabytes=1.0),
        trial(4, 2, 0.99, latency_ms="fast", megabytes=1.0),
    ]
    costs = candidate_costs(state, 2)
    assert [(cost.trial, cost.score, cost.efficient) for cost in costs] == [(1, 0.9, True), (0, 0.8, False)]
