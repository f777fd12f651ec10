"""The FastAPI application beside `/predict`: OpenAPI, the page to try the model, `/health` and `/metrics`."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable
from importlib import resources
from typing import Annotated, Any

from fastapi import Body, FastAPI, Security
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException

from headhunt import __version__
from headhunt.delivery.onnx.runtime import Model
from headhunt.delivery.serve.metrics import CONTENT_TYPE
from headhunt.delivery.serve.schemas import Error, Health, RequestSchema, response_models

REFUSALS = {
    400: "Not JSON.",
    401: "No valid token.",
    405: "Not POST.",
    408: "The request was sent too slowly.",
    413: "Too many bytes, texts or characters.",
    415: "The content type is not application/json.",
    422: "JSON that this model does not accept.",
    429: "The queue is full; Retry-After says when to try again.",
    500: "The model failed.",
    503: "Shutting down, or no prediction in time; Retry-After says when to try again.",
}


def build_pages(
    model: Model,
    schema: RequestSchema,
    *,
    needs_token: bool,
    is_ready: Callable[[], bool],
    render_metrics: Callable[[], bytes],
) -> FastAPI:
    """Build the FastAPI application, which documents `/predict` but does not handle it.

    Args:
        model: The model that is served.
        schema: The requests that it accepts.
        needs_token: Whether clients must send a token.
        is_ready: Returns whether requests are accepted.
        render_metrics: Returns the metrics in the text format of Prometheus.
    """
    pages = FastAPI(
        title="Headhunt",
        version=__version__,
        description=summarize(model),
        docs_url=None,  # FastAPI's documentation page loads scripts from another server
        redoc_url=None,
        redirect_slashes=False,
    )
    page, policy = render_page(model, schema, needs_token)
    unready: dict[int | str, dict[str, Any]] = {503: {"model": Health, "description": "Live, but shutting down."}}
    token = [Security(HTTPBearer(scheme_name="token", auto_error=False))] if needs_token else []  # documented, no more
    _document_predict(pages, model, schema, token)

    @pages.get("/", include_in_schema=False)
    async def front_page() -> HTMLResponse:
        return HTMLResponse(page, headers={"content-security-policy": policy})

    @pages.get("/docs", include_in_schema=False)
    async def docs() -> RedirectResponse:
        return RedirectResponse("/")

    @pages.get("/health", summary="State of the service", response_model=Health, responses=unready)
    async def health() -> Response:
        ready = is_ready()
        return JSONResponse({"live": True, "ready": ready}, 200 if ready else 503)

    @pages.get("/metrics", summary="Metrics for Prometheus", response_class=PlainTextResponse, dependencies=token)
    async def metrics() -> Response:
        return Response(render_metrics(), media_type=CONTENT_TYPE)

    @pages.exception_handler(HTTPException)
    async def refuse(_: Any, error: Any) -> Response:
        return JSONResponse({"error": str(error.detail)}, error.status_code, headers=error.headers)

    @pages.exception_handler(Exception)
    async def fail(_: Any, error: Any) -> Response:
        return JSONResponse({"error": "The service failed; its log has the details."}, 500)

    return pages


def _document_predict(pages: FastAPI, model: Model, schema: RequestSchema, token: list[Any]) -> None:
    """Add `/predict` to the OpenAPI document."""
    prediction, predictions = response_models(model)
    examples: Any = {name: {"summary": name, "value": value} for name, value in schema.examples().items()}

    async def predict(body: Any) -> None:
        raise AssertionError("Service handles /predict before FastAPI sees it")

    request: Any = schema.single | schema.batch
    predict.__annotations__["body"] = Annotated[request, Body(openapi_examples=examples)]
    pages.add_api_route(
        "/predict",
        predict,
        methods=["POST"],
        dependencies=token,
        summary="Predict the labels of texts",
        response_model=prediction | predictions,
        response_description="One prediction per text.",
        responses={status: {"model": Error, "description": words} for status, words in REFUSALS.items()},
    )


def summarize(model: Model) -> str:
    """Return one sentence about the input and the output of a model."""
    given = "Two texts" if model.pair else "A text"
    if model.tasks:
        return f"{given} in, {len(model.tasks)} tasks out: {', '.join(task.name for task in model.tasks)}"
    if model.problem_type == "regression":
        return f"{given} in, a number out"
    number = len(model.labels)
    labels = ", ".join(model.labels[:4]) + (" …" if number > 4 else "")
    output = f"one of {number} classes"
    if model.problem_type == "multi_label_classification":
        output = f"any of {number} labels"
    return f"{given} in, {output} out: {labels}"


def render_page(model: Model, schema: RequestSchema, needs_token: bool) -> tuple[str, str]:
    """Return the page to try the model, and a content security policy that allows only its own script."""
    package = resources.files("headhunt")
    html, script = (package.joinpath(f"delivery/serve/{name}").read_text("utf-8") for name in ("page.html", "page.js"))
    facts = {
        "title": summarize(model),
        "problem_type": model.problem_type,
        "tasks": [[task.name, task.problem_type] for task in model.tasks],
        "example": schema.examples()["single"],
        "names": {"text": "First text" if model.pair else "Text", "text_b": "Second text"},
        "characters": schema.limits.max_characters,
        "needs_token": needs_token,
    }
    replacements = {
        "PALETTE": package.joinpath("report/palette.css").read_text("utf-8"),
        "SCRIPT": script,
        "FACTS": json.dumps(facts).replace("<", "\\u003c"),
    }
    page = re.sub("PALETTE|SCRIPT|FACTS", lambda match: replacements[match[0]], html)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    allowed = f"script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:; connect-src 'self'"
    return page, f"default-src 'none'; {allowed}; form-action 'none'; frame-ancestors 'none'"
