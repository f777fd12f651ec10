"""Candidates as plain data (`Spec`), search spaces (`Space`), and descriptions of both."""

from headhunt.modeling.architecture import Blocks, Convolutions, EncoderShape, Head, Mlp
from headhunt.spec.describe import describe, recipe_words, stages
from headhunt.spec.leaves import OFF, Choice, Float, Int, Leaf, Log, Maybe, draw_leaf
from headhunt.spec.space import MEANINGS, NAMED, Space, inactive_leaves
from headhunt.spec.spec import (
    DEFAULT_ENCODER,
    FEW_ROWS,
    FREEZES,
    MANY_CLASSES,
    SCHEDULES,
    Lora,
    Recipe,
    Smart,
    Spec,
    plain,
    solved,
)

__all__ = [
    "DEFAULT_ENCODER",
    "FEW_ROWS",
    "FREEZES",
    "MANY_CLASSES",
    "MEANINGS",
    "NAMED",
    "OFF",
    "SCHEDULES",
    "Blocks",
    "Choice",
    "Convolutions",
    "EncoderShape",
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
