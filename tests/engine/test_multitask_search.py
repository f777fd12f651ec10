"""A search with several tasks, from the data to the delivered model, on the command line and in Python."""

from __future__ import annotations

import json

import numpy as np
import pytest
from command_line import refuse, succeed
from labelled_rows import write_csv
from multitask import SPACE, make_tasks, rows_of_tasks
from transformers import pipeline

import headhunt
from headhunt.engine.trial_runner import TrialRunner
from headhunt.engine.workers import RunnerSettings
from headhunt.errors import HeadhuntError, ModelError
from headhunt.evaluation import measure
from headhunt.report import write
from headhunt.run.directory import read_predictions
from headhunt.run.task import open_task
from headhunt.study.requests import EvaluateTrial

METRIC = "accuracy,accuracy,pearson"


@pytest.fixture(scope="module")
def finished(encoders, tmp_path_factory):
    """A search of three trials that was resumed for three more."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADHUNT_CACHE", str(tmp_path_factory.mktemp("cache")))
        out = tmp_path_factory.mktemp("search") / "run"
        options = {"time": None, "space": SPACE, "workers": 0, "callbacks": []}
        headhunt.search(make_tasks(), encoder=encoders(), trials=3, out=out, **options)
        yield headhunt.resume(out, trials=6, callbacks=[])


def test_search_ends_tested_with_one_model(finished):
    result, state = finished.result, finished.state
    assert finished.settings.metric == METRIC and finished.task.problem_type == "multi_task"
    assert len(state.trials) == 6 and {"plain", "solved"} <= {trial.origin for trial in state.trials}
    assert all(outcome.outcome == "ok" for trial in state.trials for outcome in trial.results.values())
    assert "mean 0." in result.verdict.sentence
    assert result.ensemble is None and finished.directory.read_plan().folds == 3
    assert [task.name for task in result.test.tasks] == ["mood", "pairs", "length"]
    for model, scores in result.test.scores.items():
        values = [task.scores[model][task.metric].value for task in result.test.tasks]
        assert scores[METRIC].value == pytest.approx(np.mean(values))
    solved = result.winner is not None and result.winner.spec.recipe.is_solved  # then it is not listed twice
    assert {"plain", "winner" if solved else "solved"} <= result.test.scores.keys()
    gains = [task.gain for task in result.test.tasks if task.gain is not None]
    assert not gains or result.verdict.gain == pytest.approx(np.mean(gains))


def test_score_of_a_trial_is_the_mean_over_tasks_of_rows_it_has_not_seen(finished):
    targets = open_task(finished.directory.task).splits["train"].targets
    for trial in finished.state.trials:
        rung, score = trial.best
        rows, outputs = read_predictions(finished.directory.predictions(trial.number, rung))
        assert score == pytest.approx(measure("multi_task", METRIC, outputs, targets[rows]), abs=1e-6)
        tasks = targets["task"][rows]
        assert (outputs[tasks == 0, 2] == 0).all() and (outputs[tasks == 2, 1:] == 0).all()
        assert np.allclose(outputs[tasks != 2].sum(1), 1, atol=1e-4)


def test_model_predicts_every_task(finished, tmp_path):
    model = finished.load()
    assert model.tasks == ("mood", "pairs", "length")
    (mood,) = model.predict("a good movie", task="mood")
    (pair,) = model.predict("a good movie", "a bad film", task="pairs")
    (length,) = model.predict("a good movie", task="length")
    assert mood.probabilities.keys() == {"good", "bad"} and pair.probabilities.keys() == {"good", "bad", "other"}
    assert isinstance(length.label, float) and length.probability is None
    with pytest.raises(ModelError, match="task= must be one of mood, pairs, length; found nothing"):
        model.predict("a good movie")
    with pytest.raises(ModelError, match="found 'other'"):
        model.predict("a good movie", task="other")
    with pytest.raises(ModelError, match="takes two texts"):
        model.predict("a good movie", task="pairs")
    with pytest.raises(ModelError, match="cannot be calibrated"):
        model.calibrate(2.0)
    model.for_task("mood").save(tmp_path / "mood")
    assert headhunt.load(tmp_path / "mood").predict("a good movie") == [mood]
    (exact,) = headhunt.load(tmp_path / "mood", precision="fp32").predict("a good movie")
    (alone,) = pipeline("text-classification", str(tmp_path / "mood"), trust_remote_code=True)("a good movie")
    assert alone["label"] == exact.label and alone["score"] == pytest.approx(exact.probability, abs=1e-5)
    with pytest.raises(ModelError, match="this model has one"):
        headhunt.load(tmp_path / "mood").predict("a good movie", task="mood")


def test_command_line_predicts_evaluates_and_exports_a_task(finished, tmp_path):
    model = finished.model_dir
    expected = finished.load().predict("a good movie", "a bad film", task="pairs")[0]
    printed = succeed("predict", model, "a good movie", "a bad film", "--task", "pairs", "--json")
    assert json.loads(printed)["label"] == expected.label
    refuse("predict", model, "a good movie", fragments=["--task must be one of mood, pairs, length"])
    corpus = ["predict", model, "--input", tmp_path, "--out", tmp_path / "labelled"]
    refuse(*corpus, "--task", "mood", fragments=["one task", "headhunt export"])
    refuse(*corpus, fragments=["has several", "headhunt export"])
    rows = rows_of_tasks()["length"]
    data = write_csv(tmp_path / "length.csv", zip(rows["text"], rows["label"], strict=True), ("text", "label"))
    evaluated = json.loads(succeed("evaluate", model, data, "--task", "length", "--json"))
    assert evaluated["problem_type"] == "regression" and evaluated["rows"] == 24
    assert "the model of mood is in" in succeed("export", model, "--task", "mood", "--out", tmp_path / "mood")
    assert succeed("predict", tmp_path / "mood", "a good movie").split("\t")[0] in ("good", "bad")
    refuse("export", model, "--out", tmp_path / "other", fragments=["Give --task NAME"])
    refuse("export", model, fragments=["Give --onnx OUT"])


def test_status_report_and_card_show_every_task(finished):
    printed = succeed("status", finished.run_dir)
    assert all(f"TASK     {name}, " in printed for name in ("mood", "pairs", "length")) and "--task mood" in printed
    page = write(finished.run_dir).read_text()
    found = json.loads(finished.directory.report_data.read_text())
    assert [task["name"] for task in found["scores"]["tasks"]] == ["mood", "pairs", "length"]
    assert list(found["scores"]["metrics"]) == ["mean"] and "<h3>length: pearson</h3>" in page
    assert found["repeat"]["command"][0] == "headhunt search" and "--tasks TASKS" in found["repeat"]["command"]
    card = (finished.model_dir / "README.md").read_text()
    assert "One model for 3 tasks." in card and "Pearson's r" in card and "| mean |" in card
    assert 'task="mood"' in card and "a good movie" not in card


def test_ablation_reverts_what_belongs_to_tasks(finished):
    result = headhunt.ablate(finished.run_dir, callbacks=[])
    assert result.metric == METRIC and result.items and not result.failed


def test_evaluation_without_a_task_trains_on_the_others_alone(finished, tmp_path):
    settings = RunnerSettings(str(finished.run_dir), metric=METRIC, device="cpu", precision="fp32")
    runner, task = TrialRunner(settings), open_task(finished.directory.task)
    recipe = headhunt.Recipe(epochs=1, freeze="embeddings", batch_size=8, standardize=True, task_layers=1)
    spec = headhunt.Spec(encoder=finished.state.trials[0].spec.encoder, recipe=recipe)
    request = {"trial": 0, "spec": spec, "seed": 0, "rung": 0, "fraction": 1 / 3}
    everything, others = (
        runner.run(EvaluateTrial(**request, left_out=left_out, predictions=tmp_path / f"{left_out}.npz"))
        for left_out in (None, 1)
    )
    missing = task.splits["train"].targets["task"][runner.folds[0][0]] == 1
    assert missing.any() and everything.examples - others.examples == missing.sum()
    with np.load(tmp_path / "None.npz") as one, np.load(tmp_path / "1.npz") as other:
        assert one["outputs"].shape == other["outputs"].shape, "the task that is left out is predicted all the same"


def test_search_refuses_what_several_tasks_do_not_have(encoders, tmp_path):
    task = make_tasks()
    for options, message in (
        ({"metric": "accuracy"}, "metric= cannot be given with several tasks"),
        ({"calibrate": True}, "cannot be calibrated"),
    ):
        with pytest.raises(HeadhuntError, match=message):
            headhunt.search(task, encoder=encoders(), out=tmp_path / "run", callbacks=[], **options)
    for metric, message in (("mse", "found mse"), ("mcc", "Task 'length': The metric must be one of mse, pearson")):
        loaded = {name: headhunt.Task.load(rows) for name, rows in rows_of_tasks().items()}
        with pytest.raises(HeadhuntError, match=message):
            headhunt.search(headhunt.join_tasks(loaded, {"length": metric}), out=tmp_path / "run", callbacks=[])


def test_command_line_refuses_both_and_neither(tmp_path):
    data = write_csv(tmp_path / "a.csv", [("a text", "good")])
    refuse("search", fragments=["Give DATA for one task or --tasks for several; found neither"])
    refuse("search", data, "--tasks", tmp_path, fragments=["found both"])
    refuse("search", "--tasks", tmp_path, "--label", "x", fragments=["--label cannot be given with --tasks"])


def test_fit_scores_every_task(encoders):
    spec = headhunt.Spec(encoder=encoders(), recipe=headhunt.Recipe(epochs=1, task_layers=1, task_sampling="sum"))
    predictor = headhunt.fit(make_tasks(), spec=spec, precision="fp32")
    test = predictor.facts["test"]
    assert test["tasks"].keys() == {"mood", "pairs", "length"} and METRIC in test["scores"]
