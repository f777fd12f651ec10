"""The process that loads the libraries of local workers and forks them.

This module loads hardly anything itself, so that the process can be started before all else.
"""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
import sys
import weakref
from collections.abc import Iterator
from multiprocessing import Pipe, reduction
from multiprocessing.connection import Connection
from typing import Any

CLOSE_TIMEOUT = 5.0  # seconds for the process to end
# The path of the modules comes first, since the driver may have changed its own.
START = """
import sys
from multiprocessing.connection import Connection
driver = Connection(int(sys.argv[1]))
sys.path[:] = driver.recv()
from headhunt.study.local_executor import serve
serve(driver)
"""


class ForkServer:
    """A process that loads a module and then forks workers.

    Args:
        module: Module to load.
    """

    def __init__(self, module: str) -> None:
        self.module = module
        self._start()

    def _start(self) -> None:
        self._driver, server = Pipe()
        # A worker has one core. Libraries that start threads when they are loaded must know.
        environment = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **os.environ}
        command = [sys.executable, "-c", START, str(server.fileno())]
        quiet: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        # In a session of its own, Ctrl-C in the terminal reaches the driver only, which then stops the workers.
        self._process = subprocess.Popen(  # noqa: S603 - this interpreter, with a constant program
            command, pass_fds=[server.fileno()], env=environment, start_new_session=True, **quiet
        )
        # Without a search, it is not worth waiting until everything is loaded.
        self._finalizer = weakref.finalize(self, _end, self._process)
        server.close()
        self._send(sys.path, self.module)

    def fork(self, number: int) -> Connection:
        """Start a worker and return the connection to it."""
        ours, theirs = Pipe()
        if not self.alive:
            self._driver.close()
            self._start()  # it was killed, or there was no memory for it
        self._send(("fork", number))
        with contextlib.suppress(OSError), theirs:
            reduction.send_handle(self._driver, theirs.fileno(), self._process.pid)
        return ours

    def kill(self, number: int) -> None:
        """Kill a worker."""
        self._send(("kill", number))

    @property
    def alive(self) -> bool:
        """Return whether the process runs."""
        return self._process.poll() is None

    @property
    def failed(self) -> bool:
        """Return whether the process has ended by itself, because a module cannot be loaded."""
        return (self._process.poll() or 0) > 0

    def close(self) -> None:
        """End the process, after it has killed the workers it was told to kill."""
        self._driver.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(CLOSE_TIMEOUT)
        self._finalizer()

    def _send(self, *messages: Any) -> None:
        with contextlib.suppress(OSError):  # it has died: the connections of its workers are closed too
            for message in messages:
                self._driver.send(message)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process, unless it has ended."""
    process.kill()
    process.wait()


def is_available() -> bool:
    """Return whether workers can be forked on this system."""
    return sys.platform == "linux" and bool(sys.executable)


_preloaded: list[ForkServer] = []


def preload(target: str) -> None:
    """Start loading the libraries of a runner, beside what this process does; the next executor uses them.

    Args:
        target: Class of the runner, as `module:name`.
    """
    if not _preloaded:
        _preloaded.append(ForkServer(target.partition(":")[0]))


def take_preloaded(module: str) -> ForkServer | None:
    """Return the process that has loaded this module, if there is one and it lives."""
    server = _preloaded.pop() if _preloaded else None
    if server is None or (server.module == module and server.alive):
        return server
    server.close()
    return None


@contextlib.contextmanager
def without_collection() -> Iterator[None]:
    """Collect no garbage while libraries are loaded. They take a sixth less time then, and leave hardly any."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
