"""A clock for deadlines and durations that never jumps.

It shows seconds since 1970, as they were when this process began, and continues with the monotonic clock. Setting the
machine's clock therefore moves no deadline. Its times are valid within one process: others are sent durations.
"""

from __future__ import annotations

import time

_OFFSET = time.time() - time.monotonic()


def steady_time() -> float:
    """Return seconds since 1970 that never jump."""
    return time.monotonic() + _OFFSET
