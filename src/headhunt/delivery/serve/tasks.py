"""The ASGI application that serves several tasks of one model, each at /tasks/NAME."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from html import escape

from starlette.responses import HTMLResponse

from headhunt.delivery.serve.limits import Limits
from headhunt.delivery.serve.service import Receive, Scope, Send, Service, send_json

PREFIX = "/tasks/"
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>headhunt</title></head>
<body><h1>Tasks</h1><ul>{links}</ul></body></html>
"""


class TaskServices:
    """A `Service` for each task: `/tasks/NAME/predict`, `/tasks/NAME/metrics` and a page at `/tasks/NAME/`.

    `/texts/predict` has the predictions of all tasks of one text, and `/pairs/predict` those of all tasks of two, each
    from one forward pass. `/` lists the tasks, and `/health` is ready if all of them are.

    Args:
        services: The service of each task, by name.
        joined: Services of several tasks at once, by path.
    """

    def __init__(self, services: Mapping[str, Service], joined: Mapping[str, Service] | None = None) -> None:
        self.tasks = tuple(services)
        self.services = {f"{PREFIX}{name}": service for name, service in services.items()}
        self.services |= {f"/{path}": service for path, service in (joined or {}).items()}

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
        words = path.split("/")
        root = "/".join(words[:3] if path.startswith(PREFIX) else words[:2])
        if root in self.services and path != root:
            # In place: the server looks here for the forward passes to cancel if the client disconnects.
            scope["root_path"] = root
            await self.services[root](scope, receive, send)
        elif path == "/health":
            ready = all(service.is_ready() for service in self.services.values())
            await send_json(send, 200 if ready else 503, {"live": True, "ready": ready})
        elif path == "/":
            paths = [root[1:] for root in self.services]
            links = "".join(f'<li><a href="{escape(path)}/">{escape(path.split("/")[-1])}</a></li>' for path in paths)
            headers = {"content-security-policy": "default-src 'none'; form-action 'none'; frame-ancestors 'none'"}
            await HTMLResponse(PAGE.format(links=links), headers=headers)(scope, receive, send)  # type: ignore[arg-type]
        else:
            names = ", ".join(self.tasks)
            message = f"This service has several tasks: {names}. Use {PREFIX}NAME/predict, {PREFIX}NAME/ or /health."
            await send_json(send, 404, {"error": message}, unread=receive)
