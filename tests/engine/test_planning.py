"""Plans: the rows and epochs that fit into the time of a search."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headhunt.data import Columns
from headhunt.engine.encoders import KNOWN
from headhunt.engine.planning import (
    ENOUGH_EPOCHS,
    EPOCHS,
    LEAST_ROWS,
    SOLVED_ROWS,
    TEST_ROWS,
    VALIDATION_ROWS,
    make_plan,
    plan_search,
)
from headhunt.errors import HeadhuntError
from headhunt.run.plan import LEAST_EPOCHS, Plan, format_duration
from headhunt.run.settings import SearchSettings
from headhunt.run.state import Outcome
from headhunt.run.task import TaskInfo
from headhunt.spec import DEFAULT_ENCODER, Space
from headhunt.study.executors import InlineExecutor
from headhunt.study.requests import Request

COLUMNS = Columns("text", None, "label")


def make_info(train: int, validation: int = 0, test: int = 400) -> TaskInfo:
    rows = {"train": train, "validation": validation, "test": test}
    rows = {name: count for name, count in rows.items() if count}
    return TaskInfo("task", "single_label_classification", ("a", "b"), COLUMNS, rows, "fingerprint")


def plan_of(
    train: int,
    *,
    validation: int = 0,
    test: int = 400,
    throughput=500.0,
    seconds=300.0,
    left=None,
    workers=2,
    threads=1,
    known=False,
) -> Plan:
    """Return a plan; all the time is left unless the test says otherwise."""
    left = (float("inf") if seconds is None else seconds) if left is None else left
    info = make_info(train, validation, test)
    common = {"seconds": seconds, "left": left, "workers": workers, "epochs": EPOCHS, "threads": threads}
    return make_plan(info, throughput, known=known, **common)


def by_name(plan: Plan) -> dict[str, int]:
    names = ("compared_rows", "validation_rows", "final_rows", "first_rows", "solved_rows")
    return {name: getattr(plan, name) for name in names}


@pytest.mark.parametrize("seconds", [1.0, 30.0, 3600.0, None])
@pytest.mark.parametrize("throughput", [0.5, 5000.0])
def test_plan_of_cross_validation_keeps_all_rows(seconds, throughput):
    plan = plan_of(1200, seconds=seconds, throughput=throughput)
    rows = by_name(plan)
    if seconds is None:
        assert rows.pop("first_rows") == 1000  # without a limit, the first model is still ready in seconds
    assert plan.folds == 3 and not plan.by_rows and not plan.samples and not plan.grows
    assert set(rows.values()) == {1200}


def test_plan_of_cross_validation_fits_epochs_to_the_time():
    plenty, short, none = (plan_of(1500, seconds=seconds) for seconds in (1200.0, 200.0, 20.0))
    assert (plenty.epochs, plenty.fine_tuning, plenty.plain_recipes) == (EPOCHS, True, 2)
    assert LEAST_EPOCHS < short.epochs < EPOCHS and short.fine_tuning
    assert (none.epochs, none.fine_tuning, none.plain_recipes) == (LEAST_EPOCHS, False, 1)


def test_plan_of_cross_validation_takes_less_time_for_the_plain_head_with_the_fewest_epochs():
    tight, none = (plan_of(1500, seconds=seconds) for seconds in (60.0, 45.0))
    assert (tight.epochs, tight.fine_tuning, tight.plain_recipes) == (LEAST_EPOCHS, True, 1)
    assert not none.fine_tuning


@pytest.mark.parametrize("workers", [1, 2, 8])
def test_plan_of_cross_validation_has_enough_epochs_before_it_trains_the_winner_twice(workers):
    """Time for one training run on all rows, then for enough epochs, then for a second training run, then for more."""
    plans = [plan_of(1500, seconds=seconds, workers=workers) for seconds in range(40, 1200, 10)]
    epochs = [plan.epochs for plan in plans]
    assert epochs == sorted(epochs) and epochs[0] == LEAST_EPOCHS and epochs[-1] == EPOCHS
    assert epochs.count(ENOUGH_EPOCHS) > 3
    for plan in plans:
        seconds = plan.epochs * plan.rows / plan.examples_per_second
        if plan.plain_recipes == 2:
            assert max((4 * 2 / 3 + 2) / workers, 2 / 3 + 1) * seconds < plan.seconds
        if plan.epochs > ENOUGH_EPOCHS:
            assert max((6 * 2 / 3 + 4) / workers, 2 / 3 + 2) * seconds < plan.seconds


@pytest.mark.parametrize("workers", [1, 2, 8])
def test_plan_of_few_rows_compares_nothing_where_that_would_cost_epochs(workers):
    slow = {"seconds": 60.0, "throughput": 60.0, "workers": workers, "test": 0}
    usual, known = plan_of(100, **slow), plan_of(100, **slow, known=True)
    assert usual.compares and usual.epochs <= ENOUGH_EPOCHS
    assert not known.compares and known.fine_tuning and known.epochs > 1.5 * usual.epochs and known.plain_recipes == 1
    assert known.sentence.endswith("epochs; a longer search compares it with others")
    fast, slowest = (plan_of(100, **slow | {"throughput": rate}, known=True) for rate in (1500.0, 12.0))
    assert fast.compares and fast.epochs == EPOCHS
    assert slowest.compares and not slowest.fine_tuning  # not even one recipe has time for two epochs


@pytest.mark.parametrize(
    ("options", "compares"),
    [({}, False), ({"calibrate": True}, True), ({"reject": 0.9}, True), ({"deliver": "ensemble"}, True)],
)
def test_plan_compares_where_an_option_needs_predictions_of_rows_left_out(options, compares):
    measured = Outcome("ok", extra={"rows_per_second": 60.0, "threads": 1})
    executor = InlineExecutor(lambda request: measured)
    settings = SearchSettings(encoder=DEFAULT_ENCODER, space=Space.load("default").to_dict(), time=60.0, **options)
    assert plan_search(make_info(100, test=0), settings, executor, left=50.0, workers=2).compares == compares
    without = replace(settings, known_recipes=False)
    assert plan_search(make_info(100, test=0), without, executor, left=50.0, workers=2).compares


@pytest.mark.parametrize(("workers", "tests"), [(1, 3), (2, 2), (8, 2)])
def test_plan_counts_the_tests_of_the_winner_and_the_plain_head_once_if_they_are_made_at_the_same_time(workers, tests):
    """The first model is tested before that."""
    tested = plan_of(200, test=500, throughput=50.0, seconds=100.0, workers=workers)
    untested = plan_of(200, test=0, throughput=50.0, seconds=100.0, workers=workers, left=100.0 - 10.0 * tests)
    assert tested.test_rows == 500 and tested.epochs == untested.epochs < EPOCHS


def test_plan_of_large_data_with_little_time_compares_on_fewer_rows_than_it_trains_on():
    plan = plan_of(200_000, throughput=500.0, seconds=300.0, test=20_000)
    assert plan.by_rows and plan.samples and plan.grows
    assert plan_of(5000, throughput=150.0).grows  # however many rows there are
    assert LEAST_ROWS < plan.compared_rows < plan.final_rows < 200_000
    assert plan.compared_rows * plan.epochs / plan.examples_per_second < 300
    assert plan.first_rows == plan.solved_rows == SOLVED_ROWS
    slow = plan_of(200_000, throughput=100.0, seconds=300.0)
    assert slow.first_rows == 1000 < slow.solved_rows <= SOLVED_ROWS
    assert slow.validation_rows < plan.validation_rows <= VALIDATION_ROWS and plan.test_rows == TEST_ROWS


def test_plan_uses_more_rows_with_more_time():
    plans = [plan_of(200_000, seconds=seconds) for seconds in (60.0, 300.0, 1800.0, 100_000.0)]
    compared, final = [plan.compared_rows for plan in plans], [plan.final_rows for plan in plans]
    assert compared == sorted(compared) and final == sorted(final) and compared[0] < compared[2]
    assert compared[-1] == final[-1] == 200_000 and plans[-1].epochs == EPOCHS and not plans[-1].samples


def test_plan_counts_the_time_that_is_left():
    assert plan_of(200_000, left=100.0).compared_rows < plan_of(200_000, left=300.0).compared_rows


@pytest.mark.parametrize("rows", [2000, 100_000])
def test_plan_without_time_limit_uses_everything(rows):
    plan = plan_of(rows, seconds=None, throughput=0.5)
    assert plan.compared_rows == plan.final_rows == rows and plan.epochs == EPOCHS and plan.plain_recipes == 2
    assert plan.solved_rows == min(rows, SOLVED_ROWS) and plan.validation_rows == min(2000, rows // 5)
    assert plan.test_rows == 400 and plan.seconds is None


def test_plan_evaluates_on_the_validation_rows_of_the_user():
    assert plan_of(3000, validation=700, seconds=None).validation_rows == 700
    assert plan_of(30, validation=7, seconds=None).folds == 1
    timed = plan_of(3000, validation=700, seconds=3600.0, throughput=5000.0)
    assert timed.validation_rows == 700 and timed.compared_rows == 3000


@pytest.mark.parametrize("seconds", [0.1, 5.0, 60.0])
@pytest.mark.parametrize("throughput", [0.01, 50.0])
@pytest.mark.parametrize("rows", [(2000, 0, 0), (10, 4, 4), (90, 0, 3), (1_000_000, 0, 10_000)])
def test_plan_never_goes_below_the_least_rows_and_epochs(seconds, throughput, rows):
    train, validation, test = rows
    plan = plan_of(train, validation=validation, test=test, seconds=seconds, left=0.0, throughput=throughput)
    assert all(count >= 1 for count in by_name(plan).values())
    assert plan.compared_rows >= min(LEAST_ROWS, train)
    assert plan.validation_rows >= min(200, validation or train)
    assert plan.final_rows >= min(plan.compared_rows, train) and max(by_name(plan).values()) <= max(train, validation)
    assert plan.test_rows == min(test, LEAST_ROWS, TEST_ROWS)
    assert plan.epochs >= (LEAST_EPOCHS if plan.folds > 1 else 1.0)


def test_plan_solves_on_more_rows_where_there_is_no_time_to_train_the_encoder():
    plan = plan_of(5000, seconds=60.0, throughput=60.0)
    assert plan.only_solves and not plan.grows and plan.plain_recipes == 1
    assert 3 * plan.first_rows < plan.solved_rows < 60 * 60
    assert plan.final_rows == plan.solved_rows  # a plain head that is trained later sees the same rows
    assert not plan_of(50_000, seconds=60.0, throughput=60.0).grows
    assert plan.solved_rows < plan_of(5000, seconds=60.0, throughput=60.0, threads=2).solved_rows
    assert plan.sentence.startswith("5,000 rows, 60 s: a head is solved on up to ")
    assert plan.sentence.endswith("there is no time to train the encoder")


def test_plan_solves_heads_of_many_classes_on_the_last_layer_with_more_rows():
    few = make_info(15_000)
    many = replace(few, labels=tuple(map(str, range(150))))
    plans = [make_plan(info, 250.0, seconds=60.0, left=50.0, workers=2, threads=2) for info in (few, many)]
    assert all(plan.only_solves for plan in plans)
    assert plans[0].solved_rows == SOLVED_ROWS < plans[1].solved_rows < 15_000


@pytest.mark.parametrize(("rows", "validation", "throughput"), [(5000, 0, 600.0), (30, 10, 60.0), (1500, 0, 6.0)])
def test_plan_trains_the_encoder_where_there_is_time_or_cross_validation(rows, validation, throughput):
    plan = plan_of(rows, validation=validation, test=200, seconds=60.0, throughput=throughput)
    assert not plan.only_solves


@pytest.mark.parametrize("rows", [1500, 50_000])
def test_plan_compares_two_recipes_of_the_plain_head_only_with_time(rows):
    """Issue: with the least number of rows, the recipes of large data were taken to be as fast as the time demands."""
    assert plan_of(rows, seconds=900.0).plain_recipes == 2
    assert plan_of(rows, seconds=60.0, throughput=5.0, workers=1).plain_recipes == 1


@pytest.mark.parametrize(
    ("plan", "sentence"),
    [
        (plan_of(1200, seconds=None), "1,200 rows, no time limit: candidates are trained on all rows, for up to 10 ep"),
        (
            plan_of(1500, seconds=20.0),
            "1,500 rows, 20 s: most candidates keep the encoder frozen; there is little time to train",
        ),
        (plan_of(200_000), "200,000 rows, 5 min: candidates are compared on "),
    ],
)
def test_plan_sentence_names_rows_and_time(plan, sentence):
    assert plan.sentence.startswith(sentence)


def test_plan_sentence_rounds_the_numbers_of_rows():
    plan = Plan(200_000, 2345, 200, 98_765, 100, 200, 0, 2.0, seconds=600.0)
    assert plan.sentence == (
        "200,000 rows, 10 min: candidates are compared on 2,300 rows, the winner is trained on up to 99,000"
    )


@pytest.mark.parametrize(("seconds", "words"), [(90, "90 s"), (300, "5 min"), (7200, "2 h"), (9000, "2.5 h")])
def test_format_duration(seconds, words):
    assert format_duration(seconds) == words


@pytest.mark.parametrize("name", ["compared_rows", "validation_rows", "final_rows", "first_rows", "solved_rows"])
def test_plan_refuses_no_rows(name):
    rows = {"rows": 10, "compared_rows": 10, "validation_rows": 2, "final_rows": 10, "first_rows": 5, "solved_rows": 5}
    with pytest.raises(ValueError, match=f"{name} must be at least 1; found 0"):
        Plan(**{**rows, name: 0}, test_rows=0, epochs=1.0)


def test_plan_rows_at_a_rung():
    plan = plan_of(200_000)
    assert plan.rows_at(1.0) == plan.compared_rows and plan.rows_at(1 / 3) == round(plan.compared_rows / 3)
    assert plan_of(1200).rows_at(1 / 3) is None
    assert plan.epoch_seconds() == pytest.approx(plan.compared_rows / plan.examples_per_second)
    assert plan_of(1200).epoch_seconds() == pytest.approx(2400 / plan_of(1200).examples_per_second)


def measure_with(plan_options: dict, outcomes: list[Outcome]) -> tuple[Plan, list[Request]]:
    """Return the plan of a search whose measurements have these outcomes, and the requests for them."""
    requests: list[Request] = []

    def measure(request: Request) -> Outcome:
        requests.append(request)
        return outcomes[len(requests) - 1]

    settings = SearchSettings(space={"schema": 1, "name": "own"}, **{"encoder": "a", "time": 300.0} | plan_options)
    return plan_search(make_info(500), settings, InlineExecutor(measure), left=300.0, workers=2), requests


def test_plan_is_measured_with_the_length_of_the_search_and_again_if_a_worker_dies():
    fast = Outcome("ok", extra={"rows_per_second": 400.0, "threads": 1})
    plan, requests = measure_with({"max_length": 512}, [Outcome("lost"), fast])
    assert [request.spec.recipe.max_length for request in requests] == [512, 512]
    assert plan.rows_per_second == 400 and plan.encoders == plan.costs == ()
    with pytest.raises(HeadhuntError, match="cannot be used: no such file"):
        measure_with({}, [Outcome("error", extra={"message": "no such file"})])


def test_plan_compares_the_encoders_that_fit_the_cheapest_first():
    base, small, large = DEFAULT_ENCODER, KNOWN[0].name, "microsoft/deberta-v3-base"
    options = {"encoder": base, "encoders": (base, large, small)}
    slow = Outcome("ok", extra={"rows_per_second": 10.0, "threads": 1})
    fast = Outcome("ok", extra={"rows_per_second": 1000.0, "threads": 1})
    assert measure_with(options, [slow])[0].encoders == (base, small)
    plan, _ = measure_with(options, [fast])
    assert plan.encoders == (base, small, large)
    assert plan.cost_of(base) == 1 and plan.cost_of(small) < 1 < plan.cost_of(large)
