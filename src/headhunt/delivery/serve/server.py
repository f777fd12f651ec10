"""The uvicorn server of a service: JSON refusals, read timeouts and a graceful shutdown."""

from __future__ import annotations

import asyncio
import ipaddress
import re
import signal
import socket
from collections.abc import Callable
from types import FrameType
from typing import Any

import httptools
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from headhunt.delivery.serve.service import OUTPUTS_KEY, Receive, Scope, Send, Service, send_json
from headhunt.delivery.serve.tasks import TaskServices
from headhunt.errors import HeadhuntError

MAX_HEAD = 32_768  # bytes of the request line and headers
MAX_CONNECTIONS = 1024


def listen(host: str, port: int) -> socket.socket:
    """Bind a socket to a port, before anything is loaded; clients cannot connect until the server runs.

    Raises:
        HeadhuntError: If the port is taken or not allowed.
    """
    bound = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except (OSError, OverflowError) as error:
        if bound:
            bound.close()
        reason = getattr(error, "strerror", None) or str(error)
        raise HeadhuntError(f"The service must be able to listen on {host}:{port}; found: {reason}.") from None
    return bound


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a server on this address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def accept_local(service: Service | TaskServices) -> Any:
    """Return the application that answers requests to a name of this machine only.

    Otherwise a page of another site could use the service: it lets its own name lead to this machine.
    """

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        hosts = [value.decode("latin-1") for name, value in scope.get("headers", ()) if name == b"host"]
        names = [host.rpartition(":")[0] if re.search(r":\d*$", host) else host for host in hosts]
        if all(is_loopback(name.strip("[]").lower()) for name in names):
            await service(scope, receive, send)
        else:
            message = "Without a token, this service answers requests to localhost only; the host was another."
            await send_json(send, 421, {"error": message}, unread=receive)

    return guarded


class HeadTooLargeError(httptools.HttpParserError):
    """The request line and headers of a request are too long."""


class Connection(HttpToolsProtocol):
    """The connection of one client, which refuses malformed, large and late HTTP in JSON.

    Nothing is known about the client before the headers have arrived, so their size, the time they take and the number
    of connections are limited.
    """

    waiting_since: float | None = None
    """Time since when the headers of a request are awaited."""
    running: Any = None
    """The request and response that are under way."""
    head_bytes = 0
    """Bytes of the request line and headers so far."""
    unsent, unsent_since = 0, 0.0
    """Bytes of responses that the client has not read, and the time since when it has read none."""

    def connection_made(self, transport: Any) -> None:
        """Start the read timeout; refuse a client too many."""
        super().connection_made(transport)
        self.waiting_since = self.loop.time()
        if self.limit_concurrency is not None and len(self.connections) >= self.limit_concurrency:
            self.refuse(b"503 Service Unavailable\r\nretry-after: 1", "Too many connections; try again later.")

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the client's forward passes that have not begun."""
        super().connection_lost(exc)
        self.mark_disconnected()
        cycles = (self.cycle, *(cycle for cycle, _ in self.pipeline))
        scopes: list[Any] = [cycle.scope for cycle in cycles if cycle]
        for scope in scopes:
            if outputs := scope.get(OUTPUTS_KEY):
                outputs.cancel()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self.running = cycle
        super()._start_asgi_task(cycle, app)

    def mark_disconnected(self) -> None:
        """Let the application send nothing more: a closed transport raises errors.

        With pipelined requests, uvicorn marks the last request and not the one that is under way.
        """
        for cycle in (self.running, self.cycle):
            if cycle is not None and not cycle.response_complete:
                cycle.disconnected = True

    def data_received(self, data: bytes) -> None:
        """Parse bytes, unless they make the headers of a request too long."""
        if self.transport.is_closing():
            return
        if self.waiting_since is None and (self.cycle is None or self.cycle.response_complete):
            self.waiting_since = self.loop.time()  # bytes between requests must not stop the clock
        before = self.head_bytes
        super().data_received(data)
        if self.waiting_since is not None and before == self.head_bytes:
            self.head_bytes += len(data)  # part of one long line, which the parser has not reported yet
        if self.head_bytes > MAX_HEAD:
            self.refuse_head()

    def on_message_begin(self) -> None:
        """Start the read timeout at the first byte of a request."""
        super().on_message_begin()
        self.waiting_since, self.head_bytes = self.loop.time(), 0

    def on_url(self, url: bytes) -> None:
        """Count the bytes of the request line."""
        self.count_head(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count the bytes of a header."""
        self.count_head(len(name) + len(value) + 4)
        super().on_header(name, value)

    def count_head(self, number: int) -> None:
        """Add to the bytes of the headers.

        Raises:
            HeadTooLargeError: If they are too many.
        """
        self.head_bytes += number
        if self.head_bytes > MAX_HEAD:
            raise HeadTooLargeError

    def on_headers_complete(self) -> None:
        """Stop the read timeout of the headers; the application limits the time of the body."""
        self.waiting_since, self.head_bytes = None, 0
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Resume reading after the last byte of a request."""
        super().on_message_complete()
        if not self.pipeline:
            self.flow.resume_reading()  # paused by a long body; a disconnect is only noticed while reading

    def send_400_response(self, msg: str) -> None:
        """Refuse bytes that are not HTTP, or too many of them."""
        if self.head_bytes > MAX_HEAD:
            self.refuse_head()
        else:
            self.refuse(b"400 Bad Request", "This is not an HTTP request.")

    def refuse_head(self) -> None:
        """Refuse a request whose headers are too long."""
        message = f"The headers of a request must have at most {MAX_HEAD} bytes."
        self.refuse(b"431 Request Header Fields Too Large", message)

    def refuse(self, status: bytes, message: str) -> None:
        """Send an error, unless a response is under way, and close the connection.

        Args:
            status: The status line, with further headers in lines of their own.
            message: What is wrong, for the client.
        """
        if self.transport.is_closing():
            return
        if self.cycle is None or self.cycle.response_complete:
            body = b'{"error":"%s"}' % message.encode()
            head = b"HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
            self.transport.write(head % (status, len(body)) + body)
        self.transport.close()

    def check_time(self, now: float, timeout: float) -> None:
        """Refuse a client that sends too slowly, and abort the connection of one that does not read.

        Args:
            now: The time of the event loop.
            timeout: Seconds that either may take.
        """
        unsent = self.transport.get_write_buffer_size()
        if not unsent or unsent < self.unsent or not self.unsent:
            self.unsent_since = now
        elif now - self.unsent_since > timeout:
            self.mark_disconnected()
            self.transport.abort()
        self.unsent = unsent
        if self.waiting_since is not None and now - self.waiting_since > timeout:
            self.refuse(b"408 Request Timeout", f"A request must arrive within {timeout:g} s.")


def max_connections() -> int:
    """Return the number of connections to accept: at most half of the file descriptors of this process."""
    try:
        import resource

        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    except ImportError:  # Windows
        files = MAX_CONNECTIONS * 2
    return MAX_CONNECTIONS if files < 0 else min(MAX_CONNECTIONS, max(16, files // 2))


class Server(uvicorn.Server):
    """A uvicorn server that finishes the queued requests before it stops.

    Args:
        service: The application.
        notify: Called with messages for the user.
        local: Answer requests to a name of this machine only.
        backlog: Connections that may wait to be accepted.
    """

    def __init__(
        self,
        service: Service | TaskServices,
        *,
        notify: Callable[[str], None],
        local: bool = False,
        backlog: int = 2048,
    ) -> None:
        self.service, self.notify = service, notify
        super().__init__(
            uvicorn.Config(
                accept_local(service) if local else service,
                http=Connection,
                ws="none",
                lifespan="on",
                backlog=backlog,
                access_log=False,
                log_level="error",  # uvicorn warns at every request that is no HTTP, and anyone can send many
                server_header=False,
                proxy_headers=False,
                limit_concurrency=max_connections(),
                timeout_graceful_shutdown=5,  # the service has drained by then
            )
        )
        self._drain_task: asyncio.Task[None] | None = None
        self._timeout_task: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen."""
        await super().startup(sockets)
        self._timeout_task = asyncio.create_task(self._close_late_connections())
        host, port = (sockets or [])[0].getsockname()[:2]
        url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        self.notify(f"serving on {url} (a page to try the model; the API is at {url}/predict)")

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop to listen and close all connections."""
        if self._timeout_task:
            self._timeout_task.cancel()
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop gracefully at the first signal, at once at the second."""
        if not self.started or self._drain_task:
            self.should_exit = self.force_exit = True
            return
        if sig == signal.SIGINT:
            # uvicorn records the signal and raises it again at the end, so that Ctrl-C ends as KeyboardInterrupt.
            super().handle_exit(sig, frame)
            self.should_exit = False  # not before the service has drained
        asyncio.get_running_loop().call_soon_threadsafe(self._start_draining)

    def _start_draining(self) -> None:
        self.notify("stopping: finishing the queued requests")
        self._drain_task = asyncio.get_running_loop().create_task(self._drain())

    async def _drain(self) -> None:
        await self.service.drain()
        self.should_exit = True

    async def _close_late_connections(self) -> None:
        """Close connections whose clients do not send the headers of a request, or do not read, in time."""
        timeout = self.service.limits.read_timeout
        while True:
            await asyncio.sleep(min(1.0, timeout / 4))
            now = asyncio.get_running_loop().time()
            for connection in list(self.server_state.connections):
                assert isinstance(connection, Connection)
                connection.check_time(now, timeout)
