"""The results of a search, an ablation and an importance analysis, as they are stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from headhunt.data import SubTask
from headhunt.evaluation import (
    ErrorBound,
    Mistake,
    RejectionScores,
    ReliabilityBin,
    Score,
    evaluate_tasks,
    find_metric,
)
from headhunt.run.schema import is_bare_name
from headhunt.spec import Spec

Delivered = Literal["winner", "plain", "ensemble"]
Claim = Literal["gain", "no gain", "untested"]
# The models that are tested: the delivered one, the plain head, the ensemble, and references without training.
WINNER, PLAIN, SOLVED, WORDS = "winner", "plain", "solved", "words"
ENSEMBLE: Literal["ensemble"] = "ensemble"
MODELS = (WINNER, PLAIN, ENSEMBLE, SOLVED, WORDS)


@dataclass(frozen=True)
class PretrainingResult:
    """Further pretraining of the encoder on texts without labels."""

    texts: int
    """Texts or pairs: those of the training rows and the unlabelled ones."""
    own: int
    """Number of them that are training rows."""
    folder: str | None = None
    """The new encoder, a directory among the encoders of the run; None if it was left out."""
    epochs: float = 0.0
    steps: int = 0
    first_loss: float | None = None
    last_loss: float | None = None
    seconds: float = 0.0
    note: str | None = None
    """Why it was left out."""

    def __post_init__(self) -> None:
        if self.folder is not None and not is_bare_name(self.folder):
            raise ValueError(f"folder must be a bare name inside the run; found {self.folder!r}.")


@dataclass(frozen=True)
class TrialSummary:
    """A trial and its score on validation rows."""

    trial: int
    spec: Spec
    rung: int | None
    score: float | None


@dataclass(frozen=True)
class Latency:
    """Milliseconds per call."""

    p50_ms: float
    p99_ms: float


@dataclass(frozen=True)
class ModelCost:
    """The cost of using a model."""

    latency: dict[str, Latency]
    """By batch size."""
    parameters: int
    megabytes: float
    gflops: float
    device: str


@dataclass(frozen=True)
class Finalist:
    """A candidate whose validation score does not differ significantly from the best."""

    trial: int
    scores: tuple[float, ...]
    """One per seed."""
    cost: ModelCost | None = None


@dataclass(frozen=True)
class CandidateCost:
    """Score and cost of a fully evaluated candidate."""

    trial: int
    score: float
    latency_ms: float
    """Median for one text, of a few calls."""
    megabytes: float
    efficient: bool = False
    """Whether it is on the Pareto front of score, latency and size."""


@dataclass(frozen=True)
class RungSummary:
    """The results and the cost of one rung."""

    rung: int
    fraction: float
    results: int
    promoted: int
    failed: int
    seconds: float
    best: float | None


@dataclass(frozen=True)
class TaskResult:
    """Scores on the test rows of one of several tasks."""

    name: str
    metric: str
    rows: int
    scores: dict[str, dict[str, Score]]
    """By model, then by metric."""
    gain: float | None = None
    """Mean difference of the metric between the training runs of the winner and of the plain head."""
    low: float | None = None
    high: float | None = None
    confusion: dict[str, list[list[int]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        find_metric(self.metric)
        _check_scores(self.scores, self.metric)


@dataclass(frozen=True)
class TestResult:
    """Scores on the test rows, by model: `winner`, `plain`, `ensemble`, `solved`, `words`."""

    __test__ = False  # not a test class, whatever pytest thinks of its name

    rows: int
    scores: dict[str, dict[str, Score]]
    """By model, then by metric."""
    confusion: dict[str, list[list[int]]] = field(default_factory=dict)
    calibration: tuple[ReliabilityBin, ...] = ()
    """Of the winner."""
    temperature: float | None = None
    """The temperature that calibrates the winner, fitted on validation rows."""
    mistakes: tuple[Mistake, ...] = ()
    errors: ErrorBound | None = None
    """Size of the winner's errors, if numbers are predicted."""
    rejection: RejectionScores | None = None
    """Of the delivered model."""
    tasks: tuple[TaskResult, ...] = ()
    """Of each of several tasks; `scores` are then the means."""


def results_of_tasks(
    tasks: Sequence[SubTask], metric: str, outputs: Mapping[str, np.ndarray], targets: np.ndarray
) -> TestResult:
    """Return the mean scores of models on rows of several tasks, and those of each task.

    Args:
        tasks: The tasks.
        metric: Names of their metrics, separated by commas.
        outputs: Outputs of each model, by name.
        targets: Targets of the rows.
    """
    labels = [task.labels for task in tasks]
    scored = {name: evaluate_tasks(metric, each, targets, labels) for name, each in outputs.items()}
    results = []
    for number, (task, of_task) in enumerate(zip(tasks, metric.split(","), strict=True)):
        found = {name: parts[number] for name, (_, parts) in scored.items()}
        scores = {name: evaluation.scores for name, evaluation in found.items()}
        confusion = {name: found[name].confusion for name in (WINNER, PLAIN) if name in found}
        rows = next(iter(found.values())).rows
        results.append(TaskResult(task.name, of_task, rows, scores, confusion=confusion))
    return TestResult(len(targets), {name: mean.scores for name, (mean, _) in scored.items()}, tasks=tuple(results))


@dataclass(frozen=True)
class Verdict:
    """The comparison of the winner with the plain head, and the delivered model."""

    delivered: Delivered
    claim: Claim
    sentence: str
    gain: float | None = None
    """Difference of the metric on the test rows, signed so that above 0 is better."""
    low: float | None = None
    high: float | None = None
    p_value: float | None = None
    """Two-sided."""
    training_std_error: float | None = None
    """The part of the standard error that is due to chance in training."""
    training_runs: int = 0
    """Training runs of each that were compared."""


@dataclass(frozen=True)
class SearchResult:
    """The result of a finished search."""

    reason: str
    """Why the search ended."""
    metric: str
    trials: int
    results: int
    """Final results, over all rungs."""
    seconds: float
    examples: int
    """Training examples seen by all trials."""
    evaluated_on: str
    verdict: Verdict
    model: str | None = None
    """The delivered model, a directory of the run."""
    model_from: str | None = None
    """The saved model it is a copy of."""
    trained_rows: int | None = None
    """Rows that the delivered model has learned from."""
    winner: TrialSummary | None = None
    """The delivered candidate; None if it is the plain head."""
    plain: TrialSummary | None = None
    ensemble: str | None = None
    """The ensemble, a directory of the run, if it was asked for and is better on validation rows."""
    ensemble_members: tuple[int, ...] = ()
    ensemble_score: float | None = None
    """On validation rows."""
    finalists: tuple[Finalist, ...] = ()
    costs: tuple[CandidateCost, ...] = ()
    """Score and cost of all fully evaluated candidates, best first, with the Pareto front."""
    rungs: tuple[RungSummary, ...] = ()
    test: TestResult | None = None
    test_evaluations: int = 0
    """How often models predicted the test rows, in this run and the ones it resumed."""
    versions: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        find_metric(self.metric)
        _check_scores(self.test.scores if self.test else {}, self.metric)
        for name in ("model", "model_from", "ensemble"):
            value = getattr(self, name)
            if value is not None and not is_bare_name(value):
                raise ValueError(f"{name} must be a bare name inside the run; found {value!r}.")


@dataclass(frozen=True)
class AblationItem:
    """The winner with one thing changed."""

    name: str
    score: float
    difference: float
    """Change of the metric, signed so that below 0 means the thing helped."""
    low: float
    high: float
    seeds: int
    """Training runs of each that were compared."""
    significant: bool = False
    """Whether the interval excludes 0; never with one seed, which says nothing about chance in training."""


@dataclass(frozen=True)
class AblationResult:
    """The effect of each part and recipe item of the winner."""

    trial: int
    metric: str
    rows: int
    base: Score
    """The winner."""
    items: tuple[AblationItem, ...]
    failed: tuple[str, ...] = ()
    """Variants that could not be evaluated."""

    def __post_init__(self) -> None:
        find_metric(self.metric)


@dataclass(frozen=True)
class Importance:
    """The share of the variance of scores that a parameter explains."""

    name: str
    importance: float


@dataclass(frozen=True)
class Importances:
    """Parameters, most important first."""

    items: tuple[Importance, ...]


def _check_scores(scores: Mapping[str, Mapping[str, Score]], metric: str) -> None:
    """Raise ValueError if scores are of an unknown model, or lack the metric."""
    for model, values in scores.items():
        if model not in MODELS:
            raise ValueError(f"scores must be of {', '.join(MODELS)}; found {model!r}.")
        if metric not in values:
            raise ValueError(f"scores of {model!r} must include {metric!r}.")
