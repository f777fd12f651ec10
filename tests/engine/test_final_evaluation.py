"""The final evaluation: finalists, delivery, calibration, costs, and a verdict that says what the interval says."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from searches import QUICK, make_task, run_search
from study_toys import LADDER, open_study

import headhunt
from headhunt.data.columns import Columns
from headhunt.engine import final_test, selection, time_estimates
from headhunt.engine.final_evaluation import FinalEvaluation
from headhunt.engine.final_test import _compare, _deliver
from headhunt.engine.last_training import Contest
from headhunt.engine.notes import with_notes
from headhunt.engine.selection import (
    EnsembleChoice,
    FinalistScores,
    choose_winner,
    evaluate_finalists,
    prefer_plain,
    seconds_to_reserve,
)
from headhunt.engine.test_scores import score_test_rows
from headhunt.engine.verdict import add_ensemble, conclude
from headhunt.errors import HeadhuntError
from headhunt.evaluation import Comparison, Score
from headhunt.predictor import Predictor
from headhunt.run.directory import MODEL_INFO, RunDirectory, read_test_predictions, write_arrays
from headhunt.run.events import ModelSaved, TrialAdded, TrialFinished, TrialStarted
from headhunt.run.plan import Plan
from headhunt.run.results import TestResult, Verdict
from headhunt.run.state import Outcome
from headhunt.run.task import TaskInfo, open_task, save_task
from headhunt.spec import FEW_ROWS, Head, Recipe, Space, Spec, solved
from headhunt.study.budget import TimeBudget
from headhunt.study.candidates import Candidates
from headhunt.study.requests import PredictTestRows, PredictTestRowsByFold

pytestmark = pytest.mark.usefixtures("own_cache")

TESTED = TestResult(1000, {"winner": {"accuracy": Score(0.76, 0.7, 0.8)}, "plain": {"accuracy": Score(0.71, 0.6, 0.8)}})


def sentence(gain: float, low: float, high: float, training_runs: int = 4) -> str:
    return conclude("accuracy", TESTED, Comparison(gain, low, high, 0.004, 0.0, training_runs), "winner").sentence


def test_verdict_sentence_follows_the_interval():
    assert sentence(0.05, 0.02, 0.08).startswith("A reliable gain: the winner reaches 76.0 % where the plain head")
    assert "+5.0 points (95 % interval +2.0 to +8.0 points, p = 0.004)" in sentence(0.05, 0.02, 0.08)
    unproven = sentence(0.05, -0.01, 0.11)
    assert unproven.startswith("No reliable gain: the winner reaches 76.0 % where the plain head reaches 71.0 %")
    assert unproven.endswith(
        "which includes zero. It is delivered because it is better than the plain head on validation rows."
    )
    comparison = Comparison(0.05, -0.01, 0.11, 0.1, 0.0, 4)
    few_rows = conclude("accuracy", TESTED, comparison, "winner", few_rows=True).sentence
    assert few_rows.endswith("It is delivered because it is the best known recipe for so few rows.")
    assert sentence(0.05, 0.02, 0.08, training_runs=1).startswith("Not sure: the winner reaches 76.0 %")


def test_verdict_says_that_a_winner_was_not_tested():
    plain = replace(TESTED, scores={"plain": TESTED.scores["plain"]})
    untested = conclude("accuracy", plain, None, "winner", has_winner=True).sentence
    assert untested.startswith("The winner was not tested in time. The plain head reaches 71.0 % on 1,000 test rows.")
    untrained = conclude("accuracy", plain, None, "plain", has_winner=True).sentence
    assert untrained.startswith("The winner could not be trained on all rows in time.")


def test_verdict_says_that_an_interval_is_below_zero():
    assert "-6.0 to -2.0 points, which is below zero." in sentence(-0.04, -0.06, -0.02)


def test_verdict_sentence_without_comparison():
    assert conclude("accuracy", None, None, "winner").sentence.startswith("Not tested")
    plain = TestResult(9, {"plain": {"accuracy": Score(0.5, 0.4, 0.6)}})
    untrained = conclude("accuracy", plain, None, "plain").sentence
    assert untrained.startswith("No other candidate has a stable result. The plain head reaches 50.0 %")
    untested = conclude("accuracy", plain, None, "plain", has_winner=True).sentence
    assert untested.startswith("The winner could not be trained on all rows in time. The plain head reaches 50.0 %")
    ready = replace(plain, scores={"winner": plain.scores["plain"]})
    early = conclude("accuracy", ready, None, "best so far").sentence
    assert early.startswith("The model that was ready in time reaches 50.0 %")


def test_verdict_stores_the_comparison():
    verdict = conclude("accuracy", TESTED, Comparison(0.05, 0.02, 0.08, 0.004, 0.01, 4), "winner")
    assert (verdict.claim, verdict.gain, verdict.p_value, verdict.training_runs) == ("gain", 0.05, 0.004, 4)


def test_delivered_model_has_the_best_validation_score(tmp_path, encoders):
    search = run_search(tmp_path, encoders(), trials=6)
    result = search.result
    info = json.loads((tmp_path / "run" / "model" / "headhunt.json").read_text())
    assert result.verdict.claim in ("gain", "no gain")
    scores = {finalist.trial: np.mean(finalist.scores) for finalist in result.finalists}
    plain_is_better = scores[result.plain.trial] > scores[result.winner.trial]
    assert result.verdict.delivered == ("plain" if plain_is_better else "winner")
    assert info["trial"] == (result.plain if plain_is_better else result.winner).trial
    confusion = result.test.confusion
    assert result.test.temperature > 0 and sum(map(sum, confusion["plain"])) == result.test.rows
    wrong = sum(map(sum, confusion["winner"])) - sum(row[i] for i, row in enumerate(confusion["winner"]))
    assert len(result.test.mistakes) == min(10, wrong)


PAIR = Columns("first", "second", "label")


class FakeWorkers:
    """Workers that respond as told, by trial and attempt, and write perfect predictions."""

    workers = 1
    threads_alone = None

    def __init__(self, outcomes: dict[tuple[int, int], str]) -> None:
        self.queue, self.outcomes, self.evaluated = [], outcomes, []
        self.targets = np.arange(0)

    def submit(self, request):
        self.queue.append(request)

    def wait(self, timeout=None):
        request = self.queue.pop(0)
        self.evaluated.append((request.trial, request.attempt))
        outcome = self.outcomes.get((request.trial, request.attempt), "ok")
        if outcome == "ok":
            rows = np.arange(len(self.targets))
            write_arrays(request.predictions, rows=rows, outputs=np.eye(2, dtype=np.float32)[self.targets])
        return [(request, Outcome(outcome, 1.0 if outcome == "ok" else None))]

    def stop(self):
        raise AssertionError("all have responded")


@pytest.fixture
def finalists(tmp_path, monkeypatch):
    """Return a function that makes a final evaluation of the plain head, trial 0, and two finalists, 1 and 2."""
    studies = []

    def make(workers: FakeWorkers, budget: TimeBudget) -> FinalEvaluation:
        task, directory = make_task(), RunDirectory(tmp_path)
        save_task(task, directory.task)
        study = open_study(tmp_path, executor=workers, budget=budget, ladder=LADDER)
        studies.append(study)
        for number, (pooling, score) in enumerate((("cls", 0.6), ("mean", 0.8), ("max", 0.7))):
            spec = Spec(encoder="toy", head=Head(pooling=pooling))
            add_result(study, number, spec, "random" if number else "plain", LADDER.top, score)
        final = FinalEvaluation(directory, TaskInfo.of(task), "accuracy", study)
        workers.targets = final.validation_targets
        return final

    def all_but_plain(final, leaderboard):
        return [trial for trial in leaderboard if not trial.is_plain]

    monkeypatch.setattr(selection, "close_to_best", all_but_plain)
    yield make
    for study in studies:
        study.ledger.close()


def add_result(study, number: int, spec: Spec, origin: str, rung: int, score: float, std_error: float = 0.0) -> None:
    """Record a trial with one result."""
    study.ledger.append(TrialAdded(number, spec.to_dict(), spec.hash, None, origin, rung))
    study.ledger.append(TrialStarted(number, rung, 0))
    study.ledger.append(TrialFinished(number, rung, "ok", score, 1.0, 10, {"std_error": std_error}))


def test_finalist_that_collapses_with_another_seed_is_dropped(finalists):
    """And one whose worker died runs once more."""
    workers = FakeWorkers({(1, 0): "collapsed", (2, 0): "lost"})
    final = finalists(workers, TimeBudget(600))
    plain, _, second = final.state.trials
    scores = evaluate_finalists(final, plain)
    assert scores.by_trial == {2: [0.7, 1.0, 1.0], 0: [0.6, 1.0, 1.0]}
    assert scores.collapsed == {1} and choose_winner(final, scores) is second
    assert workers.evaluated == [(1, 0), (2, 0), (0, 0), (2, 1), (2, 0), (0, 0), (2, 1)]


def test_finalists_are_evaluated_with_other_seeds_without_a_time_limit(finalists):
    """Issue: without a time limit finalists were never evaluated with other seeds."""
    final = finalists(FakeWorkers({}), TimeBudget(None))
    scores = evaluate_finalists(final, final.state.plain)
    assert scores.by_trial == {1: [0.8, 1.0, 1.0], 2: [0.7, 1.0, 1.0], 0: [0.6, 1.0, 1.0]}


def test_best_other_trial_wins_if_every_finalist_collapses(finalists):
    final = finalists(FakeWorkers({}), TimeBudget(None))
    _, first, second = final.state.trials
    assert choose_winner(final, FinalistScores({0: [0.6]}, collapsed={1})) is second
    assert choose_winner(final, FinalistScores({0: [0.6], 1: [0.1]}, collapsed={2})) is first


def test_winner_that_the_plain_head_beats_has_a_score(finalists):
    """Issue: without one, it was delivered, and said to be better on validation rows."""
    final, scores = finalists(FakeWorkers({}), TimeBudget(None)), FinalistScores({0: [0.9]})
    winner = choose_winner(final, scores)
    assert winner.number == 1 and scores.mean(winner) == 0.8 < scores.mean(final.state.plain)


def test_candidate_that_cannot_be_trained_in_time_wins_only_without_another(finalists, monkeypatch):
    """Issue: a candidate of a larger encoder, found late, won, and could not be trained: there was no verdict."""
    final = finalists(FakeWorkers({}), TimeBudget(60))
    _, first, second = final.state.trials
    scores = FinalistScores({1: [0.8], 2: [0.7]})
    seconds = {0: 5.0, 1: 100.0, 2: 10.0}
    monkeypatch.setattr(FinalEvaluation, "training_seconds", lambda self, trial: seconds[trial.number])
    assert not final.has_time_for(first) and final.has_time_for(second)
    assert choose_winner(final, scores) is second
    seconds[2] = 100.0
    assert choose_winner(final, scores) is first
    seconds[1] = 30.0
    assert choose_winner(final, scores) is first
    seconds |= {1: 100.0, 2: 10.0}
    final.study.ledger.append(ModelSaved(1, "000001-1"))  # what is on disk can be delivered
    assert choose_winner(final, scores) is first


def test_finalists_are_not_evaluated_again_without_time(finalists):
    workers = FakeWorkers({})
    final = finalists(workers, TimeBudget(0.01))
    assert evaluate_finalists(final, final.state.plain).by_trial == {1: [0.8], 2: [0.7], 0: [0.6]}
    assert not workers.evaluated


def predict(final: FinalEvaluation, number: int, rows: int, correct: Sequence[int]) -> None:
    """Store predictions of the first rows by a trial, of which so many of each third are correct."""
    trial, targets = final.state.trials[number], final.validation_targets[:rows]
    outputs = np.eye(2)[1 - targets]
    third = len(final.validation_targets) // 3
    for start, count in zip(range(0, rows, third), correct, strict=True):
        outputs[start : start + count] = np.eye(2)[targets[start : start + count]]
    path = final.directory.predictions(number, trial.best[0])
    write_arrays(path, rows=np.arange(rows), outputs=outputs)


@pytest.mark.parametrize(("correct", "winner"), [(4, 1), (5, 1), (6, 3)])
def test_trial_with_fewer_folds_wins_if_it_is_better_on_the_same_rows(finalists, correct, winner):
    """Not by its lower bound: the first fold may be easier than the others."""
    final = finalists(FakeWorkers({}), TimeBudget(None))
    spec = Spec(encoder="toy", head=Head(pooling="attention"))
    add_result(final.study, 3, spec, "random", LADDER.top - 1, 0.95, 0.01)
    third = len(final.validation_targets) // 3
    predict(final, 1, 3 * third, (5, 1, 1))
    predict(final, 3, third, (correct,))
    assert choose_winner(final, FinalistScores({1: [0.8], 2: [0.7]})).number == winner


def test_trial_with_fewer_folds_wins_although_the_plain_head_is_better(finalists):
    final = finalists(FakeWorkers({}), TimeBudget(None))
    add_result(final.study, 3, Spec(encoder="toy", recipe=Recipe(learning_rate=3e-4)), "plain", LADDER.top, 0.99)
    spec = Spec(encoder="toy", head=Head(pooling="attention"))
    add_result(final.study, 4, spec, "random", LADDER.top - 1, 0.95, 0.01)
    third = len(final.validation_targets) // 3
    predict(final, 1, 3 * third, (5, 1, 1))
    predict(final, 4, third, (6,))
    scores = FinalistScores({3: [0.99], 1: [0.8]})
    winner = choose_winner(final, scores)
    assert winner.number == 4
    predict(final, 3, 3 * third, (7, 0, 0))
    assert prefer_plain(final, scores, winner, final.state.plain)
    predict(final, 3, 3 * third, (5, 9, 9))  # better, but not on the rows that both have predicted
    assert not prefer_plain(final, scores, winner, final.state.plain)
    assert prefer_plain(final, scores, final.state.trials[1], final.state.plain)


@pytest.mark.parametrize(("correct", "better"), [(4, False), (6, True)])
def test_plain_head_is_preferred_if_it_is_better_on_the_only_fold_of_both(finalists, correct, better):
    """Issue: with one fold each they were not compared, and the winner was always delivered."""
    final = finalists(FakeWorkers({}), TimeBudget(None))
    third = len(final.validation_targets) // 3
    for number, origin, right in ((3, "plain", correct), (4, "random", 5)):
        spec = Spec(encoder="toy", head=Head(pooling="attention"), recipe=Recipe(learning_rate=1e-4 * number))
        add_result(final.study, number, spec, origin, LADDER.top - 1, 0.5)
        predict(final, number, third, (right,))
    plain, winner = final.state.trials[3:5]
    assert prefer_plain(final, FinalistScores({4: [0.5]}), winner, plain) == better


@pytest.mark.parametrize(("correct", "winner"), [(3, 3), (4, 3), (7, 1)])
def test_known_recipe_for_few_rows_wins_unless_another_is_clearly_better(finalists, correct, winner):
    """Issue: of a dozen candidates with 9 validation rows each, the luckiest one won."""
    final = finalists(FakeWorkers({}), TimeBudget(None))
    third = len(final.validation_targets) // 3
    spec = Spec(encoder="toy", head=Head(pooling="mean"), recipe=Recipe(contrastive=1.0, head_init="solved"))
    add_result(final.study, 3, spec, "known", LADDER.top - 1, 0.5)
    scores = FinalistScores({0: [0.9], 1: [0.8]})
    assert choose_winner(final, scores).number == 1  # without predictions there is nothing to compare
    predict(final, 3, third, (3,))
    for number in (0, 1):
        predict(final, number, 3 * third, (correct, 7, 7))
    assert choose_winner(final, scores).number == winner
    assert prefer_plain(final, scores, final.state.trials[3], final.state.plain) == (winner != 3)
    final.task = replace(final.task, rows={**final.task.rows, "train": FEW_ROWS + 1}, columns=PAIR)
    assert choose_winner(final, scores).number == 1


@pytest.mark.parametrize(
    ("correct", "changes", "winner"),
    [
        (5, {}, 4),  # the better one of the first two recipes, not the third
        (12, {}, 4),  # a little better than that
        (19, {}, 1),  # significantly better
        (12, {"columns": PAIR}, 1),
        (12, {"labels": tuple(map(str, range(21)))}, 1),
    ],
)
def test_first_known_recipes_win_unless_another_is_significantly_better(finalists, correct, changes, winner):
    """Issue: of several candidates with nearly equal scores, the luckiest one won."""
    final = finalists(FakeWorkers({}), TimeBudget(None))
    final.study.candidates = Candidates(Space.load("default"), encoder="toy", rows=FEW_ROWS + 1)
    other = Spec(encoder="toy", head=Head(pooling="mean_max"), recipe=Recipe(standardize=True))
    for number, spec in enumerate((*final.study.candidates.first_recipes(), other), 3):
        add_result(final.study, number, spec, "known", LADDER.top, 0.5)
    rows = len(final.validation_targets) // 3 * 3
    for number, counts in ((0, 1), (1, correct), (3, 10), (4, 11), (5, 12)):
        predict(final, number, rows, (counts, 11, 11))
    final.task = replace(final.task, **{"rows": {**final.task.rows, "train": FEW_ROWS + 1}, **changes})
    chosen = choose_winner(final, scores := FinalistScores({0: [0.1], 1: [0.8], 2: [0.7]}))
    assert chosen.number == winner
    verdict = with_notes(final, Verdict("winner", "no gain", "Done."), Contest(chosen, None, {}), scores)
    assert ("Candidate #1 scores" in verdict.sentence) == (correct == 12 and not changes)


def test_first_known_recipes_of_another_encoder_are_not_preferred(finalists):
    """Issue: an encoder that was trained further had to be significantly better than the one it was made from."""
    final = finalists(FakeWorkers({}), TimeBudget(None))
    final.study.candidates = Candidates(Space.load("default"), encoder="toy", rows=FEW_ROWS + 1)
    recipe = final.study.candidates.first_recipes()[0]
    rows = len(final.validation_targets) // 3 * 3
    for number, encoder, counts in ((3, "toy", 10), (4, "other", 12)):
        add_result(final.study, number, replace(recipe, encoder=encoder), "known", LADDER.top, 0.5)
        predict(final, number, rows, (counts, 11, 11))
    predict(final, 1, rows, (11, 11, 11))
    final.task = replace(final.task, rows={**final.task.rows, "train": FEW_ROWS + 1})
    scores = FinalistScores({1: [0.8]})
    assert choose_winner(final, scores).number == 3
    final.study.candidates.encoder = "third"
    assert choose_winner(final, scores).number == 1


def test_ensemble_is_compared_with_the_best_single_candidate():
    """Issue: the winner is not always the one with the best score, and a worse ensemble could be delivered."""
    assert FinalistScores({0: [0.5], 1: [0.8, 0.4], 2: [0.7, 0.9]}).best == 0.8
    assert FinalistScores({}).best is None


def test_verdict_says_that_the_delivered_model_is_not_calibrated(finalists):
    """Issue: a model that was delivered before its evaluation answered every text, without a word."""
    final = finalists(FakeWorkers({}), TimeBudget(None))
    final.study.ledger.append(ModelSaved(1, "000001-1"))
    contest, scores, verdict = Contest(None, None, {}), FinalistScores({}), Verdict("best so far", "untested", "Done.")
    assert with_notes(final, verdict, contest, scores).sentence == "Done."
    final.calibrate = True
    assert "is not calibrated" in with_notes(final, verdict, contest, scores).sentence
    third = len(final.validation_targets) // 3
    predict(final, 1, third, (1,))
    assert with_notes(final, verdict, contest, scores).sentence == "Done."


def test_less_time_is_reserved_on_few_rows(finalists):
    """Issue: the reserve of a search of a minute stopped the first candidate that trains the encoder."""
    workers = FakeWorkers({})
    workers.workers = 2
    final = finalists(workers, TimeBudget(None))
    plan = Plan(72, 72, 72, 72, 72, 72, 500, 2.0, 3, rows_per_second=50.0, examples_per_second=15.0)
    few, more = (
        replace(final, plan=plan, task=replace(final.task, rows={**final.task.rows, "train": rows}))
        for rows in (FEW_ROWS, FEW_ROWS + 1)
    )
    assert few.few_rows and not more.few_rows
    assert 10.0 < few.minimum_seconds(final.state.plain) < 0.8 * more.minimum_seconds(final.state.plain)


def test_reserve_has_time_for_the_recipe_that_is_preferred(finalists):
    """Issue: where a solved head led, the preferred recipe was left out, because there was no time left to train it."""
    final = finalists(FakeWorkers({}), TimeBudget(600.0))
    final.study.candidates = Candidates(Space.load("default"), encoder="toy", rows=FEW_ROWS + 1)
    recipe = final.study.candidates.first_recipes()[0]
    add_result(final.study, 3, solved("toy"), "solved", LADDER.top, 0.9)
    add_result(final.study, 4, recipe, "known", LADDER.top, 0.8)
    trial = final.state.trials[4]
    trial.results[LADDER.top] = replace(trial.results[LADDER.top], seconds=100.0)
    final.task = replace(final.task, rows={**final.task.rows, "train": FEW_ROWS + 1})
    leader = final.state.trials[3]
    assert seconds_to_reserve(final, leader) == final.minimum_seconds(trial) > final.minimum_seconds(leader) + 50
    final.task = replace(final.task, columns=PAIR)
    assert seconds_to_reserve(final, leader) == final.minimum_seconds(leader)


def test_reserve_counts_a_plain_head_that_is_the_best_once(finalists):
    final = finalists(FakeWorkers({}), TimeBudget(150.0))  # too short for several training runs
    plain, other = final.state.trials[:2]
    final.state.trials[0].results[LADDER.top] = replace(plain.results[LADDER.top], seconds=100.0)
    final.state.trials[1].results[LADDER.top] = replace(other.results[LADDER.top], seconds=100.0)
    assert final.minimum_seconds(plain) < final.minimum_seconds(other)


@pytest.mark.parametrize(("seconds", "averages"), [(300.0, False), (3000.0, True)])
def test_reserve_has_time_for_averaging_only_if_there_are_several_training_runs(
    finalists, seconds, averages, monkeypatch
):
    final = finalists(FakeWorkers({}), TimeBudget(seconds))
    for trial in final.state.trials:
        trial.results[LADDER.top] = replace(trial.results[LADDER.top], seconds=100.0)
    best = final.state.trials[1]
    needed = final.minimum_seconds(best)
    monkeypatch.setattr(time_estimates, "AVERAGING_SECONDS", time_estimates.AVERAGING_SECONDS + 10)
    assert final.minimum_seconds(best) == pytest.approx(needed + (11 if averages else 0))


@pytest.mark.parametrize(("total", "runs"), [(300.0, 1), (400.0, 2), (700.0, 3)])
def test_reserve_has_time_for_the_tests_of_all_training_runs(finalists, total, runs):
    final = finalists(FakeWorkers({}), TimeBudget(total))
    for trial in final.state.trials:
        trial.results[LADDER.top] = replace(trial.results[LADDER.top], seconds=100.0)
    pair = final.state.trials[1], final.state.plain
    run = sum(map(final.training_seconds, pair)) / final.workers
    needed = runs * run + final.closing_seconds(pair, runs)
    assert needed < final.minimum_seconds(pair[0]) < 1.3 * needed + 10
    assert runs == 1 or final.minimum_seconds(final.state.plain) < needed  # no candidate is better: search on
    assert final.closing_seconds(pair, 2) > final.averaging_seconds(pair, 2) + 3 * final.prediction_seconds(pair[0])


def test_averaging_takes_longer_with_larger_models_and_more_of_them(finalists):
    final = finalists(FakeWorkers({}), TimeBudget(300.0))
    pair = final.state.trials[1], final.state.plain
    small = final.averaging_seconds(pair, 2)
    assert final.averaging_seconds(pair, 3) > small > final.averaging_seconds([], 2)
    final.directory.model.mkdir(parents=True)
    (final.directory.model / MODEL_INFO).write_text("{}")
    with (final.directory.model / "weights").open("wb") as weights:
        weights.truncate(1 << 30)  # a sparse file
    assert final.averaging_seconds(pair, 2) > small + 30


def test_plain_head_with_any_recipe_is_no_winner(finalists):
    final = finalists(FakeWorkers({}), TimeBudget(None))
    spec = Spec(encoder="toy", recipe=Recipe(learning_rate=3e-4))
    add_result(final.study, 3, spec, "plain", LADDER.top, 0.99)
    assert final.state.plain.number == 3
    assert choose_winner(final, evaluate_finalists(final, final.state.plain)).number == 1


# --- delivery


def compared(low: float) -> Comparison:
    return Comparison(0.05, low, 0.1, 0.01, 0.0, 4)


@pytest.mark.parametrize(
    ("deliver", "plain_score", "comparison", "delivered"),
    [
        ("best", 0.6, compared(-0.1), "winner"),
        ("best", 0.6, None, "winner"),
        ("best", 0.9, compared(-0.1), "plain"),
        ("best", 0.9, compared(0.01), "plain"),
        ("plain-unless-proven", 0.6, compared(-0.1), "plain"),
        ("plain-unless-proven", 0.6, None, "plain"),
        ("plain-unless-proven", 0.9, compared(0.01), "winner"),
    ],
)
def test_delivered_model_follows_from_validation_scores_or_the_setting(
    finalists, deliver, plain_score, comparison, delivered
):
    """The test rows decide what is delivered only if the settings say so."""
    final = replace(finalists(FakeWorkers({}), TimeBudget(None)), deliver=deliver)
    plain, winner, _ = final.state.trials
    models = {trial.number: [final.directory.final_model(trial.number, 0)] for trial in (plain, winner)}
    for number, (folder,) in models.items():
        folder.mkdir(parents=True)
        (folder / "trial").write_text(str(number))
    scores = FinalistScores({winner.number: [0.8], plain.number: [plain_score]})
    name, source = _deliver(final, Contest(winner, plain, models), comparison, scores)
    trial = winner if delivered == "winner" else plain
    assert (name, source) == (delivered, models[trial.number][0])
    assert (final.directory.model / "trial").read_text() == str(trial.number)


@pytest.mark.parametrize(
    ("score", "plain_score", "delivered"), [(0.9, 0.6, "ensemble"), (0.9, 0.95, "plain"), (None, 0.6, "winner")]
)
def test_ensemble_is_delivered_if_it_is_better_than_both(finalists, score, plain_score, delivered):
    final = replace(finalists(FakeWorkers({}), TimeBudget(None)), deliver="ensemble")
    plain, winner, _ = final.state.trials
    models = {trial.number: [final.directory.final_model(trial.number, 0)] for trial in (plain, winner)}
    folders = {"plain": models[plain.number][0], "winner": models[winner.number][0]}
    folders["ensemble"] = final.directory.ensemble
    for name, folder in folders.items():
        folder.mkdir(parents=True)
        (folder / "name").write_text(name)
    scores = FinalistScores({winner.number: [0.8], plain.number: [plain_score]})
    ensemble = None if score is None else EnsembleChoice([winner], score)
    assert _deliver(final, Contest(winner, plain, models), None, scores, ensemble) == (delivered, folders[delivered])
    assert (final.directory.model / "name").read_text() == delivered


def test_ensemble_is_compared_with_the_seed_of_its_members():
    """Issue: the mean over seeds of one candidate was compared with its score of one seed."""
    scores = FinalistScores({1: [0.90, 0.88, 0.87]})
    trial = SimpleNamespace(number=1)
    assert scores.first(trial) == 0.90 and not EnsembleChoice([], 0.90).better_than(scores.first(trial))
    assert scores.first(None) is None and scores.mean(trial) == pytest.approx(0.8833, abs=1e-4)


def test_verdict_says_whether_and_why_the_ensemble_is_delivered():
    verdict = Verdict("ensemble", "no gain", "No reliable gain.")
    tested = TestResult(50, {"ensemble": {"accuracy": Score(0.85, 0.8, 0.9)}})
    words = add_ensemble(verdict, "accuracy", tested, (0.8, 0.9), 3, None).sentence
    assert words == (
        "No reliable gain. The ensemble of three candidates is delivered: it has 90.0 % on validation rows, where the "
        "best candidate has 80.0 %; it reaches 85.0 % on the test rows."
    )
    kept = replace(verdict, delivered="winner")
    assert add_ensemble(kept, "accuracy", tested, (0.8, 0.9), 3, "it has 9 MB").sentence.endswith("it has 9 MB.")
    assert "none is better" in add_ensemble(kept, "accuracy", None, (0.8, None), 0, None).sentence


def test_average_of_training_runs_is_delivered_and_tested(finalists):
    final = finalists(FakeWorkers({}), TimeBudget(None))
    _, winner, _ = final.state.trials
    folders = [final.directory.final_model(1, 0), final.directory.final_model(1, 1)]
    average = final.directory.averaged_model(1, 2)
    for folder in (*folders, average):
        folder.mkdir(parents=True)
        (folder / "name").write_text(folder.name)
    contest = Contest(winner, None, {1: folders}, {1: average})
    assert _deliver(final, contest, None, FinalistScores({1: [0.8]})) == ("winner", average)
    assert (final.directory.model / "name").read_text() == average.name
    targets = final.test.targets
    right, wrong = (np.eye(2)[labels][None] for labels in (targets, 1 - targets))
    outputs = {average.name: right, folders[0].name: wrong, folders[1].name: wrong}
    result = score_test_rows(final, contest, EnsembleChoice([], None), outputs, outputs, average)
    assert result.scores["winner"]["accuracy"].value == 1.0


def test_average_without_test_predictions_is_not_delivered(finalists):
    """Its score would be that of another model."""
    final = finalists(FakeWorkers({}), TimeBudget(None))
    _, winner, _ = final.state.trials
    single, average = final.directory.final_model(1, 0), final.directory.averaged_model(1, 2)
    contest = Contest(winner, None, {1: [single]}, {1: average})
    assert contest.without_untested({single.name}, None).candidates_of(winner) == [single]
    assert contest.without_untested({average.name}, None).candidates_of(winner) == [average, single]


def test_model_without_test_predictions_is_not_delivered_if_the_best_one_of_the_search_has_them(finalists):
    final = finalists(FakeWorkers({}), TimeBudget(None))
    _, winner, _ = final.state.trials
    first, second = final.directory.final_model(1, 0), final.directory.final_model(1, 1)
    best = final.directory.trial_model(2, 0)
    contest = Contest(winner, None, {1: [first, second]})
    assert contest.without_untested({second.name, best.name}, best).models_of(winner) == [second]
    assert contest.without_untested({best.name}, best).models_of(winner) == []
    assert contest.without_untested(set(), best).models_of(winner) == [first, second]  # better untested than none


def test_search_ends_tested_if_there_is_no_time_to_test_the_last_training_runs(tmp_path, encoders, monkeypatch):
    run = FinalEvaluation.run

    def run_late(self, requests, deadline, finishing=0.0):
        late = [each for each in requests if isinstance(each, PredictTestRows | PredictTestRowsByFold)]
        return run(self, [each for each in requests if each not in late], deadline, finishing)

    def choose_trained(final, scores):
        return next(trial for trial in final.fully_evaluated() if not trial.is_plain and not trial.is_solved)

    monkeypatch.setattr(FinalEvaluation, "run", run_late)
    monkeypatch.setattr(final_test, "choose_winner", choose_trained)
    done = run_search(tmp_path, encoders(), trials=6)
    result, directory = done.result, RunDirectory(done.run_dir)
    assert result.verdict.delivered == "best so far" and result.test is not None
    tested = read_test_predictions(directory.test_predictions(result.model_from))[0]
    test = open_task(directory.task, ("test",)).splits["test"]
    assert result.test.scores["winner"]["accuracy"].value == (tested.argmax(1) == test.targets).mean()
    np.testing.assert_allclose(done.load().outputs(test.texts()), tested, atol=1e-5)


@pytest.mark.parametrize(("folds", "rows", "seconds"), [(3, FEW_ROWS + 1, 4.0), (3, FEW_ROWS, 6.0), (1, FEW_ROWS, 6.0)])
def test_prediction_takes_as_long_as_the_encoder_reads_the_rows(finalists, folds, rows, seconds):
    """Heads on a frozen encoder are trained from stored activations, in next to no time."""
    final = finalists(FakeWorkers({}), TimeBudget(None))
    final.task = replace(final.task, rows={**final.task.rows, "train": rows})
    trial = final.state.trials[1]
    quick = final.prediction_seconds(trial)
    plan = Plan(
        72, 72, 72, 72, 72, 72, 10, 2.0, folds, encoders=("other", "toy"), costs=(1.0, 2.0), rows_per_second=5.0
    )
    final = replace(final, plan=plan)
    assert final.prediction_seconds(trial) == pytest.approx(seconds) and quick < 1.0
    assert final.prediction_seconds(trial, 20) == pytest.approx(2 * seconds - (0 if seconds == 4.0 else 2))
    unknown = replace(final, plan=replace(plan, rows_per_second=0.0))
    assert unknown.prediction_seconds(trial) == pytest.approx(quick * plan.test_rows / final.task.rows["test"])


def test_solved_winner_is_compared_with_every_training_run_of_the_plain_head(finalists):
    """A solved head does not depend on a seed: one model of it is compared with each."""
    final = finalists(FakeWorkers({}), TimeBudget(None))
    spec = solved("toy")
    add_result(final.study, 3, spec, "solved", LADDER.top, 0.9)
    plain, winner = final.state.trials[0], final.state.trials[3]
    models = {0: [final.directory.final_model(0, seed) for seed in range(2)], 3: [final.directory.trial_model(3, 2)]}
    outputs = np.eye(2)[final.test.targets][None]
    predictions = {path.name: outputs for folders in models.values() for path in folders}
    assert _compare(final, Contest(winner, plain, models), predictions).training_runs == 2


def test_search_delivers_plain_head_unless_proven(tmp_path, encoders):
    search = run_search(tmp_path, encoders(), trials=4, deliver="plain-unless-proven")
    assert search.settings.deliver == "plain-unless-proven"
    assert "--deliver plain-unless-proven" in search.settings.command(search.task, "default")
    verdict, info = search.result.verdict, json.loads((search.model_dir / "headhunt.json").read_text())
    assert verdict.claim in ("gain", "no gain")
    assert verdict.delivered == ("winner" if verdict.claim == "gain" else "plain")
    assert info["trial"] == (search.result.winner if verdict.claim == "gain" else search.result.plain).trial


def test_verdict_trains_with_as_many_seeds_as_asked(tmp_path, encoders, monkeypatch):
    """Issue: of twelve training runs two were dropped, and none meant three."""
    monkeypatch.setattr(selection, "SEEDS", ())  # so that there is a winner, whatever other seeds would do

    def best_trained(final, scores):  # a solved head does not depend on the seed
        return next(trial for trial in final.fully_evaluated() if not trial.is_solved and not trial.is_plain)

    monkeypatch.setattr("headhunt.engine.final_test.choose_winner", best_trained)
    search = run_search(tmp_path, encoders(), trials=8)
    models = tmp_path / "run" / "models"
    before = {path.name for path in models.iterdir()}
    again = headhunt.verdict(tmp_path / "run", seeds=11, workers=0, view=False)
    winner, plain = again.result.winner.trial, again.result.plain.trial
    added = {path.name for path in models.iterdir()} - before
    assert {f"{trial:06d}-all-{seed}" for trial in (winner, plain) for seed in range(1, 11)} <= added
    averages = {name for name in added if "average" in name}
    assert averages <= {f"{trial:06d}-average-11" for trial in (winner, plain)}
    delivered = winner if again.result.verdict.delivered == "winner" else plain
    average = f"{delivered:06d}-average-11"
    assert again.result.model_from == (average if average in averages else f"{delivered:06d}-all")
    assert again.result.verdict.training_runs == 11 + 3  # and the three folds
    assert again.result.verdict.training_std_error >= 0 and again.state.ended == search.state.ended
    assert again.result.test_evaluations == 2


@pytest.mark.parametrize("seeds", [0, -3])
def test_verdict_needs_at_least_one_seed(tmp_path, seeds):
    with pytest.raises(HeadhuntError, match="seeds= must be at least 1"):
        headhunt.verdict(tmp_path, seeds=seeds)


def test_calibration_is_in_the_delivered_model(tmp_path, encoders):
    raw = run_search(tmp_path / "a", encoders(), trials=4)
    calibrated = run_search(tmp_path / "b", encoders(), trials=4, calibrate=True)
    folder = tmp_path / "b" / "run" / "model"
    temperature = json.loads((folder / "headhunt.json").read_text())["temperature"]
    texts = ["a good movie", "the plot was awful", "a dog"]
    before = np.log(Predictor.load(tmp_path / "a" / "run" / "model", precision="fp32").outputs(texts))
    after = np.log(Predictor.load(folder, precision="fp32").outputs(texts))
    assert raw.result.verdict.delivered == calibrated.result.verdict.delivered
    assert np.allclose((before[:, 0] - before[:, 1]) / temperature, after[:, 0] - after[:, 1], atol=1e-4)


def test_limit_on_size_holds_for_every_trial(tmp_path, encoders):
    space = Space.from_dict({**QUICK.to_dict(), "head": {"pooling": ["mean", "max"], "mlp": {"width": [8, 2048]}}})
    search = run_search(tmp_path, encoders(), space=space, trials=12, max_size="0.1MB")
    results = [result for trial in search.state.trials for result in trial.results.values()]
    sizes = [result.extra["megabytes"] for result in results if "megabytes" in result.extra]
    assert "limit" in {result.outcome for result in results} and sizes and max(sizes) <= 0.1


def test_search_without_candidate_within_the_limits_delivers_nothing(tmp_path, encoders):
    """Issue: the first model bypassed the limits and was delivered."""
    with pytest.raises(HeadhuntError, match=r"within the limits: the first one takes .* ms are allowed"):
        run_search(tmp_path, encoders(), trials=4, max_latency="0.001ms")
    assert headhunt.Search(tmp_path / "run").model_dir is None


@pytest.mark.parametrize("limit", [-1, 0, "-5ms"])
def test_limits_that_are_not_positive_are_refused(tmp_path, encoders, limit):
    with pytest.raises(HeadhuntError, match="max_latency= must be above 0"):
        run_search(tmp_path, encoders(), max_latency=limit)
    assert not (tmp_path / "run").exists()
