"""Convert frozen dataclasses to plain JSON data and back, checking every value on the way in."""

from __future__ import annotations

import math
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from headhunt.errors import HeadhuntError, SpecError
from headhunt.modeling.architecture import MAX_INTEGER, is_number
from headhunt.spec import Spec
from headhunt.storage import read_json, write_json

SCHEMA = 3
"""Version of every file in a run directory."""
Data = TypeVar("Data")


class RunError(HeadhuntError):
    """A run directory cannot be used as requested."""


def write(path: Path, data: Any) -> None:
    """Write a dataclass as a JSON file with its schema version."""
    write_json(path, {"schema": SCHEMA, **dump(data)})


def read(path: Path, cls: type[Data]) -> Data:
    """Read a file that `write` wrote.

    Raises:
        RunError: If the file is missing, has another schema, or a value of the wrong type.
    """
    try:
        data = read_json(path)
    except (OSError, ValueError) as error:
        raise RunError(f"{path} must be a file of a search; it cannot be read ({error}).") from None
    if not isinstance(data, dict):
        raise RunError(f"{path} must hold a JSON object; found {type(data).__name__}.")
    check_schema(data.pop("schema", None), path)
    try:
        return load(cls, data, path.name)
    except ValueError as error:
        raise RunError(f"{path} is not valid: {error}") from None


def check_schema(schema: Any, where: Any) -> None:
    """Refuse a file of another version.

    Raises:
        RunError: If the version differs.
    """
    if schema != SCHEMA:
        raise RunError(
            f"{where} must have schema {SCHEMA}; found {schema!r}, of another version. "
            "Update Headhunt, or run the search again."
        )


def dump(value: Any) -> Any:
    """Return plain JSON data: dataclasses become objects, tuples lists, and numbers that are not finite null."""
    if isinstance(value, Spec):
        return value.to_dict()
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: dump(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): dump(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [dump(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def load(cls: type[Data], data: Any, where: str = "") -> Data:
    """Build a dataclass from plain JSON data.

    Args:
        cls: The dataclass.
        data: A mapping as `dump` returns it.
        where: Name of the data, for messages.

    Raises:
        ValueError: If a key is unknown or missing, or a value has the wrong type.
    """
    where = where or cls.__name__
    if not isinstance(data, dict):
        raise ValueError(f"{where} must be an object; found {data!r:.80}.")
    hints = _hints(cls)  # type: ignore[arg-type]
    unknown = sorted(data.keys() - hints.keys())
    if unknown:
        raise ValueError(f"{where} has the unknown key {unknown[0]!r}.")
    for field in fields(cls):  # type: ignore[arg-type]
        required = field.default is MISSING and field.default_factory is MISSING
        if required and field.name not in data:
            raise ValueError(f"{where}.{field.name} is missing.")
    return cls(**{key: convert(hints[key], value, f"{where}.{key}") for key, value in data.items()})


@cache
def _hints(cls: Any) -> dict[str, Any]:
    return get_type_hints(cls)


def convert(hint: Any, value: Any, where: str) -> Any:
    """Return a value of plain JSON data as a type; raise ValueError if it is of another."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if hint is Spec:
        try:
            return Spec.from_dict(value)
        except SpecError as error:
            raise ValueError(f"{where}: {error}") from None
    if origin in (Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        return convert(next(option for option in arguments if option is not type(None)), value, where)
    if is_dataclass(hint):
        return load(hint, value, where)  # type: ignore[arg-type]
    if origin in (list, tuple) and isinstance(value, list | tuple):
        items = [convert(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(value)]
        return items if origin is list else tuple(items)
    if origin is dict and isinstance(value, dict):
        return {key: convert(arguments[1], item, f"{where}.{key}") for key, item in value.items()}
    if origin is Literal and value in arguments:
        return value
    if hint is float and (value is None or is_number(value)):
        return math.nan if value is None else float(value)
    if hint in (str, bool, int) and type(value) is hint and (hint is not int or abs(value) < MAX_INTEGER):
        return value
    raise ValueError(f"{where} must be {_describe(hint)}; found {value!r:.80}.")


def _describe(hint: Any) -> str:
    names = {float: "a number", int: "a whole number", str: "a string", bool: "true or false"}
    if get_origin(hint) is Literal:
        return " or ".join(repr(option) for option in get_args(hint))
    return names.get(hint) or ("a list" if get_origin(hint) in (list, tuple) else "an object")


def is_bare_name(name: Any) -> bool:
    """Return whether a string is a plain file name: no directory, no parent, nothing hidden."""
    return isinstance(name, str) and bool(name) and not name.startswith(".") and not set(name) & set("/\\:\0")
