"""Define the architecture of a head, and of an encoder that is built, as plain data without torch.

The dataclasses are frozen and convert to JSON. A part that is off is `None`. Widths are not part of the data: the
builder (`heads.py`) derives them, so that an invalid shape cannot be expressed.
"""

from __future__ import annotations

import difflib
import sys
import types
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from functools import cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

SCHEMA = 1
MAX_INTEGER = 1 << 63  # numpy and torch take no larger ones

# The modules of these names are in `heads.py`; a test checks that both lists are equal.
POOLINGS = {
    "cls": "the first token's vector",
    "pooler": "the first token's vector after the encoder's pretrained dense layer and tanh",
    "mean": "the mean of the token vectors",
    "max": "the maximum of each feature",
    "mean_max": "mean and max, concatenated",
    "cls_mean_max": "the first token's vector, mean and max, concatenated",
    "attention": "a weighted mean with learned attention weights",
    "routing": "Heinsen routing (arXiv 2211.11754): tokens vote for four output vectors",
}
COMPARISONS = {
    "difference": "|u - v|",
    "dot": "u · v, one number",
    "concat": "[u; v; |u - v|; u * v]",
    "cosine": "the cosine of u and v, one number",
    "combined": "[|u - v|; u * v; cosine]",
}
SYMMETRIC = ("difference", "dot", "cosine", "combined")  # independent of the order of the two texts
SIMILARITIES = ("dot", "cosine")  # one number
WINDOWS = {
    "mean": "the mean of the windows' vectors",
    "max": "the maximum of each feature over the windows",
    "attention": "a weighted mean of the windows' vectors with learned attention weights",
}
WORDS = {
    "beside": "hashed n-grams of token ids beside the pooled vector",
    "alone": "hashed n-grams of token ids, without the encoder",
}
MAX_WINDOWS = 8
"""Most windows of a text; what is beyond them is cut."""
FIXED_POOLINGS = ("cls", "mean", "max", "mean_max", "cls_mean_max")  # without weights
INITIALS = {
    "random": "random weights",
    "spread": "layers of the given encoder, evenly spaced from the lowest",
    "first": "the lowest layers of the given encoder",
}
ACTIVATIONS = {
    "gelu": "GELU",
    "relu": "ReLU",
    "silu": "SiLU",
    "swiglu": "SiLU of one half of the inner vector, times the other half",
}
NORM_POSITIONS = {"pre": "before attention and feed-forward layer", "post": "after each skip connection"}
NORMS = {"layer": "LayerNorm", "rms": "RMSNorm"}
LEAST_COST = 0.05  # of an encoder that is built, relative to the given one: loading and tokens take their time


def require(holds: bool, message: str) -> None:
    """Raise `ValueError` unless `holds`."""
    if not holds:
        raise ValueError(message)


def one_of(value: object, names: object, what: str) -> None:
    """Raise `ValueError`, with the nearest name, unless `value` is one of `names`."""
    choices = [str(name) for name in names]  # type: ignore[attr-defined]
    if value not in choices:
        near = difflib.get_close_matches(str(value), choices, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"{what} must be one of {', '.join(choices)}; found {value!r}.{hint}")


@dataclass(frozen=True, kw_only=True)
class Convolutions:
    """Convolutions along the text that keep its length; padding is masked before every layer."""

    layers: int = 1
    """Number of layers, 1 to 8."""
    channels: int = 128
    """Output features of each layer, 1 to 4096."""
    kernel: int = 3
    """Kernel size in tokens; odd, 1 to 31."""
    skip: bool = True
    """Add each layer's input to its output."""

    def __post_init__(self) -> None:
        require(1 <= self.layers <= 8, f"convolutions.layers must be 1 to 8; found {self.layers}.")
        require(1 <= self.channels <= 4096, f"convolutions.channels must be 1 to 4096; found {self.channels}.")
        require(self.kernel in range(1, 32, 2), f"convolutions.kernel must be odd, 1 to 31; found {self.kernel}.")


@dataclass(frozen=True, kw_only=True)
class Blocks:
    """Transformer encoder blocks (pre-norm) on the token vectors."""

    layers: int = 1
    """Number of layers, 1 to 8."""
    heads: int = 4
    """Attention heads, 1 to 64; the inner width is rounded up to a multiple."""

    def __post_init__(self) -> None:
        require(1 <= self.layers <= 8, f"blocks.layers must be 1 to 8; found {self.layers}.")
        require(1 <= self.heads <= 64, f"blocks.heads must be 1 to 64; found {self.heads}.")


@dataclass(frozen=True, kw_only=True)
class Mlp:
    """Hidden layers (linear, GELU, dropout) before the output layer."""

    layers: int = 1
    """Number of layers, 1 to 8."""
    width: int = 128
    """Output features of each layer, 1 to 8192."""

    def __post_init__(self) -> None:
        require(1 <= self.layers <= 8, f"mlp.layers must be 1 to 8; found {self.layers}.")
        require(1 <= self.width <= 8192, f"mlp.width must be 1 to 8192; found {self.width}.")


@dataclass(frozen=True, kw_only=True)
class Head:
    """A head, from token vectors to logits. `Head()` is the plain head: [CLS] and one linear layer."""

    layers: int | Literal["mix", "concat"] = 1
    """Encoder layers to read: 1 is the last one, k the mean of the last k, "mix" a learned mix of all, "concat" all of
    them, each pooled by itself and then concatenated."""
    convolutions: Convolutions | None = None
    """Convolutions on the token vectors."""
    blocks: Blocks | None = None
    """Encoder blocks on the token vectors, after the convolutions."""
    pooling: str = "cls"
    """Pooling of the token vectors into one vector; see POOLINGS."""
    siamese: str | None = None
    """For pairs: None joins both texts in one sequence; a name of COMPARISONS encodes each text and compares."""
    windows: str | None = None
    """For single texts beyond the maximum length: None cuts them; a name of WINDOWS reads them in overlapping windows
    of that length and combines the windows' vectors."""
    words: str | None = None
    """Word counts that are classified too, in solved heads; see WORDS."""
    mlp: Mlp | None = None
    """Hidden layers before the output layer."""
    dropout: float = 0.1
    """Dropout within the head, 0 to 0.9."""

    def __post_init__(self) -> None:
        if isinstance(self.layers, str):
            one_of(self.layers, ("mix", "concat"), "layers (or a number)")
        else:
            require(1 <= self.layers <= 64, f"layers must be 1 to 64; found {self.layers}.")
        one_of(self.pooling, POOLINGS, "pooling")
        if self.layers == "concat":
            one_of(self.pooling, FIXED_POOLINGS, 'pooling with layers "concat"')
            require(
                self.convolutions is None and self.blocks is None,
                'layers "concat" pools each layer by itself and takes neither convolutions nor blocks.',
            )
        if self.siamese is not None:
            one_of(self.siamese, COMPARISONS, "siamese")
        if self.windows is not None:
            one_of(self.windows, WINDOWS, "windows")
            require(self.siamese is None, "windows are for single texts; a siamese head compares two.")
        if self.words is not None:
            one_of(self.words, WORDS, "words")
        require(0 <= self.dropout <= 0.9, f"dropout must be 0 to 0.9; found {self.dropout}.")

    def reads(self, max_length: int) -> int:
        """Return the number of tokens of a text that are read, special tokens included.

        Args:
            max_length: Maximum number of tokens that the encoder gets at a time.
        """
        return max_length if self.windows is None else max_length + (MAX_WINDOWS - 1) * window_stride(max_length)

    @property
    def plain(self) -> bool:
        """True for the standard head, which transformers can load without Headhunt's code."""
        return self == Head(dropout=self.dropout)


@dataclass(frozen=True, kw_only=True)
class EncoderShape:
    """An encoder that is built, in place of the given one: with random weights, or with some of its layers.

    An encoder made of layers of the given one has its width, heads, tokenizer and everything else; only `initial` and
    `depth` apply. Dropout is part of the recipe.
    """

    initial: str = "random"
    """Initial weights; see INITIALS."""
    depth: int = 2
    """Number of layers, 1 to 48."""
    width: int = 128
    """Width of the token vectors, 8 to 4096."""
    heads: int = 4
    """Attention heads; they divide the width."""
    ffn_ratio: int = 4
    """Inner width of the feed-forward layers, as a multiple of `width`, 1 to 8."""
    activation: str = "gelu"
    """Activation of the feed-forward layers; see ACTIVATIONS."""
    norm_position: str = "pre"
    """Position of the norms; see NORM_POSITIONS."""
    norm: str = "layer"
    """Kind of the norms; see NORMS."""
    vocabulary: int | None = None
    """Tokens of a new tokenizer that is trained on the training texts, at most; None keeps the given encoder's."""

    def __post_init__(self) -> None:
        one_of(self.initial, INITIALS, "shape.initial")
        require(1 <= self.depth <= 48, f"shape.depth must be 1 to 48 layers; found {self.depth}.")
        require(8 <= self.width <= 4096, f"shape.width must be 8 to 4096; found {self.width}.")
        require(
            1 <= self.heads <= self.width and self.width % self.heads == 0,
            f"shape.heads must divide shape.width; found {self.heads} heads and a width of {self.width}.",
        )
        require(1 <= self.ffn_ratio <= 8, f"shape.ffn_ratio must be 1 to 8; found {self.ffn_ratio}.")
        one_of(self.activation, ACTIVATIONS, "shape.activation")
        one_of(self.norm_position, NORM_POSITIONS, "shape.norm_position")
        one_of(self.norm, NORMS, "shape.norm")
        tokens = self.vocabulary
        require(
            tokens is None or 100 <= tokens <= 1_000_000, f"shape.vocabulary must be 100 to 1000000; found {tokens}."
        )

    @property
    def is_random(self) -> bool:
        """True if the weights are random, so that nothing is taken from the given encoder except its tokenizer."""
        return self.initial == "random"

    def canonical(self) -> EncoderShape:
        """Return the same encoder with every field that has no effect at its default."""
        return self if self.is_random else EncoderShape(initial=self.initial, depth=self.depth)

    def kept_layers(self, layers: int) -> list[int]:
        """Return the layers of the given encoder that are kept, lowest first.

        Args:
            layers: Number of layers of the given encoder.
        """
        require(
            self.depth <= layers,
            f"shape.depth must be at most {layers}, the layers of the encoder; found {self.depth}.",
        )
        return [layer * layers // self.depth if self.initial == "spread" else layer for layer in range(self.depth)]

    def cost(self, layers: int, width: int) -> float:
        """Return the cost of training, relative to an encoder of so many layers of a width."""
        relative = self.depth / layers
        if self.is_random:
            matrices = 3 if self.activation == "swiglu" else 2
            relative *= (self.width / width) ** 2 * (4 + matrices * self.ffn_ratio) / 12
        return min(1.0, max(LEAST_COST, relative))


def window_stride(length: int) -> int:
    """Return the tokens between the beginnings of neighbouring windows: they overlap by about a quarter."""
    return length * 3 // 4 - 2


Data = TypeVar("Data")


def to_dict(data: Any) -> dict[str, Any]:
    """Return a dataclass as plain data for JSON, with its schema."""
    return {"schema": SCHEMA, **asdict(data)}


def from_dict(kind: type[Data], data: Any, path: str = "") -> Data:
    """Read the output of `to_dict` strictly: unknown keys and wrong types raise `ValueError`.

    Args:
        kind: The dataclass to create.
        data: A mapping, as read from JSON.
        path: Position of `data` in a larger document, for messages.
    """
    where = path or kind.__name__.lower()
    require(isinstance(data, dict), f"{where} must be an object of names and values; found {data!r}.")
    data = dict(data)
    schema = data.pop("schema", SCHEMA)
    require(schema == SCHEMA, f"{where} has schema {schema!r}; this version reads schema {SCHEMA}.")
    hints = _type_hints(kind)  # type: ignore[arg-type]
    known = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    for key in data:
        one_of(key, known, f"{where}: each key")
    for field in fields(kind):  # type: ignore[arg-type]
        needed = field.default is MISSING and field.default_factory is MISSING
        require(not needed or field.name in data, f"{where}.{field.name} is missing.")
    return kind(**{key: _read(hints[key], value, f"{where}.{key}") for key, value in data.items()})


@cache
def _type_hints(kind: Any) -> dict[str, Any]:
    """Return the types of the fields. Evaluating them takes most of the time of reading a spec."""
    return get_type_hints(kind)


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
        return is_number(value)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool) and abs(value) < MAX_INTEGER
    return isinstance(value, hint)


def is_number(value: Any) -> bool:
    """Return True for integers and floats that are finite as floats."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and -sys.float_info.max <= value <= sys.float_info.max


def _describe(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return " or ".join(repr(choice) for choice in get_args(hint))
    if get_origin(hint) in (Union, types.UnionType):
        return " or ".join(_describe(option) for option in get_args(hint))
    if is_dataclass(hint):
        return "an object"
    names = {float: "a number", int: "a whole number", str: "a string", bool: "true or false", type(None): "nothing"}
    return names.get(hint, str(hint))
