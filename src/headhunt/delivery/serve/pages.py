"""What a service says of itself: OpenAPI for machines, a page to try the model on for people, `/health`, `/metrics`."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from importlib import resources
from typing import TYPE_CHECKING, Any

from headhunt.delivery.serve.schemas import ERROR, HEALTH, answer_schema, examples, request_schema

if TYPE_CHECKING:
    from headhunt.delivery.serve.service import Service


def describe(service: Service) -> Any:
    """The FastAPI application: the pages, `/health`, `/metrics`, and what OpenAPI says of `/predict`."""
    from fastapi import FastAPI
    from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse
    from starlette.exceptions import HTTPException

    from headhunt import __version__

    model = service.model
    pages = FastAPI(
        title="Headhunt",
        version=__version__,
        description=in_short(model),
        docs_url=None,  # those of FastAPI come from a server of others
        redoc_url=None,
        redirect_slashes=False,
    )

    def told(description: str) -> dict[str, Any]:
        return {"description": description, "content": {"application/json": {"schema": ERROR}}}

    state_schema = {"application/json": {"schema": HEALTH}}
    states = {200: "Live and ready.", 503: "Live, and shutting down."}

    @pages.get(
        "/health",
        summary="Whether requests are taken",
        response_model=None,
        responses={code: {"description": words, "content": state_schema} for code, words in states.items()},
    )
    async def health() -> Any:
        state = {"live": True, "ready": not service.draining}
        return JSONResponse(state, 503 if service.draining else 200)

    @pages.get("/metrics", summary="Figures for Prometheus", response_model=None, response_class=PlainTextResponse)
    async def metrics() -> Any:
        page = service.metrics.page(service.batcher.queued, not service.draining)
        return PlainTextResponse(page, media_type="text/plain; version=0.0.4")

    front_page, policy = front(service)

    @pages.get("/", include_in_schema=False, response_model=None)
    async def try_it() -> Any:
        return HTMLResponse(front_page, headers={"content-security-policy": policy})

    @pages.get("/docs", include_in_schema=False, response_model=None)
    async def docs() -> Any:
        return RedirectResponse("/")

    async def predict() -> None:
        raise AssertionError("answered by Service")

    responses: dict[int | str, dict[str, Any]] = {
        200: {
            "description": "An answer for each text.",
            "content": {"application/json": {"schema": answer_schema(model)}},
        },
        400: told("Not JSON."),
        401: told("Without the token."),
        405: told("Not POST."),
        408: told("The request came too slowly."),
        413: told("Too much at once."),
        415: told("The content type is not application/json."),
        422: told("JSON, but not what this model takes."),
        429: told("Too much is waiting; Retry-After says when to come back."),
        500: told("The model failed."),
        503: told("Shutting down, or no answer in time; Retry-After says when to come back."),
    }
    body = {"schema": request_schema(model.pair, service.limits), "examples": examples(model.pair)}
    secured: dict[str, Any] = {"security": [{"token": []}]} if service.guarded else {}
    pages.post(
        "/predict",
        response_model=None,
        summary="Answers for texts",
        responses=responses,
        openapi_extra={"requestBody": {"required": True, "content": {"application/json": body}}, **secured},
    )(predict)

    made = pages.openapi

    def openapi() -> dict[str, Any]:
        schema = made()
        if service.guarded:
            parts = schema.setdefault("components", {})
            parts["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
            schema["paths"]["/metrics"]["get"]["security"] = [{"token": []}]
        return schema

    pages.openapi = openapi  # type: ignore[method-assign]

    @pages.exception_handler(HTTPException)
    async def refused(_: Any, error: Any) -> Any:
        return JSONResponse({"error": str(error.detail)}, error.status_code, headers=error.headers)

    @pages.exception_handler(Exception)
    async def failed(_: Any, error: Any) -> Any:
        return JSONResponse({"error": "The service failed; its log says how."}, 500)

    return pages


def in_short(model: Any) -> str:
    """What goes in and what comes out, in a sentence."""
    asked = "Two texts" if model.pair else "A text"
    if model.problem_type == "regression":
        return f"{asked} in, a number out"
    shown = ", ".join(model.labels[:4]) + (" …" if len(model.labels) > 4 else "")
    many = (
        f"one of {len(model.labels)} classes"
        if model.problem_type == "single_label_classification"
        else f"any of {len(model.labels)} labels"
    )
    return f"{asked} in, {many} out: {shown}"


def front(service: Service) -> tuple[str, str]:
    """The page to try the model on, and the policy that lets nothing but its own script run."""
    model, here = service.model, resources.files("headhunt")
    beside = {name: here.joinpath(f"delivery/serve/{name}").read_text("utf-8") for name in ("page.html", "page.js")}
    facts = {
        "title": in_short(model),
        "problem_type": model.problem_type,
        "example": examples(model.pair)["one"]["value"],
        "names": {"text": "First text" if model.pair else "Text", "text_b": "Second text"},
        "characters": service.limits.characters,
        "guarded": service.guarded,
    }
    parts = {
        "PALETTE": here.joinpath("report/palette.css").read_text("utf-8"),
        "SCRIPT": beside["page.js"],
        "FACTS": json.dumps(facts).replace("<", "\\u003c"),
    }
    page = re.sub("PALETTE|SCRIPT|FACTS", lambda found: parts[found[0]], beside["page.html"])
    digest = base64.b64encode(hashlib.sha256(beside["page.js"].encode()).digest()).decode()
    allowed = f"script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:; connect-src 'self'"
    return page, f"default-src 'none'; {allowed}; form-action 'none'; frame-ancestors 'none'"
