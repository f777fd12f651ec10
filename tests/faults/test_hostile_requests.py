"""Every route of every kind of service, under requests that try to get past the token and the limits."""

from __future__ import annotations

import asyncio
import json
import sys

import pytest
from serving import WordCounter, send_request

pytest.importorskip("fastapi")
from headhunt.delivery.serve.limits import Limits
from headhunt.delivery.serve.service import Service
from headhunt.delivery.serve.tasks import TaskServices

TOKEN = "secret"
MAX_BODY = 200
ROUTES = ("/predict", "/metrics", "/health", "/", "/docs", "/openapi.json", "/nothing")
OPEN = {"/health", "/", "/docs", "/openapi.json"}
KINDS = ("single", "tasks", "prefix", "ray")
TEXT = {"text": "a bad film"}


def make_service(kind: str):
    """Return an application, and the roots at which it serves."""
    options = {"token": TOKEN, "limits": Limits(max_body=MAX_BODY, max_characters=50)}
    if kind != "tasks":
        return Service(WordCounter(), **options), ["" if kind == "single" else "/v1"]
    services = {name: Service(WordCounter(), **options) for name in ("a", "b")}
    return TaskServices(services, {"texts": Service(WordCounter(), **options)}), ["/tasks/a", "/tasks/b", "/texts"]


def disguise(root: str, route: str) -> list[str]:
    """Return paths that a part of a service could take for a route, though they are none."""
    path = root + route
    paths = [
        root + path,
        root * 2 + path,
        f"/{path}",
        f"{path}/",
        f"{path}//",
        f"{root}/.{route}",
        f"{root}/x/..{route}",
    ]
    paths += [path.replace("/", "%2f"), path.upper(), f"{path};x", f"{path}%00", f"{path}\\x", f"{root}%2f{route[1:]}"]
    return [each for each in dict.fromkeys(paths) if each != path and each.startswith(root or "/")]


@pytest.mark.parametrize("kind", KINDS)
def test_no_request_gets_past_the_token_or_the_limits(kind):
    service, roots = make_service(kind)
    prefix = roots[0] if kind in ("prefix", "ray") else ""
    replica = None
    if kind == "ray":
        pytest.importorskip("ray.serve")
        from headhunt.delivery.serve import ray_serve

        replica = ray_serve.Replica.__new__(ray_serve.Replica)
        replica.service, replica.started = service, False

    async def ask(method, path, body=None, token=TOKEN, raw=None):
        headers = [(b"authorization", f"Bearer {token}".encode())] if token is not None else []
        if replica is None:
            return await send_request(service, method, path, body, headers=headers, root_path=prefix, raw=raw)
        return await send_request(replica_app, method, path, body, headers=headers, root_path=prefix, raw=raw)

    async def replica_app(scope, receive, send):
        from starlette.requests import Request

        await (await replica(Request(scope, receive)))(scope, receive, send)

    async def run() -> int:
        count = 0
        for each in service.services.values() if kind == "tasks" else [service]:
            if replica is None:
                each.batcher.start()
        for root in roots:
            for route in ROUTES:
                for method in ("GET", "POST", "PUT"):
                    for token in (None, "", "wrong", TOKEN + "x", TOKEN[:-1]):
                        status, body = await ask(method, root + route, TEXT, token)
                        assert route in OPEN or status in (401, 405), (method, root + route, token, status)
                        assert b"probability" not in body or route in OPEN, "a prediction, or metrics"
                        count += 1
                for path in disguise(root, route):
                    for method in ("GET", "POST"):
                        status, body = await ask(method, path, TEXT, None)
                        assert status in (401, 404, 405) or path.removeprefix(prefix) in OPEN, (path, status)
                        assert b"headhunt_requests" not in body and b'"label"' not in body[:100], path
                        count += 1
            large = json.dumps({"text": "a" * 1_000}).encode()
            for raw, wanted in (
                (large, {413}),
                (json.dumps(TEXT).encode() + b"}", {400}),
                (json.dumps(TEXT).encode() + b"\0", {400}),
                (json.dumps(TEXT).encode(), {200}),
            ):
                status, _ = await ask("POST", f"{root}/predict", token=TOKEN, raw=raw)
                assert status in wanted, (raw[:20], status)
                count += 1
                for route in OPEN - {"/"}:  # they read no body, however large
                    assert (await ask("POST", root + route, token=None, raw=large))[0] in (401, 404, 405)
        for each in service.services.values() if kind == "tasks" else [service]:
            assert each.batcher.queued == 0 and each.is_ready()
            each.batcher.close()
        return count

    count = asyncio.run(run())
    print(f"{kind}: {count} requests", file=sys.stderr)
    assert count > 150
