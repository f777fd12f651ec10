"""Define the executor protocol and the executor that runs in the current process."""

from __future__ import annotations

import time
import traceback
from collections import deque
from collections.abc import Callable
from typing import Protocol

from headhunt.run.events import DISK
from headhunt.run.state import Outcome
from headhunt.storage import disk_failed
from headhunt.study.requests import Request

Evaluate = Callable[[Request], Outcome]
MAX_TRACEBACK_CHARS = 2000  # of an error's traceback in the ledger


class Executor(Protocol):
    """A pool of workers that runs requests and returns their outcomes in any order."""

    workers: int
    """Number of requests that may run at a time. It may change during a search."""
    threads_alone: int | None
    """Threads of a request that runs alone, for which idle workers leave their cores; None for the usual number."""

    def submit(self, request: Request) -> None:
        """Queue a request and return at once."""

    def wait(self, timeout: float | None = None) -> list[tuple[Request, Outcome]]:
        """Wait for finished requests, at most `timeout` seconds.

        The outcome of a request whose worker died is `lost`, and of one that met a failing disk `DISK`.
        """

    def stop(self) -> None:
        """Stop all running requests. The executor stays usable."""

    def close(self) -> None:
        """Release all resources."""


class InlineExecutor:
    """An executor that runs requests in the current process, one at a time."""

    def __init__(self, evaluate: Evaluate) -> None:
        self.workers = 1
        self.threads_alone: int | None = None
        self._evaluate = evaluate
        self._queue: deque[Request] = deque()

    def close(self) -> None:
        """Do nothing: there is nothing to release."""

    def submit(self, request: Request) -> None:
        """Queue a request."""
        self._queue.append(request)

    def wait(self, timeout: float | None = None) -> list[tuple[Request, Outcome]]:
        """Run the next request. The timeout is ignored; the request's own deadline applies."""
        if not self._queue:
            return []
        request = self._queue.popleft()
        return [(request, evaluate_safely(self._evaluate, request))]

    def stop(self) -> None:
        """Clear the queue."""
        self._queue.clear()


def evaluate_safely(evaluate: Evaluate, request: Request) -> Outcome:
    """Run a request and turn an exception into an outcome, so that one trial cannot end the search."""
    started = time.perf_counter()
    try:
        return evaluate(request)
    except MemoryError as error:
        return Outcome("memory", seconds=time.perf_counter() - started, extra={"message": str(error)})
    except Exception as error:
        if disk_failed(error):
            return Outcome(DISK, seconds=time.perf_counter() - started, extra={"message": str(error)})
        trace = traceback.format_exc()[-MAX_TRACEBACK_CHARS:]
        extra = {"message": f"{type(error).__name__}: {error}", "trace": trace}
        return Outcome("error", seconds=time.perf_counter() - started, extra=extra)
