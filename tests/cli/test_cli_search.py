"""`headhunt search` and the commands on a run directory."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from command_line import COMMAND, refuse, run, succeed, write_csv
from conftest import sentences
from searches import QUICK, run_search

import headhunt
from headhunt.cli.search import overhead
from headhunt.evaluation import Score
from headhunt.run.directory import RunDirectory
from headhunt.run.results import AblationItem, AblationResult, SearchResult, TestResult, TrialSummary, Verdict
from headhunt.run.schema import RunError, dump
from headhunt.spec import Spec, plain

pytestmark = pytest.mark.usefixtures("own_cache")


# ------------------------------------------------------------------------------------------------ run directories


def test_resume_and_status_report_a_missing_model(tmp_path, encoders, monkeypatch):
    search = run_search(tmp_path, encoders(), trials=1)
    monkeypatch.setattr("headhunt.run.directory.RunDirectory.best_model", lambda *_, **__: None)
    completed = run("resume", tmp_path / "run", "--trials", 1)
    assert completed.code == 2 and "headhunt resume" in completed.err and "--time 10m" in completed.err, completed
    printed = succeed("status", tmp_path / "run")
    assert "no model yet" in printed and "verdict RUN" not in printed
    with pytest.raises(RunError, match="has no model yet"):
        search.load()


def test_resume_verdict_and_ablate_write_the_report_again(tmp_path, encoders, monkeypatch):
    search = run_search(tmp_path, encoders(), trials=1)
    item = AblationItem("mean in place of max", score=0.88, difference=-0.02, low=-0.03, high=0.01, seeds=1)
    ablation = AblationResult(3, "accuracy", 58, Score(0.9, 0.85, 0.95), items=(item,), failed=("MLP",))
    monkeypatch.setattr("headhunt.engine.search.verdict", lambda *_, **__: search)
    monkeypatch.setattr("headhunt.engine.search.ablate", lambda *_, **__: ablation)
    for command, *options in (["resume", "--trials", 1], ["verdict"], ["ablate"]):
        printed = succeed(command, tmp_path / "run", *options)
        assert "report in" in printed
        assert ("below 0: the part helps" in printed) == (command == "ablate")
        assert ("-0.0200  (-0.0300 to +0.0100)  mean in place of max" in printed) == (command == "ablate")
        assert ("not evaluated: MLP" in printed) == (command == "ablate")
        (tmp_path / "run" / "report.html").unlink()
    assert json.loads(succeed("ablate", tmp_path / "run", "--json")) == dump(ablation)
    assert not (tmp_path / "run" / "report.html").exists()


@pytest.mark.parametrize("command", ["resume", "verdict", "ablate"])
def test_run_commands_pass_ray_and_trust_remote_code(command, tmp_path, monkeypatch):
    calls = []

    def record(folder, **options):
        calls.append(options)

    monkeypatch.setattr(f"headhunt.engine.search.{command}", record)
    monkeypatch.setattr("headhunt.cli.search.end_search", lambda *_, **__: None)
    monkeypatch.setattr("headhunt.cli.search.print_ablation", lambda *_, **__: None)
    monkeypatch.setattr("headhunt.cli.search.report", lambda folder: None)
    succeed(command, tmp_path)
    succeed(command, tmp_path, "--ray", "10.0.0.1:6379", "--trust-remote-code", "--workers", 2, "--time", "5m")
    without, given = calls
    assert not {"ray", "trust_remote_code"} & without.keys()
    assert given["ray"] == "10.0.0.1:6379" and given["trust_remote_code"] is True
    assert given["workers"] == 2 and given["time"] == "5m"


@pytest.mark.parametrize("command", ["verdict", "ablate"])
def test_verdict_and_ablate_refuse_fewer_than_one_seed(command, tmp_path):
    for seeds in (0, -3):
        completed = run(command, tmp_path, "--seeds", seeds)
        assert completed.code == 2 and "Invalid value for '--seeds'" in completed.err


def test_run_commands_refuse_a_folder_without_a_run(tmp_path):
    for command in ("resume", "verdict", "ablate", "report", "status"):
        refuse(command, tmp_path, fragments=[str(tmp_path)])


# ------------------------------------------------------------------------------------------------ options


@pytest.mark.parametrize("words", [["--max-latency", "0ms"], ["--max-latency", "-20ms"], ["--max-size", "-0.5GB"]])
def test_search_refuses_model_limits_that_are_not_positive(words, tmp_path):
    refuse("search", tmp_path / "missing.csv", *words, fragments=[f"{words[0]} must be above 0", words[1]])


def test_search_refuses_a_wrong_duration_before_reading_data(tmp_path):
    refuse("search", tmp_path / "missing.csv", "--time", "soon", fragments=["--time must be a duration", "'soon'"])


UNAIDED = ("--no-known-recipes",)


def test_search_passes_every_option_to_the_library(tmp_path, monkeypatch, encoders):
    texts, labels = sentences(40)
    data = write_csv(tmp_path / "data.csv", "review,stars", list(zip(texts, labels, strict=True)))
    calls = []
    monkeypatch.setattr("headhunt.engine.search.search", lambda task, **options: calls.append((task, options)))
    monkeypatch.setattr("headhunt.cli.search.end_search", lambda *_, **__: None)
    expected = {
        "out": tmp_path / "run",
        "time": "90s",
        "trials": 5,
        "target": 0.9,
        "max_latency": "20ms",
        "max_size": "60MB",
        "max_memory": "4GB",
        "deliver": "ensemble",
        "rungs": 3,
        "eta": 2,
        "brackets": 2,
        "epochs": 15.0,
        "space": "paper",
        "strategy": "tpe",
        "metric": "macro_f1",
        "encoder": encoders(),
        "max_length": 64,
        "seed": 3,
        "precision": "fp32",
        "workers": 2,
        "ray": "10.0.0.1:6379",
        "device": "cpu",
        "reject": 0.8,
        "reject_label": "other",
        "unlabelled": "texts.txt",
    }
    words = [word for name, value in expected.items() for word in (f"--{name.replace('_', '-')}", value)]
    columns = ["--text", "review", "--label", "stars", "--limit", 20]
    before = time.time()
    succeed("search", data, *words, *columns, "--calibrate", "--no-pretrain", "--trust-remote-code", *UNAIDED)
    ((task, options),) = calls
    assert options.pop("callbacks")
    # The time counts from the start of the command, and covers the start of the program and the report.
    needed = overhead(90.0)
    assert needed > 0 and before - needed <= options.pop("started") <= time.time() - needed
    switches = {"calibrate": True, "pretrain": False, "trust_remote_code": True, "known_recipes": False}
    assert options == {**expected, **switches}
    assert (task.columns.text, task.columns.label) == ("review", "stars") and len(task.splits["train"]) <= 20


@pytest.mark.parametrize("given", ["auto", "commas", "repeated", "none"])
def test_search_passes_one_or_several_encoders(given, tmp_path, monkeypatch, encoders):
    first, second = encoders("bert"), encoders("electra")
    words, expected = {
        "auto": (["--encoder", "auto"], "auto"),
        "commas": (["--encoder", f"{first},{second}"], [first, second]),
        "repeated": (["--encoder", first, "--encoder", second], [first, second]),
        "none": ([], None),
    }[given]
    texts, labels = sentences(40)
    data = write_csv(tmp_path / "data.csv", "text,label", list(zip(texts, labels, strict=True)))
    calls = []
    monkeypatch.setattr("headhunt.engine.search.search", lambda task, **options: calls.append(options.get("encoder")))
    monkeypatch.setattr("headhunt.cli.search.end_search", lambda *_, **__: None)
    succeed("search", data, *words)
    assert calls == [expected]


def test_search_passes_group_and_order_to_the_task(tmp_path, monkeypatch):
    texts, labels = sentences(40)
    rows = [
        (text, label, at % 8, f"2024-01-{1 + at // 2:02d}")
        for at, (text, label) in enumerate(zip(texts, labels, strict=True))
    ]
    data = write_csv(tmp_path / "data.csv", "text,label,user,day", rows)
    tasks = []
    monkeypatch.setattr("headhunt.engine.search.search", lambda task, **_: tasks.append(task))
    monkeypatch.setattr("headhunt.cli.search.end_search", lambda *_, **__: None)
    succeed("search", data, "--group", "user")
    succeed("search", data, "--order", "day")
    assert tasks[0].columns.group == "user" and tasks[1].columns.order == "day"
    assert "validation" not in tasks[0].splits and "validation" in tasks[1].splits
    refuse("search", data, "--group", "user", "--order", "day", fragments=["group 'user', order 'day'", "not both"])
    refuse("search", data, "--order", "text", fragments=["neither a number nor an ISO date"])


def test_search_takes_options_from_a_file_below_those_of_the_command_line(tmp_path, monkeypatch, encoders):
    """`--print-config` prints what it would do; `--dry-run` checks data and encoder, and trains nothing."""
    texts, labels = sentences(40)
    data = write_csv(tmp_path / "data.csv", "review,stars", list(zip(texts, labels, strict=True)))
    config = tmp_path / "search.toml"
    config.write_text(f'time = "40s"\nrungs = 3\nworkers = 0\nlabel = "stars"\nencoder = "{encoders()}"\n')
    printed = tomllib.loads(succeed("search", "--config", config, "--print-config", "--rungs", 1, "--trials", 4))
    assert (printed["time"], printed["rungs"], printed["trials"], printed["label"]) == ("40s", 1, 4, "stars")
    refuse("search", data, "--config", config, "--label", "star", fragments=["Did you mean 'stars'"])
    calls = []
    with monkeypatch.context() as patch:
        patch.setattr("headhunt.engine.search.search", lambda task, **options: calls.append(options))
        patch.setattr("headhunt.cli.search.end_search", lambda *_, **__: None)
        succeed("search", data, "--config", config, "--time", "90s")
    assert calls[0].items() >= {"time": "90s", "rungs": 3, "workers": 0, "encoder": encoders()}.items()
    monkeypatch.chdir(tmp_path)
    assert "rows" in succeed("search", data, "--config", config, "--dry-run")
    assert not (tmp_path / "runs").exists()


# ------------------------------------------------------------------------------------------------ output


def test_print_result_names_delivered_and_other_models(tmp_path, capsys):
    from rich.console import Console

    from headhunt.cli.output import print_result

    scores = {"accuracy": Score(0.9, 0.85, 0.95)}
    result = SearchResult(
        reason="time",
        metric="accuracy",
        trials=4,
        results=4,
        seconds=60.0,
        examples=100,
        evaluated_on="folds",
        verdict=Verdict("plain", "no gain", "No reliable gain."),
        trained_rows=50,
        ensemble="ensemble",
        model="model",
        plain=TrialSummary(0, plain("any"), 1, 0.9),
        test=TestResult(
            30,
            {"winner": scores, "plain": scores, "ensemble": scores},
            confusion={"plain": [[1, 9, 0], [1, 8, 1], [0, 0, 10]]},
        ),
        test_evaluations=2,
    )
    directory = RunDirectory(Path("run"))
    settings, task = (
        SimpleNamespace(metric="accuracy"),
        SimpleNamespace(problem_type="single_label_classification", rows={"train": 100}, labels=("a", "b", "c")),
    )
    search = SimpleNamespace(result=result, run_dir=Path("run"), directory=directory, settings=settings, task=task)
    print_result(search, Console(width=80))
    assert capsys.readouterr().out.splitlines() == [
        "RESULT   90.0 % right (95 % sure: 85.0 to 95.0) on 30 test rows",
        "BETTER?  No reliable gain.",
        "         the best candidate: 90.0 % right (95 % sure: 85.0 to 95.0)",
        "         the mean of up to three unlike models (--deliver ensemble): 90.0 % right (95 % sure: 85.0 to 95.0)",
        "MODEL    run/model  plain head, nothing frozen, learning rate 0.0001",
        "         trained on 50 of 100 rows",
        "         ensemble, as one model: run/ensemble",
        "WEAKEST  a 1 of 10 found; b 8 of 10 found",
        "         the test rows were evaluated 2 times in this run",
    ]
    search.result = replace(result, test=replace(result.test, rows=3), test_evaluations=1)
    print_result(search, Console(width=80))
    assert capsys.readouterr().out.startswith("WARNING  3 test rows say next to nothing about the score\nRESULT ")
    search.result = None
    print_result(search, Console(width=80))
    assert capsys.readouterr().out == ""


# ------------------------------------------------------------------------------------------------ spaces


def test_space_prints_tree_and_number_of_architectures():
    printed = succeed("space", "paper")
    assert "architectures" in printed and "pooling" in printed
    data = json.loads(succeed("space", "paper", "--json"))
    assert f"{data['architectures']:,} architectures" in printed


def test_space_sample_draws_reproducible_specs():
    lines = succeed("space", "paper", "--sample", 5).splitlines()
    assert len(set(lines)) == 5 and all(Spec.from_json(line).to_json() == line for line in lines)
    assert succeed("space", "paper", "--sample", 5).splitlines() == lines
    assert set(succeed("space", "paper", "--sample", 5, "--seed", 1).splitlines()).isdisjoint(lines)
    pairs = [Spec.from_json(line) for line in succeed("space", "default", "--sample", 30, "--pair").splitlines()]
    assert any(spec.head.siamese for spec in pairs)
    assert not any(Spec.from_json(line).head.siamese for line in lines)


def test_space_refuses_missing_file(tmp_path):
    refuse("space", tmp_path / "nothing.toml", fragments=["nothing.toml"])


# ------------------------------------------------------------------------------------------------ processes

# A shell that starts the tests in the background makes them ignore SIGINT, and their children too.
SCRIPT = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from headhunt.cli import main
sys.argv = ["headhunt", *sys.argv[1:]]
main()
"""


def start_search(tmp_path: Path, encoder: str) -> subprocess.Popen:
    """Start a search in a process of its own and wait for its first model."""
    texts, labels = sentences(72)
    write_csv(tmp_path / "data.csv", "text,label", list(zip(texts, labels, strict=True)))
    (tmp_path / "space.json").write_text(json.dumps(QUICK.to_dict()))
    words = ["search", "data.csv", "--encoder", encoder, "--space", "space.json", "--workers", "0", "--out", "run"]
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, *words, "--time", "10m"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "HEADHUNT_CACHE": str(tmp_path / "cache")},
    )
    until = time.monotonic() + 60
    while not (tmp_path / "run" / "best" / "headhunt.json").exists():
        assert process.poll() is None and time.monotonic() < until, process.communicate()
        time.sleep(0.05)
    return process


def test_search_ctrl_c_once_ends_with_the_best_model_so_far(tmp_path, encoders):
    process = start_search(tmp_path, encoders())
    time.sleep(1.0)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert "run/model" in out and "interrupted" in out and "finishing within a minute" in err
    assert (tmp_path / "run" / "model" / "headhunt.json").exists()
    assert headhunt.resume(tmp_path / "run", time="3s").state.ended == "time"


@pytest.mark.slow
def test_search_ctrl_c_twice_stops_at_once_and_can_be_resumed(tmp_path, encoders):
    process = start_search(tmp_path, encoders())
    process.send_signal(signal.SIGINT)
    time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode in (0, 130), err
    assert "Traceback" not in err
    assert headhunt.resume(tmp_path / "run", trials=5, time="30s").load() is not None


def test_status_shows_a_search_that_is_running(tmp_path, encoders):
    process = start_search(tmp_path, encoders())
    words = [*COMMAND, "status", "run", "--json"]
    completed = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True)
    process.kill()
    _, err = process.communicate()
    status = json.loads(completed.stdout)
    assert status["ended"] is None and status["model"] and status["trials"] >= 1
    assert headhunt.load(tmp_path / status["model"]).predict(["a good movie"])
    assert "the first model is on disk" in err
