"""Progress on a terminal: bars and a panel; in a log, one line per event."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from rich.console import Console, Group, RenderableType
from rich.constrain import Constrain
from rich.live import Live
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from headhunt.evaluation import find_metric, format_validation_score
from headhunt.report.callbacks import Callback, RunningSearch
from headhunt.report.words import model_words, verdict_words
from headhunt.run.clock import steady_time
from headhunt.run.state import PLAIN, WORDS

if TYPE_CHECKING:
    from headhunt.run.state import Outcome, State, Trial
    from headhunt.training.loop import Report

JOBS = {
    "FitAllRows": "training on all rows",
    "PredictTestRows": "predicting the test rows",
    "PretrainEncoder": "training the encoder further",
}
BAR = 24  # columns of the bar of time
KEYS = 4  # columns beside the panel for ^C^C, which the terminal prints there: a line that wraps breaks the frame
LOG_INTERVAL = 30.0  # seconds between lines of a log that report only progress
SPEED_PERIOD = 600.0  # seconds of which the speed is the mean: a shard may take minutes


def _bar(*columns: TextColumn) -> Progress:
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        *columns,
        console=console,
        transient=True,
        disable=not sys.stderr.isatty(),
        speed_estimate_period=SPEED_PERIOD,
        get_time=time.monotonic,
    )


@contextmanager
def training_bar(name: str) -> Iterator[Callable[[Report], None]]:
    """Show a bar that follows the reports of one training run."""
    with _bar(TextColumn("loss {task.fields[loss]}")) as progress:
        bar = progress.add_task(name, total=None, loss="–")

        def update(report: Report) -> None:
            progress.update(bar, completed=report.examples, total=report.total, loss=f"{report.loss:.3f}")

        yield update


@contextmanager
def counting_bar(name: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Show a bar that counts rows."""
    with _bar() as progress:
        bar = progress.add_task(name, total=total)
        yield lambda count: progress.update(bar, advance=count)


class RowsView:
    """Progress of labelling a corpus: a bar on a terminal, a line every half minute in a log."""

    def begin(self, total: int, done: int) -> None:
        """Open the bar.

        Args:
            total: Number of rows.
            done: Number of rows that were labelled earlier.
        """
        self._logged_at = time.monotonic()
        if done:
            self._log(f"{done:,} of {total:,} rows are labelled already; continuing")
        self._bar = _bar(TextColumn("{task.fields[rate]}"))
        self._bar.add_task("labelling", total=total, completed=done, rate="")
        self._bar.start()

    def advance(self, rows: int) -> None:
        """Count rows."""
        (task,) = self._bar.tasks
        self._bar.update(task.id, advance=rows)
        if not task.speed:
            return
        rate = f"{task.speed:,.0f} rows/s"
        self._bar.update(task.id, rate=rate)
        if self._bar.disable and time.monotonic() - self._logged_at > LOG_INTERVAL:
            self._logged_at = time.monotonic()
            left = format_duration((task.remaining or 0) / task.speed)
            self._log(f"{task.completed:,} of {task.total:,} rows, {rate}, {left} left")

    def end(self) -> None:
        """Close the bar."""
        self._bar.stop()

    def _log(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)


class SearchView(Callback):
    """Progress of a search: a panel on a terminal."""

    def on_start(self, search: RunningSearch) -> None:
        """Open the panel."""
        self._search, self._started = search, steady_time()
        self._first: float | None = None  # seconds until the first model was on disk
        if search.deadline is not None and not search.state.trials:  # the clock started with the command
            self._started = min(self._started, search.deadline - (search.settings.time or 0.0))
        console = Console(stderr=True)
        self._width = console.width - KEYS
        self._live = Live(get_renderable=self._draw, console=console, refresh_per_second=2, transient=True)
        self._live.start()

    def on_end(self, search: RunningSearch) -> None:
        """Close the panel."""
        self._live.stop()

    def _draw(self) -> RenderableType:
        elapsed = steady_time() - self._started
        if self._first is None and self._search.state.model is not None:
            self._first = elapsed
        try:
            return Constrain(panel(self._search, elapsed, self._first), self._width)
        except RuntimeError:  # the state changed while it was drawn; the next drawing follows in half a second
            return Text("…")


class SearchLog(Callback):
    """A log of a search: a line for each stage, each new best score and each error, else one every half minute.

    Args:
        stream: Where it goes; by default to the file `search.log` of the run, with notes, traces and the verdict.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream

    def on_start(self, search: RunningSearch) -> None:
        """Begin the log."""
        self._started, self._logged_at, self._stage = steady_time(), 0.0, ""
        self._file = search.directory.log.open("a", encoding="utf-8") if self._stream is None else None
        self._saved, self._results = search.state.model is not None, len(search.state.settled)
        self._jobs = len(search.state.jobs)
        if self._file:
            task = search.directory.read_task_info()
            self._print(f"headhunt {version('headhunt')}, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC")
            for note in [*task.notes, *task.warnings]:
                self._print(note)
        place = short_path(search.directory.path)
        self._print(f"writing to {place}; progress: headhunt status {place}")

    def on_update(self, search: RunningSearch) -> None:
        """Log a new stage, or that time has passed."""
        state = search.state
        if state.model is not None and not self._saved:
            self._saved = True
            self._print("the first model is on disk")
        if search.stage != self._stage:
            self._stage = search.stage
            self._print(search.stage)
        for key, outcome in list(state.jobs.items())[self._jobs :]:
            self._log_error(key, outcome)
        self._jobs = len(state.jobs)
        if steady_time() - self._logged_at > LOG_INTERVAL and len(state.settled) > self._results:
            self._logged_at, self._results = steady_time(), len(state.settled)
            self._print(f"{count_results(state)}, {len(state.running)} running")

    def on_trial(self, search: RunningSearch, trial: Trial) -> None:
        """Log an error."""
        self._log_error(f"trial {trial.number}", trial.results[max(trial.results)])

    def on_best(self, search: RunningSearch, trial: Trial) -> None:
        """Log a new best score."""
        self._logged_at, self._results = steady_time(), len(search.state.settled)
        self._print(f"best so far {format_best(trial, search.settings.metric)}: {model_words(trial.spec)}")

    def on_end(self, search: RunningSearch) -> None:
        """Log the verdict."""
        if self._file:
            result = search.directory.read_result()
            self._print(verdict_words(result, search.directory.path) if result else "ended without a result")
            self._file.close()

    def _log_error(self, work: str, outcome: Outcome) -> None:
        if outcome.outcome != "ok":
            self._print(f"{work}: {outcome.outcome}: {outcome.extra.get('message', 'no message')}")
            if self._file and "trace" in outcome.extra:
                self._print(outcome.extra["trace"])

    def _print(self, line: str) -> None:
        elapsed = format_duration(steady_time() - self._started)
        print(f"[{elapsed:>6}] {line}", file=self._file or self._stream, flush=True)


def search_view() -> Callback:
    """Return a view for standard error: a panel on a terminal, else a log."""
    return SearchView() if Console(stderr=True).is_terminal else SearchLog(sys.stderr)


def count_results(state: State) -> str:
    """Return the number of trials and results in words."""
    trials, results = len(state.trials), len(state.settled)
    return f"{trials} trial{'s' if trials != 1 else ''}, {results} result{'s' if results != 1 else ''}"


def panel(search: RunningSearch, elapsed: float, first_model: float | None = None) -> RenderableType:
    """Return a panel with the current state of a search.

    Args:
        search: The search.
        elapsed: Seconds since it began.
        first_model: Seconds until its first model was on disk; None if there is none, or this is not known.
    """
    state, metric, clock = search.state, search.settings.metric, format_duration(elapsed)
    bar = ""
    if search.deadline is not None:
        total = elapsed + search.deadline - steady_time()
        done = round(BAR * min(1.0, elapsed / max(total, 1.0)))
        bar, clock = "█" * done + "░" * (BAR - done) + "  ", f"{clock} of {format_duration(total)}"
    first = "" if first_model is None else f"     first model {format_duration(first_model)}"
    table = Table.grid(padding=(0, 2), expand=True)
    table.add_column(style="dim", no_wrap=True, min_width=7)
    table.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    for number, line in enumerate([search.stage, *_running(state)]):
        table.add_row("" if number else "now", line)
    best = state.trials[state.model.trial] if state.model is not None else state.best
    if best is not None:
        score = f"{format_best(best, metric)}  " if best.best else "not scored yet: "
        table.add_row("best", Text(score + _name(best), "green"))
    if rivals := [f"{words}: {found}" for words, found in _rivals(state, best, metric)]:
        table.add_row("to beat", ", ".join(rivals))
    failed = sum(result.score is None for trial in state.trials for result in trial.results.values())
    scored = sum(trial.best is not None for trial in state.trials)
    counts = f"{scored} of {len(state.trials)} candidates so far" + (f", {failed} failed" if failed else "")
    table.add_row("tried", counts if state.trials else "nothing yet")
    return Panel(
        Group(
            Text.assemble((search.name, "bold"), f" · {find_metric(metric).name}"),
            Text.assemble((bar, "cyan"), clock, first),
            table,
            Text("Ctrl-C: finish within a minute and keep the best model", "dim"),
        ),
        title="headhunt",
        title_align="left",
        border_style="cyan",
    )


def _name(trial: Trial) -> str:
    """Return a candidate in words."""
    return "usual head, fine-tuned" if trial.origin == PLAIN else model_words(trial.spec)


def _running(state: State) -> Iterator[str]:
    """Yield what the workers do, in words."""
    for key, number in list(state.active.items())[:4]:
        kind = JOBS.get(key.partition("/")[0])
        if kind is not None:
            yield f"{kind}: {_name(state.trials[number])}"
    for number in list(state.running)[:4]:
        yield f"evaluating: {_name(state.trials[number])}"


def _rivals(state: State, best: Trial | None, metric: str) -> Iterator[tuple[str, str]]:
    """Yield what a user would try otherwise, and how good it is."""
    words = next((trial for trial in state.trials if trial.origin == WORDS), None)
    for name, trial in (("word counts", words), ("usual head", state.plain)):
        if trial is not None and trial is not best:
            at_work = trial.number in {*state.running, *state.active.values()}
            yield name, format_best(trial, metric) if trial.best else "running" if at_work else "not yet"


def best_so_far(state: State) -> list[tuple[float, float]]:
    """Return seconds and score of each new best result; a higher rung replaces a lower one."""
    curve: list[tuple[float, float]] = []
    best = (-1, -math.inf)
    for (number, rung), seconds in zip(state.settled, state.times, strict=True):
        score = state.trials[number].results[rung].score
        if score is not None and (rung, score) > best:
            best = (rung, score)
            curve.append((seconds, score))
    return curve


def format_best(trial: Trial, metric: str) -> str:
    """Return a trial's score on validation rows, of its longest training."""
    return "–" if trial.best is None else format_validation_score(metric, trial.best[1])


def repeated_test_use(test_evaluations: int) -> str:
    """Return a note about repeated use of the test rows; empty if they were evaluated at most once."""
    return f"Test rows evaluated {test_evaluations} times." if test_evaluations > 1 else ""


def short_path(path: Path) -> Path:
    """Return a path relative to the current directory, if it is inside."""
    return path.relative_to(Path.cwd()) if path.is_absolute() and path.is_relative_to(Path.cwd()) else path


def format_duration(seconds: float) -> str:
    """Return a duration in text: "42 s", "3:05", "1:02:45"."""
    total = round(seconds)
    if total < 60:
        return f"{total} s"
    minutes = f"{total // 60 % 60:02d}:{total % 60:02d}"
    return f"{total // 3600}:{minutes}" if total >= 3600 else minutes.removeprefix("0")
