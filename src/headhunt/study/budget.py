"""Own the time of a search: one deadline, of which a part is reserved for the final evaluation."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from headhunt.errors import HeadhuntError
from headhunt.run.clock import steady_time

INTERRUPTED_SECONDS = 60.0  # for the final evaluation after Ctrl-C; `headhunt verdict` takes as long as it needs
LARGEST_RESERVE = 0.7  # fraction of the total time that may be reserved
MARGIN = 1.1  # estimates are multiplied by this to be sure that something fits


@dataclass(frozen=True)
class Limits:
    """The limits of a search; the first one reached ends it."""

    time: float | None = None
    """Seconds from now."""
    trials: int | None = None
    """Maximum number of trials in the run; those that have earned it are still promoted to the top rung."""
    target: float | None = None
    """A score of a fully trained trial."""

    def __post_init__(self) -> None:
        for name in ("time", "trials"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise HeadhuntError(f"{name} must be above 0; found {value}.")


class TimeBudget:
    """The time of a search.

    Args:
        seconds: Seconds from now until everything is done; None is no limit.
        total: Seconds the search was given in all, if `seconds` is what is left of them after a resume.
        started: Seconds since 1970 from which the time counts; now by default.
        clock: Returns seconds since 1970 that never jump.
    """

    def __init__(
        self,
        seconds: float | None,
        *,
        total: float | None = None,
        started: float | None = None,
        clock: Callable[[], float] = steady_time,
    ) -> None:
        self._clock = clock
        self.deadline = None if seconds is None else (clock() if started is None else started) + seconds
        self.total = total or seconds or 0.0
        self._reserved = 0.0

    def now(self) -> float:
        """Return the time in seconds since 1970."""
        return self._clock()

    def left(self) -> float:
        """Return the seconds until the deadline."""
        return math.inf if self.deadline is None else self.deadline - self._clock()

    def shorten(self, seconds: float) -> None:
        """Move the deadline to so many seconds from now, unless it is earlier."""
        self.deadline = self._clock() + min(seconds, self.left())

    def reserve(self, seconds: float, largest: float = LARGEST_RESERVE) -> None:
        """Reserve time for the final evaluation, up to a fraction of the total."""
        self._reserved = min(largest * self.total, seconds)

    @property
    def search_deadline(self) -> float | None:
        """Seconds since 1970 at which searching ends and the final evaluation begins."""
        return None if self.deadline is None else self.deadline - self._reserved

    def search_is_over(self, grace: float = 0.0) -> bool:
        """Return whether the time for searching is used up, and `grace` seconds more."""
        return self.search_deadline is not None and self._clock() >= self.search_deadline + grace

    def fits(self, seconds: float | None) -> bool:
        """Return whether work of this length ends before the search does; True if its length is unknown."""
        if seconds is None or self.search_deadline is None:
            return True
        return self._clock() + MARGIN * seconds <= self.search_deadline
