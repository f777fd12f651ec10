"""Decide which trial is trained further, and when there is still time for it."""

from __future__ import annotations

from headhunt.run.state import State, Trial
from headhunt.study.baselines import Baselines
from headhunt.study.budget import TimeBudget
from headhunt.study.ladder import Ladder, Rungs


class Promotions:
    """Chooses the next trial to promote: a baseline, or one of the best of its rung.

    Attributes:
        rungs: The results by rung.

    Args:
        state: The state of the search.
        ladder: The rungs as fractions of full training.
        baselines: The plain and the solved heads.
        budget: The time of the search.
    """

    def __init__(
        self,
        state: State,
        ladder: Ladder,
        baselines: Baselines,
        budget: TimeBudget,
    ) -> None:
        self.rungs = Rungs(ladder)
        self._state, self._ladder, self._baselines, self._budget = state, ladder, baselines, budget

    @property
    def _cumulative(self) -> bool:
        """Whether each rung continues the one below; otherwise it starts again, with more rows."""
        return self._baselines.plan is None or self._baselines.plan.cross_validates

    def started(self, trial: Trial, rung: int) -> None:
        """Record that a trial has started a rung, so that it is not promoted to it again."""
        self.rungs.started(trial.number, trial.bracket, rung)

    def add(self, trial: Trial, rung: int) -> None:
        """Add the final result of a trial at a rung."""
        self.rungs.add(trial.number, trial.bracket, rung, trial.results[rung].score)

    def next(self) -> tuple[int, int] | None:
        """Return the trial to promote and its new rung, if there is one that ends in time."""
        if (promotion := self._baselines.next_of_plain()) is not None and self._fits(promotion[0]):
            return promotion
        while (promotion := self.rungs.next_promotion()) is not None:
            number, rung = promotion
            if self._fits(number):
                return promotion
            self.started(self._state.trials[number], rung)  # it is not promoted this time
        return None

    def last(self) -> tuple[int, int] | None:
        """Return the best trial below the top that can still finish and is not clearly worse than the plain head.

        Used towards the end, when a new trial could not reach the top rung any more. Of the plain heads only the better
        one goes on, at any time.
        """
        plain, trials = self._state.plain, self._state.trials
        for rung in range(self._ladder.top - 1, -1, -1):
            least = plain.lower_bound(rung) if plain is not None else None
            for number, score in self.rungs.waiting(rung):
                if least is not None and score < least:
                    break
                if not trials[number].is_plain and self._fits(number):
                    return number, rung + 1
        return None

    def full_budget_seconds(self, trial: Trial, rung: int) -> float | None:
        """Extrapolate a trial's seconds of full training from its results up to a rung; None without one there."""
        if rung not in trial.results:
            return None
        spent = sum(
            result.seconds
            for step, result in trial.results.items()
            if step == rung or (step < rung and self._cumulative)
        )
        return spent / self._ladder.fractions[rung]

    def _fits(self, number: int) -> bool:
        """Return whether there is time to train a trial from where it stands to the top rung."""
        trial = self._state.trials[number]
        seconds = self.full_budget_seconds(trial, trial.reached)
        done = self._ladder.fractions[trial.reached] if self._cumulative else 0.0
        return self._budget.fits(None if seconds is None else seconds * (1 - done))
