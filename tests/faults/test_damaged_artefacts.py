"""Artefacts that are cut or empty and can be computed again: they are, with equal results."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from conftest import sentences
from searches import run_search

import headhunt
from headhunt.data import Task
from headhunt.engine.trial_runner import TrialRunner
from headhunt.engine.workers import RunnerSettings
from headhunt.modeling.architecture import Head
from headhunt.run.directory import PREDICTIONS, RunDirectory, read_predictions, read_test_predictions
from headhunt.run.state import Outcome
from headhunt.run.task import save_task
from headhunt.spec import Recipe, Spec
from headhunt.storage import PARTIAL
from headhunt.study.requests import EvaluateTrial, Request

pytestmark = pytest.mark.usefixtures("own_cache")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path: Path) -> None:
    path.write_bytes(b"")


DAMAGES = pytest.mark.parametrize("damage", [cut, empty])


@pytest.fixture
def folder(tmp_path) -> Path:
    save_task(Task.load(sentences(60)), tmp_path / "task")
    return tmp_path


def run(folder: Path, request: Request) -> Outcome:
    """Run a request in a new worker, which has nothing in memory."""
    runner = TrialRunner(RunnerSettings(str(folder), metric="accuracy", device="cpu", precision="fp32"))
    outcome = runner.run(request)
    assert outcome.outcome == "ok", outcome
    return outcome


def make_request(folder: Path, encoder: str, **fields) -> EvaluateTrial:
    recipe = Recipe(epochs=6, learning_rate=2e-3, batch_size=8, freeze=1)
    spec = Spec(encoder=encoder, head=Head(pooling="mean"), recipe=recipe)
    paths = {"checkpoint": folder / "checkpoint", "predictions": folder / "predictions.npz"}
    return EvaluateTrial(trial=0, rung=0, fraction=1.0, seed=3, spec=spec, **{**paths, **fields})


@DAMAGES
def test_damaged_activations_are_computed_again(folder, own_cache, encoders, damage):
    evaluate = make_request(folder, encoders())
    run(folder, evaluate)
    expected = read_predictions(evaluate.predictions)[1]
    files = [path for path in own_cache.rglob("*") if path.is_file() and path.name != "lock"]
    assert {path.name for path in files} == {"values.npy", "ends.npy", "about.json"}
    contents = {path: path.read_bytes() for path in files}
    for name in ("values.npy", "ends.npy", "about.json"):
        for path in files:
            if path.name == name:
                damage(path)
        run(folder, evaluate)
        assert np.array_equal(read_predictions(evaluate.predictions)[1], expected)
        repaired = [path for path in files if path.exists() and path.read_bytes() == contents[path]]
        assert [path for path in repaired if path.name == name], "the layer that is used was computed again"
        for path, content in contents.items():
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content)


@DAMAGES
@pytest.mark.parametrize("name", ["outputs.npy", "training.safetensors"])
def test_damaged_checkpoint_is_computed_again(folder, encoders, damage, name):
    evaluate = make_request(folder, encoders())
    score = run(folder, evaluate).score
    expected = read_predictions(evaluate.predictions)[1]
    files = sorted(evaluate.checkpoint.rglob(name))
    assert len(files) == 3
    sizes = [path.stat().st_size for path in files]
    damage(files[1])
    if name == "training.safetensors":
        files[1].with_name("outputs.npy").unlink()
    again = run(folder, make_request(folder, encoders(), resume_from=evaluate.checkpoint))
    assert again.score == score and np.array_equal(read_predictions(evaluate.predictions)[1], expected)
    # The seconds of the training are part of a file, and their digits of its size.
    assert [path.stat().st_size for path in files] == pytest.approx(sizes, abs=16)


@DAMAGES
def test_damaged_predictions_are_made_again_when_a_search_is_resumed(tmp_path, encoders, damage):
    search = run_search(tmp_path, encoders(), trials=3)
    directory = RunDirectory(search.run_dir)
    files = [path for name in PREDICTIONS for path in sorted((directory.path / name).glob("*.npz"))]
    assert {path.parent.name for path in files} >= {"predictions", "test"}
    of_trials = [path for path in files if path.parent.name == "predictions" and path.name[:6].isdigit()]
    trials = {path: read_predictions(path)[1] for path in of_trials}
    assert len(trials) >= 3
    for path in files:
        damage(path)
    resumed = headhunt.resume(directory.path, trials=4, workers=0, callbacks=[])
    assert resumed.result is not None and resumed.load() is not None
    for path, outputs in trials.items():
        assert np.array_equal(read_predictions(path)[1], outputs), path
    for path in (directory.path / "test").glob("*.npz"):
        read_test_predictions(path)
    scores = {trial.number: trial.best for trial in search.state.trials}
    assert {number: resumed.state.trials[number].best for number in scores} == scores
    assert not list(directory.path.rglob(f"*{PARTIAL}"))


def test_cache_without_a_file_that_vanishes_is_measured(folder, own_cache, encoders, monkeypatch):
    """Another process removes a cache while this one adds up sizes."""
    evaluate = make_request(folder, encoders())
    run(folder, evaluate)
    (first,) = (own_cache / "activations").iterdir()
    other = first.with_name("other")
    shutil.copytree(first, other)
    (first / ".3.dead.partial").mkdir()
    (first / "1").rename(first / "gone")
    shutil.rmtree(first / "gone")
    run(folder, evaluate)
    assert not (first / ".3.dead.partial").exists(), "what a killed worker left is swept"
