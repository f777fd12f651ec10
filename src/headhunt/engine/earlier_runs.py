"""Learn from earlier searches: their best candidates are tried early in a new search."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from headhunt.data import Task
from headhunt.errors import HeadhuntError
from headhunt.run.directory import RunDirectory
from headhunt.run.ledger import read_state
from headhunt.run.state import Trial
from headhunt.spec import Spec

PER_RUN = 2  # candidates of one earlier search
MAXIMUM = 4  # candidates of all earlier searches, so that most of the time is left if they do not fit the new task


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
        HeadhuntError: If a directory holds no search or one of another kind of task, or there is nothing to learn.
    """
    if runs and not known_recipes:
        raise HeadhuntError("adds to the known recipes, so it needs them too. Leave one of them out.", "learn_from")
    found: dict[str, tuple[int, float, Spec]] = {}
    for run in runs:
        for success in _read_successes(RunDirectory(Path(run)), task):
            found.setdefault(success[-1].hash, success)
    if runs and not found:
        raise HeadhuntError(
            "must be searches with a trained candidate that was better than the plain head on the same "
            f"rows; found none in {', '.join(map(str, runs))}. Leave it out.",
            "learn_from",
        )
    return tuple(spec for _, _, spec in sorted(found.values(), key=lambda success: success[:2])[:MAXIMUM])


def _read_successes(directory: RunDirectory, task: Task) -> list[tuple[int, float, Spec]]:
    """Return the candidates of a search that were better than its plain head, with what they are sorted by.

    These are the place among the candidates of the search, and the loss per second of its evaluation.
    """
    directory.refuse_links()
    if not directory.exists():
        raise HeadhuntError(f"must be directories of searches; {directory.path} holds none.", "learn_from")
    kind, wanted = directory.read_task_info(), (task.problem_type, task.pair)
    if (kind.problem_type, kind.pair) != wanted:
        raise HeadhuntError(
            f"must be searches of tasks like this one, which is {_describe(*wanted)}; {directory.path} is "
            f"{_describe(kind.problem_type, kind.pair)}. Leave it out.",
            "learn_from",
        )
    state = read_state(directory)
    rung, plain = max((trial.best for trial in state.plain_trials if trial.best), default=(0, math.inf))
    gains = [(trial, _gain(trial, rung, plain)) for trial in state.leaderboard()]
    better = [(trial, gain) for trial, gain in gains if gain > 0]
    return [
        (place, -gain / max(1.0, trial.seconds), trial.spec) for place, (trial, gain) in enumerate(better[:PER_RUN])
    ]


def _gain(trial: Trial, rung: int, plain: float) -> float:
    """Return how far a trained candidate is above the plain head after the same rung; 0 if that is not known."""
    result = trial.results.get(rung)
    if trial.is_plain or trial.is_solved or result is None or result.score is None:
        return 0.0
    return result.score - plain


def _describe(problem_type: str, pair: bool) -> str:
    return f"{problem_type} of {'pairs of texts' if pair else 'single texts'}"
