"""Learn from earlier searches: their best candidates are tried early in a new search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headhunt.data import Task
from headhunt.errors import HeadhuntError
from headhunt.run.directory import RunDirectory
from headhunt.run.ledger import read_state
from headhunt.run.state import Trial
from headhunt.spec import Spec

PER_RUN = 2  # candidates of one earlier search
MAXIMUM = 4  # candidates of all earlier searches, so that most of the time is left if they do not fit the new task


@dataclass(frozen=True)
class _Success:
    """A candidate of an earlier search that was better than its plain head."""

    spec: Spec
    place: int
    """Its place among the candidates of its search, 0 for the best."""
    gain_per_second: float
    """Points above the plain head for each second of its evaluation."""


def learn(runs: Sequence[str | Path], task: Task, known_recipes: bool = True) -> tuple[Spec, ...]:
    """Return the candidates of earlier searches to try early, in the order to try them.

    These are the best trained candidates of each search that were better than its plain head on validation rows: the
    best ones of all searches first, by gain per second, then the second best ones. The scores are those of the earlier
    searches; the new one evaluates the candidates again.

    Args:
        runs: Directories of earlier searches of tasks with the same problem type and number of texts per row.
        task: The data of the new search.
        known_recipes: Whether the new search begins with known recipes, of which these are a part.

    Raises:
        HeadhuntError: If a directory holds no search, or one of another kind of task.
    """
    if runs and not known_recipes:
        raise HeadhuntError(
            "learn_from= adds to the known recipes, so it needs known_recipes=True. Leave one of them out."
        )
    found: dict[str, _Success] = {}
    for run in runs:
        for success in _read_successes(RunDirectory(Path(run)), task):
            found.setdefault(success.spec.hash, success)
    ordered = sorted(found.values(), key=lambda success: (success.place, -success.gain_per_second))
    return tuple(success.spec for success in ordered[:MAXIMUM])


def _read_successes(directory: RunDirectory, task: Task) -> list[_Success]:
    directory.refuse_links()
    if not directory.exists():
        raise HeadhuntError(f"learn_from= must be directories of searches; {directory.path} holds none.")
    kind, wanted = directory.read_task_info(), (task.problem_type, task.pair)
    if (kind.problem_type, kind.pair) != wanted:
        raise HeadhuntError(
            f"learn_from= must be searches of tasks like this one, which is {_describe(*wanted)}; {directory.path} is "
            f"{_describe(kind.problem_type, kind.pair)}. Leave it out."
        )
    state = read_state(directory)
    top = max((trial.best[0] for trial in state.trials if trial.best), default=0)
    plain = max((trial.best[1] for trial in state.plain_trials if trial.best and trial.best[0] == top), default=None)
    better = [trial for trial in state.leaderboard() if plain is not None and _is_better(trial, top, plain)]
    return [
        _Success(trial.spec, place, (trial.best[1] - plain) / max(1.0, trial.seconds))
        for place, trial in enumerate(better[:PER_RUN])
        if trial.best and plain is not None
    ]


def _is_better(trial: Trial, top: int, plain: float) -> bool:
    """Return whether a trained candidate scored above the plain head on the same rows."""
    if trial.is_plain or trial.is_solved or trial.best is None:
        return False
    rung, score = trial.best
    return rung == top and score > plain


def _describe(problem_type: str, pair: bool) -> str:
    return f"{problem_type} of {'pairs of texts' if pair else 'single texts'}"
