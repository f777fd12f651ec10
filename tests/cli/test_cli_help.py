"""Help, version and start-up of the command line."""

from __future__ import annotations

import inspect
import subprocess
import sys
from dataclasses import fields
from importlib.metadata import version

import pytest
from command_line import succeed
from typer.main import get_command

import headhunt
from headhunt.cli import app
from headhunt.data import Task
from headhunt.evaluation import DEFAULT_METRIC, metric_names
from headhunt.run.settings import DataOptions, Resources, SearchOptions

COMMANDS = get_command(app).commands
HEAVY = ("torch", "transformers", "ray", "optuna", "pandas", "pyarrow", "scipy", "sklearn", "numpy", "fastapi")

LOADED_BY_HELP = f"""
import contextlib, io, sys
import headhunt
assert "fit" in dir(headhunt)
from headhunt.cli import app
for words in [[], *([name] for name in {sorted(COMMANDS)!r})]:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        app([*words, "--help"], prog_name="headhunt")
    assert "Usage: headhunt" in out.getvalue(), words
print([name for name in {HEAVY!r} if name in sys.modules])
"""


LOADED_BY_WRONG_PATHS = f"""
import contextlib, io, sys
from headhunt.cli import app
for words in (
    ["predict", "nowhere", "hi"], ["serve", "nowhere"], ["push", "nowhere", "me/x"], ["export", "nowhere"],
    ["evaluate", ".", "nowhere.csv"], ["predict", ".", "--input", "nowhere.csv"],
    ["predict", ".", "hi", "--out", "nowhere/a.csv"], ["fit", "a.csv", "--out", "x", "--encoder", "./nowhere"],
    ["search", "a.csv", "--encoder", "./nowhere"], ["pretrain", "./nowhere", "--texts", "a.csv", "--out", "x"],
):
    err = io.StringIO()
    with contextlib.redirect_stderr(err), contextlib.suppress(SystemExit):
        app(words, prog_name="headhunt")
    assert "nowhere" in err.getvalue() and "exist" in err.getvalue(), (words, err.getvalue())
print([name for name in {HEAVY!r} if name in sys.modules])
"""


def read_help(command: str, columns: int, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", str(columns))
    return succeed(command, "--help")


def join_lines(text: str) -> str:
    """Return the text without boxes and line breaks."""
    return " ".join(text.replace("│", " ").split())


def test_import_and_help_load_no_heavy_modules():
    completed = subprocess.run([sys.executable, "-c", LOADED_BY_HELP], capture_output=True, text=True)
    assert completed.returncode == 0 and completed.stdout.strip() == "[]", completed


def test_wrong_paths_are_refused_before_anything_heavy_is_loaded(tmp_path):
    (tmp_path / "headhunt.json").write_text("{}")
    command = [sys.executable, "-c", LOADED_BY_WRONG_PATHS]
    completed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert completed.returncode == 0 and completed.stdout.strip() == "[]", completed


def test_version_prints_installed_version():
    assert succeed("--version") == f"headhunt {version('headhunt')}\n"


@pytest.mark.parametrize(
    ("command", "default"),
    [("search", "a new one in runs/"), ("search", "10m"), ("resume", "the time that is left")],
)
def test_help_shows_defaults_given_in_words(command, default, monkeypatch):
    text = read_help(command, 200, monkeypatch)
    assert "╭" in text  # Rich's boxes, for which brackets in a help text are markup
    assert f"[default: ({default})]" in join_lines(text) or f"[default: {default}]" in join_lines(text)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_fits_80_columns_without_cut_words(command, monkeypatch):
    text = read_help(command, 80, monkeypatch)
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    for param in COMMANDS[command].params:
        assert all(f" {flag} " in text for flag in param.opts if flag.startswith("--")), param.name
        assert param.help, f"{param.name} has no help"


@pytest.mark.parametrize(
    ("command", "headings"),
    [
        ("search", ["Options", "Data", "Search", "Comparison of strategies", "Model limits", "Training", "Compute"]),
        ("fit", ["Options", "Data", "Training", "Compute"]),
        ("serve", ["Options", "Compute", "Request limits", "Timeouts"]),
    ],
)
def test_help_groups_options_under_headings(command, headings, monkeypatch):
    lines = [line for line in read_help(command, 80, monkeypatch).splitlines() if line.startswith("╭─ ")]
    assert [line.strip("╭╮─ ") for line in lines] == ["Arguments", *headings]


def test_search_help_lists_metrics_of_every_problem_type(monkeypatch):
    text = join_lines(read_help("search", 300, monkeypatch))
    for problem_type in DEFAULT_METRIC:
        assert f"{problem_type}: {', '.join(metric_names(problem_type))}" in text
    assert "[default: (accuracy, micro_f1 or spearman)]" in text
    assert list(DEFAULT_METRIC.values()) == ["accuracy", "micro_f1", "spearman"]


def test_every_option_of_the_library_is_a_flag_of_the_command():
    """One declaration feeds both; a flag that is not given has no value, so that a file of options may have it."""
    params = {param.name: param for param in COMMANDS["search"].params}
    shown = inspect.signature(headhunt.search).parameters
    for cls in (SearchOptions, Resources):
        for each in fields(cls):
            assert params[each.name].default is None and shown[each.name].default == each.default, each.name
            assert f"{each.name}: " in headhunt.search.__doc__
    assert {each.name for each in fields(DataOptions)} <= params.keys() & inspect.signature(Task.load).parameters.keys()
