"""Tests of reading the columns of groups and of order."""

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from bad_inputs import bad_objects, check_refused
from labelled_rows import LABELS, TEXTS

from headhunt.data.division import join_groups, number_groups, rank_rows, separate_missing
from headhunt.data.problems import Problems
from headhunt.data.sources import Rows

DAYS = [f"2024-{1 + at // 28:02d}-{1 + at % 28:02d}" for at in range(80)]
USERS = [f"user {at % 8}" for at in range(80)]
COLUMNS = {"text": TEXTS, "label": LABELS}


def rows_of(**columns):
    return Rows("test", pa.table(columns))


def ranks_of(values):
    problems = Problems("test")
    order = rank_rows(rows_of(when=values), "when", problems)
    assert not problems, problems.lines
    return order.ranks.tolist()


START = datetime(2024, 1, 31, 23, 59)


@pytest.mark.parametrize(
    "values",
    [
        [9, 10, 11, 10],
        [Decimal("0.10"), Decimal("0.20"), Decimal("10"), Decimal("0.2")],
        [0.5, 2.0, 1e9, 2.0],
        ["9", "10", "11", "10"],
        ["0.5", "2", "1e9", "2"],
        ["2024-01-31", "2024-02-01", "2024-11-01", "2024-02-01"],
        ["2024-01-31 23:59", "2024-02-01T00:00:00", "2024-11-01 00:00:00.5", "2024-02-01"],
        ["2024-01-31T23:30:00+02:00", "2024-01-31T22:30:00Z", "2024-02-01T00:00:00+01:00", "2024-01-31T22:30:00+00:00"],
        ["2023-12", "2024-01", "2024-10", "2024-01"],
        [date(2024, 1, 31), date(2024, 2, 1), date(2024, 11, 1), date(2024, 2, 1)],
        [START, START + timedelta(minutes=1), START + timedelta(days=400), START + timedelta(minutes=1)],
        [START.replace(tzinfo=UTC) + timedelta(days=at) for at in (0, 1, 2, 1)],
        pa.array(["b", "c", "d", "c"]).dictionary_encode().indices,
    ],
)
def test_rank_rows_orders_numbers_dates_and_times(values):
    assert ranks_of(values) == [0, 1, 2, 1]


def test_rank_rows_decodes_categories_and_follows_selected_rows():
    assert ranks_of(pa.array(["10", "9", "10"]).dictionary_encode()) == [1, 0, 1]
    rows = rows_of(when=["5", "x", "3", "4"]).take(np.array([3, 0, 2]))
    order = rank_rows(rows, "when", Problems("test"))
    assert order.ranks.tolist() == [1, 2, 0] and order.names == ["3", "4", "5"]


@bad_objects(
    ("order missing", {**COLUMNS, "day": DAYS}, {"order": "dy"}, ["no column 'dy'", "mean 'day'", "Set order to"]),
    ("order of names", {**COLUMNS, "day": USERS}, {"order": "day"}, ["80 rows", "'user 0'", "numbers, or ISO dates"]),
    (
        "one bad date",
        {**COLUMNS, "day": [*DAYS[:-1], "31/12/2024"]},
        {"order": "day"},
        ["1 row with a value in 'day'", "'31/12/2024' (row 80)"],
    ),
    ("no date", {**COLUMNS, "day": [*DAYS[:-1], ""]}, {"order": "day"}, ["1 row without a value in 'day' (row 80)"]),
    ("nan", {**COLUMNS, "day": [*range(79), np.nan]}, {"order": "day"}, ["1 row without a value in 'day' (row 80)"]),
    ("text nan", {**COLUMNS, "day": [*map(str, range(79)), "nan"]}, {"order": "day"}, ["1 row with", "'nan' (row 80)"]),
    (
        "numbers and dates",
        {**COLUMNS, "day": [*DAYS[:-1], "7"]},
        {"order": "day"},
        ["mixes numbers and times without a time zone", "one form"],
    ),
    ("lists", {**COLUMNS, "day": [[1]] * 80}, {"order": "day"}, ["'day' holds list", "numbers, or ISO dates"]),
    ("mixed order", {**COLUMNS, "day": [*range(79), "x"]}, {"order": "day"}, ["'day' mixes", "text (row 80)"]),
    ("one day", {**COLUMNS, "day": ["2024-01-01"] * 80}, {"order": "day"}, ["different values", "only '2024-01-01'"]),
    (
        "two days",
        {**COLUMNS, "day": ["2024-01-01"] * 60 + ["2024-01-02"] * 20},
        {"order": "day"},
        ["set aside for validation; found only '2024-01-01'", "validation="],
    ),
    (
        "group and order",
        {**COLUMNS, "day": DAYS, "user": USERS},
        {"order": "day", "group": "user"},
        ["group 'user', order 'day'", "not both"],
    ),
    ("group missing", {**COLUMNS, "user": USERS}, {"group": "usr"}, ["no column 'usr'", "mean 'user'", "Set group to"]),
    ("group is label", {**COLUMNS, "user": USERS}, {"group": "label", "label": "label"}, ["as label and as group"]),
    ("group empty", {**COLUMNS, "user": [None] * 80}, {"group": "user"}, ["'user' holds no values"]),
    ("group of lists", {**COLUMNS, "user": [["a"]] * 80}, {"group": "user"}, ["'user' holds list", "Set group to"]),
    ("few groups", {**COLUMNS, "user": list("ab") * 40}, {"group": "user"}, ["has 2 groups", "At least 5"]),
)
def test_load_refuses_unusable_groups_and_orders(source, options, fragments):
    check_refused(source, fragments, **options)


def test_number_groups_agrees_between_splits_of_different_types():
    splits = {
        "train": rows_of(user=[3, 1, 2, 3, None, 4, 5]),
        "test": rows_of(user=["1", " 3 ", "", "9"]),
        "validation": rows_of(user=[2.0, None]),
        "other": rows_of(name=["a"]),
    }
    problems = Problems("test")
    numbered = number_groups(splits, "user", problems)
    assert not problems and list(numbered) == ["train", "test", "validation"]
    train, test = numbered["train"].tolist(), numbered["test"].tolist()
    assert train[0] == train[3] == test[1] and train[1] == test[0] and train[2] == numbered["validation"][0]
    assert train[4] == test[2] == numbered["validation"][1] == -1 and test[3] not in train
    assert len(set(train)) == 6


def test_join_groups_unites_texts_and_values_transitively():
    near = [np.arange(20), np.array([0, 20])]
    near[0][7] = 1  # rows 1 and 7 have nearly the same text
    values = [np.arange(20) // 2, np.array([-1, 9])]
    joined = join_groups(near, values)
    first, second = joined
    assert len(set(first[[0, 1, 6, 7]])) == 1 and second[0] == first[0], "a text joins two groups, also across splits"
    assert second[1] == first[18] == first[19]
    assert len(set(first)) == 9


def test_join_groups_gives_up_if_texts_connect_most_groups():
    values = np.arange(40) // 4
    near = np.where(np.arange(40) % 4 == 0, 0, np.arange(40))  # one text that every group has
    assert join_groups([near], [values]) is None
    alone = separate_missing([np.where(np.arange(40) < 2, -1, values)])[0]
    assert len(set(alone)) == 12 and alone[0] != alone[1] and alone[2] == alone[3]
