"""A search from data to model, in this process: the run directory, stopping and resuming."""

from __future__ import annotations

import json
import shutil
import signal
import time
from dataclasses import replace

import numpy as np
import pytest
from conftest import sentences
from searches import QUICK, make_task, run_search
from transformers import AutoModelForSequenceClassification

import headhunt
from headhunt import Search
from headhunt.engine.earlier_runs import learn
from headhunt.engine.session import Session
from headhunt.engine.trial_runner import TrialRunner
from headhunt.engine.view import View
from headhunt.errors import HeadhuntError
from headhunt.report import write as write_report
from headhunt.run.clock import steady_time
from headhunt.run.events import STOPPED, JobFinished, TrialFinished, decode
from headhunt.run.ledger import LedgerWriter, clean
from headhunt.run.schema import RunError
from headhunt.run.state import Outcome
from headhunt.run.task import open_task
from headhunt.spec import Choice, Space
from headhunt.study.ladder import Ladder
from headhunt.study.loop import Loop
from headhunt.study.requests import EvaluateTrial, FitAllRows

pytestmark = pytest.mark.usefixtures("own_cache")


def test_search_ends_with_model_and_leaderboard(tmp_path, encoders):
    search = run_search(tmp_path, encoders())
    board = search.leaderboard()
    assert len(search.state.trials) == 8 and search.state.ended == "trials"
    assert board[0].trial == search.best.number and board[0].rung == Ladder().top
    full = [row.score for row in board if row.rung == Ladder().top]
    assert full == sorted(full, reverse=True)
    assert search.model_dir == tmp_path / "run" / "model"
    assert search.load().predict(["the movie was great"])[0].label in ("good", "bad")
    info = json.loads((tmp_path / "run" / "model" / "headhunt.json").read_text())
    result, verdict = search.result, search.result.verdict
    assert info["task"]["trained_on"] == "all training rows" and result.trained_rows == search.task.rows["train"]
    delivered = result.winner or result.plain
    assert info["trial"] == delivered.trial and search.state.trials[result.plain.trial].is_plain
    assert (verdict.delivered == "plain") == (result.winner is None)
    assert (verdict.claim == "gain") == ("A reliable gain" in verdict.sentence)
    assert (tmp_path / "run" / "best").resolve().name == result.model_from


def test_search_with_little_time_trains_the_recommended_recipe_and_the_plain_head_first(
    tmp_path, encoders, monkeypatch
):
    """Issue: with 65 long texts and a minute, the first candidate was stopped and the solved head delivered."""
    search = run_search(tmp_path, encoders(), trials=5, space="default", time="60s")
    events = [event for _, event in map(decode, search.directory.ledger.read_bytes().splitlines())]
    fitted = [event.key for event in events if isinstance(event, JobFinished) and event.key.startswith("FitAllRows/")]
    recommended = search.state.trials[4]
    assert recommended.spec.recipe.contrastive and recommended.origin == "known"
    assert fitted[:4] == [f"FitAllRows/{number:06d}-all" for number in (2, 1, 4, 0)]
    first = next(event for event in events if isinstance(event, TrialFinished) and event.trial not in (1, 2))
    assert events.index(first) > events.index(next(e for e in events if getattr(e, "key", "") == fitted[3]))
    scores = search.result.test.scores
    assert {"winner", "plain", "solved", "words", "ensemble"} >= scores.keys() >= {"plain"}
    assert ("ensemble" in scores) == (len(search.result.ensemble_members) > 1)
    verdict = headhunt.verdict(tmp_path / "run", seeds=2, callbacks=[])
    assert verdict.result.verdict.training_runs != 1 and verdict.result.plain == search.result.plain
    facts = View.training_facts
    monkeypatch.setattr(View, "training_facts", lambda *given: (1, {}) if given[2:] > (0,) else facts(*given))
    again = headhunt.verdict(tmp_path / "run", seeds=2, callbacks=[])
    assert again.result.verdict.training_runs == 1, "a further training run that was cut short does not count"


def test_mean_of_unlike_models_is_delivered_if_asked_for_and_better(tmp_path, encoders, monkeypatch):
    """The folder of the run's model is the ensemble; verdict, card, report and test scores say so."""
    monkeypatch.setattr("headhunt.engine.deliver.score_on", lambda *_: -1.0)  # so that the mean is better
    search = run_search(tmp_path, encoders(), trials=6, deliver="ensemble", reject=0.8)
    result = search.result
    assert result.verdict.delivered == result.model_from == result.ensemble == "ensemble"
    assert "the ensemble reaches" in result.verdict.sentence and "the winner reaches" not in result.verdict.sentence
    model, test = search.load(), open_task(tmp_path / "run" / "task", ("test",)).splits["test"]
    assert len(model.model.members) == len(result.ensemble_members) > 1
    correct = model.outputs(test.texts()).argmax(1) == test.targets
    assert correct.mean() == pytest.approx(result.test.scores["ensemble"]["accuracy"].value, abs=0.08)
    answered = np.mean([not each.rejected for each in model.predict(test.texts())])
    assert result.test.rejection.coverage == pytest.approx(answered, abs=0.08)
    assert model.rejection.threshold == pytest.approx(result.test.rejection.threshold)
    card = (tmp_path / "run" / "model" / "README.md").read_text()
    assert "the mean of the best unlike models" in card and "The model answers" in card
    exported = AutoModelForSequenceClassification.from_pretrained(search.model_dir, trust_remote_code=True)
    assert exported.config.num_labels == 2
    assert "mean of" in write_report(tmp_path / "run").read_text()


@pytest.mark.parametrize("limit", [None, "20s"])
def test_search_with_held_out_rows_delivers_a_model_that_was_evaluated(tmp_path, encoders, limit):
    """The complete training run is the evaluation: nothing is fitted afterwards but further seeds."""
    texts, labels = sentences(120)
    data = {"text": texts[:90], "label": labels[:90]}
    validation = {"text": texts[90:], "label": labels[90:]}
    options = {"validation": validation, "time": limit, "trials": 7, "space": "default", "workers": 0, "callbacks": []}
    search = headhunt.search(data, encoder=encoders(), out=tmp_path / "run", **options)
    state, result = search.state, search.result
    top = Ladder().top
    first = [number for number, rung in state.settled[:4]]
    assert first == [2, 1, 4, 0] and all(rung == top for _, rung in state.settled[:4])
    assert search.load().predict("a good film") and result.plain.score is not None
    assert result.trained_rows <= search.task.rows["train"] and "plain" in result.test.scores
    models = {path.name for path in (tmp_path / "run" / "models").iterdir()}
    assert {f"{number:06d}-all" for number in first} <= models
    again = headhunt.verdict(tmp_path / "run", seeds=2, callbacks=[])
    assert again.result.plain == result.plain and (tmp_path / "run" / "models" / "000000-all-1").is_dir()


def test_search_trains_in_three_brackets_of_three_rungs(tmp_path, encoders):
    search = run_search(tmp_path, encoders(), strategy="bohb", rungs=3, eta=2, brackets=3, trials=16, epochs=1.0)
    assert search.state.started.fractions == pytest.approx((1 / 4, 1 / 2, 1.0))
    tuned = [trial for trial in search.state.trials if trial.origin in ("random", "model")]
    assert {trial.bracket for trial in tuned if trial.spec.recipe.freeze != "all"} == {0, 1, 2}
    assert {trial.spec.recipe.epochs for trial in search.state.trials if not trial.is_solved} == {1.0}
    with pytest.raises(HeadhuntError, match="brackets= must be between 1 and 2; found 3"):
        run_search(tmp_path / "other", encoders(), brackets=3)


def test_result_has_test_scores_of_winner_and_plain_head(tmp_path, encoders):
    result = run_search(tmp_path, encoders()).result
    assert "plain" in result.test.scores and {"winner", "solved"} & result.test.scores.keys()
    assert result.plain.score is not None
    assert result.rungs[-1].results >= 1
    score = next(iter(result.test.scores.values()))["accuracy"]
    assert 0 <= score.low <= score.value
    assert result.test_evaluations == 1


def test_search_does_not_read_test_rows_to_decide(tmp_path, encoders, monkeypatch):
    """With the test rows unreadable until the end, every trial has the same score, and the same one wins."""
    complete = run_search(tmp_path / "complete", encoders())
    hidden, visible, results = tmp_path / "hidden", tmp_path / "run" / "task", []
    finish, open_run = Session._finish, Session.open

    def hide(self, **options):
        hidden.mkdir()
        for path in visible.glob("test.*"):
            path.rename(hidden / path.name)
        return open_run(self, **options)

    def show(self, reason):
        results.append(len(self.study.state.settled))
        for path in hidden.iterdir():
            path.rename(visible / path.name)
        return finish(self, reason)

    monkeypatch.setattr(Session, "open", hide)
    monkeypatch.setattr(Session, "_finish", show)
    search = run_search(tmp_path, encoders())
    assert results[0] >= 8 and "plain" in search.result.test.scores
    assert [(row.trial, row.score) for row in search.leaderboard()] == [
        (row.trial, row.score) for row in complete.leaderboard()
    ]
    assert search.result.winner == complete.result.winner


def test_resumed_search_equals_uninterrupted_one_and_counts_test_evaluations(tmp_path, encoders):
    complete = run_search(tmp_path / "a", encoders(), trials=10)
    run_search(tmp_path / "b", encoders(), trials=4)
    resumed = headhunt.resume(tmp_path / "b" / "run", trials=10)
    assert [(row.trial, row.score) for row in complete.leaderboard()] == [
        (row.trial, row.score) for row in resumed.leaderboard()
    ]
    assert (complete.result.test_evaluations, resumed.result.test_evaluations) == (1, 2)


def test_search_tries_the_best_candidate_of_an_earlier_search(tmp_path, encoders, monkeypatch):
    # The task is so easy that no candidate is better than the plain head.
    monkeypatch.setattr("headhunt.engine.earlier_runs._gain", lambda trial, *_: float(trial.params is not None))
    (earlier := tmp_path / "earlier").mkdir()
    first = run_search(earlier, encoders())
    (spec,) = learn([first.run_dir], make_task())[:1]
    search = run_search(tmp_path, encoders(), learn_from=[first.run_dir], trials=5)
    assert spec.to_dict() in search.settings.learned
    tried = [trial.spec for trial in search.state.trials if trial.origin == "known"]
    assert any((other.head, other.recipe.learning_rate) == (spec.head, spec.recipe.learning_rate) for other in tried)
    assert clean(search.directory) == 0  # a search that has ended leaves nothing to remove
    needed = {search.result.plain.trial, *search.result.ensemble_members}
    needed |= {finalist.trial for finalist in search.result.finalists}
    kept = search.directory.checkpoint_sizes().keys()
    assert {trial for trial, _ in kept} <= needed
    resumed = headhunt.resume(search.run_dir, trials=6, time=None, callbacks=[])
    assert len(resumed.state.trials) == 6


def test_search_interrupted_early_ends_with_the_first_model(tmp_path, encoders, monkeypatch):
    """Issue: until the workers had started, Ctrl-C ended the program without a model."""
    handler, first = signal.getsignal(signal.SIGINT), Session._first_models

    def press_ctrl_c(self):
        signal.raise_signal(signal.SIGINT)
        first(self)

    monkeypatch.setattr(Session, "_first_models", press_ctrl_c)
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        search = run_search(tmp_path, encoders())
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, handler)
    assert search.state.ended == "interrupted" and not search.state.settled
    assert search.load() is not None and "winner" in search.result.test.scores


def test_search_killed_at_every_stage_finishes_when_resumed(tmp_path, encoders, monkeypatch):
    complete = run_search(tmp_path / "complete", encoders(), trials=5)
    for number, stage in enumerate(("_first_models", "_train_and_compare", "_refit", "_finish")):
        (folder := tmp_path / str(number)).mkdir()
        with monkeypatch.context() as patch:
            patch.setattr(Session, stage, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                run_search(folder, encoders(), trials=5)
        assert Search(folder / "run").result is None
        resumed = headhunt.resume(folder / "run", time="none", callbacks=[])
        assert resumed.leaderboard() and resumed.result.verdict.delivered == complete.result.verdict.delivered
        assert [(row.trial, row.score) for row in resumed.leaderboard()] == [
            (row.trial, row.score) for row in complete.leaderboard()
        ]
        assert resumed.model_dir == folder / "run" / "model" and resumed.result.model_from == complete.result.model_from


class Killed(BaseException):
    """Ends a search between two instructions, as SIGKILL would."""


@pytest.mark.slow
def test_search_killed_at_every_write_of_its_ledger_ends_with_the_same_result(tmp_path, encoders, monkeypatch):
    """Before a write, what follows from results is lost; after it, what was sent to workers is."""
    complete = run_search(tmp_path / "complete", encoders(), trials=5)
    write, moments = LedgerWriter.commit, 0

    def search_until(moment: int, *, written: bool) -> None:
        writes = 0

        def commit(ledger: LedgerWriter) -> None:
            nonlocal writes
            writes += bool(ledger._staged)
            if writes == moment and not written:
                raise Killed
            write(ledger)
            if writes == moment:
                raise Killed

        with monkeypatch.context() as patch:
            patch.setattr(LedgerWriter, "commit", commit)
            run_search(folder, encoders(), trials=5)

    for moment in range(2, 1000):
        for written in (False, True):
            (folder := tmp_path / f"{moment}-{written}").mkdir()
            try:
                search_until(moment, written=written)
            except Killed:
                moments += 1
            else:
                assert moments > 20, "no search was killed"
                return
            resumed = headhunt.resume(folder / "run", time="none", callbacks=[])
            assert [(row.trial, row.score) for row in resumed.leaderboard()] == [
                (row.trial, row.score) for row in complete.leaderboard()
            ], f"killed at write {moment}"
            assert resumed.result.verdict == complete.result.verdict, f"killed at write {moment}"
            assert resumed.result.model_from == complete.result.model_from


def test_work_that_is_done_is_not_done_again_when_a_search_is_resumed(tmp_path, encoders, monkeypatch):
    run_search(tmp_path, encoders(), trials=4)
    asked = []
    monkeypatch.setattr(
        Loop, "_start", lambda self, request, start=Loop._start: asked.append(request) or start(self, request)
    )
    headhunt.resume(tmp_path / "run", trials=4, time="none", callbacks=[])
    assert asked == []


def test_max_length_holds_for_every_model_of_a_search(tmp_path, encoders):
    search = run_search(tmp_path, encoders(), trials=4, max_length=24)
    assert {trial.spec.recipe.max_length for trial in search.state.trials} == {24}
    assert search.load().recipe.max_length == 24
    models = [json.loads(path.read_text()) for path in (tmp_path / "run" / "models").glob("*/headhunt.json")]
    assert len(models) >= 2 and {model["recipe"]["max_length"] for model in models} == {24}
    assert "--max-length 24" in search.settings.command(search.task, "default")


@pytest.mark.parametrize("length", [7, 65])
def test_max_length_beyond_the_encoder_is_refused(tmp_path, encoders, length):
    with pytest.raises(HeadhuntError, match=rf"8 to 64 tokens.* found {length}"):
        run_search(tmp_path, encoders(), max_length=length)
    with pytest.raises(HeadhuntError, match=rf"8 to 64 tokens.* found {length}"):
        headhunt.fit(make_task(), encoder=encoders(), max_length=length)
    assert not (tmp_path / "run").exists()


def test_target_ends_search(tmp_path, encoders):
    search = run_search(tmp_path, encoders(), target=0.01, trials=None)
    assert search.state.ended == "target" and search.model_dir is not None


def test_search_keeps_its_time_limit(tmp_path, encoders):
    began = time.time()
    search = run_search(tmp_path, encoders(), time="6s", trials=None)
    assert time.time() - began < 9 and search.state.ended == "time"
    assert search.load() is not None


def test_search_without_time_for_any_training_gives_a_tested_solved_head(tmp_path, encoders, monkeypatch):
    """Training that would take hours: what is left is the solved head, which takes a second."""
    run_request = TrialRunner.run

    def run_solved_only(self, request, stop=lambda: False):
        if not isinstance(request, EvaluateTrial | FitAllRows) or request.spec.recipe.solver == "ridge":
            return run_request(self, request, stop)
        time.sleep(max(0.0, (request.deadline or 0.0) - steady_time()))
        return Outcome(STOPPED)

    monkeypatch.setattr(TrialRunner, "run", run_solved_only)
    search = run_search(tmp_path, encoders(), time="6s", trials=None)
    result = search.result
    assert search.load() is not None and search.state.trials[result.winner.trial].is_solved
    assert result.model_from.startswith(f"{result.winner.trial:06d}")
    assert "plain" not in result.test.scores and "ensemble" not in result.test.scores
    assert result.test.scores["winner"]["accuracy"].value > 0 and "no time to compare" in result.verdict.sentence


def test_search_does_not_overwrite_a_run(tmp_path, encoders):
    run_search(tmp_path, encoders(), trials=1)
    with pytest.raises(RunError, match="holds a search"):
        run_search(tmp_path, encoders())


def test_resume_refuses_used_up_time_even_with_more_trials(tmp_path, encoders):
    first = run_search(tmp_path, encoders(), time="3s", trials=None)
    with pytest.raises(RunError, match="Give the time"):
        headhunt.resume(tmp_path / "run")
    with pytest.raises(RunError, match="Give the time"):  # it used to run without any limit
        headhunt.resume(tmp_path / "run", trials=999)
    searched = first.state.elapsed
    assert headhunt.resume(tmp_path / "run", time="4s").state.elapsed > searched


def test_search_that_was_cut_short_trains_longer_when_it_is_resumed_with_more_time(tmp_path, encoders, monkeypatch):
    """Issue: with more time, further candidates were tried, and the models of the first minute stayed."""
    options = {"trials": 5, "space": "default", "epochs": 400.0}
    search = run_search(tmp_path, encoders(), time="9s", **options)
    before = {key: done for key, done in search.state.jobs.items() if "cuts" in done.extra}
    assert before
    shutil.copytree(tmp_path / "run", tmp_path / "killed")
    with monkeypatch.context() as patch:
        patch.setattr(Loop, "_finish", lambda *_: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            headhunt.resume(tmp_path / "killed", time="30s", callbacks=[])
    assert Search(tmp_path / "killed").load().predict(["the movie was great"]), "the short models stay until then"
    assert all((tmp_path / "killed" / "models" / key.split("/")[1]).exists() for key in before)
    resumed = headhunt.resume(tmp_path / "run", time="30s", callbacks=[])
    assert all(resumed.state.jobs[key].examples > 1.3 * done.examples for key, done in before.items())


def test_resume_can_lift_the_time_limit(tmp_path, encoders):
    search = run_search(tmp_path, encoders(), time="3s", trials=None)
    search.directory.write(replace(search.settings, trials=1))
    assert headhunt.resume(tmp_path / "run", time="none").state.ended == "trials"


def test_search_without_model_says_so(tmp_path, encoders, monkeypatch):
    search = run_search(tmp_path, encoders(), trials=1)
    monkeypatch.setattr("headhunt.run.directory.is_model", lambda path: False)
    assert search.model_dir is None
    with pytest.raises(RunError, match="no model yet"):
        search.load()


def test_missing_encoder_is_refused_before_any_work(tmp_path):
    with pytest.raises(HeadhuntError, match="encoder"):
        run_search(tmp_path, str(tmp_path / "nothing"))
    assert not (tmp_path / "run").exists()


def test_failing_candidates_do_not_end_a_search(tmp_path, encoders):
    broken = Space.from_dict({"head": {"pooling": ["mean", "max"]}, "recipe": {"freeze": [7, 8, 9]}})
    search = run_search(tmp_path, encoders(), space=broken, trials=6)
    assert search.state.plain.best is not None and search.state.ended == "trials"
    proposed = [trial for trial in search.state.trials if trial.origin not in ("plain", "solved", "words")]
    assert len(proposed) == 2 and {result.outcome for t in proposed for result in t.results.values()} == {"error"}


def test_encoder_named_by_the_space_is_used_everywhere(tmp_path, encoders):
    """Issue: trial 0, the first model, freeze choices and runtime estimates used the encoder argument."""
    named = encoders("bert")
    space = Space("own", {**QUICK.tree, "encoder": named})
    search = headhunt.search(
        make_task(), time=None, trials=12, space=space, workers=0, out=tmp_path / "run", callbacks=[]
    )
    assert search.settings.encoder == named and {"plain", "solved"} < {trial.origin for trial in search.state.trials}
    assert {trial.spec.encoder for trial in search.state.trials} == {named}
    models = [json.loads(path.read_text()) for path in (tmp_path / "run" / "models").glob("*/headhunt.json")]
    assert len(models) >= 2 and {model["spec"]["encoder"] for model in models} == {named}


def test_first_encoder_of_a_choice_is_the_baseline(tmp_path, encoders):
    first, second = encoders("bert"), encoders("electra")
    space = Space("own", {**QUICK.tree, "encoder": Choice((first, second))})
    search = headhunt.search(
        make_task(), time=None, trials=12, space=space, workers=0, out=tmp_path / "run", callbacks=[]
    )
    assert search.state.trials[0].spec.encoder == first
    assert {trial.spec.encoder for trial in search.state.trials} == {first, second}


def test_encoder_argument_that_contradicts_the_space_is_refused(tmp_path, encoders):
    space = Space("own", {**QUICK.tree, "encoder": encoders("bert")})
    with pytest.raises(HeadhuntError, match="encoder= must be left out"):
        run_search(tmp_path, encoders("electra"), space=space)


def test_run_does_not_store_permission_or_cluster_address(tmp_path, encoders):
    run_search(tmp_path, encoders(), trials=1, trust_remote_code=True)
    stored = "".join(path.read_text() for path in (tmp_path / "run").glob("*.json*"))
    assert "trust_remote_code" not in stored and '"ray"' not in stored


def test_settings_with_a_permission_are_refused(tmp_path, encoders):
    search = run_search(tmp_path, encoders(), trials=1)
    data = json.loads(search.directory.settings.read_text())
    search.directory.settings.write_text(json.dumps({**data, "trust_remote_code": True}))
    with pytest.raises(RunError, match="unknown key 'trust_remote_code'"):
        headhunt.resume(tmp_path / "run", trials=2)


def test_ledger_lock_keeps_a_second_search_out(tmp_path, encoders):
    search = run_search(tmp_path, encoders(), trials=1)
    with LedgerWriter(search.directory), pytest.raises(RunError, match="another is writing"):
        headhunt.resume(tmp_path / "run", trials=2)
