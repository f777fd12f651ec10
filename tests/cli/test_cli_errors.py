"""Error messages and exit codes of the commands."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from bad_inputs import BAD_INPUTS
from command_line import make_rows, refuse, run, saved_models, write_csv

from headhunt.errors import HeadhuntError
from headhunt.training.device import pick_device


@pytest.fixture(scope="module")
def models(encoders, tmp_path_factory):
    return saved_models(encoders, tmp_path_factory)


OPTIONS = {"text", "text_b", "label", "problem_type", "test", "limit"}


@pytest.mark.parametrize(("name", "make", "fragments"), BAD_INPUTS, ids=[name for name, _, _ in BAD_INPUTS])
def test_fit_refuses_bad_data(name, make, fragments, tmp_path, monkeypatch):
    monkeypatch.setenv("HEADHUNT_CACHE", str(tmp_path / "cache"))
    path, options = make(tmp_path)
    assert options.keys() <= OPTIONS
    words = [word for key, value in options.items() for word in (f"--{key.replace('_', '-')}", value)]
    completed = run("fit", path, "--out", tmp_path / "out", *words)
    assert completed.code == 2 and "Traceback" not in completed.err and not completed.out
    assert not (tmp_path / "out").exists()
    assert completed.err.startswith("error: ")
    for fragment in fragments:
        assert fragment in completed.err, completed.err


def test_out_must_be_new_or_empty_and_writable(tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    refuse("fit", "x.csv", "--out", tmp_path / "full", fragments=["--out", "new or empty", "full"])
    refuse("fit", "x.csv", "--out", tmp_path / "full" / "thesis.txt", fragments=["new or empty"])
    refuse(
        "fit", "x.csv", "--out", tmp_path / "full" / "thesis.txt" / "deeper", fragments=["cannot be written", "thesis"]
    )
    assert (tmp_path / "full" / "thesis.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("content", "fragments"),
    [
        (None, ["spec.json", "does not exist"]),
        ("{not json", ["spec.json", "not valid JSON"]),
        ("[]", ["spec", "an object"]),
        ('{"recipe": {"learning_rat": 1e-4}}', ["'learning_rat'", "Did you mean 'learning_rate'"]),
        ('{"head": {"poling": "mean"}}', ["'poling'", "Did you mean 'pooling'"]),
        ('{"recipe": {"epochs": "many"}}', ["spec.recipe.epochs", "a number", "'many'"]),
        ('{"recipe": {"batch_size": 1.5}}', ["spec.recipe.batch_size", "a whole number", "1.5"]),
        ('{"head": {"pooling": "meen"}}', ["pooling", "Did you mean 'mean'"]),
        ('{"head": {"siamese": "dot", "pooling": "mean"}}', ["siamese", "two texts", "has one"]),
    ],
)
def test_fit_refuses_bad_spec(content, fragments, encoders, tmp_path):
    if content is not None:
        (tmp_path / "spec.json").write_text(content)
    data = write_csv(tmp_path / "data.csv", *make_rows("single_label_classification", 20, 0))
    words = ["fit", data, "--out", tmp_path / "out", "--spec", tmp_path / "spec.json", "--encoder", encoders()]
    refuse(*words, fragments=fragments)
    assert not (tmp_path / "out").exists()


def test_fit_refuses_spec_without_encoder(tmp_path):
    (tmp_path / "spec.json").write_text("{}")
    refuse("fit", "x.csv", "--out", tmp_path / "out", "--spec", tmp_path / "spec.json", fragments=["spec.encoder"])


def test_fit_refuses_bad_encoder(encoders, tmp_path):
    data = write_csv(tmp_path / "data.csv", *make_rows("single_label_classification", 20, 0))
    words = ["fit", data, "--out", tmp_path / "out", "--encoder"]
    refuse(*words, "no-such/encoder", fragments=["The encoder must be", "no-such/encoder", "Check the name"])
    (tmp_path / "empty").mkdir()
    refuse(*words, tmp_path / "empty", fragments=["The encoder must be", "empty"])
    shutil.copytree(encoders(), tmp_path / "mute")
    for file in (tmp_path / "mute").glob("tokenizer*"):
        file.unlink()
    refuse(*words, tmp_path / "mute", fragments=["tokenizer", "missing"])


DAMAGES = {
    "missing": (lambda folder: shutil.rmtree(folder), "must be a saved model"),
    "empty": (lambda folder: [file.unlink() for file in folder.iterdir()], "must be a saved model"),
    "description is no JSON": (lambda folder: (folder / "headhunt.json").write_text("{"), "cannot be loaded"),
    "description is a list": (lambda folder: (folder / "headhunt.json").write_text("[]"), "one JSON object"),
    "description of a newer version": (
        lambda folder: (folder / "headhunt.json").write_text('{"schema": 99}'),
        "schema 1",
    ),
    "description lacks fields": (
        lambda folder: (folder / "headhunt.json").write_text('{"schema": 1}'),
        "'problem_type'",
    ),
    "weights cut": (lambda folder: os.truncate(folder / "model.safetensors", 1000), "cannot be loaded"),
    "weights missing": (lambda folder: (folder / "model.safetensors").unlink(), "model.safetensors"),
    "configuration missing": (lambda folder: (folder / "config.json").unlink(), "config.json"),
    "tokenizer missing": (lambda folder: [f.unlink() for f in folder.glob("tokenizer*")], "tokenizer"),
    "tokenizer broken": (lambda folder: (folder / "tokenizer.json").write_text("{}"), "cannot be loaded"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_predict_and_evaluate_refuse_damaged_model(models, damage, tmp_path):
    folder, test, _ = models()
    shutil.copytree(folder, tmp_path / "model")
    damage_folder, fragment = DAMAGES[damage]
    damage_folder(tmp_path / "model")
    refuse("predict", tmp_path / "model", "a text", fragments=[str(tmp_path / "model"), fragment])
    refuse("evaluate", tmp_path / "model", test, fragments=[str(tmp_path / "model"), fragment])


@pytest.mark.parametrize(
    "words",
    [["predict", "m", "--colour"], ["nonsense"], ["fit"], ["fit", "x.csv"], ["fit", "x", "--out", "y", "--limit", "z"]],
)
def test_wrong_command_line_exits_2_with_usage(words):
    completed = run(*words)
    assert completed.code == 2 and "Usage" in completed.err and "Traceback" not in completed.err and not completed.out


def test_installed_script_exits_2_without_traceback(tmp_path):
    script = shutil.which("headhunt", path=str(Path(sys.executable).parent))
    assert script, "pip install -e ."
    completed = subprocess.run(
        [script, "fit", "nothing.csv", "--out", "m"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
    )
    assert (
        completed.returncode == 2 and completed.stderr.startswith("error: nothing.csv") and not list(tmp_path.iterdir())
    )


def test_error_of_an_argument_names_it_as_in_the_command(tmp_path):
    """The library says `max_length=`, a command its flag or the word of its help; other words stay as they are."""
    data = write_csv(tmp_path / "x.csv", *make_rows("single_label_classification", 20, 0))
    words = ["search", data, "--out", tmp_path / "out", "--device", "tpu=max_length="]
    refuse(*words, fragments=["error: --device must be cuda, mps or cpu; found 'tpu=max_length='"])
    with pytest.raises(HeadhuntError, match=r"^device= must be cuda") as caught:
        pick_device("tpu")
    assert caught.value.argument == "device" and pickle.loads(pickle.dumps(caught.value)).argument == "device"


def test_search_refuses_unknown_metric(encoders, tmp_path):
    """It used to end in a traceback."""
    data = write_csv(tmp_path / "data.csv", *make_rows("single_label_classification", 40, 0))
    words = ["search", data, "--encoder", encoders(), "--metric", "f1", "--out", tmp_path / "run"]
    refuse(*words, fragments=["accuracy", "'f1'"])
    assert not (tmp_path / "run").exists()


def test_file_without_permission_is_an_error_of_the_user(tmp_path, monkeypatch):
    """Issue: `headhunt report` on a folder of another user ended in a traceback, and exit code 1 means a bug."""

    def write(run):
        raise PermissionError(13, "Permission denied", "run/report.html")

    monkeypatch.setattr("headhunt.report.write", write)
    refuse("report", tmp_path, fragments=["run/report.html must be readable and writable", "Permission denied"])
