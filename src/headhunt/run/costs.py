"""Score, latency and size of every fully evaluated candidate, and those that no other one beats in all three."""

from __future__ import annotations

import math
from collections.abc import Sequence

from headhunt.run.results import CandidateCost
from headhunt.run.state import State, Trial


def candidate_costs(state: State, top: int) -> tuple[CandidateCost, ...]:
    """Return the candidates with a score at the top rung whose cost was measured, best first.

    Args:
        state: The state of the search.
        top: The highest rung.
    """
    found = [cost for trial in state.trials if (cost := _cost_of(trial, top)) is not None]
    efficient = pareto_front(found)
    marked = [
        CandidateCost(item.trial, item.score, item.latency_ms, item.megabytes, item.trial in efficient)
        for item in found
    ]
    return tuple(sorted(marked, key=lambda item: (-item.score, item.trial)))


def pareto_front(items: Sequence[CandidateCost]) -> set[int]:
    """Return the trials for which no other is at least as good in score, latency and size and better in one of them."""

    def beats(one: CandidateCost, other: CandidateCost) -> bool:
        ours, theirs = ((-each.score, each.latency_ms, each.megabytes) for each in (one, other))
        return all(a <= b for a, b in zip(ours, theirs, strict=True)) and ours != theirs

    return {item.trial for item in items if not any(beats(other, item) for other in items)}


def _cost_of(trial: Trial, top: int) -> CandidateCost | None:
    result = trial.results.get(top)
    if result is None or result.score is None:
        return None
    values = [result.extra.get(name) for name in ("latency_ms", "megabytes")]
    numbers = [float(value) for value in values if isinstance(value, int | float) and math.isfinite(value)]
    return CandidateCost(trial.number, result.score, numbers[0], numbers[1]) if len(numbers) == 2 else None
