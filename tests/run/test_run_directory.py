"""The run directory: every file has its place, and what is read back is what was written, or refused."""

from __future__ import annotations

import json
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import sentences

from headhunt.data import Columns, Task
from headhunt.evaluation import Score
from headhunt.run.directory import RunDirectory, read_predictions, removable, write_arrays
from headhunt.run.results import (
    AblationItem,
    AblationResult,
    Finalist,
    Importance,
    Importances,
    Latency,
    Mistake,
    ModelCost,
    ReliabilityBin,
    RungSummary,
    SearchResult,
    TestResult,
    TrialSummary,
    Verdict,
)
from headhunt.run.schema import RunError, dump, is_bare_name, load
from headhunt.run.settings import SearchSettings
from headhunt.run.task import TaskInfo, open_task, read_task_info, save_task
from headhunt.spec import Spec, plain

SETTINGS = SearchSettings(encoder="any", space={"name": "own"}, time=90.0, workers=0)
TASK = TaskInfo(
    name="films",
    problem_type="single_label_classification",
    labels=("bad", "good"),
    columns=Columns("text", None, "label"),
    rows={"train": 80, "test": 20},
    fingerprint="abc",
    limit=100,
    test_given=True,
)
COST = ModelCost({"1": Latency(1.0, 2.0)}, 1000, 0.004, 0.1, "cpu")
RESULT = SearchResult(
    reason="time",
    metric="accuracy",
    trials=3,
    results=4,
    seconds=12.5,
    examples=1000,
    evaluated_on="3 folds, out of fold",
    verdict=Verdict("winner", "gain", "A reliable gain.", 0.05, 0.01, 0.09, 0.01, 0.002, 4),
    model="model",
    model_from="000001-all",
    trained_rows=80,
    winner=TrialSummary(1, plain("any"), 2, 0.9),
    plain=TrialSummary(0, plain("any"), 2, 0.8),
    finalists=(Finalist(1, (0.9, 0.91), COST),),
    rungs=(RungSummary(0, 1 / 9, 3, 0, 1, 1.5, None),),
    test=TestResult(
        20,
        {"winner": {"accuracy": Score(0.9, 0.8, 1.0)}},
        {"winner": [[9, 1], [1, 9]]},
        (ReliabilityBin(0.9, 0.8, 20),),
        1.5,
        (Mistake("a text", "good", "bad", 0.9),),
    ),
    test_evaluations=1,
    versions={"python": "3.11"},
)
ABLATION = AblationResult(1, "accuracy", 80, Score(0.9, 0.8, 1.0), (AblationItem("MLP", 0.8, -0.1, -0.2, 0.0, 2),))


def test_typed_files_are_read_back_as_written(tmp_path):
    directory = RunDirectory(tmp_path)
    directory.write(SETTINGS)
    directory.write(RESULT)
    directory.write(ABLATION)
    directory.write(Importances((Importance("head.pooling", 0.4),)))
    assert directory.read_settings() == SETTINGS
    assert directory.read_result() == RESULT
    assert directory.read_ablation() == ABLATION
    assert directory.read_importances() == Importances((Importance("head.pooling", 0.4),))


def test_missing_results_are_none_and_missing_settings_are_refused(tmp_path):
    directory = RunDirectory(tmp_path)
    assert directory.read_result() is None and directory.read_ablation() is None
    with pytest.raises(RunError, match="is not the run directory of a search: it has no settings"):
        directory.read_settings()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 4}, "Update Headhunt"),
        ({"schema": 2}, "run the search again"),
        ({"trials": "many"}, r"trials must be a whole number; found 'many'"),
        ({"trials": True}, "trials must be a whole number"),
        ({"seconds": "12"}, "seconds must be a number"),
        ({"gossip": 1}, "unknown key 'gossip'"),
        ({"model": "/etc"}, "model must be a bare name inside the run; found '/etc'"),
        ({"model_from": "../../elsewhere"}, "model_from must be a bare name"),
        ({"ensemble": ".."}, "ensemble must be a bare name"),
        (
            {"verdict": {"delivered": "both", "claim": "gain", "sentence": ""}},
            r"verdict\.delivered must be 'winner' or",
        ),
        ({"finalists": [{"trial": 1}]}, r"finalists\[0\]\.scores is missing"),
        ({"winner": {"trial": 1, "rung": 0, "score": 1, "spec": {"encoder": ""}}}, "encoder must name"),
    ],
)
def test_invalid_result_is_refused_with_place_and_reason(tmp_path, change, message):
    directory = RunDirectory(tmp_path)
    directory.write(RESULT)
    data = json.loads(directory.result.read_text())
    directory.result.write_text(json.dumps(data | change))
    with pytest.raises(RunError, match=message):
        directory.read_result()


def test_numbers_that_are_not_finite_survive_as_null():
    score = load(Score, json.loads(json.dumps(dump(Score(float("nan"), 0.0, float("inf"))))))
    assert np.isnan(score.value) and score.low == 0.0


def test_settings_hold_no_permission_and_no_address():
    assert not {"trust_remote_code", "ray"} & set(dump(SETTINGS))


def test_command_repeats_every_setting():
    settings = replace(SETTINGS, max_latency=20.0, calibrate=True, max_length=24)
    command = " ".join(settings.command(TASK, "space.json"))
    for words in ("--test TEST", "--limit 100", "--time 90s", "--max-latency 20ms", "--max-length 24", "--calibrate"):
        assert words in command, words
    without = " ".join(settings.command(replace(TASK, limit=None, test_given=False), "default"))
    assert "--test" not in without and "--limit" not in without
    columns = replace(TASK.columns, group="user", order="day")
    command = " ".join(settings.command(replace(TASK, columns=columns), "default"))
    assert "--group user" in command and "--order day" in command  # other rows would be tested


def test_task_is_stored_and_opened_split_by_split(tmp_path):
    task = Task.load(sentences(40))
    save_task(task, tmp_path)
    assert read_task_info(tmp_path) == TaskInfo.of(task)
    assert set(open_task(tmp_path).splits) == {"train"}
    test = open_task(tmp_path, ("test",)).splits["test"]
    assert test.texts() == task.splits["test"].texts() and np.array_equal(test.targets, task.splits["test"].targets)
    (tmp_path / "test.npz").unlink()
    assert open_task(tmp_path).splits["train"].texts() == task.splits["train"].texts()


def test_artefacts_have_their_places(tmp_path):
    directory = RunDirectory(tmp_path)
    folder = directory.checkpoint(12, 1)
    folder.mkdir(parents=True)
    (folder / "weights").write_bytes(b"x" * 10)
    assert directory.checkpoint_sizes() == {(12, 1): 10}
    assert directory.predictions(12, 1).name == "000012-1.npz"


def test_predictions_are_read_back_and_damage_is_refused(tmp_path):
    path = tmp_path / "p.npz"
    write_arrays(path, rows=np.arange(3), outputs=np.ones((3, 2)))
    assert read_predictions(path)[1].shape == (3, 2)
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(RunError, match="must hold predictions"):
        read_predictions(path)


def test_removable_names_unused_checkpoints_first_then_least_promising():
    sizes = {(0, 0): 5, (1, 0): 5, (2, 0): 5, (3, 1): 5}
    keep = [(3, 1), (2, 0), (1, 0)]
    assert removable(sizes, keep, None) == [(0, 0)]
    assert removable(sizes, keep, 15) == [(0, 0)]
    assert removable(sizes, keep, 12) == [(0, 0), (1, 0)]
    assert set(removable(sizes, keep, 0)) == set(sizes)
    assert removable(sizes, [(9, 9), *keep], 15) == [(0, 0)]


def make_model(path: Path) -> Path:
    path.mkdir(parents=True)
    (path / "headhunt.json").write_text("{}")
    return path


def test_best_model_is_the_delivered_one_after_the_end_and_the_latest_before(tmp_path):
    directory = RunDirectory(tmp_path)
    assert directory.best_model("000001", False) is None
    so_far = make_model(directory.models / "000001")
    assert directory.best_model("000001", False) == directory.best_model("000001", True) == so_far
    delivered = make_model(directory.model)
    assert directory.best_model("000001", True) == delivered
    assert directory.best_model("000001", False) == so_far


def test_final_models_lists_every_seed_in_order(tmp_path):
    directory = RunDirectory(tmp_path)
    for seed in (11, 0, 2):
        make_model(directory.final_model(3, seed))
    directory.final_model(3, 5).mkdir()  # not complete
    make_model(directory.final_model(4, 0))
    assert [path.name for path in directory.final_models(3)] == ["000003-all", "000003-all-2", "000003-all-11"]


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/etc", "a\\b", "c:d", ".hidden", "a\0b", 7, None])
def test_is_bare_name_refuses_paths(name):
    assert not is_bare_name(name)
    assert is_bare_name("000012-all")


def test_spec_in_result_keeps_its_hash(tmp_path):
    directory = RunDirectory(tmp_path)
    directory.write(RESULT)
    winner = directory.read_result().winner
    assert isinstance(winner.spec, Spec) and winner.spec.hash == RESULT.winner.spec.hash


@pytest.mark.parametrize("name", ["../model", "/etc/passwd", "a/b", "..", "", "C:x"])
def test_paths_of_a_run_are_built_from_bare_names_only(tmp_path, name):
    directory = RunDirectory(tmp_path)
    for build in (
        lambda: directory.test_predictions(name),
        lambda: directory.ablation_predictions(name, 0),
        lambda: directory.best_model(name, ended=False),
    ):
        with pytest.raises(RunError, match="must be that of a file in its folder"):
            build()


def test_sizes_ignore_foreign_names_and_files_that_vanish(tmp_path):
    directory = RunDirectory(tmp_path)
    for name in ("000001-0", "1x-2", "000002-1-all"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    assert directory.checkpoint_sizes() == {(1, 0): 0}


def test_claim_lets_one_of_many_searches_begin(tmp_path):
    directory, outcomes = RunDirectory(tmp_path / "run"), []

    def begin(number: int) -> None:
        with suppress(RunError), directory.claim():
            time.sleep(0.02)
            directory.write(replace(SETTINGS, seed=number))
            outcomes.append(number)

    threads = [threading.Thread(target=begin, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(outcomes) == 1 and directory.read_settings().seed == outcomes[0]
    with pytest.raises(RunError, match=r"holds a search\. Resume it"), directory.claim():
        pass


@pytest.mark.parametrize("metric", [".", "accuracy,", "accuracy,nothing"])
def test_settings_with_an_unknown_metric_are_refused(tmp_path, metric):
    directory = RunDirectory(tmp_path)
    directory.write(SearchSettings(encoder="any", space={}))
    stored = json.loads(directory.settings.read_text(encoding="utf-8"))
    directory.settings.write_text(json.dumps({**stored, "metric": metric}), encoding="utf-8")
    with pytest.raises(RunError, match="metric must be one of accuracy"):
        directory.read_settings()
