"""Progress on a terminal and in a log."""

from __future__ import annotations

import io
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from report_runs import make_run, running_search
from rich.console import Console

from headhunt.report import terminal
from headhunt.report.callbacks import RunningSearch
from headhunt.report.terminal import (
    SearchLog,
    SearchView,
    best_so_far,
    format_best,
    format_duration,
    panel,
    repeated_test_use,
    short_path,
)
from headhunt.run.state import Outcome, State
from headhunt.spec import describe


@pytest.fixture(scope="module")
def running(tmp_path_factory) -> RunningSearch:
    return running_search(make_run(tmp_path_factory.mktemp("terminal") / "run", 20, ended=False))


@pytest.fixture
def state(running) -> State:
    return running.state


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (59.4, "59 s"), (60, "1:00"), (605, "10:05"), (3600, "1:00:00"), (7325, "2:02:05")],
)
def test_format_duration(seconds, text):
    assert format_duration(seconds) == text


def test_panel_shows_best_plain_head_and_running_trials(running):
    console = Console(width=120)
    with console.capture() as captured:
        console.print(panel(replace(running, name="films", deadline=time.time() + 90), 30.0))
    text = captured.get()
    assert "films · accuracy" in text and "best" in text and "usual head" in text and "evaluating: " in text
    assert "30 s of 2:00" in text and "Ctrl-C" in text and "rung" not in text and "%" in text
    assert max(map(len, text.splitlines())) <= 120


def test_panel_leaves_room_for_what_ctrl_c_prints(running, monkeypatch):
    """In the last column the terminal would begin a line for ^C, and the next drawing would miss the frame by one."""
    monkeypatch.setattr(terminal, "Console", lambda stderr: Console(width=60, file=io.StringIO(), force_terminal=True))
    view = SearchView()
    view.on_start(running)
    drawn = Console(width=60)
    with drawn.capture() as captured:
        drawn.print(view._draw())
    view.on_end(running)
    assert {len(line) for line in captured.get().splitlines()} == {60 - len("^C^C")}


def test_log_has_stages_new_best_errors_and_progress(running, capsys, monkeypatch):
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(terminal, "steady_time", lambda: clock.now)
    state = running.state
    logs = [SearchLog(sys.stderr), SearchLog()]

    def tell(method: str, *arguments) -> None:
        for log in logs:
            getattr(log, method)(running, *arguments)

    tell("on_start")
    for _ in range(3):
        tell("on_update")
    tell("on_best", state.best)
    clock.now += 31
    state.settled.append(state.settled[-1])
    state.times.append(state.times[-1])
    tell("on_update")
    tell("on_update")
    failed = replace(state.trials[3], results={0: Outcome("error", extra={"message": "boom", "trace": "File x"})})
    tell("on_trial", failed)
    state.jobs["FitAllRows/3"] = Outcome("lost")
    tell("on_update")
    tell("on_end")
    lines = [line.split("] ", 1)[1] for line in capsys.readouterr().err.splitlines()]
    assert lines[0].startswith("writing to ") and lines[1] == "searching"
    assert lines[2] == f"best so far {format_best(state.best, 'accuracy')}: {describe(state.best.spec)}"
    assert lines[3].endswith("1 running") and lines[4:] == ["trial 3: error: boom", "FitAllRows/3: lost: no message"]
    written = [line.split("] ", 1)[1] for line in running.directory.log.read_text().splitlines()]
    assert written[0].startswith("headhunt ") and "File x" in written and written[-1] == "ended without a result"
    assert [line for line in written if line in lines[1:]] == lines[1:], "the file has what standard error has"


def test_short_path_is_relative_inside_the_current_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert short_path(tmp_path / "runs" / "films") == Path("runs/films")
    assert short_path(Path("/elsewhere/run")) == Path("/elsewhere/run") and short_path(Path("run")) == Path("run")


def test_best_so_far_prefers_higher_rungs(state):
    scores = [score for _, score in best_so_far(state)]
    assert scores[-1] == state.best.best[1]


def test_repeated_test_use_is_noted_from_the_second_evaluation():
    assert repeated_test_use(1) == "" and repeated_test_use(3) == "Test rows evaluated 3 times."
