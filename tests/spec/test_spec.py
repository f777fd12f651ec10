"""Specs: strict JSON, one canonical form and one hash."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace

import pytest

from headhunt.errors import SpecError
from headhunt.modeling.architecture import FIXED_POOLINGS, Blocks, Convolutions, Head, Mlp
from headhunt.spec import Lora, Recipe, Smart, Spec, plain, solved

FULL = Spec(
    encoder="any",
    head=Head(layers="mix", convolutions=Convolutions(kernel=5), pooling="max", siamese="concat"),
    recipe=Recipe(freeze=2, lora=Lora(rank=4), smart=Smart(weight=2), swap_pairs=True),
)


def test_spec_round_trips_through_json():
    for spec in (FULL, plain("any"), Spec(encoder="any")):
        assert Spec.from_json(spec.to_json()) == spec.canonical()
        assert json.loads(spec.to_json())["schema"] == 1


def test_spec_hash_is_stable():
    """Ledgers identify candidates by hash: a change here needs a new schema.

    Both values changed once before the first release, when fields at their default were left out of the hash.
    """
    assert plain("any").hash == "ee3921bd272c7fa9"
    assert FULL.hash == "8a8c37393bb4fb4f"


def test_spec_hash_ignores_new_fields_at_their_default():
    @dataclass(frozen=True, kw_only=True)
    class LaterSmart(Smart):
        momentum: float = 0.5

    @dataclass(frozen=True, kw_only=True)
    class LaterRecipe(Recipe):
        gradient_noise: float = 0.0

    @dataclass(frozen=True, kw_only=True)
    class LaterSpec(Spec):
        revision: str | None = None

    for given in ({}, {"learning_rate": 1e-4}, {"smart": Smart()}, {"smart": Smart(weight=2)}):
        later_smart = LaterSmart(weight=given["smart"].weight) if "smart" in given else None
        later = LaterSpec(encoder="any", recipe=LaterRecipe(**{**given, "smart": later_smart}))
        assert later.to_dict().keys() > Spec(encoder="any").to_dict().keys()
        assert later.hash == Spec(encoder="any", recipe=Recipe(**given)).hash
    assert LaterSpec(encoder="any", recipe=LaterRecipe(gradient_noise=0.1)).hash != Spec(encoder="any").hash


def test_spec_hash_distinguishes_default_part_from_no_part():
    specs = [Spec(encoder="any", recipe=Recipe(smart=smart)) for smart in (None, Smart(), Smart(weight=2))]
    specs += [Spec(encoder="any", head=Head(mlp=Mlp())), Spec(encoder="any", head=Head(mlp=Mlp(width=64)))]
    assert len({spec.hash for spec in specs}) == len(specs)


def test_spec_to_dict_contains_every_field():
    data = Spec(encoder="any").to_dict()
    assert data["recipe"].keys() == {item.name for item in fields(Recipe)}
    assert data["head"].keys() == {item.name for item in fields(Head)}


def test_spec_hash_ignores_classification_fields_in_regression():
    smoothed = Spec(encoder="any", recipe=Recipe(label_smoothing=0.1, class_weights=True))
    assert smoothed.canonical("regression").hash == Spec(encoder="any").hash
    for problem_type in ("single_label_classification", "multi_label_classification", None):
        assert smoothed.canonical(problem_type) == smoothed


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"freeze": 0}, {"freeze": "embeddings"}),
        ({"freeze": "all", "layer_decay": 0.9}, {"freeze": "all"}),
        ({"freeze": "all", "lora": Lora()}, {"freeze": "all"}),
        ({"freeze": "none", "lora": Lora()}, {"freeze": "embeddings", "lora": Lora()}),
        ({"schedule": "slanted", "warmup": 0.2}, {"schedule": "slanted"}),
        ({"epochs": 3}, {"epochs": 3.0}),
    ],
)
def test_spec_hash_ignores_fields_without_effect(first, second):
    a, b = (Spec(encoder="any", recipe=Recipe(**given)) for given in (first, second))
    assert Spec.from_json(json.dumps(a.to_dict())).hash == Spec.from_json(json.dumps(b.to_dict())).hash
    assert a.hash != Spec(encoder="any", recipe=Recipe(learning_rate=3e-5)).hash


def test_spec_hash_ignores_swap_pairs_with_symmetric_comparison():
    for name, same in (
        ("cosine", True),
        ("difference", True),
        ("dot", True),
        ("combined", True),
        ("concat", False),
        (None, False),
    ):
        specs = [Spec(encoder="any", head=Head(siamese=name), recipe=Recipe(swap_pairs=swap)) for swap in (False, True)]
        assert (specs[0].hash == specs[1].hash) == same, name


@pytest.mark.parametrize(
    ("change", "fragment"),
    [
        ({"haed": {}}, "Did you mean 'head'"),
        ({"encoder": 3}, "encoder must be a string"),
        ({"encoder": "  "}, "found nothing"),
        ({"head": {"pooling": "men"}}, "Did you mean 'mean'"),
        ({"head": {"layers": "last"}}, "must be a whole number or 'mix'"),
        ({"head": {"layers": 0}}, "layers must be 1 to 64"),
        ({"head": {"mlp": {"width": 0}}}, "mlp.width must be 1"),
        ({"head": {"mlp": []}}, "must be an object"),
        ({"head": {"convolutions": {"kernel": 4}}}, "must be odd"),
        ({"head": {"dropout": "much"}}, "must be a number"),
        ({"head": {"dropout": True}}, "must be a number"),
        ({"recipe": {"batch_size": 8.5}}, "must be a whole number"),
        ({"recipe": {"freeze": "some"}}, "freeze must be"),
        ({"recipe": {"freeze": -1}}, "freeze must be 0"),
        ({"recipe": {"learning_rate": 0}}, "rate must be above 0"),
        ({"recipe": {"solver": "rige"}}, "Did you mean 'ridge'"),
        ({"recipe": {"head_init": "solve"}}, "Did you mean 'solved'"),
        ({"recipe": {"standardize": 1}}, "standardize must be"),
        (
            {"head": {"layers": "concat", "pooling": "attention"}},
            'pooling with layers "concat" must be one of cls, mean',
        ),
        ({"head": {"layers": "concat", "blocks": {}}}, "takes neither convolutions nor blocks"),
        ({"head": {"layers": "concat", "convolutions": {}}}, "takes neither convolutions nor blocks"),
        ({"head": {"siamese": "combine"}}, "Did you mean 'combined'"),
        ({"recipe": {"schedule": "cosin"}}, "Did you mean 'cosine'"),
        ({"recipe": {"smart": {"weight": 0}}}, "smart.weight must be above 0"),
        ({"recipe": {"truncation": "start"}}, "'end' or 'middle'"),
        ({"schema": 2}, "this version reads schema 1"),
    ],
)
def test_spec_from_dict_refuses_invalid_values(change, fragment):
    with pytest.raises(SpecError, match=fragment):
        Spec.from_dict({"encoder": "any", **change})


def test_spec_read_refuses_text_that_is_not_one_json_object(tmp_path):
    for text in ("", "[1]", "nonsense", "3"):
        with pytest.raises(SpecError, match="must be"):
            Spec.from_json(text)
    lines = tmp_path / "two.json"
    lines.write_text(FULL.to_json() + "\n" + FULL.to_json() + "\n")
    with pytest.raises(SpecError, match="Keep only one of its lines"):
        Spec.read(lines)


def test_spec_read_accepts_file_without_encoder(tmp_path):
    path = tmp_path / "spec.json"
    path.write_text('{"head": {"pooling": "mean"}}')
    assert Spec.read(path, "some") == Spec(encoder="some", head=Head(pooling="mean"))
    with pytest.raises(SpecError, match="encoder is missing"):
        Spec.read(path)


def test_head_plain_ignores_only_dropout():
    assert Head().plain and Head(dropout=0.3).plain
    assert not any(head.plain for head in (FULL.head, Head(layers=2), Head(pooling="pooler"), Head(siamese="dot")))


def test_plain_trains_small_data_for_more_epochs_and_has_two_learning_rates():
    recipes = [plain("any", rows).recipe for rows in (500, 5_000, 5_001, 20_000, 20_001)]
    assert [recipe.epochs for recipe in recipes] == [10.0, 10.0, 5.0, 5.0, 3.0]
    assert all(replace(recipe, epochs=10.0) == recipes[0] for recipe in recipes)
    assert recipes[0] == Recipe(learning_rate=1e-4, epochs=10.0)
    other = plain("any", 20_000, recipe=1)
    assert other.head.plain and other.recipe == Recipe(learning_rate=3e-4, epochs=5.0)


def test_solved_reads_every_layer_in_three_poolings():
    single, pair = solved("any"), solved("any", pair=True)
    assert single.head == Head(layers="concat", pooling="cls_mean_max")
    assert pair.head == replace(single.head, siamese="combined")
    for spec in (single, pair):
        assert spec.encoder == "any" and spec.recipe == Recipe(solver="ridge", freeze="all")
        assert spec == spec.canonical() == Spec.from_json(spec.to_json())
    assert len({single.hash, pair.hash, plain("any").hash}) == 3


def test_solved_spec_hash_is_stable():
    """Ledgers identify candidates by hash: a change here needs a new schema."""
    assert solved("any").hash == "ac2dbf0114f02b2f"
    assert solved("any", pair=True).hash == "4899a87388bb288f"


@pytest.mark.parametrize(
    "given",
    [
        {"learning_rate": 1e-3, "epochs": 2, "batch_size": 8, "schedule": "linear", "warmup": 0.2},
        {"freeze": "none", "lora": Lora(), "encoder_dropout": 0.2, "layer_decay": 0.5, "weight_decay": 0.1},
        {"label_smoothing": 0.1, "smart": Smart(), "swap_pairs": True},
        {"head_init": "solved", "standardize": True, "head_lr_multiplier": 2.0},
    ],
)
def test_solver_ridge_ignores_fields_of_gradient_descent(given):
    spec = Spec(encoder="any", head=Head(pooling="mean", dropout=0.5), recipe=Recipe(solver="ridge", **given))
    expected = Spec(encoder="any", head=Head(pooling="mean"), recipe=Recipe(solver="ridge", freeze="all"))
    assert spec.canonical() == expected and spec.hash == expected.hash
    assert spec.canonical().canonical() == expected


@pytest.mark.parametrize("given", [{"max_length": 64}, {"truncation": "middle"}, {"class_weights": True}])
def test_solver_ridge_keeps_fields_of_the_input(given):
    spec = Spec(encoder="any", recipe=Recipe(solver="ridge", **given))
    assert spec.canonical().recipe == Recipe(solver="ridge", freeze="all", **given)
    assert spec.hash != Spec(encoder="any", recipe=Recipe(solver="ridge")).hash
    assert spec.hash != Spec(encoder="any", recipe=Recipe(freeze="all", **given)).hash


@pytest.mark.parametrize(
    "head",
    [
        Head(mlp=Mlp()),
        Head(convolutions=Convolutions()),
        Head(blocks=Blocks()),
        Head(layers="mix"),
        Head(pooling="attention"),
        Head(pooling="routing"),
        Head(pooling="pooler"),
        Head(siamese="cosine"),
        Head(siamese="dot"),
    ],
)
def test_solver_ridge_refuses_heads_with_weights_before_the_output_layer(head):
    with pytest.raises(ValueError, match=r'solver "ridge" takes a head without weights before its output layer'):
        Spec(encoder="any", head=head, recipe=Recipe(solver="ridge"))
    with pytest.raises(SpecError, match=r'solver "ridge"'):
        Spec.from_dict({**Spec(encoder="any", head=head).to_dict(), "recipe": {"solver": "ridge"}})


@pytest.mark.parametrize("pooling", FIXED_POOLINGS)
@pytest.mark.parametrize("siamese", [None, "concat", "difference", "combined"])
def test_solver_ridge_takes_every_head_without_weights(pooling, siamese):
    for layers in (1, 3, "concat"):
        spec = Spec(
            encoder="any", head=Head(layers=layers, pooling=pooling, siamese=siamese), recipe=Recipe(solver="ridge")
        )
        assert Spec.from_json(spec.to_json()) == spec.canonical()


def test_spec_hash_ignores_head_init_with_hidden_layers():
    for head, same in ((Head(pooling="mean", mlp=Mlp()), True), (Head(pooling="mean"), False), (Head(), False)):
        specs = [Spec(encoder="any", head=head, recipe=Recipe(head_init=name)) for name in ("random", "solved")]
        assert (specs[0].hash == specs[1].hash) == same


def test_spec_hash_ignores_standardize_without_features_to_scale():
    heads = {Head(): True, Head(siamese="dot"): True, Head(siamese="cosine"): True, Head(pooling="mean"): False}
    for head, same in heads.items():
        specs = [Spec(encoder="any", head=head, recipe=Recipe(standardize=given)) for given in (False, True)]
        assert (specs[0].hash == specs[1].hash) == same, head


def test_solved_head_of_many_classes_is_a_logistic_regression():
    assert [solved("any", classes=count).recipe.solver for count in (2, 20, 21)] == ["ridge", "ridge", "logistic"]
    spec = solved("any", classes=150)
    assert spec.canonical("single_label_classification").recipe.solver == "logistic"
    assert spec.canonical("regression").recipe.solver == "ridge"
    assert spec.hash != solved("any").hash and Spec.from_json(spec.to_json()) == spec


def test_words_are_counted_by_solved_heads_only():
    for words in ("beside", "alone"):
        spec = solved("any", words=words)
        assert spec.head.words == words and Spec.from_json(spec.to_json()) == spec and not spec.head.plain
        with pytest.raises(ValueError, match="only a solved head counts them"):
            replace(spec, recipe=Recipe())
    alone = Spec(encoder="any", head=Head(layers=3, pooling="mean", words="alone"), recipe=Recipe(solver="ridge"))
    assert alone.hash == solved("any", words="alone").hash != solved("any", words="beside").hash
    with pytest.raises(SpecError, match="Did you mean 'beside'"):
        Spec.from_dict({"encoder": "any", "head": {"words": "besides"}, "recipe": {"solver": "ridge"}})
    assert solved("any", words="alone", balanced=True).canonical("regression").recipe.class_weights is False


def test_task_fields_have_no_effect_on_one_task():
    several = Spec(encoder="any", recipe=Recipe(task_layers=2, task_sampling="sum"))
    assert several.canonical() == several.canonical("multi_task") == several
    assert several.canonical("regression") == Spec(encoder="any") and several.hash != Spec(encoder="any").hash
    frozen = Spec(encoder="any", recipe=Recipe(task_layers="all", freeze="all"))
    assert frozen.canonical().recipe.task_layers == 0
    for given in ({"task_layers": -1}, {"task_layers": "some"}, {"task_sampling": "random"}):
        with pytest.raises(ValueError, match=next(iter(given))):
            Recipe(**given)


def test_solved_head_of_many_classes_reads_the_last_layer_on_request():
    assert solved("encoder", classes=150, last_layer=True).head == Head(pooling="mean")
    assert solved("encoder", classes=2, last_layer=True) == solved("encoder")
