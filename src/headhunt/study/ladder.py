"""Decide promotions between rungs: asynchronous successive halving (ASHA) within Hyperband's brackets.

No trial is stopped and none waits for another: a free worker promotes a trial, or else starts a new one. Each rung
keeps its results sorted, so that a decision takes microseconds with many thousands of them.
"""

from __future__ import annotations

import bisect
import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass

Entry = tuple[float, int]  # score and negative trial number: among equal scores the earlier trial is first


@dataclass(frozen=True)
class Ladder:
    """The rungs of a search as fractions of full training, the reduction factor, and the brackets.

    The number of a bracket is the rung at which its trials start. New trials are distributed over the brackets as in
    Hyperband, so that all brackets have about the same total cost.
    """

    fractions: tuple[float, ...] = (1 / 3, 1.0)
    """Fraction of full training at the end of each rung, above 0 and rising to 1."""
    eta: int = 3
    """Reduction factor: the best 1/eta of a rung are promoted."""
    brackets: int = 1
    """Number of rungs at which trials may start."""

    def __post_init__(self) -> None:
        rising = all(low < high for low, high in zip(self.fractions, self.fractions[1:], strict=False))
        if not self.fractions or not rising or self.fractions[0] <= 0 or self.fractions[-1] != 1:
            raise ValueError(f"fractions must be above 0 and rise to 1; found {self.fractions}.")
        if self.eta < 2 or self.brackets < 1:
            raise ValueError(f"eta must be at least 2 and brackets at least 1; found {self.eta}, {self.brackets}.")

    @classmethod
    def of(cls, rungs: int, eta: int, brackets: int) -> Ladder:
        """Return a ladder with so many rungs, each with eta times as much training as the one below."""
        return cls(tuple(float(eta) ** (rung + 1 - rungs) for rung in range(rungs)), eta, min(brackets, rungs))

    @property
    def top(self) -> int:
        """Number of the rung of full training."""
        return len(self.fractions) - 1

    def weights(self) -> list[int]:
        """Return the number of trials that start in each bracket per Hyperband round."""
        top = self.top
        return [
            math.ceil((top + 1) / (top - start + 1) * self.eta ** (top - start))
            for start in range(min(self.brackets, top + 1))
        ]

    def bracket(self, number: int) -> int:
        """Return the bracket of a new trial. The brackets alternate in proportion to their weights."""
        weights = self.weights()
        assigned = [0] * len(weights)
        bracket = 0
        for turn in range(number % sum(weights) + 1):
            missing = [
                weight * (turn + 1) / sum(weights) - count for weight, count in zip(weights, assigned, strict=True)
            ]
            bracket = missing.index(max(missing))
            assigned[bracket] += 1
        return bracket


class Rung:
    """The results of one rung of one bracket, and those of them not yet promoted."""

    def __init__(self, eta: int) -> None:
        self._eta = eta
        self._count = 0
        self._scores: dict[int, float] = {}
        self._promoted: set[int] = set()
        self._ranked: list[Entry] = []  # sorted
        self._waiting: list[Entry] = []  # not promoted, sorted

    def add(self, trial: int, score: float | None) -> None:
        """Add a result. A failure (None) counts as a result and is never promoted."""
        self._count += 1
        if score is not None:
            self._scores[trial] = score
            bisect.insort(self._ranked, (score, -trial))
            if trial not in self._promoted:
                bisect.insort(self._waiting, (score, -trial))

    def mark_promoted(self, trial: int) -> None:
        """Record that a trial has been promoted."""
        if trial in self._scores and trial not in self._promoted:
            del self._waiting[bisect.bisect_left(self._waiting, (self._scores[trial], -trial))]
        self._promoted.add(trial)

    def promotable(self) -> Entry | None:
        """Return the best entry that has not been promoted, if it is among the best 1/eta."""
        if not self._waiting:
            return None
        better = len(self._ranked) - bisect.bisect_right(self._ranked, self._waiting[-1])
        return self._waiting[-1] if better < self._count // self._eta else None

    def waiting(self) -> Iterator[Entry]:
        """Iterate over all scored entries that have not been promoted, best first."""
        return reversed(self._waiting)


class Rungs:
    """All rungs of all brackets."""

    def __init__(self, ladder: Ladder) -> None:
        self.ladder = ladder
        self._rungs: dict[tuple[int, int], Rung] = {}  # by rung number and bracket

    def add(self, trial: int, bracket: int, rung: int, score: float | None) -> None:
        """Add a result. A score of None is a failure."""
        self._rung(rung, bracket).add(trial, score)

    def started(self, trial: int, bracket: int, rung: int) -> None:
        """Record that a trial has started a rung, so that it is not promoted to it again."""
        if rung > bracket:
            self._rung(rung - 1, bracket).mark_promoted(trial)

    def next_promotion(self) -> tuple[int, int] | None:
        """Return the next trial to promote and its new rung: from the highest rung, then the best score."""
        best: tuple[int, Entry] | None = None
        for (number, _), rung in self._rungs.items():
            if number < self.ladder.top and (best is None or number >= best[0]):
                entry = rung.promotable()
                if entry is not None and (best is None or (number, entry) > best):
                    best = (number, entry)
        return (-best[1][1], best[0] + 1) if best else None

    def waiting(self, rung: int) -> Iterator[tuple[int, float]]:
        """Iterate over trial and score of all trials at a rung that have not been promoted, best first."""
        brackets = [results.waiting() for (number, _), results in self._rungs.items() if number == rung]
        return ((-negative, score) for score, negative in heapq.merge(*brackets, reverse=True))

    def checkpoints_to_keep(self, finalists: int = 10) -> list[tuple[int, int]]:
        """Return trial and rung of every checkpoint to keep, most promising first.

        Args:
            finalists: Maximum number of fully trained trials to keep.
        """
        waiting = [(number, entry) for (number, _), rung in self._rungs.items() for entry in rung.waiting()]
        waiting.sort(reverse=True)
        full = [item for item in waiting if item[0] == self.ladder.top]
        return [(-entry[1], number) for number, entry in full[:finalists] + waiting[len(full) :]]

    def _rung(self, rung: int, bracket: int) -> Rung:
        if (rung, bracket) not in self._rungs:
            self._rungs[rung, bracket] = Rung(self.ladder.eta)
        return self._rungs[rung, bracket]
