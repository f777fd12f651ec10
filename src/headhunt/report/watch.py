"""Show the report of a search as a live page, to the user of this machine alone."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from headhunt.errors import HeadhuntError
from headhunt.report.page import make
from headhunt.run.directory import RunDirectory
from headhunt.run.schema import RunError

TIMEOUT = 10.0  # seconds that a client may take to send its request
HEADERS = {
    "Content-Type": "text/html; charset=utf-8",
    "Content-Security-Policy": "frame-ancestors 'none'",  # the page itself has the rest of the policy
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",  # the address has the token
    "X-Content-Type-Options": "nosniff",
}


def watch(folder: str | Path, *, port: int = 0, notify: Callable[[str], None] = print) -> None:
    """Serve the report of a search on 127.0.0.1 until Ctrl-C; the open page follows the search.

    Args:
        folder: The run directory of a running or finished search.
        port: Port to listen on; 0 takes a free one.
        notify: Called with the address of the page, which has a token: nobody else can read it.

    Raises:
        HeadhuntError: If there is no run in the folder, or the port is taken.
    """
    page, token = LivePage(Path(folder)), secrets.token_urlsafe(24)
    page.text()
    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), _handler(page, token))
    except OSError as error:
        raise HeadhuntError(f"port= must be free; {port} is not ({error.strerror}). Use another, or 0.") from None
    with server, suppress(KeyboardInterrupt):
        notify(f"http://127.0.0.1:{server.server_port}/?token={token}")
        server.serve_forever()


class LivePage:
    """The report of a run as it is now, rendered again when the run has changed.

    Args:
        folder: The run directory.
    """

    def __init__(self, folder: Path) -> None:
        directory = RunDirectory(folder)
        self._folder, self._files = folder, (directory.ledger, directory.result, directory.ablation)
        self._rendered: tuple[list[int], str] | None = None

    def text(self) -> str:
        """Return the page.

        Raises:
            RunError: If there is no run in the folder.
        """
        changed = [file.stat().st_mtime_ns if file.exists() else 0 for file in self._files]
        if self._rendered is None or self._rendered[0] != changed:
            self._rendered = changed, make(self._folder, live=True)[1]
        return self._rendered[1]


def _handler(page: LivePage, token: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = TIMEOUT

        def do_GET(self) -> None:
            """Send the page to a client with the token."""
            given = parse_qs(urlsplit(self.path).query).get("token", [""])[0]
            if not hmac.compare_digest(given.encode(), token.encode()):
                self._send(HTTPStatus.FORBIDDEN, "Use the address that headhunt watch has printed, with its token.")
                return
            try:
                self._send(HTTPStatus.OK, page.text())
            except RunError as error:
                self._send(HTTPStatus.SERVICE_UNAVAILABLE, str(error))

        def _send(self, status: HTTPStatus, text: str) -> None:
            body = text.encode()
            self.send_response(status)
            kind = {} if status == HTTPStatus.OK else {"Content-Type": "text/plain; charset=utf-8"}
            for name, value in {**HEADERS, **kind, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Print no line for each request."""

    return Handler
