"""Convert between a strategy's parameters and the candidates of a search space.

A strategy works with parameters by path and always sees every leaf of the space. This module turns parameters into a
canonical spec with its hash. It also turns a hand-written spec into parameters if the space can express it.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, TypeVar

from headhunt.errors import SpecError
from headhunt.modeling.architecture import EncoderShape, Head, Mlp
from headhunt.spec import (
    FEW_ROWS,
    Choice,
    Float,
    Int,
    Leaf,
    Log,
    Smart,
    Space,
    Spec,
    inactive_leaves,
    plain,
    solved,
)

Params = dict[str, Any]
ItemT = TypeVar("ItemT")
OPTIONAL_PROBABILITY = 1 / 3  # of switching on an optional component in a random draw
LEAST_COST = 0.25  # of training some layers, relative to all
FEW_EPOCHS = 3.0  # up to which a solved head is the better start: benchmarks/testbed/few_epochs.py


@dataclass(eq=False, repr=False)
class Candidates:
    """The candidates that a search may propose."""

    space: Space
    encoder: str
    """Encoder of new candidates. At first it is the one that the space names, its first option, or else the given one,
    and also that of the plain head and of the known recipes."""
    _: KW_ONLY
    pair: bool = False
    """Whether the task has two texts per row."""
    problem_type: str = "single_label_classification"
    rows: int = 500
    """Number of training rows. It decides the epochs of the plain head."""
    layers: int = 6
    """Number of encoder layers, for runtime estimates."""
    width: int = 384
    """Hidden size of the plain head's encoder, which decides its learning rates."""
    max_length: int | None = None
    """Maximum number of tokens per text where the space does not set it; None for that of the recipe."""
    encoders: Sequence[str] = ()
    """Encoders to choose from, the first of which is that of the plain head; by default this one alone."""
    max_epochs: float | None = None
    """Largest number of epochs that there is time for."""
    classes: int = 2
    """Number of classes, which decides how heads are solved."""
    learned: Sequence[Spec] = ()
    """Candidates that performed well in the user's own earlier searches, with any encoder."""
    epochs: float | None = None
    """Number of epochs of every candidate; by default that of its recipe, as far as there is time."""
    balanced: bool = False
    """Whether rare classes get more weight in solved heads."""
    leaves: dict[str, Leaf] = field(init=False)
    """Parameters that change a candidate of this task, by path."""

    def __post_init__(self) -> None:
        self.encoder = self.baseline_encoder = _encoder_of(self.space, self.encoder)
        self.encoders = self.encoders or (self.encoder,)
        self.classes = self.classes if self.problem_type == "single_label_classification" else 1
        self._known: dict[tuple[str, float | None, bool], list[tuple[Spec, Params]]] = {}
        self._plain_max_length = self.max_length
        length = self.space.tree.get("recipe", {}).get("max_length")
        if length is not None:
            # If the space offers several lengths, the plain head reads the longest, so that it is at no disadvantage.
            self.max_length, options = None, length.options if isinstance(length, Choice) else ()
            longest = value_at(length, 1 - 1e-9) if isinstance(length, Leaf) else length
            self._plain_max_length = int(max(options, default=longest))
        every_leaf = dict(self.space.leaves())
        unused = inactive_leaves(pair=self.pair, problem_type=self.problem_type)
        # A leaf without effect would only be noise in a model of the other leaves.
        self.leaves = {path: leaf for path, leaf in every_leaf.items() if count_values(leaf) > 1 and path not in unused}
        self._fixed = {path: first_value(leaf) for path, leaf in every_leaf.items() if path not in self.leaves}
        self._switches = {
            path: tuple(each for each in every_leaf if is_switch(every_leaf[each]) and path.startswith(f"{each}."))
            for path in self.leaves
        }

    def spec(self, params: Params) -> Spec:
        """Return the candidate of these parameters in canonical form."""
        return self._fitted(with_max_length(self._sample(params), self.max_length))

    def active(self, params: Params) -> frozenset[str]:
        """Return the paths of the parameters that have an effect on the candidate.

        Those of a component that is off have none, nor those that the canonical form replaces: a frozen encoder has no
        layer-wise learning rates, for example.
        """
        values = self._fixed | params
        data = self._sample(params).canonical(self.problem_type).to_dict()
        active = []
        for path, switches in self._switches.items():
            value, kept = values[path], _lookup(data, path)
            if isinstance(value, bool) and not isinstance(kept, bool):
                kept = kept is not None  # the switch of an optional component
            if kept == value and all(values[switch] for switch in switches):
                active.append(path)
        return frozenset(active)

    def _sample(self, params: Params) -> Spec:
        values = self._fixed | params
        return self.space.sample(
            lambda path, leaf: values[path], encoder=self.encoder, pair=self.pair, problem_type=self.problem_type
        )

    def valid_spec(self, params: Params) -> Spec | None:
        """Return the candidate of these parameters; None if they do not fit each other, in a space of a user's own."""
        try:
            return self.spec(params)
        except SpecError:
            return None

    def _fitted(self, spec: Spec) -> Spec:
        """Return the spec with no more epochs than there is time for; frozen layers and a small encoder take less."""
        recipe = spec.recipe
        if self.epochs is not None and not recipe.is_solved:
            return replace(spec, recipe=replace(recipe, epochs=self.epochs))
        if self.max_epochs is None or recipe.freeze == "all":
            return spec
        frozen = recipe.freeze / self.layers if isinstance(recipe.freeze, int) else 0.0
        fitting = self.max_epochs / (spec.shape.cost(self.layers, self.width) if spec.shape else 1.0)
        fitting /= max(LEAST_COST, 1 - frozen)
        return spec if recipe.epochs <= fitting else replace(spec, recipe=replace(recipe, epochs=round(fitting, 2)))

    def draw(self, rng: random.Random) -> Params:
        """Draw random parameters.

        An optional component is left out two times in three, so that heads stay small, unless the space is uniform.
        """
        probability = 0.5 if self.space.uniform else OPTIONAL_PROBABILITY
        return {
            path: rng.random() < probability if is_switch(leaf) else value_at(leaf, rng.random())
            for path, leaf in self.leaves.items()
        }

    @staticmethod
    def trains_head_only(spec: Spec) -> bool:
        """Return whether only a small head is trained.

        The full training of such a candidate takes less time than the first rung of another one.
        """
        head, recipe = spec.head, spec.recipe
        return recipe.freeze == "all" and not (head.convolutions or head.blocks or recipe.smart)

    def express(self, spec: Spec) -> Params | None:
        """Return the parameters of a candidate, or None if the space does not contain it."""
        spec = spec.canonical(self.problem_type)
        data = spec.to_dict()
        params: Params = {}
        for path, leaf in self.leaves.items():
            value = _lookup(data, path)
            if is_switch(leaf) and not isinstance(value, bool):
                value = value is not None  # the switch of an optional component
            # A value that is unused, or replaced by the canonical form, has no effect: the hash decides below.
            params[path] = value if contains(leaf, value) else first_value(leaf)
        expressed = self.valid_spec(params)
        return params if expressed is not None and expressed.hash == spec.hash else None

    def plain(self, recipe: int = 0) -> Spec:
        """Return the plain head with one of the two standard fine-tuning recipes."""
        spec = plain(self.baseline_encoder, self.rows, recipe, self.width)
        return self._fitted(with_max_length(spec, self._plain_max_length))

    def solved(self, *, words: bool = True) -> list[Spec]:
        """Return the solved head of every encoder, in the order of the encoders.

        Args:
            words: Whether to count words too.
        """
        counted = "beside" if words and self.counts_words else None
        shared: dict[str, Any] = {"pair": self.pair, "classes": self.classes, "words": counted}
        specs = [solved(each, balanced=self.balanced, **shared) for each in self.encoders]
        return [with_max_length(spec, self._plain_max_length) for spec in specs]

    @property
    def counts_words(self) -> bool:
        """Whether word counts can be part of a solved head: several tasks have none."""
        return self.problem_type != "multi_task"

    def words(self) -> Spec:
        """Return the model of word counts alone, which needs no pass through the encoder."""
        spec = solved(self.baseline_encoder, classes=self.classes, words="alone", balanced=self.balanced)
        return with_max_length(spec, self._plain_max_length)

    def known_recipes(self, *, learned: bool = True) -> list[tuple[Spec, Params]]:
        """Return recipes that performed well on other tasks, in the order to try them.

        Recipes that the space cannot express are left out.

        Args:
            learned: Whether to include candidates of the user's own earlier searches.
        """
        key = self.encoder, self.max_epochs, learned
        if key not in self._known:
            self._known[key] = list(self._find_known_recipes(learned))
        return self._known[key]

    def _find_known_recipes(self, learned: bool) -> Iterator[tuple[Spec, Params]]:
        base = replace(self.plain(), encoder=self.encoder)
        seen = {self.plain().hash}
        first = self._sample({path: first_value(leaf) for path, leaf in self.leaves.items()}).recipe
        sizes, freezes = (self.leaves.get(f"recipe.{name}") for name in ("batch_size", "freeze"))
        # The batch size of the plain head, unless the space does not have that.
        size = base.recipe.batch_size if sizes and contains(sizes, base.recipe.batch_size) else first.batch_size
        shared = {"epochs": first.epochs, "batch_size": size, **self.space.constants("recipe")}
        base = replace(base, recipe=replace(base.recipe, **shared))
        few_epochs = self._fitted(base).recipe.epochs <= FEW_EPOCHS
        if "shape" in self.space.tree:
            recipes = _known_shapes(base, self.layers)
        else:
            options = freezes.options if isinstance(freezes, Choice) else ()
            layers = sorted(option for option in options if isinstance(option, int))
            recipes = _known_recipes(base, layers, self.pair, few_epochs, self.rows <= FEW_ROWS)
        recipes = alternate(recipes, (_adapt(spec, base) for spec in self.learned if learned))
        for recipe in _with_task_layers(recipes) if self.problem_type == "multi_task" else recipes:
            spec = self._fitted(recipe.canonical(self.problem_type))
            params = self.express(spec)
            if params is None or spec.hash in seen:
                continue
            seen.add(spec.hash)
            yield spec, params


def _encoder_of(space: Space, otherwise: str) -> str:
    """Return the encoder that the space names (its first option), or `otherwise`."""
    node = space.tree.get("encoder", otherwise)
    return str(node.options[0] if isinstance(node, Choice) else node)


def _adapt(spec: Spec, base: Spec) -> Spec:
    """Return a candidate of another search with the encoder, epochs and maximum length of this one."""
    recipe = replace(spec.recipe, epochs=base.recipe.epochs, max_length=base.recipe.max_length)
    return replace(spec, encoder=base.encoder, recipe=recipe)


def alternate(recipes: Iterator[ItemT], learned: Iterator[ItemT]) -> Iterator[ItemT]:
    """Yield from both in turn. The first known recipe comes first: earlier tasks may have been different."""
    for recipe in recipes:
        yield recipe
        yield from itertools.islice(learned, 1)
    yield from learned


def _known_recipes(base: Spec, freezes: list[int], pair: bool, few_epochs: bool, few_rows: bool) -> Iterator[Spec]:
    """Return candidates in the order to try them: fine-tuning with standardised features, then cheaper ones.

    A head that starts from its solution needs fewer steps: it is tried first where there are few epochs or few rows.
    With few rows, the same with a contrastive loss comes before that.
    """
    fewest_layers, half_the_layers = (freezes[0], freezes[len(freezes) // 2]) if freezes else (0, 0)
    tuned = replace(
        base.recipe,
        learning_rate=1e-4,
        head_lr_multiplier=5.0,
        freeze="embeddings",
        layer_decay=0.95,
        standardize=True,
    )
    from_solution = replace(tuned, head_lr_multiplier=1.0, head_init="solved")
    fewest_frozen = replace(tuned, freeze=fewest_layers, standardize=False)
    half_frozen = replace(fewest_frozen, freeze=half_the_layers)
    all_frozen = replace(base.recipe, learning_rate=5e-4, head_lr_multiplier=10.0, freeze="all")
    pooled = Head(pooling="mean", siamese="combined" if pair else None)
    wide, recipes = Mlp(width=256), (from_solution, tuned) if few_epochs or few_rows else (tuned, from_solution)
    if pair:
        others = [
            (Head(pooling="mean", siamese="concat"), all_frozen),
            (Head(pooling="mean", siamese="cosine"), half_frozen),
            (Head(pooling="mean_max", siamese="concat"), half_frozen),
        ]
    else:  # those with windows are left out by spaces without them
        others = [
            (Head(pooling="mean", windows="mean", mlp=wide), all_frozen),
            (Head(pooling="mean", windows="mean"), half_frozen),
            (Head(pooling="mean", mlp=wide), all_frozen),
        ]
    known = [
        *([(pooled, replace(from_solution, contrastive=1.0))] if few_rows else []),
        *((pooled, recipe) for recipe in recipes),
        *others,
        (Head(pooling="attention"), fewest_frozen),
        (Head(pooling="mean"), half_frozen),
        (Head(pooling="mean", mlp=wide), fewest_frozen),
    ]
    if not freezes:  # a space with few recipe choices
        known += [(Head(pooling=pooling, mlp=Mlp(width=128)), base.recipe) for pooling in ("cls", "mean")]
    return (replace(base, head=head, recipe=recipe) for head, recipe in known)


def _known_shapes(base: Spec, layers: int) -> Iterator[Spec]:
    """Yield encoders in the order to try them: layers of the given one, then small ones with random weights."""
    pooled = replace(base, head=Head(pooling="mean"))
    kept = replace(base.recipe, learning_rate=3e-4, encoder_dropout=0.1)
    random = replace(kept, learning_rate=1e-3)
    for initial, depth in (("spread", layers // 2), ("first", layers // 2), ("spread", layers // 3), ("first", 1)):
        if depth:
            yield replace(pooled, shape=EncoderShape(initial=initial, depth=depth), recipe=kept)
    for depth, width, vocabulary in ((1, 128, 8000), (2, 64, 2000), (2, 256, None)):
        shape = EncoderShape(depth=depth, width=width, ffn_ratio=2, vocabulary=vocabulary)
        yield replace(pooled, shape=shape, recipe=random)


def _with_task_layers(recipes: Iterator[Spec]) -> Iterator[Spec]:
    """Yield the first recipe also with the last two layers copied per task, without and with SMART; then the others."""
    first = next(recipes)
    copied = replace(first, recipe=replace(first.recipe, task_layers=2))
    yield from (first, copied, replace(copied, recipe=replace(copied.recipe, smart=Smart(weight=12.0))))
    yield from recipes


def with_max_length(spec: Spec, max_length: int | None) -> Spec:
    """Return the spec with this maximum length, or unchanged if it is None."""
    return spec if max_length is None else replace(spec, recipe=replace(spec.recipe, max_length=max_length))


def is_switch(leaf: Leaf) -> bool:
    """Return whether a leaf turns an optional component or a boolean field on."""
    return isinstance(leaf, Choice) and all(isinstance(option, bool) for option in leaf.options)


def count_values(leaf: Leaf) -> float:
    """Return the number of values of a leaf."""
    if isinstance(leaf, Choice):
        return len(leaf.options)
    if isinstance(leaf, Int):
        return leaf.high - leaf.low + 1
    return math.inf if leaf.low < leaf.high else 1


def first_value(leaf: Leaf) -> Any:
    """Return the first option or the lower bound of a leaf."""
    return leaf.options[0] if isinstance(leaf, Choice) else leaf.low


def contains(leaf: Leaf, value: Any) -> bool:
    """Return whether a value is allowed by a leaf."""
    if isinstance(leaf, Choice):
        return any(option == value and type(option) is type(value) for option in leaf.options)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return leaf.low <= value <= leaf.high and (isinstance(value, int) or not isinstance(leaf, Int))


def value_at(leaf: Leaf, position: float) -> Any:
    """Return the value at a position of a leaf, from 0 to just below 1."""
    if isinstance(leaf, Choice):
        return leaf.options[min(int(position * len(leaf.options)), len(leaf.options) - 1)]
    if isinstance(leaf, Int):
        return min(leaf.low + int(position * (leaf.high - leaf.low + 1)), leaf.high)
    if isinstance(leaf, Float):
        return leaf.low + position * (leaf.high - leaf.low)
    return min(leaf.high, max(leaf.low, leaf.low * (leaf.high / leaf.low) ** position))


def position_of(leaf: Leaf, value: Any) -> float:
    """Return the position of a value on a leaf, from 0 to 1.

    This is the inverse of `value_at`. Options and integers are at the middle of their interval.
    """
    if isinstance(leaf, Choice):
        return (leaf.options.index(value) + 0.5) / len(leaf.options)
    if isinstance(leaf, Int):
        return (value - leaf.low + 0.5) / (leaf.high - leaf.low + 1)
    if isinstance(leaf, Log):
        return math.log(value / leaf.low) / math.log(leaf.high / leaf.low)
    return (value - leaf.low) / (leaf.high - leaf.low)


def _lookup(data: Any, path: str) -> Any:
    for key in path.split("."):
        data = data.get(key) if isinstance(data, dict) else None
    return data
