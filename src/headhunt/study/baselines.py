"""The trials that every search begins with: the plain head, solved heads, and the recipe that is best on other data."""

from __future__ import annotations

from collections.abc import Iterator

from headhunt.run.plan import Plan
from headhunt.run.state import KNOWN, PLAIN, SOLVED, WORDS, State, Trial
from headhunt.spec import Spec
from headhunt.study.candidates import Candidates, Params
from headhunt.study.ladder import Ladder


class Baselines:
    """Decides about the first trials, from the state of the search alone.

    Args:
        state: The state of the search.
        candidates: The candidates; their encoder is chosen here.
        ladder: The rungs.
        solved: Whether to begin with solved heads.
        known: Whether to begin with a known recipe.
    """

    def __init__(self, state: State, candidates: Candidates, ladder: Ladder, *, solved: bool, known: bool) -> None:
        self._state, self._candidates, self._ladder = state, candidates, ladder
        self._solved, self._known = solved, known
        self.plan: Plan | None = None

    def first_trials(self) -> Iterator[tuple[Spec, Params | None, str, int]]:
        """Yield spec, parameters, origin and first rung of the plain head and of every encoder's solved head.

        The plain head is tried with two learning rates: it is compared with candidates that have several.
        """
        plain = self._candidates.plain()
        yield plain, self._candidates.express(plain), PLAIN, self.first_rung
        for spec in self._candidates.solved() if self._solved else ():
            yield spec, None, SOLVED, self._ladder.top
        if self._solved and self._candidates.counts_words:
            yield self._candidates.words(), None, WORDS, self._ladder.top
        if self.plan is not None:
            second = self._candidates.plain(1)
            yield second, self._candidates.express(second), PLAIN, max(0, self._ladder.top - 1)

    @property
    def first_rung(self) -> int:
        """The rung at which candidates start that are trained on all rows anyway: one fold, or all rows."""
        validates_once = self.plan is not None and not self.plan.cross_validates
        return self._ladder.top if validates_once else max(0, self._ladder.top - 1)

    def recommended(self) -> tuple[Spec, Params, str, int] | None:
        """Return the known recipe that is best on other data of this size; None if the space has none."""
        known = self._candidates.known_recipes(learned=False) if self._known else []
        return (*known[0], KNOWN, self.first_rung) if known else None

    def unsolved(self) -> list[Trial]:
        """Return the trials without a result that need no training: word counts, and a solved head of each encoder."""
        trials = [trial for trial in self._state.trials if trial.origin in (WORDS, SOLVED) and not trial.results]
        return sorted(trials, key=lambda trial: trial.origin != WORDS)

    def next_of_plain(self) -> tuple[int, int] | None:
        """Return the promotion of the plain head: it is evaluated as thoroughly as candidates are, earned or not.

        If the time is limited, it waits until a candidate with more than a small head goes on. Until then both are
        compared on the rows that both have predicted.
        """
        plain = self._state.plain
        if plain is None or any(trial.number in self._state.running for trial in self._state.plain_trials):
            return None
        result = plain.results.get(plain.reached)
        if plain.reached >= self._ladder.top or result is None or result.score is None:
            return None
        if self.plan is not None and self.plan.cross_validates and self.plan.seconds is not None:
            others = (trial for trial in self._state.trials if trial.reached > plain.reached and not trial.is_plain)
            if all(self._candidates.trains_head_only(trial.spec) for trial in others):
                return None
        return plain.number, plain.reached + 1

    def choose_encoder(self) -> None:
        """Search with the encoder whose solved head has the best score, once all of them have a result."""
        solved = [trial for trial in self._state.trials if trial.origin == SOLVED]
        if len(solved) < 2 or not all(trial.bracket in trial.results for trial in solved):
            return
        scores = {trial.number: trial.results[trial.bracket].score for trial in solved}
        scored = {number: score for number, score in scores.items() if score is not None}
        if scored:
            best = max(scored, key=lambda number: (scored[number], -number))
            self._candidates.encoder = encoder = self._state.trials[best].spec.encoder
            if self.plan is not None and self.plan.epochs is not None:  # a larger encoder leaves time for fewer epochs
                self._candidates.max_epochs = max(
                    1.0, round(self.plan.epochs / max(1.0, self.plan.cost_of(encoder)), 2)
                )

    def rows_of(self, trial: Trial, rung: int) -> int | None:
        """Return the number of rows that a trial is trained on at a rung; None with cross-validation."""
        if self.plan is None:
            return None
        if trial.origin == SOLVED:
            return None if self.plan.cross_validates else self.plan.solved_rows
        if trial.origin == WORDS:
            return None if self.plan.cross_validates else self.plan.counted_rows
        return self.plan.rows_at(self._ladder.fractions[rung])
