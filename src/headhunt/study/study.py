"""Compare candidates: ask a strategy for trials, promote the best, and learn from their results.

State changes only through ledger events, and every decision is a function of that state.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from headhunt.run.events import RunStarted, SearchEnded, TrialAdded, TrialFinished, TrialStarted
from headhunt.run.ledger import LedgerWriter
from headhunt.run.plan import Plan
from headhunt.run.resampling import CrossValidation, Resampling
from headhunt.run.settings import SearchOptions
from headhunt.run.state import KNOWN, PLAIN, SOLVED, WORDS, Outcome, State, Trial
from headhunt.spec import Spec
from headhunt.study.baselines import Baselines
from headhunt.study.budget import RuntimeEstimates, TimeBudget, worker_timeout
from headhunt.study.candidates import Candidates, Params
from headhunt.study.checkpoints import Checkpoints, continuable
from headhunt.study.ladder import Ladder, Rungs
from headhunt.study.registry import create_strategy
from headhunt.study.requests import EvaluateTrial

PROPOSALS = 20  # how often a strategy is asked again if its proposal was tried before
DRAWS = 200  # random draws after that, before the space counts as exhausted


class Study:
    """The trials of one search; a stage that continues whatever the ledger holds.

    Attributes:
        resampling: How candidates are evaluated; cross-validation until there is a plan.
        rungs: The results by rung.

    Args:
        ledger: The ledger, open for writing.
        candidates: The candidates that may be proposed.
        settings: Strategy, rungs, limits, seed, and the candidates to begin with.
        budget: The time of the search.
        task: A fingerprint of the data; a run is never resumed with other data.
        disk: Bytes for checkpoints; None is no limit.
        versions: Library versions, for the record.
    """

    def __init__(
        self,
        ledger: LedgerWriter,
        candidates: Candidates,
        settings: SearchOptions,
        budget: TimeBudget,
        *,
        task: str = "",
        disk: int | None = None,
        versions: Mapping[str, str] | None = None,
    ) -> None:
        self.ledger, self.candidates, self.settings, self.budget = ledger, candidates, settings, budget
        self.strategy = create_strategy(settings.strategy, candidates, settings.seed)
        self.ladder = Ladder.of(settings.rungs, settings.eta, settings.brackets)
        self.rungs = Rungs(self.ladder)
        self.resampling: Resampling = CrossValidation()
        known = settings.known_recipes
        self.baselines = Baselines(ledger.state, candidates, self.ladder, solved=settings.solved, known=known)
        self.rows_of = self.baselines.rows_of
        identity = {"strategy": settings.strategy, "options": {}, "ladder": asdict(self.ladder), "known": known}
        identity |= {"encoder": candidates.encoder, "pair": candidates.pair, "rows": candidates.rows}
        ledger.begin(RunStarted(candidates.space.to_dict(), task, identity, settings.seed, dict(versions or {})))
        self.checkpoints = Checkpoints(ledger.directory, disk)
        self.checkpoints.remove_failed(ledger.state)
        self.stop_reason: str | None = None
        self._exhausted = False
        self._begun = False  # whether the first trials are recorded
        self._too_late: float | None = None  # the deadline before which no new trial would have finished
        self._lost: list[tuple[int, int]] = []  # trials and rungs whose predictions cannot be read
        self._finished: list[int] = []  # trials with results since files were last removed
        self._estimates = RuntimeEstimates(candidates)
        self._slowest: float | None = None

    def follow(self, plan: Plan | None = None) -> None:
        """Take in the plan, and the events of the ledger."""
        self.baselines.plan = plan
        if plan is not None:
            self.resampling = plan.resampling
            self.candidates.encoders = plan.encoders or self.candidates.encoders
            self.candidates.max_epochs = plan.epochs
            self._estimates = RuntimeEstimates(self.candidates, plan)
        for trial in self.state.trials:
            if trial.params is not None:
                self.strategy.started(trial.number, trial.params)
            for rung in range(trial.bracket + 1, trial.reached + 1):
                self.rungs.started(trial.number, trial.bracket, rung)
        for number, rung in self.state.settled:
            self._learn(number, rung)
        best = self.state.best
        self._check_target(best.best if best else None)

    @property
    def state(self) -> State:
        """The state of the search."""
        return self.ledger.state

    def next(self) -> EvaluateTrial | None:
        """Return the next trial to train: an interrupted one, a promotion, or a new one; None if the search is over."""
        if self.is_over():
            return None
        job = self._next()
        return None if job is None else self.request(*job)

    def end(self) -> str:
        """Record the end of comparing; return the limit that was reached, `exhausted`, or the reason of `stop`."""
        self.is_over()
        default = "trials" if self._is_full() else "exhausted" if self._too_late is None else "time"
        reason = self.stop_reason or default
        self.ledger.append(SearchEnded(reason))
        return reason

    def stop(self, reason: str = "stopped") -> None:
        """End the search as soon as the loop checks. Safe to call from a signal handler."""
        self.stop_reason = self.stop_reason or reason

    def seed_of(self, trial: int) -> int:
        """Return the seed of a trial's training."""
        return random.Random(f"{self.settings.seed}/{trial}").randrange(2**31)  # noqa: S311 - reproducible draws, not secrets

    def _learn(self, number: int, rung: int) -> None:
        """Pass a final result to the rungs, the strategy and the runtime estimates."""
        trial = self.state.trials[number]
        score = trial.results[rung].score
        fraction = self._rung_fraction(trial, rung)
        if score is not None and not (trial.is_solved or self.candidates.trains_head_only(trial.spec)):
            # Cheap trials say nothing about how long a worker may take for the others.
            self._slowest = max(self._slowest or 0.0, trial.results[rung].seconds / fraction)
        if trial.origin == SOLVED:
            self.baselines.choose_encoder()
        if score is not None and (seconds := self._full_seconds(trial, rung)) is not None:
            self._estimates.add(trial.spec_data, seconds)
        self.rungs.add(number, trial.bracket, rung, score)
        if trial.params is not None:
            self.strategy.tell(number, trial.params, rung, score)

    def is_over(self) -> bool:
        """Return whether no more trials are started."""
        if self.stop_reason is None and self.budget.search_is_over():
            self.stop_reason = "time"
        return self.stop_reason is not None

    def _is_full(self) -> bool:
        return self.settings.trials is not None and len(self.state.trials) >= self.settings.trials

    def _next(self) -> tuple[int, int] | None:
        """Return the next trial and rung: an interrupted one, a promotion, or a new trial."""
        if self._lost:
            return self._lost.pop()
        self.begin()
        if self.state.waiting:
            waiting = [self.state.trials[number] for number in self.state.waiting]
            # Solved heads decide about the encoder, and the second plain head can wait.
            first = min(waiting, key=lambda t: (t.origin not in (SOLVED, WORDS), t.is_plain and t.number > 0, t.number))
            return first.number, self.state.waiting[first.number]
        promotion = self._promotion()
        if promotion is None and not self.budget.fits(self._estimates.median):
            promotion = self._last_promotion()
        if promotion is not None:
            return promotion
        deadline = self.budget.search_deadline
        late = self._too_late is not None and deadline is not None and deadline <= self._too_late
        if self._is_full() or self._exhausted or late or not self._propose():
            return None
        return next(iter(self.state.waiting.items()))

    def _promotion(self) -> tuple[int, int] | None:
        """Return the trial to promote and its new rung, if there is one that ends in time."""
        if (promotion := self.baselines.next_of_plain()) is not None and self._fits(promotion[0]):
            return promotion
        while (promotion := self.rungs.next_promotion()) is not None:
            number, rung = promotion
            if self._fits(number):
                return promotion
            self.rungs.started(number, self.state.trials[number].bracket, rung)  # it is not promoted this time
        return None

    def _last_promotion(self) -> tuple[int, int] | None:
        """Return the best trial below the top that can still finish and is not clearly worse than the plain head.

        Used towards the end, when a new trial could not reach the top rung any more. Of the plain heads only the better
        one goes on, at any time.
        """
        plain, trials = self.state.plain, self.state.trials
        for rung in range(self.ladder.top - 1, -1, -1):
            least = plain.lower_bound(rung) if plain is not None else None
            for number, score in self.rungs.waiting(rung):
                if least is not None and score < least:
                    break
                if not trials[number].is_plain and self._fits(number):
                    return number, rung + 1
        return None

    def _full_seconds(self, trial: Trial, rung: int) -> float | None:
        """Extrapolate a trial's seconds of full training from its results up to a rung; None without one there."""
        if rung not in trial.results:
            return None
        spent = sum(trial.results[step].seconds for step in self.resampling.continued(rung) if step in trial.results)
        return spent / self.ladder.fractions[rung]

    def _fits(self, number: int) -> bool:
        """Return whether there is time to train a trial from where it stands to the top rung."""
        trial = self.state.trials[number]
        seconds = self._full_seconds(trial, trial.reached)
        done = self.resampling.done(self.ladder.fractions[trial.reached])
        return self.budget.fits(None if seconds is None else seconds * (1 - done))

    def begin(self) -> None:
        """Record the first trials, unless there are others already; a search may be cut off between two of them."""
        if self._begun or any(trial.origin not in (PLAIN, SOLVED, WORDS) for trial in self.state.trials):
            return
        self._begun = True
        self._add_first_trials()

    def add_encoder(self, encoder: str) -> None:
        """Compare one more encoder by its solved head; candidates use it from then on if that is the best."""
        self.candidates.encoders = tuple(dict.fromkeys((*self.candidates.encoders, encoder)))
        self._add_first_trials()

    def _add_first_trials(self) -> None:
        for spec, params, origin, bracket in self.baselines.first_trials():
            if spec.hash not in self.state.hashes:
                self._register(spec, params, origin, bracket)

    def recommended(self) -> Trial | None:
        """Return the trial of the recipe that is best on other data, recorded if it is new; None without one."""
        if (found := self.baselines.recommended()) is None:
            return None
        spec, params, origin, bracket = found
        if spec.hash not in self.state.hashes:
            if self._is_full():
                return None
            self._register(spec, params, origin, bracket)
        return self.state.trials[self.state.hashes[spec.hash]]

    def repeat(self, lost: Sequence[tuple[int, int]]) -> None:
        """Evaluate trials again whose predictions cannot be read."""
        self._lost = [
            (number, rung)
            for number, rung in lost
            if number < len(self.state.trials)
            and rung in (results := self.state.trials[number].results)
            and results[rung].score is not None
        ]

    def _propose(self) -> bool:
        """Record a new trial; return False if there is nothing new to try, or no time for it."""
        number = len(self.state.trials)
        for spec, params, origin in self._proposals(number):
            if spec.hash in self.state.hashes:
                continue
            rung = self._first_rung(spec, origin, number)
            # There must be time for the rung below the top: one fold, which ranks candidates well.
            if not self.budget.fits(
                self._estimates.estimate(spec.to_dict(), self.ladder.fractions[max(rung, self.ladder.top - 1)])
            ):
                self._too_late = self.budget.search_deadline
                continue
            self._too_late = None
            self._register(spec, params, origin, rung)
            return True
        self._exhausted = self._too_late is None
        return False

    def _first_rung(self, spec: Spec, origin: str, number: int) -> int:
        """Return the rung at which a new trial starts. Less than one fold would hardly rank the known recipes."""
        if self.candidates.trains_head_only(spec):
            return self.ladder.top
        return max(self.ladder.bracket(number - 1), self.ladder.top - 1 if origin == KNOWN else 0)

    def _proposals(self, number: int) -> Iterator[tuple[Spec, Params, str]]:
        """Yield what may become the trial of this number: a known recipe, the strategy's proposals, random draws."""
        for spec, params in self.candidates.known_recipes() if self.settings.known_recipes else ():
            yield spec, params, KNOWN
        for attempt in range(PROPOSALS + DRAWS):
            proposal = (self.strategy.ask if attempt < PROPOSALS else self.strategy.draw)(number, attempt)
            if proposal is None:
                return
            if (proposed := self.candidates.valid_spec(proposal.params)) is not None:
                yield proposed, proposal.params, proposal.origin

    def _register(self, spec: Spec, params: Params | None, origin: str, bracket: int) -> None:
        number = len(self.state.trials)
        self.ledger.stage(TrialAdded(number, spec.to_dict(), spec.hash, params, origin, bracket))
        if params is not None:
            self.strategy.started(number, params)

    def request(self, number: int, rung: int, **fields: Any) -> EvaluateTrial:
        """Return the request to train a trial up to a rung."""
        trial, directory, slowest = self.state.trials[number], self.ledger.directory, self._slowest
        leaves_model = rung == self.ladder.top and self.resampling.leaves_model
        known: dict[str, Any] = {
            "spec": trial.spec,
            "checkpoint": directory.checkpoint(number, rung),
            "out": directory.final_model(number, 0) if leaves_model else None,
            "deadline": self.budget.search_deadline,
            "worker_timeout": worker_timeout(slowest and slowest * self._rung_fraction(trial, rung)),
        }
        return EvaluateTrial(
            trial=number,
            rung=rung,
            fraction=self.ladder.fractions[rung],
            seed=self.seed_of(number),
            rows=self.rows_of(trial, rung),
            predictions=directory.predictions(number, rung),
            **{**known, **fields},
        )

    def start(self, request: EvaluateTrial) -> EvaluateTrial:
        """Record that a trial starts, and return the request as it is now: it may have run before."""
        trial = self.state.trials[request.trial]
        self.ledger.stage(TrialStarted(trial.number, request.rung, attempt := trial.attempts))
        self.rungs.started(trial.number, trial.bracket, request.rung)
        return replace(
            request,
            attempt=attempt,
            gradient_accumulation_steps=trial.gradient_accumulation_steps,
            resume_from=self.checkpoints.resume_from(trial.number, self.resampling.continued(request.rung)),
        )

    def _rung_fraction(self, trial: Trial, rung: int) -> float:
        """Return the fraction of its budget that a trial uses at a rung."""
        below = max((self.ladder.fractions[step] for step in trial.results if step < rung), default=0.0)
        return self.ladder.fractions[rung] - self.resampling.done(below)

    def finish(self, request: EvaluateTrial, outcome: Outcome) -> bool:
        """Record a result; return False if the trial is to run again."""
        number, rung, score, kind = request.trial, request.rung, outcome.score, outcome.outcome
        if kind == "ok" and (score is None or not math.isfinite(score)):
            kind = "collapsed"
        score = score if kind == "ok" else None
        seconds = round(outcome.seconds, 4)
        final = self.ledger.stage(TrialFinished(number, rung, kind, score, seconds, outcome.examples, outcome.extra))
        if final:
            self._learn(number, rung)
            self._check_target((rung, score) if score is not None else None)
        self.checkpoints.add(number, rung)
        self._finished.append(number)
        return number not in self.state.waiting

    def _check_target(self, best: tuple[int, float] | None) -> None:
        target = self.settings.target
        if target is not None and best is not None and best[0] == self.ladder.top and best[1] >= target:
            self.stop("target")

    def clean_up(self) -> None:
        """Remove checkpoints that no trial can continue from. Called after a commit: what is gone is not needed."""
        keep = partial(continuable, self.state, self.rungs, self.ladder.top)
        self.checkpoints.remove_unused(self._finished, self.state, keep)
        self._finished.clear()
