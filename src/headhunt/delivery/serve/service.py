"""A model behind HTTP: `/predict`, `/health`, `/metrics`, and a page to try them.

FastAPI describes the service and answers what is asked rarely; `/predict` is answered before it, since its layers cost
as much as a short text does. Whatever a client sends, it gets JSON back: an answer, or {"error": what must hold, what
was found}. What is too much is refused before it is read, and when too much is waiting the client is told to come back.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import logging
import math
import os
import subprocess
import sys
import tempfile
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from headhunt.delivery.serve.batching import Batcher
from headhunt.delivery.serve.pages import describe
from headhunt.delivery.serve.schemas import Limits, RefusedError, parse
from headhunt.errors import HeadhuntError, ModelError
from headhunt.run.directory import not_a_model

log = logging.getLogger("headhunt.serve")

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

JSON_TYPE = (b"content-type", b"application/json")
HELD = 64_000_000  # bytes of requests that have arrived in part, of all clients together
LINGER = 2.0  # seconds a refused body is read and thrown away, so that the client gets to see the answer


# ---------------------------------------------------------------------------------------------- what is counted


class Histogram:
    """Counts by upper bound, as Prometheus takes them."""

    def __init__(self, name: str, help_: str, bounds: Sequence[float]) -> None:
        self.name, self.help, self.bounds = name, help_, bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Counts one."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def lines(self) -> list[str]:
        """The text Prometheus reads."""
        found, total = [f"# HELP {self.name} {self.help}", f"# TYPE {self.name} histogram"], 0
        for bound, count in zip([*map(str, self.bounds), "+Inf"], self.counts, strict=True):
            total += count
            found.append(f'{self.name}_bucket{{le="{bound}"}} {total}')
        return [*found, f"{self.name}_sum {self.sum}", f"{self.name}_count {total}"]


class Metrics:
    """What `/metrics` tells."""

    def __init__(self) -> None:
        self.requests: Counter[int] = Counter()
        self.refused: Counter[str] = Counter()
        self.texts = 0
        bounds = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
        self.seconds = Histogram("headhunt_request_seconds", "Seconds from request to answer.", bounds)
        self.batches = Histogram("headhunt_batch_size", "Texts of a forward pass.", (1, 2, 4, 8, 16, 32, 64, 128))

    def page(self, queued: int, ready: bool) -> str:
        """Everything in the text format of Prometheus."""
        lines = [
            "# HELP headhunt_requests_total Requests to /predict by status.",
            "# TYPE headhunt_requests_total counter",
        ]
        lines += [f'headhunt_requests_total{{code="{code}"}} {n}' for code, n in sorted(self.requests.items())]
        lines += ["# HELP headhunt_refused_total Refused requests by reason.", "# TYPE headhunt_refused_total counter"]
        lines += [f'headhunt_refused_total{{reason="{reason}"}} {n}' for reason, n in sorted(self.refused.items())]
        lines += ["# HELP headhunt_texts_total Texts answered.", "# TYPE headhunt_texts_total counter"]
        lines += [f"headhunt_texts_total {self.texts}"]
        lines += ["# HELP headhunt_queue_length Texts waiting or being answered.", "# TYPE headhunt_queue_length gauge"]
        lines += [f"headhunt_queue_length {queued}"]
        lines += ["# HELP headhunt_ready Whether requests are taken.", "# TYPE headhunt_ready gauge"]
        lines += [f"headhunt_ready {int(ready)}", *self.seconds.lines(), *self.batches.lines()]
        return "\n".join(lines) + "\n"


# ---------------------------------------------------------------------------------------------- the service


class Service:
    """The ASGI application around one model.

    Args:
        model: A `runtime.Model`; one thread for each lane, since model_instances run side by side.
        model_instances: Forward passes at a time.
        most: Texts of a pass.
        limits: What a client may ask for.
        token: What clients have to show, if anything.
    """

    def __init__(
        self,
        model: Any,
        *,
        model_instances: int = 1,
        most: int = 32,
        limits: Limits | None = None,
        token: str | None = None,
    ) -> None:
        self.model, self.limits = model, limits or Limits()
        self.metrics = Metrics()
        self.batcher = Batcher(model, model_instances=model_instances, most=most, observe=self.metrics.batches.observe)
        self.draining = False
        self.guarded = token is not None
        self._secret = f"Bearer {token}".encode() if token else None
        self._held = 0  # bytes of requests that have arrived in part
        self._inside = 0  # requests to /predict that are not answered yet
        self._pages = describe(self)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request, or starts and ends with the server."""
        if scope["type"] == "http":
            if scope["path"] == "/predict":
                await self._predict(scope, receive, send)
            elif scope["path"] == "/metrics" and not self._allowed(scope["headers"]):
                await _say(send, 401, {"error": TOKEN_WANTED}, [ASK_TOKEN])
            else:
                await self._pages(scope, receive, send)
        elif scope["type"] == "lifespan":
            while (await receive())["type"] == "lifespan.startup":
                self.batcher.start()
                await send({"type": "lifespan.startup.complete"})
            self.batcher.close()
            await send({"type": "lifespan.shutdown.complete"})

    async def drain(self) -> None:
        """Takes no new requests and returns when those under way are answered, or have had their time."""
        self.draining = True
        until = time.monotonic() + self.limits.drain
        while self._inside and time.monotonic() < until:
            await asyncio.sleep(0.02)

    async def _predict(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = time.perf_counter()
        self._inside += 1
        try:
            found = await self._answers(scope, receive)
        except RefusedError as refusal:
            self.metrics.refused[refusal.reason] += 1
            status = refusal.status
            await _say(
                send, status, {"error": refusal.message}, list(refusal.headers), None if refusal.read else receive
            )
        except GoneError:
            status = 499  # nobody is there to be told; the number is what proxies write down for it
        except Exception:
            log.exception("a request failed")
            status = 500
            await _say(send, status, {"error": "The model failed on this request; the log of the service says how."})
        else:
            status = 200
            await _say(send, status, found)
        finally:
            self._inside -= 1
        self.metrics.requests[status] += 1
        self.metrics.seconds.observe(time.perf_counter() - started)

    async def _answers(self, scope: Scope, receive: Receive) -> Any:
        limits, batcher = self.limits, self.batcher
        if scope["method"] != "POST":
            message = f"/predict takes POST; found {scope['method'][:20]}."
            raise RefusedError(405, message, "method", (b"allow", b"POST"), read=False)
        body = await self._read(scope["headers"], receive)
        texts, texts_b, one = parse(body, self.model.pair, limits)
        if self.draining:
            raise RefusedError(503, "The service is shutting down; try again.", "draining", (b"retry-after", b"5"))
        if batcher.queued + len(texts) > limits.queue:
            raise RefusedError(429, "Too much is waiting; come back later.", "queue_full", self._later())
        answers = batcher.submit(texts, texts_b)
        scope["headhunt.answers"] = answers  # cancelled by the connection when the client goes away
        try:
            async with asyncio.timeout(limits.wait):
                outputs = await answers
        except asyncio.CancelledError:
            if asyncio.current_task().cancelling():  # type: ignore[union-attr]
                raise
            raise GoneError from None
        except TimeoutError:
            message = f"No answer within {limits.wait:g} s; come back later."
            raise RefusedError(503, message, "timeout", self._later()) from None
        self.metrics.texts += len(texts)
        found = [self.model.prediction(output) for output in outputs]
        return found[0] if one else {"predictions": found}

    async def _read(self, headers: Headers, receive: Receive) -> bytearray:
        """The body of a request that may be read: from who may ask, of the right kind, not too long, in time."""
        if not self._allowed(headers):
            raise RefusedError(401, TOKEN_WANTED, "token", ASK_TOKEN, read=False)
        kind = length = b""
        for name, value in headers:
            if name == b"content-type":
                kind = value
            elif name == b"content-length":
                length = value
        if kind.split(b";")[0].strip().lower() != b"application/json":
            # Also what keeps a page in somebody's browser from asking: it may send plain text anywhere, JSON not.
            found = kind[:60].decode("latin-1") or "none"
            raise RefusedError(
                415, f"The content type must be application/json; found {found}.", "malformed", read=False
            )
        too_long = RefusedError(413, f"A request may have {self.limits.body} bytes.", "too_large", read=False)
        if length and int(length) > self.limits.body:
            raise too_long
        body = bytearray()
        try:
            async with asyncio.timeout(self.limits.slow):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise GoneError
                    part = message.get("body", b"")
                    body += part
                    self._held += len(part)
                    if len(body) > self.limits.body:
                        raise too_long
                    if not message.get("more_body"):
                        return body
                    if self._held > HELD:
                        raise RefusedError(503, "Too many long requests at once.", "memory", self._later(), read=False)
        except TimeoutError:
            reason = f"A request must arrive within {self.limits.slow:g} s."
            raise RefusedError(408, reason, "slow", read=False) from None
        finally:
            self._held -= len(body)

    def _allowed(self, headers: Headers) -> bool:
        if self._secret is None:
            return True
        shown = next((value for name, value in headers if name == b"authorization"), b"")
        return hmac.compare_digest(shown, self._secret)

    def _later(self) -> tuple[bytes, bytes]:
        seconds = math.ceil(self.batcher.queued * self.batcher.seconds_per_text)
        return b"retry-after", str(min(max(seconds, 1), 60)).encode()


class GoneError(Exception):
    """The client went away before it was answered."""


TOKEN_WANTED = 'Send the token of this service: "Authorization: Bearer TOKEN".'
ASK_TOKEN = (b"www-authenticate", b"Bearer")


async def _say(
    send: Send, status: int, answer: Any, headers: Headers | None = None, unread: Receive | None = None
) -> None:
    """Sends JSON. Where the request was not read to its end, the connection ends with the answer."""
    import orjson

    body = orjson.dumps(answer)
    all_headers = [JSON_TYPE, (b"content-length", b"%d" % len(body)), *(headers or [])]
    if unread is not None:
        all_headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": all_headers})
    if unread is not None:
        # Closing at once with bytes on their way would reset the connection, and the answer with it.
        await send({"type": "http.response.body", "body": body, "more_body": True})
        try:
            async with asyncio.timeout(LINGER):
                while (message := await unread())["type"] == "http.request" and message.get("more_body"):
                    pass
        except TimeoutError:
            pass
        body = b""
    await send({"type": "http.response.body", "body": body})


# ---------------------------------------------------------------------------------------------- from a folder to a port


def load(folder: str | Path, threads: int, say: Callable[[str], None]) -> Any:
    """The runtime of an export; of a folder that Headhunt saved, exported first, once.

    Args:
        folder: An export, or what Headhunt saved.
        threads: Cores for one forward pass.
        say: Told what is done that takes time.

    Raises:
        ModelError: If the folder holds neither, or something to install is missing.
    """
    need("onnxruntime", "tokenizers")
    from headhunt.delivery.onnx.runtime import Model

    folder = Path(folder)
    if not (folder / "headhunt.json").is_file():
        raise not_a_model(folder)
    if not (folder / "model.onnx").is_file():
        folder = exported(folder, say)
    try:
        return Model(folder, threads=threads)
    except Exception as error:  # what a damaged file makes the runtime raise can be anything
        reason = (str(error).strip() or repr(error)).splitlines()[0].rstrip(".")
        raise ModelError(f"{folder} cannot be loaded: {reason}. Export the model again.") from None


def exported(folder: Path, say: Callable[[str], None]) -> Path:
    """The export of a saved model in the cache; made, by a process that ends with it, unless it is there."""
    home = Path(os.environ.get("HEADHUNT_CACHE") or Path.home() / ".cache" / "headhunt") / "exports"
    files = sorted(file for file in folder.iterdir() if file.is_file())
    seen = [(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    out = home / hashlib.sha256(repr(seen).encode()).hexdigest()[:24]
    if (out / "headhunt.json").is_file():
        say(f"taking the ONNX export of {folder} from {out}")
        return out
    say(f"{folder} is not an export: exporting it to ONNX, once, in {out}")
    # In a process of its own: torch would stay in the memory of the service, and it may need another temporary name.
    home.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home) as scratch:
        code = (
            "import sys\n"
            "from headhunt.delivery.onnx.export import export\n"
            "from headhunt.errors import HeadhuntError\n"
            "try:\n    export(sys.argv[1], sys.argv[2])\n"
            "except HeadhuntError as error:\n    sys.exit(str(error))\n"
        )
        made = Path(scratch) / "export"
        done = subprocess.run([sys.executable, "-c", code, folder, made], capture_output=True, text=True)
        if done.returncode:
            raise ModelError((done.stderr.strip() or f"{folder} could not be exported.").splitlines()[-1])
        try:
            made.rename(out)
        except OSError:  # another process was faster
            if not (out / "headhunt.json").is_file():
                raise
    return out


def need(*modules: str) -> None:
    """Says what to install where something is missing."""
    from importlib.util import find_spec

    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        raise ModelError(f'The service needs {", ".join(missing)}: pip install "headhunt[serve]".')


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that listens there."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def serve(
    folder: str | Path,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str | None = None,
    threads: int | None = None,
    model_instances: int | None = None,
    max_batch: int = 32,
    limits: Limits | None = None,
    say: Callable[[str], None] = print,
) -> None:
    """Serves a model until the process is told to stop, then finishes what is queued.

    Args:
        folder: An export, or a folder that Headhunt saved.
        host: Where to listen; this machine alone unless told otherwise.
        port: 0 takes a free one.
        token: What clients have to show, if anything.
        threads: Cores to compute with; all unless given.
        model_instances: Forward passes at a time, which share the threads. One per thread answers the most texts per
            second; one alone answers a single text fastest.
        max_batch: Texts of a pass.
        limits: What a client may ask for.
        say: Told what the user should know.
    """
    need("fastapi", "uvicorn", "httptools", "orjson", "onnxruntime")
    from headhunt.delivery.serve.server import Server, listen

    limits, threads = limits or Limits(), threads or cores()
    model_instances = min(model_instances or threads, threads)
    if min(threads, model_instances, max_batch) < 1:
        raise HeadhuntError("Threads, model_instances and texts of a batch must be at least 1.")
    if token is not None and not (token.isascii() and token.isprintable() and token.strip()):
        raise HeadhuntError("A token must be of printable ASCII characters.")
    if not is_loopback(host) and not token:
        say(f"warning: whoever reaches {host}:{port} may use this model; give a token, or listen on 127.0.0.1")
    with listen(host, port) as door:
        model = load(folder, threads // model_instances, say)
        service = Service(model, model_instances=model_instances, most=max_batch, limits=limits, token=token)
        # A lane that has finished a pass should not wait for the interpreter longer than a request takes.
        sys.setswitchinterval(0.0005)
        Server(service, say=say).run([door])


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
