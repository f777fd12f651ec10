"""Where candidates are evaluated: a small protocol, and the executor that needs nothing but this process."""

from __future__ import annotations

import time
import traceback
from collections import deque
from collections.abc import Callable
from typing import Protocol

from headhunt.run.state import Outcome
from headhunt.study.requests import Request

Evaluate = Callable[[Request], Outcome]


class Executor(Protocol):
    """Takes requests and gives back what became of them, in any order."""

    workers: int
    """How many requests may be under way; may change while the search goes on."""

    def submit(self, request: Request) -> None:
        """Begins a request and returns at once."""

    def wait(self, timeout: float | None = None) -> list[tuple[Request, Outcome]]:
        """Waits until something has ended, or for so many seconds; a worker that died answers `lost`."""

    def stop(self) -> None:
        """Ends whatever is under way, and stays ready for more."""

    def close(self) -> None:
        """Gives back all it holds."""


class Inline:
    """Evaluates in this process, one after the other."""

    def __init__(self, evaluate: Evaluate) -> None:
        self.workers = 1
        self._evaluate = evaluate
        self._queue: deque[Request] = deque()

    def close(self) -> None:
        """Holds nothing."""

    def submit(self, request: Request) -> None:
        """Puts a request in line."""
        self._queue.append(request)

    def wait(self, timeout: float | None = None) -> list[tuple[Request, Outcome]]:
        """Evaluates the next request; a timeout cannot be kept, the deadline in the request can."""
        if not self._queue:
            return []
        request = self._queue.popleft()
        return [(request, guarded(self._evaluate, request))]

    def stop(self) -> None:
        """Forgets what is in line."""
        self._queue.clear()


def guarded(evaluate: Evaluate, request: Request) -> Outcome:
    """Evaluates a request; an exception becomes an outcome, so that one candidate never ends the search."""
    began = time.perf_counter()
    try:
        return evaluate(request)
    except MemoryError as error:
        return Outcome("memory", seconds=time.perf_counter() - began, extra={"message": str(error)})
    except Exception as error:
        extra = {"message": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()[-2000:]}
        return Outcome("error", seconds=time.perf_counter() - began, extra=extra)
