"""Specs: strict JSON, one canonical form, one hash."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from headhunt.errors import SpecError
from headhunt.modeling.architecture import Convolutions, Head
from headhunt.spec import Lora, Recipe, Smart, Spec, plain

FULL = Spec(
    encoder="any",
    head=Head(layers="mix", convolutions=Convolutions(kernel=5), pooling="max", siamese="concat"),
    recipe=Recipe(freeze=2, lora=Lora(rank=4), smart=Smart(weight=2), swap_pairs=True),
)


def test_json_and_back():
    for spec in (FULL, plain("any"), Spec(encoder="any")):
        assert Spec.from_json(spec.to_json()) == spec.canonical()
        assert json.loads(spec.to_json())["schema"] == 1


def test_the_hash_stays_what_it_was():
    """A ledger names candidates by it: a change here is a change of schema."""
    assert plain("any").hash == "0c28e6cc88a53769"
    assert FULL.hash == "f3e76b1002cd8935"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"freeze": 0}, {"freeze": "embeddings"}),
        ({"freeze": "all", "layer_decay": 0.9}, {"freeze": "all"}),
        ({"freeze": "all", "lora": Lora()}, {"freeze": "all"}),
        ({"freeze": "none", "lora": Lora()}, {"freeze": "embeddings", "lora": Lora()}),
        ({"schedule": "slanted", "warmup": 0.2}, {"schedule": "slanted"}),
        ({"epochs": 3}, {"epochs": 3.0}),
    ],
)
def test_what_changes_nothing_has_one_form(one, other):
    a, b = (Spec(encoder="any", recipe=Recipe(**given)) for given in (one, other))
    assert Spec.from_json(json.dumps(a.to_dict())).hash == Spec.from_json(json.dumps(b.to_dict())).hash
    assert a.hash != Spec(encoder="any", recipe=Recipe(learning_rate=3e-5)).hash


def test_order_is_void_where_a_comparison_is_symmetric():
    for name, same in (("cosine", True), ("difference", True), ("dot", True), ("concat", False), (None, False)):
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
        ({"head": {"mlp": []}}, "must be a table"),
        ({"head": {"convolutions": {"kernel": 4}}}, "must be odd"),
        ({"head": {"dropout": "much"}}, "must be a number"),
        ({"head": {"dropout": True}}, "must be a number"),
        ({"recipe": {"batch_size": 8.5}}, "must be a whole number"),
        ({"recipe": {"freeze": "some"}}, "freeze must be"),
        ({"recipe": {"freeze": -1}}, "freeze must be 0"),
        ({"recipe": {"learning_rate": 0}}, "rate must be above 0"),
        ({"recipe": {"schedule": "cosin"}}, "Did you mean 'cosine'"),
        ({"recipe": {"smart": {"weight": 0}}}, "smart.weight must be above 0"),
        ({"recipe": {"truncation": "start"}}, "'end' or 'middle'"),
        ({"schema": 2}, "this version reads schema 1"),
    ],
)
def test_a_wrong_spec_is_refused_with_where_and_what(change, fragment):
    with pytest.raises(SpecError, match=fragment):
        Spec.from_dict({"encoder": "any", **change})


def test_text_that_is_no_spec_is_refused(tmp_path):
    for text in ("", "[1]", "nonsense", "3"):
        with pytest.raises(SpecError, match="must be"):
            Spec.from_json(text)
    lines = tmp_path / "two.json"
    lines.write_text(FULL.to_json() + "\n" + FULL.to_json() + "\n")
    with pytest.raises(SpecError, match="Keep one line"):
        Spec.read(lines)


def test_a_spec_file_may_leave_the_encoder_open(tmp_path):
    path = tmp_path / "spec.json"
    path.write_text('{"head": {"pooling": "mean"}}')
    assert Spec.read(path, "some") == Spec(encoder="some", head=Head(pooling="mean"))
    with pytest.raises(SpecError, match="encoder is missing"):
        Spec.read(path)


def test_the_plain_head_is_plain_and_others_are_not():
    assert Head().plain and Head(dropout=0.3).plain
    assert not any(head.plain for head in (FULL.head, Head(layers=2), Head(pooling="pooler"), Head(siamese="dot")))
    assert replace(plain("any", 500).recipe, epochs=5.0) == plain("any", 5_000).recipe
