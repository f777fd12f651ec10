"""The last training runs: how long they are, what is trained again, and which model wins after them."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from searches import make_task
from study_toys import VirtualClock, open_study

from headhunt.engine.final_evaluation import FinalEvaluation
from headhunt.engine.final_test import _deliver, _predict_test_rows
from headhunt.engine.last_training import (
    AGAIN_FRACTION,
    Contest,
    average_models,
    best_model,
    fit_all_rows,
    score_last_training,
)
from headhunt.engine.notes import with_notes
from headhunt.engine.selection import EnsembleChoice, FinalistScores, choose_by_sample
from headhunt.run.directory import RunDirectory, write_arrays
from headhunt.run.events import ModelSaved, SearchEnded, TrialAdded, TrialFinished, TrialStarted
from headhunt.run.plan import Plan
from headhunt.run.results import TFIDF, Verdict
from headhunt.run.state import Outcome
from headhunt.run.task import TaskInfo, save_task
from headhunt.spec import Head, Recipe, Spec, solved
from headhunt.study.budget import TimeBudget
from headhunt.study.requests import PredictTestRows

pytestmark = pytest.mark.usefixtures("own_cache")

GROWS = Plan(
    rows=5000, compared_rows=500, validation_rows=400, final_rows=5000, first_rows=1000, solved_rows=4000,
    test_rows=100, epochs=3.0, rows_per_second=200.0, examples_per_second=50.0, seconds=300.0,
)  # fmt: skip
TUNED = Spec(encoder="toy", head=Head(pooling="mean"), recipe=Recipe(epochs=3.0))


class Workers:
    """Workers that keep the requests and respond at once."""

    workers, threads_alone = 2, None

    def __init__(self) -> None:
        self.requests, self.waiting = [], []

    def submit(self, request):
        self.requests.append(request)
        self.waiting.append(request)

    def wait(self, timeout=None):
        done, self.waiting = self.waiting, []
        return [(request, Outcome("ok")) for request in done]


@pytest.fixture
def search(tmp_path):
    """Return a function that makes the end of a search: the plain head, trial 0, a tuned one, and a solved head."""
    studies = []

    def make(plan: Plan = GROWS, seconds: float | None = 120.0, total: float = 300.0) -> FinalEvaluation:
        task, directory = make_task(), RunDirectory(tmp_path)
        save_task(task, directory.task)
        study = open_study(tmp_path, executor=Workers(), budget=TimeBudget(seconds, total=total), plan=plan)
        studies.append(study)
        for number, (spec, origin, score) in enumerate(
            (
                (Spec(encoder="toy", recipe=Recipe(epochs=3.0)), "plain", 0.7),
                (TUNED, "known", 0.75),
                (solved("toy"), "solved", 0.8),
            )
        ):
            study.ledger.append(TrialAdded(number, spec.to_dict(), spec.hash, None, origin, 0))
            study.ledger.append(TrialStarted(number, 0, 0))
            extra = {"training_seconds": 20.0}
            study.ledger.append(TrialFinished(number, 0, "ok", score, 21.0, 1000, extra))
        info = replace(TaskInfo.of(task), rows={"train": 5000, "test": 100})
        return FinalEvaluation(directory, info, "accuracy", study, plan=plan)

    yield make
    for study in studies:
        study.ledger.close()


def save_model(final: FinalEvaluation, name: str) -> None:
    folder = final.directory.models / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "headhunt.json").write_text(name)


def save_trained(final: FinalEvaluation, number: int, examples: int) -> None:
    """Write the facts of a model that was trained on all rows."""
    folder = final.directory.final_model(number, 0)
    save_model(final, folder.name)
    facts = {"schema": 1, "problem_type": "regression", "labels": [], "pair": False, "recipe": {}, "spec": {}}
    (folder / "headhunt.json").write_text(json.dumps({**facts, "examples": examples}))


def train_last(final: FinalEvaluation, number: int, right: int) -> None:
    """Write the model of a last training run that is right for so many of ten rows."""
    save_model(final, final.directory.final_model(number, 0).name)
    targets = final.validation_targets[:10]
    outputs = np.eye(2, dtype=np.float32)[np.where(np.arange(10) < right, targets, 1 - targets)]
    write_arrays(final.directory.last_predictions(number, 0), rows=np.arange(10), outputs=outputs)


def save_best(final: FinalEvaluation, number: int) -> None:
    name = final.directory.trial_model(number, 0).name
    save_model(final, name)
    final.study.ledger.append(ModelSaved(number, name))


def contest_of(final: FinalEvaluation) -> Contest:
    plain, tuned, _ = final.state.trials
    return Contest(tuned, plain, {number: final.directory.final_models(number) for number in (0, 1)})


@pytest.mark.parametrize(
    ("saved", "last", "winner", "delivered"),
    [
        (2, {0: 6, 1: 9}, 1, "winner"),
        (2, {0: 6, 1: 7}, 2, "winner"),  # the solved head is better than the last training
        (2, {0: 9, 1: 7}, 2, "plain"),
        (1, {0: 6, 1: 5}, 1, "winner"),  # the tuned model of the search is better than its own last training
        (1, {0: 9}, 1, "plain"),  # the tuned one has not finished, and its earlier model is worse than the plain head
        (1, {0: 6}, 1, "winner"),
        (0, {0: 9}, 1, "plain"),
        (0, {1: 9}, 1, "winner"),
        (0, {1: 6}, 1, "plain"),  # the plain head of the search is better
    ],
)
def test_best_of_last_training_and_search_is_delivered(search, saved, last, winner, delivered):
    final = search()
    save_best(final, saved)
    for number, right in last.items():
        train_last(final, number, right)
    contest, scores = score_last_training(final, contest_of(final))
    assert contest.winner.number == winner
    name, source = _deliver(final, contest, None, scores)
    trial = {"winner": contest.winner, "plain": contest.plain}[delivered]
    assert name == delivered and source == contest.models_of(trial)[0]
    assert (final.directory.model / "headhunt.json").read_text() == source.name
    best = max(score for each in scores.by_trial.values() for score in each)
    assert scores.mean(trial) == best


def test_model_of_an_earlier_session_is_not_the_best_of_the_search(search):
    """Issue: a verdict tested the plain head, delivered before, as the solved head."""
    final = search()
    save_best(final, 2)
    final.study.ledger.append(SearchEnded("time"))
    final.directory.model.mkdir()
    (final.directory.model / "headhunt.json").write_text("delivered before")
    assert best_model(final) == final.directory.trial_model(2, 0)
    train_last(final, 0, 9)
    train_last(final, 1, 5)
    contest, _ = score_last_training(final, contest_of(final))
    assert contest.models_of(contest.winner) == [final.directory.trial_model(2, 0)]


@pytest.mark.parametrize("saved", [0, 2])
def test_plain_head_alone_is_delivered_as_it_was_trained_last(search, saved):
    """Issue: without another candidate, the plain head's model of the search was delivered."""
    final = search()
    save_best(final, saved)
    save_model(final, final.directory.final_model(0, 0).name)
    contest = Contest(None, final.state.plain, {0: final.directory.final_models(0)})
    assert _deliver(final, contest, None, FinalistScores({}))[0] == "plain"


def test_decisions_are_fitted_on_predictions_of_the_delivered_model(search):
    final = search()
    targets = final.validation_targets[:10]
    wrong = np.eye(2, dtype=np.float32)[1 - targets]
    write_arrays(final.directory.predictions(1, 0), rows=np.arange(10), outputs=wrong)
    train_last(final, 1, 10)
    tuned, last = final.state.trials[1], final.directory.final_model(1, 0)
    assert (final.held_out(tuned)[0].argmax(1) == targets).all() and (final.held_out(tuned, last)[0] != wrong).any()
    assert (final.held_out(tuned, final.directory.trial_model(1, 0))[0] == wrong).all()
    (last / "headhunt.json").unlink()  # its worker was killed before the model was saved
    assert (final.held_out(tuned)[0] == wrong).all()


# --- how long they are


def test_last_training_fits_with_preparing_and_evaluating_its_model(search):
    final = search()
    rows, spec = final.last_training([final.state.trials[1]], 100.0)[1]
    assert (rows, final.set_aside) == (4000, 1000)  # the rest evaluates the model
    seconds = rows * spec.recipe.epochs / 50.0 + final.finishing_seconds
    assert seconds == pytest.approx(100.0, abs=1.0) and final.finishing_seconds == 4.0
    standardised = replace(TUNED, recipe=replace(TUNED.recipe, standardize=True))
    tuned = replace(final.state.trials[1], spec_data=standardised.to_dict())
    rows, spec = final.last_training([tuned], 100.0)[1]
    assert rows * spec.recipe.epochs / 50.0 == pytest.approx(100.0 - 4.0 - 10.0, abs=1.0)


@pytest.mark.parametrize(("seconds", "epochs"), [(100.0, 1.2), (604.0, 7.5), (6000.0, 10.0)])
def test_last_training_uses_the_time_for_more_epochs_than_candidates_were_compared_with(search, seconds, epochs):
    """Candidates have few epochs, so that several can be compared; the last models are evaluated themselves."""
    final = search()
    assert final.study.candidates.epochs == 10.0
    for rows, spec in final.last_training(final.state.trials[:2], seconds).values():
        assert (rows, spec.recipe.epochs) == (4000, pytest.approx(epochs))


def test_last_training_has_the_epochs_of_its_candidate_if_the_models_are_not_evaluated(search):
    final = search(replace(GROWS, compared_rows=4000))
    rows, spec = final.last_training([final.state.trials[1]], 6000.0)[1]
    assert (rows, spec.recipe.epochs) == (5000, 3.0)


def test_small_samples_do_not_decide_for_a_solved_start(search):
    """Such a candidate is ahead on few rows only."""
    final = search()
    ahead = replace(TUNED, recipe=replace(TUNED.recipe, head_init="solved"))
    final.study.ledger.append(TrialAdded(3, ahead.to_dict(), ahead.hash, None, "known", 0))
    final.study.ledger.append(TrialStarted(3, 0, 0))
    final.study.ledger.append(TrialFinished(3, 0, "ok", 0.79, 21.0, 1000, {"training_seconds": 20.0}))
    assert choose_by_sample(final).number == 1


@pytest.mark.parametrize(("score", "first"), [(0.77, 1), (0.79, 3)])
def test_small_samples_decide_against_an_earlier_recipe_only_if_it_is_worse_by_a_standard_error(search, score, first):
    final = search()
    later = replace(TUNED, recipe=replace(TUNED.recipe, freeze=3))
    final.study.ledger.append(TrialAdded(3, later.to_dict(), later.hash, None, "known", 0))
    final.study.ledger.append(TrialStarted(3, 0, 0))
    extra = {"training_seconds": 20.0, "std_error": 0.03}
    final.study.ledger.append(TrialFinished(3, 0, "ok", score, 21.0, 1000, extra))
    assert choose_by_sample(final).number == first


def test_last_training_ends_before_its_model_is_evaluated(search):
    final = search()
    fit_all_rows(final, final.state.trials[:2], None, [])
    requests = final.executor.requests
    assert [request.trial for request in requests] == [0, 1]
    assert all(request.validation_predictions is not None for request in requests)
    left = requests[0].deadline - final.budget.now()
    assert requests[0].rows * requests[0].spec.recipe.epochs / 50.0 < left < final.budget.left() - 4.0


def test_worker_may_take_as_long_as_the_last_training_needs(search):
    """Issue: without a deadline, training on all rows was stopped after ten times the seconds of a sample."""
    final = search(seconds=None, total=300.0)
    fit_all_rows(final, final.state.trials[:2], 1, [])
    for request in final.executor.requests:
        examples = request.rows * request.spec.recipe.epochs
        assert examples == 12_000 and request.worker_timeout > 2 * examples / 50.0


@pytest.mark.parametrize(("seconds", "trained"), [(10.0, []), (120.0, [0, 1])])
def test_last_training_with_fewer_examples_than_the_search_is_left_out(search, seconds, trained):
    """Issue: after a resume with little time, a model of a few rows replaced a better one."""
    final = search(replace(GROWS, compared_rows=4000), seconds)
    assert not final.grows
    fit_all_rows(final, final.state.trials[:2], None, [])
    assert [request.trial for request in final.executor.requests] == trained


@pytest.mark.parametrize(("fraction", "trained"), [(0.9, [1]), (1.1, [0, 1])])
def test_resumed_search_trains_both_again_if_there_is_time(search, fraction, trained):
    """Issue: a new winner was compared with a plain head of an earlier session, trained on fewer rows."""
    final = search(seconds=fraction * AGAIN_FRACTION * 300.0)
    train_last(final, 0, 9)
    fit_all_rows(final, final.state.trials[:2], None, [])
    assert [request.trial for request in final.executor.requests] == trained


def test_verdict_keeps_the_models_of_the_search(search):
    final = search(seconds=None)
    train_last(final, 0, 9)
    train_last(final, 1, 9)
    fit_all_rows(final, final.state.trials[:2], 1, [])
    assert not final.executor.requests and len(final.directory.final_models(0)) == 1


def test_training_at_once_has_fewer_epochs_with_an_encoder_that_costs_more(search):
    common = {"rows": 200, "final_rows": 200, "compared_rows": 200, "folds": 3, "compares": False}
    final = search(replace(GROWS, **common, encoders=("small", "toy"), costs=(1.0, 3.0)), seconds=None)
    final.task = replace(final.task, rows={"train": 200, "test": 100})
    for trial in final.state.trials[:2]:
        trial.results.clear()
    assert final.trains_at_once
    tuned = final.state.trials[1]
    assert final.training_seconds(tuned) == pytest.approx(3.0 * 3.0 * 200 / 50.0)
    _, spec = final.last_training([tuned], 30.0)[1]
    assert 1.0 < spec.recipe.epochs < tuned.spec.recipe.epochs


@pytest.mark.parametrize(("examples", "again"), [((600, 590), []), ((200, 300), [0, 1]), ((200, 590), [0])])
def test_training_runs_that_were_short_are_repeated_when_a_search_is_resumed(search, examples, again):
    """A short search of few rows trains at once, for as many epochs as fit; later sessions evaluate the same trials."""
    final = search(replace(GROWS, rows=200, final_rows=200, compared_rows=200, folds=3, compares=False), seconds=None)
    final.task = replace(final.task, rows={"train": 200, "test": 100})
    for number, count in enumerate(examples):
        save_trained(final, number, count)
    assert not final.trains_at_once
    fit_all_rows(final, final.state.trials[:2], 1, [])
    assert [request.trial for request in final.executor.requests] == again


@pytest.mark.parametrize(("examples", "rows", "epochs"), [((30_000, 28_000), 4000, 7.0), ((2500, 2500), 2500, 1.0)])
def test_verdict_trains_further_models_with_as_many_examples_as_the_first_ones(search, examples, rows, epochs):
    """Issue: they had the epochs of the comparison on a sample, fewer than the models that they are compared with."""
    final = search(seconds=None)
    for number, count in enumerate(examples):
        train_last(final, number, 9)
        save_trained(final, number, count)
    fit_all_rows(final, final.state.trials[:2], 2, [])
    assert [(request.trial, request.rows, request.spec.recipe.epochs) for request in final.executor.requests] == [
        (0, rows, epochs),
        (1, rows, epochs),
    ]


@pytest.mark.parametrize(("seconds", "runs"), [(30.0, 3), (60.0, 2), (110.0, 1)])
def test_training_is_repeated_as_often_as_its_measured_time_allows(search, monkeypatch, seconds, runs):
    """The estimate, 189 s from one fold, would leave no time for a second training run of 60 s."""
    final = search(replace(GROWS, folds=3), seconds=180.0)
    assert final.training_seconds(final.state.trials[1]) == 189.0
    clock = VirtualClock()
    monkeypatch.setattr(final.budget, "_clock", clock)
    final.budget.deadline = clock.now + 180.0
    wait = final.executor.wait

    def wait_longer(timeout=None):
        clock.now += seconds
        return wait(timeout)

    monkeypatch.setattr(final.executor, "wait", wait_longer)
    fit_all_rows(final, final.state.trials[:2], None, [])
    assert [request.trial for request in final.executor.requests] == [0, 1] * runs


@pytest.mark.parametrize(("workers", "beside"), [(2, 0), (3, 1)])
def test_jobs_that_can_be_left_out_do_not_delay_training(search, tmp_path, workers, beside):
    final = search(replace(GROWS, folds=3))
    final.executor.workers = workers
    trial, path = final.state.trials[2], tmp_path / "predictions"
    job = (final.request(PredictTestRows, trial, model=tmp_path, predictions=path), path)
    fit_all_rows(final, final.state.trials[:2], None, [job])
    assert [request.trial for request in final.executor.requests].count(trial.number) == beside


def test_training_run_that_does_not_end_in_time_leaves_time_for_testing_the_first_one(search):
    final = search(replace(GROWS, folds=3))
    fit_all_rows(final, final.state.trials[:2], None, [])
    first, *_, last = final.executor.requests
    assert final.executor.requests.index(last) == 5
    assert last.deadline == first.deadline < final.budget.deadline - final.closing_seconds(final.state.trials[:2], 1)


def test_winner_and_plain_head_predict_the_test_rows_in_turn(search):
    """If the time ends, both have been tested with as many models."""
    final = search(replace(GROWS, folds=3))
    models = {number: [final.directory.final_model(number, run) for run in range(2)] for number in (0, 1)}
    average = final.directory.averaged_model(1, 2)
    contest = Contest(final.state.trials[1], final.state.trials[0], models, {1: average})
    _predict_test_rows(final, contest, EnsembleChoice([], None), {}, saved=False)
    order = [average, models[0][0], models[1][0], models[0][1], models[1][1]]
    assert [request.model for request in final.executor.requests] == order


def test_only_training_runs_on_all_rows_are_averaged(search):
    final = search(replace(GROWS, folds=3), seconds=None)
    one, two = ([final.directory.final_model(trial, run) for run in range(trial + 1)] for trial in (0, 1))
    average_models(final, {0: one, 1: two})
    (request,) = final.executor.requests
    assert request.trial == 1 and list(request.models) == two


@pytest.mark.parametrize(("last", "sentence"), [(0.95, "Done."), (None, "Done. TF-IDF with")])
def test_tfidf_is_compared_with_the_last_training(search, last, sentence):
    """Issue: TF-IDF learns from all rows, and was compared with candidates that learned from a sample."""
    final = search()
    targets = final.validation_targets
    right = np.where(np.arange(len(targets)) % 10 > 0, targets, 1 - targets)  # 0.9, where candidates have up to 0.8
    path = final.directory.reference_predictions(TFIDF)
    write_arrays(path, rows=np.arange(len(targets)), outputs=np.eye(2, dtype=np.float32)[right])
    assert math.isclose(np.mean(right == targets), 0.9, abs_tol=0.02)
    winner = final.state.trials[1]
    scores = FinalistScores({} if last is None else {winner.number: [last]})
    verdict = with_notes(final, Verdict("winner", "gain", "Done."), Contest(winner, None, {}), scores)
    assert verdict.sentence.startswith(sentence) and verdict.sentence.count("TF-IDF") == (last is None)


@pytest.mark.parametrize(
    ("epochs", "claim", "note"),
    [
        (2.0, "gain", " The plain head had time for 2 of its usual 10 epochs; a longer search is a fairer test."),
        (2.0, "no gain", ""),
        (8.0, "gain", ""),
    ],
)
def test_gain_over_a_plain_head_with_few_epochs_says_so(search, epochs, claim, note):
    final = search(replace(GROWS, folds=3))
    assert not final.by_rows
    plain = final.state.trials[0]
    plain = replace(plain, spec_data=replace(plain.spec, recipe=Recipe(epochs=epochs)).to_dict())
    contest = Contest(final.state.trials[1], plain, {})
    verdict = with_notes(final, Verdict("winner", claim, "Done."), contest, FinalistScores({}))
    assert verdict.sentence == f"Done.{note}"
