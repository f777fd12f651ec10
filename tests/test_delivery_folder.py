"""The folder people take home: it answers alike without Headhunt, says what it is, and goes to the Hub as it is."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import sentences
from hub import TOKEN, Hub
from heads import CASES, LABELS, make
from typer.testing import CliRunner

from headhunt.cli import app
from headhunt.delivery import hub as huggingface
from headhunt.delivery.hub import HubError
from headhunt.engine import api
from headhunt.errors import ModelError
from headhunt.modeling.architecture import Head
from headhunt.modeling.build import output_of
from headhunt.predictor import Predictor
from headhunt.report import model_card as card
from headhunt.report.markdown import escape_text
from headhunt.run.directory import RunDirectory
from headhunt.spec import Recipe, Spec

TOKENS = {"config.json", "headhunt.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "README.md"}
CODE = {"architecture.py", "configuration.py", "heads.py", "model.py"}
PROBLEM_TYPES = ("single_label_classification", "multi_label_classification", "regression")


def predictor_of(encoder: str, case: str, problem_type: str) -> tuple[Predictor, dict[str, torch.Tensor]]:
    model, batch, tokenizer = make(encoder, case, problem_type)
    head, pair = CASES[case]
    labels = () if problem_type == "regression" else LABELS
    spec = Spec(encoder=encoder, head=head)
    return Predictor(
        model, tokenizer, problem_type=problem_type, labels=labels, pair=pair, spec=spec, precision="fp32"
    ), batch


LOAD = """
import json, sys, numpy as np, torch, importlib.util
assert importlib.util.find_spec("headhunt") is None
from transformers import AutoModelForSequenceClassification, pipeline
answers = {}
for case in json.load(open(sys.argv[1])):
    inputs = {name: torch.tensor(x) for name, x in case["inputs"].items()}
    # A plain head must load without a word about trust, any other with it.
    trust = {} if case["native"] else {"trust_remote_code": True}
    model = AutoModelForSequenceClassification.from_pretrained(case["folder"], **trust).eval()
    with torch.no_grad():
        logits = model(**inputs).logits.tolist()
    classify = pipeline("text-classification", case["folder"], device="cpu", **trust)
    text = {"text": "a good film", "text_pair": "it was bad"} if case["pair"] else "a good film"
    said = classify(text, top_k=None)
    answers[case["name"]] = {"logits": logits, "said": {one["label"]: one["score"] for one in said}}
json.dump(answers, open(sys.argv[2], "w"))
"""


def test_every_head_pair_mode_and_kind_gives_the_same_logits_without_headhunt(encoders, tmp_path, outside):
    expected, said, work = {}, {}, []
    for case, (head, pair) in CASES.items():
        for problem_type in PROBLEM_TYPES:
            name = f"{case}-{problem_type}"
            predictor, batch = predictor_of(encoders(), case, problem_type)
            if case in ("plain", "siamese-mlp-attention"):  # as `--calibrate` does it: within the last layer
                with torch.no_grad():
                    output_of(predictor.model).weight.div_(1.7)
                    output_of(predictor.model).bias.div_(1.7)
                predictor.facts["temperature"] = 1.7
            folder = predictor.save(tmp_path / name)
            assert {path.name for path in folder.iterdir()} == TOKENS | (set() if head.plain else CODE), name
            with torch.no_grad():
                expected[name] = predictor.model(**batch).logits.numpy()
            answer = predictor.outputs(["a good film"], ["it was bad"] if pair else None)
            said[name] = dict(zip(predictor.labels or ("score",), answer.ravel().tolist(), strict=True))
            inputs = {name: x.tolist() for name, x in batch.items()}
            work.append({"name": name, "folder": str(folder), "inputs": inputs, "native": head.plain, "pair": pair})
    (tmp_path / "work.json").write_text(json.dumps(work))
    (tmp_path / "load.py").write_text(LOAD)
    words = [str(tmp_path / name) for name in ("load.py", "work.json", "answers.json")]
    done = subprocess.run(
        [outside["OUTSIDE_PYTHON"], *words], env=outside, capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr[-2000:]
    answers = json.loads((tmp_path / "answers.json").read_text())
    assert len(answers) == len(CASES) * len(PROBLEM_TYPES)
    for name, logits in expected.items():
        assert np.ptp(logits) > 1e-4, "a model that says the same of everything proves nothing"
        assert np.abs(np.array(answers[name]["logits"]) - logits).max() < 1e-5, name
        assert answers[name]["said"] == pytest.approx(said[name], abs=1e-5), name


@pytest.mark.parametrize("case", ["plain", "conv-blocks", "siamese-concat"])
def test_with_headhunt_no_code_of_the_folder_runs(encoders, case, tmp_path, monkeypatch):
    from transformers import AutoModelForSequenceClassification, dynamic_module_utils

    predictor, batch = predictor_of(encoders(), case, "single_label_classification")
    folder = predictor.save(tmp_path / "model")
    for name in CODE & {path.name for path in folder.iterdir()}:
        (folder / name).write_text("raise SystemExit('code of the folder ran')")
    monkeypatch.setattr(dynamic_module_utils, "get_class_in_module", None)
    with torch.no_grad():
        expected = predictor.model(**batch).logits
        for loaded in (AutoModelForSequenceClassification.from_pretrained(folder).eval(), api.load(folder).model):
            assert torch.equal(loaded(**batch).logits, expected)


# --- the card


def front_matter(text: str) -> dict:
    from huggingface_hub import ModelCard

    return ModelCard(text, ignore_metadata_errors=False).data.to_dict()


def blocks(text: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


@pytest.fixture(scope="module")
def fitted(encoders, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("fitted") / "films"
    api.fit(sentences(80), encoder=encoders(), out=folder, device="cpu", name="films")
    return folder


@pytest.fixture(scope="module")
def searched(encoders, tmp_path_factory) -> Path:
    from headhunt.engine import search as hunt

    folder = tmp_path_factory.mktemp("searched") / "run"
    hunt.search(sentences(80), encoder=encoders(), out=folder, time=None, trials=3, workers=0, name="films", seed=1)
    return folder


def test_the_card_of_one_candidate(fitted):
    text = (fitted / "README.md").read_text()
    facts = json.loads((fitted / "headhunt.json").read_text())
    data = front_matter(text)
    assert (data["library_name"], data["pipeline_tag"]) == ("transformers", "text-classification")
    assert data["tags"] == ["headhunt"] and "base_model" not in data, "a folder on disk is no name on the Hub"
    (index,) = data["model-index"]
    told = {one["name"]: one["value"] for one in index["results"][0]["metrics"]}
    assert told["accuracy"] == round(facts["test"]["scores"]["accuracy"]["value"], 4)
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


def test_the_command_of_the_card_gives_the_same_model(fitted, encoders, tmp_path):
    import csv
    import shlex

    (command,) = re.findall(r"\$ headhunt (fit DATA .*)", (fitted / "README.md").read_text())
    with (tmp_path / "films.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["text", "label"], *zip(*sentences(80), strict=True)])
    places = {"DATA": str(tmp_path / "films.csv"), "ENCODER": encoders(), "films": str(tmp_path / "again")}
    words = [places.get(word, word) for word in shlex.split(command)]
    done = CliRunner().invoke(app, [*words, "--device", "cpu"])
    assert done.exit_code == 0, done.output
    ours, theirs = (api.load(folder, device="cpu") for folder in (fitted, tmp_path / "again"))
    np.testing.assert_allclose(theirs.outputs(["a good film"]), ours.outputs(["a good film"]), atol=1e-6)


def test_model_card_of_search_states_verdict(searched):
    directory = RunDirectory(searched)
    result = directory.read_result()
    text = (directory.model / "README.md").read_text()
    assert result.verdict.delivered == "plain"
    assert escape_text(result.verdict.sentence) in text
    assert "This model is the plain head." in text and "| this model | best other candidate |" in text
    score = result.test.scores["plain"]["accuracy"]
    assert f"| accuracy | {score.value:.4f} ({score.low:.4f} to {score.high:.4f}) |" in text
    assert front_matter(text)["model-index"][0]["results"][0]["metrics"][0]["value"] == round(score.value, 4)
    winner = (directory.models / result.winner_model / "README.md").read_text()
    assert "This model is the winner" in winner and "| this model | plain head |" in winner
    assert f"| {result.test.scores['winner']['accuracy'].value:.4f} (" in winner
    assert "headhunt search DATA --encoder ENCODER --time none --trials 3" in text
    others = [path.parent.name for path in directory.models.glob("*/README.md")]
    assert others == [result.winner_model], "models that are not shown to the user have no card"


def test_no_text_of_the_data_is_in_the_folder(fitted, searched):
    texts = [text for text in sentences(80)[0] if len(text.split()) > 4]
    assert len(texts) > 30
    for folder in (fitted, searched / "model"):
        for name in ("README.md", "headhunt.json", "config.json"):
            assert not [text for text in texts if text in (folder / name).read_text()], name


def test_the_examples_of_the_card_run(encoders, tmp_path, outside):
    alone, ours = [], []
    for case, problem_type in (
        ("plain", "single_label_classification"),
        ("siamese-concat", "single_label_classification"),
        ("conv", "multi_label_classification"),
        ("mlp", "regression"),
    ):
        predictor, _ = predictor_of(encoders(), case, problem_type)
        found = blocks((predictor.save(tmp_path / f"{case}-{problem_type}") / "README.md").read_text())
        assert [len(block.strip().splitlines()) for block in found] == [3, 3]
        assert ("trust_remote_code" in found[0]) is (case != "plain")
        alone.append(found[0])
        ours.append(found[1])
    inside = {**os.environ, "HF_HUB_OFFLINE": "1"}
    for python, env, code in ((outside["OUTSIDE_PYTHON"], outside, alone), (sys.executable, inside, ours)):
        words = [python, "-c", "\n".join(code)]
        done = subprocess.run(words, env=env, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-2000:]
        answers = done.stdout.strip().splitlines()
        assert len(answers) == 4 and all("label" in answer for answer in answers)


def test_whatever_is_missing_or_odd_the_card_is_written():
    bare = {
        "schema": 1,
        "problem_type": "single_label_classification",
        "labels": ["a", "b"],
        "pair": False,
        "recipe": {},
        "spec": None,
    }
    text = card.render(bare)
    assert "Not tested" in text and "None" not in text and "model-index" not in front_matter(text)
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
    assert "<script>" not in re.sub(r"(`+).*?\1", "", body), "what looks like HTML is shown, not obeyed"
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
def test_a_folder_is_no_name_on_the_hub(encoder, name):
    assert card.hub_name(encoder) == name


def test_a_folder_that_is_there_is_no_name_on_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org" / "name").mkdir(parents=True)
    assert card.hub_name("org/name") is None


# --- to the Hub

# How huggingface_hub calls its HTTP library when it sends large files the way it did before Xet.
OLD_WAY = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")


@pytest.fixture
def model(encoders, tmp_path) -> Path:
    return predictor_of(encoders(), "conv-blocks", "single_label_classification")[0].save(tmp_path / "model")


def headhunt(words: list[str], env: dict[str, str]) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-m", "headhunt.cli", *words], env=env, capture_output=True, text=True)


def test_a_dry_run_lists_what_goes_and_what_stays(model, tmp_path):
    (model / "train.csv").write_text("secret")
    (model / "notes").mkdir()
    (model / "README.md").unlink()
    words = ["push", str(model), "me/films", "--dry-run"]
    done = CliRunner().invoke(app, [*words, "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.output)
    assert set(told["files"]) == TOKENS | CODE and told["url"] is None and told["private"] is True
    assert told["left"] == ["notes/", "train.csv"] and any("README.md is not there" in note for note in told["notes"])
    assert told["bytes"] == sum(told["files"].values())
    for name in set(told["files"]) - {"README.md"}:
        assert told["files"][name] == (model / name).stat().st_size
    assert not (model / "README.md").exists(), "a dry run changes nothing"
    shown = CliRunner().invoke(app, words)
    assert f"{told['bytes']:,}  bytes in 10 files" in shown.output and "nothing was sent" in shown.output
    assert "stays here: train.csv" in shown.output


FROM_THE_HUB = """
import importlib.util, json
assert importlib.util.find_spec("headhunt") is None
from transformers import AutoModelForSequenceClassification, AutoTokenizer, pipeline
tokenizer = AutoTokenizer.from_pretrained("me/films", trust_remote_code=True)
model = AutoModelForSequenceClassification.from_pretrained("me/films", trust_remote_code=True).eval()
logits = model(**tokenizer("a good film", return_tensors="pt")).logits.tolist()
(said,) = pipeline("text-classification", "me/films", trust_remote_code=True, device="cpu")("a good film")
print(json.dumps({"logits": logits, "said": said}))
"""


def test_what_is_pushed_arrives_and_loads_from_there(model, tmp_path, outside):
    (model / "train.csv").write_text("secret")
    with Hub() as hub:
        env = hub.env(dict(os.environ), tmp_path / "home")
        done = headhunt(["push", str(model), "films", "--message", "The first one"], env)
        assert done.returncode == 0, done.stderr[-2000:]
        assert f"{hub.url}/me/films" in done.stdout and hub.url.split("/")[-1] in done.stdout
        repo = hub.repos["me/films"]
        assert repo.private and repo.messages == ["The first one"]
        assert repo.files == {path.name: path.read_bytes() for path in model.iterdir() if path.name != "train.csv"}
        assert len(hub.verified) == 1, "weights go as large files"
        env = hub.env(outside, tmp_path / "other")
        python = outside["OUTSIDE_PYTHON"]
        loaded = subprocess.run([python, "-c", FROM_THE_HUB], env=env, capture_output=True, text=True, cwd=tmp_path)
        assert loaded.returncode == 0, loaded.stderr[-2000:]
    found = json.loads(loaded.stdout.splitlines()[-1])
    expected = api.load(model, device="cpu", precision="fp32").predict("a good film")[0]
    assert found["said"] == {"label": expected.label, "score": pytest.approx(expected.probability, abs=1e-5)}
    probabilities = torch.tensor(found["logits"]).softmax(-1)[0].tolist()
    assert probabilities == pytest.approx(list(expected.probabilities.values()), abs=1e-5)


def in_process(hub: Hub, monkeypatch: pytest.MonkeyPatch, token: str | None) -> None:
    """Lets huggingface_hub, which reads its environment once, speak to the stand-in from this process."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", "/nowhere")
    monkeypatch.setattr("huggingface_hub.hf_api.constants.ENDPOINT", hub.url)
    monkeypatch.setenv("HF_TOKEN", token or "")


@OLD_WAY
def test_a_second_push_takes_the_place_of_the_first(model, encoders, tmp_path, monkeypatch):
    plain = predictor_of(encoders(), "plain", "single_label_classification")[0].save(tmp_path / "plain")
    with Hub() as hub:
        in_process(hub, monkeypatch, TOKEN)
        huggingface.push(huggingface.pack(model), "me/films")
        assert set(hub.repos["me/films"].files) >= CODE
        hub.repos["me/films"].files["mine.txt"] = b"kept"
        huggingface.push(huggingface.pack(plain), "me/films")
        held = hub.repos["me/films"].files
    assert held == {"mine.txt": b"kept"} | {path.name: path.read_bytes() for path in plain.iterdir()}, "no code is left"


def refused(parcel: huggingface.Parcel, repo: str = "me/films", **options) -> str:
    with pytest.raises(HubError) as error:
        huggingface.push(parcel, repo, **options)
    return str(error.value)


@OLD_WAY
def test_what_can_go_wrong_is_told_in_one_sentence(model, monkeypatch):
    parcel = huggingface.pack(model)
    with Hub() as hub:
        in_process(hub, monkeypatch, None)
        assert "hf auth login" in refused(parcel)
        monkeypatch.setenv("HF_TOKEN", "hf_wrong")
        assert "must be a valid one" in refused(parcel)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        message = refused(parcel, "others/films")
        assert "allowed to write to others/films; me is not (403" in message and "rights to create" in message
        hub.status = {"/commit/": 403}
        assert "allowed to write to me/films" in refused(parcel)
        hub.status = {"/commit/": 500}
        assert "it answers 500" in refused(parcel)
        assert not hub.repos["me/films"].files
        hub.status = {}
        huggingface.push(parcel, "me/open", private=False)
        asked = len(hub.asked)
        assert "everyone can see it. Say --public" in refused(parcel, "me/open")
        assert not [line for line in hub.asked[asked:] if "commit" in line or "large" in line], "nothing was sent"
        (model / "README.md").write_text("---\nlibrary_name: 3\n---\n")
        assert "library_name is wrong" in refused(huggingface.pack(model))
    from huggingface_hub import constants

    monkeypatch.setattr("huggingface_hub.hf_api.constants.ENDPOINT", "http://127.0.0.1:9")  # nobody listens there
    assert "must be reachable; it is not" in refused(parcel)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE is set" in refused(parcel)


@pytest.mark.parametrize("repo", ["", "a/b/c", "me/films--x", "me/fi lms", "me/.git", "-x", "me/" + "x" * 100])
def test_a_malformed_name_is_refused_before_anything_else(repo, tmp_path):
    done = CliRunner().invoke(app, ["push", str(tmp_path), "--dry-run", "--", repo])
    assert done.exit_code == 2 and "REPO must be as name or user/name" in done.output, done.output


def test_what_is_no_whole_model_is_not_pushed(model, encoders, tmp_path):
    for folder in (tmp_path / "nothing", Path(encoders())):
        with pytest.raises(ModelError, match=r"not there|no headhunt\.json"):
            huggingface.pack(folder)
    whole = (model / "model.safetensors").read_bytes()
    (model / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ModelError, match="cannot be loaded"):
        huggingface.pack(model)
    from safetensors.torch import load, save_file

    weights = load(whole)
    last = [name for name in weights if name.startswith("head.")][-1]
    save_file({**weights, last: weights[last] * float("nan")}, model / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match="finite"):
        huggingface.pack(model)
    save_file({n: w for n, w in weights.items() if n != last}, model / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=f"weights lack {last}"):
        huggingface.pack(model)
    shutil.rmtree(model)
