"""Define `Space`, a search space as data: a tree in the shape of a `Spec` with distributions as leaves.

A sampler is asked for every leaf of the tree each time, named by its path ("head.convolutions.kernel"), even if its
part is off. Parts that are off are then removed, so that the same candidate always has the same form and hash.
"""

from __future__ import annotations

import math
import random
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any, get_args, get_type_hints

from headhunt.errors import SpecError, did_you_mean
from headhunt.modeling.architecture import (
    ACTIVATIONS,
    COMPARISONS,
    INITIALS,
    NORM_POSITIONS,
    NORMS,
    POOLINGS,
    WINDOWS,
    WORDS,
)
from headhunt.spec.leaves import Choice, Float, Int, Leaf, Log, Maybe, draw_leaf, end_of, parse_tree, plain_tree
from headhunt.spec.spec import (
    FREEZES,
    HEAD_INITS,
    NAMED_VALUES,
    SCHEDULES,
    TASK_SAMPLINGS,
    Spec,
)
from headhunt.storage import check_nesting, read_json

SCHEMA = 1
Suggest = Callable[[str, Leaf], Any]
CLASSIFICATION_LEAVES = ("recipe.label_smoothing", "recipe.class_weights")


@dataclass(frozen=True)
class Space:
    """A search space.

    `tree` has the keys of a `Spec`. A value is a leaf, a nested tree, a `Maybe`, or a constant.
    """

    name: str
    tree: dict[str, Any]
    uniform: bool = False
    """Whether random draws have optional parts and booleans on in half of all cases; one in three by default."""

    def __post_init__(self) -> None:
        _check(self.tree, Spec, "")
        for index in (0, -1):  # both ends of every leaf must make a valid spec
            self.sample(partial(end_of, index), encoder="any", problem_type="multi_task")

    def leaves(self) -> Iterator[tuple[str, Leaf]]:
        """Yield every parameter with its path. The switch of an optional part is a `Choice` of false and true."""
        found: dict[str, Leaf] = {}
        _draw(self.tree, found.setdefault, "")
        yield from found.items()

    def sample(
        self, suggest: Suggest, *, encoder: str | None = None, pair: bool = True, problem_type: str | None = None
    ) -> Spec:
        """Draw a candidate.

        Args:
            suggest: Function that returns a value for each path and leaf.
            encoder: Encoder to use if the space has none.
            pair: True if the task has two texts per row.
            problem_type: Problem type of the task, if known.

        Raises:
            SpecError: If the values do not make a valid candidate, or there is no encoder.
        """
        data = _draw(self.tree, suggest, "")
        if encoder and "encoder" not in data:
            data["encoder"] = encoder
        for path in inactive_leaves(pair=pair, problem_type=problem_type):
            part, name = path.split(".")
            if isinstance(data.get(part), dict):  # anything else is refused below
                data[part].pop(name, None)
        return Spec.from_dict(data)

    def draw(
        self, seed: int, *, encoder: str | None = None, pair: bool = True, problem_type: str | None = None
    ) -> Spec:
        """Draw a candidate at random; see `sample`."""
        rng = random.Random(seed)  # noqa: S311 - reproducible draws, not secrets
        return self.sample(
            lambda path, leaf: draw_leaf(leaf, rng), encoder=encoder, pair=pair, problem_type=problem_type
        )

    def size(self) -> int:
        """Return the number of architectures: encoders times heads times choices of frozen layers.

        Real parameters do not count.
        """
        freeze = self.tree.get("recipe", {}).get("freeze")
        heads = _count(self.tree.get("shape", {})) * _count(self.tree.get("head", {}))
        return heads * (_count({"freeze": freeze}) if freeze is not None else 1)

    def constants(self, part: str) -> dict[str, Any]:
        """Return the values of a part that are not searched."""
        return {
            name: node for name, node in self.tree.get(part, {}).items() if not isinstance(node, Leaf | Maybe | dict)
        }

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, as in a file."""
        return {
            "schema": SCHEMA,
            "name": self.name,
            **({"uniform": True} if self.uniform else {}),
            **plain_tree(self.tree),
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any], name: str = "own") -> Space:
        """Read the content of a TOML or JSON file.

        Raises:
            SpecError: If a name is unknown, or a value does not make a valid spec.
        """
        data = dict(data)
        if data.pop("schema", SCHEMA) != SCHEMA:
            raise SpecError(f"A space must have schema {SCHEMA}.")
        name, uniform = data.pop("name", name), data.pop("uniform", False)
        if not (isinstance(name, str) and isinstance(uniform, bool)):
            raise SpecError(
                "The name of a space must be a string, and uniform must be true or false; "
                f"found {name!r:.80} and {uniform!r:.80}."
            )
        return cls(name, parse_tree(data, ""), uniform)

    @classmethod
    def load(cls, name: str | Path, layers: int = 6, *, windows: bool = False) -> Space:
        """Load a space by name (`paper`, `default`, `encoder`) or from a TOML or JSON file.

        Args:
            name: Name or file.
            layers: Number of layers of the encoder that can be frozen one by one; 0 offers no such choice.
            windows: Whether the default space offers to read long texts in windows.
        """
        if name == "default":
            return default(layers, windows)
        if name in NAMED:
            return NAMED[str(name)](layers)
        path = Path(name)
        if not path.is_file():
            if path.suffix or len(path.parts) > 1:
                raise SpecError(
                    f"The file of a space must exist; {str(name)!r} does not. Built in: {', '.join(NAMED)}."
                )
            hint = did_you_mean(name, NAMED)
            raise SpecError(f"A space must be {', '.join(NAMED)}, or a TOML or JSON file; found {str(name)!r}.{hint}")
        try:
            data = read_json(path) if path.suffix == ".json" else read_toml(path)
        except (OSError, ValueError) as error:
            raise SpecError(f"{path} must be TOML, or JSON with the suffix .json; it is not valid: {error}.") from None
        if not isinstance(data, dict):
            raise SpecError(f"{path} must contain a table with head, recipe or encoder.")
        return cls.from_dict(data, path.stem)


def read_toml(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file.

    Raises:
        ValueError: If it is not valid.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    check_nesting(data)
    return data


def inactive_leaves(*, pair: bool, problem_type: str | None = None) -> tuple[str, ...]:
    """Return the paths of parameters that have no effect on a task.

    Args:
        pair: True if the task has two texts per row.
        problem_type: Problem type of the task, if known.
    """
    several = problem_type == "multi_task"
    unused = {
        ("head.siamese", "recipe.swap_pairs"): not pair,
        ("head.windows",): pair or several,
        CLASSIFICATION_LEAVES: problem_type == "regression",
        ("recipe.contrastive",): problem_type not in (None, "single_label_classification"),
        ("recipe.task_layers", "recipe.task_sampling"): not several,
    }
    return tuple(path for paths, off in unused.items() if off for path in paths)


def paper(layers: int = 6) -> Space:
    """Return the space of "Neural Architecture Search for Sentence Classification with BERT" (arXiv 2403.18547)."""
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
                "warmup": 0.0,
                "weight_decay": 0.0,
            },
        },
        uniform=True,
    )


def default(layers: int = 6, windows: bool = False) -> Space:
    """Return the default space: small heads, all poolings and comparisons, and recipes for small data.

    Args:
        layers: Number of layers of the encoder that can be frozen one by one.
        windows: Whether to offer windows for long texts; each costs as much as a text that is cut.
    """
    depths = sorted({round(layers * fraction) for fraction in (1 / 3, 1 / 2, 2 / 3)} - {0, layers})
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
                **({"windows": Choice((None, *WINDOWS))} if windows else {}),
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
                "freeze": Choice(("none", "embeddings", *depths, "all")),
                "batch_size": Choice((8, 16, 32)),
                "encoder_dropout": Choice((None, 0.0, 0.2)),
                "label_smoothing": Choice((0.0, 0.05, 0.1)),
                "class_weights": Choice((False, True)),
                "smart": Maybe({"weight": Log(1.0, 15.0)}),
                "contrastive": Choice((0.0, 1.0)),
                "truncation": Choice(("end", "middle")),
                "swap_pairs": Choice((False, True)),
                "standardize": Choice((False, True)),
                "head_init": Choice(tuple(HEAD_INITS)),
                "task_layers": Choice((0, 1, 2, "all") if layers > 2 else (0, "all") if layers else (0,)),
                "task_sampling": Choice(tuple(TASK_SAMPLINGS)),
            },
        },
    )


def encoder(layers: int = 6) -> Space:
    """Return the space of small encoders: built with random weights, or from some layers of the given encoder.

    Args:
        layers: Number of layers of the given encoder; without two or more, all encoders have random weights.
    """
    return Space(
        "encoder",
        {
            "shape": {
                "initial": Choice(tuple(INITIALS) if layers > 1 else ("random",)),
                "depth": Int(1, min(6, layers) if layers > 1 else 6),
                "width": Choice((32, 64, 128, 192, 256)),
                "heads": Choice((1, 2, 4, 8)),
                "ffn_ratio": Int(1, 4),
                "activation": Choice(tuple(ACTIVATIONS)),
                "norm_position": Choice(tuple(NORM_POSITIONS)),
                "norm": Choice(tuple(NORMS)),
                "vocabulary": Choice((None, 2000, 8000)),
            },
            "head": {"pooling": Choice(("mean", "cls", "max", "mean_max")), "dropout": Float(0.0, 0.4)},
            "recipe": {
                "epochs": Choice((10.0, 20.0, 40.0)),
                "learning_rate": Log(1e-4, 2e-3),
                "weight_decay": Choice((0.0, 1e-2, 1e-1)),
                "encoder_dropout": Choice((0.0, 0.1, 0.2, 0.3)),
                "batch_size": Choice((16, 32)),
                "label_smoothing": Choice((0.0, 0.1)),
            },
        },
    )


NAMED: dict[str, Callable[[int], Space]] = {"paper": paper, "default": default, "encoder": encoder}


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


def _check(tree: dict[str, Any], part_type: Any, path: str) -> None:
    """Raise `SpecError` for names that a spec does not have and for ranges that are empty, reversed or infinite."""
    known = {field.name for field in fields(part_type)}
    for key, node in tree.items():
        if key not in known:
            hint = did_you_mean(key, known, f" Known names: {', '.join(sorted(known))}.")
            raise SpecError(f"A space must use the field names of a spec; found {path}{key}.{hint}")
        inner = node.tree if isinstance(node, Maybe) else node
        nested = _dataclass_in(get_type_hints(part_type)[key])
        if isinstance(inner, dict):
            if nested is None:
                raise SpecError(
                    f"{path}{key} must be a value, a list of values, or {{ int = […] }}, {{ float = […] }} or "
                    f"{{ log = […] }}; found a table with {', '.join(map(str, inner)) or 'nothing'}."
                )
            _check(inner, nested, f"{path}{key}.")
        elif isinstance(inner, Choice) and not inner.options:
            raise SpecError(f"{path}{key} must list at least one value.")
        elif isinstance(inner, Choice) and any(isinstance(option, dict | list) for option in inner.options):
            raise SpecError(f"{path}{key} must list plain values, not lists or tables; found {inner.options!r:.80}.")
        elif isinstance(inner, Int | Float | Log) and not inner.low <= inner.high:
            raise SpecError(f"{path}{key} must be a range from low to high; found {inner.low} to {inner.high}.")
        elif isinstance(inner, Int | Float | Log) and any(
            end in (math.inf, -math.inf) for end in (inner.low, inner.high)
        ):
            raise SpecError(f"{path}{key} must be a range of finite numbers; found {inner.low} to {inner.high}.")
        elif isinstance(inner, Int) and not (isinstance(inner.low, int) and isinstance(inner.high, int)):
            raise SpecError(f"{path}{key} must be a range of whole numbers; found {inner.low} to {inner.high}.")
        elif isinstance(inner, Log) and inner.low <= 0:
            raise SpecError(f"{path}{key} is logarithmic and must start above 0; found {inner.low}.")


def _dataclass_in(hint: Any) -> Any:
    return next((option for option in (hint, *get_args(hint)) if is_dataclass(option)), None)


# Explanations of values, for the printed tree of a space.
MEANINGS = {
    **NAMED_VALUES,
    "pooling": POOLINGS,
    "siamese": COMPARISONS,
    "windows": WINDOWS,
    "words": WORDS,
    "freeze": FREEZES,
    "initial": INITIALS,
    "activation": ACTIVATIONS,
    "norm_position": NORM_POSITIONS,
    "norm": NORMS,
}
