"""The shape of an encoder as part of a spec and of a space."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from headhunt.errors import SpecError
from headhunt.run.plan import Plan
from headhunt.spec import Choice, EncoderShape, Lora, Recipe, Space, Spec, describe, solved
from headhunt.study.budget import RuntimeEstimates
from headhunt.study.candidates import Candidates

RANDOM = Spec(encoder="any", shape=EncoderShape())


def test_spec_without_shape_keeps_its_hash():
    assert Spec(encoder="any").hash == "7368bee5e42f7347"
    assert RANDOM.hash != Spec(encoder="any").hash
    assert Spec.from_json(RANDOM.to_json()) == RANDOM


def test_fields_without_effect_do_not_change_a_student():
    student = Spec(encoder="any", shape=EncoderShape(initial="spread", depth=3))
    other = replace(student, shape=replace(student.shape, width=256, norm="rms", vocabulary=2000))
    assert other.hash == student.hash
    assert other.canonical().shape == student.shape
    assert replace(RANDOM, shape=EncoderShape(width=256)).hash != RANDOM.hash


@pytest.mark.parametrize(
    ("shape", "fragment"),
    [
        ({"width": 100, "heads": 8}, "shape.heads must divide shape.width; found 8 heads and a width of 100"),
        ({"depth": 0}, "shape.depth must be 1 to 48"),
        ({"initial": "every"}, "shape.initial must be one of random, spread, first"),
        ({"activation": "gleu"}, "Did you mean 'gelu'"),
        ({"norm": "batch"}, "shape.norm must be one of layer, rms"),
        ({"vocabulary": 5}, "shape.vocabulary must be 100"),
        ({"hight": 5}, "shape: each key must be one of"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(shape, fragment):
    with pytest.raises(SpecError, match=fragment):
        Spec.from_dict({"encoder": "any", "shape": shape})


@pytest.mark.parametrize(
    "recipe", [Recipe(freeze="all"), Recipe(freeze="embeddings"), Recipe(lora=Lora()), solved("any").recipe]
)
def test_random_weights_must_be_trained(recipe):
    with pytest.raises(ValueError, match="random weights must be trained"):
        replace(RANDOM, recipe=recipe)
    student = replace(RANDOM, shape=EncoderShape(initial="first", depth=1))
    head = solved("any").head if recipe.is_solved else student.head
    assert replace(student, head=head, recipe=recipe).canonical().shape == student.shape


def test_encoder_space_follows_the_depth_of_the_encoder():
    shapes = {layers: Space.load("encoder", layers).tree["shape"] for layers in (0, 2, 12)}
    assert shapes[0]["initial"].options == ("random",)  # all depths share one layer: there are no students
    assert (shapes[0]["depth"].high, shapes[2]["depth"].high, shapes[12]["depth"].high) == (6, 2, 6)
    for seed in range(200):
        spec = Space.load("encoder").draw(seed, encoder="any")
        assert spec.shape.width % spec.shape.heads == 0 and spec.recipe.freeze == "none"


def test_combinations_that_make_no_shape_are_drawn_again():
    space = Space("own", {"shape": {"width": Choice((64, 100, 96)), "heads": Choice((4, 3, 8))}})
    candidates = Candidates(space, encoder="any")
    drawn = [candidates.valid_spec(candidates.draw(random.Random(seed))) for seed in range(60)]
    found = {(spec.shape.width, spec.shape.heads) for spec in drawn if spec is not None}
    assert found == {(64, 4), (64, 8), (100, 4), (96, 4), (96, 3), (96, 8)}
    assert None in drawn


def test_small_encoders_have_time_for_more_epochs():
    candidates = Candidates(Space.load("encoder"), encoder="any", layers=6, width=384, max_epochs=5.0)
    specs = [candidates.spec(candidates.draw(random.Random(seed))) for seed in range(60)]
    for spec in specs:
        assert spec.recipe.epochs <= 5.0 / spec.shape.cost(6, 384) + 0.01
    assert max(spec.recipe.epochs for spec in specs) == 40.0
    assert min(spec.recipe.epochs for spec in specs if not spec.shape.is_random) < 10.0


def test_runtime_estimates_depend_on_the_shape():
    rows = {"rows": 100, "used_rows": 100, "held_out": 10, "solved_rows": 100, "counted_rows": 100, "test_rows": 0}
    plan = Plan(**rows, examples_per_second=10.0)
    estimates = RuntimeEstimates(Candidates(Space.load("default"), encoder="any"), plan)
    full = estimates.estimate(Spec(encoder="any").to_dict())
    half = estimates.estimate(Spec(encoder="any", shape=EncoderShape(initial="spread", depth=3)).to_dict())
    assert half == pytest.approx(full / 2)
    estimates.add(RANDOM.to_dict(), 8.0)
    assert estimates.estimate(RANDOM.to_dict()) == pytest.approx(8.0)
    assert estimates.estimate(Spec(encoder="any").to_dict()) == full  # other encoders take another time


def test_shapes_are_described():
    assert describe(RANDOM).startswith("built encoder of 2 layers, 128 wide, GELU, pre-norm LayerNorm, plain head")
    student = replace(RANDOM, shape=EncoderShape(initial="spread", depth=1))
    assert describe(student).startswith("1 layer of the encoder, evenly spaced, plain head")
