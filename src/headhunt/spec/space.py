"""What may be chosen, as data: a tree in the shape of a `Spec` with leaves in place of values.

A sampler sees every leaf of the tree each time, named by its path ("head.convolutions.kernel"), whether its part is on
or off; what is off is then left out, so that the same candidate has one form and one hash however it was reached.
"""

from __future__ import annotations

import difflib
import json
import random
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any, get_args, get_type_hints

from headhunt.errors import SpecError
from headhunt.modeling.architecture import COMPARISONS, POOLINGS
from headhunt.spec.spec import FREEZES, SCHEDULES, Spec

SCHEMA = 1
OFF = "off"  # how a file, which may have no null, writes None


@dataclass(frozen=True)
class Choice:
    """One of a few values."""

    options: tuple[Any, ...]

    def __str__(self) -> str:
        return " · ".join(OFF if option is None else str(option).lower() for option in self.options)


@dataclass(frozen=True)
class Int:
    """A whole number, both ends included."""

    low: int
    high: int

    def __str__(self) -> str:
        return f"{self.low} … {self.high}"


@dataclass(frozen=True)
class Float:
    """A number between two others."""

    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.low:g} … {self.high:g}"


@dataclass(frozen=True)
class Log:
    """A positive number whose logarithm is drawn evenly."""

    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.low:g} … {self.high:g} (log)"


Leaf = Choice | Int | Float | Log
Suggest = Callable[[str, Leaf], Any]


@dataclass(frozen=True)
class Maybe:
    """A part of the head or recipe that may be left out."""

    tree: dict[str, Any]


@dataclass(frozen=True)
class Space:
    """What may be chosen.

    `tree` has the keys of a `Spec`; a value is a leaf, a nested tree, a `Maybe`, or a constant.
    """

    name: str
    tree: dict[str, Any]

    def __post_init__(self) -> None:
        _check(self.tree, Spec, "")
        for pick in (0, -1):  # every leaf's ends must make a valid spec
            self.sample(partial(_end, pick), encoder="any")

    def leaves(self) -> Iterator[tuple[str, Leaf]]:
        """Every parameter by its path, the switch of a part that may be off (a `Choice` of false, true) included."""
        yield from _leaves(self.tree, "")

    def sample(self, suggest: Suggest, *, encoder: str | None = None, pair: bool = True) -> Spec:
        """Draws a candidate.

        Args:
            suggest: Called for every leaf with its path; gives the value.
            encoder: The encoder, where the space names none.
            pair: Whether the task has two texts; choices about pairs are void otherwise.

        Raises:
            SpecError: If the values make no candidate, or no encoder is named.
        """
        data = _draw(self.tree, suggest, "")
        if encoder and "encoder" not in data:
            data["encoder"] = encoder
        if not pair:
            data.get("head", {}).pop("siamese", None)
            data.get("recipe", {}).pop("swap_pairs", None)
        return Spec.from_dict(data)

    def draw(self, seed: int, *, encoder: str | None = None, pair: bool = True) -> Spec:
        """Draws a candidate at random."""
        rng = random.Random(seed)
        return self.sample(lambda path, leaf: draw_leaf(leaf, rng), encoder=encoder, pair=pair)

    def size(self) -> int:
        """How many architectures there are: heads and what of the encoder is frozen; no rates, no other numbers."""
        freeze = self.tree.get("recipe", {}).get("freeze")
        return _count(self.tree.get("head", {})) * (_count({"freeze": freeze}) if freeze is not None else 1)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as a file holds it."""
        return {"schema": SCHEMA, "name": self.name, **_plain(self.tree)}

    @classmethod
    def from_dict(cls, data: dict[str, Any], name: str = "own") -> Space:
        """Reads what a TOML or JSON file holds.

        Raises:
            SpecError: If a name is unknown or a value makes no valid spec.
        """
        data = dict(data)
        if data.pop("schema", SCHEMA) != SCHEMA:
            raise SpecError(f"A space must have schema {SCHEMA}.")
        return cls(data.pop("name", name), _parse(data, ""))

    @classmethod
    def load(cls, name: str | Path, layers: int = 6) -> Space:
        """A space by name (`paper`, `default`) or from a TOML or JSON file.

        Args:
            name: Which.
            layers: How many layers the encoder has: what may be frozen follows from it.
        """
        if name in NAMED:
            return NAMED[str(name)](layers)
        path = Path(name)
        if not path.is_file():
            near = difflib.get_close_matches(str(name), NAMED, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise SpecError(f"A space is {', '.join(NAMED)}, or a TOML or JSON file; found {str(name)!r}.{hint}")
        try:
            text = path.read_text(encoding="utf-8")
            data = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
        except ValueError as error:
            raise SpecError(f"{path} must be TOML (or JSON, if so named); it is not: {error}.") from None
        if not isinstance(data, dict):
            raise SpecError(f"{path} must hold a table with head, recipe or encoder.")
        return cls.from_dict(data, path.stem)


def paper(layers: int = 6) -> Space:
    """What "Neural Architecture Search for Sentence Classification with BERT" (arXiv 2403.18547) describes."""
    return Space(
        "paper",
        {
            "head": {
                "convolutions": Maybe(
                    {
                        "layers": Int(1, 5),
                        "channels": Int(5, 200),
                        "kernel": Choice((3, 5, 7, 9, 11)),
                        "skip": Choice((False, True)),
                    }
                ),
                "blocks": Maybe({"layers": Int(1, 5), "heads": Choice((1, 2, 4, 8, 16))}),
                "pooling": Choice(("cls", "mean", "max")),
                "mlp": {"layers": Int(1, 5), "width": Int(5, 200)},
            },
            "recipe": {
                "learning_rate": Log(1e-5, 1e-4),
                "freeze": Choice(("none", "all")),
                "batch_size": 32,
                "epochs": 10.0,
                "schedule": "cosine",
            },
        },
    )


def default(layers: int = 6) -> Space:
    """Ours: narrower heads, all poolings and comparisons, and the recipe items that decide on small data."""
    some = sorted({round(layers * share) for share in (1 / 3, 1 / 2, 2 / 3)} - {0, layers})
    return Space(
        "default",
        {
            "head": {
                "layers": Choice((1, 2, 4, "mix")),
                "convolutions": Maybe(
                    {
                        "layers": Int(1, 2),
                        "channels": Choice((64, 128, 192, 256)),
                        "kernel": Choice((3, 5, 7)),
                        "skip": Choice((False, True)),
                    }
                ),
                "blocks": Maybe({"layers": Int(1, 2), "heads": Choice((1, 4, 8))}),
                "pooling": Choice(tuple(POOLINGS)),
                "siamese": Choice((None, *COMPARISONS)),
                "mlp": Maybe({"layers": Int(1, 2), "width": Choice((64, 128, 256, 512))}),
                "dropout": Float(0.0, 0.4),
            },
            "recipe": {
                "learning_rate": Log(2e-5, 5e-4),
                "head_lr_multiplier": Log(1.0, 30.0),
                "layer_decay": Choice((1.0, 0.95, 0.9, 0.8)),
                "weight_decay": Choice((0.0, 1e-5, 1e-4, 1e-2)),
                "schedule": Choice(tuple(SCHEDULES)),
                "warmup": Choice((0.0, 0.06, 0.2)),
                "freeze": Choice(("none", "embeddings", *some, "all")),
                "batch_size": Choice((16, 32)),
                "encoder_dropout": Choice((None, 0.0, 0.2)),
                "label_smoothing": Choice((0.0, 0.05, 0.1)),
                "class_weights": Choice((False, True)),
                "smart": Maybe({"weight": Log(1.0, 15.0)}),
                "truncation": Choice(("end", "middle")),
                "swap_pairs": Choice((False, True)),
            },
        },
    )


NAMED: dict[str, Callable[[int], Space]] = {"paper": paper, "default": default}


def _leaves(tree: dict[str, Any], path: str) -> Iterator[tuple[str, Leaf]]:
    for key, node in tree.items():
        here = f"{path}{key}"
        if isinstance(node, Maybe):
            yield here, Choice((False, True))
            yield from _leaves(node.tree, here + ".")
        elif isinstance(node, dict):
            yield from _leaves(node, here + ".")
        elif isinstance(node, Leaf):
            yield here, node


def _draw(tree: dict[str, Any], suggest: Suggest, path: str) -> dict[str, Any]:
    drawn = {}
    for key, node in tree.items():
        here = f"{path}{key}"
        if isinstance(node, Maybe):
            on = suggest(here, Choice((False, True)))
            inner = _draw(node.tree, suggest, here + ".")
            drawn[key] = inner if on else None
        elif isinstance(node, dict):
            drawn[key] = _draw(node, suggest, here + ".")
        else:
            drawn[key] = suggest(here, node) if isinstance(node, Leaf) else node
    return drawn


def draw_leaf(leaf: Leaf, rng: random.Random) -> Any:
    """A value of a leaf at random."""
    if isinstance(leaf, Choice):
        return rng.choice(leaf.options)
    if isinstance(leaf, Int):
        return rng.randint(leaf.low, leaf.high)
    if isinstance(leaf, Float):
        return rng.uniform(leaf.low, leaf.high)
    return min(leaf.high, max(leaf.low, leaf.low * (leaf.high / leaf.low) ** rng.random()))


def _end(pick: int, path: str, leaf: Leaf) -> Any:
    if isinstance(leaf, Choice):
        return leaf.options[pick]
    return leaf.high if pick else leaf.low


def _count(tree: dict[str, Any]) -> int:
    total = 1
    for node in tree.values():
        if isinstance(node, Maybe):
            total *= 1 + _count(node.tree)
        elif isinstance(node, dict):
            total *= _count(node)
        elif isinstance(node, Choice):
            total *= len(node.options)
        elif isinstance(node, Int):
            total *= node.high - node.low + 1
    return total


def _check(tree: dict[str, Any], kind: Any, path: str) -> None:
    """Refuses names a spec does not have, at every level."""
    known = {field.name for field in fields(kind)}
    for key, node in tree.items():
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else f" Known are {', '.join(sorted(known))}."
            raise SpecError(f"A space has the names of a spec; {path}{key} is none.{hint}")
        inner = node.tree if isinstance(node, Maybe) else node
        part = _part(get_type_hints(kind)[key])
        if isinstance(inner, dict):
            if part is None:
                raise SpecError(f"{path}{key} is one value, not a table.")
            _check(inner, part, f"{path}{key}.")
        elif isinstance(inner, Choice) and not inner.options:
            raise SpecError(f"{path}{key} needs at least one value to choose.")
        elif isinstance(inner, Int | Float | Log) and not inner.low <= inner.high:
            raise SpecError(f"{path}{key} must run from low to high; found {inner.low} to {inner.high}.")
        elif isinstance(inner, Log) and inner.low <= 0:
            raise SpecError(f"{path}{key} is logarithmic, so it must start above 0; found {inner.low}.")


def _part(hint: Any) -> Any:
    return next((option for option in (hint, *get_args(hint)) if is_dataclass(option)), None)


def _parse(data: dict[str, Any], path: str) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for key, value in data.items():
        here = f"{path}{key}"
        if isinstance(value, list):
            tree[key] = Choice(tuple(None if option == OFF else option for option in value))
        elif isinstance(value, dict) and len(value) == 1 and next(iter(value)) in RANGES:
            ((name, ends),) = value.items()
            if not (isinstance(ends, list) and len(ends) == 2 and all(isinstance(end, int | float) for end in ends)):
                raise SpecError(f"{here}.{name} must be two numbers, [low, high]; found {ends!r}.")
            tree[key] = RANGES[name](*ends)
        elif isinstance(value, dict):
            inner = dict(value)
            optional = inner.pop("optional", False)
            parsed = _parse(inner, here + ".")
            tree[key] = Maybe(parsed) if optional else parsed
        else:
            tree[key] = None if value == OFF else value
    return tree


RANGES: dict[str, Callable[..., Leaf]] = {"int": Int, "float": Float, "log": Log}


def _plain(tree: dict[str, Any]) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for key, node in tree.items():
        if isinstance(node, Maybe):
            data[key] = {"optional": True, **_plain(node.tree)}
        elif isinstance(node, dict):
            data[key] = _plain(node)
        elif isinstance(node, Choice):
            data[key] = [OFF if option is None else option for option in node.options]
        elif isinstance(node, Int | Float | Log):
            data[key] = {type(node).__name__.lower(): [node.low, node.high]}
        else:
            data[key] = OFF if node is None else node
    return data


# What a person reading the tree may want to know about a value.
MEANINGS = {"pooling": POOLINGS, "siamese": COMPARISONS, "schedule": SCHEDULES, "freeze": FREEZES}
