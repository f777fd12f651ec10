"""The loop: asks a strategy, sends candidates up the ladder, writes everything down, stops in time.

Hides the order of things. State changes only through ledger records, and every decision is a function of that state, so
that a search cut off anywhere goes on as if nothing had happened. Results and the decisions that follow from them are
written with one sync before any worker hears of them.
"""

from __future__ import annotations

import math
import random
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from headhunt.errors import HeadhuntError
from headhunt.run.directory import Run, droppable, size
from headhunt.run.ledger import STOPPED, Outcome, Request, State, Trial
from headhunt.spec import Spec
from headhunt.study.candidates import Candidates, Params
from headhunt.study.executors import Executor
from headhunt.study.ladder import Ladder, Rungs
from headhunt.study.runtime_estimates import RuntimeEstimates, whole
from headhunt.study.strategies import Strategy, make

ASK_AGAIN = 20  # how often a strategy is asked for another candidate where its answer was tried before
DRAW_AGAIN = 200  # how often then one is drawn at random before the space counts as exhausted
GRACE = 2.0  # seconds after the deadline for workers that are just ending
POLL = 0.5  # seconds after which the loop looks whether it should stop
MARGIN = 1.1  # times what something should take, to be sure that it fits
PREDICTIONS = 0.125  # of what checkpoints may take
WORKER_TIMEOUT = (
    120.0,
    10.0,
)  # a worker is ended after so many seconds, and so many times what the slowest so far took


@dataclass(frozen=True)
class Limits:
    """When to stop; whatever comes first."""

    time: float | None = None
    """Seconds from now."""
    trials: int | None = None
    """Candidates in the whole run; those that have earned it still go on to the end of the ladder."""
    target: float | None = None
    """A score of a fully trained candidate."""

    def __post_init__(self) -> None:
        for name in ("time", "trials"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise HeadhuntError(f"The limit on {name} must be above 0; found {value}.")


class Study:
    """One search over one run directory; takes up whatever the ledger holds.

    Args:
        run: The run, open for writing.
        candidates: What may be proposed.
        executor: Where candidates are evaluated.
        strategy: A name of STRATEGIES.
        limits: When to stop.
        ladder: The rungs; strategies that want none train in full, unless one is given.
        seed: Decides every proposal and every training.
        task: A fingerprint of the data; a run is never taken up with other data.
        known: Whether to begin with known recipes; None leaves it to the strategy.
        disk: Bytes for checkpoints; None is no limit.
        options: The strategy's own options.
        versions: What the results depend on, for the record.
        clock: Seconds since 1970.
        watch: Called with the study after every round of results; may put requests into `chores`.
    """

    def __init__(
        self,
        run: Run,
        candidates: Candidates,
        executor: Executor,
        *,
        strategy: str = "bohb",
        limits: Limits | None = None,
        ladder: Ladder | None = None,
        seed: int = 0,
        task: str = "",
        known: bool | None = None,
        disk: int | None = None,
        options: Mapping[str, Any] | None = None,
        versions: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.time,
        watch: Callable[[Study], None] = lambda study: None,
    ) -> None:
        self.run, self.candidates, self.executor, self.seed = run, candidates, executor, seed
        self.limits, self.disk, self._clock = limits or Limits(), disk, clock
        self.strategy: Strategy = make(strategy, candidates, seed, **(options or {}))
        self.ladder = ladder or (Ladder() if self.strategy.rungs else Ladder((1.0,)))
        self.rungs = Rungs(self.ladder)
        warm = self.strategy.warm if known is None else known
        self._known = list(candidates.known()) if warm else []
        settings = {
            "strategy": strategy,
            "options": dict(options or {}),
            "ladder": asdict(self.ladder),
            "known": warm,
            "encoder": candidates.encoder,
            "pair": candidates.pair,
            "rows": candidates.rows,
        }
        space = candidates.space.to_dict()
        run.begin({"space": space, "task": task, "settings": settings, "seed": seed, "versions": dict(versions or {})})
        self._held, self._predicted = run.checkpoints(), run.predicted()
        self._reason: str | None = None
        self._exhausted = False
        self._too_late: float | None = None  # the deadline for which nobody new was quick enough
        self._cut: deque[tuple[int, int]] = deque()  # stopped for a deadline that has moved on since
        self._prices = RuntimeEstimates(candidates.layers)
        self._watch = watch
        self._slowest: float | None = None
        self.deadline: float | None = None
        """When to stop, in seconds since 1970; may be moved while the search goes on."""
        self.chores: deque[Request] = deque()
        """Requests beside the search, as to save a model: taken before any candidate, told in the ledger if done."""
        self._catch_up()

    @property
    def state(self) -> State:
        """What is known so far."""
        return self.run.state

    def go(self) -> str:
        """Searches until a limit is reached; returns which, `exhausted`, or what `stop` was given."""
        if self.limits.time is not None:
            self.deadline = self._clock() + self.limits.time
        answers: list[tuple[Request, Outcome]] = []
        under_way = 0
        while True:
            requests: list[Request] = []
            try:
                for request, outcome in answers:
                    self._finish(request, outcome)
                under_way -= len(answers)
                self._watch(self)
                while not self._over() and under_way + len(requests) < self.executor.workers:
                    if self.chores:
                        requests.append(self.chores.popleft())
                    elif (job := self._next()) is not None:
                        requests.append(self._start(*job))
                    else:
                        break
            finally:
                self.run.commit()
            self._tidy(
                [request for request, _ in answers if request.job == "judge"]
            )  # only now: what is gone cannot be asked for again
            for request in requests:
                self.executor.submit(request)
            under_way += len(requests)
            late = self.deadline is not None and self._clock() >= self.deadline + GRACE
            if not under_way or late or self._reason not in (None, "time"):
                break  # what is still running stays so in the ledger, and is taken up on resuming
            answers = self.executor.wait(POLL)
        spent = "trials" if self._full() else "exhausted" if self._too_late is None else "time"
        reason = self._reason or spent
        self.executor.stop()
        self.run.append({"kind": "end", "reason": reason})
        return reason

    def stop(self, reason: str = "stopped") -> None:
        """Ends the search as soon as the loop looks. Safe to call from a signal handler."""
        self._reason = self._reason or reason

    def _catch_up(self) -> None:
        """Tells rungs and strategy what the ledger holds, in the order it happened."""
        for trial in self.state.trials:
            if trial.params is not None:
                self.strategy.started(trial.number, trial.params)
            for rung in range(trial.bracket + 1, trial.reached + 1):
                self.rungs.started(trial.number, trial.bracket, rung)
        for number, rung in self.state.settled:
            self._learn(number, rung)
        best = self.state.best
        self._check_target(best.best if best else None)

    def _learn(self, number: int, rung: int) -> None:
        trial = self.state.trials[number]
        score = trial.results[rung].score
        share = self._share(trial, rung)
        if score is not None and share > 0 and (trial.bracket < self.ladder.top or not self.ladder.top):
            # Candidates that begin at the top of several rungs are the cheap ones, and say nothing about the others.
            self._slowest = max(self._slowest or 0.0, trial.results[rung].seconds / share)
        if score is not None and (taken := whole(trial, self.ladder.fractions, rung)) is not None:
            self._prices.add(trial.spec, taken)
        self.rungs.add(number, trial.bracket, rung, score)
        if trial.params is not None:
            self.strategy.tell(number, trial.params, rung, score)

    def _over(self) -> bool:
        if self._reason is None and self.deadline is not None and self._clock() >= self.deadline:
            self._reason = "time"
        return self._reason is not None

    def _full(self) -> bool:
        return self.limits.trials is not None and len(self.state.trials) >= self.limits.trials

    def _next(self) -> tuple[int, int] | None:
        """The next trial and rung: what was begun before, who has earned the next rung, or someone new."""
        if self._cut:
            return self._cut.popleft()
        if self.state.waiting:
            return next(iter(self.state.waiting.items()))
        plain = self.state.trials[0] if self.state.trials else None
        if plain is not None and plain.reached < self.ladder.top and 0 not in self.state.running:
            # What every result is compared with is trained in full, whatever it would have earned.
            settled = plain.results.get(plain.reached)
            if settled is not None and settled.score is not None:
                return 0, plain.reached + 1
        while (promoted := self.rungs.ready()) is not None:
            number, rung = promoted
            if self._fits(self._rest(number)):
                return promoted
            self.rungs.started(number, self.state.trials[number].bracket, rung)  # it goes no further, this time
        if not self._fits(self._prices.usual) and (last := self._last_call()) is not None:
            return last
        late = self._too_late is not None and self.deadline is not None and self.deadline <= self._too_late
        if self._full() or self._exhausted or late or not self._propose():
            return None
        return next(iter(self.state.waiting.items()))

    def _fits(self, seconds: float | None) -> bool:
        """Whether there is time for this; yes where nobody knows."""
        return seconds is None or self.deadline is None or self._clock() + MARGIN * seconds <= self.deadline

    def _rest(self, number: int) -> float | None:
        """Seconds from where a trial stands to the top."""
        trial = self.state.trials[number]
        taken = whole(trial, self.ladder.fractions, trial.reached)
        return None if taken is None else taken * (1 - self.ladder.fractions[trial.reached])

    def _last_call(self) -> tuple[int, int] | None:
        """When newcomers would no longer get to the top: the best of those on the way, no worse than the plain head."""
        plain = self.state.trials[0].results if self.state.trials else {}
        for rung in range(self.ladder.top - 1, -1, -1):
            least = plain[rung].score if rung in plain else None
            for number, score in self.rungs.standing(rung):
                if least is not None and score < least:
                    break
                if self._fits(self._rest(number)):
                    return number, rung + 1
        return None

    def _propose(self) -> bool:
        """Writes down a new trial; False if there is nothing new to try, or no time for it."""
        number = len(self.state.trials)
        if number == 0:
            spec = self.candidates.plain()
            bracket = max(0, self.ladder.top - 1)
            return self._register(spec, spec.hash, self.candidates.express(spec), "plain", bracket)
        for spec, params, origin in self._offers(number):
            digest = spec.hash
            if digest in self.state.hashes:
                continue
            if not self._fits(self._prices.of(spec.to_dict())):
                self._too_late = self.deadline
                continue
            self._too_late = None
            bracket = self.ladder.top if self.candidates.cheap(spec) else self.ladder.bracket(number - 1)
            return self._register(spec, digest, params, origin, bracket)
        self._exhausted = self._too_late is None
        return False

    def _offers(self, number: int) -> Iterator[tuple[Spec, Params, str]]:
        """What may become the candidate of this number: a known recipe, what the strategy says, then draws."""
        if number <= len(self._known):
            yield (*self._known[number - 1], "known")
        for attempt in range(ASK_AGAIN + DRAW_AGAIN):
            proposal = (self.strategy.ask if attempt < ASK_AGAIN else self.strategy.draw)(number, attempt)
            if proposal is None:
                return
            yield self.candidates.spec(proposal.params), proposal.params, proposal.origin

    def _register(self, spec: Spec, digest: str, params: Params | None, origin: str, bracket: int) -> bool:
        number = len(self.state.trials)
        fields = {"spec": spec.to_dict(), "hash": digest, "params": params, "origin": origin, "bracket": bracket}
        self.run.stage({"kind": "trial", "trial": number, **fields})
        if params is not None:
            self.strategy.started(number, params)
        return True

    def held(self, number: int) -> str | None:
        """The folder of the furthest state of a trial that is on disk."""
        rungs = [rung for trial, rung in self._held if trial == number]
        return str(self.run.checkpoint(number, max(rungs))) if rungs else None

    def seed_of(self, number: int) -> int:
        """What decides a trial's training."""
        return random.Random(f"{self.seed}/{number}").randrange(2**31)

    def _start(self, number: int, rung: int) -> Request:
        trial = self.state.trials[number]
        attempt = trial.attempts
        self.run.stage({"kind": "start", "trial": number, "rung": rung, "attempt": attempt})
        self.rungs.started(number, trial.bracket, rung)
        # A rung that was cut short left its own state behind; otherwise the rung below did.
        below = [step for step in range(rung, -1, -1) if (number, step) in self._held]
        return Request(
            trial=number,
            spec=trial.spec,
            rung=rung,
            fraction=self.ladder.fractions[rung],
            seed=self.seed_of(number),
            attempt=attempt,
            gradient_accumulation_steps=2**trial.out_of_memory,
            checkpoint=str(self.run.checkpoint(number, rung)),
            resume=str(self.run.checkpoint(number, below[0])) if below else None,
            predictions=str(self.run.predictions(number, rung)),
            deadline=self.deadline,
            worker_timeout=self._worker_timeout(trial, rung),
        )

    def _share(self, trial: Trial, rung: int) -> float:
        """The share of its budget a candidate uses at a rung."""
        below = max((self.ladder.fractions[one] for one in trial.results if one < rung), default=0.0)
        return self.ladder.fractions[rung] - below

    def _worker_timeout(self, trial: Trial, rung: int) -> float | None:
        """When to give up on a worker: long after the slowest candidate so far would have been done."""
        if self._slowest is None:
            return None
        return max(WORKER_TIMEOUT[0], WORKER_TIMEOUT[1] * self._slowest * self._share(trial, rung))

    def _finish(self, request: Request, outcome: Outcome) -> None:
        if outcome.outcome == STOPPED:
            # No result: the ledger still shows it as running, and it is taken up on resuming; or now, if there is time.
            if request.job == "judge" and not self._over():
                self._cut.append((request.trial, request.rung))
            return
        if request.job != "judge":
            fields = {"trial": request.trial, "folder": Path(request.checkpoint).name, "seconds": outcome.seconds}
            done = outcome.outcome == "ok"
            self.run.stage({"kind": "note", "event": "model" if done else "chore failed", **fields, **outcome.extra})
            return
        number, rung = request.trial, request.rung
        score, kind = outcome.score, outcome.outcome
        if kind == "ok" and (score is None or not math.isfinite(score)):
            kind = "collapsed"
        record: dict[str, Any] = {"kind": "result", "trial": number, "rung": rung, "outcome": kind}
        record |= {"score": score if kind == "ok" else None, "seconds": round(outcome.seconds, 4)}
        if self.run.stage({**record, "examples": outcome.examples, "extra": outcome.extra}):
            self._learn(number, rung)
            self._check_target((rung, score) if kind == "ok" and score is not None else None)
        if held := size(self.run.checkpoint(number, rung)):
            self._held[number, rung] = held
        if (predicted := self.run.predictions(number, rung)).exists():
            self._predicted[number, rung] = predicted.stat().st_size

    def _check_target(self, best: tuple[int, float] | None) -> None:
        target = self.limits.target
        if target is not None and best is not None and best[0] == self.ladder.top and best[1] >= target:
            self.stop("target")

    def _tidy(self, answered: list[Request]) -> None:
        """Keeps only checkpoints somebody may go on from, within the budget."""
        drop: set[tuple[int, int]] = set()
        for request in answered:
            result = self.state.trials[request.trial].results.get(request.rung)
            if result is not None:  # otherwise it is tried again, perhaps from here
                useless = request.rung + 1 if result.score is None else request.rung
                drop |= {(request.trial, step) for step in range(useless)} & self._held.keys()
        if self.disk is not None and sum(self._held.values()) > self.disk:
            # A little more than needed, so that it is not needed again at once.
            drop.update(droppable(self._held, self._kept(), int(0.9 * self.disk)))
        self.run.drop(drop)
        for key in drop:
            del self._held[key]
        self._forget(answered)

    def _forget(self, answered: list[Request]) -> None:
        """Keeps the predictions of a trial's highest rung, which hold those below, and of all what is worth most."""
        done = [one for one in answered if (one.trial, one.rung) in self._predicted]
        old = {(one.trial, rung) for one in done for rung in range(one.rung)}
        old &= self._predicted.keys()
        if self.disk is not None and sum(self._predicted.values()) > PREDICTIONS * self.disk:
            old.update(droppable(self._predicted, self._kept(), int(0.9 * PREDICTIONS * self.disk)))
        self.run.forget(old)
        for key in old:
            del self._predicted[key]

    def _kept(self) -> list[tuple[int, int]]:
        running = [(number, step) for number, rung in self.state.running.items() for step in range(rung + 1)]
        waiting = [(number, step) for number, rung in self.state.waiting.items() for step in range(rung + 1)]
        plain = [(0, step) for step in range(self.ladder.top + 1)]  # the verdict needs its trainings too
        return list(dict.fromkeys(plain + running + waiting + self.rungs.promising()))
