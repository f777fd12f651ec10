"""Tests of reading labels and converting them to targets."""

import json

import numpy as np
import pytest
from bad_inputs import GOOD, GOOD_LABELS, GOOD_TEXTS, as_csv, bad_files, bad_objects, check_refused, write
from labelled_rows import TEXTS, write_csv

from headhunt.data import Task, load_labelled
from headhunt.errors import DataError


@pytest.mark.parametrize(
    ("values", "problem_type", "labels"),
    [
        (["yes", "no"] * 40, "single_label_classification", ("no", "yes")),
        ([2, 10, 1, 2] * 20, "single_label_classification", ("1", "2", "10")),
        ([True, False] * 40, "single_label_classification", ("False", "True")),
        ([1.0, 2.0] * 40, "single_label_classification", ("1", "2")),
        ([at / 4 for at in range(80)], "regression", ()),
        ([float(at) for at in range(80)], "regression", ()),
        (list(range(80)), "regression", ()),
        (["01", "02"] * 40, "single_label_classification", ("01", "02")),
        ([" yes", "no "] * 40, "single_label_classification", ("no", "yes")),
        ([["a", "b"], [], ["b"], ["c"]] * 20, "multi_label_classification", ("a", "b", "c")),
        ([[3, 1], [10]] * 40, "multi_label_classification", ("1", "3", "10")),
    ],
)
def test_infer_problem_type_reads_labels(values, problem_type, labels, tmp_path):
    task = Task.load((TEXTS, values))
    assert (task.problem_type, task.labels) == (problem_type, labels)
    path = write_csv(
        tmp_path / "a.csv",
        zip(TEXTS, map(json.dumps if problem_type == "multi_label_classification" else str, values), strict=True),
    )
    again = Task.load(path)
    assert (again.problem_type, again.labels) == (problem_type, labels), "read from CSV"
    for name, split in task.splits.items():
        np.testing.assert_array_equal(split.targets, again.splits[name].targets)


def test_problem_type_can_be_given(tmp_path):
    assert Task.load((TEXTS, list(range(1, 6)) * 16), problem_type="regression").problem_type == "regression"
    task = Task.load((TEXTS, list(range(80)) * 1), problem_type="regression")
    assert not task.warnings
    with_bars = write_csv(tmp_path / "a.csv", [(text, "x|y" if at % 2 else "y") for at, text in enumerate(TEXTS)])
    assert Task.load(with_bars).labels == ("x|y", "y")
    assert Task.load(with_bars, problem_type="multi_label_classification").labels == ("x", "y")


def test_encode_targets_returns_expected_values_and_dtypes():
    test = [("one thing", "b"), ("another thing", "a")]
    split = Task.load((TEXTS, ["a", "b"] * 40), test=test).splits["test"]
    assert split.targets.tolist() == [1, 0] and split.targets.dtype == np.int64
    several = Task.load((TEXTS, [["a", "b"], ["c"]] * 40), test=(["x y", "z w"], [[], ["c", "a"]])).splits["test"]
    assert several.targets.tolist() == [[0, 0, 0], [1, 0, 1]] and several.targets.dtype == np.float32
    numbers = Task.load((TEXTS, np.linspace(0, 5, 80)), test=(["x y"], [2.5])).splits["test"]
    assert numbers.targets.tolist() == [2.5] and numbers.targets.dtype == np.float32


@bad_files("labels")
def test_check_labels_refuses_bad_labels(make, fragments, tmp_path):
    path, options = make(tmp_path)
    check_refused(path, fragments, **options)


@bad_objects(
    ("None among labels", ([*GOOD_TEXTS, "a b"], [*GOOD_LABELS, None]), {}, ["without a label", "row 13"]),
    ("mixed labels", (GOOD_TEXTS, [*GOOD_LABELS[:-1], 3]), {}, ["'label' mixes", "integers (row 12)"]),
    ("infinite numbers", (GOOD_TEXTS, [float("inf"), *[at / 7 for at in range(11)]]), {}, ["infinite", "row 1"]),
)
def test_check_labels_refuses_bad_objects(source, options, fragments):
    check_refused(source, fragments, **options)


def test_encode_targets_lists_unknown_labels_with_rows(tmp_path):
    path = write(tmp_path / "new.csv", as_csv([*GOOD, ("a text", "awful"), ("another", "fine")]))
    with pytest.raises(DataError, match=r"not among those of the model: 'awful', 'fine'.*rows 13, 14"):
        load_labelled(path, problem_type="single_label_classification", labels=("bad", "good"), pair=False)


@pytest.mark.parametrize(
    ("labels", "warned"), [(["a|b", "b", "a"], True), (["a; b", "b", "a"], True), (["x|y", "b", "a"], False)]
)
def test_labels_that_look_like_several_are_mentioned(labels, warned):
    task = Task.load({"text": TEXTS, "label": [labels[i % 3] for i in range(len(TEXTS))]})
    assert task.problem_type == "single_label_classification"
    assert any("is read as one class" in warning for warning in task.warnings) == warned
