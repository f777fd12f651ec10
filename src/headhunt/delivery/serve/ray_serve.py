"""The service as a Ray Serve application, with replicas, routing and restarts.

    serve run headhunt.delivery.serve.ray_serve:app model=DIR replicas=4

Requests, responses, limits, tokens and metrics are those of `headhunt serve`: both run `Service`. DIR must be an ONNX
export on a disk that all nodes share. `deploy` returns the application with other settings.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from headhunt.delivery.serve.launch import load_model
from headhunt.delivery.serve.limits import Limits
from headhunt.errors import ModelError

try:
    from ray import serve
    from starlette.requests import Request
    from starlette.responses import Response

    from headhunt.delivery.serve.service import Service, check_token
except ImportError as error:
    raise ModelError(f'Ray Serve needs more packages ({error}): pip install "headhunt[cluster]".') from None


class Replica:
    """One replica: the service of `headhunt serve` behind Ray's proxy. `/metrics` are those of one replica.

    Args:
        folder: An ONNX export.
        threads: Cores for one forward pass.
        limits: Limits on requests.
        token: Token that clients must send, if any.
    """

    def __init__(self, folder: str, threads: int = 1, limits: Limits | None = None, token: str | None = None) -> None:
        self.service = Service(load_model(folder, threads, print), limits=limits, token=token)
        self.started = False

    def check_health(self) -> None:
        """Raise an error if the service is not ready, so that Ray replaces the replica.

        Raises:
            RuntimeError: If a thread of the model is dead.
        """
        if self.started and not self.service.is_ready():
            raise RuntimeError("the service is not ready")

    async def __call__(self, request: Request) -> Response:
        """Handle one request."""
        if not self.started:
            self.started = True
            self.service.batcher.start()  # in the event loop of the requests
        scope = dict(request.scope)
        if scope["path"] == scope.get("root_path"):
            scope["path"] += "/"
        response = Response()
        body = bytearray()

        async def send(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                response.status_code, response.raw_headers = message["status"], list(message["headers"])
            else:
                body.extend(message.get("body", b""))

        await self.service(scope, request.receive, send)  # type: ignore[arg-type]
        response.body = bytes(body)
        return response


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
    check_token(token)
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
