"""Fuzz targets: each reads one kind of untrusted file or request and must return a value or a clear error.

`tests/faults/test_fuzz.py` runs a few hundred inputs, `benchmarks/faults_fuzz.py` many thousands.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from headhunt.errors import HeadhuntError
from headhunt.study.fork_server import TRY

MAX_SECONDS = 20.0  # of one input
MAX_GROWTH = 1 << 30  # bytes that the process may grow by
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# Events of `sys.audit` that change files, with the number of path arguments, and events that run other code.
CHANGES = {"os.mkdir": 1, "os.rmdir": 1, "os.remove": 1, "os.rename": 2, "os.link": 2, "os.symlink": 2, "os.chmod": 1}
CHANGES |= {"os.truncate": 1, "shutil.rmtree": 1}
RUNNING = {
    "subprocess.Popen",
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.fork",
    "pickle.find_class",
    "socket.connect",
}


class BrokenPromiseError(BaseException):
    """An input ran code, wrote outside its folder, took too long, or made a traceback."""


class Guard:
    """A watch over what reading an input does to this process and its files.

    Args:
        folder: The only folder that may be written to.
    """

    _active: Guard | None = None
    _installed = False

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder.resolve())
        self.broken: list[str] = []
        self.slowest = 0.0
        self._memory = peak_memory() + MAX_GROWTH

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        """Watch one input.

        Raises:
            BrokenPromiseError: If it did something that no input may do.
        """
        if not Guard._installed:
            sys.addaudithook(Guard._audit)
            Guard._installed = True
        started = time.perf_counter()
        previous = signal.signal(signal.SIGALRM, self._expire)
        signal.setitimer(signal.ITIMER_REAL, MAX_SECONDS)
        Guard._active = self
        try:
            yield
        finally:
            Guard._active = None
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, previous)
            self.slowest = max(self.slowest, time.perf_counter() - started)
        if peak_memory() > self._memory:
            raise BrokenPromiseError(f"the process grew to {peak_memory() >> 20} MB")
        if self.broken:
            raise BrokenPromiseError("; ".join(self.broken[:5]))

    def _expire(self, *_: Any) -> None:
        raise BrokenPromiseError(f"an input took more than {MAX_SECONDS:g} s")

    @staticmethod
    def _audit(event: str, arguments: tuple[Any, ...]) -> None:
        if Guard._active is not None and event in RUNNING | CHANGES.keys() | {"open", "exec"}:
            Guard._active._check(event, arguments)

    def _check(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in RUNNING:
            if TRY in str(arguments):  # a tokenizer is tried in a process with limits
                return
            self.broken.append(f"{event} {arguments!r:.200}")
        elif event == "exec":
            if getattr(arguments[0], "co_filename", "").startswith(self.folder):
                self.broken.append(f"code of {arguments[0].co_filename} ran")
        elif event == "open":
            path, _, flags = arguments
            if isinstance(path, str | bytes | os.PathLike) and (flags or 0) & WRITING:
                self._check_path(event, path)
        else:
            for path in arguments[: CHANGES[event]]:
                if isinstance(path, str | bytes | os.PathLike) and os.path.isabs(path):  # noqa: PTH117 - may be bytes
                    self._check_path(event, path)

    def _check_path(self, event: str, path: Any) -> None:
        resolved = os.path.realpath(os.fsdecode(path))
        inside = resolved == self.folder or resolved.startswith(self.folder + os.sep)
        if not inside and resolved != os.devnull and "__pycache__" not in resolved:
            self.broken.append(f"{event} of {resolved}")


def peak_memory() -> int:
    """Return the largest resident memory of this process so far, in bytes."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


@dataclass
class Tally:
    """The results of fuzzing a target."""

    inputs: int = 0
    results: Counter[str] = field(default_factory=Counter)
    slowest: float = 0.0


@dataclass(frozen=True)
class Target:
    """A kind of input and the code that reads it.

    Args:
        name: Name of the target.
        prepare: Called once with an empty folder; returns the strategy of inputs and the function that reads one. The
            function returns normally or raises `HeadhuntError`.
    """

    name: str
    prepare: Callable[[Path], tuple[st.SearchStrategy[Any], Callable[[Any], object]]]


def fuzz(target: Target, folder: Path, inputs: int, number: int = 0) -> Tally:
    """Read many inputs.

    Args:
        target: The kind of input.
        folder: An empty folder.
        inputs: Number of inputs.
        number: Seed.

    Raises:
        BaseException: For the first input that is neither read nor refused with a message.
    """
    folder = folder.resolve()
    (folder / "tmp").mkdir()
    tally = Tally()
    with (
        mock.patch.dict(os.environ, HEADHUNT_CACHE=str(folder / "cache")),
        mock.patch.object(tempfile, "tempdir", str(folder / "tmp")),
    ):
        strategy, read = target.prepare(folder)
        guard = Guard(folder)

        @seed(number)
        @settings(
            max_examples=inputs,
            deadline=None,
            database=None,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        )
        @given(strategy)
        def check(data: Any) -> None:
            tally.inputs += 1
            with guard.watch():
                try:
                    read(data)
                    tally.results["accepted"] += 1
                except HeadhuntError as error:
                    tally.results["refused"] += 1
                    if len(str(error)) < 10:
                        raise BrokenPromiseError(f"the message {str(error)!r} says too little") from error

        check()
        tally.slowest = guard.slowest
    return tally
