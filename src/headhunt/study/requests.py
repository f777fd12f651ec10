"""The requests that a search sends to its workers, one type per job.

A request names all files that it reads and makes, so that it can be sent again: its `key` says whether it was done.

The clocks of two machines may differ by hours. A request that is sent to another process therefore carries the seconds
until its deadline, and is received with a deadline on the clock of that process.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headhunt.evaluation import Decisions
from headhunt.run.clock import steady_time
from headhunt.spec import Spec


@dataclass(frozen=True, kw_only=True)
class Request:
    """A job about one candidate."""

    trial: int
    spec: Spec
    seed: int
    gradient_accumulation_steps: int = 1
    """Number of micro-batches per step, to save memory."""
    rows: int | None = None
    """Number of training rows, a stratified sample that a larger number contains; None takes all."""
    attempt: int = 0
    deadline: float | None = None
    """When to stop, on the `steady_time` of this process."""
    worker_timeout: float | None = None
    """Seconds after which the executor replaces a worker that does not respond."""
    threads: int | None = None
    """Threads of the worker while it runs this request; None for as many as it has otherwise."""
    alone: bool = False
    """Whether nothing runs beside it, so that it can have all threads of this machine."""
    elastic: bool = False
    """Whether the number of training steps is fitted to the deadline; otherwise the work is cut off there."""
    finishing: float = 0.0
    """Seconds before the deadline at which an elastic training ends, for what follows it."""
    repeats: bool = False
    """Whether the work is done again although it was done before; what it made is kept until then."""

    def __getstate__(self) -> dict[str, Any]:
        left = None if self.deadline is None else self.deadline - steady_time()
        return {**self.__dict__, "deadline": left}

    def __setstate__(self, state: dict[str, Any]) -> None:
        left = state["deadline"]
        self.__dict__.update(state, deadline=None if left is None else steady_time() + left)

    @property
    def name(self) -> str:
        """The name of the job, for records."""
        return type(self).__name__

    @property
    def makes(self) -> Path | None:
        """The file or folder that shows that the work was done; None if only its outcome counts."""
        return None

    @property
    def key(self) -> str:
        """The name of the work: no work is done twice."""
        return f"{self.name}/{self.makes.name if self.makes else self.trial}"


@dataclass(frozen=True, kw_only=True)
class EvaluateTrial(Request):
    """Train a candidate for a fraction of its budget and score it on rows it was not trained on."""

    rung: int
    fraction: float
    """Fraction of the candidate's examples seen at the end of this rung."""
    checkpoint: Path | None = None
    """Directory for the state at the end of this rung."""
    resume_from: Path | None = None
    """Directory of the state to continue from; if it is missing, training starts from the seed."""
    predictions: Path | None = None
    """File for the predictions."""
    out: Path | None = None
    """Folder for the model, where a candidate is trained once and not on several folds."""
    left_out: int | None = None
    """Several tasks: number of the task whose rows are not trained on; None trains on all."""
    recorded: bool = True
    """Whether the score is a result of the trial; if not, only the predictions count."""

    @property
    def makes(self) -> Path | None:
        """The predictions."""
        return self.predictions


@dataclass(frozen=True, kw_only=True)
class FitAllRows(Request):
    """Train a candidate on all rows, or all but the held-out ones, and save the model."""

    out: Path
    predictions: Path | None = None
    """File for predictions of the held-out rows; None if all rows are trained on."""

    @property
    def makes(self) -> Path:
        """The model."""
        return self.out


@dataclass(frozen=True, kw_only=True)
class JoinModels(Request):
    """Join saved models into one, their ensemble, if it is within the limits."""

    members: tuple[Path, ...]
    out: Path
    facts: Mapping[str, Any]
    """Further data to save with the ensemble."""
    decisions: Decisions = field(default_factory=Decisions)
    """Fitted on the mean of the members' outputs."""

    @property
    def makes(self) -> Path:
        """The ensemble."""
        return self.out

    @property
    def key(self) -> str:
        """The name of the work: other members make another ensemble."""
        return f"{self.name}/{'+'.join(member.name for member in self.members)}"


@dataclass(frozen=True, kw_only=True)
class PredictTestRows(Request):
    """Predict the test rows with a saved model."""

    model: Path
    predictions: Path

    @property
    def makes(self) -> Path:
        """The predictions."""
        return self.predictions


@dataclass(frozen=True, kw_only=True)
class PretrainEncoder(Request):
    """Train the encoder of a candidate further on the unlabelled texts of the run."""

    out: Path
    """Folder of the new encoder."""
    seconds: float | None = None
    """Time that it may take; None is no limit."""


@dataclass(frozen=True, kw_only=True)
class MeasureCost(Request):
    """Measure latency, size and FLOPs of a saved model."""

    model: Path

    @property
    def key(self) -> str:
        """The name of the work."""
        return f"{self.name}/{self.model.name}"


@dataclass(frozen=True, kw_only=True)
class MeasureThroughput(Request):
    """Pass training rows through a candidate's frozen encoder and measure how many a second it takes."""

    seconds: float
    """Time after which no further rows are taken; `rows` is the largest number."""
