"""Servers of other tools, for tests: each is a process on loopback."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

BIN = Path(sys.prefix) / "bin"


@contextlib.contextmanager
def serve(program: str, *arguments: str, seconds: float = 120) -> Iterator[str]:
    """Run a program of this environment with a free port, and yield the address where it answers."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, str(BIN / program), *arguments, "--host", "127.0.0.1", "--port", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + seconds
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            assert server.poll() is None and time.monotonic() < deadline, f"{program} does not answer"
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(30)


def ask(address: str, path: str, body: dict | None = None) -> dict:
    """Return the JSON that a server sends for a path; with a body, for a POST."""
    connection = HTTPConnection(urlsplit(address).netloc, timeout=60)
    given = {} if body is None else {"body": json.dumps(body), "headers": {"content-type": "application/json"}}
    connection.request("POST" if given else "GET", path, **given)
    answer = connection.getresponse()
    assert answer.status == 200, answer.read()
    return json.load(answer)
