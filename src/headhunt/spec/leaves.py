"""Define the leaves of a search space, optional parts, and the form of both in a file."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headhunt.errors import SpecError

OFF = "off"  # None in a file: TOML has no null


@dataclass(frozen=True)
class Choice:
    """A categorical parameter."""

    options: tuple[Any, ...]

    def __str__(self) -> str:
        return " · ".join(OFF if option is None else str(option).lower() for option in self.options)


@dataclass(frozen=True)
class Int:
    """An integer parameter, both ends included."""

    low: int
    high: int

    def __str__(self) -> str:
        return f"{self.low} … {self.high}"


@dataclass(frozen=True)
class Float:
    """A real parameter, drawn uniformly."""

    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.low:g} … {self.high:g}"


@dataclass(frozen=True)
class Log:
    """A positive real parameter, drawn uniformly on a logarithmic scale."""

    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.low:g} … {self.high:g} (log)"


Leaf = Choice | Int | Float | Log


@dataclass(frozen=True)
class Maybe:
    """An optional part of the head or recipe."""

    tree: dict[str, Any]


def draw_leaf(leaf: Leaf, rng: random.Random) -> Any:
    """Return a random value of a leaf."""
    if isinstance(leaf, Choice):
        return rng.choice(leaf.options)
    if isinstance(leaf, Int):
        return rng.randint(leaf.low, leaf.high)
    if isinstance(leaf, Float):
        return rng.uniform(leaf.low, leaf.high)
    return min(leaf.high, max(leaf.low, leaf.low * (leaf.high / leaf.low) ** rng.random()))


def end_of(index: int, path: str, leaf: Leaf) -> Any:
    """Return the first or last value of a leaf, for index 0 or -1."""
    if isinstance(leaf, Choice):
        return leaf.options[index]
    return leaf.high if index else leaf.low


def parse_tree(data: dict[str, Any], path: str) -> dict[str, Any]:
    """Return the tree of plain data, as in a file."""
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
            parsed = parse_tree(inner, here + ".")
            tree[key] = Maybe(parsed) if optional else parsed
        else:
            tree[key] = None if value == OFF else value
    return tree


RANGES: dict[str, Callable[..., Leaf]] = {"int": Int, "float": Float, "log": Log}


def plain_tree(tree: dict[str, Any]) -> dict[str, Any]:
    """Return a tree as plain data, as in a file."""
    data: dict[str, Any] = {}
    for key, node in tree.items():
        if isinstance(node, Maybe):
            data[key] = {"optional": True, **plain_tree(node.tree)}
        elif isinstance(node, dict):
            data[key] = plain_tree(node)
        elif isinstance(node, Choice):
            data[key] = [OFF if option is None else option for option in node.options]
        elif isinstance(node, Int | Float | Log):
            data[key] = {type(node).__name__.lower(): [node.low, node.high]}
        else:
            data[key] = OFF if node is None else node
    return data
