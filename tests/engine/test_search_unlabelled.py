"""A search with unlabelled texts: the encoder that was trained further is one more encoder of the search."""

from __future__ import annotations

import pytest
from conftest import sentences
from searches import QUICK, make_task, run_search

from headhunt.engine import search as engine
from headhunt.errors import HeadhuntError
from headhunt.report import write as write_report
from headhunt.run.task import open_task, open_unlabelled
from headhunt.spec import Choice, Space
from headhunt.training import pretraining

pytestmark = pytest.mark.usefixtures("own_cache")
MORE = sentences(60, seed=5)[0]


def solved_encoders(search):
    return {trial.spec.encoder: trial.best[1] for trial in search.state.trials if trial.origin == "solved"}


def test_search_tries_the_encoder_trained_further(tmp_path, encoders):
    texts = sentences(72)[0]
    run_search(tmp_path, encoders(), unlabelled=texts + MORE, trials=4)
    search = engine.resume(tmp_path / "run", trials=7, callbacks=[])
    done, new = search.directory.read_pretraining(), str(tmp_path / "run" / "encoders" / "bert-pretrained")
    assert done.folder == "bert-pretrained" and done.epochs == 3.0 and done.own < done.texts
    tested = set(open_task(search.directory.task, ("test",)).splits["test"].texts())
    assert tested <= set(texts) and tested.isdisjoint(open_unlabelled(search.directory.task).texts)
    scores = solved_encoders(search)
    assert scores.keys() == {encoders(), new}
    chosen = max(scores, key=lambda name: (scores[name], name == encoders()))
    others = [trial for trial in search.state.trials if trial.origin not in ("plain", "solved", "words")]
    assert others and {trial.spec.encoder for trial in others} == {chosen}
    assert {trial.spec.encoder for trial in search.state.plain_trials} == {encoders()}  # the baseline keeps its own
    page = write_report(search.run_dir).read_text()
    assert "gain from the encoder" in page and "bert-pretrained" in page
    assert search.load().predict("a good film")[0].label in ("good", "bad")


def test_pretraining_that_does_not_fit_is_skipped(tmp_path, encoders, monkeypatch):
    monkeypatch.setattr(pretraining, "SAVING_SECONDS", 1e6)
    search = run_search(tmp_path, encoders(), pretrain=True, trials=3, time=60)
    done = search.directory.read_pretraining()
    assert done.folder is None and "no time" in done.note and len(solved_encoders(search)) == 1
    assert done.texts == done.own == search.task.rows["train"]  # without a file, the training texts alone
    assert search.result.verdict.delivered in ("winner", "plain")


def test_space_with_encoders_is_refused(tmp_path, encoders):
    space = Space("own", {**QUICK.tree, "encoder": Choice((encoders(), encoders("electra")))})
    with pytest.raises(HeadhuntError, match="space that names no encoder"):
        engine.search(make_task(), space=space, unlabelled=MORE, out=tmp_path / "run", callbacks=[])
