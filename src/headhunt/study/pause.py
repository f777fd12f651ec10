"""Wait before work is repeated that failed for no fault of its candidate, such as on a full disk."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from pathlib import Path

from headhunt.errors import HeadhuntError
from headhunt.storage import disk_failed

DISK_DELAY, STOP_DELAY = 1.0, 0.1  # seconds before the first repetition; each further one waits twice as long
LONGEST_DELAY = 30.0  # seconds
POLL = 0.5  # seconds between checks for a stop
PATIENCE = 600.0  # seconds that a disk may fail before the search ends


class DiskError(HeadhuntError, OSError):
    """The disk of a run is full or failing. Nothing is lost: the search can be resumed."""


@dataclass
class _Failure:
    since: float
    delay: float


class Pause:
    """The waiting time of a search whose disk fails or whose workers stop too early.

    Args:
        place: The run directory, for messages.
        notify: Called with a message for the user when a pause begins.
    """

    def __init__(self, place: Path, notify: Callable[[str], None]) -> None:
        self._place, self._notify = place, notify
        self._until = 0.0
        self._given_up = False
        self._failures: dict[Hashable, _Failure] = {}
        self.problem: str | None = None
        """A message for the user while the disk fails."""

    @property
    def active(self) -> bool:
        """True until the work may be repeated."""
        return time.monotonic() < self._until

    def disk_failed(self, work: Hashable, reason: str) -> None:
        """Begin a pause, because the disk failed.

        Args:
            work: Identifies what failed, so that repeated failures are noticed.
            reason: The error.

        Raises:
            DiskError: If this work has failed for long.
        """
        if time.monotonic() - self._begin(work, DISK_DELAY).since > PATIENCE:
            self._given_up = True
            raise self._error(reason)
        self.problem = f"paused, the disk fails: {reason}. Free some space; the search then continues by itself"
        self._notify(self.problem)

    def stopped_early(self, work: Hashable) -> None:
        """Begin a pause, because a worker returned without a result while there was time."""
        self._begin(work, STOP_DELAY)

    def succeeded(self, work: Hashable) -> None:
        """Forget the failures of work that succeeded."""
        if self._failures.pop(work, None) is not None and not self._failures:
            self.problem = None

    def repeat(self, write: Callable[[], None], is_over: Callable[[], bool]) -> None:
        """Write to the disk, and again after a pause while it fails, unless the search is to end.

        Args:
            write: Writes, and raises OSError if the disk fails.
            is_over: Whether the search is to end.

        Raises:
            DiskError: If the disk has failed for long, or the search is to end.
        """
        while True:
            try:
                write()
                self.succeeded("driver")
                return
            except OSError as error:
                if not disk_failed(error):
                    raise
                if self._given_up or is_over():
                    raise self._error(str(error)) from error
                self.disk_failed("driver", str(error))
            while self.active and not is_over():
                self.sleep(POLL)

    def sleep(self, longest: float) -> None:
        """Sleep until the pause is over, so many seconds at most."""
        time.sleep(max(0.0, min(longest, self._until - time.monotonic())))

    def _error(self, reason: str) -> DiskError:
        return DiskError(
            f"{self._place} must be on a disk that can be written to; writing fails: {reason}. "
            f"Free some space, then continue: headhunt resume {self._place}"
        )

    def _begin(self, work: Hashable, first_delay: float) -> _Failure:
        now = time.monotonic()
        earlier = self._failures.get(work)
        delay = first_delay if earlier is None else min(LONGEST_DELAY, 2 * earlier.delay)
        failure = self._failures[work] = _Failure(now if earlier is None else earlier.since, delay)
        self._until = max(self._until, now + delay)
        return failure
