"""Between parameters and candidates: a space as a strategy sees it.

Hides canonical forms: a strategy deals in parameters by path, every leaf of the space each time; what it proposes
becomes a spec and a hash here, and a spec written by hand becomes parameters where the space can express it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from headhunt.errors import SpecError
from headhunt.modeling.architecture import Head, Mlp
from headhunt.spec import Choice, Float, Int, Leaf, Log, Space, Spec, plain

Params = dict[str, Any]
SWITCH = Choice((False, True))  # of a part that may be off, or of a yes or no
RATES = ("recipe.learning_rate", "recipe.head_lr_multiplier")
COSTLY = ("head.convolutions", "head.blocks", "recipe.smart")
PAIR_LEAVES = ("head.siamese", "recipe.swap_pairs")  # mean nothing where there is one text


class Candidates:
    """What may be proposed.

    Args:
        space: What may be chosen.
        encoder: The encoder, where the space names none.
        pair: Whether the task has two texts.
        rows: Training rows, for the plain head's fair recipe.
        layers: Of the encoder, for what candidates cost.
        max_length: Tokens that every candidate reads of a text, where the space does not say; the recipe's own number
            unless given.
    """

    def __init__(
        self,
        space: Space,
        *,
        encoder: str,
        pair: bool = False,
        rows: int = 500,
        layers: int = 6,
        max_length: int | None = None,
    ) -> None:
        self.space, self.encoder, self.pair, self.rows, self.layers = space, encoder, pair, rows, layers
        said = space.tree.get("recipe", {}).get("max_length")
        self.max_length = max_length if said is None else None
        # Where lengths may be chosen, the plain head reads as much as anybody.
        self._longest = max_length if said is None else at(said, 1 - 1e-9) if isinstance(said, Leaf) else int(said)
        every = dict(space.leaves())
        # A leaf that decides nothing would only be noise in a model of the others.
        self.leaves: dict[str, Leaf] = {
            path: leaf for path, leaf in every.items() if span(leaf) > 1 and (pair or path not in PAIR_LEAVES)
        }
        self._fixed = {path: filler(leaf) for path, leaf in every.items() if path not in self.leaves}

    def spec(self, params: Params) -> Spec:
        """The candidate these parameters mean, in its canonical form."""
        values = self._fixed | params
        spec = self.space.sample(lambda path, leaf: values[path], encoder=self.encoder, pair=self.pair)
        return reading(spec, self.max_length)

    def draw(self, rng: random.Random) -> Params:
        """Parameters at random; an optional part is left out two times in three, so that heads stay small."""
        return {
            path: rng.random() < 1 / 3 if leaf == SWITCH else at(leaf, rng.random())
            for path, leaf in self.leaves.items()
        }

    def cheapened(self, params: Params) -> Params:
        """The same head, without what makes it costly, on the encoder as it came; as it was where that cannot be."""
        freeze = self.leaves.get("recipe.freeze")
        if freeze is None or not within(freeze, "all"):
            return params
        costly = {path: False for path in COSTLY if path in self.leaves}
        # A head alone wants higher rates: the upper half of what may be chosen.
        rates = {path: leaf for path, leaf in self.leaves.items() if path in RATES and isinstance(leaf, Log)}
        higher = {path: at(leaf, 0.5 + along(leaf, params[path]) / 2) for path, leaf in rates.items()}
        return {**params, **costly, **higher, "recipe.freeze": "all"}

    @staticmethod
    def cheap(spec: Spec) -> bool:
        """Whether a candidate trains so little that judging it in full costs less than a rung of another."""
        head, recipe = spec.head, spec.recipe
        return recipe.freeze == "all" and not (head.convolutions or head.blocks or recipe.smart)

    def express(self, spec: Spec) -> Params | None:
        """The parameters that make this candidate; None if the space has none."""
        data = spec.canonical().to_dict()
        params: Params = {}
        for path, leaf in self.leaves.items():
            value = _lookup(data, path)
            if leaf == SWITCH and not isinstance(value, bool):
                value = value is not None  # the switch of a part
            # A value of a part that is off, or that the canonical form replaced, changes nothing; the hash tells.
            params[path] = value if within(leaf, value) else filler(leaf)
        try:
            return params if self.spec(params).hash == spec.hash else None
        except SpecError:
            return None

    def plain(self) -> Spec:
        """The plain head with a fair recipe."""
        return reading(plain(self.encoder, self.rows), self._longest)

    def known(self) -> Iterator[tuple[Spec, Params]]:
        """Recipes that did well before, in the order to try them; only those the space can express."""
        base = self.plain()
        seen = {base.hash}
        # The space says how long its candidates are trained.
        epochs = self.spec({path: filler(leaf) for path, leaf in self.leaves.items()}).recipe.epochs
        base = replace(base, recipe=replace(base.recipe, epochs=epochs))
        for spec in _known(base, self._frozen(), self.pair):
            params = self.express(spec)
            if params is not None and spec.hash not in seen:
                seen.add(spec.hash)
                yield spec, params

    def _frozen(self) -> list[int]:
        """How many layers may be frozen, fewest first."""
        leaf = self.leaves.get("recipe.freeze")
        options = leaf.options if isinstance(leaf, Choice) else ()
        return sorted(option for option in options if isinstance(option, int))


def _known(base: Spec, frozen: list[int], pair: bool) -> Iterator[Spec]:
    """The encoder as it came, which takes seconds; then the lowest layers left alone and a faster head."""
    some, half = (frozen[0], frozen[len(frozen) // 2]) if frozen else (0, 0)
    tuned = replace(base.recipe, learning_rate=1e-4, head_lr_multiplier=5.0, freeze=some, layer_decay=0.95)
    lower = replace(tuned, freeze=half)
    alone = replace(base.recipe, learning_rate=5e-4, head_lr_multiplier=10.0, freeze="all")
    if pair:
        yield replace(base, head=Head(pooling="mean", siamese="concat"), recipe=alone)
        yield replace(base, head=Head(pooling="mean", siamese="cosine"), recipe=lower)
        yield replace(base, head=Head(pooling="mean", siamese="concat", mlp=Mlp(width=256)), recipe=alone)
        yield replace(base, head=Head(pooling="mean_max", siamese="concat"), recipe=lower)
    else:
        yield replace(base, head=Head(pooling="mean", mlp=Mlp(width=256)), recipe=alone)
    yield replace(base, head=Head(pooling="attention"), recipe=tuned)
    yield replace(base, head=Head(pooling="mean"), recipe=lower)
    yield replace(base, head=Head(pooling="mean", mlp=Mlp(width=256)), recipe=tuned)
    for pooling in ("cls", "mean") if not frozen else ():  # spaces with fewer recipe items
        yield replace(base, head=Head(pooling=pooling, mlp=Mlp(width=128)))


def reading(spec: Spec, max_length: int | None) -> Spec:
    """The same candidate, reading so much of a text; as it was where that is None."""
    return spec if max_length is None else replace(spec, recipe=replace(spec.recipe, max_length=max_length))


def span(leaf: Leaf) -> float:
    """How many values a leaf has."""
    if isinstance(leaf, Choice):
        return len(leaf.options)
    if isinstance(leaf, Int):
        return leaf.high - leaf.low + 1
    return math.inf if leaf.low < leaf.high else 1


def filler(leaf: Leaf) -> Any:
    """A value for where the choice changes nothing."""
    return leaf.options[0] if isinstance(leaf, Choice) else leaf.low


def within(leaf: Leaf, value: Any) -> bool:
    """Whether a leaf may take this value."""
    if isinstance(leaf, Choice):
        return any(option == value and type(option) is type(value) for option in leaf.options)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return leaf.low <= value <= leaf.high and (isinstance(value, int) or not isinstance(leaf, Int))


def at(leaf: Leaf, share: float) -> Any:
    """The value this far along a leaf, from 0 to just below 1."""
    if isinstance(leaf, Choice):
        return leaf.options[min(int(share * len(leaf.options)), len(leaf.options) - 1)]
    if isinstance(leaf, Int):
        return min(leaf.low + int(share * (leaf.high - leaf.low + 1)), leaf.high)
    if isinstance(leaf, Float):
        return leaf.low + share * (leaf.high - leaf.low)
    return min(leaf.high, max(leaf.low, leaf.low * (leaf.high / leaf.low) ** share))


def along(leaf: Leaf, value: Any) -> float:
    """How far along a leaf a value lies, from 0 to 1; the inverse of `at`, in the middle of a step."""
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
