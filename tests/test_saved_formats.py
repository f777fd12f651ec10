"""Files of earlier versions stay loadable: a spec, a run with its ledger, and a model folder of each schema."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import headhunt
from headhunt import Search, Spec
from headhunt.run.schema import SCHEMA, RunError

SAVED = sorted((Path(__file__).parent / "data" / "saved").iterdir())
assert SAVED, "there is at least one schema"


@pytest.fixture(params=SAVED, ids=lambda path: path.name)
def saved(request, tmp_path, monkeypatch) -> dict:
    """What is expected of one saved schema; the test runs in a copy of it."""
    shutil.copytree(request.param, tmp_path / "saved")
    monkeypatch.chdir(tmp_path / "saved")
    monkeypatch.setenv("HEADHUNT_CACHE", str(tmp_path / "cache"))
    return json.loads(Path("expected.json").read_text())


def test_saved_spec_keeps_its_hash(saved):
    assert Spec.read("spec.json").hash == saved["hash"]


def test_saved_model_predicts_the_same(saved):
    outputs = headhunt.load("model", device="cpu", precision="fp32").outputs(saved["texts"])
    assert np.abs(outputs - np.array(saved["outputs"])).max() < 1e-5


def refuse_old_run() -> bool:
    """Return whether the run is of an unreleased version, which is refused with advice."""
    if json.loads(Path("run/search.json").read_text())["schema"] == SCHEMA:
        return False
    with pytest.raises(RunError, match="run the search again"):
        Search("run")
    return True


def test_saved_run_is_read(saved):
    if refuse_old_run():
        return
    search = Search("run")
    assert [[row.trial, row.rung, row.score] for row in search.leaderboard()] == saved["leaderboard"]
    assert search.result.verdict.sentence == saved["sentence"]
    assert search.directory.read_ablation().items
    assert (
        search.result.winner is None
        or search.result.winner.spec.hash == search.state.trials[search.result.winner.trial].hash
    )


def test_saved_run_is_reported_and_resumed(saved):
    from headhunt.report import write

    if refuse_old_run():
        return
    assert write("run").exists()
    trials = len(Search("run").state.trials)
    resumed = headhunt.resume("run", trials=trials + 1, callbacks=[])
    assert len(resumed.state.trials) == trials + 1 and resumed.load().predict("a good movie")
