"""Spaces: size, files, sampling, and that every candidate builds and trains."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
import pytest
from conftest import sentences
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headhunt.data import Task
from headhunt.errors import SpecError
from headhunt.spec import NAMED, Choice, Float, Int, Log, Maybe, Space, Spec, draw_leaf, inactive_leaves


def test_paper_space_has_published_size():
    mlp, conv, blocks, pooling, freeze = 5 * 196, 1 + 5 * 196 * 5 * 2, 1 + 5 * 5, 3, 2
    assert Space.load("paper").size() == mlp * conv * blocks * pooling * freeze == 1_498_376_880


@pytest.mark.parametrize("name", NAMED)
def test_space_round_trips_through_json_file(name, tmp_path):
    import json

    space = Space.load(name)
    path = tmp_path / "own.json"
    path.write_text(json.dumps(space.to_dict()))
    assert Space.load(path) == space
    assert list(space.leaves())


def test_space_load_reads_toml(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(
        """
        encoder = ["one", "two"]
        [head]
        pooling = ["mean", "max"]
        siamese = ["off", "cosine"]
        [head.mlp]
        optional = true
        width = { int = [8, 16] }
        [recipe]
        learning_rate = { log = [1e-5, 1e-3] }
        freeze = "embeddings"
        """
    )
    space = Space.load(path)
    assert space.tree == {
        "encoder": Choice(("one", "two")),
        "head": {
            "pooling": Choice(("mean", "max")),
            "siamese": Choice((None, "cosine")),
            "mlp": Maybe({"width": Int(8, 16)}),
        },
        "recipe": {"learning_rate": Log(1e-5, 1e-3), "freeze": "embeddings"},
    }
    assert space.size() == 2 * 2 * (1 + 9)
    drawn = [space.draw(seed) for seed in range(40)]
    assert {spec.encoder for spec in drawn} == {"one", "two"}
    assert {spec.head.mlp is None for spec in drawn} == {True, False}
    assert all(1e-5 <= spec.recipe.learning_rate <= 1e-3 and spec.recipe.freeze == "embeddings" for spec in drawn)


@pytest.mark.parametrize(
    ("text", "fragment"),
    [
        ("[head]\npoling = ['mean']", "Did you mean 'pooling'"),
        ("[haed]\npooling = 'mean'", "Did you mean 'head'"),
        ("[head]\npooling = ['mean', 'median']", "pooling must be one of"),
        ("[head]\npooling = []", "at least one"),
        ("[recipe]\nlearning_rate = { log = [0.0, 1.0] }", "above 0"),
        ("[recipe]\nlearning_rate = { log = [1e-3, 1e-5] }", "low to high"),
        ("[recipe]\nlearning_rate = { log = [1e-3] }", "two numbers"),
        ("[recipe]\nepochs = { int = [0, 3] }", "epochs must be above 0"),
        ("[recipe]\nepochs = { int = [1, inf] }", "epochs must be a range of finite numbers; found 1 to inf"),
        ("[recipe]\nlearning_rate = { log = [1e-5, inf] }", "must be a range of finite numbers"),
        (f"[head]\nmlp = {{ layers = {{ int = [1, 1{400 * '0'}] }} }}", "mlp.layers must be a whole number; found 10"),
        ("[recipe]\nepochs = { int = [1.5, 3] }", "epochs must be a range of whole numbers; found 1.5 to 3"),
        ("[recipe.learning_rate]\nlow = 3", "must be a value, a list of values, or .*; found a table with low"),
        ("[head", "TOML"),
        ("schema = 7", "schema 1"),
    ],
)
def test_space_load_refuses_invalid_files(tmp_path, text, fragment):
    path = tmp_path / "own.toml"
    path.write_text(text)
    with pytest.raises(SpecError, match=fragment):
        Space.load(path)


@pytest.mark.parametrize("name", ["mine.toml", "spaces/mine"])
def test_space_file_that_is_not_there_is_named(name):
    with pytest.raises(SpecError, match=f"The file of a space must exist; '{name}' does not"):
        Space.load(name)


def test_space_sample_suggests_every_leaf():
    space = Space.load("default")
    suggested: list[str] = []

    def suggest(path, leaf):
        suggested.append(path)
        return leaf.options[0] if isinstance(leaf, Choice) else leaf.low

    space.sample(suggest, encoder="any")
    assert suggested == [path for path, _ in space.leaves()]


def test_space_sample_removes_leaves_of_parts_that_are_off():
    space = Space.load("default")

    def suggest(width):
        def choose(path, leaf):
            if path == "head.mlp.width":
                return width
            return leaf.options[0] if isinstance(leaf, Choice) else leaf.low

        return choose

    off = [space.sample(suggest(width), encoder="any") for width in (64, 512)]
    assert off[0].head.mlp is None and off[0].hash == off[1].hash


def test_space_draw_ignores_pair_leaves_for_single_texts():
    space = Space.load("default")
    for seed in range(50):
        spec = space.draw(seed, encoder="any", pair=False)
        assert spec.head.siamese is None and not spec.recipe.swap_pairs


def test_default_space_freeze_choices_follow_encoder_depth():
    freeze = {layers: Space.load("default", layers).tree["recipe"]["freeze"].options for layers in (0, 2, 6, 12)}
    assert freeze[0] == ("none", "embeddings", "all")
    assert freeze[2] == ("none", "embeddings", 1, "all")
    assert freeze[6] == ("none", "embeddings", 2, 3, 4, "all")
    assert freeze[12] == ("none", "embeddings", 4, 6, 8, "all")


def test_space_draw_ignores_classification_leaves_in_regression():
    space = Space.load("default")
    drawn = [space.draw(seed, encoder="any", problem_type="regression") for seed in range(50)]
    assert all(spec.recipe.label_smoothing == 0 and not spec.recipe.class_weights for spec in drawn)
    assert not any(spec.recipe.contrastive for spec in drawn)
    classes = [space.draw(seed, encoder="any", problem_type="single_label_classification") for seed in range(50)]
    assert any(spec.recipe.label_smoothing for spec in classes) and any(spec.recipe.class_weights for spec in classes)
    assert {spec.recipe.contrastive for spec in classes} == {0.0, 1.0}
    paths = [path for path, _ in Space.load("default", windows=True).leaves()]
    for pair, problem_type, count in (
        (True, "multi_task", 2),
        (True, None, 3),
        (False, None, 4),
        (False, "multi_label_classification", 5),
        (True, "regression", 6),
        (False, "regression", 7),
    ):
        inactive = inactive_leaves(pair=pair, problem_type=problem_type)
        assert len(inactive) == count and set(inactive) <= set(paths)


def test_space_draw_ignores_task_leaves_of_one_task():
    space = Space.load("default")
    for problem_type in (None, "single_label_classification"):
        drawn = [space.draw(seed, encoder="any", problem_type=problem_type) for seed in range(30)]
        assert {(spec.recipe.task_layers, spec.recipe.task_sampling) for spec in drawn} == {(0, "proportional")}
    drawn = [space.draw(seed, encoder="any", problem_type="multi_task") for seed in range(60)]
    # Frozen encoders have no copies of layers.
    assert {spec.recipe.task_layers for spec in drawn if spec.recipe.freeze != "all"} == {0, 1, 2, "all"}
    assert {spec.recipe.task_layers for spec in drawn if spec.recipe.freeze == "all"} <= {0}
    assert {spec.recipe.task_sampling for spec in drawn} == {"proportional", "sqrt", "sum"}
    assert [Space.load("default", layers).tree["recipe"]["task_layers"].options for layers in (0, 2)] == [
        (0,),
        (0, "all"),
    ]


def values(leaf):
    """Return a hypothesis strategy of a leaf's values."""
    if isinstance(leaf, Choice):
        return st.sampled_from(leaf.options)
    if isinstance(leaf, Int):
        return st.integers(leaf.low, leaf.high)
    if isinstance(leaf, Float | Log):
        return st.floats(leaf.low, leaf.high)
    raise AssertionError(leaf)


@pytest.mark.slow
@pytest.mark.parametrize("pair", [False, True], ids=["one text", "pair"])
@pytest.mark.parametrize("name", NAMED)
def test_every_candidate_builds_trains_and_keeps_its_hash(encoders, name, pair):
    from headhunt.engine.assembly import prepare

    texts, labels = sentences(8)  # fewer than any batch size: an epoch is one step
    columns = {"text": texts, **({"text_b": texts[::-1]} if pair else {}), "label": labels}
    task = Task.load({"train": columns, "test": columns})
    space = Space.load(name, layers=2)
    encoder = encoders()
    seen = set()

    @settings(max_examples=600, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None)
    @given(st.data(), st.integers(0, 2**32))
    def holds(data, seed):
        # Hypothesis pushes one leaf to its ends; the others are drawn at random so that candidates differ.
        path, leaf = data.draw(st.sampled_from(list(space.leaves())))
        drawn, rng = data.draw(values(leaf)), random.Random(seed)
        spec = space.sample(
            lambda here, leaf: drawn if here == path else draw_leaf(leaf, rng), encoder=encoder, pair=pair
        )
        if spec.hash in seen:
            return
        assert Spec.from_json(spec.to_json()).hash == spec.hash
        assert Spec.from_json(spec.to_json()) == spec
        seen.add(spec.hash)
        two_steps = replace(spec, recipe=replace(spec.recipe, epochs=2.0))
        training, predictor = prepare(task, task.splits["train"], two_steps, device="cpu", precision="fp32")
        losses = [report.loss for report in training.reports(2)]
        assert training.step == 2 and all(math.isfinite(loss) for loss in losses)
        assert np.isfinite(predictor.outputs(texts, texts[::-1] if pair else None)).all()

    holds()
    assert len(seen) >= 500


@pytest.mark.parametrize("part", ["head", "recipe"])
def test_a_part_that_is_off_as_a_whole_is_refused(part):
    with pytest.raises(SpecError):
        Space.from_dict({"schema": 1, "name": "own", "head": {"pooling": ["cls", "mean"]}, part: "off"})
