"""Help, version and start-up of the command line."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version

import pytest
from command_line import succeed
from typer.main import get_command

from headhunt.cli import app
from headhunt.cli.options import PROBLEM_TYPES, Precision, Strategy
from headhunt.evaluation import DEFAULT_METRIC, metric_names

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


def read_help(command: str, columns: int, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", str(columns))
    return succeed(command, "--help")


def join_lines(text: str) -> str:
    """Return the text without boxes and line breaks."""
    return " ".join(text.replace("│", " ").split())


def test_import_and_help_load_no_heavy_modules():
    completed = subprocess.run([sys.executable, "-c", LOADED_BY_HELP], capture_output=True, text=True)
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


@pytest.mark.parametrize("flag", ["--kind", "--lanes", "--max-slow", "--max-drain"])
def test_help_does_not_show_renamed_flags(flag, monkeypatch):
    assert all(flag not in read_help(command, 200, monkeypatch) for command in COMMANDS)


def test_search_help_lists_metrics_of_every_problem_type(monkeypatch):
    text = join_lines(read_help("search", 300, monkeypatch))
    for problem_type in DEFAULT_METRIC:
        assert f"{problem_type}: {', '.join(metric_names(problem_type))}" in text
    assert "[default: (accuracy, micro_f1 or spearman)]" in text
    assert list(DEFAULT_METRIC.values()) == ["accuracy", "micro_f1", "spearman"]


def test_option_values_are_those_of_the_library():
    from headhunt.study.registry import STRATEGIES

    assert list(PROBLEM_TYPES) == list(DEFAULT_METRIC)
    assert set(Strategy) == set(STRATEGIES)
    assert set(Precision) == {"auto", "fp32", "bf16"}
