"""A worker that stalls while it saves and goes on after its replacement: they never write one file."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from conftest import sentences
from study_toys import evaluate_toy, leaderboard, run_study

from headhunt import storage
from headhunt.data import Task
from headhunt.engine.trial_runner import TrialRunner
from headhunt.engine.workers import RunnerSettings
from headhunt.modeling.architecture import Head
from headhunt.run.directory import RunDirectory, read_predictions, write_arrays
from headhunt.run.state import Outcome
from headhunt.run.task import save_task
from headhunt.spec import Recipe, Spec
from headhunt.study.checkpoints import Checkpoints
from headhunt.study.requests import EvaluateTrial
from headhunt.training import loop

pytestmark = pytest.mark.usefixtures("own_cache")


def test_writers_of_one_file_never_mix(tmp_path):
    path = tmp_path / "file"
    with storage.atomic_file(path) as stalled:
        stalled.write(b"first half, ")
        storage.write_bytes(path, b"replacement")
        assert path.read_bytes() == b"replacement"
        stalled.write(b"second half")
    assert path.read_bytes() == b"first half, second half"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_writers_of_one_directory_never_mix(tmp_path):
    path = tmp_path / "model"
    with storage.atomic_directory(path) as stalled:
        (stalled / "weights").write_text("stalled")
        with storage.atomic_directory(path) as replacement:
            (replacement / "weights").write_text("replacement")
            (replacement / "config").write_text("replacement")
        (stalled / "config").write_text("stalled")
    assert {file.read_text() for file in path.iterdir()} == {"stalled"} and len(list(path.iterdir())) == 2
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize("place", [pytest.param("checkpoint", marks=pytest.mark.slow), "predictions"])
def test_stalled_trial_and_its_replacement_leave_equal_files(tmp_path, encoders, monkeypatch, place):
    """The worker stalls inside its first save of a kind; the replacement runs from start to end meanwhile."""
    save_task(Task.load(sentences(60)), tmp_path / "task")
    recipe = Recipe(epochs=6, learning_rate=2e-3, batch_size=8)
    spec = Spec(encoder=encoders(), head=Head(pooling="mean"), recipe=recipe)

    def run(folder: Path, attempt: int) -> Outcome:
        runner = TrialRunner(RunnerSettings(str(tmp_path), metric="accuracy", device="cpu", precision="fp32"))
        paths = {"checkpoint": folder / "checkpoint", "predictions": folder / "predictions.npz"}
        return runner.run(EvaluateTrial(trial=0, rung=0, fraction=1.0, seed=3, spec=spec, attempt=attempt, **paths))

    expected = run(tmp_path / "alone", 0)
    module, name = (loop, "save_file") if place == "checkpoint" else (np, "savez")
    save, stalls, replacement = getattr(module, name), [], []

    def stall(*arguments, **options):
        if not stalls:
            stalls.append(name)
            replacement.append(run(tmp_path / "shared", 1))
        return save(*arguments, **options)

    monkeypatch.setattr(module, name, stall)
    late = run(tmp_path / "shared", 0)
    assert (late.score, replacement[0].score) == (expected.score, expected.score)
    files, shared = (
        sorted(path.relative_to(tmp_path / name) for path in (tmp_path / name).rglob("*") if path.is_file())
        for name in ("alone", "shared")
    )
    assert files == shared and len(files) == 7
    alone = read_predictions(tmp_path / "alone" / "predictions.npz")[1]
    assert np.array_equal(read_predictions(tmp_path / "shared" / "predictions.npz")[1], alone)


def test_files_of_a_worker_that_was_given_up_are_removed_on_resuming(tmp_path):
    """Its trial has failed; it then continues, and writes what no one waits for."""
    late: list[EvaluateTrial] = []

    def evaluate(request: EvaluateTrial) -> Outcome:
        if request.trial == 2:
            late.append(request)
            return Outcome("error", extra={"message": "The worker did not respond"})
        write_arrays(request.predictions, rows=np.arange(3), outputs=np.zeros(3))
        return evaluate_toy(request)

    study = run_study(tmp_path, evaluate, trials=5)
    write_arrays(late[0].predictions, rows=np.arange(3), outputs=np.zeros(3))
    storage.write_text(late[0].checkpoint / "fold-0" / "state", "late")
    resumed = run_study(tmp_path, evaluate, trials=5)
    assert leaderboard(resumed) == leaderboard(study)
    assert not late[0].predictions.exists() and not late[0].checkpoint.exists()
    assert len(list((tmp_path / "predictions").iterdir())) >= 4


def test_sizes_are_measured_while_files_vanish(tmp_path, monkeypatch):
    directory = RunDirectory(tmp_path)
    for rung in range(3):
        storage.write_text(directory.checkpoint(1, rung) / "state", "state")
        write_arrays(directory.predictions(1, rung), outputs=np.zeros(3))
    real = os.lstat

    def vanish(path, *arguments, **options):
        if "-1" in str(path).removeprefix(str(tmp_path)):
            raise FileNotFoundError(path)
        return real(path, *arguments, **options)

    monkeypatch.setattr(os, "lstat", vanish)
    assert directory.checkpoint_sizes() == {(1, 0): 5, (1, 1): 0, (1, 2): 5}
    checkpoints = Checkpoints(directory)
    directory.predictions(1, 2).unlink()
    checkpoints.add(1, 2)
    checkpoints.add(7, 0)
    assert storage.directory_size(tmp_path) > 0
