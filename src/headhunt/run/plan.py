"""The plan of a search: the rows that candidates are compared on and the winner is trained on, within its time."""

from __future__ import annotations

import math
from dataclasses import dataclass

LEAST_EPOCHS = 2.0  # with fewer, fine-tuning on small data is not tried
THREAD_EXPONENT = 0.8  # of the speed-up by several threads; a worker has one
NEARLY_ALL = 0.8


@dataclass(frozen=True)
class Plan:
    """Rows, epochs and rates that fit into the time of a search."""

    rows: int
    """Training rows of the task."""
    compared_rows: int
    """Rows that candidates are trained on at the top rung; with cross-validation, all of them."""
    validation_rows: int
    """Rows that candidates are evaluated on; with cross-validation, all rows, each once."""
    final_rows: int
    """Rows that the winner and the plain head are trained on at the end."""
    first_rows: int
    """Rows that the first model learns from."""
    solved_rows: int
    """Rows that a solved head learns from after that."""
    test_rows: int
    """Test rows that are predicted at the end; 0 without test rows."""
    epochs: float
    """Largest number of epochs of a candidate."""
    folds: int = 1
    """Cross-validation folds; 1 where a validation split is used instead. The rungs are then numbers of rows."""
    plain_recipes: int = 2
    """Number of recipes that the plain head is trained with; the better one counts."""
    encoders: tuple[str, ...] = ()
    """Encoders that are compared by their solved heads, that of the plain head first; empty if there is one."""
    costs: tuple[float, ...] = ()
    """Cost of each of these encoders, relative to the first."""
    fine_tuning: bool = True
    """Whether there is time to train an encoder at all."""
    compares: bool = True
    """Whether candidates are evaluated on validation rows. If not, the best known recipe for few rows is trained."""
    rows_per_second: float = 0.0
    """Measured rate of one worker: texts or pairs through the frozen encoder."""
    examples_per_second: float = 0.0
    """Estimated rate of one worker: training examples of the plain head."""
    seconds: float | None = None
    """Time of the search; None is no limit."""

    def __post_init__(self) -> None:
        for name in ("rows", "compared_rows", "validation_rows", "final_rows", "first_rows", "solved_rows"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1; found {getattr(self, name)}.")
        if not all(0 < cost < math.inf for cost in self.costs):
            raise ValueError(f"costs must be above 0; found {self.costs}.")
        if not 0 < self.epochs <= 1000:
            raise ValueError(f"epochs must be above 0, up to 1000; found {self.epochs}.")

    @property
    def by_rows(self) -> bool:
        """True if the rungs are numbers of rows rather than of folds."""
        return self.folds == 1

    @property
    def samples(self) -> bool:
        """True if candidates see a sample of the rows."""
        return self.compared_rows < self.rows

    @property
    def only_solves(self) -> bool:
        """True if most of the time is for solving a head of the frozen encoder on as many rows as possible."""
        return self.by_rows and not self.fine_tuning

    def saves_as_evaluated(self, rows: int | None) -> bool:
        """Return True if a head solved on so many rows is saved as it is: the time for solving it twice is too long.

        A head that has seen nearly all rows is solved again, with the validation rows.
        """
        return (self.only_solves or self.grows) and rows is not None and rows < NEARLY_ALL * self.rows

    @property
    def grows(self) -> bool:
        """True if the last training sees far more rows than candidates were compared on.

        Its model is then evaluated itself: which candidate is best may change with so many rows.
        """
        return self.fine_tuning and self.by_rows and self.final_rows > 2 * self.compared_rows

    def cost_of(self, encoder: str) -> float:
        """Return the cost of an encoder, relative to that of the plain head."""
        return dict(zip(self.encoders, self.costs, strict=False)).get(encoder, 1.0)

    def rows_at(self, fraction: float) -> int | None:
        """Return the number of training rows at a rung; None with cross-validation."""
        return max(1, round(fraction * self.compared_rows)) if self.by_rows else None

    def epoch_seconds(self) -> float | None:
        """Estimate the seconds of one epoch of every training run of a candidate; None if the rate is not known."""
        if not self.examples_per_second:
            return None
        rows = self.compared_rows if self.by_rows else self.rows * (self.folds - 1)
        return rows / self.examples_per_second

    @property
    def sentence(self) -> str:
        """The plan in one line."""
        time = "no time limit" if self.seconds is None else format_duration(self.seconds)
        rows = f"{self.rows:,} rows, {time}"
        if self.only_solves:
            solved = f"a head is solved on up to {_about(self.solved_rows)} rows of the frozen encoder"
            return f"{rows}: {solved}; there is no time to train the encoder"
        if not self.samples and self.final_rows >= self.rows:
            if not self.compares:
                trained = f"the best known recipe for few rows is trained on all, for up to {self.epochs:.3g} epochs"
                return f"{rows}: {trained}; a longer search compares it with others"
            if not self.fine_tuning:
                return f"{rows}: most candidates keep the encoder frozen; there is little time to train it"
            return f"{rows}: candidates are trained on all rows, for up to {self.epochs:.3g} epochs"
        compared = f"candidates are compared on {_about(self.compared_rows)} rows"
        return f"{rows}: {compared}, the winner is trained on up to {_about(self.final_rows)}"


def format_duration(seconds: float) -> str:
    """Return a duration in words, such as 90 s, 5 min or 2 h."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.3g} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"


def _about(rows: int) -> str:
    """Return a number with two significant digits."""
    digits = max(0, len(str(rows)) - 2)
    return f"{round(rows, -digits):,}"
