"""Searches of every kind of task, and with several encoders: each ends with a tested model."""

from __future__ import annotations

import pytest
from conftest import sentences
from searches import QUICK

import headhunt

pytestmark = pytest.mark.usefixtures("own_cache")

TEXTS, LABELS = sentences(72)
OTHERS = sentences(72, seed=1)[0]
TASKS = {
    "one text": {"text": TEXTS, "label": LABELS},
    "pairs": {
        "text": TEXTS,
        "text_b": OTHERS,
        "label": [label if i % 3 else "other" for i, label in enumerate(LABELS)],
    },
    "several labels": {
        "text": TEXTS,
        "label": [[label, "long"] if len(text) > 30 else [label] for text, label in zip(TEXTS, LABELS, strict=True)],
    },
    "a number": {
        "text": TEXTS,
        "label": [len(text) / 7 + (label == "good") for text, label in zip(TEXTS, LABELS, strict=True)],
    },
}
PROBLEM_TYPES = {"several labels": "multi_label_classification", "a number": "regression"}


def search(tmp_path, data, encoder, **options):
    defaults = {"time": None, "trials": 4, "space": QUICK, "workers": 0, "out": tmp_path / "run", "view": False}
    return headhunt.search(data, encoder=encoder, **{**defaults, **options})


@pytest.mark.parametrize("task", TASKS)
def test_search_ends_tested(tmp_path, encoders, task):
    problem_type = PROBLEM_TYPES.get(task, "single_label_classification")
    done = search(tmp_path, TASKS[task], encoders(), problem_type=problem_type)
    result = done.result
    assert done.task.problem_type == problem_type and done.task.pair == (task == "pairs")
    assert result.verdict.claim in ("gain", "no gain") and {"winner", "plain"} <= result.test.scores.keys()
    assert result.test.rows == done.task.rows["test"] and done.settings.metric in result.test.scores["winner"]
    assert {"plain", "solved"} <= {trial.origin for trial in done.state.trials}
    assert all(trial.best for trial in done.state.trials if trial.origin in ("plain", "solved"))
    assert len(done.load().predict(["a good movie"], ["a bad film"] if task == "pairs" else None)) == 1
    assert done.directory.read_plan().folds == 3


def test_search_with_two_encoders_uses_the_better_solved_one(tmp_path, encoders):
    first, second = encoders("bert"), encoders("electra")
    done = search(tmp_path, TASKS["one text"], [first, second], trials=6)
    state, plan = done.state, done.directory.read_plan()
    assert plan.encoders == (first, second) and done.settings.encoders == (first, second)
    solved = {trial.spec.encoder: trial.best[1] for trial in state.trials if trial.origin == "solved"}
    assert solved.keys() == {first, second} and {trial.spec.encoder for trial in state.plain_trials} == {first}
    better = second if solved[second] > solved[first] else first
    proposed = [trial for trial in state.trials if trial.origin not in ("plain", "solved")]
    assert len(proposed) == 2 and {trial.spec.encoder for trial in proposed} == {better}
    assert done.result.verdict.claim != "untested" and done.load().predict(["a good movie"])
