"""The settings of a search, stored so that it can be resumed and repeated."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Any

from headhunt.evaluation import RejectionRule, find_metric
from headhunt.run.task import TaskInfo

DELIVER = {
    "best": "the winner, or the plain head if that is better on validation rows",
    "plain-unless-proven": "the plain head, unless the test rows prove that the winner is better",
    "ensemble": "the ensemble if it has the best score on validation rows and is within the limits, otherwise as best",
}


@dataclass(frozen=True)
class SearchSettings:
    """The settings of a search.

    Permission to run remote code and the address of a cluster are never stored: they must be given again.
    """

    encoder: str
    """Encoder of the plain head."""
    space: dict[str, Any]
    """The search space as plain data."""
    strategy: str = "prior"
    known_recipes: bool = True
    """Whether the search begins with known recipes."""
    learned: tuple[dict[str, Any], ...] = ()
    """Candidates of earlier searches that are tried early, as plain data."""
    rungs: bool = True
    """Whether trials are compared on less than full training first."""
    metric: str = "accuracy"
    time: float | None = 600.0
    """Seconds; None is no limit."""
    trials: int | None = None
    """Maximum number of trials."""
    target: float | None = None
    """A score that ends the search."""
    seed: int = 0
    workers: int | None = None
    device: str | None = None
    precision: str = "auto"
    max_latency: float | None = None
    """Milliseconds."""
    max_size: float | None = None
    """Megabytes."""
    calibrate: bool = False
    max_length: int | None = None
    encoders: tuple[str, ...] = ()
    """Encoders to choose from, the one of the plain head first; empty if there is no choice."""
    max_memory: float | None = None
    """Megabytes of each worker process."""
    reject: float | None = None
    """Share of the rows that the delivered model answers; None answers all."""
    reject_label: str | None = None
    """Class of texts that fit no other class; they are rejected."""
    deliver: str = "best"
    """Rule by which the delivered model is chosen; see DELIVER."""
    pretrain: bool = False
    """Whether the encoder is also tried after further pretraining on texts of the task."""
    unlabelled: bool = False
    """Whether the user gave unlabelled texts; they are stored with the task."""

    def __post_init__(self) -> None:
        find_metric(self.metric)

    @property
    def rejection(self) -> RejectionRule | None:
        """The rule for rejecting texts; None if all are answered."""
        if self.reject is None and self.reject_label is None:
            return None
        coverage = RejectionRule.coverage if self.reject is None else self.reject
        return RejectionRule(coverage, self.reject_label)

    def command(self, task: TaskInfo, space: str) -> list[str]:
        """Return the command that repeats the search, option by option; DATA and TEST stand for the user's files.

        Args:
            task: Description of the data.
            space: Name of the space, or of a file that holds it.
        """
        single = not task.tasks
        options: dict[str, Any] = {
            "--tasks": None if single else "TASKS",
            "--test": "TEST" if task.test_given and single else None,
            "--unlabelled": "UNLABELLED" if self.unlabelled else None,
            "--learn-from": "RUN" if self.learned else None,
            "--limit": task.limit,
            "--encoder": ",".join(self.encoders) or self.encoder,
            "--max-length": self.max_length,
            "--time": "none" if self.time is None else f"{self.time:g}s",
            "--trials": self.trials,
            "--target": self.target,
            "--text": task.columns.text if single else None,
            "--text-b": task.columns.text_b if single else None,
            "--label": task.columns.label if single else None,
            "--group": task.columns.group if single else None,
            "--order": task.columns.order if single else None,
            "--problem-type": task.problem_type if single else None,
            "--space": space,
            "--strategy": self.strategy,
            "--metric": self.metric if single else None,
            "--workers": self.workers,
            "--seed": self.seed,
            "--device": self.device,
            "--precision": self.precision,
            "--max-latency": None if self.max_latency is None else f"{self.max_latency:g}ms",
            "--max-size": None if self.max_size is None else f"{self.max_size:g}MB",
            "--max-memory": None if self.max_memory is None else f"{self.max_memory:g}MB",
            "--reject": self.reject,
            "--reject-label": self.reject_label,
            "--deliver": None if self.deliver == "best" else self.deliver,
        }
        words = [f"{name} {shlex.quote(str(value))}" for name, value in options.items() if value is not None]
        switches = ["--calibrate"] if self.calibrate else []
        switches += [] if self.known_recipes else ["--no-known-recipes"]
        switches += [] if self.rungs else ["--no-rungs"]
        if self.pretrain != self.unlabelled:  # the default
            switches.append("--pretrain" if self.pretrain else "--no-pretrain")
        return ["headhunt search DATA" if single else "headhunt search", *words, *switches]
