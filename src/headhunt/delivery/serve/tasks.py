"""The ASGI application that serves several tasks of one model, each at /tasks/NAME."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from html import escape

from headhunt.delivery.serve.limits import Limits
from headhunt.delivery.serve.service import Receive, Scope, Send, Service, send_json

PREFIX = "/tasks/"
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>headhunt</title></head>
<body><h1>Tasks</h1><ul>{links}</ul></body></html>
"""


class TaskServices:
    """A `Service` for each task: `/tasks/NAME/predict`, `/tasks/NAME/metrics` and a page at `/tasks/NAME/`.

    `/` lists the tasks, as a page or as JSON, and `/health` is ready if all of them are.

    Args:
        services: The service of each task, by name.
    """

    def __init__(self, services: Mapping[str, Service]) -> None:
        self.services = dict(services)

    @property
    def limits(self) -> Limits:
        """Limits on requests, equal for all tasks."""
        return next(iter(self.services.values())).limits

    async def drain(self) -> None:
        """Refuse new requests and wait until pending ones have a response; see `Service.drain`."""
        await asyncio.gather(*(service.drain() for service in self.services.values()))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request, or the startup and shutdown of the server."""
        if scope["type"] == "lifespan":
            while (await receive())["type"] == "lifespan.startup":
                for service in self.services.values():
                    service.batcher.start()
                await send({"type": "lifespan.startup.complete"})
            for service in self.services.values():
                service.batcher.close()
            await send({"type": "lifespan.shutdown.complete"})
        elif scope["type"] == "http":
            await self._route(scope, receive, send)

    async def _route(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = str(scope["path"])
        name, slash, rest = path.removeprefix(PREFIX).partition("/")
        if path.startswith(PREFIX) and slash and name in self.services:
            # In place: the server looks here for the forward passes to cancel if the client disconnects.
            scope.update(path=f"/{rest}", raw_path=f"/{rest}".encode(), root_path=f"{PREFIX}{name}")
            await self.services[name](scope, receive, send)
        elif path == "/health":
            ready = all(service.is_ready() for service in self.services.values())
            await send_json(send, 200 if ready else 503, {"live": True, "ready": ready})
        elif path == "/":
            await self._list_tasks(send)
        else:
            names = ", ".join(self.services)
            message = f"This service has several tasks: {names}. Use {PREFIX}NAME/predict, {PREFIX}NAME/ or /health."
            await send_json(send, 404, {"error": message}, unread=receive)

    async def _list_tasks(self, send: Send) -> None:
        links = "".join(f'<li><a href="{PREFIX[1:]}{escape(name)}/">{escape(name)}</a></li>' for name in self.services)
        body = PAGE.format(links=links).encode()
        policy = b"default-src 'none'; form-action 'none'; frame-ancestors 'none'"
        headers = [(b"content-type", b"text/html; charset=utf-8"), (b"content-security-policy", policy)]
        headers.append((b"content-length", b"%d" % len(body)))
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})
