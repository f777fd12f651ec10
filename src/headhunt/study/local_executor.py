"""Run requests in processes of this machine, which are forked from one process that has loaded all libraries.

Loading torch and transformers takes seconds. One process loads them, once, and every worker is a fork of it that starts
at once and shares its memory. Linux only: other systems do not fork safely after such libraries are loaded.

A worker ends when its connection is closed, so none outlives a driver that is killed.
"""

from __future__ import annotations

import contextlib
import gc
import os
import queue
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from multiprocessing import Pipe, reduction
from multiprocessing.connection import Connection
from multiprocessing.connection import wait as wait_for_connections
from pathlib import Path
from typing import Any

from headhunt.study.requests import Request
from headhunt.study.worker_pool import Worker, WorkerDiedError, WorkerPool, default_workers

NICENESS = 5  # of workers, so that the machine stays usable
CLOSE_TIMEOUT = 5.0  # seconds for the fork server to end
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


@dataclass(eq=False)
class _Process:
    """A worker process."""

    number: int
    connection: Connection
    pid: int | None = None


class LocalExecutor(WorkerPool):
    """An executor that runs requests in processes of this machine.

    Args:
        target: Class of each worker's runner, as `module:name`.
        settings: Keyword arguments of the runner.
        workers: Number of workers. Defaults to one per core.
    """

    def __init__(self, target: str, settings: Mapping[str, Any], *, workers: int | None = None) -> None:
        self._target, self._settings = target, dict(settings)
        self._server = _take_preloaded(module := target.partition(":")[0]) or ForkServer(module)
        self._created = 0
        super().__init__(workers or default_workers())
        self.threads_alone = min(self.workers, default_workers())

    def close(self) -> None:
        """Kill all workers."""
        super().close()
        self._server.close()

    def pids(self) -> list[int]:
        """Return the process ids of the workers that are ready."""
        return [process.pid for process in [*self._idle, *self._jobs] if process.pid is not None]

    def _create(self) -> _Process:
        self._created += 1
        process = _Process(self._created, self._server.fork(self._created))
        with contextlib.suppress(OSError):
            process.connection.send((self._target, self._settings))
        return process

    def _send(self, worker: _Process, request: Request) -> None:
        with contextlib.suppress(OSError):
            worker.connection.send(request)

    def _poll(self, workers: Sequence[_Process], timeout: float | None) -> list[_Process]:
        by_connection = {worker.connection: worker for worker in workers}
        return [by_connection[each] for each in wait_for_connections(list(by_connection), timeout)]  # type: ignore[index]

    def _receive(self, worker: _Process) -> Any:
        try:
            received = worker.connection.recv()
        except (EOFError, OSError):
            raise WorkerDiedError("The worker process died.", in_creation=self._server.failed) from None
        if isinstance(received, str):
            raise WorkerDiedError(received, in_creation=True)
        if worker.pid is None:
            worker.pid = received
        return received

    def _ask_to_stop(self, worker: _Process) -> None:
        with contextlib.suppress(OSError):
            worker.connection.send(None)

    def _kill(self, worker: _Process) -> None:
        worker.connection.close()
        self._server.kill(worker.number)


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


def _take_preloaded(module: str) -> ForkServer | None:
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


def serve(driver: Connection) -> None:
    """Fork and kill workers as the driver says, until it ends. The main function of the fork server."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the driver decides when workers end
    with contextlib.suppress(Exception), without_collection():  # reported by the worker, which imports it again
        import_module(driver.recv())
    gc.freeze()  # what is loaded stays: workers need not look through it, and share its memory
    workers: dict[int, int] = {}  # process ids by number
    while True:
        try:
            command, number = driver.recv()
        except (EOFError, OSError):
            return
        for each, pid in list(workers.items()):
            if os.waitpid(pid, os.WNOHANG)[0]:
                del workers[each]
        if command == "fork":
            descriptor = reduction.recv_handle(driver)
            pid = os.fork()
            if not pid:
                driver.close()
                _work(Connection(descriptor))
            os.close(descriptor)
            workers[number] = pid
        elif number in workers:
            os.kill(workers[number], signal.SIGKILL)
            os.waitpid(workers.pop(number), 0)


def _work(driver: Connection) -> None:
    """Run the requests that the driver sends; the process ends when the connection does."""
    code = 1
    try:
        _set_name("headhunt start")
        os.nice(NICENESS)
        try:
            worker = Worker(*driver.recv())
        except Exception as error:  # of the runner: any library
            driver.send(f"{type(error).__name__}: {error}")
            return
        driver.send(worker.ready())
        requests: queue.SimpleQueue[Request] = queue.SimpleQueue()
        threading.Thread(target=_listen, args=(driver, worker, requests), daemon=True).start()
        while True:
            _set_name("headhunt idle")
            request = requests.get()
            _set_name("headhunt run")
            driver.send(worker.run(request))
    except (EOFError, OSError):
        code = 0  # the driver has ended
    finally:
        os._exit(code)


def _listen(driver: Connection, worker: Worker, requests: queue.SimpleQueue[Request]) -> None:
    """Pass requests on to the main thread, and the driver's word to stop to the worker."""
    while True:
        try:
            received = driver.recv()
        except (EOFError, OSError):
            os._exit(0)  # the driver has ended: nobody waits for what is running
        if received is None:
            worker.stop()
        else:
            requests.put(received)


def _set_name(name: str) -> None:
    """Set the name that `top` shows."""
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(name, encoding="ascii")
