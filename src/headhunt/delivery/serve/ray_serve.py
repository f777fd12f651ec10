"""The service as a Ray Serve application, with replicas, routing and restarts.

    serve run headhunt.delivery.serve.ray_serve:app model=DIR replicas=4

Requests and responses are those of `headhunt serve`. DIR must be an ONNX export on a disk that all nodes share.
`deploy` returns the application with other settings.
"""

from __future__ import annotations

import asyncio
import hmac
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

from headhunt.delivery.serve.launch import load_model
from headhunt.delivery.serve.limits import Limits
from headhunt.errors import ModelError

try:
    from ray import serve
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response

    from headhunt.delivery.serve.schemas import RefusedError, RequestSchema
except ImportError as error:
    raise ModelError(f'Ray Serve needs more packages ({error}): pip install "headhunt[cluster]".') from None


class Replica:
    """One replica: a model that predicts the texts of several requests together.

    Args:
        folder: An ONNX export.
        threads: Cores for one forward pass.
        limits: Limits on requests.
        token: Token that clients must send, if any.
    """

    def __init__(self, folder: str, threads: int = 1, limits: Limits | None = None, token: str | None = None) -> None:
        self.model, self.limits, self.token = load_model(folder, threads, print), limits or Limits(), token
        self.schema = RequestSchema(self.model.pair, self.limits)

    @serve.batch(max_batch_size=64, batch_wait_timeout_s=0.002)
    async def outputs(self, requests: list[tuple[list[str], list[str] | None]]) -> list[Any]:
        """Return the outputs of several requests, computed in batches of similar length."""
        texts = [text for first, _ in requests for text in first]
        texts_b = [text for _, second in requests for text in second or ()] if self.model.pair else None
        outputs = await asyncio.to_thread(self.model.outputs, texts, texts_b, 32)
        stops = [0]
        for first, _ in requests:
            stops.append(stops[-1] + len(first))
        return [outputs[start:stop] for start, stop in pairwise(stops)]

    async def __call__(self, request: Request) -> Response:
        """Handle one request."""
        try:
            return JSONResponse(await self.respond(request))
        except RefusedError as refused:
            headers = {name.decode(): value.decode() for name, value in refused.headers}
            return JSONResponse({"error": refused.message}, refused.status, headers=headers)

    async def respond(self, request: Request) -> dict[str, Any]:
        """Return the predictions for a request, or the state of the service.

        Raises:
            RefusedError: If the request is refused.
        """
        path = request.url.path.rstrip("/")
        if path.endswith("/health"):
            return {"live": True, "ready": True}
        if not path.endswith("/predict"):
            raise RefusedError(404, "The paths are /predict and /health.", "path")
        self.check_headers(request)
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > self.limits.max_body:
                raise RefusedError(413, f"A request must have at most {self.limits.max_body} bytes.", "too_large")
        parsed = self.schema.parse(body)
        outputs = await self.outputs((parsed.texts, parsed.texts_b))
        predictions = [self.model.prediction(row) for row in outputs]
        return predictions[0] if parsed.single else {"predictions": predictions}

    def check_headers(self, request: Request) -> None:
        """Raise an error if the method, the token or the content type is wrong.

        Raises:
            RefusedError: If one of them is.
        """
        if request.method != "POST":
            raise RefusedError(405, f"/predict takes POST; found {request.method}.", "method", (b"allow", b"POST"))
        if self.token and not hmac.compare_digest(
            request.headers.get("authorization", "").encode(), f"Bearer {self.token}".encode()
        ):
            message = "The request must have the token of this service."
            raise RefusedError(401, message, "token", (b"www-authenticate", b"Bearer"))
        if request.headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
            raise RefusedError(415, "The content type must be application/json.", "malformed")


def deploy(
    folder: str | Path, *, threads: int = 1, limits: Limits | None = None, token: str | None = None, **options: Any
) -> Any:
    """Return the application, for `ray.serve.run`.

    Args:
        folder: An ONNX export, on a disk that all nodes share.
        threads: Cores of a replica.
        limits: Limits on requests; with more than `max_queue` requests waiting for a replica, Ray responds with 503.
        token: Token that clients must send, if any.
        options: Settings of the deployment for Ray, such as `num_replicas` and `autoscaling_config`.
    """
    limits = limits or Limits()
    settings = {
        "name": "headhunt",
        "max_ongoing_requests": 128,
        "max_queued_requests": limits.max_queue,
        "ray_actor_options": {"num_cpus": threads},
    }
    deployment = serve.deployment(**{**settings, **options})(Replica)
    return deployment.bind(str(Path(folder).resolve()), threads, limits, token)


def app(args: dict[str, str]) -> Any:
    """Return the application, for `serve run` and its configuration files.

    Args:
        args: `model`, an ONNX export (default: the environment variable HEADHUNT_MODEL); `replicas` and `threads`
            (default: 1). The token comes from HEADHUNT_TOKEN, since Ray's dashboard displays arguments.
    """
    unknown = set(args) - {"model", "replicas", "threads"}
    if unknown:
        raise ModelError(f"The arguments are model, replicas and threads; found {', '.join(sorted(unknown))}.")
    folder = args.get("model") or os.environ.get("HEADHUNT_MODEL")
    if not folder:
        raise ModelError("An ONNX export is required; found none. Pass model=DIR or set HEADHUNT_MODEL=DIR.")
    replicas, threads = int(args.get("replicas", 1)), int(args.get("threads", 1))
    return deploy(folder, threads=threads, token=os.environ.get("HEADHUNT_TOKEN"), num_replicas=replicas)
