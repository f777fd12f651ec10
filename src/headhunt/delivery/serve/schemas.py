"""Requests and responses of a service: pydantic models that validate them and that OpenAPI documents."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from headhunt.delivery.onnx.runtime import Model
from headhunt.delivery.serve.limits import Limits

TOP_K = 5  # probabilities of a prediction, if a request does not ask for more
EXAMPLES = (("a text", "another text"), ("the second text", "its second text"))  # whatever the classes are


class RefusedError(Exception):
    """A request that the service refuses.

    Args:
        status: The HTTP status.
        message: What must hold and what was found, for the client.
        reason: The label of the refusal in the metrics.
        headers: Additional response headers.
        body_read: Whether the request was read to its end.
    """

    def __init__(self, status: int, message: str, reason: str, *headers: tuple[bytes, bytes], body_read: bool = True):
        super().__init__(message)
        self.status, self.message, self.reason, self.headers = status, message, reason, headers
        self.body_read = body_read


class Error(BaseModel):
    """Response to a refused request."""

    error: str


class Health(BaseModel):
    """State of the service."""

    live: bool
    ready: bool


@dataclass(frozen=True, slots=True)
class Request:
    """The texts of a valid request."""

    texts: list[str]
    texts_b: list[str] | None
    top_k: int
    """Labels of a prediction with a probability."""
    single: bool
    """True if the response is one prediction, False if it is a list."""


class RequestSchema:
    """The requests that a model accepts: one text or pair, or a list of them.

    Args:
        pair: Whether the model takes pairs of texts.
        limits: Limits on the number and length of texts.
        outputs: Numbers that the model returns for a text.

    Attributes:
        single: Pydantic model of a request with one text or pair.
        batch: Pydantic model of a request with a list.
    """

    def __init__(self, pair: bool, limits: Limits, outputs: int = 1) -> None:
        self.pair, self.limits, self.outputs = pair, limits, outputs
        self._single_names, self._batch_names = ("text", "text_b")[: 1 + pair], ("texts", "texts_b")[: 1 + pair]
        text = Annotated[str, Field(max_length=limits.max_characters)]
        texts = Annotated[list[text], Field(max_length=limits.max_texts)]
        self.single = _make_model("SinglePair" if pair else "SingleText", dict.fromkeys(self._single_names, text))
        self.batch = _make_model("Pairs" if pair else "Texts", dict.fromkeys(self._batch_names, texts))

    def parse(self, body: bytes | bytearray) -> Request:
        """Return the texts of a request body.

        orjson parses and pydantic validates: pydantic's own parser accepts NaN and 1e400, which are not JSON.

        Raises:
            RefusedError: If the body is not a request that this model accepts.
        """
        try:
            data = orjson.loads(body)
        except orjson.JSONDecodeError as error:
            raise RefusedError(400, f"The body must be JSON in UTF-8: {error}.", "malformed") from None
        if not isinstance(data, dict):
            raise RefusedError(422, f"The body must be a JSON object; found {_kind(data)}.", "malformed")
        single = "text" in data
        names = self._single_names if single else self._batch_names
        # Checked here, since pydantic would report every one of a hundred thousand unknown names.
        if data.keys() - {"top_k"} != set(names):
            accepted = '"text" and "text_b", or "texts" and "texts_b"' if self.pair else '"text" or "texts"'
            found = ", ".join(json.dumps(name)[:40] for name in list(data)[:5]) or "nothing"
            message = f'This model takes {accepted}, and "top_k", and nothing else; found {found}.'
            raise RefusedError(422, message, "malformed")
        try:
            (self.single if single else self.batch).model_validate(data)
        except ValidationError as error:
            raise self._refusal(data, error.errors(include_url=False)[0]) from None
        columns = [[data[name]] if single else data[name] for name in names]
        if self.pair and len(columns[0]) != len(columns[1]):
            sizes = f"{len(columns[0])} and {len(columns[1])}"
            raise RefusedError(422, f'"texts" and "texts_b" must have the same length; found {sizes}.', "malformed")
        if len(columns[0]) * self.outputs > self.limits.max_outputs:
            most = self.limits.max_outputs // self.outputs
            message = f"A request must have at most {most} texts for {self.outputs} labels; found {len(columns[0])}."
            raise RefusedError(413, message, "too_large")
        return Request(columns[0], columns[1] if self.pair else None, data.get("top_k", TOP_K), single)

    def _refusal(self, data: dict[str, Any], error: Any) -> RefusedError:
        """Return the refusal for the first error that pydantic reports."""
        value, (name, *index) = error["input"], error["loc"]
        if error["type"] == "too_long":
            message = f"A request must have at most {self.limits.max_texts} texts; found {len(data[name])}."
            return RefusedError(413, message, "too_large")
        if error["type"] == "string_too_long":
            message = f"A text must have at most {self.limits.max_characters} characters; found {len(value)}."
            return RefusedError(413, message, "too_large")
        where = "".join([f'"{name}"', *(f"[{i}]" for i in index)])
        expected = "a list of strings" if error["type"] == "list_type" else "a string"
        expected = "a number of labels, at least 1" if name == "top_k" else expected
        return RefusedError(422, f"{where} must be {expected}; found {_kind(value)}.", "malformed")

    def examples(self) -> dict[str, dict[str, Any]]:
        """Return example requests by name: "single" and "batch"."""
        first, second = EXAMPLES
        columns = (first, second)[: 1 + self.pair]
        return {
            "single": dict(zip(self._single_names, (column[0] for column in columns), strict=True)),
            "batch": dict(zip(self._batch_names, map(list, columns), strict=True)),
        }


def response_models(model: Model) -> tuple[Any, type[BaseModel]]:
    """Return types of one prediction and of a list of them."""
    if model.tasks:
        each = [
            _prediction_model(task.problem_type, task.labels, f"Prediction{i}") for i, task in enumerate(model.tasks)
        ]
        names = tuple(task.name for task in model.tasks)
        prediction: Any = dict[Literal[names], Union[tuple(each)]]  # type: ignore[misc, valid-type]  # noqa: UP007
    else:
        prediction = _prediction_model(model.problem_type, model.labels, "Prediction", model.rejection is not None)
    return prediction, create_model("Predictions", predictions=(list[prediction], ...))


def _prediction_model(problem_type: str, labels: Sequence[str], name: str, rejects: bool = False) -> type[BaseModel]:
    label: Any = float
    probability: Any = None
    if problem_type == "single_label_classification":
        label, probability = Literal[tuple(labels)], float
    elif problem_type == "multi_label_classification":
        label, probability = list[Literal[tuple(labels)]], float | None  # type: ignore[misc]
    fields: dict[str, Any] = {"label": (label, ...), "probability": (probability, ...)}
    fields["probabilities"] = (dict[str, float], ...)
    if rejects:
        fields |= {"label": (label | None, ...), "rejected": (bool, ...)}
    return create_model(name, **fields)


def _make_model(name: str, fields: dict[str, Any]) -> type[BaseModel]:
    required: dict[str, Any] = {field: (kind, ...) for field, kind in fields.items()}
    required["top_k"] = (Annotated[int, Field(ge=1, description="Labels with a probability, best first.")], TOP_K)
    return create_model(name, __config__=ConfigDict(extra="forbid", strict=True), **required)


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
