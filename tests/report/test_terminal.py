"""Progress on a terminal and in a log."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from report_runs import make_run
from rich.console import Console

from headhunt.report import terminal
from headhunt.report.terminal import (
    SearchView,
    best_so_far,
    format_duration,
    panel,
    repeated_test_use,
    short_path,
    sparkline,
)
from headhunt.run.directory import RunDirectory
from headhunt.run.ledger import read_state
from headhunt.run.state import State


@pytest.fixture(scope="module")
def state(tmp_path_factory) -> State:
    return read_state(RunDirectory(make_run(tmp_path_factory.mktemp("terminal") / "run", 20, ended=False)))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (59.4, "59 s"), (60, "1:00"), (605, "10:05"), (3600, "1:00:00"), (7325, "2:02:05")],
)
def test_format_duration(seconds, text):
    assert format_duration(seconds) == text


def test_panel_shows_best_plain_head_and_running_trials(state):
    console = Console(width=120)
    with console.capture() as captured:
        console.print(panel(state, time.time() + 90, "searching", "accuracy", "films", 30.0))
    text = captured.get()
    assert "films" in text and "best so far" in text and "plain head" in text and "#20 at rung 0" in text
    assert "30 s" in text and "1:" in text and "Ctrl-C" in text and "rung 2" in text


def test_search_view_logs_stages_new_best_and_progress(state, capsys, monkeypatch):
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(terminal, "time", SimpleNamespace(time=lambda: clock.now))
    view = SearchView("accuracy")
    monkeypatch.setattr(view, "_console", Console(force_terminal=False))
    view.begin(Path("runs/films"), "films", state, None)
    for _ in range(3):
        view.update(state, None, "searching")
    clock.now += 31
    view.update(state, None, "searching")
    view.update(state, None, "testing")
    view.end()
    lines = [line.split("] ", 1)[1] for line in capsys.readouterr().err.splitlines()]
    assert lines[0].startswith("writing to runs/films") and lines[1] == "searching"
    assert lines[2].startswith(f"best so far {state.best.best[1]:.4f} (rung 2): ") and "plain head" in lines[2]
    assert lines[3] == "testing" and len(lines) == 4, "nothing is logged twice"


def test_short_path_is_relative_inside_the_current_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert short_path(tmp_path / "runs" / "films") == Path("runs/films")
    assert short_path(Path("/elsewhere/run")) == Path("/elsewhere/run") and short_path(Path("run")) == Path("run")


def test_best_so_far_prefers_higher_rungs(state):
    scores = [score for _, score in best_so_far(state)]
    assert scores[-1] == state.best.best[1]


def test_sparkline_spans_lowest_to_highest():
    assert sparkline([0.0, 1.0], 10) == "▁█" and len(sparkline(range(100), 10)) == 10


def test_repeated_test_use_is_noted_from_the_second_evaluation():
    assert repeated_test_use(1) == "" and repeated_test_use(3) == "Test rows evaluated 3 times."
