"""Progress on a terminal: bars and a panel; in a log, one line per event."""

from __future__ import annotations

import math
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from headhunt.evaluation import find_metric
from headhunt.run.clock import steady_time
from headhunt.spec import describe

if TYPE_CHECKING:
    from headhunt.run.state import State, Trial
    from headhunt.training.loop import Report

LOG_INTERVAL = 30.0  # seconds between lines of a log that report only progress


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

    def __init__(self) -> None:
        self._bar: Progress | None = None

    def begin(self, total: int, done: int) -> None:
        """Open the bar.

        Args:
            total: Number of rows.
            done: Number of rows that were labelled earlier.
        """
        self._total, self._done = total, done
        self._history: deque[tuple[float, int]] = deque(maxlen=32)
        self._logged_at = time.monotonic()
        if done:
            self._log(f"{done:,} of {total:,} rows are labelled already; continuing")
        if sys.stderr.isatty():
            self._bar = _bar(TextColumn("{task.fields[rate]}"))
            self._task = self._bar.add_task("labelling", total=total, completed=done, rate="")
            self._bar.start()

    def advance(self, rows: int) -> None:
        """Count rows."""
        now = time.monotonic()
        self._done += rows
        self._history.append((now, self._done))
        (before, count), left = self._history[0], self._total - self._done
        # Counted from the first report, because the time before it was mostly spent on starting.
        rate = (self._done - count) / (now - before) if now > before else 0.0
        rate_text = f"{rate:,.0f} rows/s" if rate else ""
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done, rate=rate_text)
        elif rate and now - self._logged_at > LOG_INTERVAL:
            self._logged_at = now
            self._log(f"{self._done:,} of {self._total:,} rows, {rate_text}, {format_duration(left / rate)} left")

    def end(self) -> None:
        """Close the bar."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _log(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)


class SearchView:
    """Progress of a search: a panel on a terminal, a line per event in a log.

    Args:
        metric: Name of the metric.
    """

    def __init__(self, metric: str) -> None:
        self.metric = find_metric(metric).score_name
        self._console = Console(stderr=True)
        self._live: Live | None = None
        self._current: tuple[State, float | None, str] | None = None
        self._stage = ""
        self._logged_best: tuple[int, tuple[int, float] | None] | None = None
        self._logged_model = False
        self._logged_results = 0
        self._logged_at = 0.0
        self._started = steady_time()

    def begin(self, folder: Path, name: str, state: State, deadline: float | None) -> None:
        """Open the panel."""
        self._started = steady_time()
        self._name = name
        self._current = (state, deadline, "starting")
        self._logged_model = state.model is not None  # of an earlier session
        if self._console.is_terminal:
            self._live = Live(get_renderable=self._draw, console=self._console, refresh_per_second=2, transient=True)
            self._live.start()
        else:
            place = short_path(folder)
            self._print(f"writing to {place}; progress: headhunt status {place}")

    def update(self, state: State, deadline: float | None, stage: str) -> None:
        """Show the current state."""
        self._current = (state, deadline, stage)
        if self._live is None:
            self._log(state, stage)

    def end(self) -> None:
        """Close the panel."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _print(self, line: str) -> None:
        print(f"[{format_duration(steady_time() - self._started):>6}] {line}", file=sys.stderr, flush=True)

    def _log(self, state: State, stage: str) -> None:
        """Log each new stage, each new best score, and otherwise the progress every half minute."""
        if state.model is not None and not self._logged_model:
            self._logged_model = True
            self._print("the first model is on disk")
        if stage != self._stage:
            self._stage = stage
            self._print(stage)
        best = state.best
        headline = (best.number, best.best) if best is not None else None
        if best is not None and headline != self._logged_best:
            self._print(f"best so far {format_best(best)}: {describe(best.spec)}{plain_head_note(state)}")
        elif steady_time() - self._logged_at > LOG_INTERVAL and len(state.settled) > self._logged_results:
            self._print(f"{count_results(state)}, {len(state.running)} running")
        else:
            return
        self._logged_results, self._logged_best, self._logged_at = len(state.settled), headline, steady_time()

    def _draw(self) -> RenderableType:
        assert self._current is not None
        state, deadline, stage = self._current
        try:
            return panel(state, deadline, stage, self.metric, self._name, steady_time() - self._started)
        except RuntimeError:  # the state changed while it was drawn; the next drawing follows in half a second
            return Text("…")


def count_results(state: State) -> str:
    """Return the number of trials and results in words."""
    trials, results = len(state.trials), len(state.settled)
    return f"{trials} trial{'s' if trials != 1 else ''}, {results} result{'s' if results != 1 else ''}"


def panel(
    state: State, deadline: float | None, stage: str, metric: str, name: str, elapsed: float, width: int = 60
) -> RenderableType:
    """Return a panel with the current state of a search."""
    head = Text.assemble((f"{name}  ", "bold"), stage)
    left = "" if deadline is None else f", {format_duration(max(0.0, deadline - steady_time()))} left"
    head.append(f"   {format_duration(elapsed)}{left}", "dim")
    lines: list[RenderableType] = [head, _best_table(state)]
    curve = best_so_far(state)
    if len(curve) > 1:
        lines.append(Text.assemble((sparkline([score for _, score in curve], width), "green"), f"  {metric}"))
    lines.append(_rung_table(state, width))
    for number, rung in list(state.running.items())[:8]:
        text = f"  #{number} at rung {rung}: {describe(state.trials[number].spec)}"
        lines.append(Text(text, "dim", no_wrap=True, overflow="ellipsis"))
    failed = sum(result.score is None for trial in state.trials for result in trial.results.values())
    foot = count_results(state) + (f", {failed} failed" if failed else "")
    lines.append(Text(f"{foot}   Ctrl-C: stop now and keep the best model", "dim"))
    return Panel(Group(*lines), title="headhunt", title_align="left", border_style="cyan")


def _best_table(state: State) -> Table:
    """Return the best candidate beside the plain head."""
    table = Table.grid(padding=(0, 2))
    best = state.best
    if best is not None:
        table.add_row(Text("best so far", "bold"), Text(format_best(best), "bold green"), describe(best.spec))
    plain = state.plain
    if plain is not None:
        score = format_best(plain) if plain.best else "training" if plain.number in state.running else "–"
        table.add_row("plain head", score, "the encoder's standard classification head")
    return table


def _rung_table(state: State, width: int) -> Table:
    """Return a bar per rung: finished results, and those that are running."""
    table = Table.grid(padding=(0, 2))
    top = max((rung for trial in state.trials for rung in trial.results), default=-1)
    for rung in range(top + 1):
        count = sum(rung in trial.results for trial in state.trials)
        running = sum(running_rung == rung for running_rung in state.running.values())
        table.add_row(f"rung {rung}", "█" * min(count, width) + "░" * running, str(count))
    return table


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


def sparkline(values: Sequence[float], width: int) -> str:
    """Return numbers as a row of small bars."""
    if len(values) > width:
        step = len(values) / width
        values = [values[int(i * step)] for i in range(width)]
    low, high = min(values), max(values)
    marks = "▁▂▃▄▅▆▇█"
    return "".join(marks[round((value - low) / (high - low) * 7) if high > low else 3] for value in values)


def format_best(trial: Trial) -> str:
    """Return a trial's best score and its rung."""
    if trial.best is None:
        return "–"
    rung, score = trial.best
    return f"{score:.4f} (rung {rung})"


def plain_head_note(state: State) -> str:
    """Return the score of the plain head, if it has one at the rung of the best trial."""
    best, plain = state.best, state.plain
    if best is None or best.best is None or plain is None or plain.best is None or best.is_plain:
        return ""
    if best.best[0] != plain.best[0]:
        return ""
    return f" (plain head {plain.best[1]:.4f})"


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
