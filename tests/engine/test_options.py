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
    check_deliver,
    check_device,
    check_new_directory,
    check_target,
    choose_metric,
    load_task,
    new_run_directory,
)
from headhunt.engine.workers import rows_within
from headhunt.errors import HeadhuntError
from headhunt.run.settings import (
    MEGABYTES,
    MILLISECONDS,
    SearchOptions,
    parse_duration,
    parse_quantity,
    read_config,
    write_config,
)


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


@pytest.mark.parametrize(("time", "hint"), [("3min", "3m"), ("1 hour 30 minutes", "1h30m"), ("90 sec", "90s")])
def test_parse_duration_suggests_what_was_meant(time, hint):
    with pytest.raises(HeadhuntError, match=f"Did you mean '{hint}'"):
        parse_duration(time)


def test_choose_metric_suggests_the_nearest_name():
    with pytest.raises(HeadhuntError, match=r"found .f1_macro.\. Did you mean .macro_f1."):
        choose_metric(make_task(), "f1_macro")


def test_parse_quantity_converts_units():
    assert parse_quantity("20ms", "max_latency", MILLISECONDS, "20ms") == 20
    assert parse_quantity("0.5 s", "max_latency", MILLISECONDS, "20ms") == 500
    assert parse_quantity(7, "max_latency", MILLISECONDS, "20ms") == 7
    assert parse_quantity("1GB", "max_size", MEGABYTES, "60MB") == 1000


@pytest.mark.parametrize("value", ["fast", "0ms", "-3ms", "5 lightyears", -1, 0, -0.5, math.nan, math.inf])
def test_parse_quantity_refuses_what_is_not_positive(value):
    with pytest.raises(HeadhuntError, match=r"max_latency= must be above 0, such as 20ms \(units: ms, s\)"):
        parse_quantity(value, "max_latency", MILLISECONDS, "20ms")


@pytest.mark.parametrize(("target", "metric", "most"), [(90, "accuracy", 1), (0.5, "mse", 0), (math.nan, "mcc", 1)])
def test_check_target_refuses_unreachable_score(target, metric, most):
    with pytest.raises(HeadhuntError, match=f"at most {most}, such as .* found {target:g}"):
        check_target(target, metric)
    check_target(most, metric)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"strategy": "typo"}, "strategy= must be one of prior, bohb, "),
        ({"precision": "fp61"}, "precision= must be one of auto, fp32, bf16; found 'fp61'"),
        ({"deliver": "all"}, "deliver= must be one of single, ensemble; found 'all'"),
        ({"workers": -1}, "workers= must be at least 0; found -1"),
        ({"trials": 0}, "trials= must be at least 1; found 0"),
        ({"rungs": "two"}, "rungs= must be a whole number; found 'two'"),
        ({"rungs": 9}, "rungs= must be between 1 and 8; found 9"),
        ({"brackets": 3}, "brackets= must be between 1 and 2; found 3"),
        ({"epochs": 0}, "epochs= must be between 0.001 and 1000; found 0"),
        ({"max_size": "fast"}, "max_size= must be above 0, such as 60MB"),
        ({"time": []}, "time= must be a duration"),
    ],
)
def test_options_refuse_values_that_no_search_can_use(given, message):
    with pytest.raises(HeadhuntError, match=message) as caught:
        SearchOptions(**given)
    assert caught.value.argument in given
    assert SearchOptions().time == 600 and SearchOptions(max_size="1GB", time="none").max_size == 1000


def test_search_suggests_the_name_of_an_unknown_option():
    with pytest.raises(HeadhuntError, match=r"'strategie' is not an option of a search. Did you mean 'strategy'\?"):
        headhunt.search([], strategie="bohb")


def test_options_written_as_toml_are_read_as_the_same(tmp_path):
    """Every option has a line, with its default or as a comment; names that no option has are refused."""
    file = tmp_path / "search.toml"
    given = {"time": None, "max_size": 60.0, "encoder": ["a", "b"], "calibrate": True, "label": 'a "b"', "limit": 9}
    file.write_text(write_config(given), encoding="utf-8")
    read = read_config(file)
    names = given.keys() - {"label", "limit"}
    options, expected = (
        SearchOptions(**{key: read[key] for key in names}),
        SearchOptions(**{key: given[key] for key in names}),
    )
    assert options == expected and (read["label"], read["limit"], read["rungs"]) == ('a "b"', 9, 2)
    assert "# metric =" in file.read_text() and "trust_remote_code" not in file.read_text()
    for text, message in (
        ("rung = 2", "'rung' is not an option of a search. Did you mean 'rungs'"),
        ("x", "config= must be a TOML"),
    ):
        file.write_text(text, encoding="utf-8")
        with pytest.raises(HeadhuntError, match=message):
            read_config(file)


def test_check_deliver_refuses_an_ensemble_of_several_tasks():
    task = Task.load(sentences(24))
    for rule in ("single", "ensemble"):
        check_deliver(rule, task)
    with pytest.raises(HeadhuntError, match="deliver= cannot be an ensemble for several tasks"):
        check_deliver("ensemble", make_tasks(24))


def test_load_task_refuses_options_of_a_loaded_task():
    task = Task.load(sentences(40))
    assert load_task(task, 0, {}) is task
    with pytest.raises(HeadhuntError, match=r"text cannot be given with a Task; give them to Task\.load"):
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
        headhunt.search(make_task(), device=device, out=tmp_path / "run", time=5, callbacks=[])
    assert not (tmp_path / "run").exists()
    check_device("cuda", ray="auto")  # a cluster may have what this machine lacks
    with pytest.raises(HeadhuntError, match="found 'gpu'"):
        check_device("gpu", ray="auto")
