"""Rows to train on and to evaluate on: folds, and the sample of a plan."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from searches import make_task

from headhunt import Task
from headhunt.data.splitting import TASK_TARGETS
from headhunt.engine.folds import stratified_order, working_rows
from headhunt.run.plan import Plan

ROWS = 2600
SAMPLE = Plan(rows=ROWS, used_rows=1200, held_out=200, solved_rows=900, counted_rows=900, test_rows=0, epochs=2.0)


@pytest.fixture(scope="module")
def large() -> Task:
    """A task that is too large for cross-validation, with classes of very different sizes."""
    labels = ["rare" if row % 20 == 0 else "some" if row % 4 == 1 else "often" for row in range(ROWS)]
    rng = np.random.default_rng(0)
    letters = rng.integers(ord("a"), ord("z"), (ROWS, 8, 5), dtype=np.uint8)
    texts = [" ".join(word.tobytes().decode() for word in words) for words in letters]
    return Task.load((texts, labels), test_share=0)


def test_working_rows_without_a_plan_are_all_rows(large):
    working = working_rows(large, None)
    assert working.positions.tolist() == list(range(len(large.splits["train"])))
    ((train, evaluated),) = working.folds
    assert sorted([*train, *evaluated]) == working.positions.tolist()


def test_working_rows_of_cross_validation_are_all_rows():
    task = make_task(90)
    rows = len(task.splits["train"])
    working = working_rows(task, replace(SAMPLE, folds=3))
    assert working.positions.tolist() == list(range(rows)) and len(working.folds) == 3
    assert sorted(np.concatenate([evaluated for _, evaluated in working.folds])) == list(range(rows))
    assert all(not set(train) & set(evaluated) for train, evaluated in working.folds)


def test_working_rows_of_a_plan_keep_training_and_validation_rows_apart(large):
    working = working_rows(large, SAMPLE)
    ((train, evaluated),) = working.folds
    assert len(train) == 1200 and len(evaluated) == 200 and not set(train) & set(evaluated)
    assert sorted([*train, *evaluated]) == list(range(1400)) and len(working.rank) == 1400
    assert (np.diff(working.positions) > 0).all()
    everything = working_rows(large, None).folds[0]
    assert set(working.positions[train]) <= set(everything[0])
    assert set(working.positions[evaluated]) <= set(everything[1])


def test_working_rows_keep_the_validation_rows_of_the_user():
    data = [f"text {row}" for row in range(60)], ["a", "b"] * 30
    task = Task.load(data, validation=([f"other {row}" for row in range(20)], ["a", "b"] * 10), test_share=0)
    plan = replace(SAMPLE, rows=60, used_rows=40, held_out=8, solved_rows=20, counted_rows=20)
    ((train, evaluated),) = (working := working_rows(task, plan)).folds
    assert len(train) == 40 and working.positions[train].max() < 60
    assert len(evaluated) == 8 and working.positions[evaluated].min() >= 60


def test_working_rows_depend_on_the_seed_alone(large):
    first, same, other = (working_rows(large, SAMPLE, seed) for seed in (1, 1, 2))
    assert first.positions.tolist() == same.positions.tolist() != other.positions.tolist()


def test_samples_are_nested_and_keep_the_class_proportions(large):
    working = working_rows(large, SAMPLE)
    train, targets = working.folds[0][0], large.splits["train"].targets[working.positions]
    shares = np.bincount(large.splits["train"].targets) / ROWS
    smaller: set[int] = set()
    for count in (100, 200, 600, 1200):
        sample = working.sample(train, count)
        assert len(sample) == len(set(sample)) == count and smaller < set(sample) <= set(train)
        # Validation rows are left out of the order at random, so that a small sample differs a little.
        assert np.bincount(targets[sample]) / count == pytest.approx(shares, abs=max(0.015, 0.55 / count**0.5))
        smaller = set(sample)
    assert working.sample(train, None) is train
    evaluated = working.folds[0][1]
    assert np.bincount(targets[evaluated]) / len(evaluated) == pytest.approx(shares, abs=0.02)  # four of 200 rows


@pytest.mark.parametrize("seed", range(3))
def test_stratified_order_has_the_classes_of_all_rows_in_every_beginning(seed):
    targets = np.random.default_rng(seed).permutation(np.repeat([0, 1, 2], [700, 250, 50]))
    order = stratified_order(targets, seed)
    assert sorted(order) == list(range(1000))
    for count in range(20, 1001, 20):
        expected = count * np.array([0.7, 0.25, 0.05])
        assert np.abs(np.bincount(targets[order[:count]], minlength=3) - expected).max() <= 3
    assert order.tolist() == stratified_order(targets, seed).tolist() != stratified_order(targets, seed + 1).tolist()


@pytest.mark.parametrize("targets", [np.linspace(0, 1, 50), np.eye(5, dtype=np.int64)[np.arange(50) % 5]])
def test_stratified_order_of_numbers_and_several_labels_is_a_permutation(targets):
    order = stratified_order(targets)
    assert sorted(order) == list(range(50)) and order.tolist() != list(range(50))


def test_stratified_order_allows_a_class_without_rows():
    assert sorted(stratified_order(np.array([0, 2, 2, 0]))) == [0, 1, 2, 3]


def test_samples_of_several_tasks_have_as_many_rows_of_each():
    targets = np.zeros(1000, TASK_TARGETS)
    targets["task"][900:] = 1
    targets["value"] = np.arange(1000) % 2
    order = stratified_order(targets)
    assert sorted(order) == list(range(1000))
    for count in (50, 150):
        first = targets[order[:count]]
        assert np.bincount(first["task"]).tolist() == [count // 2, count // 2]
        assert all(abs(first["value"][first["task"] == task].mean() - 0.5) < 0.05 for task in (0, 1))
    assert (targets["task"][order[300:]] == 0).all()  # the small task has no more rows
