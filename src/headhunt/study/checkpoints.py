"""Keep track of the checkpoints and predictions of trials, and remove those that no trial can continue from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from headhunt.run.directory import Key, RunDirectory, removable
from headhunt.run.state import State
from headhunt.storage import directory_size, remove
from headhunt.study.ladder import Rungs

PREDICTIONS = 0.125  # fraction of the disk budget that predictions may take
TARGET = 0.9  # of the budget: a little more is removed than needed, so that it is not needed again at once


class _Files:
    """Files of one kind, and their sizes.

    Args:
        sizes: Bytes by trial and rung.
        path: Returns the file or directory of a trial and rung.
        budget: Bytes for all; None is no limit.
    """

    def __init__(self, sizes: dict[Key, int], path: Callable[[int, int], Path], budget: float | None) -> None:
        self.sizes, self.path, self._budget = sizes, path, budget

    def add(self, key: Key) -> None:
        if size := directory_size(self.path(*key)):
            self.sizes[key] = size

    def remove(self, keys: Iterable[Key]) -> None:
        for key in keys:
            remove(self.path(*key))
            del self.sizes[key]

    def fit(self, keep: Callable[[], Sequence[Key]]) -> None:
        """Remove the least promising files if all of them exceed the budget."""
        if self._budget is not None and sum(self.sizes.values()) > self._budget:
            self.remove(removable(self.sizes, keep(), int(TARGET * self._budget)))


class Checkpoints:
    """The checkpoints and predictions of a run.

    Args:
        directory: The run directory.
        budget: Bytes for all checkpoints; None is no limit.
    """

    def __init__(self, directory: RunDirectory, budget: int | None = None) -> None:
        self._checkpoints = _Files(directory.checkpoint_sizes(), directory.checkpoint, budget)
        predictions = None if budget is None else PREDICTIONS * budget
        self._kinds = (
            self._checkpoints,
            _Files(directory.prediction_sizes(), directory.predictions, predictions),
        )

    def resume_from(self, trial: int, rungs: Sequence[int]) -> Path | None:
        """Return the checkpoint of the first of these rungs that a trial has one of."""
        stored = (rung for rung in rungs if (trial, rung) in self._checkpoints.sizes)
        rung = next(stored, None)
        return None if rung is None else self._checkpoints.path(trial, rung)

    def add(self, trial: int, rung: int) -> None:
        """Record the files that a trial left at a rung."""
        for files in self._kinds:
            files.add((trial, rung))

    def remove_failed(self, state: State) -> None:
        """Remove files of results without a score, which a worker wrote after it was given up."""

        def failed(key: Key) -> bool:
            result = state.trials[key[0]].results.get(key[1]) if key[0] < len(state.trials) else None
            return result is not None and result.score is None

        for files in self._kinds:
            files.remove([key for key in files.sizes if failed(key)])

    def remove_unused(self, finished: Sequence[int], state: State, keep: Callable[[], Sequence[Key]]) -> None:
        """Remove files that results have made useless, then the least promising until the rest fits the budget.

        Args:
            finished: Trials whose results came in.
            state: The state of the search.
            keep: Returns trial and rung of what can still be continued or delivered, most promising first.
        """
        useless: set[Key] = set()
        for number in set(finished):  # the last result includes the rungs below; a failure leaves nothing
            results = state.trials[number].results
            last = max(results, default=-1)
            failed = last >= 0 and results[last].score is None
            useless |= {(number, rung) for rung in range(last + failed)}
        for files in self._kinds:
            files.remove(useless & files.sizes.keys())
            files.fit(keep)


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
