"""Tests of the conversion between parameters and candidates."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headhunt.spec import NAMED, Choice, Head, Log, Space, Spec
from headhunt.spec.space import CLASSIFICATION_LEAVES
from headhunt.study.candidates import Candidates, contains, is_switch, position_of, value_at

CANONICAL = (1.0, None, "random", False)  # set by the canonical form


@pytest.mark.parametrize("problem_type", ["single_label_classification", "regression"])
@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize("pair", [False, True])
def test_candidates_express_every_drawn_spec(name, pair, problem_type):
    candidates = Candidates(Space.load(name), encoder="toy", pair=pair, problem_type=problem_type)
    for seed in range(30):
        params = candidates.draw(random.Random(seed))
        spec = candidates.spec(params)
        assert all(contains(candidates.leaves[path], value) for path, value in params.items())
        expressed = candidates.express(spec)
        assert expressed is not None and candidates.spec(expressed).hash == spec.hash


@pytest.mark.parametrize("pair", [False, True])
@pytest.mark.parametrize("rows", [500, 50_000])
@pytest.mark.parametrize("name", NAMED)
def test_known_recipes_exist_for_every_space(name, rows, pair):
    candidates = Candidates(Space.load(name), encoder="toy", pair=pair, rows=rows)
    recipes = list(candidates.known_recipes())
    assert recipes
    assert all(candidates.spec(params) == spec.canonical() for spec, params in recipes)
    assert any(spec.head.siamese for spec, _ in recipes) == (pair and name == "default")


@pytest.mark.parametrize("pair", [False, True])
@pytest.mark.parametrize("epochs", [2.0, 4.0, 10.0])
def test_known_recipes_with_a_frozen_encoder_keep_their_epochs(pair, epochs):
    """Issue: where there was time for fewer than ten epochs of an encoder, they were left out."""
    candidates = Candidates(Space.load("default"), encoder="toy", pair=pair, max_epochs=epochs)
    recipes = [spec.recipe for spec, _ in candidates.known_recipes()]
    assert {recipe.epochs for recipe in recipes if recipe.freeze == "all"} == {10.0}
    for recipe in recipes:
        if recipe.freeze != "all":
            trained = 1 - recipe.freeze / candidates.layers if isinstance(recipe.freeze, int) else 1.0
            assert recipe.epochs == pytest.approx(min(10.0, epochs / trained), abs=0.01)  # as long as other candidates
    assert recipes[0].head_init == ("solved" if epochs == 2.0 else "random")  # few epochs need a better start


@pytest.mark.parametrize(
    ("rows", "pair", "starts"),
    [
        (200, False, [("solved", 1.0), ("solved", 0.0), ("random", 0.0)]),
        (201, False, [("random", 0.0), ("solved", 0.0)]),
        (200, True, [("solved", 0.0), ("random", 0.0)]),  # heads that compare texts have no contrastive loss
    ],
)
def test_known_recipes_for_few_rows_begin_with_a_solved_head(rows, pair, starts):
    candidates = Candidates(Space.load("default"), encoder="toy", rows=rows, pair=pair)
    recipes = [spec.recipe for spec, _ in itertools.islice(candidates.known_recipes(), len(starts))]
    assert [(recipe.head_init, recipe.contrastive) for recipe in recipes] == starts
    assert (
        {recipe.batch_size for recipe in recipes}
        == {candidates.plain().recipe.batch_size}
        == {8 if rows == 200 else 32}
    )


@pytest.mark.parametrize("name", NAMED)
def test_every_space_has_known_recipes_for_few_rows(name):
    """The batches of the plain head may be smaller than those of the space."""
    few, more = (Candidates(Space.load(name), encoder="toy", rows=rows).known_recipes() for rows in (32, 500))
    assert len(list(few)) >= len(list(more)) > 0


def test_a_choice_of_zero_and_one_is_no_switch():
    space = Space("own", {"recipe": {"contrastive": Choice((0.0, 1.0)), "class_weights": Choice((False, True))}})
    candidates = Candidates(space, encoder="toy")
    drawn = [candidates.draw(random.Random(seed)) for seed in range(20)]
    assert {type(each["recipe.contrastive"]) for each in drawn} == {float}
    assert {type(each["recipe.class_weights"]) for each in drawn} == {bool}


@pytest.mark.parametrize("rows", [60, 500, 9000])
def test_given_number_of_epochs_is_obeyed(rows):
    """Issue: a recipe above ten epochs was silently cut to ten."""
    candidates = Candidates(Space.load("default"), encoder="toy", rows=rows, max_epochs=2.0, epochs=15.0)
    drawn = candidates.spec(candidates.draw(random.Random(0)))
    specs = [candidates.plain(), candidates.plain(1), drawn, *(spec for spec, _ in candidates.known_recipes())]
    assert len(specs) > 5 and {spec.recipe.epochs for spec in specs} == {15.0}


@pytest.mark.parametrize("length", [64, 256])
def test_max_length_applies_to_every_candidate(length):
    candidates = Candidates(Space.load("default"), encoder="toy", max_length=length)
    drawn = candidates.spec(candidates.draw(random.Random(0)))
    recipes = list(candidates.known_recipes())
    assert candidates.plain().recipe.max_length == drawn.recipe.max_length == length
    assert recipes and all(spec.recipe.max_length == length for spec, _ in recipes)
    assert all(candidates.spec(params) == spec.canonical() for spec, params in recipes)


@pytest.mark.parametrize(("space_length", "plain_length"), [(32, 32), (Choice((32, 48)), 48), (Choice((48, 32)), 48)])
def test_max_length_of_the_space_has_precedence(space_length, plain_length):
    space = Space("own", {"recipe": {"max_length": space_length, "learning_rate": Log(1e-5, 1e-4)}})
    candidates = Candidates(space, encoder="toy", max_length=64)
    assert candidates.spec(candidates.draw(random.Random(0))).recipe.max_length in (32, 48)
    assert candidates.plain().recipe.max_length == plain_length  # the longest that the space offers


def test_express_returns_none_for_specs_outside_the_space():
    assert Candidates(Space.load("default"), encoder="toy").express(Spec(encoder="toy")) is not None
    assert Candidates(Space.load("paper"), encoder="toy").express(Spec(encoder="toy")) is None


@settings(max_examples=60, deadline=None)
@given(st.floats(0, 1, exclude_max=True))
def test_position_of_inverts_value_at(position):
    for leaf in dict(Space.load("default").leaves()).values():
        value = value_at(leaf, position)
        assert contains(leaf, value)
        assert value_at(leaf, min(position_of(leaf, value), 1 - 1e-12)) == pytest.approx(value)


def test_active_leaves_are_those_that_change_the_candidate():
    candidates = Candidates(Space.load("default"), encoder="toy", pair=True)
    for seed in range(25):
        params = candidates.draw(random.Random(seed))
        active, spec_hash = candidates.active(params), candidates.spec(params).hash
        for path, leaf in candidates.leaves.items():
            others = [value_at(leaf, position) for position in (0.01, 0.3, 0.5, 0.7, 0.99)]
            hashes = {candidates.spec({**params, path: value}).hash for value in others}
            # A value that the canonical form would set itself may count as active.
            assert hashes == {spec_hash} if path not in active else hashes != {spec_hash} or params[path] in CANONICAL


def test_active_leaves_of_a_frozen_encoder_without_parts():
    candidates = Candidates(Space.load("default"), encoder="toy")
    params = {path: False if is_switch(leaf) else value_at(leaf, 0.9) for path, leaf in candidates.leaves.items()}
    active = candidates.active({**params, "recipe.freeze": "all"})
    assert not any(path.startswith(("head.mlp.", "head.convolutions.", "recipe.smart.")) for path in active)
    assert {"head.mlp", "recipe.smart", "recipe.freeze", "head.dropout"} <= active
    assert not {"recipe.layer_decay", "recipe.encoder_dropout"} & active


def test_draws_freeze_the_encoder_as_often_as_anything_else():
    candidates = Candidates(Space.load("default"), encoder="toy")
    frozen = sum(candidates.draw(random.Random(seed))["recipe.freeze"] == "all" for seed in range(1200))
    assert 150 < frozen < 250  # one of six choices


# --- regression


def test_regression_has_no_classification_leaves():
    space = Space.load("default")
    assert set(CLASSIFICATION_LEAVES) <= Candidates(space, encoder="toy").leaves.keys()
    assert not set(CLASSIFICATION_LEAVES) & Candidates(space, encoder="toy", problem_type="regression").leaves.keys()


@pytest.mark.parametrize(
    "recipe",
    [
        {"label_smoothing": Choice((0.05, 0.1)), "class_weights": Choice((True, False))},
        {"label_smoothing": 0.1, "class_weights": True},
    ],
    ids=["choices", "constants"],
)
def test_regression_specs_have_default_classification_fields(recipe):
    space = Space("own", {"head": {"pooling": Choice(("cls", "mean"))}, "recipe": recipe})
    candidates = Candidates(space, encoder="toy", problem_type="regression")
    spec = candidates.spec({"head.pooling": "mean"})
    assert (spec.recipe.label_smoothing, spec.recipe.class_weights) == (0.0, False)
    assert candidates.leaves.keys() == {"head.pooling"}


def test_regression_express_ignores_classification_fields():
    candidates = Candidates(Space.load("default"), encoder="toy", problem_type="regression")
    plain = Spec(encoder="toy")
    smoothed = replace(plain, recipe=replace(plain.recipe, label_smoothing=0.1, class_weights=True))
    assert candidates.express(smoothed) == candidates.express(plain) is not None


@pytest.mark.parametrize("problem_type", ["single_label_classification", "multi_label_classification"])
def test_classification_specs_keep_their_classification_fields(problem_type):
    candidates = Candidates(Space.load("default"), encoder="toy", problem_type=problem_type)
    params = candidates.draw(random.Random(0)) | {"recipe.label_smoothing": 0.1, "recipe.class_weights": True}
    spec = candidates.spec(params)
    assert (spec.recipe.label_smoothing, spec.recipe.class_weights) == (0.1, True)


# --- encoders named by the space


def space_with_encoder(encoder: object) -> Space:
    return Space("own", {**Space.load("default").tree, "encoder": encoder})


@pytest.mark.parametrize("encoder", ["own", Choice(("own", "other"))], ids=["constant", "choice"])
def test_plain_head_uses_the_encoder_of_the_space(encoder):
    candidates = Candidates(space_with_encoder(encoder), encoder="argument")
    assert candidates.encoder == candidates.plain().encoder == "own"
    assert candidates.express(candidates.plain()) is not None


@pytest.mark.parametrize("encoder", ["own", Choice(("own", "other"))], ids=["constant", "choice"])
def test_known_recipes_use_the_encoder_of_the_space(encoder):
    candidates = Candidates(space_with_encoder(encoder), encoder="argument")
    expected = [spec for spec, _ in Candidates(Space.load("default"), encoder="own").known_recipes()]
    recipes = list(candidates.known_recipes())
    assert [spec for spec, _ in recipes] == expected
    assert all(candidates.spec(params) == spec.canonical() for spec, params in recipes)


def test_encoder_argument_is_used_if_the_space_names_none():
    candidates = Candidates(Space.load("default"), encoder="argument")
    drawn = candidates.spec(candidates.draw(random.Random(0)))
    assert candidates.encoder == candidates.plain().encoder == drawn.encoder == "argument"


def test_encoder_choice_is_a_parameter():
    candidates = Candidates(space_with_encoder(Choice(("own", "other"))), encoder="argument")
    drawn = {candidates.spec(candidates.draw(random.Random(seed))).encoder for seed in range(20)}
    assert drawn == {"own", "other"}


def test_known_recipes_of_several_tasks_copy_layers_early():
    candidates = Candidates(Space.load("default"), encoder="toy", pair=True, problem_type="multi_task", max_epochs=10.0)
    recipes = [spec.recipe for spec, _ in candidates.known_recipes()]
    assert [recipe.task_layers for recipe in recipes[:3]] == [0, 2, 2]
    assert recipes[2].smart is not None and recipes[1].smart is None
    single = Candidates(Space.load("default"), encoder="toy", pair=True, max_epochs=10.0)
    others = [spec.recipe for spec, _ in single.known_recipes()]
    assert others == [recipes[0], *recipes[3:]]


def test_solved_heads_may_count_words_and_words_may_be_alone():
    options = {"encoder": "any", "pair": True, "max_length": 64, "classes": 30}
    candidates = Candidates(Space.load("default"), **options)
    beside, alone = candidates.solved()[0], candidates.words()
    assert beside.head == replace(candidates.solved(words=False)[0].head, words="beside")
    assert alone.head == Head(words="alone") and alone.recipe.solver == "logistic" and alone.recipe.max_length == 64
    balanced = Candidates(Space.load("default"), balanced=True, **options)
    assert balanced.words().recipe.class_weights and balanced.solved()[0].recipe.class_weights
    assert not alone.recipe.class_weights and not beside.recipe.class_weights
    several = Candidates(Space.load("default"), problem_type="multi_task", **options)
    assert not several.counts_words and several.solved()[0].head.words is None


def test_random_draws_of_a_uniform_space_switch_half_of_the_parts_on():
    space = Space.load("paper")
    assert space.uniform and Space.from_dict(space.to_dict()) == space
    for each, share in ((space, 0.5), (replace(space, uniform=False), 1 / 3)):
        candidates, rng = Candidates(each, encoder="toy"), random.Random(0)
        drawn = [candidates.draw(rng) for _ in range(600)]
        for path in ("head.blocks", "head.convolutions.skip"):
            assert abs(sum(params[path] for params in drawn) / 600 - share) < 0.06
    recipe = candidates.spec(drawn[0]).recipe
    assert recipe.warmup == 0.0 and recipe.weight_decay == 0.0
