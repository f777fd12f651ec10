"""The model card of fitted models and searches."""

from __future__ import annotations

import csv
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import sentences
from model_folders import make_predictor
from typer.testing import CliRunner

from headhunt.cli import app
from headhunt.engine import api
from headhunt.modeling.architecture import Head
from headhunt.report import model_card as card
from headhunt.report.markdown import escape_text
from headhunt.run.directory import RunDirectory
from headhunt.spec import Recipe, Spec


def front_matter(text: str) -> dict:
    from huggingface_hub import ModelCard

    return ModelCard(text, ignore_metadata_errors=False).data.to_dict()


def blocks(text: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


@pytest.fixture(scope="module")
def fitted(encoders, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("fitted") / "films"
    api.fit(sentences(80), encoder=encoders(), out=folder, device="cpu", name="films", fine_tune=True)
    return folder


@pytest.fixture(scope="module")
def searched(encoders, tmp_path_factory) -> Path:
    from headhunt.engine.search import search

    folder = tmp_path_factory.mktemp("searched") / "run"
    options = {"time": None, "trials": 3, "workers": 0, "name": "films", "seed": 1}
    search(sentences(80), encoder=encoders(), out=folder, **options)
    return folder


def test_card_of_a_fitted_model_has_scores_labels_and_rows(fitted):
    text = (fitted / "README.md").read_text()
    facts = json.loads((fitted / "headhunt.json").read_text())
    data = front_matter(text)
    assert (data["library_name"], data["pipeline_tag"]) == ("transformers", "text-classification")
    assert data["tags"] == ["headhunt"] and "base_model" not in data, "a folder is not a name on the Hub"
    (index,) = data["model-index"]
    values = {metric["name"]: metric["value"] for metric in index["results"][0]["metrics"]}
    assert values["accuracy"] == round(facts["test"]["scores"]["accuracy"]["value"], 4)
    assert set(data["metrics"]) == {"accuracy", "f1", "matthews_correlation"}
    for words in (
        "`bad`, `good`",
        "64 train, 16 test",
        "16 test rows",
        "not calibrated",
        "contains no code",
        "torch ",
    ):
        assert words in text, words
    assert "None" not in text and "plain head" not in text and str(fitted.parent) not in text


def test_command_of_the_card_gives_the_same_model(fitted, encoders, tmp_path):
    (command,) = re.findall(r"\$ headhunt (fit DATA .*)", (fitted / "README.md").read_text())
    with (tmp_path / "films.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["text", "label"], *zip(*sentences(80), strict=True)])
    places = {"DATA": str(tmp_path / "films.csv"), "ENCODER": encoders(), "films": str(tmp_path / "again")}
    words = [places.get(word, word) for word in shlex.split(command)]
    done = CliRunner().invoke(app, [*words, "--device", "cpu"])
    assert done.exit_code == 0, done.output
    first, second = (api.load(folder, device="cpu") for folder in (fitted, tmp_path / "again"))
    np.testing.assert_allclose(second.outputs(["a good film"]), first.outputs(["a good film"]), atol=1e-6)


def test_card_of_a_search_has_its_verdict(searched):
    directory = RunDirectory(searched)
    result = directory.read_result()
    text = (directory.model / "README.md").read_text()
    role = result.verdict.delivered
    assert role in ("plain", "winner")
    assert escape_text(result.verdict.sentence) in text
    assert f"This model is the {'plain head.' if role == 'plain' else 'winner of that search.'}" in text
    score = result.test.scores[role]["accuracy"]
    assert f"| accuracy | {score.value:.4f} ({score.low:.4f} to {score.high:.4f}) |" in text
    assert front_matter(text)["model-index"][0]["results"][0]["metrics"][0]["value"] == round(score.value, 4)
    repeat = next(line for line in text.splitlines() if "headhunt search" in line)
    assert all(option in repeat for option in ("--encoder ENCODER", "--time none", "--trials 3"))
    assert not list(directory.models.glob("*/README.md")), "models that are not shown to the user have no card"


def test_folder_has_no_text_of_the_data(fitted, searched):
    texts = [text for text in sentences(80)[0] if len(text.split()) > 4]
    assert len(texts) > 30
    for folder in (fitted, searched / "model"):
        for name in ("README.md", "headhunt.json", "config.json"):
            assert not [text for text in texts if text in (folder / name).read_text()], name


def test_examples_of_the_card_run(encoders, tmp_path, outside):
    without, with_headhunt = [], []
    for case, problem_type in (
        ("plain", "single_label_classification"),
        ("siamese-concat", "single_label_classification"),
        ("conv", "multi_label_classification"),
        ("mlp", "regression"),
    ):
        predictor, _ = make_predictor(encoders(), case, problem_type)
        examples = blocks((predictor.save(tmp_path / f"{case}-{problem_type}") / "README.md").read_text())
        assert [len(block.strip().splitlines()) for block in examples] == [3, 3]
        assert ("trust_remote_code" in examples[0]) is (case != "plain")
        without.append(examples[0])
        with_headhunt.append(examples[1])
    inside = {**os.environ, "HF_HUB_OFFLINE": "1"}
    for python, env, code in ((outside["OUTSIDE_PYTHON"], outside, without), (sys.executable, inside, with_headhunt)):
        words = [python, "-c", "\n".join(code)]
        done = subprocess.run(words, env=env, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-2000:]
        predictions = done.stdout.strip().splitlines()
        assert len(predictions) == 4 and all("label" in prediction for prediction in predictions)


def test_card_is_rendered_for_missing_facts_and_odd_names():
    bare = {
        "schema": 1,
        "problem_type": "single_label_classification",
        "labels": ["a", "b"],
        "pair": False,
        "recipe": {},
        "spec": None,
    }
    text = card.render(bare)
    assert "No scores are stored" in text and "None" not in text and "model-index" not in front_matter(text)
    odd = ["---", "a|b", "`x`", "``", "<script>", "line\nbreak", "", "é" * 200, ": {", "#", "[x](y)", "%", "\u202e"]
    score = {"value": 0.5, "low": 0.25, "high": 0.75}
    spec = Spec(encoder="org/name", head=Head(siamese="cosine", pooling="mean"), recipe=Recipe(truncation="middle"))
    test = {"rows": 9, "scores": {"accuracy": score, "another": score}}
    test["classes"] = [{"label": label, "rows": 1, "precision": 0, "recall": 0, "f1": 0} for label in odd]
    facts = {
        **bare,
        "labels": odd,
        "pair": True,
        "spec": spec.to_dict(),
        "recipe": spec.to_dict()["recipe"],
        "test": test,
        "task": {"name": "---\n# | `q`"},
    }
    text = card.render(facts, folder='a "quoted" name')
    data = front_matter(text)
    assert data["base_model"] == "org/name" and data["tags"] == ["headhunt", "text-pair-classification"]
    assert data["model-index"][0]["name"] == "---\n# | `q`"
    body = text.split("\n---\n", 1)[1]
    assert "<script>" not in re.sub(r"(`+).*?\1", "", body), "HTML in a label is displayed as text"
    rows = [line for line in body.splitlines() if line.startswith("| ") and "precision" not in line][-len(odd) :]
    assert all(len(re.findall(r"(?<!\\)\|", row)) == 6 for row in rows)
    assert "trust_remote_code=True" in text and "cuts at the end" in text and "cuts both together" in text
    compile(blocks(text)[0], "card", "exec")
    many = card.render({**bare, "labels": [f"class {i}" for i in range(5000)]})
    assert "4,960 more" in many and len(many) < 5000


@pytest.mark.parametrize(
    ("encoder", "name"),
    [
        ("bert-base-uncased", "bert-base-uncased"),
        ("org/name.v1", "org/name.v1"),
        ("/home/me/model", None),
        ("./model", None),
        ("../model", None),
        ("runs/a/model", None),
        ("~/model", None),
    ],
)
def test_hub_name_refuses_paths(encoder, name):
    assert card.hub_name(encoder) == name


def test_hub_name_refuses_an_existing_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org" / "name").mkdir(parents=True)
    assert card.hub_name("org/name") is None
