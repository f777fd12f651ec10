"""The first trials of a study: solved heads, which choose the encoder, and the plain head with its recipes."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace

import pytest
from study_toys import LADDER, ShuffledExecutor, VirtualClock, evaluate_toy, leaderboard, open_study, run_study

from headhunt.run.directory import RunDirectory
from headhunt.run.plan import Plan
from headhunt.run.state import Outcome
from headhunt.spec import Log, Space
from headhunt.spec.spec import PLAIN_LEARNING_RATES
from headhunt.study.requests import EvaluateTrial

FOLDS = Plan(
    rows=500, used_rows=500, held_out=500, solved_rows=500, counted_rows=500, test_rows=0, epochs=10.0, folds=3
)
ROWS = Plan(rows=9000, used_rows=3000, held_out=900, solved_rows=2000, counted_rows=2000, test_rows=0, epochs=10.0)
SOLVED_SCORES = {"small": 0.6, "middle": 0.8, "large": 0.7}


def record(requests: list[EvaluateTrial], scores: dict[str, float | None] = SOLVED_SCORES) -> Callable:
    """Return a toy evaluation that records its requests and scores solved heads by their encoder."""

    def evaluate(request: EvaluateTrial) -> Outcome:
        requests.append(request)
        if request.spec.head.words == "alone":
            return Outcome("ok", 0.4, 0.1, 100)
        if request.spec.recipe.solver == "ridge":
            score = scores[request.spec.encoder]
            return Outcome("collapsed") if score is None else Outcome("ok", score, 0.1, 100)
        return evaluate_toy(request)

    return evaluate


def run(folder, requests=None, scores=SOLVED_SCORES, **arguments):
    defaults = {"plan": FOLDS, "solved": True, "encoders": tuple(SOLVED_SCORES), "trials": 20}
    return run_study(folder, record([] if requests is None else requests, scores), **{**defaults, **arguments})


# --- solved heads


@pytest.mark.parametrize("plan", [FOLDS, ROWS])
def test_study_evaluates_solved_heads_before_all_others(tmp_path, plan):
    requests: list[EvaluateTrial] = []
    study = run(tmp_path, requests, plan=plan)
    assert [trial.origin for trial in study.state.trials[:6]] == ["plain", *["solved"] * 3, "words", "plain"]
    assert [request.trial for request in requests[:4]] == [1, 2, 3, 4]
    assert [request.spec.encoder for request in requests[:3]] == ["small", "middle", "large"]
    assert all(request.spec.recipe.solver == "ridge" for request in requests[:4])


@pytest.mark.parametrize("plan", [FOLDS, ROWS])
def test_study_searches_with_the_encoder_of_the_best_solved_head(tmp_path, plan):
    state = run(tmp_path, plan=plan).state
    assert {trial.spec.encoder for trial in state.plain_trials} == {"small"}  # that of the baseline
    assert {trial.spec.encoder for trial in state.trials[6:]} == {"middle"} and len(state.trials) == 20


def test_study_trains_an_encoder_that_costs_more_for_fewer_epochs(tmp_path):
    plan = replace(FOLDS, encoders=tuple(SOLVED_SCORES), costs=(1.0, 4.0, 2.0))
    study = run(tmp_path, plan=plan, space=Space.load("default"))
    tuned = [t.spec.recipe for t in study.state.trials[6:] if t.spec.recipe.freeze != "all"]
    assert {recipe.epochs for recipe in tuned if not isinstance(recipe.freeze, int)} == {2.5}
    assert all(2.5 < recipe.epochs <= 10.0 for recipe in tuned if isinstance(recipe.freeze, int))  # they cost less
    assert {trial.spec.recipe.epochs for trial in study.state.plain_trials} == {10.0}  # of the first encoder


def test_study_keeps_the_first_encoder_if_solved_heads_are_equal_or_fail(tmp_path):
    equal = run(tmp_path / "equal", scores=dict.fromkeys(SOLVED_SCORES, 0.5))
    failed = run(tmp_path / "failed", scores=dict.fromkeys(SOLVED_SCORES))
    for study in (equal, failed):
        assert {trial.spec.encoder for trial in study.state.trials[6:]} == {"small"}
    rest = run(tmp_path / "rest", scores={"small": None, "middle": None, "large": 0.1})
    assert {trial.spec.encoder for trial in rest.state.trials[6:]} == {"large"}


@pytest.mark.parametrize("plan", [FOLDS, ROWS])
def test_study_resumed_at_any_record_uses_the_same_encoder(tmp_path, plan):
    uninterrupted = run(tmp_path / "uninterrupted", plan=plan, trials=9)
    lines = uninterrupted.ledger.directory.ledger.read_bytes().splitlines(keepends=True)
    assert {trial.spec.encoder for trial in uninterrupted.state.trials[6:]} == {"middle"}
    for kept in range(len(lines)):
        folder = tmp_path / f"resumed-{kept}"
        folder.mkdir()
        RunDirectory(folder).ledger.write_bytes(b"".join(lines[:kept]))
        resumed = run(folder, plan=plan, trials=9)
        assert leaderboard(resumed) == leaderboard(uninterrupted)
        assert [trial.hash for trial in resumed.state.trials] == [trial.hash for trial in uninterrupted.state.trials]
        shutil.rmtree(folder)


def test_study_continued_with_more_trials_uses_the_chosen_encoder(tmp_path):
    run(tmp_path, trials=7)
    continued = run(tmp_path, trials=12)
    assert {trial.spec.encoder for trial in continued.state.trials[6:]} == {"middle"}


def test_study_with_one_encoder_has_one_solved_head(tmp_path):
    study = run(tmp_path, encoders=("small",))
    assert [trial.origin for trial in study.state.trials if trial.is_solved] == ["solved", "words"]


def test_study_without_solved_heads_has_none(tmp_path):
    assert not any(trial.is_solved for trial in run(tmp_path, solved=False).state.trials)


# --- the recommended recipe


@pytest.mark.parametrize("rows", [60, 500])
def test_recommended_recipe_is_recorded_once_and_compared_like_others(tmp_path, rows):
    options = {"rows": rows, "space": Space.load("default"), "encoders": ("small",), "trials": 6}
    study = open_study(tmp_path, record([], {"small": 0.6}), plan=FOLDS, solved=True, **options)
    study.begin()
    trial = study.recommended()
    assert (
        trial is study.recommended()
        and trial.origin == "known"
        and [t.number for t in study.state.trials] == [0, 1, 2, 3, 4]
    )
    assert bool(trial.spec.recipe.contrastive) == (rows == 60)
    study.run()
    study.ledger.close()
    assert trial.number in {number for number, _ in study.state.settled}


def test_space_without_known_recipes_recommends_none(tmp_path):
    space = Space("own", {"head": {"pooling": "max"}, "recipe": {"learning_rate": Log(1e-5, 1e-4)}})
    study = open_study(tmp_path, space=space, plan=FOLDS)
    assert study.recommended() is None
    study.ledger.close()
    unknown = open_study(tmp_path / "unknown", known_recipes=False, space=Space.load("default"), plan=FOLDS)
    assert unknown.recommended() is None
    unknown.ledger.close()


def test_trial_whose_predictions_are_lost_is_evaluated_again_and_counts_once(tmp_path):
    requests: list[EvaluateTrial] = []
    study = run(tmp_path, requests, encoders=("small",), trials=6)
    before, number = list(study.state.settled), study.state.settled[-1]
    requests.clear()
    again = open_study(tmp_path, record(requests), plan=FOLDS, solved=True, encoders=("small",), trials=6)
    again.repeat([number, (99, 0)])
    again.run()
    again.ledger.close()
    assert [(request.trial, request.rung) for request in requests] == [number] and again.state.settled == before


# --- the plain head


def score_plain(by_rate: dict[float, float | None]) -> Callable[[EvaluateTrial], Outcome]:
    """Return a toy evaluation with a score by learning rate for the plain head; all others are better."""

    def evaluate(request: EvaluateTrial) -> Outcome:
        if not request.spec.head.plain or request.spec.recipe.learning_rate not in by_rate:
            return Outcome("ok", 0.9 + request.trial / 1000, 1.0, 10)
        score = by_rate[request.spec.recipe.learning_rate]
        return Outcome("collapsed") if score is None else Outcome("ok", score, 1.0, 10)

    return evaluate


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize(("scores", "better"), [((0.3, 0.4), 1), ((0.4, 0.3), 0), ((0.4, 0.4), 0), ((None, 0.1), 1)])
def test_study_promotes_only_the_better_recipe_of_the_plain_head(tmp_path, scores, better, workers):
    evaluate = score_plain(dict(zip(PLAIN_LEARNING_RATES, scores, strict=True)))
    study = run_study(tmp_path, evaluate, plan=FOLDS, executor=ShuffledExecutor(evaluate, workers=workers))
    plain = study.state.plain_trials
    assert [trial.spec.recipe.learning_rate for trial in plain] == list(PLAIN_LEARNING_RATES)
    assert study.state.plain is plain[better] and plain[better].best == (LADDER.top, scores[better])


def test_study_does_not_promote_a_plain_head_that_learned_nothing(tmp_path):
    study = run_study(tmp_path, score_plain(dict.fromkeys(PLAIN_LEARNING_RATES)), plan=FOLDS)
    assert [trial.reached for trial in study.state.plain_trials] == [LADDER.top - 1] * 2


def test_study_on_rows_trains_each_rung_on_more_rows(tmp_path):
    requests: list[EvaluateTrial] = []
    study = run(tmp_path, requests, plan=ROWS)
    assert study.ladder.fractions == (1 / 3, 1.0)
    trained = {(r.rung, r.rows) for r in requests if r.spec.recipe.solver != "ridge"}
    assert trained == {(0, 1000), (1, 3000)}
    assert all(request.resume_from is None for request in requests)


@pytest.mark.parametrize("rungs", [1, 2])
def test_solved_head_does_not_set_the_timeout_of_workers(tmp_path, rungs):
    """Issue: ten times its seconds, or two minutes, were too short for training runs."""
    requests: list[EvaluateTrial] = []
    run(tmp_path, requests, plan=ROWS, rungs=rungs)
    first = next(request for request in requests if request.spec.recipe.solver == "adamw")
    assert first.worker_timeout is None and any(request.worker_timeout for request in requests)


def test_study_does_not_promote_a_plain_head_that_would_not_finish(tmp_path):
    clock = VirtualClock()

    def evaluate(request: EvaluateTrial) -> Outcome:
        seconds = 300 * request.fraction if request.trial < 2 else request.fraction
        clock.now += seconds
        return Outcome("ok", 0.5 + request.trial / 1000, seconds, 10)

    study = run_study(tmp_path, evaluate, plan=FOLDS, time=300, trials=None, clock=clock)
    assert max(trial.reached for trial in study.state.trials if not trial.is_plain) == LADDER.top
    assert [trial.reached for trial in study.state.plain_trials] == [LADDER.top - 1] * 2
