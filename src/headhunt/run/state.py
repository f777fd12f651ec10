"""Derive the state of a search from the events of its ledger.

`State` is a pure function of the events. A search that is resumed, the report and the terminal all see the same.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from headhunt.run.events import (
    DISK,
    STOPPED,
    Event,
    FinalTestRun,
    JobFinished,
    JobStarted,
    ModelSaved,
    RunResumed,
    RunStarted,
    SearchEnded,
    TrialAdded,
    TrialFinished,
    TrialStarted,
)
from headhunt.run.schema import RunError
from headhunt.spec import Spec

# Origins of the baseline, of solved heads, of word counts without an encoder, and of known recipes.
PLAIN, SOLVED, WORDS, KNOWN = "plain", "solved", "words", "known"
CONFIDENCE = 1.0  # standard errors below the score at which its lower bound lies
RETRIES = {"lost": 3, "memory": 1}  # how often a trial runs a rung again after such an outcome before it counts


@dataclass(frozen=True)
class Outcome:
    """The response of a worker to a request."""

    outcome: str
    """One of OUTCOMES, STOPPED or DISK."""
    score: float | None = None
    """Higher is better; None unless the outcome is ok."""
    seconds: float = 0.0
    examples: int = 0
    extra: dict[str, Any] = field(default_factory=dict)
    """Further measurements: messages, losses, cost."""


@dataclass
class Trial:
    """A candidate and its results."""

    number: int
    spec_data: dict[str, Any]
    """The spec as plain data; `spec` is the parsed one."""
    hash: str
    params: dict[str, Any] | None
    """Every parameter by its path, inactive ones too; None if the space cannot express the candidate."""
    origin: str
    bracket: int
    """The rung it starts at."""
    results: dict[int, Outcome] = field(default_factory=dict)
    """The final outcome of each rung."""
    reached: int = -1
    """The highest rung ever started."""
    failures: Counter[tuple[int, str]] = field(default_factory=Counter)
    """How often it failed in a way after which it is repeated, by rung and outcome."""
    attempts: int = 0

    @cached_property
    def spec(self) -> Spec:
        """The candidate."""
        return Spec.from_dict(self.spec_data)

    @property
    def best(self) -> tuple[int, float] | None:
        """The highest rung with a score, and that score."""
        scored = [(rung, result.score) for rung, result in self.results.items() if result.score is not None]
        return max(scored) if scored else None

    @property
    def is_plain(self) -> bool:
        """True for the plain head, the baseline; it may be trained with more than one recipe."""
        return self.origin == PLAIN

    @property
    def is_solved(self) -> bool:
        """True for a head that is solved rather than trained."""
        return self.spec.recipe.is_solved

    def lower_bound(self, rung: int) -> float | None:
        """Return a lower bound of the score at a rung: one that chance in the choice of rows seldom undercuts."""
        result = self.results.get(rung)
        if result is None or result.score is None:
            return None
        return result.score - CONFIDENCE * float(result.extra.get("std_error") or 0.0)

    @property
    def seconds(self) -> float:
        """Worker time of all its results."""
        return sum(result.seconds for result in self.results.values())

    @property
    def gradient_accumulation_steps(self) -> int:
        """Number of micro-batches per step; doubled each time the trial ran out of memory."""
        return int(2 ** sum(count for (_, kind), count in self.failures.items() if kind == "memory"))

    def add_result(self, rung: int, outcome: Outcome) -> bool:
        """Record an outcome; return False if the rung is to be run again."""
        if outcome.outcome in RETRIES:
            self.failures[rung, outcome.outcome] += 1
            if self.failures[rung, outcome.outcome] <= RETRIES[outcome.outcome]:
                return False
        self.results[rung] = outcome
        return True


@dataclass
class State:
    """The state of a search after some events; nothing but `apply` changes it."""

    started: RunStarted | None = None
    """The first event."""
    started_at: float | None = None
    """Its time, in seconds since 1970."""
    trials: list[Trial] = field(default_factory=list)
    hashes: dict[str, int] = field(default_factory=dict)
    """Trial number by spec hash."""
    waiting: dict[int, int] = field(default_factory=dict)
    """Rung by trial: what to start before anything new is proposed."""
    running: dict[int, int] = field(default_factory=dict)
    """Rung by trial."""
    settled: list[tuple[int, int]] = field(default_factory=list)
    """Trial and rung of every final result, in order."""
    times: list[float] = field(default_factory=list)
    """Seconds of searching until each final result, without pauses between a stop and a resume."""
    elapsed: float = 0.0
    """Seconds of searching so far, without pauses."""
    model: ModelSaved | None = None
    """The best model on disk."""
    jobs: dict[str, Outcome] = field(default_factory=dict)
    """The final outcome of work beside the trials, by its key."""
    active: dict[str, int] = field(default_factory=dict)
    """Trial by the key of work beside the trials that was sent to a worker."""
    failures: Counter[tuple[str, str]] = field(default_factory=Counter)
    """How often such work ended with an outcome after which it is repeated, by key and outcome."""
    seconds: float = 0.0
    """Worker time of all results."""
    ended: str | None = None
    """Why the search ended; None while it runs."""
    test_evaluations: int = 0
    """How often models predicted the test rows."""
    _at: float | None = None
    _paused: bool = False

    def apply(self, event: Event, at: float) -> bool:
        """Take in one event; return True if it is a result that is final for its rung.

        Args:
            event: The next event.
            at: Its time, in seconds since 1970.

        Raises:
            RunError: If the event does not fit the ones before it.
        """
        try:
            self._advance_clock(event, at)
            return self._take_in(event)
        except (KeyError, IndexError) as error:
            raise RunError(f"the event {event.name!r} does not fit the ones before it ({error!r})") from None

    def _advance_clock(self, event: Event, at: float) -> None:
        resumed = isinstance(event, RunResumed)
        paused = resumed or self.ended is not None
        # Reopened for a verdict or an ablation: no trial was started, so this was no searching.
        paused = paused or (isinstance(event, SearchEnded) and self._paused)
        if self._at is not None and not paused:
            self.elapsed += max(0.0, at - self._at)
        self._at = at
        self.started_at = at if self.started_at is None else self.started_at
        self._paused = resumed or (self._paused and not isinstance(event, TrialStarted))

    def _take_in(self, event: Event) -> bool:
        match event:
            case TrialFinished():
                return self._finish_trial(event)
            case JobFinished():
                return self._finish_job(event)
            case RunStarted():
                if self.started is not None:
                    raise RunError("a ledger has one run event, the first; found a second")
                self.started = event
            case TrialAdded():
                self._add_trial(event)
            case TrialStarted():
                trial = self.trials[event.trial]
                self._check_rung(event.rung)
                trial.reached = max(trial.reached, event.rung)
                trial.attempts += 1
                self.waiting.pop(event.trial, None)
                self.running[event.trial] = event.rung
                self.ended = None
            case JobStarted():
                self.active[event.key] = event.trial
            case ModelSaved():
                self.model = event
            case RunResumed():
                # Workers of the last writer are gone; that is not a failure of their trials.
                self.waiting = {**self.running, **self.waiting}
                self.running, self.active, self.ended = {}, {}, None
            case FinalTestRun():
                self.test_evaluations += 1
            case SearchEnded():
                self.ended = event.reason
        return False

    def _add_trial(self, event: TrialAdded) -> None:
        if event.trial != len(self.trials) or event.hash in self.hashes:
            raise RunError(f"trials are numbered in order and differ; found trial {event.trial}, {event.hash}")
        self._check_rung(event.bracket)
        self.trials.append(Trial(event.trial, event.spec, event.hash, event.params, event.origin, event.bracket))
        self.hashes[event.hash] = event.trial
        self.waiting[event.trial] = event.bracket

    def _check_rung(self, rung: int) -> None:
        fractions = self.started.fractions if self.started else ()
        if fractions and rung >= len(fractions):
            raise RunError(f"the ladder has {len(fractions)} rungs; found rung {rung}")

    def _finish_trial(self, event: TrialFinished) -> bool:
        if self.running.pop(event.trial) != event.rung:
            raise RunError(f"a result follows a start; found trial {event.trial} at rung {event.rung}")
        outcome, trial = Outcome(event.outcome, event.score, event.seconds, event.examples, event.extra), event.trial
        self.seconds += outcome.seconds
        known = event.rung in self.trials[trial].results  # made again, because its predictions were lost
        if not self.trials[trial].add_result(event.rung, outcome):
            self.waiting[trial] = event.rung
            return False
        if not known:
            self.settled.append((trial, event.rung))
            self.times.append(self.elapsed)
        return not known

    def _finish_job(self, event: JobFinished) -> bool:
        self.active.pop(event.key, None)
        work = event.key, event.outcome
        self.failures[work] += 1
        if event.outcome in (STOPPED, DISK) or self.failures[work] <= RETRIES.get(event.outcome, 0):
            return False
        self.jobs[event.key] = Outcome(event.outcome, None, event.seconds, event.examples, event.extra)
        return True

    def leaderboard(self) -> list[Trial]:
        """Return trials with a score, best first: a higher rung comes before a lower one, then the score decides."""
        return sorted((trial for trial in self.trials if trial.best), key=_rank, reverse=True)

    @property
    def best(self) -> Trial | None:
        """The first of the leaderboard."""
        return max((trial for trial in self.trials if trial.best), key=_rank, default=None)

    @property
    def plain_trials(self) -> list[Trial]:
        """The plain head with each recipe it is trained with; the first is always trial 0."""
        return [trial for trial in self.trials if trial.is_plain]

    @property
    def plain(self) -> Trial | None:
        """The plain head with the better of its recipes."""
        trials = self.plain_trials or self.trials[:1]
        return max(trials, key=lambda trial: (*(trial.best or (-1, 0.0)), -trial.number), default=None)


def _rank(trial: Trial) -> tuple[int, float, int]:
    assert trial.best is not None
    return (*trial.best, -trial.number)
