"""The head as plain data: what sits between the encoder's token vectors and the answer.

Frozen, versioned, JSON-able, and free of torch. A part that is off is `None`, so that a head can be written down in one
way only, and an invalid shape cannot be written down at all: widths are worked out by the builder (`heads.py`).
"""

from __future__ import annotations

import difflib
import types
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

SCHEMA = 1

# Names are listed here and built in `heads.py`; a test holds the two lists equal.
POOLINGS = {
    "cls": "the first token's vector",
    "pooler": "the first token's vector through the encoder's own pretrained dense layer and tanh",
    "mean": "the mean of the token vectors",
    "max": "the largest value of each feature",
    "mean_max": "mean and max side by side, twice as wide",
    "attention": "a weighted mean; the weights are learned from the vectors",
    "routing": "Heinsen routing (arXiv 2211.11754): tokens vote for four output vectors",
}
COMPARISONS = {
    "difference": "|u - v|",
    "dot": "u · v, one number",
    "concat": "[u; v; |u - v|; u * v]",
    "cosine": "the cosine of u and v, one number",
}
SYMMETRIC = ("difference", "dot", "cosine")  # the same whichever text comes first


def require(holds: bool, message: str) -> None:
    """Raises `ValueError` unless `holds`."""
    if not holds:
        raise ValueError(message)


def one_of(value: object, names: object, what: str) -> None:
    """Raises `ValueError`, with the nearest name, unless `value` is among `names`."""
    choices = [str(name) for name in names]  # type: ignore[attr-defined]
    if value not in choices:
        near = difflib.get_close_matches(str(value), choices, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"{what} must be one of {', '.join(choices)}; found {value!r}.{hint}")


@dataclass(frozen=True, kw_only=True)
class Convolutions:
    """Convolutions along the text. The length is kept; padding is masked before every layer."""

    layers: int = 1
    """How many, 1 to 8."""
    channels: int = 128
    """Features each layer gives, 1 to 4096."""
    kernel: int = 3
    """How many neighbouring tokens one output sees; odd, 1 to 31."""
    skip: bool = True
    """Whether each layer's input is added to its output."""

    def __post_init__(self) -> None:
        require(1 <= self.layers <= 8, f"convolutions.layers must be 1 to 8; found {self.layers}.")
        require(1 <= self.channels <= 4096, f"convolutions.channels must be 1 to 4096; found {self.channels}.")
        require(self.kernel in range(1, 32, 2), f"convolutions.kernel must be odd, 1 to 31; found {self.kernel}.")


@dataclass(frozen=True, kw_only=True)
class Blocks:
    """Transformer encoder blocks (pre-norm) on the token vectors."""

    layers: int = 1
    """How many, 1 to 8."""
    heads: int = 4
    """Attention heads, 1 to 64; any width works, the inner width is rounded up to a multiple."""

    def __post_init__(self) -> None:
        require(1 <= self.layers <= 8, f"blocks.layers must be 1 to 8; found {self.layers}.")
        require(1 <= self.heads <= 64, f"blocks.heads must be 1 to 64; found {self.heads}.")


@dataclass(frozen=True, kw_only=True)
class Mlp:
    """Hidden layers (linear, GELU, dropout) before the output layer."""

    layers: int = 1
    """How many, 1 to 8."""
    width: int = 128
    """Features each layer gives, 1 to 8192."""

    def __post_init__(self) -> None:
        require(1 <= self.layers <= 8, f"mlp.layers must be 1 to 8; found {self.layers}.")
        require(1 <= self.width <= 8192, f"mlp.width must be 1 to 8192; found {self.width}.")


@dataclass(frozen=True, kw_only=True)
class Head:
    """What turns token vectors into an answer. `Head()` is the plain head: [CLS] and one linear layer."""

    layers: int | Literal["mix"] = 1
    """Whose vectors: 1 is the encoder's last layer, k the mean of its last k, "mix" a learned mix of all."""
    convolutions: Convolutions | None = None
    """Convolutions on the token vectors, first in line."""
    blocks: Blocks | None = None
    """Encoder blocks on the token vectors, after the convolutions."""
    pooling: str = "cls"
    """How token vectors become one vector; see POOLINGS."""
    siamese: str | None = None
    """For pairs: None reads both texts as one sequence; a name of COMPARISONS encodes each alone and compares."""
    mlp: Mlp | None = None
    """Hidden layers before the output."""
    dropout: float = 0.1
    """Dropout within the head, 0 to 0.9."""

    def __post_init__(self) -> None:
        if self.layers != "mix":
            require(isinstance(self.layers, int), f'layers must be a number or "mix"; found {self.layers!r}.')
            require(1 <= self.layers <= 64, f"layers must be 1 to 64; found {self.layers}.")
        one_of(self.pooling, POOLINGS, "pooling")
        if self.siamese is not None:
            one_of(self.siamese, COMPARISONS, "siamese")
        require(0 <= self.dropout <= 0.9, f"dropout must be 0 to 0.9; found {self.dropout}.")

    @property
    def plain(self) -> bool:
        """Whether this is the head everyone uses, which transformers can hold without our code."""
        return self == Head(dropout=self.dropout)


Data = TypeVar("Data")


def to_dict(data: Any) -> dict[str, Any]:
    """A dataclass as plain, JSON-able data, with its schema."""
    return {"schema": SCHEMA, **asdict(data)}


def from_dict(kind: type[Data], data: Any, path: str = "") -> Data:
    """Reads what `to_dict` wrote, strictly: unknown keys and wrong types are refused, with where and what to do.

    Args:
        kind: The dataclass to make.
        data: A mapping, as JSON gives it.
        path: Where in a larger document `data` stands, for messages.
    """
    where = path or kind.__name__.lower()
    require(isinstance(data, dict), f"{where} must be a table of values; found {data!r}.")
    data = dict(data)
    schema = data.pop("schema", SCHEMA)
    require(schema == SCHEMA, f"{where} has schema {schema!r}; this version reads schema {SCHEMA}.")
    hints = get_type_hints(kind)
    known = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    for key in data:
        one_of(key, known, f"{where}: each key")
    for field in fields(kind):  # type: ignore[arg-type]
        needed = field.default is MISSING and field.default_factory is MISSING
        require(not needed or field.name in data, f"{where}.{field.name} is missing.")
    return kind(**{key: _read(hints[key], value, f"{where}.{key}") for key, value in data.items()})


def _read(hint: Any, value: Any, path: str) -> Any:
    if is_dataclass(hint):
        return from_dict(hint, value, path)  # type: ignore[arg-type]
    if get_origin(hint) in (Union, types.UnionType):
        nested = [option for option in get_args(hint) if is_dataclass(option)]
        if nested and isinstance(value, dict):
            return from_dict(nested[0], value, path)  # type: ignore[arg-type]
        for option in get_args(hint):
            if not is_dataclass(option) and _fits(option, value):
                return float(value) if option is float else value
    elif _fits(hint, value):
        return float(value) if hint is float else value
    raise ValueError(f"{path} must be {_describe(hint)}; found {value!r}.")


def _fits(hint: Any, value: Any) -> bool:
    if get_origin(hint) is Literal:
        return any(value == choice and type(value) is type(choice) for choice in get_args(hint))
    if hint is type(None):
        return value is None
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint)


def _describe(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return " or ".join(repr(choice) for choice in get_args(hint))
    if get_origin(hint) in (Union, types.UnionType):
        return " or ".join(_describe(option) for option in get_args(hint))
    if is_dataclass(hint):
        return "a table"
    names = {float: "a number", int: "a whole number", str: "a string", bool: "true or false", type(None): "nothing"}
    return names.get(hint, str(hint))
