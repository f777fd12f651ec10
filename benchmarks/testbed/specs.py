"""The candidates of the testbed: solved heads, the plain head, known recipes, and space-filling draws.

The encoder of a stored spec is a name, so that its hash is the same on every machine.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from headhunt.modeling.architecture import Head
from headhunt.spec import Choice, Recipe, Space, Spec, solved
from headhunt.study.candidates import OPTIONAL_PROBABILITY, Candidates, Params, is_switch, value_at

ENCODER = "all-MiniLM-L6-v2"
COUNT = 65
MANY = 1_000  # classes, so that a head is solved by logistic regression
SEED = 14


@dataclass(frozen=True)
class TableSpec:
    """A candidate of the testbed."""

    spec: Spec
    origin: str
    """`solved`, `plain`, `known` or `draw`."""

    @property
    def hash(self) -> str:
        """Hash of the spec, which is its key in the table."""
        return self.spec.hash

    def suits(self, problem_type: str) -> bool:
        """Return whether the candidate can be trained; logistic regression takes one class per row."""
        return self.spec.recipe.solver != "logistic" or problem_type == "single_label_classification"

    def with_epochs(self, epochs: float) -> TableSpec:
        """Return the candidate with another number of epochs."""
        return replace(self, spec=replace(self.spec, recipe=replace(self.spec.recipe, epochs=epochs)))

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {"hash": self.hash, "origin": self.origin, "spec": self.spec.to_dict()}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> TableSpec:
        """Read plain data."""
        return cls(Spec.from_dict(data["spec"]), data["origin"])


def table_space() -> Space:
    """Return the default space as it was when the table was begun: one value more would change every draw."""
    tree = Space.load("default").tree
    recipe = {name: node for name, node in tree["recipe"].items() if name != "contrastive"}
    return Space("default", {**tree, "recipe": {**recipe, "batch_size": Choice((16, 32))}})


def make_candidates(pair: bool, problem_type: str = "single_label_classification", rows: int = 500) -> Candidates:
    """Return the candidates of the space for one text or for pairs."""
    return Candidates(table_space(), encoder=ENCODER, pair=pair, problem_type=problem_type, rows=rows)


def list_specs(pair: bool, count: int = COUNT) -> list[TableSpec]:
    """Return the candidates for one text or for pairs, the most valuable first.

    A longer list begins with the shorter one.
    """
    candidates = make_candidates(pair)
    specs = [TableSpec(solved(ENCODER, pair=pair), "solved")]
    specs += [TableSpec(candidates.plain(recipe), "plain") for recipe in (0, 1)]
    specs.append(TableSpec(solved(ENCODER, pair=pair, classes=MANY), "solved"))
    specs += [TableSpec(spec, "known") for spec, _ in candidates.known_recipes()]
    specs += [TableSpec(spec, "solved") for spec in _other_solved_heads(pair)]
    specs = list({item.hash: item for item in specs}.values())
    seen = {item.hash for item in specs}
    for params in space_filling(candidates, 2 * count):
        spec = candidates.spec(params)
        if len(specs) < count and spec.hash not in seen:
            seen.add(spec.hash)
            specs.append(TableSpec(spec, "draw"))
    return specs[:count]


def space_filling(candidates: Candidates, count: int) -> list[Params]:
    """Return parameters at the points of a scrambled Sobol sequence.

    An optional component is left out two times in three, as in random draws of a search.
    """
    from scipy.stats import qmc

    leaves = candidates.leaves
    exponent = max(1, (count - 1).bit_length())
    # All points of the largest power of two, so that the first ones do not depend on the count.
    points = qmc.Sobol(len(leaves), scramble=True, rng=SEED).random_base2(max(10, exponent))[:count]
    return [
        {
            path: bool(position < OPTIONAL_PROBABILITY) if is_switch(leaf) else value_at(leaf, float(position))
            for (path, leaf), position in zip(leaves.items(), point, strict=True)
        }
        for point in points
    ]


def with_encoder(spec: Spec, encoder: str) -> Spec:
    """Return the spec with another encoder."""
    return replace(spec, encoder=encoder)


def _other_solved_heads(pair: bool) -> list[Spec]:
    """Return solved heads of the last layer, and for pairs one that reads both texts together."""
    ridge = Recipe(solver="ridge")
    heads = [Head(pooling="mean", siamese="combined" if pair else None)]
    heads += [Head(layers="concat", pooling="cls_mean_max" if pair else "mean")]
    return [Spec(encoder=ENCODER, head=head, recipe=ridge).canonical() for head in heads]
