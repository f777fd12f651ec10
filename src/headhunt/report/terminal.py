"""What the user sees while waiting: bars and a panel on a terminal; in a log, lines for what is worth knowing."""

from __future__ import annotations

import math
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from headhunt.spec import describe

if TYPE_CHECKING:
    from pathlib import Path

    from headhunt.run.state import State, Trial
    from headhunt.training.loop import Report


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
    """A bar that follows the reports of one training."""
    with _bar(TextColumn("loss {task.fields[loss]}")) as progress:
        bar = progress.add_task(name, total=None, loss="–")

        def show(report: Report) -> None:
            progress.update(bar, completed=report.examples, total=report.total, loss=f"{report.loss:.3f}")

        yield show


@contextmanager
def counting_bar(name: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """A bar that counts rows."""
    with _bar() as progress:
        bar = progress.add_task(name, total=total)
        yield lambda count: progress.update(bar, advance=count)


class RowsView:
    """How far a corpus is: a bar on a terminal, a line now and then in a log."""

    EVERY = 30.0  # seconds between lines

    def __init__(self) -> None:
        self._bar: Progress | None = None

    def begin(self, total: int, done: int) -> None:
        """Opens the bar: so many rows in all, and so many done earlier."""
        self._total, self._done = total, done
        self._seen: deque[tuple[float, int]] = deque(maxlen=32)
        self._told = time.monotonic()
        if done:
            self._say(f"{done:,} of {total:,} rows were labelled before; going on")
        if sys.stderr.isatty():
            self._bar = _bar(TextColumn("{task.fields[rate]}"))
            self._task = self._bar.add_task("labelling", total=total, completed=done, rate="")
            self._bar.start()

    def advance(self, rows: int) -> None:
        """Counts rows."""
        now = time.monotonic()
        self._done += rows
        self._seen.append((now, self._done))
        (before, count), left = self._seen[0], self._total - self._done
        # Counted from the first report: how long that took says more of starting than of labelling.
        rate = (self._done - count) / (now - before) if now > before else 0.0
        pace = f"{rate:,.0f} rows/s" if rate else ""
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done, rate=pace)
        elif rate and now - self._told > self.EVERY:
            self._told = now
            self._say(f"{self._done:,} of {self._total:,} rows, {pace}, {clock_words(left / rate)} left")

    def end(self) -> None:
        """Closes the bar."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _say(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)


class SearchView:
    """How a search goes: a panel on a terminal, a line for each thing worth knowing in a log.

    Args:
        metric: What scores are.
    """

    def __init__(self, metric: str) -> None:
        self.metric = metric
        self._console = Console(stderr=True)
        self._live: Live | None = None
        self._shown: tuple[State, float | None, str] | None = None
        self._told = (0, "", 0.0, "")
        self._began = time.time()

    def begin(self, folder: Path, name: str, state: State, deadline: float | None) -> None:
        """Opens the panel."""
        self._began = time.time()
        self._name = name
        self._shown = (state, deadline, "starting")
        if self._console.is_terminal:
            self._live = Live(get_renderable=self._draw, console=self._console, refresh_per_second=2, transient=True)
            self._live.start()
        else:
            self._say(f"working in {folder}; headhunt status {folder} tells how it goes")

    def update(self, state: State, deadline: float | None, stage: str) -> None:
        """Notes what is known now."""
        self._shown = (state, deadline, stage)
        if self._live is None:
            self._log(state, deadline, stage)

    def end(self) -> None:
        """Closes the panel."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _say(self, line: str) -> None:
        print(f"[{clock_words(time.time() - self._began):>6}] {line}", file=sys.stderr, flush=True)

    def _log(self, state: State, deadline: float | None, stage: str) -> None:
        """In a log: each new best, each new stage, and a sign of life every half a minute."""
        results, said, at, model = self._told
        best = state.best
        headline = f"{best.number}/{best.best}" if best else ""
        folder = state.model.folder if state.model else ""
        if folder and not model:
            self._say("a first model is on disk")
        if stage != getattr(self, "_stage", None):
            self._stage = stage
            self._say(stage)
        elif headline and headline != said and best is not None:
            self._say(f"best so far {score_words(best)}: {describe(best.spec)}{against_plain(state)}")
        elif time.time() - at > 30 and len(state.settled) > results:
            self._say(f"{len(state.trials)} candidates, {len(state.settled)} results, {len(state.running)} running")
        else:
            self._told = (results, said, at, folder)
            return
        self._told = (len(state.settled), headline, time.time(), folder)

    def _draw(self) -> RenderableType:
        assert self._shown is not None
        state, deadline, stage = self._shown
        try:
            return panel(state, deadline, stage, self.metric, self._name, time.time() - self._began)
        except RuntimeError:  # the ledger grew while it was read; the next picture is half a second away
            return Text("…")


def panel(
    state: State, deadline: float | None, stage: str, metric: str, name: str, spent: float, width: int = 60
) -> RenderableType:
    """A picture of a search as it stands."""
    head = Text.assemble((f"{name}  ", "bold"), stage)
    left = "" if deadline is None else f", {clock_words(max(0.0, deadline - time.time()))} left"
    head.append(f"   {clock_words(spent)}{left}", "dim")
    lines: list[RenderableType] = [head]
    best = state.best
    plain = state.trials[0] if state.trials else None
    table = Table.grid(padding=(0, 2))
    if best is not None:
        spec = best.spec
        table.add_row(Text("best so far", "bold"), Text(score_words(best), "bold green"), describe(spec))
    if plain is not None:
        words = score_words(plain) if plain.best else "training" if plain.number in state.running else "–"
        table.add_row("plain head", words, "the encoder's own, what everyone uses")
    lines.append(table)
    curve = best_so_far(state)
    if len(curve) > 1:
        lines.append(Text.assemble((sparkline([score for _, score in curve], width), "green"), f"  {metric}"))
    rungs = Table.grid(padding=(0, 2))
    top = max((rung for trial in state.trials for rung in trial.results), default=-1)
    for rung in range(top + 1):
        count = sum(rung in trial.results for trial in state.trials)
        running = sum(at == rung for at in state.running.values())
        rungs.add_row(f"rung {rung}", "█" * min(count, width) + "░" * running, str(count))
    lines.append(rungs)
    for number, rung in list(state.running.items())[:8]:
        spec = state.trials[number].spec
        lines.append(Text(f"  #{number} at rung {rung}: {describe(spec)}", "dim", no_wrap=True, overflow="ellipsis"))
    failed = sum(result.score is None for trial in state.trials for result in trial.results.values())
    foot = f"{len(state.trials)} candidates, {len(state.settled)} results" + (f", {failed} failed" if failed else "")
    lines.append(Text(f"{foot}   Ctrl-C: end now with what was found", "dim"))
    return Panel(Group(*lines), title="headhunt", title_align="left", border_style="cyan")


def best_so_far(state: State) -> list[tuple[float, float]]:
    """Seconds and the best score of the highest rung reached by then."""
    curve: list[tuple[float, float]] = []
    best = (-1, -math.inf)
    for (number, rung), at in zip(state.settled, state.times, strict=True):
        score = state.trials[number].results[rung].score
        if score is not None and (rung, score) > best:
            best = (rung, score)
            curve.append((at, score))
    return curve


def sparkline(values: Sequence[float], width: int) -> str:
    """Numbers as a row of small bars."""
    if len(values) > width:
        step = len(values) / width
        values = [values[int(i * step)] for i in range(width)]
    low, high = min(values), max(values)
    marks = "▁▂▃▄▅▆▇█"
    return "".join(marks[round((value - low) / (high - low) * 7) if high > low else 3] for value in values)


def score_words(trial: Trial) -> str:
    """A trial's best score and the rung it was reached at."""
    if trial.best is None:
        return "–"
    rung, score = trial.best
    return f"{score:.4f} (rung {rung})"


def against_plain(state: State) -> str:
    """How far the best is from the plain head, where both were judged alike."""
    best, plain = state.best, state.trials[0]
    if best is None or best.best is None or plain.best is None or best is plain or best.best[0] != plain.best[0]:
        return ""
    return f" (plain head {plain.best[1]:.4f})"


def clock_words(seconds: float) -> str:
    """Seconds as people say them."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return (
        f"{whole // 60}:{whole % 60:02d}"
        if whole < 3600
        else f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"
    )
