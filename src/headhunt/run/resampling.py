"""Decide which rows candidates are trained and evaluated on: what a rung is, and what a complete evaluation leaves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class CrossValidation:
    """Few rows: each is predicted by a model that has not seen it.

    A rung is a number of folds and continues the one below. The model is fitted on all rows afterwards.
    """

    folds: int = 3
    leaves_model = False
    """Whether a complete evaluation leaves a model to deliver."""

    def rows(self, count: int) -> int | None:
        """Return the number of training rows of a request; None for all rows of a fold."""
        return None

    def examples(self, rows: int) -> int:
        """Return the training examples of one epoch of a complete evaluation."""
        return rows * (self.folds - 1)

    def done(self, fraction: float) -> float:
        """Return how much of full training a rung of this fraction spares the next one."""
        return fraction

    def continued(self, rung: int) -> Sequence[int]:
        """Return the rungs whose state a rung may continue from, the highest first; one that was cut off has its own.

        They are also those whose seconds count.
        """
        return range(rung, -1, -1)


@dataclass(frozen=True)
class Holdout:
    """Many rows: candidates are trained on samples and predict the same rows, which are held out.

    A rung is a number of rows and starts again. The model of the top one can be delivered.
    """

    leaves_model = True
    """Whether a complete evaluation leaves a model to deliver."""

    def rows(self, count: int) -> int | None:
        """Return the number of training rows of a request."""
        return count

    def examples(self, rows: int) -> int:
        """Return the training examples of one epoch of a complete evaluation."""
        return rows

    def done(self, fraction: float) -> float:
        """Return how much of full training a rung of this fraction spares the next one."""
        return 0.0

    def continued(self, rung: int) -> Sequence[int]:
        """Return the rungs whose state a rung may continue from: only one that was cut off has any."""
        return (rung,)


Resampling = CrossValidation | Holdout
