"""A search from data to model, in this process: the run directory, stopping and resuming."""

from __future__ import annotations

import json
import math
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
from conftest import sentences

import headhunt
from headhunt.data import Task
from headhunt.engine import search as hunt_module
from headhunt.engine.search import Search, check_target, free_folder, seconds
from headhunt.errors import HeadhuntError
from headhunt.run.directory import Run
from headhunt.run.schema import RunError
from headhunt.run.task import open_task
from headhunt.spec import Space

QUICK = Space.from_dict(
    {
        "head": {"pooling": ["cls", "mean", "max"], "dropout": {"float": [0.0, 0.4]}},
        "recipe": {
            "epochs": 3.0,
            "learning_rate": {"log": [1e-3, 3e-2]},
            "freeze": ["embeddings", 1, "all"],
            "batch_size": [8, 16],
        },
    }
)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADHUNT_CACHE", str(tmp_path / "cache"))


def task(count: int = 72) -> Task:
    return Task.load(sentences(count))


def hunt(tmp_path, encoder, **options) -> Search:
    known = {"time": None, "trials": 8, "space": QUICK, "workers": 0, "out": tmp_path / "run"}
    return headhunt.search(task(), encoder=encoder, **{**known, **options})


def test_a_search_ends_with_a_model_and_a_leaderboard(tmp_path, encoders):
    found = hunt(tmp_path, encoders())
    board = found.leaderboard()
    assert len(found.state.trials) == 8 and found.state.ended == "trials"
    assert board[0]["trial"] == found.best.number and board[0]["rung"] == 2
    assert [row["score"] for row in board if row["rung"] == 2] == sorted(
        (row["score"] for row in board if row["rung"] == 2), reverse=True
    )
    assert found.model_dir == tmp_path / "run" / "model" and found.result["best"]["trial"] != 0
    assert found.load().predict(["the movie was great"])[0].label in ("good", "bad")
    card = json.loads((tmp_path / "run" / "model" / "headhunt.json").read_text())
    told = found.result["verdict"]
    assert card["task"]["trained_on"] == "all training rows"
    assert card["trial"] == (found.result["best"]["trial"] if told["delivered"] == "winner" else 0)
    assert (
        (told["claim"] == "gain") == (told["delivered"] == "winner") == told["sentence"].startswith("A reliable gain")
    )


def test_the_mean_of_the_best_can_be_taken_home_where_it_helps(tmp_path, encoders, monkeypatch):
    """A rule that always says it helps, so that what is saved is seen to be what was tested."""
    monkeypatch.setattr("headhunt.engine.final_test.helps", lambda together, alone: together is not None)
    found = hunt(tmp_path, encoders(), trials=12)
    result = found.result
    assert result["ensemble"] == "ensemble" and len(result["mean_of"]) >= 1 and "mean" in result["test"]
    mean = headhunt.load(tmp_path / "run" / "ensemble", precision="fp32")
    assert len(mean.members) == 3 * len(result["mean_of"])
    test = open_task(tmp_path / "run" / "task", ("test",)).splits["test"]
    right = mean.outputs(test.texts()).argmax(1) == test.targets
    assert right.mean() == pytest.approx(result["test"]["mean"]["accuracy"]["value"], abs=0.08)
    assert not (tmp_path / "run" / "ensemble.partial").exists()


def test_the_result_tells_the_test_score_beside_the_plain_head(tmp_path, encoders):
    result = hunt(tmp_path, encoders()).result
    assert {"model", "plain"} <= result["test"].keys()
    assert result["plain"]["trial"] == 0 and result["plain"]["score"] is not None
    assert [row["results"] for row in result["rungs"]][-1] >= 1
    assert 0 <= result["test"]["model"]["accuracy"]["low"] <= result["test"]["model"]["accuracy"]["value"]


def test_the_search_never_opens_the_test_rows_before_the_verdict(tmp_path, encoders, monkeypatch):
    """With the test rows unreadable until then, every candidate is judged all the same."""
    from headhunt.engine import final_test

    hidden, shown, judged = tmp_path / "hidden", tmp_path / "run" / "task", []
    reach = final_test.reach
    begin = headhunt.engine.search._Hunt.open

    def hide(self):
        hidden.mkdir()
        for path in shown.glob("test.*"):
            path.rename(hidden / path.name)
        return begin(self)

    def show(case, reason, seeds=None):
        judged.append(len(case.state.settled))
        for path in hidden.iterdir():
            path.rename(shown / path.name)
        return reach(case, reason, seeds)

    monkeypatch.setattr("headhunt.engine.search._Hunt.open", hide)
    monkeypatch.setattr("headhunt.engine.final_test.reach", show)
    found = hunt(tmp_path, encoders())
    assert judged[0] >= 8 and "model" in found.result["test"]


def test_a_search_that_is_resumed_gives_what_one_without_a_stop_gives(tmp_path, encoders):
    whole = hunt(tmp_path / "a", encoders(), trials=10)
    hunt(tmp_path / "b", encoders(), trials=4)
    going = headhunt.resume(tmp_path / "b" / "run", trials=10)
    assert [(row["trial"], row["score"]) for row in whole.leaderboard()] == [
        (row["trial"], row["score"]) for row in going.leaderboard()
    ]


def test_who_is_best_again_is_still_there(tmp_path, encoders):
    """The best model changes from one candidate to another and back: its folder must not be taken for an old one."""
    found = hunt(tmp_path, encoders(), trials=4)
    with Run(found.run_dir, write=True) as run:
        made = hunt_module._Hunt(found.run_dir, found.settings, time.time(), None, False)
        study = SimpleNamespace(state=run.state, chores=[], held=lambda number: None)
        for name in ("one", "two", "one", "three", "one"):
            folder = found.run_dir / "models" / name
            folder.mkdir(exist_ok=True)
            run.state.model = {"folder": name, "trial": 1}
            made._keep_best(study, None)
            assert folder.is_dir() and (found.run_dir / "best").resolve() == folder.resolve()
    assert not (found.run_dir / "models" / "two").exists()


def test_a_search_killed_in_its_verdict_reaches_it_when_resumed(tmp_path, encoders, monkeypatch):
    def die(*_):
        raise KeyboardInterrupt

    reach = headhunt.engine.search.final_test.reach
    monkeypatch.setattr("headhunt.engine.final_test.reach", die)
    with pytest.raises(KeyboardInterrupt):
        hunt(tmp_path, encoders(), trials=None, time=8)
    monkeypatch.setattr("headhunt.engine.final_test.reach", reach)
    left = Search(tmp_path / "run")
    assert left.state.ended == "time" and not left.result
    found = headhunt.resume(tmp_path / "run")
    assert found.result["verdict"] and found.model_dir == tmp_path / "run" / "model"


def test_everything_in_a_search_reads_as_much_of_a_text_as_was_asked_for(tmp_path, encoders):
    found = hunt(tmp_path, encoders(), trials=3, max_length=24)
    assert {trial.spec["recipe"]["max_length"] for trial in found.state.trials} == {24}
    assert found.load().recipe.max_length == 24
    starter = json.loads((tmp_path / "run" / "models" / "starter" / "headhunt.json").read_text())
    assert starter["recipe"]["max_length"] == 24
    assert "--max-length 24" in found.settings.command(found.about, "default")


@pytest.mark.parametrize("length", [7, 65])
def test_more_than_the_encoder_can_take_is_refused(tmp_path, encoders, length):
    with pytest.raises(HeadhuntError, match=rf"must be 8 to 64 tokens .* found {length}"):
        hunt(tmp_path, encoders(), max_length=length)
    with pytest.raises(HeadhuntError, match=rf"must be 8 to 64 tokens .* found {length}"):
        headhunt.fit(task(), encoder=encoders(), max_length=length)
    assert not (tmp_path / "run").exists()


def test_a_target_ends_it(tmp_path, encoders):
    found = hunt(tmp_path, encoders(), target=0.01, trials=None)
    assert found.state.ended == "target" and found.model_dir is not None


def test_time_ends_it_in_time(tmp_path, encoders):
    began = time.time()
    found = hunt(tmp_path, encoders(), time="6s", trials=None)
    assert time.time() - began < 9 and found.state.ended == "time"
    assert found.load() is not None


def test_no_time_for_any_candidate_still_gives_a_model(tmp_path, encoders):
    """Training that would take hours: what is left is the first model, which takes a second."""
    slow = Space.from_dict({"head": {"pooling": ["mean", "max"]}, "recipe": {"epochs": 1000.0, "batch_size": [1, 2]}})
    found = hunt(tmp_path, encoders(), time="5s", trials=None, space=slow)
    assert found.load() is not None and found.result["model_from"] in ("starter", "000000-all", "000000")
    (scores,) = found.result["test"].values()
    told = found.result["verdict"]["sentence"]
    assert scores["accuracy"]["value"] > 0 and ("could not be compared" in told or "No other candidate" in told)


def test_a_run_is_not_overwritten(tmp_path, encoders):
    hunt(tmp_path, encoders(), trials=1)
    with pytest.raises(RunError, match="resume"):
        hunt(tmp_path, encoders())


def test_a_used_up_time_is_told(tmp_path, encoders):
    hunt(tmp_path, encoders(), time="3s", trials=None)
    with pytest.raises(RunError, match="Give --time"):
        headhunt.resume(tmp_path / "run")
    going = headhunt.resume(tmp_path / "run", time="4s")
    assert going.state.elapsed > 3


def test_a_used_up_time_can_be_lifted(tmp_path, encoders):
    found = hunt(tmp_path, encoders(), time="3s", trials=None)
    replace(found.settings, trials=1).write(tmp_path / "run")
    assert headhunt.resume(tmp_path / "run", time="none").state.ended == "trials"


@pytest.mark.parametrize(("target", "metric", "most"), [(90, "accuracy", 1), (0.5, "mse", 0), (math.nan, "mcc", 1)])
def test_a_target_that_no_score_can_reach_is_refused(target, metric, most):
    with pytest.raises(HeadhuntError, match=f"at most {most}, as .* found {target:g}"):
        check_target(target, metric)
    check_target(most, metric)


def test_an_encoder_that_is_not_there_is_told_at_once(tmp_path):
    with pytest.raises(HeadhuntError, match="encoder must be"):
        hunt(tmp_path, str(tmp_path / "nothing"))
    assert not (tmp_path / "run").exists()


def test_candidates_that_all_fail_are_told(tmp_path, encoders):
    broken = Space.from_dict({"head": {"pooling": ["mean", "max"]}, "recipe": {"freeze": [7, 8, 9]}})
    found = hunt(tmp_path, encoders(), space=broken, trials=3)
    assert found.best.number == 0  # the plain head works
    assert {result.outcome for trial in found.state.trials[1:] for result in trial.results.values()} == {"error"}


@pytest.mark.parametrize(
    ("words", "expected"), [("90s", 90), ("10m", 600), ("1h30m", 5400), ("45", 45), (7.5, 7.5), ("none", None)]
)
def test_times(words, expected):
    assert seconds(words) == expected


@pytest.mark.parametrize("words", ["", "soon", "5x", "m", "-3s", "0s", "1.2.3s"])
def test_times_that_are_none(words):
    with pytest.raises(HeadhuntError, match="time must be"):
        seconds(words)


def test_a_new_folder_is_found(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert str(free_folder("my data/x")) == "runs/my-data-x"
    (tmp_path / "runs" / "my-data-x").mkdir(parents=True)
    assert str(free_folder("my data/x")) == "runs/my-data-x-2"
