"""Define the events of a ledger and encode each as one checked line of JSON.

A line begins with the CRC-32 of the rest of it, so that a damaged record is found whatever the damage:

    {"crc":"1f2e3d4c","schema":3,"event":"start","at":1731672000.123,"trial":4,"rung":0,"attempt":0}
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, ClassVar
from zlib import crc32

from headhunt.modeling.architecture import MAX_INTEGER, is_number
from headhunt.run.schema import SCHEMA, RunError, check_schema, is_bare_name
from headhunt.storage import parse_json

OUTCOMES = {
    "ok": "trained and scored",
    "collapsed": "predicts one class, or its loss is constant or not a number",
    "memory": "ran out of memory",
    "limit": "slower or larger than allowed",
    "lost": "its worker died",
    "error": "failed for another reason",
}
MAX_RUNGS = 64  # a ladder has a few; code that counts up to a rung must end
STOPPED = "stopped"  # not a result: cut off by the deadline, to be continued when the search is resumed
DISK = "disk"  # not a result: the disk of the worker is full or failing, so that the work must be repeated
_PREFIX = b'{"crc":"'
_BODY = len(_PREFIX) + 8 + 2  # where the rest of a line begins, after the checksum, its quote and a comma


def _is_count(value: Any, below: int = MAX_INTEGER) -> bool:
    return type(value) is int and 0 <= value < below


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


RULES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(("trial", "attempt", "examples"), ("a whole number, not negative", _is_count)),
    **dict.fromkeys(
        ("rung", "bracket"), (f"a whole number from 0 to {MAX_RUNGS - 1}", partial(_is_count, below=MAX_RUNGS))
    ),
    **dict.fromkeys(("task", "hash", "origin", "key", "reason"), ("a string", _is_text)),
    **dict.fromkeys(("space", "settings", "versions", "spec", "extra"), ("an object", _is_object)),
    "seed": ("a whole number", lambda value: type(value) is int and abs(value) < MAX_INTEGER),
    "params": ("an object or null", lambda value: value is None or _is_object(value)),
    "outcome": ("a known outcome", lambda value: _is_text(value) and value in (*OUTCOMES, STOPPED, DISK)),
    "score": ("a number or null", lambda value: value is None or is_number(value)),
    "seconds": ("a number, not negative", lambda value: is_number(value) and value >= 0),
    "folder": ("a bare name", is_bare_name),
    "models": ("a list of strings", lambda value: isinstance(value, list) and all(map(_is_text, value))),
}
"""What holds for a field of this name in every event, in words and as a function."""


class Event:
    """One thing that happened in a search. A value that breaks the rule of its field raises `ValueError`."""

    name: ClassVar[str]

    def __post_init__(self) -> None:
        for name in _FIELDS[type(self)]:
            rule, holds = RULES[name]
            if not holds(getattr(self, name)):
                raise ValueError(f"{name} is {rule}")


@dataclass(frozen=True, slots=True)
class RunStarted(Event):
    """The first record: what a resumed search must share with its beginning, and versions."""

    name: ClassVar[str] = "run"
    space: dict[str, Any]
    task: str
    """Fingerprint of the data."""
    settings: dict[str, Any]
    """Strategy, its options and the rungs; plain data that is only compared and shown."""
    seed: int
    versions: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        Event.__post_init__(self)
        if not all(map(is_number, self.fractions)):
            raise ValueError("the fractions of a ladder are numbers")

    @property
    def fractions(self) -> tuple[float, ...]:
        """The fraction of a trial's budget at each rung."""
        ladder = self.settings.get("ladder")
        fractions = ladder.get("fractions") if isinstance(ladder, dict) else None
        return tuple(fractions) if isinstance(fractions, list | tuple) else ()


@dataclass(frozen=True, slots=True)
class TrialAdded(Event):
    """A new trial."""

    name: ClassVar[str] = "trial"
    trial: int
    spec: dict[str, Any]
    hash: str
    params: dict[str, Any] | None
    """Every parameter by its path, inactive ones too; None if the space cannot express the candidate."""
    origin: str
    bracket: int
    """The rung it starts at."""


@dataclass(frozen=True, slots=True)
class TrialStarted(Event):
    """A trial was sent to a worker."""

    name: ClassVar[str] = "start"
    trial: int
    rung: int
    attempt: int


@dataclass(frozen=True, slots=True)
class TrialFinished(Event):
    """The result of a trial at a rung."""

    name: ClassVar[str] = "result"
    trial: int
    rung: int
    outcome: str
    score: float | None
    seconds: float
    examples: int
    extra: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        Event.__post_init__(self)
        if self.outcome not in OUTCOMES or (self.score is not None) != (self.outcome == "ok"):
            raise ValueError(f"outcome is one of {', '.join(OUTCOMES)}, and score is a number if it is ok, else null")


@dataclass(frozen=True, slots=True)
class ModelSaved(Event):
    """A model was saved as the best so far."""

    name: ClassVar[str] = "model"
    trial: int
    folder: str
    """Name of its directory among the models of the run."""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class JobStarted(Event):
    """Work beside the trials was sent to a worker, such as fitting a model on all rows."""

    name: ClassVar[str] = "job"
    key: str
    """The kind of work and what it makes."""
    trial: int
    seed: int


@dataclass(frozen=True, slots=True)
class JobFinished(Event):
    """The outcome of such work."""

    name: ClassVar[str] = "done"
    key: str
    outcome: str
    seconds: float
    examples: int
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RunResumed(Event):
    """A new writer continues the run; trials that were running are queued again."""

    name: ClassVar[str] = "resumed"


@dataclass(frozen=True, slots=True)
class FinalTestRun(Event):
    """The test rows were used: models predicted them."""

    name: ClassVar[str] = "test"
    models: list[str]


@dataclass(frozen=True, slots=True)
class SearchEnded(Event):
    """The search phase ended."""

    name: ClassVar[str] = "end"
    reason: str


_EVENTS: tuple[type[Event], ...] = (
    RunStarted,
    TrialAdded,
    TrialStarted,
    TrialFinished,
    ModelSaved,
    JobStarted,
    JobFinished,
    RunResumed,
    FinalTestRun,
    SearchEnded,
)
EVENTS = {event.name: event for event in _EVENTS}
_FIELDS = {event: tuple(item.name for item in fields(event)) for event in _EVENTS}  # type: ignore[arg-type]


def encode(event: Event, at: float) -> bytes:
    """Return an event as a line of the ledger.

    Args:
        event: The event.
        at: Seconds since 1970.
    """
    record = {"schema": SCHEMA, "event": event.name, "at": at}
    record |= {name: getattr(event, name) for name in _FIELDS[type(event)]}
    body = json.dumps(record, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()[1:]
    return _PREFIX + b"%08x" % crc32(body) + b'",' + body + b"\n"


def decode(line: bytes) -> tuple[float, Event]:
    """Return the time and the event of a line, without its newline.

    Raises:
        RunError: If the line is damaged, of another version, or not a valid event.
    """
    body = line[_BODY:]
    if not line.startswith(_PREFIX) or line[_BODY - 2 : _BODY] != b'",':
        raise RunError("a record begins with its checksum")
    if line[len(_PREFIX) : len(_PREFIX) + 8] != b"%08x" % crc32(body):
        raise RunError("the checksum does not fit the record")
    try:
        record = parse_json(b"{" + body)
    except ValueError as error:
        raise RunError(f"the record is not JSON ({error})") from None
    return _event(record)


def _event(record: Mapping[str, Any]) -> tuple[float, Event]:
    values = dict(record)
    check_schema(values.pop("schema", None), "The ledger")
    name, at = values.pop("event", None), values.pop("at", None)
    cls = EVENTS.get(name) if isinstance(name, str) else None
    if cls is None:
        raise RunError(f"the event is one of {', '.join(EVENTS)}; found {name!r}")
    if not is_number(at):
        raise RunError("the time of an event is a number")
    try:
        return float(at), cls(**values)
    except TypeError as error:
        raise RunError(f"the event {name!r} does not have these fields ({error})") from None
    except ValueError as error:
        raise RunError(f"in the event {name!r}, {error}") from None
