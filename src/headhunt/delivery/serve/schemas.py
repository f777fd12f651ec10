"""What may be asked of a service and what it answers: checked here, and described here for OpenAPI."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headhunt.errors import HeadhuntError


@dataclass(frozen=True)
class Limits:
    """What a client may ask for, and how much may wait."""

    body: int = 1_000_000
    """Bytes of a request."""
    texts: int = 256
    """Texts of a request."""
    characters: int = 20_000
    """Of a text."""
    queue: int = 512
    """Texts that wait or are being answered; more are refused."""
    wait: float = 10.0
    """Seconds a request may wait for its answer."""
    slow: float = 10.0
    """Seconds a client may take to send a request."""
    drain: float = 30.0
    """Seconds to finish what is queued when asked to stop."""

    def __post_init__(self) -> None:
        for name in ("body", "texts", "characters", "queue"):
            if getattr(self, name) < 1:
                raise HeadhuntError(f"The limit of {name} must be at least 1; found {getattr(self, name)}.")
        for name in ("wait", "slow", "drain"):
            if not 0 < getattr(self, name) < math.inf:
                raise HeadhuntError(f"The limit of {name} must be a number of seconds above 0.")
        if self.texts > self.queue:
            raise HeadhuntError(
                f"A whole request must fit in the queue: found {self.texts} texts a request and room for {self.queue}."
            )


class RefusedError(Exception):
    """Why a request is not answered, as the client is told."""

    def __init__(self, status: int, message: str, reason: str, *headers: tuple[bytes, bytes], read: bool = True):
        super().__init__(message)
        self.status, self.message, self.reason, self.headers = status, message, reason, headers
        self.read = read
        """Whether the whole request was read."""


def parse(body: bytes | bytearray, pair: bool, limits: Limits) -> tuple[list[str], list[str] | None, bool]:
    """The texts of a request, the second texts of pairs, and whether one answer is wanted and not a list.

    Raises:
        RefusedError: If the body does not hold what this model takes.
    """
    import orjson

    try:
        asked = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise RefusedError(400, f"The body must be JSON in UTF-8: {error}.", "malformed") from None
    if not isinstance(asked, dict):
        raise RefusedError(422, f"The body must be a JSON object; found {_kind(asked)}.", "malformed")
    one = "text" in asked
    names = (("text", "text_b") if one else ("texts", "texts_b"))[: 1 + pair]
    if asked.keys() != set(names):
        takes = '"text" and "text_b", or "texts" and "texts_b"' if pair else '"text" or "texts"'
        found = ", ".join(json.dumps(name)[:40] for name in list(asked)[:5]) or "nothing"
        raise RefusedError(422, f"This model takes {takes}, and nothing else; found {found}.", "malformed")
    columns = []
    for name in names:
        texts = [asked[name]] if one else asked[name]
        if not isinstance(texts, list):
            raise RefusedError(422, f'"{name}" must be a list of strings; found {_kind(texts)}.', "malformed")
        if len(texts) > limits.texts:
            raise RefusedError(413, f"A request may hold {limits.texts} texts; found {len(texts)}.", "too_large")
        for i, text in enumerate(texts):
            if type(text) is not str:
                where = f'"{name}"' if one else f'"{name}"[{i}]'
                raise RefusedError(422, f"{where} must be a string; found {_kind(text)}.", "malformed")
            if len(text) > limits.characters:
                raise RefusedError(
                    413, f"A text may have {limits.characters} characters; found {len(text)}.", "too_large"
                )
        columns.append(texts)
    if pair and len(columns[0]) != len(columns[1]):
        sizes = f"{len(columns[0])} and {len(columns[1])}"
        raise RefusedError(422, f'"texts" and "texts_b" must be of one length; found {sizes}.', "malformed")
    return columns[0], columns[1] if pair else None, one


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


ERROR = {"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}}
HEALTH = {
    "type": "object",
    "required": ["live", "ready"],
    "properties": {"live": {"type": "boolean"}, "ready": {"type": "boolean"}},
}
EXAMPLES = (("a moving story, well told", "not worth the ticket"), ("the story moves you", "you will want it back"))


def examples(pair: bool) -> dict[str, Any]:
    """Bodies this model takes."""
    (a, b), (c, d) = EXAMPLES
    one = {"text": a, **({"text_b": c} if pair else {})}
    many = {"texts": [a, b], **({"texts_b": [c, d]} if pair else {})}
    return {"one": {"summary": "one", "value": one}, "many": {"summary": "many", "value": many}}


def request_schema(pair: bool, limits: Limits) -> dict[str, Any]:
    """What `/predict` takes: one text or pair, or many."""
    text = {"type": "string", "maxLength": limits.characters}
    texts = {"type": "array", "items": text, "maxItems": limits.texts}

    def of(names: Sequence[str], schema: dict[str, Any]) -> dict[str, Any]:
        used = list(names[: 1 + pair])
        properties = dict.fromkeys(used, schema)
        return {"type": "object", "required": used, "properties": properties, "additionalProperties": False}

    return {"oneOf": [of(("text", "text_b"), text), of(("texts", "texts_b"), texts)]}


def answer_schema(model: Any) -> dict[str, Any]:
    """What `/predict` gives."""
    number, name = {"type": "number"}, {"type": "string", "enum": list(model.labels)}
    label = {
        "single_label_classification": name,
        "multi_label_classification": {"type": "array", "items": name},
        "regression": number,
    }[model.problem_type]
    probability = {
        "single_label_classification": number,
        "multi_label_classification": {"type": ["number", "null"]},
        "regression": {"type": "null"},
    }[model.problem_type]
    one = {
        "type": "object",
        "required": ["label", "probability", "probabilities"],
        "properties": {
            "label": label,
            "probability": probability,
            "probabilities": {"type": "object", "additionalProperties": number},
        },
    }
    predictions = {"predictions": {"type": "array", "items": one}}
    return {"oneOf": [one, {"type": "object", "required": ["predictions"], "properties": predictions}]}
