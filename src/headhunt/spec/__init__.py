"""Candidates as plain data (`Spec`), search spaces (`Space`), and descriptions of both."""

from headhunt.modeling.architecture import Blocks, Convolutions, Head, Mlp
from headhunt.spec.describe import describe, recipe_words, stages
from headhunt.spec.space import (
    MEANINGS,
    NAMED,
    OFF,
    Choice,
    Float,
    Int,
    Leaf,
    Log,
    Maybe,
    Space,
    draw_leaf,
    inactive_leaves,
)
from headhunt.spec.spec import DEFAULT_ENCODER, FREEZES, RENAMED, SCHEDULES, Lora, Recipe, Smart, Spec, plain, solved

__all__ = [
    "DEFAULT_ENCODER",
    "FREEZES",
    "MEANINGS",
    "NAMED",
    "OFF",
    "RENAMED",
    "SCHEDULES",
    "Blocks",
    "Choice",
    "Convolutions",
    "Float",
    "Head",
    "Int",
    "Leaf",
    "Log",
    "Lora",
    "Maybe",
    "Mlp",
    "Recipe",
    "Smart",
    "Space",
    "Spec",
    "describe",
    "draw_leaf",
    "inactive_leaves",
    "plain",
    "recipe_words",
    "solved",
    "stages",
]
