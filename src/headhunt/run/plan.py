"""The plan of a search: which rows candidates are trained and evaluated on, and how many epochs fit into its time."""

from __future__ import annotations

import math
from dataclasses import dataclass

THREAD_EXPONENT = 0.8  # of the speed-up by several threads; a worker has one


@dataclass(frozen=True)
class Plan:
    """Rows, epochs and rates of a search, decided once from a measurement."""

    rows: int
    """Training rows of the task."""
    used_rows: int
    """Rows that a candidate is trained on at most; fewer than all only where the time is too short for one epoch."""
    held_out: int
    """Rows that candidates are evaluated on: held-out ones or, with cross-validation, all, each once."""
    solved_rows: int
    """Rows that a head is solved on."""
    counted_rows: int
    """Rows whose words are counted, for the model that needs no encoder."""
    test_rows: int
    """Test rows that are predicted at the end; 0 without test rows."""
    folds: int = 1
    """Cross-validation folds; 1 where rows are held out instead."""
    epochs: float | None = None
    """Largest number of epochs of a candidate; None is as many as its recipe has."""
    encoders: tuple[str, ...] = ()
    """Encoders that are compared by their solved heads, that of the plain head first; empty if there is one."""
    costs: tuple[float, ...] = ()
    """Cost of each of these encoders, relative to the first."""
    rows_per_second: float = 0.0
    """Measured rate of one worker: texts or pairs through the frozen encoder."""
    examples_per_second: float = 0.0
    """Estimated rate of one worker: training examples of the plain head."""
    seconds: float | None = None
    """Time of the search; None is no limit."""

    def __post_init__(self) -> None:
        for name in ("rows", "used_rows", "held_out", "solved_rows", "counted_rows", "folds"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1; found {getattr(self, name)}.")
        if not all(0 < cost < math.inf for cost in self.costs):
            raise ValueError(f"costs must be above 0; found {self.costs}.")
        if self.epochs is not None and not 0 < self.epochs <= 1000:
            raise ValueError(f"epochs must be above 0, up to 1000; found {self.epochs}.")

    @property
    def cross_validates(self) -> bool:
        """True if a candidate is evaluated out of fold: its rungs are folds, and its model is fitted afterwards.

        Otherwise it is evaluated on held-out rows: its rungs are numbers of rows, and the top one leaves its model.
        """
        return self.folds > 1

    def cost_of(self, encoder: str) -> float:
        """Return the cost of an encoder, relative to that of the plain head."""
        return dict(zip(self.encoders, self.costs, strict=False)).get(encoder, 1.0)

    def rows_at(self, fraction: float) -> int | None:
        """Return the number of training rows at a rung; None with cross-validation."""
        return None if self.cross_validates else max(1, round(fraction * self.used_rows))

    def epoch_seconds(self) -> float | None:
        """Estimate the seconds of one epoch of a complete evaluation of a candidate; None if the rate is not known."""
        if not self.examples_per_second:
            return None
        return self.used_rows * max(1, self.folds - 1) / self.examples_per_second

    def prediction_seconds(self, rows: int, encoder: str | None = None) -> float:
        """Estimate the seconds that one worker takes to predict so many rows."""
        cost = 1.0 if encoder is None else self.cost_of(encoder)
        return rows * cost / self.rows_per_second if self.rows_per_second else 0.0

    @property
    def sentence(self) -> str:
        """The plan in one line."""
        time = "no time limit" if self.seconds is None else format_duration(self.seconds)
        trained = "all rows" if self.used_rows >= self.rows - self.held_out else f"{_about(self.used_rows)} rows"
        epochs = "" if self.epochs is None else f", for up to {self.epochs:.3g} epochs"
        return f"{self.rows:,} rows, {time}: candidates are trained on {trained}{epochs}"


def format_duration(seconds: float) -> str:
    """Return a duration in words, such as 90 s, 5 min or 2 h."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.3g} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"


def _about(rows: int) -> str:
    """Return a number with two significant digits."""
    digits = max(0, len(str(rows)) - 2)
    return f"{round(rows, -digits):,}"
