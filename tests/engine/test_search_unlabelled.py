"""A search with unlabelled texts: the encoder that was trained further is one more encoder of the search."""

from __future__ import annotations

import json
import math

import pytest
from conftest import sentences
from searches import QUICK, make_task, run_search

from headhunt.engine import final_test, selection, self_training
from headhunt.engine import search as engine
from headhunt.engine.driver import Resources, SearchDriver
from headhunt.engine.selection import FinalistScores
from headhunt.errors import HeadhuntError
from headhunt.report import write as write_report
from headhunt.run.task import open_task, open_unlabelled
from headhunt.spec import Choice, Space
from headhunt.study.budget import TimeBudget
from headhunt.training import pretraining

pytestmark = pytest.mark.usefixtures("own_cache")
MORE = sentences(60, seed=5)[0]


def solved_encoders(search):
    return {trial.spec.encoder: trial.best[1] for trial in search.state.trials if trial.origin == "solved"}


def test_search_tries_the_encoder_trained_further(tmp_path, encoders):
    texts = sentences(72)[0]
    run_search(tmp_path, encoders(), unlabelled=texts + MORE, trials=4)
    search = engine.resume(tmp_path / "run", trials=7, view=False)
    done, new = search.directory.read_pretraining(), str(tmp_path / "run" / "encoders" / "bert-pretrained")
    assert done.folder == "bert-pretrained" and done.epochs == 3.0 and done.own < done.texts
    tested = set(open_task(search.directory.task, ("test",)).splits["test"].texts())
    assert tested <= set(texts) and tested.isdisjoint(open_unlabelled(search.directory.task).texts)
    scores = solved_encoders(search)
    assert scores.keys() == {encoders(), new}
    chosen = max(scores, key=lambda name: (scores[name], name == encoders()))
    others = [trial for trial in search.state.trials if trial.origin not in ("plain", "solved")]
    assert others and {trial.spec.encoder for trial in others} == {chosen}
    assert {trial.spec.encoder for trial in search.state.plain_trials} == {encoders()}  # the baseline keeps its own
    page = write_report(search.run_dir).read_text()
    assert "gain from the encoder" in page and "bert-pretrained" in page
    assert not search.result.self_training.accepted and search.result.self_training.note  # there are too few texts
    assert search.load().predict("a good film")[0].label in ("good", "bad")


def test_pretraining_that_does_not_fit_is_skipped(tmp_path, encoders, monkeypatch):
    monkeypatch.setattr(pretraining, "SAVING_SECONDS", 1e6)
    search = run_search(tmp_path, encoders(), pretrain=True, trials=3, time=60)
    done = search.directory.read_pretraining()
    assert done.folder is None and "no time" in done.note and len(solved_encoders(search)) == 1
    assert done.texts == done.own == search.task.rows["train"]  # without a file, the training texts alone
    assert search.result.verdict.claim in ("gain", "no gain")


def choose(solved):
    """Return a choice of the winner, so that the teacher is solved, or trained."""

    def best(final, scores):
        return next(each for each in final.fully_evaluated() if each.is_solved == solved and not each.is_plain)

    return best


@pytest.mark.parametrize("solved", [pytest.param(False, id="trained"), pytest.param(True, marks=pytest.mark.slow)])
def test_student_is_delivered_if_validation_rows_say_so(tmp_path, encoders, monkeypatch, solved):
    monkeypatch.setattr(self_training, "STANDARD_ERRORS", -math.inf)
    monkeypatch.setattr(final_test, "choose_winner", choose(solved))
    monkeypatch.setattr(FinalistScores, "mean", lambda scores, trial: 0.0 if trial.is_plain else 1.0)
    monkeypatch.setattr(selection, "SEEDS", ())
    search = run_search(tmp_path, encoders(), unlabelled=sentences(200, seed=6)[0], pretrain=False, trials=5)
    found, result = search.result.self_training, search.result
    assert found.accepted and found.note is None and found.texts >= 100
    assert found.gain == pytest.approx(found.score - found.teacher_score) and found.low <= found.gain <= found.high
    assert "student" in result.verdict.sentence and result.model_from.endswith("-student")
    info = json.loads((tmp_path / "run" / "model" / "headhunt.json").read_text())
    assert info["self_training"] == {"texts": found.texts} and search.directory.read_pretraining() is None
    test = open_task(search.directory.task, ("test",)).splits["test"]
    correct = (search.load().outputs(test.texts()).argmax(1) == test.targets).mean()
    assert correct == pytest.approx(result.test.scores["student"]["accuracy"].value)
    assert "student, trained on unlabelled texts too" in write_report(search.run_dir).read_text()

    monkeypatch.setattr(self_training, "STANDARD_ERRORS", math.inf)
    driver = SearchDriver(search.run_dir, search.settings, Resources(), TimeBudget(None), False)
    with driver.open() as study:
        again = self_training.run_self_training(driver.final_evaluation(study), result)
    assert not again.self_training.accepted and again.self_training.score == pytest.approx(found.score)
    assert again.verdict == result.verdict and search.result == again


def test_space_with_encoders_is_refused(tmp_path, encoders):
    space = Space("own", {**QUICK.tree, "encoder": Choice((encoders(), encoders("electra")))})
    with pytest.raises(HeadhuntError, match="space that names no encoder"):
        engine.search(make_task(), space=space, unlabelled=MORE, out=tmp_path / "run", view=False)
