"""Hypothesis strategies that damage valid files: their bytes, their JSON values, their tables and requests."""

from __future__ import annotations

import contextlib
import copy
import json
import math
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

DEEP, HUGE, DIGITS, OVERFLOW = "@deep", "@huge", "@digits", "@overflow"
# Texts that JSON writers cannot produce, put in place of a string after writing.
RAW = {
    DEEP: "[" * 60_000 + "]" * 60_000,
    HUGE: "1" + "0" * 400,
    DIGITS: "9" * 5_000,
    OVERFLOW: "-1e400",
}
NAMES = [
    "../../outside",
    "/etc/passwd",
    "..",
    ".",
    "a/b",
    "a\\b",
    "C:\\x",
    "a\0b",
    "x" * 5_000,
    "__class__",
    "outside.py",
]
TEXTS = [
    "",
    " ",
    "\0",
    "\ud800",
    "\u202e",
    "é" * 3,
    "nan",
    "off",
    "true",
    "1e5",
    "{}",
    "%s%n",
    "{0.__class__}",
    "\n",
    "|",
]
NUMBERS = [
    0,
    -1,
    1,
    2,
    255,
    2**31,
    -(2**63),
    2**63,
    10**30,
    0.0,
    -0.0,
    1e-320,
    0.5,
    1e308,
    math.nan,
    math.inf,
    -math.inf,
]
VALUES = [None, True, False, [], {}, [[]], [None], {"": None}, *NUMBERS, *TEXTS, *NAMES, *RAW]
BYTES = [
    b"",
    b"\0",
    b"\xff" * 8,
    b"\x80",
    b"\n",
    b'"',
    b",",
    b"{",
    b"]",
    b"NaN",
    b"\xed\xa0\x80",
    b"\x7f\xff\xff\xff",
    b"\0" * 64,
]


@st.composite
def damaged_bytes(draw: Callable[..., Any], content: bytes) -> bytes:
    """Return the bytes of a file with one to four of them changed, removed, moved or inserted."""
    data = bytearray(content)
    for _ in range(draw(st.integers(1, 4))):
        size = len(data)
        start = draw(st.integers(0, size))
        length = draw(st.integers(0, 64))
        match draw(st.integers(0, 6)):
            case 0 if size:
                data[min(start, size - 1)] ^= 1 << draw(st.integers(0, 7))
            case 1:
                del data[start:]
            case 2:
                del data[start : start + length]
            case 3:
                source = draw(st.integers(0, size))
                data[start:start] = data[source : source + length]
            case 4:
                data[start : start + length] = draw(st.sampled_from(BYTES))
            case 5:
                data[start : start + length] = draw(st.binary(max_size=16))
            case 6 if size:
                data[min(start, size - 1)] = draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]))
    return bytes(data)


@st.composite
def damaged_values(draw: Callable[..., Any], document: Any) -> Any:
    """Return plain data with one to three values replaced, removed, renamed or added."""
    holder = [copy.deepcopy(document)]
    for _ in range(draw(st.integers(1, 3))):
        parent, key = draw(st.sampled_from(list(_places(holder))))
        match draw(st.integers(0, 6)):
            case 0 | 1 | 2:
                parent[key] = copy.deepcopy(draw(st.sampled_from(VALUES)))  # it may be changed next
            case 3 if isinstance(parent, dict) or len(parent) > 1:
                del parent[key]
            case 4 if isinstance(parent, dict):
                parent[draw(st.sampled_from([*NAMES, *TEXTS]))] = parent.pop(key)
            case 5:
                other, place = draw(st.sampled_from(list(_places(holder))))
                parent[key] = copy.deepcopy(other[place])
            case 6:
                parent[key] = [parent[key]] * draw(st.sampled_from([1, 2, 50]))
        if not holder:
            holder = [None]
    return holder[0]


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every place of nested lists and objects as its parent and key."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in list(items)[:200]:
        yield value, key
        yield from _places(item)


def to_json(document: Any) -> bytes:
    """Write damaged data as JSON. Raw texts take the place of their names."""
    text = json.dumps(document)
    for name, raw in RAW.items():
        text = text.replace(f'"{name}"', raw)
    return text.encode("utf-8", "surrogatepass")


def to_toml(document: Any) -> bytes:
    """Write damaged data as TOML, with inline tables."""
    lines = (
        [f"{json.dumps(key)} = {_toml(value)}" for key, value in document.items()] if isinstance(document, dict) else []
    )
    return "\n".join(lines).encode("utf-8", "surrogatepass")


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {_toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, float):
        return str(value)
    return RAW.get(value, json.dumps(value, ensure_ascii=False)) if isinstance(value, str) else json.dumps(value)


def damaged_json(document: Any, write: Callable[[Any], bytes] = to_json) -> st.SearchStrategy[bytes]:
    """Return damaged data as a file, sometimes with damaged bytes instead."""
    return st.one_of(
        damaged_values(document).map(write), damaged_values(document).map(write), damaged_bytes(write(document))
    )


@st.composite
def odd_tables(draw: Callable[..., Any]) -> pa.Table:
    """Return a table of texts and labels whose columns have unusual types, names, nulls or sizes."""
    rows = draw(st.sampled_from([0, 1, 12, 12, 12, 40]))
    columns, names = [], []
    for name in draw(st.permutations(["text", "label", "text_b", "", "x" * 300, "a\nb", "text"]))[
        : draw(st.integers(1, 4))
    ]:
        names.append(name)
        columns.append(draw(_columns(rows)))
    return pa.Table.from_arrays(columns, names=names)


@st.composite
def _columns(draw: Callable[..., Any], rows: int) -> pa.Array:
    words = [f"a text of some words {row}" for row in range(rows)]
    values: list[Any] = words
    kind = draw(st.sampled_from(sorted(_MAKERS)))
    array = _MAKERS[kind](values)
    if draw(st.booleans()) and rows:
        missing = draw(st.lists(st.integers(0, rows - 1), max_size=rows))
        with contextlib.suppress(pa.ArrowException):  # some types cannot be selected from
            array = array.take(pa.array([None if row in missing else row for row in range(rows)], pa.int64()))
    return array


_MAKERS: dict[str, Callable[[list[str]], pa.Array]] = {
    "text": pa.array,
    "few": lambda words: pa.array([f"class {len(word) % 2}{row % 2}" for row, word in enumerate(words)], pa.string()),
    "large": lambda words: pa.array(words, pa.large_string()),
    "view": lambda words: pa.array(words, pa.string_view()),
    "binary": lambda words: pa.array([b"\xff\xfe" + word.encode() for word in words], pa.binary()),
    "fixed": lambda words: pa.array([b"ab"] * len(words), pa.binary(2)),
    "not utf-8": lambda words: pa.array([b"\xff" for _ in words], pa.binary()).view(pa.string()),
    "dictionary": lambda words: pa.array(words, pa.string()).dictionary_encode(),
    "integers": lambda words: pa.array([row % 3 for row, _ in enumerate(words)], pa.int64()),
    "huge": lambda words: pa.array([2**64 - 1 for _ in words], pa.uint64()),
    "floats": lambda words: pa.array([(math.nan, math.inf, 1.5)[row % 3] for row, _ in enumerate(words)], pa.float64()),
    "half": lambda words: pa.array([1.5] * len(words), pa.float64()).cast(pa.float16()),
    "flags": lambda words: pa.array([row % 2 == 0 for row, _ in enumerate(words)], pa.bool_()),
    "nothing": lambda words: pa.nulls(len(words)),
    "dates": lambda words: pa.array([2**30] * len(words), pa.int32()).cast(pa.date32()),
    "times": lambda words: pa.array([2**62] * len(words), pa.int64()).cast(pa.timestamp("s")),
    "decimals": lambda words: pa.array([10**30] * len(words), pa.decimal128(38, 2)),
    "durations": lambda words: pa.array([2**62] * len(words), pa.int64()).cast(pa.duration("ns")),
    "lists": lambda words: pa.array([word.split()[:2] for word in words], pa.list_(pa.string())),
    "nested": lambda words: pa.array([[[1]] for _ in words], pa.list_(pa.list_(pa.int64()))),
    "objects": lambda words: pa.array([{"a": word} for word in words], pa.struct([("a", pa.string())])),
    "maps": lambda words: pa.array([[("a", 1)] for _ in words], pa.map_(pa.string(), pa.int64())),
    "union": lambda words: pa.UnionArray.from_sparse(
        pa.array([0] * len(words), pa.int8()), [pa.array(words, pa.string()), pa.array([1] * len(words), pa.int64())]
    ),
    "runs": lambda words: pa.RunEndEncodedArray.from_arrays(
        pa.array([len(words)] if words else [], pa.int32()), pa.array(["a"] if words else [], pa.string())
    ),
}
