"""The ledger of a search: its records, and what is known after them.

Hides what a record means. `State` is a pure function of the records (`replay`), so that whoever can read the file knows
all there is to know: the search that goes on, the report, the terminal.

Records, each one line of JSON with `schema`, `kind` and `at` (seconds since 1970):

    run     space, task, settings, seed, versions; the first line, once
    trial   trial, spec, hash, params, origin, bracket
    start   trial, rung, attempt
    result  trial, rung, outcome, score, seconds, examples, extra (which worker, what message, what else was measured)
    note    event, and anything else
    end     reason
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from headhunt.errors import HeadhuntError

SCHEMA = 1
OUTCOMES = {
    "ok": "trained and scored",
    "collapsed": "predicts one class, or its loss is flat or not a number",
    "memory": "ran out of memory",
    "limit": "slower or larger than the user allows",
    "lost": "its worker died",
    "error": "failed for another reason",
}
STOPPED = "stopped"  # an answer that is no result: cut off by the deadline, to be taken up again on resuming
RETRIES = {"lost": 3, "memory": 1}  # how often such an outcome is tried again before it counts


class RunError(HeadhuntError):
    """A run directory cannot be used as asked."""


@dataclass(frozen=True)
class Request:
    """What a worker is asked to do; plain data, so that it crosses to another machine as JSON."""

    trial: int
    spec: dict[str, Any]
    rung: int
    fraction: float
    """Share of the candidate's examples seen at the end of this rung; 0 is the probe."""
    seed: int
    attempt: int = 0
    gradient_accumulation_steps: int = 1
    """The micro-batch is divided by this; the examples per step stay the same."""
    checkpoint: str = ""
    """Folder for the state at the end of this rung."""
    resume: str | None = None
    """Folder of the state to go on from; where it is missing the candidate starts from its seed."""
    predictions: str = ""
    deadline: float | None = None
    """When to stop, in seconds since 1970."""
    worker_timeout: float | None = None
    """Seconds after which the executor ends a worker that does not answer."""
    job: str = "judge"
    """`judge` it; `refit` it on all rows and save the model as `checkpoint`; `deliver` there what `resume` holds;
    `answer` the test rows with it; measure its `cost`."""

    def to_dict(self) -> dict[str, Any]:
        """Plain, JSON-able data."""
        return asdict(self)


@dataclass(frozen=True)
class Outcome:
    """What a worker answers."""

    outcome: str
    """One of OUTCOMES, or STOPPED."""
    score: float | None = None
    """Higher is better; None unless ok."""
    seconds: float = 0.0
    examples: int = 0
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass
class Trial:
    """A candidate and all that is known of it."""

    number: int
    spec: dict[str, Any]
    hash: str
    params: dict[str, Any] | None
    """Every leaf by its path, the inactive ones too; None where the space cannot express the candidate."""
    origin: str
    bracket: int
    """The rung it starts at."""
    results: dict[int, Outcome] = field(default_factory=dict)
    """The settled outcome of each rung."""
    reached: int = -1
    """The highest rung ever started."""
    losses: dict[int, int] = field(default_factory=dict)
    """How often its worker died at each rung."""
    out_of_memory: int = 0
    """How often it ran out of memory."""
    attempts: int = 0

    @property
    def best(self) -> tuple[int, float] | None:
        """The highest rung with a score, and that score."""
        scored = [(rung, result.score) for rung, result in self.results.items() if result.score is not None]
        return max(scored) if scored else None

    def settle(self, rung: int, outcome: Outcome) -> bool:
        """Takes in an outcome; False if the same rung is to be tried again."""
        if outcome.outcome == "lost":
            self.losses[rung] = self.losses.get(rung, 0) + 1
            if self.losses[rung] <= RETRIES["lost"]:
                return False
        if outcome.outcome == "memory":
            self.out_of_memory += 1
            if self.out_of_memory <= RETRIES["memory"]:
                return False
        self.results[rung] = outcome
        return True


@dataclass
class State:
    """What is known of a run: records are applied one after the other, and nothing else changes it."""

    header: dict[str, Any] | None = None
    """The `run` record."""
    trials: list[Trial] = field(default_factory=list)
    hashes: dict[str, int] = field(default_factory=dict)
    waiting: dict[int, int] = field(default_factory=dict)
    """Trial to rung: what is to be started before anything is chosen."""
    running: dict[int, int] = field(default_factory=dict)
    """Trial to rung."""
    settled: list[tuple[int, int]] = field(default_factory=list)
    """Trial and rung of every settled result, in the order they came."""
    times: list[float] = field(default_factory=list)
    """Seconds of searching until each settled result; pauses between a stop and a resume not counted."""
    elapsed: float = 0.0
    """Seconds of searching so far, pauses not counted."""
    model: dict[str, Any] | None = None
    """The best model on disk: its `folder` in the run directory and the `trial` it came from."""
    seconds: float = 0.0
    """Worker time of all results."""
    ended: str | None = None
    """Why the search ended, unless it goes on."""
    _at: float | None = None
    _reopened: bool = False

    def apply(self, record: Mapping[str, Any]) -> bool:
        """Takes in one record; True if it is a result that settles a rung.

        Raises:
            RunError: If the record does not fit what came before.
        """
        try:
            kind = record.get("kind")
            if record.get("schema") != SCHEMA:
                raise RunError(
                    f"The ledger must have schema {SCHEMA}; found {record.get('schema')!r}. Update Headhunt."
                )
            if kind in _APPLY:
                self._pass_time(record)
                return bool(_APPLY[kind](self, record))
        except (AttributeError, KeyError, IndexError, TypeError) as error:
            raise RunError(f"A ledger record does not fit what came before it ({error!r}): {_short(record)}") from None
        raise RunError(f"A ledger record must be one of {', '.join(_APPLY)}; found {_short(record)}")

    def _pass_time(self, record: Mapping[str, Any]) -> None:
        paused = record.get("event") == "reopened" or self.ended is not None
        # Opened again for a verdict or an ablation: no candidate was started, so nothing was searched.
        paused = paused or (record["kind"] == "end" and self._reopened)
        if self._at is not None and not paused:
            self.elapsed += max(0.0, record["at"] - self._at)
        self._at = record["at"]
        self._reopened = record.get("event") == "reopened" or (self._reopened and record["kind"] != "start")

    def _run(self, record: Mapping[str, Any]) -> None:
        if self.header is not None:
            raise RunError("A ledger must begin with its one run record; found a second.")
        self.header = dict(record)

    def _trial(self, record: Mapping[str, Any]) -> None:
        number, digest = record["trial"], record["hash"]
        if number != len(self.trials) or digest in self.hashes:
            raise RunError(f"Trials must be numbered in order and differ; found {_short(record)}")
        params, origin = record["params"], record["origin"]
        self.trials.append(Trial(number, record["spec"], digest, params, origin, record["bracket"]))
        self.hashes[digest] = number
        self.waiting[number] = record["bracket"]

    def _start(self, record: Mapping[str, Any]) -> None:
        number, rung = record["trial"], record["rung"]
        trial = self.trials[number]
        trial.reached = max(trial.reached, rung)
        trial.attempts += 1
        self.waiting.pop(number, None)
        self.running[number] = rung
        self.ended = None

    def _result(self, record: Mapping[str, Any]) -> bool:
        number, rung = record["trial"], record["rung"]
        if self.running.pop(number) != rung or record["outcome"] not in OUTCOMES:
            raise RunError(f"A result must answer a start; found {_short(record)}")
        outcome = Outcome(record["outcome"], record["score"], record["seconds"], record["examples"], record["extra"])
        self.seconds += outcome.seconds
        if self.trials[number].settle(rung, outcome):
            self.settled.append((number, rung))
            self.times.append(self.elapsed)
            return True
        self.waiting[number] = rung
        return False

    def _note(self, record: Mapping[str, Any]) -> None:
        if record["event"] == "reopened":
            # Whoever ran these is gone with the last writer; that is no fault of theirs.
            self.waiting = {**self.running, **self.waiting}
            self.running = {}
            self.ended = None
        elif record["event"] == "model":
            self.model = {"folder": record["folder"], "trial": record["trial"]}

    def _end(self, record: Mapping[str, Any]) -> None:
        self.ended = record["reason"]

    def leaderboard(self) -> list[Trial]:
        """Trials with a score, best first: a higher rung comes before a lower one, then the score decides."""
        return sorted((trial for trial in self.trials if trial.best), key=_rank, reverse=True)

    @property
    def best(self) -> Trial | None:
        """The first of the leaderboard."""
        return max((trial for trial in self.trials if trial.best), key=_rank, default=None)


_APPLY: dict[Any, Callable[[State, Mapping[str, Any]], bool | None]] = {
    "run": State._run,
    "trial": State._trial,
    "start": State._start,
    "result": State._result,
    "note": State._note,
    "end": State._end,
}


def _rank(trial: Trial) -> tuple[int, float, int]:
    assert trial.best is not None
    return (*trial.best, -trial.number)


def _short(record: Mapping[str, Any]) -> str:
    known = record.items() if isinstance(record, Mapping) else ()
    return json.dumps({key: value for key, value in known if key not in ("spec", "params")})[:200]


def replay(records: Iterable[Mapping[str, Any]]) -> State:
    """What is known after these records: a pure function of them."""
    state = State()
    for record in records:
        state.apply(record)
    return state


def read(path: Path) -> tuple[list[dict[str, Any]], int]:
    """The records of a ledger and the number of bytes they fill; a torn last line is left out.

    Raises:
        RunError: If any line but the last is not a record.
    """
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    lines = data[:whole].split(b"\n")[:-1]
    try:
        # One document of all lines: keys are shared between records, a third of the memory.
        return json.loads(b"[" + b",".join(lines) + b"]"), whole
    except ValueError:
        records = []
        for number, line in enumerate(lines, 1):
            try:
                records.append(json.loads(line))
            except ValueError as error:
                if number == len(lines):
                    return records, whole - len(line) - 1
                raise RunError(
                    f"Every line of {path} must be a JSON record; line {number} is not ({error}). The file was changed "
                    "or the disk is failing; cut it before that line to go on from there."
                ) from None
        raise
