"""The process that loads the libraries of local workers and forks them.

This module loads hardly anything itself, so that the process can be started before all else.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import os
import subprocess
import sys
import weakref
from collections.abc import Iterator
from multiprocessing import Pipe, reduction
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from headhunt.errors import ModelError

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
TOKENIZER_SECONDS = 60
TOKENIZER_BYTES = 3 << 30  # of address space
TRY = """
import sys
try:
    import resource
    resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]),) * 2)
except ImportError:  # Windows
    pass
from tokenizers import Tokenizer
tokenizer = Tokenizer.from_buffer(sys.stdin.buffer.read())
characters = "".join(map(chr, [*range(32, 127), *range(160, 592), 0x4E00, 0x3042, 0x1F600]))
tokenizer.encode_batch([characters, "a" * 64 + " " * 64 + "!", "a short text, and 2 words", ""])
"""
_harmless: set[bytes] = set()  # digests of tokenizers that were tried


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
        command = python_command(START, str(server.fileno()))
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


def python_command(program: str, *arguments: str) -> list[str]:
    """Return the command of a child process. It never loads a module from the current directory."""
    return [sys.executable, "-P", "-c", program, *arguments]


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process, unless it has ended."""
    process.kill()
    process.wait()


def check_tokenizer(path: Path) -> None:
    """Try a tokenizer that may be hostile in a process with limits: it can grow without end, or stop for ever.

    Args:
        path: Its tokenizer.json; a missing file is not checked.

    Raises:
        ModelError: If it fails on ordinary texts.
    """
    content = path.read_bytes() if path.is_file() else b""
    digest = hashlib.sha256(content).digest()
    if not content or digest in _harmless:
        return
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false"}
    try:
        done = subprocess.run(  # noqa: S603 - this interpreter, with a constant program
            python_command(TRY, str(TOKENIZER_BYTES)),
            input=content,
            capture_output=True,
            env=environment,
            timeout=TOKENIZER_SECONDS,
        )
        reason = "" if not done.returncode else done.stderr.decode(errors="replace").strip() or "it ran out of memory"
    except subprocess.TimeoutExpired:
        reason = f"it takes more than {TOKENIZER_SECONDS} s for a short text"
    if reason:
        raise ModelError(f"its tokenizer cannot be used: {reason.splitlines()[-1]}")
    _harmless.add(digest)


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
