"""The search loop: ask a strategy for trials, run them on workers, promote the best, and stop in time.

State changes only through ledger events, and every decision is a function of that state. A search that is cut off
anywhere continues as if nothing had happened. Results and the decisions that follow from them are written with one sync
before any worker hears of them.
"""

from __future__ import annotations

import logging
import math
import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from headhunt.run.clock import steady_time
from headhunt.run.events import (
    DISK,
    STOPPED,
    ModelSaved,
    RequestFailed,
    RunStarted,
    SearchEnded,
    TrialAdded,
    TrialFinished,
    TrialStarted,
)
from headhunt.run.ledger import LedgerWriter
from headhunt.run.plan import Plan
from headhunt.run.state import KNOWN, PLAIN, SOLVED, Outcome, State, Trial
from headhunt.spec import Spec
from headhunt.study.baselines import Baselines
from headhunt.study.budget import Limits, TimeBudget
from headhunt.study.candidates import Candidates, Params
from headhunt.study.checkpoints import Checkpoints, continuable
from headhunt.study.executors import Executor
from headhunt.study.ladder import Ladder
from headhunt.study.pause import POLL, Pause
from headhunt.study.promotions import Promotions
from headhunt.study.registry import create_strategy
from headhunt.study.requests import EvaluateTrial, FitAllRows, Request, SaveFirstFold
from headhunt.study.runtime_estimates import RuntimeEstimates, worker_timeout
from headhunt.study.strategies import Strategy

PROPOSALS = 20  # how often a strategy is asked again if its proposal was tried before
DRAWS = 200  # random draws after that, before the space counts as exhausted
GRACE = 2.0  # seconds after the deadline for workers that are just finishing

log = logging.getLogger(__name__)
Callback = Callable[["Study"], Sequence[Request]]
"""Called after every round of results; returns requests to run before any new trial."""


class Study:
    """One search over one run directory; continues whatever the ledger holds.

    Args:
        ledger: The ledger, open for writing.
        candidates: The candidates that may be proposed.
        executor: Runs requests.
        strategy: A key of `registry.STRATEGIES`.
        limits: When to stop.
        budget: The time of the search; made from `limits.time` by default.
        ladder: The rungs; by default those the search was begun with.
        rungs: Whether to use the default rungs; otherwise every trial is trained in full at once.
        seed: Decides every proposal and every training run.
        task: A fingerprint of the data; a run is never resumed with other data.
        known: Whether to begin with known recipes.
        disk: Bytes for checkpoints; None is no limit.
        options: The strategy's own options.
        plan: The rows and epochs that fit into the time.
        solved: Whether to begin with the solved head of every encoder.
        versions: Library versions, for the record.
        clock: Returns seconds since 1970 that never jump.
        callback: Called after every round of results.
        notify: Called with a message for the user while the disk fails.
    """

    def __init__(
        self,
        ledger: LedgerWriter,
        candidates: Candidates,
        executor: Executor,
        *,
        strategy: str = "bohb",
        limits: Limits | None = None,
        budget: TimeBudget | None = None,
        ladder: Ladder | None = None,
        rungs: bool = True,
        seed: int = 0,
        task: str = "",
        known: bool = True,
        disk: int | None = None,
        options: Mapping[str, Any] | None = None,
        plan: Plan | None = None,
        solved: bool = False,
        versions: Mapping[str, str] | None = None,
        clock: Callable[[], float] = steady_time,
        callback: Callback = lambda study: (),
        notify: Callable[[str], None] = log.warning,
    ) -> None:
        self.ledger, self.candidates, self.executor, self.seed = ledger, candidates, executor, seed
        self.limits = limits or Limits()
        self.budget = budget or TimeBudget(self.limits.time, clock=clock)
        self.strategy: Strategy = create_strategy(strategy, candidates, seed, **(options or {}))
        self.plan = plan
        # Whether trials that train are evaluated. A search that is resumed with more time does so from then on.
        evaluated = any(trial.attempts for trial in self.state.trials if not trial.is_solved)
        self.compares = plan is None or plan.compares or evaluated or self.budget.left() > (plan.seconds or 0.0)
        self._by_rows = plan is not None and plan.by_rows
        self.ladder = ladder or (self._default_ladder() if rungs else Ladder((1.0,)))
        self._use_known = known
        self._baselines = Baselines(lambda: ledger.state, candidates, self.ladder, self.budget, plan, solved=solved)
        self.rows_of = self._baselines.rows_of
        self.promotions = Promotions(
            lambda: ledger.state, self.ladder, self._baselines, self.budget, cumulative=not self._by_rows
        )
        self.full_budget_seconds = self.promotions.full_budget_seconds
        settings = {"strategy": strategy, "options": dict(options or {}), "ladder": asdict(self.ladder), "known": known}
        settings |= {"encoder": candidates.encoder, "pair": candidates.pair, "rows": candidates.rows}
        ledger.begin(RunStarted(candidates.space.to_dict(), task, settings, seed, dict(versions or {})))
        self.checkpoints = Checkpoints(ledger.directory, disk)
        self.checkpoints.remove_failed(ledger.state)
        self._callback = callback
        self.pause = Pause(ledger.directory.path, notify)
        self._extra: deque[Request] = deque()  # requests of the callback
        self._stop_reason: str | None = None
        self._exhausted = False
        self._begun = False  # whether the first trials are recorded
        self._known: dict[str, list[tuple[Spec, Params]]] = {}  # by encoder
        self._too_late: float | None = None  # the deadline before which no new trial would have finished
        self._interrupted: deque[tuple[int, int]] = deque()  # stopped for a deadline that has moved since
        self._estimates = RuntimeEstimates(candidates.layers)
        if plan is not None:
            self._estimates = RuntimeEstimates(candidates.layers, plan.epoch_seconds(), plan.cost_of, candidates.width)
        self._slowest: float | None = None
        self._catch_up()

    @property
    def state(self) -> State:
        """The state of the search."""
        return self.ledger.state

    def evaluate_first(self) -> None:
        """Save and evaluate the solved head of the first encoder, and solve it with more rows if the data is large."""
        self._begin()
        first = next((trial.number for trial in self.state.trials if trial.origin == SOLVED), None)
        if first is None or first not in self.state.waiting:
            return
        self._run_alone(self._callback(self))  # which asks for a first model
        if self._stop_reason is None or self.state.model is None:
            self._run_alone([self._start(first, self.state.waiting[first])])
        if (more := self.more_to_solve()) is not None and not self._is_over():
            self._run_alone([self._start(*more)])

    def more_to_solve(self) -> tuple[int, int] | None:
        """Return the solved head that is solved with more rows before anything else, and its rung, if there is one."""
        return self._baselines.next_alone(one_machine=self.executor.threads_alone is not None)

    def _run_alone(self, requests: Sequence[Request]) -> None:
        """Run requests and what the callback asks for after them, before anything else and with all threads."""
        running = 0
        while requests or running:
            self._commit()
            for request in requests:
                deadline = request.deadline if self.state.model else None  # a first model may be late
                self.executor.submit(replace(request, threads=self.executor.threads_alone, deadline=deadline))
            finished = self.executor.wait(POLL)
            for request, outcome in finished:
                self._finish(request, outcome)
            running += len(requests) - len(finished)
            if running and self._stop_reason is not None and self.state.model is not None:
                self.executor.stop()  # after Ctrl-C: the model on disk is delivered
                break
            requests = self._callback(self) if finished else []
        self._commit()

    def run(self) -> str:
        """Search until a limit is reached; return which, `exhausted`, or the reason given to `stop`."""
        finished: list[tuple[Request, Outcome]] = []
        in_flight = 0
        while True:
            requests: list[Request] = []
            try:
                for request, outcome in finished:
                    self._finish(request, outcome)
                in_flight -= len(finished)
                self._extra.extend(self._callback(self))
                paused = self.pause.active
                while not paused and not self._is_over() and in_flight + len(requests) < self.executor.workers:
                    if self._extra:
                        requests.append(self._extra.popleft())
                    elif (job := self._next()) is not None:
                        requests.append(self._start(*job))
                    else:
                        break
            finally:
                self._commit()
            self._clean_up([request for request, _ in finished if isinstance(request, EvaluateTrial)])
            for request in requests:
                self.executor.submit(request)
            in_flight += len(requests)
            late = self.budget.search_is_over(GRACE)
            idle = not in_flight and (self._is_over() or not paused)
            if idle or late or self._stop_reason not in (None, "time"):
                break  # trials that still run stay so in the ledger, and continue when the search is resumed
            if not in_flight:
                self.pause.sleep(POLL)
            finished = self.executor.wait(POLL) if in_flight else []
        default = "trials" if self._is_full() else "exhausted" if self._too_late is None else "time"
        reason = self._stop_reason or default
        self.executor.stop()
        self.ledger.append(SearchEnded(reason))
        return reason

    def stop(self, reason: str = "stopped") -> None:
        """End the search as soon as the loop checks. Safe to call from a signal handler."""
        self._stop_reason = self._stop_reason or reason

    def seed_of(self, trial: int) -> int:
        """Return the seed of a trial's training."""
        return random.Random(f"{self.seed}/{trial}").randrange(2**31)  # noqa: S311 - reproducible draws, not secrets

    def _commit(self) -> None:
        """Write the staged events; wait and repeat while the disk fails, unless the search is to end."""
        self.pause.repeat(self.ledger.commit, self._is_over)

    def _default_ladder(self) -> Ladder:
        """Return the default rungs, or those that the search was begun with by an earlier version."""
        started = self.state.started
        begun = started if started and len(started.fractions) > 1 else None
        return Ladder.from_dict(begun.settings["ladder"]) if begun else Ladder()

    def _catch_up(self) -> None:
        """Pass the events of the ledger to the rungs and the strategy, in order."""
        for trial in self.state.trials:
            if trial.params is not None:
                self.strategy.started(trial.number, trial.params)
            for rung in range(trial.bracket + 1, trial.reached + 1):
                self.promotions.started(trial, rung)
        for number, rung in self.state.settled:
            self._learn(number, rung)
        best = self.state.best
        self._check_target(best.best if best else None)

    def _learn(self, number: int, rung: int) -> None:
        """Pass a final result to the rungs, the strategy and the runtime estimates."""
        trial = self.state.trials[number]
        score = trial.results[rung].score
        fraction = self._rung_fraction(trial, rung)
        if score is not None and not (trial.is_solved or self.candidates.trains_head_only(trial.spec)):
            # Cheap trials say nothing about how long a worker may take for the others.
            self._slowest = max(self._slowest or 0.0, trial.results[rung].seconds / fraction)
        if trial.origin == SOLVED:
            self._baselines.choose_encoder()
        if score is not None and (seconds := self.full_budget_seconds(trial, rung)) is not None:
            self._estimates.add(trial.spec_data, seconds)
        self.promotions.add(trial, rung)
        if trial.params is not None:
            self.strategy.tell(number, trial.params, rung, score)

    def _is_over(self) -> bool:
        if self._stop_reason is None and self.budget.search_is_over():
            self._stop_reason = "time"
        return self._stop_reason is not None

    def _is_full(self) -> bool:
        return self.limits.trials is not None and len(self.state.trials) >= self.limits.trials

    def _next(self) -> tuple[int, int] | None:
        """Return the next trial and rung: an interrupted one, a promotion, or a new trial."""
        if self._interrupted:
            return self._interrupted.popleft()
        self._begin()
        if not self.compares and not self._baselines.has_solved(self.state.waiting):
            return None if self._baselines.has_solved(self.state.running) else self._add_best_known()
        if self.state.waiting:
            # Solved heads take seconds, and decide about the encoder of all others.
            number = min(self.state.waiting, key=lambda each: (self.state.trials[each].origin != SOLVED, each))
            return number, self.state.waiting[number]
        if (promotion := self.promotions.next()) is not None:
            return promotion
        if not self.budget.fits(self._estimates.median) and (promotion := self.promotions.last()) is not None:
            return promotion
        deadline = self.budget.search_deadline
        late = self._too_late is not None and deadline is not None and deadline <= self._too_late
        if self._is_full() or self._exhausted or late or not self._propose():
            return None
        return next(iter(self.state.waiting.items()))

    def _add_best_known(self) -> tuple[int, int] | None:
        """Record the best known recipe for few rows, and end the search: it is trained by the final evaluation."""
        if (known := self.candidates.best_for_few_rows()) is None:
            self.compares = True
            return self._next()
        spec, params = known
        if spec.hash not in self.state.hashes:
            self._register(spec, spec.hash, params, KNOWN, self._first_rung(spec, KNOWN, len(self.state.trials)))
        self._too_late = self.budget.search_deadline
        return None

    def _begin(self) -> None:
        """Record the first trials, unless there are others already; a search may be cut off between two of them."""
        if self._begun or any(trial.origin not in (PLAIN, SOLVED) for trial in self.state.trials):
            return
        self._begun = True
        self._add_first_trials()

    def add_encoder(self, encoder: str) -> None:
        """Compare one more encoder by its solved head; candidates use it from then on if that is the best."""
        self.candidates.encoders = tuple(dict.fromkeys((*self.candidates.encoders, encoder)))
        self._add_first_trials()

    def _add_first_trials(self) -> None:
        for spec, origin, bracket in self._baselines.first_trials():
            if spec.hash not in self.state.hashes:
                params = self.candidates.express(spec) if origin == PLAIN else None
                self._register(spec, spec.hash, params, origin, bracket)

    def _propose(self) -> bool:
        """Record a new trial; return False if there is nothing new to try, or no time for it."""
        number = len(self.state.trials)
        for spec, params, origin in self._proposals(number):
            spec_hash = spec.hash
            if spec_hash in self.state.hashes:
                continue
            rung = self._first_rung(spec, origin, number)
            if not self.budget.fits(self._seconds_to_compare(spec, rung)):
                self._too_late = self.budget.search_deadline
                continue
            self._too_late = None
            return self._register(spec, spec_hash, params, origin, rung)
        self._exhausted = self._too_late is None
        return False

    def _seconds_to_compare(self, spec: Spec, rung: int) -> float | None:
        """Estimate the seconds of a new trial up to the rung below the top: one fold, which ranks candidates well."""
        seconds = self._estimates.estimate(spec.to_dict())
        return None if seconds is None else seconds * self.ladder.fractions[max(rung, self.ladder.top - 1)]

    def _first_rung(self, spec: Spec, origin: str, number: int) -> int:
        """Return the rung at which a new trial starts. Less than one fold would hardly rank the known recipes."""
        if self.candidates.trains_head_only(spec):
            return self.ladder.top
        return max(self.ladder.bracket(number - 1), self.ladder.top - 1 if origin == KNOWN else 0)

    def _proposals(self, number: int) -> Iterator[tuple[Spec, Params, str]]:
        """Yield what may become the trial of this number: a known recipe, the strategy's proposals, random draws."""
        for spec, params in self._known_recipes() if self._use_known else ():
            yield spec, params, KNOWN
        for attempt in range(PROPOSALS + DRAWS):
            proposal = (self.strategy.ask if attempt < PROPOSALS else self.strategy.draw)(number, attempt)
            if proposal is None:
                return
            if (proposed := self.candidates.valid_spec(proposal.params)) is not None:
                yield proposed, proposal.params, proposal.origin

    def _known_recipes(self) -> list[tuple[Spec, Params]]:
        """Return the known recipes for the encoder of the search."""
        encoder = self.candidates.encoder
        if encoder not in self._known:
            self._known[encoder] = list(self.candidates.known_recipes())
        return self._known[encoder]

    def _register(self, spec: Spec, spec_hash: str, params: Params | None, origin: str, bracket: int) -> bool:
        number = len(self.state.trials)
        self.ledger.stage(TrialAdded(number, spec.to_dict(), spec_hash, params, origin, bracket))
        if params is not None:
            self.strategy.started(number, params)
        return True

    def _start(self, number: int, rung: int) -> EvaluateTrial:
        trial, directory = self.state.trials[number], self.ledger.directory
        slowest = self._slowest
        self.ledger.stage(TrialStarted(number, rung, attempt := trial.attempts))
        self.promotions.started(trial, rung)
        return EvaluateTrial(
            trial=number,
            spec=trial.spec,
            rung=rung,
            fraction=self.ladder.fractions[rung],
            seed=self.seed_of(number),
            attempt=attempt,
            gradient_accumulation_steps=trial.gradient_accumulation_steps,
            checkpoint=directory.checkpoint(number, rung),
            rows=self.rows_of(trial, rung),
            resume_from=self.checkpoints.resume_from(number, rung, lower=not self._by_rows),
            predictions=directory.predictions(number, rung),
            deadline=self.budget.search_deadline,
            worker_timeout=worker_timeout(slowest and slowest * self._rung_fraction(trial, rung)),
        )

    def _rung_fraction(self, trial: Trial, rung: int) -> float:
        """Return the fraction of its budget that a trial uses at a rung."""
        if self._by_rows:
            return self.ladder.fractions[rung]
        below = max((self.ladder.fractions[step] for step in trial.results if step < rung), default=0.0)
        return self.ladder.fractions[rung] - below

    def _finish(self, request: Request, outcome: Outcome) -> None:
        """Record the response to a request."""
        rung = request.rung if isinstance(request, EvaluateTrial) else -1
        work = request.name, request.trial, rung
        if outcome.outcome == DISK:
            self.pause.disk_failed(work, str(outcome.extra.get("message")))
        elif outcome.outcome != STOPPED:
            self.pause.succeeded(work)
        if not isinstance(request, EvaluateTrial):
            self._finish_extra(request, outcome)
            return
        number = request.trial
        if outcome.outcome in (STOPPED, DISK):
            # No result: the ledger still shows it as running, and it continues on resuming; or now, if there is time.
            if not self._is_over():
                self._interrupted.append((number, rung))
                if outcome.outcome == STOPPED:
                    self.pause.stopped_early(work)
            return
        score, kind = outcome.score, outcome.outcome
        if kind == "ok" and (score is None or not math.isfinite(score)):
            kind = "collapsed"
        score = score if kind == "ok" else None
        seconds = round(outcome.seconds, 4)
        if self.ledger.stage(TrialFinished(number, rung, kind, score, seconds, outcome.examples, outcome.extra)):
            self._learn(number, rung)
            self._check_target((rung, score) if score is not None else None)
        self.checkpoints.add(number, rung)

    def _finish_extra(self, request: Request, outcome: Outcome) -> None:
        if outcome.outcome == DISK:
            self._extra.append(request)
        elif outcome.outcome == "ok" and isinstance(request, FitAllRows | SaveFirstFold):
            self.ledger.stage(ModelSaved(request.trial, request.out.name, round(outcome.seconds, 4)))
        elif outcome.outcome not in ("ok", STOPPED):
            message = str(outcome.extra.get("message", ""))
            self.ledger.stage(RequestFailed(request.trial, request.name, outcome.outcome, message))

    def _check_target(self, best: tuple[int, float] | None) -> None:
        target = self.limits.target
        if target is not None and best is not None and best[0] == self.ladder.top and best[1] >= target:
            self.stop("target")

    def _clean_up(self, finished: Sequence[EvaluateTrial]) -> None:
        """Remove checkpoints that no trial can continue from. Called after a commit: what is gone is not needed."""
        keep = continuable(self.state, self.promotions.rungs, self.ladder.top) if self.checkpoints.over_budget() else []
        self.checkpoints.remove_unused(finished, self.state, keep)
