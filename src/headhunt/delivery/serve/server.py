"""The port of the service: uvicorn, which also refuses in JSON, gives up on silent clients, and stops in good order."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from headhunt.errors import HeadhuntError

if TYPE_CHECKING:
    from headhunt.delivery.serve.service import Service


def listen(host: str, port: int) -> socket.socket:
    """Takes the port, before anything is loaded; nobody can connect until the server runs.

    Raises:
        HeadhuntError: If it cannot be had.
    """
    taken = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        taken = socket.socket(family, kind, protocol)
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(address)
    except (OSError, OverflowError) as error:
        if taken:
            taken.close()
        reason = getattr(error, "strerror", None) or str(error)
        raise HeadhuntError(f"The service must be able to listen on {host}:{port}; found: {reason}.") from None
    return taken


class Connection(HttpToolsProtocol):
    """One client. What cannot be read as HTTP, or does not come, is answered as everything else is."""

    begun: float | None = None
    """Since when a request is expected or its head half sent."""

    def connection_made(self, transport: Any) -> None:
        """A client has come."""
        super().connection_made(transport)
        self.begun = self.loop.time()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone: nothing more is computed for it."""
        super().connection_lost(exc)
        scopes: list[Any] = [cycle.scope for cycle in (self.cycle, *(waiting for waiting, _ in self.pipeline)) if cycle]
        for scope in scopes:
            if answers := scope.get("headhunt.answers"):
                answers.cancel()

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        super().on_message_begin()
        self.begun = self.loop.time()

    def on_headers_complete(self) -> None:
        """The head of a request is whole; the application keeps the time from here."""
        self.begun = None
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The last byte of a request."""
        super().on_message_complete()
        if not self.pipeline:
            self.flow.resume_reading()  # paused by a long body; a client that leaves is only seen while reading

    def send_400_response(self, msg: str) -> None:
        """Answers what is not HTTP."""
        self.refuse(b"400 Bad Request", "This is not an HTTP request.")

    def refuse(self, status: bytes, message: str) -> None:
        """Ends the connection with a reason."""
        if self.transport.is_closing():
            return
        if self.cycle is None or self.cycle.response_complete:
            body = b'{"error":"%s"}' % message.encode()
            head = b"HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
            self.transport.write(head % (status, len(body)) + body)
        self.transport.close()


class Server(uvicorn.Server):
    """Listens until told to stop; then refuses what is new, finishes what has begun, and ends.

    Args:
        service: The application.
        backlog: Connections that may wait to be accepted.
        say: Told where it listens.
    """

    def __init__(self, service: Service, *, say: Callable[[str], None], backlog: int = 2048) -> None:
        self.service, self.say = service, say
        super().__init__(
            uvicorn.Config(
                service,
                http=Connection,
                ws="none",
                lifespan="on",
                backlog=backlog,
                access_log=False,
                log_level="warning",
                server_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=5,  # the service has drained by then
            )
        )
        self._stopping: asyncio.Task[None] | None = None
        self._watch: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begins to listen."""
        await super().startup(sockets)
        self._watch = asyncio.create_task(self._end_silent())
        host, port = (sockets or [])[0].getsockname()[:2]
        where = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        self.say(f"serving on {where} (a page to try it; programs ask {where}/predict)")

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Ends, with everything that could be answered answered."""
        if self._watch:
            self._watch.cancel()
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal ends in good order, the second at once."""
        if not self.started or self._stopping:
            self.should_exit = self.force_exit = True
            return
        if sig == signal.SIGINT:
            self._captured_signals.append(sig)  # so that Ctrl-C counts as stopped by the user
        asyncio.get_running_loop().call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        self.say("stopping: finishing what is queued")
        self._stopping = asyncio.get_running_loop().create_task(self._drain())

    async def _drain(self) -> None:
        await self.service.drain()
        self.should_exit = True

    async def _end_silent(self) -> None:
        """Closes connections whose request does not come."""
        slow = self.service.limits.slow
        while True:
            await asyncio.sleep(min(1.0, slow / 4))
            late = asyncio.get_running_loop().time() - slow
            for connection in list(self.server_state.connections):
                if isinstance(connection, Connection) and connection.begun is not None and connection.begun < late:
                    connection.refuse(b"408 Request Timeout", f"A request must arrive within {slow:g} s.")
