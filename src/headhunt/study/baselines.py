"""The trials that every search begins with: the plain head, and the solved head of every encoder."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

from headhunt.run.plan import LEAST_EPOCHS, Plan
from headhunt.run.state import PLAIN, SOLVED, State, Trial
from headhunt.spec import Spec
from headhunt.study.budget import TimeBudget
from headhunt.study.candidates import Candidates
from headhunt.study.ladder import Ladder

MORE_ROWS = 1.2  # factor from which a solved head is solved again with more rows


class Baselines:
    """Decides about the first trials, from the state of the search alone.

    Args:
        state: Returns the state of the search.
        candidates: The candidates; their encoder is chosen here.
        ladder: The rungs.
        budget: The time of the search.
        plan: The rows and epochs that fit into the time.
        solved: Whether to begin with solved heads.
    """

    def __init__(
        self,
        state: Callable[[], State],
        candidates: Candidates,
        ladder: Ladder,
        budget: TimeBudget,
        plan: Plan | None,
        *,
        solved: bool,
    ) -> None:
        self._state, self._candidates, self._ladder, self._budget = state, candidates, ladder, budget
        self._plan, self._solved = plan, solved

    def first_trials(self) -> Iterator[tuple[Spec, str, int]]:
        """Yield spec, origin and first rung of the plain head with each recipe, and of every encoder's solved head."""
        plan = self._plan
        for recipe in range(plan.plain_recipes if plan else 1):
            yield self._candidates.plain(recipe), PLAIN, max(0, self._ladder.top - 1)
        more = plan is not None and plan.by_rows and plan.solved_rows > MORE_ROWS * plan.first_rows
        for spec in self._candidates.solved() if self._solved else ():
            yield spec, SOLVED, 0 if more else self._ladder.top

    def has_solved(self, numbers: Iterable[int]) -> bool:
        """Return whether one of these trials is a solved head."""
        return any(self._state().trials[number].origin == SOLVED for number in numbers)

    def next_alone(self, *, one_machine: bool) -> tuple[int, int] | None:
        """Return the solved head that is solved with more rows before anything else, and its rung, if there is one.

        With all threads of a machine it takes no longer than beside others; other machines would wait for it.
        """
        plan = self._plan
        if plan is None or not plan.by_rows or len(self._candidates.encoders) > 1:
            return None
        return self.next_of_solved() if plan.only_solves or one_machine else None

    def next_of_solved(self) -> tuple[int, int] | None:
        """Return the solved head of the chosen encoder with more rows, if there is time for it.

        Where nothing else is trained, the best encoder that there is time for takes its place.
        """
        plan = self._plan
        if plan is None:
            return None
        solved = [trial for trial in self._state().trials if trial.origin == SOLVED]
        heads = [trial for trial in solved if trial.spec.encoder == self._candidates.encoder]
        if plan.only_solves and all(trial.bracket in trial.results for trial in solved):
            heads += sorted((trial for trial in solved if trial not in heads), key=_first_score, reverse=True)
        for trial in heads:
            if trial.reached >= self._ladder.top:
                return None  # one is enough
            result = trial.results.get(trial.bracket)
            if result is None or result.score is None:
                continue
            # Features of the first rows are known.
            more = (plan.solved_rows - plan.first_rows) / (plan.first_rows + plan.validation_rows)
            if self._budget.fits(result.seconds * more):
                return trial.number, self._ladder.top
        return None

    def next_of_plain(self) -> tuple[int, int] | None:
        """Return the promotion of the plain head: it is trained as far as candidates are, earned or not.

        With several recipes, the better one goes on when all have a result. If the time is limited and folds are
        rungs, it waits until a candidate with more than a small head goes on. Until then both are compared on the rows
        that both have predicted: more folds would cost as much as another candidate.
        """
        trials = self._state().plain_trials
        if self._plan is not None and self._plan.grows:
            return None  # its last training is evaluated, on far more rows
        if not trials or any(trial.number in self._state().running for trial in trials):
            return None
        plain = self._state().plain
        result = plain.results.get(plain.reached) if plain is not None else None
        if plain is None or plain.reached >= self._ladder.top or result is None or result.score is None:
            return None
        if self._plan is not None and not self._plan.by_rows and self._budget.deadline is not None:
            others = (trial for trial in self._state().trials if trial.reached > plain.reached and not trial.is_plain)
            if all(self._candidates.trains_head_only(trial.spec) for trial in others):
                return None
        return plain.number, plain.reached + 1

    def choose_encoder(self) -> None:
        """Search with the encoder whose solved head has the best score, once all of them have a result."""
        solved = [trial for trial in self._state().trials if trial.origin == SOLVED]
        if len(solved) < 2 or not all(trial.bracket in trial.results for trial in solved):
            return
        scores = {trial.number: trial.results[trial.bracket].score for trial in solved}
        scored = {number: score for number, score in scores.items() if score is not None}
        if scored:
            best = max(scored, key=lambda number: (scored[number], -number))
            self._candidates.encoder = encoder = self._state().trials[best].spec.encoder
            if self._plan is not None:  # an encoder that costs more leaves time for fewer epochs
                epochs = self._plan.epochs / max(1.0, self._plan.cost_of(encoder))
                self._candidates.max_epochs = max(min(LEAST_EPOCHS, self._plan.epochs), round(epochs, 2))

    def rows_of(self, trial: Trial, rung: int) -> int | None:
        """Return the number of rows that a trial is trained on at a rung; None with cross-validation."""
        if self._plan is None or not self._plan.by_rows:
            return None
        if trial.is_solved:
            return self._plan.solved_rows if rung == self._ladder.top else self._plan.first_rows
        return self._plan.rows_at(self._ladder.fractions[rung])


def _first_score(trial: Trial) -> float:
    """Return the score of a trial at its first rung, or the lowest if it has none."""
    score = trial.results[trial.bracket].score
    return -math.inf if score is None else score
