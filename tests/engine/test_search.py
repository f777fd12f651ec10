"""A search from data to model, in this process: the run directory, stopping and resuming."""

from __future__ import annotations

import json
import shutil
import signal
import time
from dataclasses import replace

import numpy as np
import pytest
from searches import QUICK, make_task, run_search
from transformers import AutoModelForSequenceClassification

import headhunt
from headhunt import Search
from headhunt.engine import driver as driver_module
from headhunt.engine.best_model import BestModel
from headhunt.engine.driver import Resources, SearchDriver
from headhunt.engine.earlier_runs import learn
from headhunt.engine.profiling import OverLimitError
from headhunt.engine.selection import best_with_training_run
from headhunt.engine.trial_runner import TrialRunner
from headhunt.errors import HeadhuntError
from headhunt.report import write as write_report
from headhunt.run.clock import steady_time
from headhunt.run.events import STOPPED, ModelSaved, TrialFinished, decode
from headhunt.run.ledger import LedgerWriter
from headhunt.run.schema import RunError
from headhunt.run.state import Outcome
from headhunt.run.task import open_task
from headhunt.spec import Choice, Space
from headhunt.study.budget import TimeBudget
from headhunt.study.ladder import Ladder
from headhunt.study.requests import EvaluateTrial, FitAllRows
from headhunt.study.study import Study

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(scope="module")
def tiny_search(tmp_path_factory, encoders) -> Search:
    """A finished search with the plain head, a solved head and one other trial."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("tiny")
        patch.setenv("HEADHUNT_CACHE", str(folder / "cache"))
        return run_search(folder, encoders(), trials=4)


@pytest.fixture
def copied_search(tiny_search, tmp_path) -> Search:
    """A copy of that search, to change its files."""
    shutil.copytree(tiny_search.run_dir, tmp_path / "run", symlinks=True)
    return Search(tmp_path / "run")


def test_search_ends_with_model_and_leaderboard(tmp_path, encoders):
    search = run_search(tmp_path, encoders())
    board = search.leaderboard()
    assert len(search.state.trials) == 8 and search.state.ended == "trials"
    assert board[0].trial == search.best.number and board[0].rung == Ladder().top
    full = [row.score for row in board if row.rung == Ladder().top]
    assert full == sorted(full, reverse=True)
    assert search.model_dir == tmp_path / "run" / "model" and search.result.winner.trial != 0
    assert search.load().predict(["the movie was great"])[0].label in ("good", "bad")
    info = json.loads((tmp_path / "run" / "model" / "headhunt.json").read_text())
    verdict = search.result.verdict
    assert info["task"]["trained_on"] == "all training rows"
    delivered = {"winner": search.result.winner, "plain": search.result.plain}[verdict.delivered]
    assert info["trial"] == delivered.trial and search.result.plain.trial in (0, 1)
    assert (verdict.claim == "gain") == ("A reliable gain" in verdict.sentence)


def test_search_of_few_rows_without_time_trains_the_best_known_recipe_at_once(tmp_path, encoders, monkeypatch):
    """Issue: with 65 long texts and a minute, the first candidate was stopped and the solved head delivered."""
    monkeypatch.setattr("headhunt.engine.planning.USUAL_RUNS", (10**6, 10**6))  # no time is enough to compare
    options = {"trials": None, "space": "default", "time": "30s"}
    search = run_search(tmp_path, encoders(), **options)
    result, plain = search.result, search.state.plain
    winner = search.state.trials[result.winner.trial]
    assert winner.spec.recipe.contrastive and winner.origin == "known" and search.state.ended == "time"
    assert result.winner.score is None and not winner.results and not plain.results
    assert result.verdict.delivered == "winner" and result.model_from.startswith(f"{winner.number:06}-")
    assert {"winner", "plain", "solved", "tfidf"} == result.test.scores.keys()  # the references come last
    assert "the best known recipe for so few rows" in result.verdict.sentence or result.verdict.claim == "gain"
    assert search.load().predict(["the movie was great"])[0].label in ("good", "bad")
    assert f"winner (#{winner.number})" in write_report(tmp_path / "run").read_text()
    assert "This model is the winner of that search." in (search.model_dir / "README.md").read_text()
    verdict = headhunt.verdict(tmp_path / "run", seeds=2, view=False)
    assert verdict.result.test.scores["winner"] and verdict.result.winner == result.winner
    resumed = headhunt.resume(tmp_path / "run", time="none", trials=5, view=False)
    assert resumed.state.trials[winner.number].results and resumed.state.plain.results
    assert resumed.result.winner.score is not None
    assert len(resumed.state.trials) == 5


def test_ensemble_is_saved_as_it_was_tested(tmp_path, encoders, monkeypatch):
    """A rule that always takes the ensemble, so that the saved one is compared with the tested one."""
    better = "headhunt.engine.selection.EnsembleChoice.better_than"
    monkeypatch.setattr(better, lambda self, score: self.score is not None)
    search = run_search(tmp_path, encoders(), trials=12)
    result = search.result
    assert result.ensemble == "ensemble" and len(result.ensemble_members) >= 1 and "ensemble" in result.test.scores
    ensemble = headhunt.load(tmp_path / "run" / "ensemble", precision="fp32")
    assert len(ensemble.model.members) == 3 * len(result.ensemble_members)
    test = open_task(tmp_path / "run" / "task", ("test",)).splits["test"]
    correct = ensemble.outputs(test.texts()).argmax(1) == test.targets
    assert correct.mean() == pytest.approx(result.test.scores["ensemble"]["accuracy"].value, abs=0.08)
    assert not list((tmp_path / "run").glob(".ensemble*"))


def test_ensemble_is_delivered_if_asked_for_and_better(tmp_path, encoders, monkeypatch):
    """The folder of the run's model is the ensemble; verdict, card, report and test scores say so."""
    better = "headhunt.engine.selection.EnsembleChoice.better_than"
    monkeypatch.setattr(better, lambda self, score: self.score is not None)
    search = run_search(tmp_path, encoders(), trials=8, deliver="ensemble", reject=0.8)
    result = search.result
    assert result.verdict.delivered == result.model_from == result.ensemble == "ensemble"
    assert "is delivered: it has" in result.verdict.sentence and "on the test rows" in result.verdict.sentence
    model, test = search.load(), open_task(tmp_path / "run" / "task", ("test",)).splits["test"]
    assert len(model.model.members) == 3 * len(result.ensemble_members)
    answered = np.mean([not each.rejected for each in model.predict(test.texts())])
    assert result.test.rejection.coverage == pytest.approx(answered, abs=0.08)
    assert model.rejection.threshold == pytest.approx(result.test.rejection.threshold)
    card = (tmp_path / "run" / "model" / "README.md").read_text()
    assert "This model is the ensemble of the best candidates" in card and "are answered" in card
    winner = (tmp_path / "run" / "models" / result.winner_model / "README.md").read_text()
    assert "This model is the winner of that search." in winner
    exported = AutoModelForSequenceClassification.from_pretrained(search.model_dir, trust_remote_code=True)
    assert exported.config.num_labels == 2
    assert "This is the ensemble." in write_report(tmp_path / "run").read_text()


def test_ensemble_above_a_limit_is_not_saved(tmp_path, encoders, monkeypatch):
    def refuse(*_, **__):
        raise OverLimitError("has 9.0 MB of weights; 5 are allowed")

    better = "headhunt.engine.selection.EnsembleChoice.better_than"
    monkeypatch.setattr(better, lambda self, score: self.score is not None)
    monkeypatch.setattr("headhunt.engine.trial_runner.save_ensemble", refuse)
    result = run_search(tmp_path, encoders(), trials=6).result
    assert result.ensemble is None and result.ensemble_note == "it has 9.0 MB of weights; 5 are allowed"
    assert [path.name for path in (tmp_path / "run").iterdir() if "ensemble" in path.name] == []
    assert f"not saved: {result.ensemble_note}" in write_report(tmp_path / "run").read_text()


def test_result_has_test_scores_of_winner_and_plain_head(tmp_path, encoders):
    result = run_search(tmp_path, encoders()).result
    assert {"winner", "plain"} <= result.test.scores.keys()
    assert result.plain.trial in (0, 1) and result.plain.score is not None
    assert result.rungs[-1].results >= 1
    score = result.test.scores["winner"]["accuracy"]
    assert 0 <= score.low <= score.value
    assert result.test_evaluations == 1


def test_search_does_not_open_test_rows_before_final_evaluation(tmp_path, encoders, monkeypatch):
    """With the test rows unreadable until then, every trial has the same score, and the same one wins."""
    complete = run_search(tmp_path / "complete", encoders())
    hidden, visible, results = tmp_path / "hidden", tmp_path / "run" / "task", []
    evaluate, open_run = driver_module.run_final_evaluation, SearchDriver.open

    def hide(self, **options):
        hidden.mkdir()
        for path in visible.glob("test.*"):
            path.rename(hidden / path.name)
        return open_run(self, **options)

    def show(final, reason, training_runs=None):
        results.append(len(final.state.settled))
        for path in hidden.iterdir():
            path.rename(visible / path.name)
        return evaluate(final, reason, training_runs)

    monkeypatch.setattr(SearchDriver, "open", hide)
    monkeypatch.setattr(driver_module, "run_final_evaluation", show)
    search = run_search(tmp_path, encoders())
    assert results[0] >= 8 and "winner" in search.result.test.scores
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


def test_model_that_becomes_best_again_is_kept(copied_search):
    """The best model changes from one trial to another and back: its directory must not be taken for an old one."""
    search = copied_search
    driver = SearchDriver(search.run_dir, search.settings, Resources(), TimeBudget(None), False)
    with driver.open() as study:
        for name in ("one", "two", "one", "three", "one"):
            folder = search.run_dir / "models" / name
            folder.mkdir(exist_ok=True)
            study.ledger.append(ModelSaved(1, name))
            driver.best.requests(driver.final_evaluation(study))
            assert folder.is_dir() and (search.run_dir / "best").resolve() == folder.resolve()
    assert not (search.run_dir / "models" / "two").exists()


def test_late_save_of_a_worse_model_does_not_stay_the_best(copied_search):
    """A save that was requested earlier may end later: the better model is then requested again."""
    search = copied_search
    driver = SearchDriver(search.run_dir, search.settings, Resources(), TimeBudget(None), False)
    with driver.open() as study:
        trials = [trial for trial in study.state.leaderboard() if not trial.is_solved]
        best = next(trial for trial in trials if study.checkpoints.latest(trial.number))
        driver.best.trial, driver.best.rung = best, best.best[0]
        final = driver.final_evaluation(study)
        folder = driver.directory.trial_model(best.number, best.best[0]).name
        study.ledger.append(ModelSaved(0, "first"))
        assert [request.out.name for request in driver.best._save(final)] == [folder]
        study.ledger.append(ModelSaved(best.number, folder))
        assert not driver.best._save(final)
        study.ledger.append(ModelSaved(1, "worse"))  # requested before
        assert [request.out.name for request in driver.best._save(final)] == [folder]


@pytest.mark.parametrize(("number", "tested"), [(3, []), (0, ["first"])])
def test_model_is_not_tested_while_a_better_one_of_its_trial_is_saved(tiny_search, number, tested):
    """Issue: the head solved on a sample was tested beside the same head solved on all rows, which then took longer."""
    driver = SearchDriver(tiny_search.run_dir, tiny_search.settings, Resources(), TimeBudget(None), False)
    with driver.open() as study:
        driver.best.trial, driver.best.rung, driver.best._requested = study.state.trials[3], 1, "second"
        final = driver.final_evaluation(study)
        study.ledger.append(ModelSaved(number, "first"))
        assert [request.model.name for request in driver.best._predict_test_rows(final)] == tested
        study.ledger.append(ModelSaved(3, "second"))
        assert [request.model.name for request in driver.best._predict_test_rows(final)] == ["second"]


def set_results(study, results: dict[int, dict[int, tuple[float, float]]]) -> None:
    """Replace the results of a study: score and standard error by trial and rung."""
    study.state.settled.clear()
    for trial in study.state.trials:
        trial.results.clear()
    for number, by_rung in results.items():
        for rung, (score, std_error) in by_rung.items():
            outcome = Outcome("ok", score, 1.0, 10, {"std_error": std_error})
            study.state.trials[number].results[rung] = outcome
            study.state.settled.append((number, rung))


@pytest.mark.parametrize(
    ("results", "best"),
    [
        ({0: {1: (0.80, 0.05)}, 3: {0: (0.79, 0.01)}}, (3, 0)),  # not the one evaluated furthest
        ({3: {0: (0.79, 0.01)}, 0: {1: (0.80, 0.05)}}, (3, 0)),  # in whatever order
        ({0: {1: (0.80, 0.01)}, 3: {0: (0.85, 0.10)}}, (0, 1)),  # not the one with the highest score
        ({0: {0: (0.80, 0.02), 1: (0.81, 0.01)}}, (0, 1)),
        ({0: {0: (0.85, 0.02), 1: (0.81, 0.01)}}, (0, 0)),
        ({1: {1: (0.80, 0.01)}, 0: {1: (0.80, 0.01)}}, (0, 1)),  # the earlier trial of two equal ones
    ],
)
def test_best_model_has_the_highest_lower_bound(tiny_search, results, best):
    driver = SearchDriver(tiny_search.run_dir, tiny_search.settings, Resources(), TimeBudget(None), False)
    with driver.open() as study:
        set_results(study, results)
        driver.best = BestModel(limited=False)
        driver._after_results(study)
        assert (driver.best.trial.number, driver.best.rung) == best
        assert best_with_training_run(study, 3).number == best[0]


def test_best_model_has_a_complete_training_run(tiny_search):
    driver = SearchDriver(tiny_search.run_dir, tiny_search.settings, Resources(), TimeBudget(None), False)
    with driver.open() as study:
        set_results(study, {0: {1: (0.80, 0.01)}, 3: {0: (0.99, 0.00)}})
        assert best_with_training_run(study, 3).number == 3
        assert best_with_training_run(study, 2).number == 0  # a third of two training runs is not one


def test_model_of_a_solved_head_learns_from_all_rows(tiny_search):
    driver = SearchDriver(tiny_search.run_dir, tiny_search.settings, Resources(), TimeBudget(None), False)
    with driver.open() as study:
        solved = next(trial.number for trial in study.state.trials if trial.is_solved)
        top = study.ladder.top
        set_results(study, {solved: {top: (0.9, 0.0)}, 0: {top: (0.8, 0.0)}})
        study.ledger.append(ModelSaved(0, "first"))
        driver.best = BestModel(limited=False)
        request = driver._after_results(study)[0]
        assert isinstance(request, FitAllRows) and (request.trial, request.rows) == (solved, None)
        assert request.out == driver.directory.trial_model(solved, top)


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
    resumed = headhunt.resume(search.run_dir, trials=6, time=None, view=False)
    assert len(resumed.state.trials) == 6


@pytest.mark.parametrize("options", [{}, {"max_size": "60MB"}])
def test_first_model_is_saved_before_its_evaluation_unless_it_may_be_over_a_limit(tmp_path, encoders, options):
    search = run_search(tmp_path, encoders(), trials=3, **options)
    lines = search.directory.ledger.read_bytes().splitlines()
    events = [event for _, event in map(decode, lines) if isinstance(event, ModelSaved | TrialFinished)]
    first, second, *_ = events
    assert isinstance(first, TrialFinished if options else ModelSaved) and type(second) is not type(first)
    assert first.trial == second.trial and search.state.trials[first.trial].is_solved
    assert [event.folder for event in events if isinstance(event, ModelSaved) and event.trial == first.trial] == [
        search.directory.trial_model(first.trial, search.state.settled[0][1]).name
    ]


def test_search_interrupted_before_its_first_trial_ends_with_the_first_model(tmp_path, encoders, monkeypatch):
    """Issue: until the workers had started, Ctrl-C ended the program without the final evaluation."""
    evaluate_first, handler = Study.evaluate_first, signal.getsignal(signal.SIGINT)

    def press_ctrl_c(self):
        evaluate_first(self)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(driver_module, "starts_ray", lambda *arguments: True)
    monkeypatch.setattr(Study, "evaluate_first", press_ctrl_c)
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        search = run_search(tmp_path, encoders())
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, handler)
    (result,) = search.state.settled
    assert search.state.ended == "interrupted" and search.state.trials[result[0]].is_solved
    assert search.load() is not None and "winner" in search.result.test.scores


def test_search_killed_in_final_evaluation_finishes_when_resumed(tmp_path, encoders, monkeypatch):
    def die(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(driver_module, "run_final_evaluation", die)
        with pytest.raises(KeyboardInterrupt):
            run_search(tmp_path, encoders(), trials=None, time=8)
    killed = Search(tmp_path / "run")
    assert killed.state.ended == "time" and killed.result is None
    resumed = headhunt.resume(tmp_path / "run")
    assert resumed.result.verdict and resumed.model_dir == tmp_path / "run" / "model"


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
    assert result.model_from.startswith(f"{result.winner.trial:06d}") and result.plain is None
    assert "plain" not in result.test.scores and "ensemble" not in result.test.scores
    assert result.test.scores["winner"]["accuracy"].value > 0 and "no time to compare" in result.verdict.sentence


@pytest.mark.parametrize(("most", "saved"), [(700, 700), (5000, 2240)])
def test_search_without_time_to_train_on_many_rows_solves_on_more_of_them(tmp_path, encoders, monkeypatch, most, saved):
    monkeypatch.setattr("headhunt.engine.planning.TRAINING_FACTOR", 1e6)  # as if training were slow
    monkeypatch.setattr("headhunt.engine.planning.FIRST_SECONDS", 1e-6)
    monkeypatch.setattr("headhunt.engine.planning.SOLVED_ROWS", most)
    options = {"space": QUICK, "workers": 0, "out": tmp_path / "run", "view": False, "time": "15s", "trials": 2}
    search = headhunt.search(make_task(2800), encoder=encoders(), **options)
    plan, result = search.directory.read_plan(), search.result
    assert plan.only_solves and plan.first_rows == 200 and plan.solved_rows == saved
    winner = search.state.trials[result.winner.trial]
    held_out = plan.rows // 5  # about: near-duplicates stay together
    solved = [winner.results[rung].examples for rung in (0, 1)]
    assert winner.is_solved and solved[0] == 200 and solved[1] == pytest.approx(min(most, plan.rows - held_out), abs=9)
    assert result.plain is None and "no time to compare" in result.verdict.sentence
    predictions = {path.stem for path in (search.run_dir / "test").iterdir()}
    assert result.model_from in predictions and f"{winner.number:06d}-0" not in predictions
    info = json.loads((search.model_dir / "headhunt.json").read_text())
    trained_on = int(info["task"]["trained_on"].split()[0].replace(",", ""))
    assert trained_on == (700 if most == 700 else solved[1] + plan.validation_rows)


def test_search_does_not_overwrite_a_run(tmp_path, encoders):
    run_search(tmp_path, encoders(), trials=1)
    with pytest.raises(RunError, match="holds a search"):
        run_search(tmp_path, encoders())


def test_resume_refuses_used_up_time_even_with_more_trials(tmp_path, encoders):
    first = run_search(tmp_path, encoders(), time="3s", trials=None)
    with pytest.raises(RunError, match="Give time="):
        headhunt.resume(tmp_path / "run")
    with pytest.raises(RunError, match="Give time="):  # it used to run without any limit
        headhunt.resume(tmp_path / "run", trials=999)
    searched = first.state.elapsed
    assert headhunt.resume(tmp_path / "run", time="4s").state.elapsed > searched


def test_resume_can_lift_the_time_limit(tmp_path, encoders):
    search = run_search(tmp_path, encoders(), time="3s", trials=None)
    search.directory.write_settings(replace(search.settings, trials=1))
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
    proposed = [trial for trial in search.state.trials if trial.origin not in ("plain", "solved")]
    assert len(proposed) == 3 and {result.outcome for t in proposed for result in t.results.values()} == {"error"}


def test_encoder_named_by_the_space_is_used_everywhere(tmp_path, encoders):
    """Issue: trial 0, the first model, freeze choices and runtime estimates used the encoder argument."""
    named = encoders("bert")
    space = Space("own", {**QUICK.tree, "encoder": named})
    search = headhunt.search(
        make_task(), time=None, trials=12, space=space, workers=0, out=tmp_path / "run", view=False
    )
    assert search.settings.encoder == named and {"plain", "solved"} < {trial.origin for trial in search.state.trials}
    assert {trial.spec.encoder for trial in search.state.trials} == {named}
    models = [json.loads(path.read_text()) for path in (tmp_path / "run" / "models").glob("*/headhunt.json")]
    assert len(models) >= 2 and {model["spec"]["encoder"] for model in models} == {named}


def test_first_encoder_of_a_choice_is_the_baseline(tmp_path, encoders):
    first, second = encoders("bert"), encoders("electra")
    space = Space("own", {**QUICK.tree, "encoder": Choice((first, second))})
    search = headhunt.search(
        make_task(), time=None, trials=12, space=space, workers=0, out=tmp_path / "run", view=False
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
