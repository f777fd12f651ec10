"""The first trials of a study: solved heads, which choose the encoder, and the plain head with its recipes."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest
from study_toys import LADDER, ShuffledExecutor, VirtualClock, evaluate_toy, leaderboard, open_study, run_study

from headhunt.run.directory import RunDirectory
from headhunt.run.events import ModelSaved
from headhunt.run.plan import Plan
from headhunt.run.state import Outcome
from headhunt.spec import Space
from headhunt.spec.spec import PLAIN_LEARNING_RATES
from headhunt.study.baselines import Baselines
from headhunt.study.budget import Limits, TimeBudget
from headhunt.study.candidates import Candidates
from headhunt.study.executors import InlineExecutor
from headhunt.study.ladder import Ladder
from headhunt.study.requests import EvaluateTrial, FitAllRows

FOLDS = Plan(
    rows=500,
    compared_rows=500,
    validation_rows=500,
    final_rows=500,
    first_rows=500,
    solved_rows=500,
    test_rows=0,
    epochs=10.0,
    folds=3,
)
ROWS = replace(
    FOLDS,
    rows=9000,
    compared_rows=3000,
    validation_rows=900,
    final_rows=5000,
    first_rows=400,
    solved_rows=2000,
    folds=1,
)
SOLVED_SCORES = {"small": 0.6, "middle": 0.8, "large": 0.7}


def record(requests: list[EvaluateTrial], scores: dict[str, float | None] = SOLVED_SCORES) -> Callable:
    """Return a toy evaluation that records its requests and scores solved heads by their encoder."""

    def evaluate(request: EvaluateTrial) -> Outcome:
        requests.append(request)
        if request.spec.recipe.solver == "ridge":
            score = scores[request.spec.encoder]
            return Outcome("collapsed") if score is None else Outcome("ok", score, 0.1, 100)
        return evaluate_toy(request)

    return evaluate


def run(folder, requests=None, scores=SOLVED_SCORES, **arguments):
    defaults = {"plan": FOLDS, "solved": True, "encoders": tuple(SOLVED_SCORES), "limits": Limits(trials=20)}
    return run_study(folder, record([] if requests is None else requests, scores), **{**defaults, **arguments})


# --- few rows, no time


@pytest.mark.parametrize("workers", [1, 2])
def test_study_without_time_to_compare_ends_with_the_best_known_recipe(tmp_path, workers):
    """It is trained on all rows by the final evaluation. A search that is resumed with more time compares it."""
    requests: list[EvaluateTrial] = []
    short = {
        "plan": replace(FOLDS, rows=60, plain_recipes=1, compares=False, seconds=100.0),
        "rows": 60,
        "space": Space.load("default"),
    }
    executor = ShuffledExecutor(record(requests), workers=workers)
    study = run(tmp_path, limits=Limits(time=100.0), executor=executor, **short)
    assert [trial.origin for trial in study.state.trials] == ["plain", *["solved"] * 3, "known"]
    assert study.state.ended == "time" and {request.trial for request in requests} == {1, 2, 3}
    known = study.state.trials[-1]
    assert known.spec.recipe.contrastive and known.spec.encoder == "middle" and not known.results
    assert (
        len(run(tmp_path, requests, limits=Limits(time=100.0), **short).state.settled) == 3
    )  # no more time than before
    study = run(tmp_path, requests, limits=Limits(trials=7), **short)
    assert {request.trial for request in requests} == set(range(7)) and len(study.state.trials) == 7
    requests.clear()
    run(tmp_path, requests, limits=Limits(time=100.0, trials=8), **short)  # and goes on with that
    assert 7 in {request.trial for request in requests}


def test_study_compares_if_the_space_has_no_recipe_for_few_rows(tmp_path):
    requests: list[EvaluateTrial] = []
    short = replace(FOLDS, rows=60, compares=False, seconds=100.0)
    run(tmp_path, requests, plan=short, rows=60, limits=Limits(time=100.0, trials=9))
    assert {request.trial for request in requests} == set(range(9))


# --- solved heads


@pytest.mark.parametrize("plan", [FOLDS, ROWS])
def test_study_evaluates_solved_heads_before_all_others(tmp_path, plan):
    requests: list[EvaluateTrial] = []
    study = run(tmp_path, requests, plan=plan)
    assert [trial.origin for trial in study.state.trials[:5]] == ["plain", "plain", "solved", "solved", "solved"]
    assert [request.trial for request in requests[:3]] == [2, 3, 4]
    assert [request.spec.encoder for request in requests[:3]] == ["small", "middle", "large"]
    assert all(request.spec.recipe.solver == "ridge" for request in requests[:3])


@pytest.mark.parametrize("plan", [FOLDS, ROWS])
def test_study_searches_with_the_encoder_of_the_best_solved_head(tmp_path, plan):
    state = run(tmp_path, plan=plan).state
    assert {trial.spec.encoder for trial in state.plain_trials} == {"small"}  # that of the baseline
    assert {trial.spec.encoder for trial in state.trials[5:]} == {"middle"} and len(state.trials) == 20


def test_study_trains_an_encoder_that_costs_more_for_fewer_epochs(tmp_path):
    plan = replace(FOLDS, encoders=tuple(SOLVED_SCORES), costs=(1.0, 4.0, 2.0))
    study = run(tmp_path, plan=plan, space=Space.load("default"))
    tuned = [t.spec.recipe for t in study.state.trials[5:] if t.spec.recipe.freeze != "all"]
    assert {recipe.epochs for recipe in tuned if not isinstance(recipe.freeze, int)} == {2.5}
    assert all(2.5 < recipe.epochs <= 10.0 for recipe in tuned if isinstance(recipe.freeze, int))  # they cost less
    assert {trial.spec.recipe.epochs for trial in study.state.plain_trials} == {10.0}  # of the first encoder


def test_study_keeps_the_first_encoder_if_solved_heads_are_equal_or_fail(tmp_path):
    equal = run(tmp_path / "equal", scores=dict.fromkeys(SOLVED_SCORES, 0.5))
    failed = run(tmp_path / "failed", scores=dict.fromkeys(SOLVED_SCORES))
    for study in (equal, failed):
        assert {trial.spec.encoder for trial in study.state.trials[5:]} == {"small"}
    rest = run(tmp_path / "rest", scores={"small": None, "middle": None, "large": 0.1})
    assert {trial.spec.encoder for trial in rest.state.trials[5:]} == {"large"}


@pytest.mark.parametrize("plan", [FOLDS, ROWS])
def test_study_resumed_at_any_record_uses_the_same_encoder(tmp_path, plan):
    uninterrupted = run(tmp_path / "uninterrupted", plan=plan, limits=Limits(trials=9))
    lines = uninterrupted.ledger.directory.ledger.read_bytes().splitlines(keepends=True)
    assert {trial.spec.encoder for trial in uninterrupted.state.trials[5:]} == {"middle"}
    for kept in range(len(lines)):
        folder = tmp_path / f"resumed-{kept}"
        folder.mkdir()
        RunDirectory(folder).ledger.write_bytes(b"".join(lines[:kept]))
        resumed = run(folder, plan=plan, limits=Limits(trials=9))
        assert leaderboard(resumed) == leaderboard(uninterrupted)
        assert [trial.hash for trial in resumed.state.trials] == [trial.hash for trial in uninterrupted.state.trials]
        shutil.rmtree(folder)


def test_study_continued_with_more_trials_uses_the_chosen_encoder(tmp_path):
    run(tmp_path, limits=Limits(trials=6))
    continued = run(tmp_path, limits=Limits(trials=12))
    assert {trial.spec.encoder for trial in continued.state.trials[5:]} == {"middle"}


def test_study_solves_the_head_of_the_chosen_encoder_with_more_rows(tmp_path):
    requests: list[EvaluateTrial] = []
    run(tmp_path, requests, plan=ROWS)
    solved = [request for request in requests if request.spec.recipe.solver == "ridge"]
    assert [(request.trial, request.rows) for request in solved] == [(2, 400), (3, 400), (4, 400), (3, 2000)]
    assert [request.trial for request in requests[:6]] == [2, 3, 4, 0, 1, 3]  # before any other is proposed
    again: list[EvaluateTrial] = []
    run(tmp_path, again, plan=ROWS, limits=Limits(trials=22))
    assert again and not any(request.spec.recipe.solver == "ridge" for request in again)


def test_study_solves_each_head_once_if_there_are_no_more_rows(tmp_path):
    requests: list[EvaluateTrial] = []
    run(tmp_path, requests, plan=replace(ROWS, first_rows=2000))
    solved = [request for request in requests if request.spec.recipe.solver == "ridge"]
    assert [(request.trial, request.rung, request.rows) for request in solved] == [
        (number, 1, 2000) for number in (2, 3, 4)
    ]


def test_study_with_one_encoder_has_one_solved_head(tmp_path):
    study = run(tmp_path, encoders=("small",))
    assert [trial.origin for trial in study.state.trials if trial.is_solved] == ["solved"]


def test_study_without_solved_heads_has_none(tmp_path):
    assert not any(trial.is_solved for trial in run(tmp_path, solved=False).state.trials)


class LateExecutor(InlineExecutor):
    """An executor one of whose workers becomes ready during a request, which ends the wait without a result."""

    def __init__(self, evaluate) -> None:
        super().__init__(evaluate)
        self.waits = 0

    def wait(self, timeout=None):
        self.waits += 1
        return [] if self.waits == 1 else super().wait(timeout)


@pytest.mark.parametrize("executor", [InlineExecutor, LateExecutor])
def test_evaluate_first_saves_the_first_model_before_anything_else_runs(tmp_path, executor):
    jobs: list[str] = []

    def evaluate(request):
        jobs.append(type(request).__name__)
        assert request.threads == 3
        return Outcome("ok", 0.5, 0.1, 10)

    def save_model(study):
        trial = study.state.trials[2]
        if not trial.results or study.state.model:
            return []
        return [FitAllRows(trial=2, spec=trial.spec, seed=0, out=tmp_path / "model")]

    options = {"solved": True, "encoders": tuple(SOLVED_SCORES), "callback": save_model}
    alone = executor(evaluate)
    alone.threads_alone = 3
    study = open_study(tmp_path, evaluate, plan=FOLDS, executor=alone, **options)
    study.evaluate_first()
    assert jobs == ["EvaluateTrial", "FitAllRows"] and study.state.model.trial == 2
    assert study.state.settled == [(2, LADDER.top)] and set(study.state.waiting) == {0, 1, 3, 4}
    study.evaluate_first()  # of a run that is resumed
    assert len(jobs) == 2
    study.ledger.close()


def test_evaluate_first_runs_what_the_callback_asks_for_before_the_evaluation(tmp_path):
    jobs: list[str] = []

    def evaluate(request):
        jobs.append(type(request).__name__)
        return Outcome("ok", 0.5, 0.1, 10)

    def save_model(study):
        if study.state.model:
            return []
        trial = study.state.trials[2]
        return [FitAllRows(trial=2, spec=trial.spec, seed=0, out=tmp_path / "model")]

    study = open_study(tmp_path, evaluate, plan=FOLDS, solved=True, encoders=("small",), callback=save_model)
    study.evaluate_first()
    assert jobs == ["FitAllRows", "EvaluateTrial"] and study.state.settled == [(2, LADDER.top)]
    study.ledger.close()


@pytest.mark.parametrize(
    ("fine_tuning", "threads", "rows"), [(0, None, [400, 2000]), (1, None, [400]), (1, 2, [400, 2000])]
)
def test_evaluate_first_solves_with_more_rows_unless_other_machines_would_wait(tmp_path, fine_tuning, threads, rows):
    """Issue: beside the first candidates it did not end before the last training runs began, and was lost."""
    requests: list[EvaluateTrial] = []
    executor = InlineExecutor(record(requests, {"small": 0.6}))
    executor.threads_alone = threads
    plan = replace(ROWS, fine_tuning=bool(fine_tuning))
    study = open_study(tmp_path, executor=executor, plan=plan, encoders=("small",), solved=True)
    study.evaluate_first()
    assert [request.rows for request in requests] == rows
    assert all(request.threads == threads for request in requests)
    assert study.more_to_solve() is None
    study.ledger.close()


@pytest.mark.parametrize(
    ("seconds", "fine_tuning", "expected"),
    [
        ((10, 30, 40), False, 2),  # the chosen encoder
        ((10, 30, 100), False, 1),  # the best one that there is time for
        ((10, 100, 100), False, 0),
        ((100, 100, 100), False, None),
        ((10, 30, 100), True, None),  # the rest of the time is for training the chosen encoder
    ],
)
def test_head_of_a_cheaper_encoder_is_solved_with_more_rows_if_the_best_one_takes_too_long(
    seconds, fine_tuning, expected
):
    trials = [
        SimpleNamespace(
            number=number,
            origin="solved",
            bracket=0,
            reached=0,
            spec=SimpleNamespace(encoder=encoder),
            results={0: SimpleNamespace(score=score, seconds=took)},
        )
        for number, (encoder, score, took) in enumerate(zip("abc", (-0.9, -0.8, -0.7), seconds, strict=True))
    ]
    state, candidates = SimpleNamespace(trials=trials), SimpleNamespace(encoder="c", encoders=("a", "b", "c"))
    plan = replace(ROWS, fine_tuning=fine_tuning)
    baselines = Baselines(lambda: state, candidates, LADDER, TimeBudget(100.0), plan, solved=True)
    assert baselines.next_of_solved() == (None if expected is None else (expected, LADDER.top))
    if expected is not None:
        trials[expected].reached = LADDER.top
        assert baselines.next_of_solved() is None


def test_ctrl_c_stops_solving_with_more_rows_once_there_is_a_model(tmp_path):
    class StoppedExecutor(InlineExecutor):
        """An executor whose second evaluation takes forever, during which the user presses Ctrl-C."""

        stopped = False

        def wait(self, timeout=None):
            if self._queue and getattr(self._queue[0], "rung", None) == 1:
                assert timeout is not None
                study.stop("interrupted")
                return []
            return super().wait(timeout)

        def stop(self):
            super().stop()
            self.stopped = True

    def save_model(study):
        spec = study.state.trials[2].spec
        return [] if study.state.model else [FitAllRows(trial=2, spec=spec, seed=0, out=tmp_path / "model")]

    executor = StoppedExecutor(record([], {"small": 0.6}))
    options = {"plan": replace(ROWS, fine_tuning=False), "encoders": ("small",), "solved": True}
    study = open_study(tmp_path / "run", executor=executor, callback=save_model, **options)
    study.evaluate_first()
    assert executor.stopped and study.state.model.trial == 2 and 2 in study.state.running
    study.ledger.close()


def test_evaluate_first_waits_for_a_first_model_but_not_for_others(tmp_path):
    requests: list[EvaluateTrial] = []
    evaluate = record(requests, {"small": 0.6})
    budget = TimeBudget(1000.0)

    def save_model(study):
        if study.state.model or not study.state.settled:
            return []
        spec = study.state.trials[2].spec
        return [FitAllRows(trial=2, spec=spec, seed=0, out=tmp_path / "model", deadline=budget.deadline)]

    options = {"plan": replace(ROWS, fine_tuning=False), "encoders": ("small",), "solved": True, "budget": budget}
    study = open_study(tmp_path / "run", evaluate, callback=save_model, **options)
    study.evaluate_first()
    assert [request.deadline for request in requests] == [None, None, budget.deadline]
    study.ledger.close()


def test_evaluate_first_does_nothing_without_solved_heads(tmp_path):
    requests: list[EvaluateTrial] = []
    study = open_study(tmp_path, record(requests))
    study.evaluate_first()
    study.ledger.append(ModelSaved(0, "model"))  # the ledger is complete up to here
    study.ledger.close()
    assert not requests and list(study.state.waiting) == [0]


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
    first, second = study.state.plain_trials
    assert [first.spec.recipe.learning_rate, second.spec.recipe.learning_rate] == list(PLAIN_LEARNING_RATES)
    reached = [LADDER.top - 1, LADDER.top - 1]
    reached[better] = LADDER.top
    assert [first.reached, second.reached] == reached
    assert study.state.plain.number == better and study.state.plain.best == (LADDER.top, scores[better])


def test_study_with_one_recipe_trains_the_plain_head_in_full(tmp_path):
    study = run_study(tmp_path, score_plain({1e-4: 0.1}), plan=replace(FOLDS, plain_recipes=1))
    (plain,) = study.state.plain_trials
    assert plain.number == 0 and plain.reached == LADDER.top and study.state.trials[1].origin != "plain"


def test_study_does_not_promote_a_plain_head_that_learned_nothing(tmp_path):
    study = run_study(tmp_path, score_plain(dict.fromkeys(PLAIN_LEARNING_RATES)), plan=FOLDS)
    assert [trial.reached for trial in study.state.plain_trials] == [LADDER.top - 1] * 2


def test_study_on_rows_promotes_the_plain_head_unless_its_last_training_sees_far_more(tmp_path):
    evaluate = score_plain(dict.fromkeys(PLAIN_LEARNING_RATES, 0.1))
    compared = run_study(tmp_path / "compared", evaluate, plan=ROWS)
    assert [trial.reached for trial in compared.state.plain_trials] == [1, 0]
    grows = replace(ROWS, final_rows=8000)
    assert grows.grows and not ROWS.grows
    last = run_study(tmp_path / "last", evaluate, plan=grows)
    assert [trial.reached for trial in last.state.plain_trials] == [0, 0]


def test_study_on_rows_trains_each_rung_on_more_rows(tmp_path):
    requests: list[EvaluateTrial] = []
    study = run(tmp_path, requests, plan=ROWS)
    assert study.ladder.fractions == (1 / 3, 1.0)
    trained = {(r.rung, r.rows) for r in requests if r.spec.recipe.solver != "ridge"}
    assert trained == {(0, 1000), (1, 3000)}
    assert all(request.resume_from is None for request in requests)


@pytest.mark.parametrize("ladder", [None, Ladder((1.0,))])
def test_solved_head_does_not_set_the_timeout_of_workers(tmp_path, ladder):
    """Issue: ten times its seconds, or two minutes, were too short for training runs."""
    requests: list[EvaluateTrial] = []
    run(tmp_path, requests, plan=ROWS, ladder=ladder)
    first = next(request for request in requests if request.spec.recipe.solver == "adamw")
    assert first.worker_timeout is None and any(request.worker_timeout for request in requests)


def test_study_promotes_only_the_better_plain_head_also_towards_the_end(tmp_path):
    """Issue: with no time for a new trial, the rest of it went into the worse recipe of the plain head."""
    clock = VirtualClock()

    def evaluate(request: EvaluateTrial) -> Outcome:
        clock.now += 10 * request.fraction
        return Outcome("ok", 0.5 + request.trial / 100, 10 * request.fraction, 10)

    study = run_study(tmp_path, evaluate, plan=FOLDS, limits=Limits(time=200), clock=clock)
    assert [trial.reached for trial in study.state.plain_trials] == [LADDER.top - 1, LADDER.top]


@pytest.mark.parametrize(("time", "goes_on"), [(16, False), (200, True)])
def test_study_with_little_time_trains_the_plain_head_as_far_as_candidates(tmp_path, time, goes_on):
    clock = VirtualClock()
    complete: list[bool] = []  # whether each trial that reached the top is the plain head

    def evaluate(request: EvaluateTrial) -> Outcome:
        if request.rung == LADDER.top and not Candidates.trains_head_only(request.spec):
            complete.append(request.trial < 2)
        clock.now += 10 * request.fraction
        return Outcome("ok", 0.5 + request.trial / 100, 10 * request.fraction, 10)

    run_study(tmp_path, evaluate, plan=FOLDS, limits=Limits(time=time), clock=clock)
    assert complete[:2] == ([False, True] if goes_on else [])


def test_study_does_not_promote_a_plain_head_that_would_not_finish(tmp_path):
    clock = VirtualClock()

    def evaluate(request: EvaluateTrial) -> Outcome:
        seconds = 300 * request.fraction if request.trial < 2 else request.fraction
        clock.now += seconds
        return Outcome("ok", 0.5 + request.trial / 1000, seconds, 10)

    study = run_study(tmp_path, evaluate, plan=FOLDS, limits=Limits(time=300), clock=clock)
    assert max(trial.reached for trial in study.state.trials if not trial.is_plain) == LADDER.top
    assert [trial.reached for trial in study.state.plain_trials] == [LADDER.top - 1] * 2
