"""Fit the number of steps of a training run to its deadline, while it runs."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Sequence

EARLIEST = 0.1  # share of the planned steps before which the number is kept, unless the time is clearly too short
INTERVALS, SECONDS = 50, 1.0  # how often the number is checked: so often in the planned steps, or after these seconds
MARGIN = 1.05  # on the median time of the latest steps
RAISE = 1.1  # a number that was lowered is raised again if so many times as many steps can be reached
WINDOW, FEWEST = 20, 3  # latest steps whose time counts, and the fewest


class Pace:
    """The progress of a training run whose number of steps may change.

    Progress goes on from where it is: schedules that read it end where they would have ended. The same cuts give the
    same training run.

    Attributes:
        planned: Number of steps that were planned.
        total: Number of steps as it is now.
        cuts: Every change, as the step at which it was made and the new number.

    Args:
        steps: Number of steps.
        cuts: Changes to begin with, as a checkpoint has them.
    """

    def __init__(self, steps: int, cuts: Sequence[Sequence[int]] = ()) -> None:
        self.planned = self.total = steps
        self.cuts: list[tuple[int, int]] = []
        self._step, self._progress = 0, 0.0
        self._recent: deque[float] = deque(maxlen=WINDOW)
        self._since = 0.0
        for step, total in cuts:
            self._cut(step, total)

    def progress(self, step: int) -> float:
        """Return the progress at a step, from 0 to 1."""
        return self._progress + (1 - self._progress) * (step - self._step) / (self.total - self._step)

    def follow(self, step: int, seconds: float, left: float) -> None:
        """Take in how long a step took, and change the number of steps if another one fits the time.

        Args:
            step: Number of steps so far.
            seconds: Time of the last one.
            left: Seconds that are left for the others.
        """
        self._recent.append(seconds)
        self._since += seconds
        if len(self._recent) < FEWEST or (step % max(1, self.planned // INTERVALS) and self._since < SECONDS):
            return
        median = statistics.median(self._recent)
        if step < EARLIEST * self.planned and left > 2 * EARLIEST * self.planned * median:
            return
        self._since = 0.0
        reachable = step + max(1, math.floor(left / (MARGIN * median)) if median > 0 else self.planned)
        total = min(self.planned, reachable)
        if step < self.total and (total < self.total or total > RAISE * self.total):
            self._cut(step, total)

    def _cut(self, step: int, total: int) -> None:
        self._progress, self._step, self.total = self.progress(step), step, total
        self.cuts.append((step, total))
