"""Follow a search: the interface of callbacks, and MLflow, Weights & Biases and TensorBoard behind it."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from headhunt.errors import HeadhuntError
from headhunt.evaluation import find_metric
from headhunt.spec import describe

if TYPE_CHECKING:
    from headhunt.run.directory import RunDirectory
    from headhunt.run.settings import SearchSettings
    from headhunt.run.state import State, Trial

log = logging.getLogger(__name__)
UNLOGGED = ("space", "learned")  # settings that are tables, not values


@dataclass
class RunningSearch:
    """A search as its callbacks see it; the attributes change while it runs."""

    directory: RunDirectory
    name: str
    """Name of the data."""
    settings: SearchSettings
    state: State
    """Trials and results; only the search changes it."""
    deadline: float | None
    """When everything is to be done, in seconds since 1970; None without a limit."""
    stage: str = "starting"
    """A few words for the user about what happens now."""

    @property
    def score_name(self) -> str:
        """Name of the score that is maximized; an error is negated."""
        return find_metric(self.settings.metric).score_name

    @property
    def test_scores(self) -> dict[str, float]:
        """Scores of the delivered model on test rows, by metric; empty until they are known."""
        result = self.directory.read_result()
        scores = result.test.scores.get(result.verdict.delivered) if result and result.test else None
        return {metric: score.value for metric, score in (scores or {}).items()}


class Callback:
    """Follows a search. Override the methods you need; all of them are called in the process of the search."""

    def on_start(self, search: RunningSearch) -> None:
        """Follow a search that begins or is resumed."""

    def on_update(self, search: RunningSearch) -> None:
        """Follow the search every second, and whenever its stage changes."""

    def on_trial(self, search: RunningSearch, trial: Trial) -> None:
        """Follow a trial that has a new result: a score, or an error."""

    def on_best(self, search: RunningSearch, trial: Trial) -> None:
        """Follow a trial that has the best score so far."""

    def on_end(self, search: RunningSearch) -> None:
        """Follow the end of the search, with a result or without one."""


class Callbacks:
    """Calls the callbacks of a search.

    Args:
        callbacks: In this order.
    """

    def __init__(self, callbacks: Iterable[Callback]) -> None:
        self._callbacks, self._started = list(callbacks), list[Callback]()

    def start(self, search: RunningSearch) -> None:
        """Begin. What fails already now, such as a tracker without a server, is an error."""
        self._told, self._best = len(search.state.settled), search.state.best and search.state.best.best
        for callback in self._callbacks:
            callback.on_start(search)
            self._started.append(callback)

    def update(self, search: RunningSearch) -> None:
        """Tell what happened since the last call."""
        state, best = search.state, search.state.best
        for number, _ in state.settled[self._told :]:
            self._call("on_trial", search, state.trials[number])
        self._told = len(state.settled)
        if best is not None and best.best != self._best:
            self._best = best.best
            self._call("on_best", search, best)
        self._call("on_update", search)

    def end(self, search: RunningSearch) -> None:
        """End."""
        self._call("on_end", search)

    def _call(self, method: str, *arguments: RunningSearch | Trial) -> None:
        """Call a method of every callback. One that fails is left out from then on: the search goes on without it."""
        for callback in list(self._started):
            try:
                getattr(callback, method)(*arguments)
            except Exception as error:
                self._started.remove(callback)
                log.warning("%s failed and is left out: %r", type(callback).__name__, error)


class MLflow(Callback):
    """Logs a search as a run of MLflow, with a nested run for each trial. MLflow's environment variables say where."""

    def on_start(self, search: RunningSearch) -> None:
        """Start the run."""
        from mlflow import MlflowClient

        os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")  # it would print one for each trial
        self._client = client = MlflowClient()
        known = client.get_experiment_by_name(search.name)
        self._experiment = known.experiment_id if known else client.create_experiment(search.name)
        self._run, self._trials = self._start(search.directory.path.name, logged_settings(search)), dict[int, str]()

    def on_trial(self, search: RunningSearch, trial: Trial) -> None:
        """Log parameters and scores of a trial."""
        if trial.number not in self._trials:
            tags = {"mlflow.parentRunId": self._run, "mlflow.note.content": describe(trial.spec)}
            self._trials[trial.number] = self._start(f"trial {trial.number}", flatten(trial.spec_data), tags)
        run, rung = self._trials[trial.number], max(trial.results)
        self._client.set_tag(run, "outcome", trial.results[rung].outcome)
        if trial.best:
            self._client.log_metric(run, search.score_name, trial.best[1], step=rung)
        self._client.set_terminated(run)

    def on_best(self, search: RunningSearch, trial: Trial) -> None:
        """Log the best score."""
        assert trial.best is not None
        step = len(search.state.settled)
        self._client.log_metric(self._run, f"best {search.score_name}", trial.best[1], step=step)

    def on_end(self, search: RunningSearch) -> None:
        """Log the scores on test rows and end the run."""
        for name, value in search.test_scores.items():
            self._client.log_metric(self._run, f"test {name}", value)
        self._client.set_terminated(self._run)

    def _start(self, name: str, params: Mapping[str, Any], tags: Mapping[str, str] | None = None) -> str:
        from mlflow.entities import Param

        run: str = self._client.create_run(self._experiment, run_name=name, tags=tags).info.run_id
        self._client.log_batch(run, params=[Param(key, str(value)) for key, value in params.items()])
        return run


class WandB(Callback):
    """Logs a search as a run of Weights & Biases, whose environment variables say where."""

    def on_start(self, search: RunningSearch) -> None:
        """Start the run."""
        import wandb

        self._run = wandb.init(name=search.directory.path.name, group=search.name, config=logged_settings(search))

    def on_trial(self, search: RunningSearch, trial: Trial) -> None:
        """Log the scores of a trial."""
        rung = max(trial.results)
        facts = {"trial": trial.number, "rung": rung, "candidate": describe(trial.spec)}
        self._run.log({**facts, search.score_name: trial.results[rung].score})

    def on_best(self, search: RunningSearch, trial: Trial) -> None:
        """Log the best score and its candidate."""
        assert trial.best is not None
        self._run.log({f"best {search.score_name}": trial.best[1]})
        self._run.summary.update({"best candidate": describe(trial.spec), "best spec": trial.spec_data})

    def on_end(self, search: RunningSearch) -> None:
        """Log the scores on test rows and end the run."""
        self._run.summary.update({f"test {name}": value for name, value in search.test_scores.items()})
        self._run.finish()


class TensorBoard(Callback):
    """Writes a search to `RUN/tensorboard`: curves of the scores, and a row of the HPARAMS table for each trial."""

    def on_start(self, search: RunningSearch) -> None:
        """Open the files."""
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(search.directory.path / "tensorboard"))

    def on_trial(self, search: RunningSearch, trial: Trial) -> None:
        """Write parameters and scores of a trial."""
        if trial.best:
            params = {"candidate": describe(trial.spec), **flatten(trial.spec_data)}
            scores, name = {search.score_name: trial.best[1]}, f"trial-{trial.number}"
            self._writer.add_hparams(params, scores, run_name=name, global_step=trial.number)

    def on_best(self, search: RunningSearch, trial: Trial) -> None:
        """Write the best score."""
        assert trial.best is not None
        self._writer.add_scalar(f"best {search.score_name}", trial.best[1], len(search.state.settled))
        self._writer.add_text("best candidate", describe(trial.spec), len(search.state.settled))
        self._writer.flush()

    def on_end(self, search: RunningSearch) -> None:
        """Write the scores on test rows and close the files."""
        for name, value in search.test_scores.items():
            self._writer.add_scalar(f"test {name}", value)
        self._writer.close()


TRACKERS: dict[str, type[Callback]] = {"mlflow": MLflow, "wandb": WandB, "tensorboard": TensorBoard}
"""Callbacks by the name that `--log` and `callbacks=` take, which is also that of the package and of the extra."""


def create_callbacks(callbacks: Iterable[Callback | str], argument: str = "callbacks") -> list[Callback]:
    """Return the callbacks, created where their name is given.

    Args:
        callbacks: Callbacks, or names of trackers.
        argument: Name of the argument, for messages.

    Raises:
        HeadhuntError: If a name is not known, or its package is not installed.
    """
    created = []
    for callback in callbacks:
        if isinstance(callback, str):
            if callback not in TRACKERS:
                raise HeadhuntError(f"must be one of {', '.join(TRACKERS)}; found {callback!r}.", argument)
            if find_spec(callback) is None:
                install = f'pip install "headhunt[{callback}]"'
                raise HeadhuntError(f"cannot be {callback}, which is not installed: {install}.", argument)
            callback = TRACKERS[callback]()
        created.append(callback)
    return created


def logged_settings(search: RunningSearch) -> dict[str, Any]:
    """Return the settings of a search that a tracker shows."""
    known = {name: value for name, value in asdict(search.settings).items() if name not in UNLOGGED}
    return {name: value for name, value in known.items() if value not in (None, (), False)}


def flatten(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of nested data by their path: numbers, and anything else as text."""
    values: dict[str, Any] = {}
    for name, value in data.items():
        if isinstance(value, Mapping):
            values |= flatten(value, f"{prefix}{name}.")
        elif value is not None:
            values[prefix + name] = value if isinstance(value, int | float) else str(value)
    return values
