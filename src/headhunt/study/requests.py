"""The requests that a search sends to its workers, one type per job.

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
    init_seed: int | None = None
    """Seed of the initial weights, if it is not `seed`."""
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
    left_out: int | None = None
    """Several tasks: number of the task whose rows are not trained on; None trains on all."""


@dataclass(frozen=True, kw_only=True)
class RepeatPredictions(Request):
    """Make the predictions of a settled trial again, because the file cannot be read."""

    rung: int
    fraction: float
    predictions: Path
    checkpoint: Path | None = None
    """Directory of the trial's state, if there is one."""


@dataclass(frozen=True, kw_only=True)
class FitAllRows(Request):
    """Train a candidate on all rows and save the model."""

    out: Path
    keep_unfinished: bool = False
    """Whether a model whose training was cut off by the deadline is saved all the same."""
    validation_predictions: Path | None = None
    """File for predictions of the validation rows, which are then not trained on."""


@dataclass(frozen=True, kw_only=True)
class AverageModels(Request):
    """Average the weights of a candidate's models, if the average predicts as they do."""

    models: tuple[Path, ...]
    out: Path
    checked_rows: int = 100
    """Number of texts that the predictions are compared on."""


@dataclass(frozen=True, kw_only=True)
class SaveFirstFold(Request):
    """Save the model of a candidate's first fold."""

    checkpoint: Path
    out: Path


@dataclass(frozen=True, kw_only=True)
class SaveAllFolds(Request):
    """Save a model of each of a candidate's folds, as members of an ensemble."""

    checkpoint: Path
    out: Path


@dataclass(frozen=True, kw_only=True)
class JoinModels(Request):
    """Replace the saved models in a folder by one model, their ensemble, if it is within the limits."""

    folder: Path
    facts: Mapping[str, Any]
    """Further data to save with the ensemble."""
    decisions: Decisions = field(default_factory=Decisions)
    """Fitted on the mean of the members' outputs."""


@dataclass(frozen=True, kw_only=True)
class PredictTestRows(Request):
    """Predict the test rows with a saved model."""

    model: Path
    predictions: Path


@dataclass(frozen=True, kw_only=True)
class PredictTestRowsByFold(Request):
    """Predict the test rows with the model of each fold of a checkpoint."""

    checkpoint: Path
    predictions: Path


@dataclass(frozen=True, kw_only=True)
class PretrainEncoder(Request):
    """Train the encoder of a candidate further on the unlabelled texts of the run."""

    out: Path
    """Folder of the new encoder."""
    seconds: float | None = None
    """Time that it may take; None is no limit."""


@dataclass(frozen=True, kw_only=True)
class TrainStudent(Request):
    """Train a candidate on labels and on a teacher's outputs for unlabelled texts; `spec` is the teacher's."""

    texts: int
    """Number of unlabelled texts."""
    student: Spec
    """The candidate that is trained."""
    fold: int | None = None
    """The fold to train on, with the candidate's own model of this fold as the teacher; None is all rows."""
    checkpoint: Path | None = None
    """Directory of the state at the end of every fold."""
    model: Path | None = None
    """The teacher of a student on all rows."""
    predictions: Path | None = None
    """File for the predictions of the rows left out of the fold."""
    out: Path | None = None
    """Folder of a student on all rows."""


@dataclass(frozen=True, kw_only=True)
class MeasureCost(Request):
    """Measure latency, size and FLOPs of a candidate."""


@dataclass(frozen=True, kw_only=True)
class EvaluateTfidf(Request):
    """Evaluate TF-IDF with a linear model, as a reference; the candidate plays no part."""

    predictions: Path
    """File for its predictions of validation rows."""
    test_predictions: Path | None = None
    """File for its predictions of the test rows."""


@dataclass(frozen=True, kw_only=True)
class MeasureThroughput(Request):
    """Pass training rows through a candidate's frozen encoder and measure how many a second it takes."""

    seconds: float
    """Time after which no further rows are taken; `rows` is the largest number."""
