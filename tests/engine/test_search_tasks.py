"""Searches of every kind of task, and with several encoders: each ends with a tested model."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import sentences
from searches import QUICK

import headhunt
from headhunt import Space, Task
from headhunt.engine.search import _resolve_space
from headhunt.errors import HeadhuntError
from headhunt.evaluation import apply_thresholds, fit_thresholds, measure
from headhunt.report import write as write_report
from headhunt.run.directory import read_predictions
from headhunt.run.settings import SearchOptions
from headhunt.run.task import open_task

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
TASKS |= {f"{name}, pairs": {**TASKS[name], "text_b": OTHERS} for name in ("several labels", "a number")}
PAIRS = "several labels, pairs"


def problem_type_of(task: str) -> str:
    types = {"several labels": "multi_label_classification", "a number": "regression"}
    return types.get(task.split(",")[0], "single_label_classification")


def search(tmp_path, data, encoder, **options):
    defaults = {"time": None, "trials": 4, "space": QUICK, "workers": 0, "out": tmp_path / "run", "callbacks": []}
    return headhunt.search(data, encoder=encoder, **{**defaults, **options})


@pytest.mark.parametrize(
    "task", [pytest.param(name, marks=() if name in ("one text", PAIRS) else pytest.mark.slow) for name in TASKS]
)
def test_search_ends_tested(tmp_path, encoders, task):
    problem_type, calibrate = problem_type_of(task), task == PAIRS
    reject = {"one text": {"reject": 0.7}, "pairs": {"reject_label": "other"}}.get(task, {})
    options = {"problem_type": problem_type, "calibrate": calibrate, "deliver": "ensemble", **reject}
    done = search(tmp_path, TASKS[task], encoders(), **options)
    result = done.result
    assert done.task.problem_type == problem_type and done.task.pair == ("pairs" in task)
    assert {"plain", "ensemble"} <= result.test.scores.keys() and {"winner", "solved"} & result.test.scores.keys()
    assert result.test.rows == done.task.rows["test"] and done.settings.metric in result.test.scores["plain"]
    assert {"plain", "solved"} <= {trial.origin for trial in done.state.trials}
    assert all(trial.best for trial in done.state.trials if trial.origin in ("plain", "solved"))
    assert len(done.load().predict(["a good movie"], ["a bad film"] if "pairs" in task else None)) == 1
    assert done.directory.read_plan().folds == 3
    if problem_type == "multi_label_classification":
        check_thresholds(done)
    elif problem_type == "regression":
        assert result.test.errors.error > 0 and 0 <= result.test.errors.coverage <= 1
    if calibrate:
        check_calibration(done)
    if reject:
        check_rejection(done, **reject)


def check_rejection(done, reject=0.9, reject_label=None):
    """What the delivered model rejects is what the result, the card and the report say."""
    model, test = done.load(), open_task(done.directory.task, ("test",)).splits["test"]
    scores, outside = done.result.test.rejection, [done.task.labels[row] == reject_label for row in test.targets]
    assert model.rejection.label == reject_label == scores.label and scores.asked == reject
    assert model.rejection.threshold == pytest.approx(scores.threshold) and model.facts["temperature"]
    predictions = model.predict(test.texts(), test.texts_b())
    inside = [each for each, other in zip(predictions, outside, strict=True) if not other]
    assert scores.coverage == pytest.approx(np.mean([not each.rejected for each in inside]), abs=1 / len(inside))
    assert all((each.label is None) == each.rejected for each in predictions)
    assert not any(each.label == reject_label for each in predictions if not each.rejected)
    assert scores.outside_rows == sum(outside) and headhunt.load(done.directory.ensemble).rejection is not None
    card = (done.model_dir / "README.md").read_text()
    assert "Rejected texts: those whose best class" in card and f"{scores.accuracy * 100:.1f} %" in card
    page = write_report(done.run_dir).read_text()
    assert "Rejected texts" in page and "accuracy of the answers" in page


def check_thresholds(done):
    """Several labels are tested with the thresholds of the saved models, in both averages of F1."""
    result, test = done.result, open_task(done.directory.task, ("test",)).splits["test"]
    assert result.test.calibration and result.test.temperature and result.ensemble
    for role, folder in {result.verdict.delivered: done.model_dir, "ensemble": done.directory.ensemble}.items():
        predictor = headhunt.load(folder)
        assert set(predictor.thresholds) != {0.5}
        decisions = apply_thresholds(predictor.outputs(test.texts(), test.texts_b()), predictor.thresholds)
        for metric in ("micro_f1", "macro_f1"):
            score = measure(predictor.problem_type, metric, decisions, test.targets)
            assert score == pytest.approx(result.test.scores[role][metric].value, abs=1e-6)
    members = [read_predictions(done.directory.latest_predictions(number)) for number in result.ensemble_members]
    mean = np.mean([outputs for _, outputs in members], axis=0)
    train = open_task(done.directory.task).splits["train"].targets[members[0][0]]
    expected = fit_thresholds(mean, train, "micro_f1")
    if not done.settings.calibrate:
        assert headhunt.load(done.directory.ensemble).thresholds == pytest.approx(expected)


def check_calibration(done):
    """A temperature changes probabilities and thresholds, and no decision."""
    source, delivered = headhunt.load(done.directory.models / done.result.model_from), done.load()
    assert delivered.facts["temperature"] != 1 and "temperature" not in source.facts
    assert delivered.thresholds != source.thresholds or done.result.verdict.delivered == "ensemble"
    first, second = source.outputs(TEXTS, OTHERS), delivered.outputs(TEXTS, OTHERS)
    assert not np.allclose(first, second, atol=1e-4)
    labels = [[each.label for each in model.predict(TEXTS, OTHERS)] for model in (source, delivered)]
    assert labels[0] == labels[1]
    assert "temperature" in headhunt.load(done.directory.ensemble).facts


def test_search_refuses_to_calibrate_numbers(tmp_path, encoders):
    with pytest.raises(HeadhuntError, match="calibrate= needs classes or labels: a number has no probability"):
        search(tmp_path, TASKS["a number"], encoders(), problem_type="regression", calibrate=True)
    assert not (tmp_path / "run").exists()


def test_search_with_two_encoders_uses_the_better_solved_one(tmp_path, encoders):
    first, second = encoders("bert"), encoders("electra")
    done = search(tmp_path, TASKS["one text"], [first, second], trials=7)
    state, plan = done.state, done.directory.read_plan()
    assert plan.encoders == (first, second) and done.settings.encoders == (first, second)
    solved = {trial.spec.encoder: trial.best[1] for trial in state.trials if trial.origin == "solved"}
    assert solved.keys() == {first, second} and {trial.spec.encoder for trial in state.plain_trials} == {first}
    better = second if solved[second] > solved[first] else first
    proposed = [trial for trial in state.trials if trial.origin not in ("plain", "solved", "words")]
    assert len(proposed) == 2 and {trial.spec.encoder for trial in proposed} == {better}
    assert done.result.test.scores and done.load().predict(["a good movie"])


def test_search_reads_long_texts_in_windows(tmp_path, encoders):
    space = Space.from_dict(
        {
            "head": {"pooling": "mean", "windows": ["mean", "max"]},
            "recipe": {"epochs": 10.0, "batch_size": 4, "learning_rate": {"log": [1e-2, 3e-2]}, "freeze": 1},
        }
    )
    texts = [" ".join([text] * 4) for text in TEXTS]  # every window tells the label
    done = search(tmp_path, (texts, LABELS), encoders(), space=space, trials=5, max_length=16)
    proposed = [trial for trial in done.state.trials if trial.spec.head.windows]
    assert proposed and all(trial.best for trial in proposed) and done.result.verdict.claim != "untested"
    extras = [result.extra for trial in proposed for result in trial.results.values()]
    assert any(extra.get("first_layer") is not None for extra in extras)  # activations are stored by window
    assert "of windows" in write_report(done.run_dir).read_text()


def test_default_space_offers_windows_if_texts_are_cut(encoders):
    for texts, max_length, expected in ((TEXTS, 6, True), (TEXTS, 64, False)):
        task = Task.load((texts, LABELS))
        space, _ = _resolve_space(task, SearchOptions(max_length=max_length), [encoders()], False)
        assert ("windows" in space.tree["head"]) == expected
    pairs = Task.load((TEXTS, OTHERS, LABELS))
    space, _ = _resolve_space(pairs, SearchOptions(max_length=6), [encoders()], False)
    assert "windows" not in space.tree["head"]
