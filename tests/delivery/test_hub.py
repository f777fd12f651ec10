"""Uploads to the Hugging Face Hub, with a stand-in for the Hub on this machine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from ensembles import save_case
from hub import TOKEN, Hub
from model_folders import CODE, FILES, make_predictor
from multitask import make_predictor as make_tasks_predictor
from typer.testing import CliRunner

from headhunt.cli import app
from headhunt.delivery.hub import HubError, UploadPlan, plan_upload, push
from headhunt.engine import api
from headhunt.errors import ModelError

# huggingface_hub calls its HTTP library like this when it sends large files without Xet.
WITHOUT_XET = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")
FROM_THE_HUB = """
import importlib.util, json
assert importlib.util.find_spec("headhunt") is None
from transformers import AutoModelForSequenceClassification, AutoTokenizer, pipeline
tokenizer = AutoTokenizer.from_pretrained("me/films", trust_remote_code=True)
model = AutoModelForSequenceClassification.from_pretrained("me/films", trust_remote_code=True).eval()
logits = model(**tokenizer("a good film", return_tensors="pt")).logits.tolist()
(prediction,) = pipeline("text-classification", "me/films", trust_remote_code=True, device="cpu")("a good film")
print(json.dumps({"logits": logits, "prediction": prediction}))
"""


@pytest.fixture
def model(encoders, tmp_path) -> Path:
    return make_predictor(encoders(), "conv-blocks")[0].save(tmp_path / "model")


def save(encoder: str, case: str, folder: Path) -> Path:
    """Save a model with a head of the contract suite, or an ensemble."""
    if case != "ensemble":
        return make_predictor(encoder, case)[0].save(folder)
    save_case(encoder, case, folder)
    return folder


def run_headhunt(words: list[str], env: dict[str, str]) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-m", "headhunt.cli", *words], env=env, capture_output=True, text=True)


def test_dry_run_lists_uploaded_and_skipped_files(model, tmp_path):
    (model / "train.csv").write_text("secret")
    (model / "notes").mkdir()
    (model / "README.md").unlink()
    words = ["push", str(model), "me/films", "--dry-run"]
    done = CliRunner().invoke(app, [*words, "--json"])
    assert done.exit_code == 0, done.output
    plan = json.loads(done.output)
    assert set(plan["files"]) == FILES | CODE and plan["url"] is None and plan["private"] is True
    assert plan["left"] == ["notes/", "train.csv"] and any("README.md is missing" in note for note in plan["notes"])
    assert plan["bytes"] == sum(plan["files"].values())
    for name in set(plan["files"]) - {"README.md"}:
        assert plan["files"][name] == (model / name).stat().st_size
    assert not (model / "README.md").exists(), "a dry run changes nothing"
    listing = CliRunner().invoke(app, words)
    assert f"{plan['bytes']:,}  bytes in 12 files" in listing.output and "nothing was sent" in listing.output
    assert "stays here: train.csv" in listing.output


@pytest.mark.parametrize("case", ["conv-blocks", pytest.param("ensemble", marks=pytest.mark.slow)])
def test_push_uploads_a_model_that_loads_from_the_hub(encoders, tmp_path, outside, case):
    model = save(encoders(), case, tmp_path / "model")
    (model / "train.csv").write_text("secret")
    with Hub() as hub:
        env = hub.env(dict(os.environ), tmp_path / "home")
        done = run_headhunt(["push", str(model), "films", "--message", "The first one"], env)
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
    outputs = json.loads(loaded.stdout.splitlines()[-1])
    expected = api.load(model, device="cpu", precision="fp32").predict("a good film")[0]
    assert outputs["prediction"] == {"label": expected.label, "score": pytest.approx(expected.probability, abs=1e-5)}
    probabilities = torch.tensor(outputs["logits"]).softmax(-1)[0].tolist()
    assert probabilities == pytest.approx(list(expected.probabilities.values()), abs=1e-5)


SEVERAL_FROM_THE_HUB = """
import importlib.util, json
assert importlib.util.find_spec("headhunt") is None
from transformers import AutoModelForSequenceClassification, AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained("me/tasks", trust_remote_code=True)
model = AutoModelForSequenceClassification.from_pretrained("me/tasks", trust_remote_code=True).eval()
print(json.dumps(model(**tokenizer("a good film", return_tensors="pt"), task="mood").logits.softmax(-1).tolist()))
"""


@WITHOUT_XET
def test_model_of_several_tasks_is_pushed_and_loaded_again(encoders, tmp_path, outside, monkeypatch):
    folder = make_tasks_predictor(encoders(), ("mood", "same"), task_layers=1).save(tmp_path / "model")
    (folder / "README.md").unlink()
    (folder / "multitask.py").write_text("raise SystemExit('code of the folder ran')")
    plan = plan_upload(folder)
    assert CODE | {"multitask.py"} <= plan.files.keys()
    with Hub() as hub:
        in_process(hub, monkeypatch, TOKEN)
        push(plan, "me/tasks")
        files = hub.repos["me/tasks"].files
        assert "One model for 2 tasks." in files["README.md"].decode()
        assert b"SystemExit" not in files["multitask.py"]
        env = hub.env(outside, tmp_path / "other")
        command = [outside["OUTSIDE_PYTHON"], "-c", SEVERAL_FROM_THE_HUB]
        loaded = subprocess.run(command, env=env, capture_output=True, text=True, cwd=tmp_path)
        assert loaded.returncode == 0, loaded.stderr[-2000:]
    (tmp_path / "again").mkdir()
    for name, content in files.items():
        (tmp_path / "again" / name).write_bytes(content)
    expected = api.load(folder, device="cpu", precision="fp32").predict("a good film", task="mood")
    assert api.load(tmp_path / "again", device="cpu", precision="fp32").predict("a good film", task="mood") == expected
    found = json.loads(loaded.stdout.splitlines()[-1])[0]
    assert found == pytest.approx(list(expected[0].probabilities.values()), abs=1e-5)


def in_process(hub: Hub, monkeypatch: pytest.MonkeyPatch, token: str | None) -> None:
    """Let huggingface_hub, which reads its environment once, use the stand-in from this process."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", "/nowhere")
    monkeypatch.setattr("huggingface_hub.hf_api.constants.ENDPOINT", hub.url)
    monkeypatch.setenv("HF_TOKEN", token or "")


@WITHOUT_XET
def test_second_push_replaces_the_first(model, encoders, tmp_path, monkeypatch):
    plain = make_predictor(encoders(), "plain")[0].save(tmp_path / "plain")
    with Hub() as hub:
        in_process(hub, monkeypatch, TOKEN)
        push(plan_upload(model), "me/films")
        assert set(hub.repos["me/films"].files) >= CODE
        hub.repos["me/films"].files["mine.txt"] = b"kept"
        push(plan_upload(plain), "me/films")
        files = hub.repos["me/films"].files
    assert files == {"mine.txt": b"kept"} | {path.name: path.read_bytes() for path in plain.iterdir()}, (
        "no code is left"
    )


def refusal(plan: UploadPlan, repo: str = "me/films", **options) -> str:
    with pytest.raises(HubError) as error:
        push(plan, repo, **options)
    return str(error.value)


@WITHOUT_XET
def test_push_explains_errors_of_the_hub_and_the_network(model, monkeypatch):
    plan = plan_upload(model)
    with Hub() as hub:
        in_process(hub, monkeypatch, None)
        assert "hf auth login" in refusal(plan)
        monkeypatch.setenv("HF_TOKEN", "hf_wrong")
        assert "must be valid" in refusal(plan)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        message = refusal(plan, "others/films")
        assert "allowed to write to others/films; me is not (403" in message and "rights to create" in message
        hub.status = {"/commit/": 403}
        assert "allowed to write to me/films" in refusal(plan)
        hub.status = {"/commit/": 500}
        assert "it responds 500" in refusal(plan)
        assert not hub.repos["me/films"].files
        hub.status = {}
        push(plan, "me/open", private=False)
        before = len(hub.requests)
        assert "is public. Push it as public" in refusal(plan, "me/open")
        assert not [line for line in hub.requests[before:] if "commit" in line or "large" in line], "nothing was sent"
        (model / "README.md").write_text("---\nlibrary_name: 3\n---\n")
        assert "library_name is wrong" in refusal(plan_upload(model))
    from huggingface_hub import constants

    monkeypatch.setattr("huggingface_hub.hf_api.constants.ENDPOINT", "http://127.0.0.1:9")  # no server listens there
    assert "must be reachable; it is not" in refusal(plan)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE is set" in refusal(plan)


@WITHOUT_XET
@pytest.mark.parametrize("case", ["plain", "conv-blocks", "ensemble"])
def test_push_uploads_no_code_of_the_folder(encoders, case, tmp_path, monkeypatch):
    model = save(encoders(), case, tmp_path / "model")
    code = {"plain": set(), "conv-blocks": CODE, "ensemble": CODE | {"ensemble.py"}}[case]
    clean = {path.name: path.read_bytes() for path in model.iterdir() if path.suffix in (".py", ".json")}
    for name in CODE | {"ensemble.py"}:
        (model / name).write_text("raise SystemExit('not the code of Headhunt')")
    for name in ("config.json", "tokenizer_config.json"):
        config = json.loads((model / name).read_text())
        config["auto_map"] = {"AutoTokenizer": ["evil/repo--model.Tokenizer", None], "AutoConfig": "evil/repo--x.Y"}
        if case == "conv-blocks" and name == "config.json":
            config["encoder"]["auto_map"] = {"AutoModel": "evil/repo--x.Y"}
        if case == "ensemble" and name == "config.json":
            config["members"][0]["config"]["encoder"]["auto_map"] = {"AutoModel": "evil/repo--x.Y"}
            config["members"][2]["config"]["auto_map"] = {"AutoModel": "evil/repo--x.Y"}
        (model / name).write_text(json.dumps(config))
    plan = plan_upload(model)
    assert "config.json is not as Headhunt wrote it and is replaced" in plan.notes
    with Hub() as hub:
        in_process(hub, monkeypatch, TOKEN)
        push(plan, "me/films")
        files = hub.repos["me/films"].files
    assert "evil" not in json.dumps([content.decode("latin-1") for content in files.values()])
    assert {name for name in files if name.endswith(".py")} == code
    for name, content in clean.items():
        uploaded = files[name] if name.endswith(".py") else json.loads(files[name])
        assert uploaded == (content if name.endswith(".py") else json.loads(content)), name
    assert plan.files == {name: len(content) for name, content in files.items()}


def test_push_refuses_symbolic_links(model, tmp_path):
    (tmp_path / "secret").write_text("of another place")
    (model / "vocab.txt").symlink_to(tmp_path / "secret")
    with pytest.raises(ModelError, match=r"must be in its folder; vocab\.txt links to another place"):
        plan_upload(model)
    (model / "vocab.txt").unlink()
    (model / "notes.txt").symlink_to(tmp_path / "secret")
    assert "notes.txt" in plan_upload(model).skipped, "a link that is not uploaded does no harm"


@pytest.mark.parametrize("repo", ["", "a/b/c", "me/films--x", "me/fi lms", "me/.git", "-x", "me/" + "x" * 100])
def test_push_refuses_an_invalid_repository_name(repo, tmp_path):
    (tmp_path / "headhunt.json").write_text("{}")  # a wrong folder would be refused first
    done = CliRunner().invoke(app, ["push", str(tmp_path), "--dry-run", "--", repo])
    assert done.exit_code == 2 and "must be given as name or user/name" in done.output, done.output


def test_plan_upload_refuses_incomplete_models(model, encoders, tmp_path):
    for folder in (tmp_path / "nothing", Path(encoders())):
        with pytest.raises(ModelError, match=r"does not exist|no headhunt\.json"):
            plan_upload(folder)
    weights_file = (model / "model.safetensors").read_bytes()
    (model / "model.safetensors").write_bytes(weights_file[: len(weights_file) // 2])
    with pytest.raises(ModelError, match="cannot be loaded"):
        plan_upload(model)
    from safetensors.torch import load, save_file

    weights = load(weights_file)
    last = [name for name in weights if name.startswith("head.")][-1]
    save_file({**weights, last: weights[last] * float("nan")}, model / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match="finite"):
        plan_upload(model)
    save_file({n: w for n, w in weights.items() if n != last}, model / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=f"weights lack {last}"):
        plan_upload(model)
    shutil.rmtree(model)
