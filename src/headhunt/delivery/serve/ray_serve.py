"""The same service on a Ray cluster, which adds replicas, routing and restarts.

    serve run headhunt.delivery.serve.ray_serve:app model=DIR replicas=4

`deploy` gives the application with other settings. What may be asked and what is answered is as
with `headhunt serve`; DIR must be an export, on a disk that all nodes share.
"""

from __future__ import annotations

import asyncio
import hmac
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

from headhunt.delivery.serve.schemas import Limits, RefusedError, parse
from headhunt.errors import ModelError

try:
    from ray import serve
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response
except ImportError as error:
    raise ModelError(f'Ray Serve needs more than is installed ({error}): pip install "headhunt[cluster]".') from None


class Answers:
    """One replica: a model, and batches across the requests that reach it.

    Args:
        folder: An export.
        threads: Cores of one forward pass.
        limits: What a client may ask for.
        token: What clients have to show, if anything.
    """

    def __init__(self, folder: str, threads: int = 1, limits: Limits | None = None, token: str | None = None) -> None:
        from headhunt.delivery.serve.service import load

        self.model, self.limits, self.token = load(folder, threads, print), limits or Limits(), token

    @serve.batch(max_batch_size=64, batch_wait_timeout_s=0.002)
    async def outputs(self, rows: list[tuple[list[str], list[str] | None]]) -> list[Any]:
        """The outputs of several requests, their texts sorted by length and computed together."""
        texts = [text for first, _ in rows for text in first]
        texts_b = [text for _, second in rows for text in second or ()] if self.model.pair else None
        found = await asyncio.to_thread(self.model.outputs, texts, texts_b, 32)
        stops = [0]
        for first, _ in rows:
            stops.append(stops[-1] + len(first))
        return [found[start:stop] for start, stop in pairwise(stops)]

    async def __call__(self, request: Request) -> Response:
        """Answers one request."""
        try:
            return JSONResponse(await self.answer(request))
        except RefusedError as refused:
            headers = {name.decode(): value.decode() for name, value in refused.headers}
            return JSONResponse({"error": refused.message}, refused.status, headers=headers)

    async def answer(self, request: Request) -> Any:
        """What is asked, checked and answered."""
        path = request.url.path.rstrip("/")
        if path.endswith("/health"):
            return {"live": True, "ready": True}
        if not path.endswith("/predict"):
            raise RefusedError(404, "There are /predict and /health.", "path")
        if request.method != "POST":
            raise RefusedError(405, f"/predict takes POST; found {request.method}.", "method", (b"allow", b"POST"))
        if self.token and not hmac.compare_digest(
            request.headers.get("authorization", "").encode(), f"Bearer {self.token}".encode()
        ):
            raise RefusedError(401, "Send the token of this service.", "token", (b"www-authenticate", b"Bearer"))
        if request.headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
            raise RefusedError(415, "The content type must be application/json.", "malformed")
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > self.limits.body:
                raise RefusedError(413, f"A request may have {self.limits.body} bytes.", "too_large")
        texts, texts_b, one = parse(body, self.model.pair, self.limits)
        found = [self.model.prediction(row) for row in await self.outputs((texts, texts_b))]
        return found[0] if one else {"predictions": found}


def deploy(
    folder: str | Path, *, threads: int = 1, limits: Limits | None = None, token: str | None = None, **options: Any
) -> Any:
    """The application, for `serve.run`.

    Args:
        folder: An export, on a disk that all nodes share.
        threads: Cores of a replica.
        limits: What a client may ask for; `queue` is what may wait for a replica, beyond which Ray answers 503.
        token: What clients have to show, if anything.
        options: Of the deployment, as Ray takes them: num_replicas, autoscaling_config …
    """
    limits = limits or Limits()
    settings = {
        "name": "headhunt",
        "max_ongoing_requests": 128,
        "max_queued_requests": limits.queue,
        "ray_actor_options": {"num_cpus": threads},
    }
    deployment = serve.deployment(**{**settings, **options})(Answers)
    return deployment.bind(str(Path(folder).resolve()), threads, limits, token)


def app(args: dict[str, str]) -> Any:
    """The application, for `serve run` and its configuration files.

    Args:
        args: `model`, an export, unless HEADHUNT_MODEL names it; `replicas` and `threads`, 1 each unless given. A token
            is taken from HEADHUNT_TOKEN alone, since arguments can be seen in Ray's dashboard.
    """
    unknown = set(args) - {"model", "replicas", "threads"}
    if unknown:
        raise ModelError(f"There are model, replicas and threads; found {', '.join(sorted(unknown))}.")
    folder = args.get("model") or os.environ.get("HEADHUNT_MODEL")
    if not folder:
        raise ModelError("Name the folder of an export: model=DIR, or HEADHUNT_MODEL=DIR in the environment.")
    replicas, threads = int(args.get("replicas", 1)), int(args.get("threads", 1))
    return deploy(folder, threads=threads, token=os.environ.get("HEADHUNT_TOKEN"), num_replicas=replicas)
