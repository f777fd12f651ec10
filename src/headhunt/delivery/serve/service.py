"""The ASGI application that serves one model.

FastAPI documents the service and handles every path but `/predict`. `/predict` is handled before FastAPI, which adds
about 0.1 ms to a request and cannot refuse one before it has read it. The same pydantic models validate and document
requests. Every response is JSON: predictions, or {"error": message}.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import math
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import orjson

from headhunt.delivery.onnx.runtime import Model
from headhunt.delivery.serve.batching import Batcher
from headhunt.delivery.serve.limits import Limits
from headhunt.delivery.serve.metrics import Metrics
from headhunt.delivery.serve.pages import build_pages
from headhunt.delivery.serve.schemas import RefusedError, RequestSchema
from headhunt.errors import HeadhuntError

log = logging.getLogger("headhunt.serve")

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

OUTPUTS_KEY = "headhunt.outputs"
"""Key of the ASGI scope with the future of a request's outputs; the server cancels it if the client disconnects."""
MAX_BUFFERED = 64_000_000  # bytes of partly received requests, of all clients together
MAX_DIGITS = 18  # of a content length
DISCARD_SECONDS = 2.0  # time to read and discard the body of a refused request, so that the client sees the response
CLIENT_CLOSED_REQUEST = 499  # the status that proxies log if the client disconnects before the response
TOKEN_MESSAGE = 'The request must have the token of this service: "Authorization: Bearer TOKEN".'  # noqa: S105 - a message, not a secret
TOKEN_HEADER = (b"www-authenticate", b"Bearer")
PUBLIC = ("/", "/docs", "/openapi.json", "/health")
"""Paths that need no token."""


class DisconnectedError(Exception):
    """The client disconnected before the response."""


class Service:
    """The ASGI application around one model.

    Args:
        model: The model; with several instances, forward passes run in parallel.
        model_instances: Number of parallel forward passes.
        max_batch: Texts of a forward pass.
        limits: Limits on requests.
        token: Token that clients must send, if any.
    """

    def __init__(
        self,
        model: Model,
        *,
        model_instances: int = 1,
        max_batch: int = 32,
        limits: Limits | None = None,
        token: str | None = None,
    ) -> None:
        check_token(token)
        self.model, self.limits = model, limits or Limits()
        self.draining = False
        self.metrics = Metrics(
            queue_length=lambda: self.batcher.queued,
            is_ready=self.is_ready,
            restarts=lambda: self.batcher.restarts,
        )
        self.batcher = Batcher(
            model, model_instances=model_instances, max_batch=max_batch, observe=self.metrics.batches.observe
        )
        outputs = sum(task.width for task in model.tasks) or len(model.labels) or 1
        self._schema = RequestSchema(model.pair, self.limits, outputs)
        self._authorization = None if token is None else f"Bearer {token}".encode()
        self._buffered = 0  # bytes of partly received requests
        self._pending = 0  # requests to /predict without a response
        self._pages = build_pages(
            model,
            self._schema,
            needs_token=token is not None,
            is_ready=self.is_ready,
            render_metrics=self.metrics.render,
        )

    def is_ready(self) -> bool:
        """Return whether requests are answered: not while shutting down, nor while a thread is dead or stalled."""
        ready = self.batcher.working and not self.batcher.is_stalled(self.limits.max_wait)
        if not self.draining:
            self.batcher.replace_dead_threads()  # reported once, then repaired
        return ready and not self.draining

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request, or the startup and shutdown of the server."""
        if scope["type"] == "http":
            path = scope["path"].removeprefix(scope.get("root_path", ""))  # as Starlette does, and once
            if path == "/predict":
                await self._predict(scope, receive, send)
            elif path not in PUBLIC and not self._authorized(scope["headers"]):
                await send_json(send, 401, {"error": TOKEN_MESSAGE}, [TOKEN_HEADER], receive)
            else:
                await self._pages(scope, _no_body, send)  # type: ignore[arg-type]
        elif scope["type"] == "lifespan":
            while (await receive())["type"] == "lifespan.startup":
                self.batcher.start()
                await send({"type": "lifespan.startup.complete"})
            self.batcher.close()
            await send({"type": "lifespan.shutdown.complete"})

    async def drain(self) -> None:
        """Refuse new requests and wait until pending ones have a response, or the timeout has passed."""
        self.draining = True
        deadline = time.monotonic() + self.limits.timeout_graceful_shutdown
        while self._pending and time.monotonic() < deadline:
            await asyncio.sleep(0.02)

    async def _predict(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = time.perf_counter()
        self._pending += 1
        try:
            response = await self._respond(scope, receive)
        except RefusedError as refusal:
            self.metrics.refused.labels(refusal.reason).inc()
            status = refusal.status
            unread = None if refusal.body_read else receive
            await send_json(send, status, {"error": refusal.message}, list(refusal.headers), unread)
        except DisconnectedError:
            status = CLIENT_CLOSED_REQUEST
        except Exception:
            log.exception("a request failed")
            status = 500
            await send_json(send, status, {"error": "The model failed on this request; the log has the details."})
        else:
            status = 200
            await send_json(send, status, response)
        finally:
            self._pending -= 1
        self.metrics.requests.labels(status).inc()
        self.metrics.seconds.observe(time.perf_counter() - started)

    async def _respond(self, scope: Scope, receive: Receive) -> dict[str, Any]:
        """Return the predictions for a request."""
        limits, batcher = self.limits, self.batcher
        if scope["method"] != "POST":
            message = f"/predict takes POST; found {scope['method'][:20]}."
            raise RefusedError(405, message, "method", (b"allow", b"POST"), body_read=False)
        request = self._schema.parse(await self._read(scope["headers"], receive))
        if self.draining:
            raise RefusedError(503, "The service is shutting down; try again.", "draining", (b"retry-after", b"5"))
        if batcher.queued + len(request.texts) > limits.max_queue:
            raise RefusedError(429, "The queue is full; try again later.", "queue_full", self._retry_after())
        answer = partial(self.model.prediction, top_k=request.top_k)  # in the thread of the model
        future = batcher.submit(request.texts, request.texts_b, answer)
        scope[OUTPUTS_KEY] = future
        try:
            async with asyncio.timeout(limits.max_wait):
                predictions = await future
        except asyncio.CancelledError:
            if asyncio.current_task().cancelling():  # type: ignore[union-attr]
                raise
            raise DisconnectedError from None
        except TimeoutError:
            message = f"No prediction within {limits.max_wait:g} s; try again later."
            raise RefusedError(503, message, "timeout", self._retry_after()) from None
        self.metrics.texts.inc(len(request.texts))
        return predictions[0] if request.single else {"predictions": predictions}

    async def _read(self, headers: Headers, receive: Receive) -> bytearray:
        """Read the body of a request.

        Raises:
            RefusedError: If the client is not authorized, or the body has another type, is too long or too slow.
        """
        self._check_headers(headers)
        limits, body = self.limits, bytearray()
        try:
            async with asyncio.timeout(limits.read_timeout):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise DisconnectedError
                    chunk = message.get("body", b"")
                    body += chunk
                    self._buffered += len(chunk)
                    if len(body) > limits.max_body:
                        raise self._too_large()
                    if not message.get("more_body"):
                        return body
                    if self._buffered > MAX_BUFFERED:
                        reason = "Too many long requests at once; try again later."
                        raise RefusedError(503, reason, "memory", self._retry_after(), body_read=False)
        except TimeoutError:
            reason = f"A request must arrive within {limits.read_timeout:g} s."
            raise RefusedError(408, reason, "slow", body_read=False) from None
        finally:
            self._buffered -= len(body)

    def _check_headers(self, headers: Headers) -> None:
        if not self._authorized(headers):
            raise RefusedError(401, TOKEN_MESSAGE, "token", TOKEN_HEADER, body_read=False)
        content_type = length = b""
        for name, value in headers:
            if name == b"content-type":
                content_type = value
            elif name == b"content-length":
                length = value
        if content_type.split(b";")[0].strip().lower() != b"application/json":
            # This also keeps pages of other sites from sending requests: browsers let them send plain text, not JSON.
            found = content_type[:60].decode("latin-1") or "none"
            message = f"The content type must be application/json; found {found}."
            raise RefusedError(415, message, "malformed", body_read=False)
        if length and not (length.isdigit() and len(length) <= MAX_DIGITS):
            raise RefusedError(400, "The content length must be a number of bytes.", "malformed", body_read=False)
        if length and int(length) > self.limits.max_body:
            raise self._too_large()

    def _too_large(self) -> RefusedError:
        message = f"A request must have at most {self.limits.max_body} bytes."
        return RefusedError(413, message, "too_large", body_read=False)

    def _authorized(self, headers: Headers) -> bool:
        if self._authorization is None:
            return True
        value = next((value for name, value in headers if name == b"authorization"), b"")
        return hmac.compare_digest(value, self._authorization)

    def _retry_after(self) -> tuple[bytes, bytes]:
        seconds = math.ceil(self.batcher.queued * self.batcher.seconds_per_text)
        return b"retry-after", str(min(max(seconds, 1), 60)).encode()


async def _no_body() -> dict[str, Any]:
    """Stand for the body of a request to a page, which is never read."""
    return {"type": "http.request", "body": b"", "more_body": False}


def check_token(token: str | None) -> None:
    """Check a token; None means that clients need none.

    Raises:
        HeadhuntError: If it is empty, or has characters that no header can carry.
    """
    if token is not None and not (token.isascii() and token.isprintable() and token.strip()):
        raise HeadhuntError("must be of printable ASCII characters and not empty. Pass None for no token.", "token")


async def send_json(
    send: Send, status: int, data: Any, headers: Headers | None = None, unread: Receive | None = None
) -> None:
    """Send a JSON response.

    Args:
        send: The ASGI callable.
        status: The HTTP status.
        data: The response.
        headers: Additional headers.
        unread: Receives the rest of the request if it was not read to its end; the connection is then closed.
    """
    body = orjson.dumps(data)
    all_headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), *(headers or [])]
    if unread is not None:
        all_headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": all_headers})
    if unread is not None:
        # Closing while the client still sends would reset the connection, and the client would lose the response.
        await send({"type": "http.response.body", "body": body, "more_body": True})
        try:
            async with asyncio.timeout(DISCARD_SECONDS):
                while (message := await unread())["type"] == "http.request" and message.get("more_body"):
                    pass
        except TimeoutError:
            pass
        body = b""
    await send({"type": "http.response.body", "body": body})
