"""Keep track of the checkpoints and predictions of trials, and remove those that no trial can continue from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from headhunt.run.directory import Key, RunDirectory, removable
from headhunt.run.state import State
from headhunt.storage import directory_size
from headhunt.study.ladder import Rungs
from headhunt.study.requests import EvaluateTrial

PREDICTIONS = 0.125  # fraction of the disk budget that predictions may take
TARGET = 0.9  # of the budget: a little more is removed than needed, so that it is not needed again at once


class Checkpoints:
    """The checkpoints and predictions of a run.

    Args:
        directory: The run directory.
        budget: Bytes for all checkpoints; None is no limit.
    """

    def __init__(self, directory: RunDirectory, budget: int | None = None) -> None:
        self._directory, self._budget = directory, budget
        self._checkpoints = directory.checkpoint_sizes()
        self._predictions = directory.prediction_sizes()

    def latest(self, trial: int) -> Path | None:
        """Return the checkpoint of a trial's highest rung, if there is one."""
        rungs = [rung for number, rung in self._checkpoints if number == trial]
        return self._directory.checkpoint(trial, max(rungs)) if rungs else None

    def resume_from(self, trial: int, rung: int, *, lower: bool = True) -> Path | None:
        """Return the checkpoint to continue a rung from.

        A rung that was cut short left its own state behind; otherwise the rung below did.

        Args:
            trial: The trial.
            rung: The rung.
            lower: Whether a rung continues the one below.
        """
        rungs = range(rung, -1, -1) if lower else (rung,)
        below = [step for step in rungs if (trial, step) in self._checkpoints]
        return self._directory.checkpoint(trial, below[0]) if below else None

    def add(self, trial: int, rung: int) -> None:
        """Record the files that a trial left at a rung."""
        if size := directory_size(self._directory.checkpoint(trial, rung)):
            self._checkpoints[trial, rung] = size
        if size := directory_size(self._directory.predictions(trial, rung)):
            self._predictions[trial, rung] = size

    def remove_failed(self, state: State) -> None:
        """Remove files of results without a score, which a worker wrote after it was given up."""

        def failed(key: Key) -> bool:
            result = state.trials[key[0]].results.get(key[1]) if key[0] < len(state.trials) else None
            return result is not None and result.score is None

        checkpoints, predictions = (
            [key for key in sizes if failed(key)] for sizes in (self._checkpoints, self._predictions)
        )
        self._directory.remove_checkpoints(checkpoints)
        self._directory.remove_predictions(predictions)
        for sizes, keys in ((self._checkpoints, checkpoints), (self._predictions, predictions)):
            for key in keys:
                del sizes[key]

    def remove_unused(self, finished: Sequence[EvaluateTrial], state: State, keep: Sequence[Key]) -> None:
        """Remove files that results have made useless, then the least promising until the rest fits the budget.

        Args:
            finished: Requests whose results came in.
            state: The state of the search.
            keep: Trial and rung of what can still be continued or delivered, most promising first.
        """
        self._remove_checkpoints(finished, state, keep)
        self._remove_predictions(finished, keep)

    def over_budget(self) -> bool:
        """Return whether files take more than the budget."""
        if self._budget is None:
            return False
        predictions = sum(self._predictions.values())
        return sum(self._checkpoints.values()) > self._budget or predictions > PREDICTIONS * self._budget

    def _remove_checkpoints(self, finished: Sequence[EvaluateTrial], state: State, keep: Sequence[Key]) -> None:
        remove: set[Key] = set()
        for request in finished:
            result = state.trials[request.trial].results.get(request.rung)
            if result is not None:  # otherwise the rung runs again, perhaps from its own checkpoint
                useless = request.rung + 1 if result.score is None else request.rung
                remove |= {(request.trial, rung) for rung in range(useless)} & self._checkpoints.keys()
        if self._budget is not None and sum(self._checkpoints.values()) > self._budget:
            remove.update(removable(self._checkpoints, keep, int(TARGET * self._budget)))
        self._directory.remove_checkpoints(remove)
        for key in remove:
            del self._checkpoints[key]

    def _remove_predictions(self, finished: Sequence[EvaluateTrial], keep: Sequence[Key]) -> None:
        """Keep the predictions of a trial's highest rung, which include those below."""
        ended = [request for request in finished if (request.trial, request.rung) in self._predictions]
        remove = {(request.trial, rung) for request in ended for rung in range(request.rung)}
        remove &= self._predictions.keys()
        budget = None if self._budget is None else PREDICTIONS * self._budget
        if budget is not None and sum(self._predictions.values()) > budget:
            remove.update(removable(self._predictions, keep, int(TARGET * budget)))
        self._directory.remove_predictions(remove)
        for key in remove:
            del self._predictions[key]


def continuable(state: State, rungs: Rungs, top: int) -> list[Key]:
    """Return trial and rung of checkpoints worth keeping, most promising first.

    Args:
        state: The state of the search.
        rungs: The rungs.
        top: The highest rung.
    """
    running = [(number, step) for number, rung in state.running.items() for step in range(rung + 1)]
    waiting = [(number, step) for number, rung in state.waiting.items() for step in range(rung + 1)]
    # The final evaluation needs the checkpoints of the plain head too.
    plain = [(trial.number, step) for trial in state.plain_trials for step in range(top + 1)]
    return list(dict.fromkeys(plain + running + waiting + rungs.checkpoints_to_keep()))
