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
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from multiprocessing import reduction
from multiprocessing.connection import Connection
from multiprocessing.connection import wait as wait_for_connections
from pathlib import Path
from typing import Any

from headhunt.study.fork_server import ForkServer, take_preloaded, without_collection
from headhunt.study.requests import Request
from headhunt.study.worker_pool import Worker, WorkerDiedError, WorkerPool, default_workers

NICENESS = 5  # of workers, so that the machine stays usable


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
        self._server = take_preloaded(module := target.partition(":")[0]) or ForkServer(module)
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
