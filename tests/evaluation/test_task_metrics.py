"""Scores of several tasks: the mean of each task's metric on its rows."""

from __future__ import annotations

import numpy as np
import pytest

from headhunt.data.splitting import TASK_TARGETS
from headhunt.evaluation import (
    compare,
    evaluate,
    evaluate_tasks,
    find_metric,
    format_difference,
    format_score,
    measure,
    standard_error,
)

METRIC = "macro_f1,pearson,accuracy"
LABELS = (("a", "b", "c"), (), ("x", "y"))


def make_outputs(seed=0, rows=240, noise=1.0):
    """Return outputs and targets of three tasks in random order, and the outputs of each task."""
    rng = np.random.default_rng(seed)
    tasks = rng.integers(0, 3, rows)
    targets = np.zeros(rows, TASK_TARGETS)
    targets["task"] = tasks
    outputs = np.zeros((rows, 3))
    for number, names in enumerate(LABELS):
        chosen = np.flatnonzero(tasks == number)
        if names:
            truth = np.random.default_rng(1).integers(0, len(names), rows)[chosen]
            logits = 1.5 * np.eye(len(names))[truth] + noise * rng.standard_normal((len(chosen), len(names)))
            outputs[chosen, : len(names)] = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        else:
            truth = np.random.default_rng(2).standard_normal(rows)[chosen]
            outputs[chosen, 0] = truth + noise * rng.standard_normal(len(chosen))
        targets["value"][chosen] = truth
    return outputs, targets


def parts(outputs, targets):
    for number, (metric, names) in enumerate(zip(METRIC.split(","), LABELS, strict=True)):
        rows = targets["task"] == number
        if names:
            yield (
                "single_label_classification",
                metric,
                outputs[rows][:, : len(names)],
                targets["value"][rows].astype(int),
            )
        else:
            yield "regression", metric, outputs[rows, 0], targets["value"][rows]


def test_measure_is_the_mean_over_tasks():
    outputs, targets = make_outputs()
    expected = np.mean([measure(*part) for part in parts(outputs, targets)])
    assert measure("multi_task", METRIC, outputs, targets) == pytest.approx(expected)


def test_every_task_counts_the_same_whatever_its_rows():
    outputs, targets = make_outputs()
    few = np.concatenate([np.flatnonzero(targets["task"] != 2), np.flatnonzero(targets["task"] == 2)[:1]])
    wrong = outputs[few].copy()
    wrong[-1] = wrong[-1][[1, 0, 2]]
    change = measure("multi_task", METRIC, outputs[few], targets[few]) - measure(
        "multi_task", METRIC, wrong, targets[few]
    )
    assert abs(change) == pytest.approx(1 / 3)


def test_evaluate_tasks_returns_each_task_and_the_mean():
    outputs, targets = make_outputs()
    mean, tasks = evaluate_tasks(METRIC, outputs, targets, LABELS)
    for found, (problem_type, metric, given, truth), names in zip(tasks, parts(outputs, targets), LABELS, strict=True):
        assert found == evaluate(problem_type, given, truth, names) and metric in found.scores
    score = mean.scores[METRIC]
    widths = [found.scores[metric] for found, metric in zip(tasks, METRIC.split(","), strict=True)]
    assert score.value == pytest.approx(measure("multi_task", METRIC, outputs, targets))
    assert score.value - score.low == pytest.approx(np.sqrt(sum((w.value - w.low) ** 2 for w in widths)) / 3)


def test_errors_agree_with_a_bootstrap_within_tasks():
    outputs, targets = make_outputs()
    other = make_outputs(5, noise=1.2)[0]
    other[:] = np.where(np.random.default_rng(3).random((len(outputs), 1)) < 0.5, outputs, 0.5 * outputs + 0.3)
    rng = np.random.default_rng(0)
    tasks = [np.flatnonzero(targets["task"] == number) for number in range(3)]
    scores, gains = [], []
    for _ in range(200):
        rows = np.concatenate([rng.choice(task, len(task)) for task in tasks])
        scores.append(measure("multi_task", METRIC, outputs[rows], targets[rows]))
        gains.append(scores[-1] - measure("multi_task", METRIC, other[rows], targets[rows]))
    assert standard_error("multi_task", METRIC, outputs, targets) == pytest.approx(np.std(scores), rel=0.25)
    found = compare("multi_task", METRIC, [outputs], [other], targets)
    assert (found.high - found.low) / 2 / 1.96 == pytest.approx(np.std(gains), rel=0.25)
    assert found.gain == pytest.approx(
        measure("multi_task", METRIC, outputs, targets) - measure("multi_task", METRIC, other, targets)
    )


def test_mean_has_a_name_in_text():
    assert find_metric(METRIC).title == "mean over tasks" and find_metric("mse").name == "mse"
    assert format_score(METRIC, 0.7516) == "mean 0.752" and format_difference(METRIC, -0.0116) == "-0.012"
