"""Trackers have what a search told them: MLflow and TensorBoard on real servers, Weights & Biases offline.

MLflow and Weights & Biases are installed by .ci/full only.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from report_runs import make_run, running_search
from trackers import ask, serve

from headhunt.report.callbacks import Callback, Callbacks, create_callbacks
from headhunt.run.state import State
from headhunt.spec import describe


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return make_run(tmp_path_factory.mktemp("trackers") / "run", 12)


def replay(tracker: str | Callback, folder: Path, caplog) -> State:
    """Tell a tracker of every result of a run, as its search did."""
    search = running_search(folder)
    state, search.state = search.state, State()
    callbacks = Callbacks(create_callbacks([tracker]))
    callbacks.start(search)
    search.state = state
    callbacks.update(search)
    callbacks.end(search)
    assert not caplog.messages
    return state


def test_mlflow_has_a_run_with_a_nested_run_for_each_trial(folder, tmp_path, monkeypatch, caplog, capfd):
    pytest.importorskip("mlflow")
    with serve("mlflow", "server", "--backend-store-uri", f"sqlite:///{tmp_path / 'mlflow.db'}") as address:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
        state = replay("mlflow", folder, caplog)
        assert capfd.readouterr().out == ""
        runs = ask(address, "/api/2.0/mlflow/runs/search", {"experiment_ids": ["1"]})["runs"]
    found = {run["info"]["run_name"]: run for run in runs}
    values = {
        name: {metric["key"]: metric["value"] for metric in run["data"].get("metrics", [])}
        for name, run in found.items()
    }
    assert len(runs) == 1 + len({number for number, _ in state.settled})
    assert values["run"]["best accuracy"] == pytest.approx(state.best.best[1]) and "test accuracy" in values["run"]
    parent = found["run"]["info"]
    assert parent["status"] == "FINISHED"
    trial = found[f"trial {state.best.number}"]
    assert values[trial["info"]["run_name"]] == {"accuracy": pytest.approx(state.best.best[1])}
    params = {param["key"]: param["value"] for param in trial["data"]["params"]}
    assert params["recipe.learning_rate"] == str(state.best.spec.recipe.learning_rate)
    tags = {tag["key"]: tag["value"] for tag in trial["data"]["tags"]}
    assert tags["mlflow.parentRunId"] == parent["run_id"] and tags["outcome"] == "ok"


def test_wandb_logs_offline(folder, tmp_path, monkeypatch, caplog):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_SILENT", "true")
    state = replay("wandb", folder, caplog)
    (path,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    deadline = time.monotonic() + 60
    while b"test accuracy" not in (logged := path.read_bytes()):  # another process writes it
        assert time.monotonic() < deadline, logged[:500]
        time.sleep(0.1)
    assert b"best accuracy" in logged
    scored = [trial for trial in state.trials if trial.best]
    assert scored and all(json.dumps(describe(trial.spec)).encode() in logged for trial in scored)
    assert repr(state.best.best[1]).encode() in logged


@pytest.mark.filterwarnings("default")  # of protobuf and numpy, in tensorboard
def test_tensorboard_has_a_row_for_each_trial(folder, caplog):
    pytest.importorskip("tensorboard")
    state = replay("tensorboard", folder, caplog)
    with serve("tensorboard", "--logdir", str(folder / "tensorboard"), "--load_fast=false") as address:
        tags = ask(address, "/data/plugin/scalars/tags")
        experiment = ask(address, "/data/plugin/hparams/experiment", {})
    assert {"best accuracy", "test accuracy"} <= tags["."].keys()
    scored = {f"trial-{trial.number}" for trial in state.trials if trial.best}
    assert tags.keys() - {"."} == scored
    assert {"recipe.learning_rate", "head.pooling"} <= {each["name"] for each in experiment["hparamInfos"]}
