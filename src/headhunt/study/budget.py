"""Own the time of a search: one deadline, of which a part is reserved for the final evaluation."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

LARGEST_RESERVE = 0.35  # fraction of the total time that may be reserved
MARGIN = 1.1  # estimates are multiplied by this to be sure that something fits


class TimeBudget:
    """The time of a search.

    Args:
        seconds: Seconds from now until everything is done; None is no limit.
        total: Seconds the search was given in all, if `seconds` is what is left of them after a resume.
        started: Seconds since 1970 from which the time counts; now by default.
        clock: Returns seconds since 1970.
    """

    def __init__(
        self,
        seconds: float | None,
        *,
        total: float | None = None,
        started: float | None = None,
        clock: Callable[[], float] = time.time,
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
