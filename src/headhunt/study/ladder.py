"""Who goes on: promotion-type ASHA within Hyperband's brackets.

Hides the bookkeeping that keeps every decision O(log n): of each rung the best 1/η are known at all times, and those of
them that have not gone on yet. Nothing is ever stopped or waited for: a free worker takes a candidate that has earned
the next rung, or else begins a new one.
"""

from __future__ import annotations

import bisect
import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass

Entry = tuple[float, int]  # score and minus the trial's number: of equals the earlier comes first


@dataclass(frozen=True)
class Ladder:
    """The rungs as shares of a candidate's examples, and how many go on.

    A bracket is named by the rung its candidates start at. Each of the first `brackets` gets Hyperband's share of the
    new candidates, so that all of them cost about the same.
    """

    fractions: tuple[float, ...] = (1 / 9, 1 / 3, 1.0)
    """Rising to 1; 0 is the probe."""
    eta: int = 3
    """One in so many goes on."""
    brackets: int = 2
    """How many rungs candidates may start at."""

    def __post_init__(self) -> None:
        rising = all(low < high for low, high in zip(self.fractions, self.fractions[1:], strict=False))
        if not self.fractions or not rising or self.fractions[0] < 0 or self.fractions[-1] != 1:
            raise ValueError(f"Rungs must rise to 1; found {self.fractions}.")
        if self.eta < 2 or self.brackets < 1:
            raise ValueError(f"eta must be at least 2 and brackets at least 1; found {self.eta}, {self.brackets}.")

    @property
    def top(self) -> int:
        """The rung of full training."""
        return len(self.fractions) - 1

    def weights(self) -> list[int]:
        """How many candidates start at each rung for one round of all brackets."""
        top = self.top
        return [
            math.ceil((top + 1) / (top - start + 1) * self.eta ** (top - start))
            for start in range(min(self.brackets, top + 1))
        ]

    def bracket(self, number: int) -> int:
        """The rung the candidate of this number starts at: the brackets take turns, each as often as its weight."""
        weights = self.weights()
        given = [0] * len(weights)
        pick = 0
        for turn in range(number % sum(weights) + 1):
            owed = [weight * (turn + 1) / sum(weights) - have for weight, have in zip(weights, given, strict=True)]
            pick = owed.index(max(owed))
            given[pick] += 1
        return pick


class Rung:
    """The results of one rung of one bracket; knows the best 1/η and who of them may go on."""

    def __init__(self, eta: int) -> None:
        self._eta = eta
        self._count = 0
        self._scores: dict[int, float] = {}
        self._gone: set[int] = set()
        self._top: list[Entry] = []  # a heap, the worst of the top first
        self._rest: list[Entry] = []  # a heap of negatives, the best of the rest first
        self._inside: set[int] = set()
        self._ready: list[Entry] = []  # a heap of negatives; may hold entries that are no longer ready
        self._order: list[Entry] = []  # who has not gone on, sorted

    def add(self, trial: int, score: float | None) -> None:
        """Takes in a result; a failure (None) counts among the results and can never go on."""
        self._count += 1
        if score is not None:
            self._scores[trial] = score
            entry = (score, -trial)
            if trial not in self._gone:
                bisect.insort(self._order, entry)
            if self._top and entry > self._top[0]:
                self._enter(entry)
                self._leave()
            else:
                heapq.heappush(self._rest, _negative(entry))
        if len(self._top) < self._count // self._eta and self._rest:
            self._enter(_negative(heapq.heappop(self._rest)))

    def gone(self, trial: int) -> None:
        """Notes that a trial has gone on."""
        if trial in self._scores and trial not in self._gone:
            del self._order[bisect.bisect_left(self._order, (self._scores[trial], -trial))]
        self._gone.add(trial)

    def ready(self) -> Entry | None:
        """The best candidate that has earned the next rung and has not gone on."""
        while self._ready:
            entry = _negative(self._ready[0])
            trial = -entry[1]
            if trial in self._inside and trial not in self._gone:
                return entry
            heapq.heappop(self._ready)
        return None

    def staying(self) -> Iterator[Entry]:
        """All that have a score and have not gone on, best first: they may still, as results come in."""
        return reversed(self._order)

    def _enter(self, entry: Entry) -> None:
        heapq.heappush(self._top, entry)
        self._inside.add(-entry[1])
        heapq.heappush(self._ready, _negative(entry))

    def _leave(self) -> None:
        entry = heapq.heappop(self._top)
        self._inside.discard(-entry[1])
        heapq.heappush(self._rest, _negative(entry))


class Rungs:
    """All rungs of all brackets."""

    def __init__(self, ladder: Ladder) -> None:
        self.ladder = ladder
        self._rungs: dict[tuple[int, int], Rung] = {}  # by height, then bracket

    def add(self, trial: int, bracket: int, rung: int, score: float | None) -> None:
        """Takes in a settled result; None is a failure."""
        self._at(rung, bracket).add(trial, score)

    def started(self, trial: int, bracket: int, rung: int) -> None:
        """Notes that a trial has begun a rung, so that it is not sent there again."""
        if rung > bracket:
            self._at(rung - 1, bracket).gone(trial)

    def ready(self) -> tuple[int, int] | None:
        """The trial to promote and the rung it goes to: highest rung first, then the best."""
        found: tuple[int, Entry] | None = None
        for (rung, _), results in self._rungs.items():
            if rung < self.ladder.top and (found is None or rung >= found[0]):
                entry = results.ready()
                if entry is not None and (found is None or (rung, entry) > found):
                    found = (rung, entry)
        return (-found[1][1], found[0] + 1) if found else None

    def standing(self, rung: int) -> Iterator[tuple[int, float]]:
        """Trial and score of all at a rung that have not gone on, best first."""
        lines = [results.staying() for (height, _), results in self._rungs.items() if height == rung]
        return ((-minus, score) for score, minus in heapq.merge(*lines, reverse=True))

    def promising(self, finalists: int = 10) -> list[tuple[int, int]]:
        """Trial and rung of every checkpoint worth keeping, most promising first.

        Args:
            finalists: How many of the fully trained are kept.
        """
        staying = [(rung, entry) for (rung, _), results in self._rungs.items() for entry in results.staying()]
        staying.sort(reverse=True)
        full = [item for item in staying if item[0] == self.ladder.top]
        return [(-entry[1], rung) for rung, entry in full[:finalists] + staying[len(full) :]]

    def _at(self, rung: int, bracket: int) -> Rung:
        if (rung, bracket) not in self._rungs:
            self._rungs[rung, bracket] = Rung(self.ladder.eta)
        return self._rungs[rung, bracket]


def _negative(entry: Entry) -> Entry:
    return (-entry[0], -entry[1])
