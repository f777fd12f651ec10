"""Plans: the rows and epochs that fit into the time of a search."""

from __future__ import annotations

import pytest

from headhunt.data import Columns
from headhunt.engine.encoders import KNOWN, relative_cost
from headhunt.run.plan import HELD_OUT_ROWS, SOLVED_ROWS, TEST_ROWS, Plan, format_duration, make_plan, with_encoders
from headhunt.run.task import TaskInfo
from headhunt.spec import DEFAULT_ENCODER

COLUMNS = Columns("text", None, "label")


def plan_of(train: int, *, validation=0, test=400, rate=500.0, seconds=300.0, left=None, workers=2, alone=2) -> Plan:
    """Return a plan; all the time is left unless the test says otherwise."""
    rows = {"train": train, "validation": validation, "test": test}
    known = {name: count for name, count in rows.items() if count}
    info = TaskInfo("task", "single_label_classification", ("a", "b"), COLUMNS, known, "fingerprint")
    left = (float("inf") if seconds is None else seconds) if left is None else left
    measured = {"rows_per_second": rate, "threads": 1}
    return make_plan(info, measured, seconds=seconds, left=left, workers=workers, alone=alone)


@pytest.mark.parametrize("seconds", [1.0, 30.0, 3600.0, None])
@pytest.mark.parametrize("rate", [0.5, 5000.0])
def test_plan_of_cross_validation_keeps_all_rows(seconds, rate):
    plan = plan_of(1200, seconds=seconds, rate=rate)
    assert plan.cross_validates and plan.used_rows == plan.held_out == 1200 and plan.rows_at(1 / 3) is None
    assert (plan.epochs is None) == (seconds is None)


def test_plan_fits_epochs_to_the_time():
    short, long = plan_of(1200, seconds=60.0), plan_of(1200, seconds=600.0)
    assert 1.0 <= short.epochs < long.epochs
    assert plan_of(1200, seconds=60.0, workers=1).epochs < short.epochs  # the two first trainings share one worker
    assert plan_of(1200, seconds=600.0, left=300.0).epochs < long.epochs


def test_plan_of_large_data_holds_rows_out_and_uses_all_others_if_one_epoch_fits():
    plan = plan_of(9000, seconds=600.0)
    assert not plan.cross_validates and plan.used_rows == plan.rows == 9000 and plan.epochs > 1
    assert plan.held_out == 900 and plan.rows_at(1.0) == 9000 and plan.rows_at(1 / 3) == 3000
    assert plan.epoch_seconds() == pytest.approx(9000 / plan.examples_per_second)
    assert plan_of(9000, validation=700).held_out == 700
    assert plan_of(100_000, validation=50_000, seconds=None).held_out == HELD_OUT_ROWS


def test_plan_of_very_large_data_uses_as_many_rows_as_fit_once():
    plan = plan_of(1_000_000, seconds=300.0)
    assert plan.solved_rows < plan.used_rows < 100_000 and plan.epochs == pytest.approx(1.0, abs=0.1)
    assert plan.used_rows < plan_of(1_000_000, seconds=3000.0).used_rows
    assert plan_of(1_000_000, seconds=None).solved_rows == SOLVED_ROWS
    assert plan_of(10_000, seconds=60.0, rate=100.0).counted_rows == 10_000


@pytest.mark.parametrize(("seconds", "rate"), [(1.0, 0.5), (30.0, 5.0), (60.0, 200.0)])
def test_plan_with_hardly_any_time_still_has_rows_and_an_epoch(seconds, rate):
    for rows in (20, 500, 9000, 1_000_000):
        plan = plan_of(rows, seconds=seconds, rate=rate)
        assert plan.epochs >= 1 and plan.solved_rows >= min(rows, 200) and plan.used_rows >= 1
        assert plan.test_rows <= min(400, TEST_ROWS)


def test_plan_predicts_fewer_test_rows_in_little_time():
    assert plan_of(9000, test=50_000, seconds=3600.0).test_rows == TEST_ROWS
    assert plan_of(9000, test=50_000, seconds=30.0).test_rows < TEST_ROWS
    assert plan_of(9000, test=0).test_rows == 0


@pytest.mark.parametrize(
    ("plan", "sentence"),
    [
        (plan_of(1200, seconds=None), "1,200 rows, no time limit: candidates are trained on all rows"),
        (plan_of(1200, seconds=60.0), "1,200 rows, 60 s: candidates are trained on all rows, for up to"),
        (plan_of(1_000_000), "1,000,000 rows, 5 min: candidates are trained on "),
    ],
)
def test_plan_sentence_names_rows_and_time(plan, sentence):
    assert plan.sentence.startswith(sentence)


@pytest.mark.parametrize(("seconds", "words"), [(90, "90 s"), (300, "5 min"), (7200, "2 h"), (9000, "2.5 h")])
def test_format_duration(seconds, words):
    assert format_duration(seconds) == words


@pytest.mark.parametrize("name", ["rows", "used_rows", "held_out", "solved_rows", "counted_rows"])
def test_plan_refuses_no_rows(name):
    rows = {"rows": 10, "used_rows": 10, "held_out": 2, "solved_rows": 5, "counted_rows": 5}
    with pytest.raises(ValueError, match=f"{name} must be at least 1; found 0"):
        Plan(**{**rows, name: 0}, test_rows=0, epochs=1.0)


def test_plan_compares_the_encoders_that_fit_the_cheapest_first():
    base, small, large = DEFAULT_ENCODER, KNOWN[0].name, "microsoft/deberta-v3-base"
    costs = {each: relative_cost(each) for each in (base, large, small)}
    assert with_encoders(plan_of(500, rate=10.0), costs).encoders == (base, small)
    plan = with_encoders(plan_of(500, rate=1000.0), costs)
    assert plan.encoders == (base, small, large)
    assert plan.cost_of(base) == 1 and plan.cost_of(small) < 1 < plan.cost_of(large)
