"""What the user sees while waiting: bars on a terminal, nothing in a pipe or a log."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

if TYPE_CHECKING:
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
