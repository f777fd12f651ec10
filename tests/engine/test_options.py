"""Options of a search: durations, quantities, targets and run directories."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import pytest
from conftest import sentences
from multitask import make_tasks
from searches import make_task

import headhunt
from headhunt.data import Task
from headhunt.engine.options import (
    MEGABYTES,
    MILLISECONDS,
    check_choices,
    check_deliver,
    check_device,
    check_new_directory,
    check_target,
    load_task,
    new_run_directory,
    parse_duration,
    parse_quantity,
)
from headhunt.engine.workers import rows_within
from headhunt.errors import HeadhuntError


@pytest.mark.parametrize(
    ("time", "expected"),
    [("90s", 90), ("10m", 600), ("1h30m", 5400), ("45", 45), (7.5, 7.5), (30, 30), ("1h5s", 3605), ("none", None)],
)
def test_parse_duration_reads_units(time, expected):
    assert parse_duration(time) == expected


@pytest.mark.parametrize("time", ["", "soon", "5x", "m", "-3s", "0s", "1.2.3s", "1h30", 0, -5, math.nan, math.inf])
def test_parse_duration_refuses_other_text(time):
    with pytest.raises(HeadhuntError, match="time= must be a duration"):
        parse_duration(time)


def test_parse_quantity_converts_units():
    assert parse_quantity("20ms", MILLISECONDS, "max_latency", "20ms") == 20
    assert parse_quantity("0.5 s", MILLISECONDS, "max_latency", "20ms") == 500
    assert parse_quantity(7, MILLISECONDS, "max_latency", "20ms") == 7
    assert parse_quantity("1GB", MEGABYTES, "max_size", "60MB") == 1000


@pytest.mark.parametrize("value", ["fast", "0ms", "-3ms", "5 lightyears", -1, 0, -0.5, math.nan, math.inf])
def test_parse_quantity_refuses_what_is_not_positive(value):
    with pytest.raises(HeadhuntError, match=r"max_latency= must be above 0, such as 20ms \(units: ms, s\)"):
        parse_quantity(value, MILLISECONDS, "max_latency", "20ms")


@pytest.mark.parametrize(("target", "metric", "most"), [(90, "accuracy", 1), (0.5, "mse", 0), (math.nan, "mcc", 1)])
def test_check_target_refuses_unreachable_score(target, metric, most):
    with pytest.raises(HeadhuntError, match=f"at most {most}, such as .* found {target:g}"):
        check_target(target, metric)
    check_target(most, metric)


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        (("typo", "auto", None), "strategy= must be one of prior, bohb, "),
        (("bohb", "fp61", None), "precision= must be one of auto, fp32, bf16; found 'fp61'"),
        (("bohb", "auto", -1), "workers= must be 0 or more; found -1"),
    ],
)
def test_check_choices_refuses_unknown_names(choices, message):
    with pytest.raises(HeadhuntError, match=message):
        check_choices(*choices)
    check_choices("bohb", "auto", 0)


def test_check_deliver_refuses_unknown_rules_and_an_ensemble_of_several_tasks():
    task = Task.load(sentences(24))
    for rule in ("best", "plain-unless-proven", "ensemble"):
        check_deliver(rule, task)
    with pytest.raises(HeadhuntError, match="must be best or plain-unless-proven or ensemble; found 'all'"):
        check_deliver("all", task)
    with pytest.raises(HeadhuntError, match="deliver=ensemble needs one task"):
        check_deliver("ensemble", make_tasks(24))


def test_load_task_refuses_options_of_a_loaded_task():
    task = Task.load(sentences(40))
    assert load_task(task, 0, {}) is task
    with pytest.raises(HeadhuntError, match=r"text= cannot be given with a Task; give them to Task\.load"):
        load_task(task, 0, {"text": "a"})


def test_load_task_passes_options_and_defaults_on():
    texts, labels = sentences(40)
    columns = {"text": texts, "label": labels, "day": list(range(40)), "user": [at % 8 for at in range(40)]}
    assert "validation" in load_task(columns, 0, {"order": "day"}).splits
    assert "validation" not in load_task(columns, 0, {"order": "day"}, validation_share=0).splits
    assert len(load_task(columns, 0, {"order": "day", "validation_share": 0.5}, validation_share=0).splits) == 3
    assert load_task(columns, 0, {"group": "user"}).columns.group == "user"


def test_check_new_directory_refuses_files_and_used_directories(tmp_path):
    check_new_directory(tmp_path / "new" / "model")
    (tmp_path / "file").write_text("x")
    for path in (tmp_path, tmp_path / "file"):
        with pytest.raises(HeadhuntError, match="out= must be a new or empty directory"):
            check_new_directory(path)
    with pytest.raises(HeadhuntError, match="cannot be written to"):
        check_new_directory(tmp_path / "file" / "model")


def test_new_run_directory_avoids_existing_ones(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert str(new_run_directory("my data/x")) == "runs/my-data-x"
    assert (tmp_path / "runs" / "my-data-x").is_dir()
    assert str(new_run_directory("my data/x")) == "runs/my-data-x-2"


def test_new_run_directory_gives_every_search_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with ThreadPoolExecutor(8) as pool:
        paths = list(pool.map(new_run_directory, ["films: good/bad"] * 24))
    assert len(set(paths)) == 24 and all(path.is_dir() and path.parent.name == "runs" for path in paths)


def test_rows_that_a_search_cannot_use_are_not_read():
    assert rows_within(None, None, "cpu", None) is None
    assert rows_within(60.0, None, "cpu", None) == 60_000
    assert rows_within(5.0, None, "cpu", None) == 50_000
    assert rows_within(60.0, None, "cpu", "auto") == rows_within(60.0, None, "cuda", None) == 600_000
    assert rows_within(60.0, 500_000, "cpu", "local") == 1_000_000, "rows that were asked for are read"


@pytest.mark.parametrize(
    ("device", "message"), [("gpu", "must be cuda, mps or cpu; found 'gpu'"), ("mps", "mps is not on this machine")]
)
def test_device_that_is_not_there_is_refused_before_any_work(tmp_path, device, message):
    """Issue: the workers waited for it for ever, and a run directory was left."""
    with pytest.raises(HeadhuntError, match=message):
        headhunt.search(make_task(), device=device, out=tmp_path / "run", time=5, view=False)
    assert not (tmp_path / "run").exists()
    check_device("cuda", ray="auto")  # a cluster may have what this machine lacks
    with pytest.raises(HeadhuntError, match="found 'gpu'"):
        check_device("gpu", ray="auto")
