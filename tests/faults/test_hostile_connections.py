"""Raw sockets against a service: large heads, late bytes, clients that never read, and thousands of them."""

from __future__ import annotations

import contextlib
import resource
import socket
import sys
import time
from pathlib import Path

import pytest
from serving import exports_fixture, service_fixture  # noqa: F401

pytest.importorskip("fastapi")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads memory and descriptors from /proc")
TIMEOUT = 1.5  # read timeout of the fixture `service`
GET = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"


def memory(service) -> int:
    """Return the resident memory of the service in bytes."""
    return int(Path(f"/proc/{service.process.pid}/statm").read_text().split()[1]) * resource.getpagesize()


def descriptors(service) -> int:
    return len(list(Path(f"/proc/{service.process.pid}/fd").iterdir()))


def wait_for_descriptors(service, most: int, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while descriptors(service) > most:
        assert time.monotonic() < deadline, f"{descriptors(service)} descriptors are open, {most} before"
        time.sleep(0.1)


def connect(service) -> socket.socket:
    return socket.create_connection(("127.0.0.1", service.port), timeout=20)


@pytest.mark.parametrize(
    "head",
    [
        b"GET /health HTTP/1.1\r\n" + b"".join(b"x-%d: %s\r\n" % (i, b"v" * 100) for i in range(400)) + b"\r\n",
        b"GET /health HTTP/1.1\r\nx: " + b"v" * 40_000 + b"\r\n\r\n",
        b"GET /" + b"u" * 40_000 + b" HTTP/1.1\r\n\r\n",
    ],
    ids=["many", "long", "url"],
)
def test_heads_above_32_kb_are_refused(service, head):
    assert service.send(head).startswith(b"HTTP/1.1 431 "), "in one piece"
    pieces = [head[i : i + 5000] for i in range(0, len(head), 5000)]
    assert service.send(*pieces, pause=0.01).startswith(b"HTTP/1.1 431 "), "in pieces"
    assert service.send(GET[:-2] + b"x: " + b"v" * 30_000 + b"\r\n\r\n").startswith(b"HTTP/1.1 200 ")


def test_endless_heads_do_not_grow_memory(service):
    service.send(GET)
    before = memory(service)
    for filler in (b"x: " + b"v" * 65_536, b"x: y\r\n" * 10_000):
        with connect(service) as connection, contextlib.suppress(OSError):
            connection.sendall(b"GET / HTTP/1.1\r\n")
            for _ in range(500):
                connection.sendall(filler)
    assert memory(service) - before < 10 << 20


def test_late_bytes_between_requests_do_not_keep_a_connection(service):
    with connect(service) as connection:
        connection.sendall(GET)
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
        started = time.monotonic()
        with contextlib.suppress(OSError):
            while time.monotonic() - started < 15:
                connection.sendall(b"\r\n")  # allowed before a request, and not the beginning of one
                time.sleep(0.3)
        assert time.monotonic() - started < 10, "the connection was kept"


def test_clients_that_never_read_are_aborted(service):
    wait_for_descriptors(service, descriptors(service), 10)
    before = descriptors(service)
    clients = []
    for _ in range(10):
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", service.port))
        client.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            for _ in range(3000):
                client.send(b"GET /openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n")
        clients.append(client)
    deadline = time.monotonic() + 10  # a busy machine accepts them late
    while descriptors(service) < before + 5:
        assert time.monotonic() < deadline, "the connections were never open"
        time.sleep(0.02)
    wait_for_descriptors(service, before + 1, 30)
    for client in clients:
        client.close()
    assert service.request("/health")[0] == 200


def test_two_thousand_hostile_connections_leave_memory_and_descriptors_flat(service):
    files = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2000 if files[1] == resource.RLIM_INFINITY or files[1] > 2600 else max(100, files[1] - 600)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(files[0], min(wanted + 600, files[1])), files[1]))
    service.send(GET)
    time.sleep(0.5)
    before, opened = descriptors(service), memory(service)
    clients = []
    try:
        for number in range(wanted):
            client = connect(service)
            clients.append(client)
            with contextlib.suppress(OSError):
                client.sendall((b"", b"POST /predict HTTP/1.1\r\nx: ", b"x", GET)[number % 4])
        assert descriptors(service) <= before + 1100
        if wanted == 2000:  # this one is too many, and has sent nothing
            refusal = clients[1996].recv(65536)
            assert refusal.startswith(b"HTTP/1.1 503 ") and b"\r\nretry-after: 1\r\n" in refusal
        wait_for_descriptors(service, before + 2, 40)
        assert service.request("/health")[0] == 200, "with the clients still there"
    finally:
        for client in clients:
            client.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, files)
    assert memory(service) - opened < 40 << 20
