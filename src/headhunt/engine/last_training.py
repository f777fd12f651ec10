"""Train the winner and the plain head for the last time, on as many rows as the time allows."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from headhunt.engine.final_evaluation import FinalEvaluation, missing
from headhunt.engine.selection import FinalistScores
from headhunt.engine.time_estimates import TRAINING_RUNS
from headhunt.errors import HeadhuntError
from headhunt.run.directory import MODEL_INFO, is_model, read_predictions
from headhunt.run.model_info import read_model_info
from headhunt.run.state import Trial
from headhunt.storage import remove
from headhunt.study.requests import AverageModels, FitAllRows, Request
from headhunt.study.runtime_estimates import worker_timeout

AGAIN_FRACTION = 0.4  # of the total time that must be left for training again what was trained before a resume
ESTIMATED_MARGIN = 1.3  # factor of the time of a training run that is estimated rather than measured
LEAST_FRACTION = 0.6  # of the examples that a trial was evaluated with; with fewer, its last training is left out

Job = tuple[Request, Path]
"""A request and the file it writes."""


@dataclass(frozen=True)
class Contest:
    """The winner and the plain head, with the models of each that were trained on all rows."""

    winner: Trial | None
    plain: Trial | None
    models: Mapping[int, list[Path]]
    averaged: Mapping[int, Path] = field(default_factory=dict)
    """By trial, the average of its models, where it predicts as they do."""

    @property
    def trials(self) -> list[Trial]:
        """Those of the two that exist."""
        return [trial for trial in (self.winner, self.plain) if trial is not None]

    def models_of(self, trial: Trial | None) -> list[Path]:
        """Return the models of a trial, the first seed first."""
        return self.models.get(trial.number, []) if trial is not None else []

    def candidates_of(self, trial: Trial | None) -> list[Path]:
        """Return the models of a trial in the order to deliver them: the average of its training runs first."""
        averaged = self.averaged.get(trial.number) if trial is not None else None
        return [*([averaged] if averaged else []), *self.models_of(trial)]

    def without_untested(self, tested: Container[str], otherwise: Path | None) -> Contest:
        """Return the contest without models that have not predicted the test rows: what is delivered is tested.

        Args:
            tested: Names of models that have predicted them.
            otherwise: The best model during the search. If not even this one is tested, models are kept.
        """
        averaged = {number: folder for number, folder in self.averaged.items() if folder.name in tested}
        if otherwise is None or otherwise.name not in tested:
            return replace(self, averaged=averaged)
        models = {number: [one for one in folders if one.name in tested] for number, folders in self.models.items()}
        return replace(self, averaged=averaged, models=models)


def fit_all_rows(
    final: FinalEvaluation,
    trials: Sequence[Trial],
    training_runs: int | None,
    beside: Sequence[Job],
    saving: float = 0.0,
) -> dict[int, list[Path]]:
    """Train candidates on all rows: once if there is any time, then with more seeds. Return their models.

    Args:
        final: The search.
        trials: The winner and the plain head.
        training_runs: How often each; by default as often as the time allows.
        beside: Jobs that can be left out, for workers that have no model to train.
        saving: Seconds to leave for saving an ensemble.
    """
    _remove_short_runs(final, trials)
    measured = 0.0
    for seed in range(TRAINING_RUNS if training_runs is None else training_runs):
        untrained = _untrained(final, trials, training_runs, seed)
        estimated = max((final.training_seconds(trial) for trial in untrained), default=0.0)
        estimated *= max(1.0, len(untrained) / final.workers)
        seconds = measured or ESTIMATED_MARGIN * estimated
        closing = saving + final.closing_seconds(trials, 1 if final.by_rows else seed + 1)
        if seed and final.by_rows and training_runs is None:
            break  # the first training run has used the time for as many rows as it could
        fits = final.budget.deadline is not None and seconds + closing + 3 <= final.budget.left()
        if seed and training_runs is None and not fits:
            break
        # Another training run that does not end in time leaves enough for testing the first one.
        testing = saving + final.closing_seconds(trials, 1)
        until = final.before_deadline(min(testing + 3.0, 0.5 * final.budget.left()))
        # A training that is slower than expected is cut off where its learning rate is low already.
        available = math.inf if until is None else until - final.budget.now() - 2.0
        requests = _requests(final, untrained, seed, available * min(1.0, final.workers / max(1, len(untrained))))
        idle = not seed and (final.budget.deadline is None or final.workers > len(requests))
        started = final.budget.now()
        final.run([*requests, *(missing(beside) if idle else ())], until, final.finishing_seconds)
        measured = final.budget.now() - started if len(requests) == len(trials) else measured
    models = {trial.number: final.directory.final_models(trial.number) for trial in trials}
    for trial in trials:
        if not models[trial.number] and (solution := saved_solution(final, trial)) is not None:
            models[trial.number] = [solution]
    return models


def _remove_short_runs(final: FinalEvaluation, trials: Sequence[Trial]) -> None:
    """Remove models of an earlier session that had no time for all epochs, if this one has evaluated the trials."""
    if final.plan is None or final.plan.compares or final.trains_at_once:
        return
    for trial in trials:
        folders = final.directory.final_models(trial.number)
        complete = 0.98 * final.task.rows["train"] * trial.spec.recipe.epochs  # steps are rounded
        if all(examples_of_run(folder) >= complete for folder in folders):
            continue
        averages = [final.directory.averaged_model(trial.number, count) for count in range(2, len(folders) + 1)]
        for folder in (*folders, *averages):
            remove(folder)
            final.directory.test_predictions(folder.name).unlink(missing_ok=True)


def _untrained(final: FinalEvaluation, trials: Sequence[Trial], training_runs: int | None, seed: int) -> list[Trial]:
    """Return the trials to train with this seed: those without such a model.

    A search of large data that was resumed with enough time trains both again. They then see more rows, and as many.
    """
    trials = [trial for trial in trials if saved_solution(final, trial) is None]
    models = {trial.number: final.directory.final_model(trial.number, seed) for trial in trials}
    if training_runs is None and final.by_rows and final.budget.left() >= AGAIN_FRACTION * final.budget.total > 0:
        for model in models.values():
            remove(model)
            final.directory.test_predictions(model.name).unlink(missing_ok=True)
    return [trial for trial in trials if not is_model(models[trial.number])]


def _requests(final: FinalEvaluation, trials: Sequence[Trial], seed: int, available: float) -> list[Request]:
    """Return requests for last training runs that end within so many seconds."""
    requests: list[Request] = []
    plans = final.last_training(trials, available, _examples_of_first_runs(final, trials) if seed else math.inf)
    for trial in trials:
        rows, spec = plans[trial.number]
        fields: dict[str, Any] = {"spec": spec, "rows": rows}
        if final.by_rows and rows is not None and not trial.is_solved:
            examples = rows * spec.recipe.epochs
            if not final.grows and examples < LEAST_FRACTION * _examples_of(trial):
                continue  # it would know less than the model that was evaluated
            fields["worker_timeout"] = worker_timeout(examples / final.examples_per_second(trial))
        if final.grows:
            fields["validation_predictions"] = final.directory.last_predictions(trial.number, seed)
        request = final.request(
            FitAllRows,
            trial,
            seed,
            init_seed=final.study.seed_of(trial.number),  # so that the models can be averaged
            out=final.directory.final_model(trial.number, seed),
            keep_unfinished=final.by_rows or final.trains_at_once,
            **fields,
        )
        requests.append(request)
    return requests


def _examples_of(trial: Trial) -> int:
    """Return the number of training examples of a trial's highest rung."""
    return trial.results[trial.best[0]].examples if trial.best else 0


def _examples_of_first_runs(final: FinalEvaluation, trials: Sequence[Trial]) -> float:
    """Return how many examples the first training runs have seen: further ones see as many, to be compared with them.

    It is infinite if that is not known, or if they have seen what their specs say.
    """
    trials = trials if final.grows or final.trains_at_once else ()
    return min((examples_of_run(final.directory.final_model(trial.number, 0)) for trial in trials), default=math.inf)


def examples_of_run(folder: Path) -> float:
    """Return how many examples a saved model has seen; infinite if that is not known."""
    with suppress(HeadhuntError, OSError):
        examples = read_model_info(folder / MODEL_INFO).get("examples")
        if isinstance(examples, int) and examples > 0:
            return float(examples)
    return math.inf


def average_models(final: FinalEvaluation, models: Mapping[int, list[Path]]) -> dict[int, Path]:
    """Average the models of each trial that saw all rows; return the averages that predict as they do.

    Models of folds would cost nothing more, but they have seen fewer rows: with them, averages are no better than a
    single model (benchmarks/testbed/averages.py).
    """
    requests: list[Request] = []
    averages: dict[int, Path] = {}
    for number, folders in models.items():
        trial = final.state.trials[number]
        if final.by_rows or trial.is_solved or len(folders) < 2:
            continue
        averages[number] = out = final.directory.averaged_model(number, len(folders))
        if not is_model(out):
            requests.append(final.request(AverageModels, trial, models=tuple(folders), out=out))
    averaged = [final.state.trials[request.trial] for request in requests]
    needed = final.averaging_seconds(averaged, max(map(len, models.values()), default=0))
    predicting = final.closing_seconds([final.state.trials[number] for number in models], 1)
    if requests and final.budget.left() > needed + predicting:
        final.run(requests, final.before_deadline(predicting + 3.0))
    return {number: out for number, out in averages.items() if is_model(out)}


def saved_solution(final: FinalEvaluation, trial: Trial) -> Path | None:
    """Return the model of a solved head that was saved during the search: it has seen all rows already."""
    if not trial.is_solved or trial.best is None:
        return None
    folder = final.directory.trial_model(trial.number, trial.best[0])
    return folder if is_model(folder) else None


def score_last_training(final: FinalEvaluation, contest: Contest) -> tuple[Contest, FinalistScores]:
    """Score the models of the last training runs on validation rows; the best model of the search may beat them."""
    scores: dict[int, list[float]] = {}
    for trial in contest.trials:
        path = final.directory.last_predictions(trial.number, 0)
        if not contest.models_of(trial):
            continue
        if trial.is_solved and trial.best:
            scores[trial.number] = [trial.best[1]]
        elif path.exists():
            rows, outputs = read_predictions(path)
            scores[trial.number] = [final.score(outputs, final.validation_targets[rows])]
    models, winner, plain = dict(contest.models), contest.winner, contest.plain
    saved, score, folder = _saved_model(final)
    if saved is not None and score is not None and folder is not None:
        rival = plain if saved.is_plain else winner
        last = scores.get(rival.number) if rival is not None else None
        if last is None or (score > last[0] and not saved.is_plain):
            scores[saved.number], models[saved.number] = [score], [folder]
            winner, plain = (winner, saved) if saved.is_plain else (saved, plain)
        scores.setdefault(saved.number, [score])
    return Contest(winner, plain, models), FinalistScores(scores)


def _saved_model(final: FinalEvaluation) -> tuple[Trial | None, float | None, Path | None]:
    """Return the trial of the best model of the search, the score that it had, and its folder."""
    saved = final.state.model
    if saved is None or not is_model(final.directory.models / saved.folder):
        return None, None, None
    trial = final.state.trials[saved.trial]
    names = {final.directory.trial_model(trial.number, rung).name: result for rung, result in trial.results.items()}
    score = names[saved.folder].score if saved.folder in names else None
    return trial, score, final.directory.models / saved.folder


def best_model(final: FinalEvaluation) -> Path | None:
    """Return the best model of the search on disk; one that was delivered earlier only if there is no other."""
    saved = final.state.model
    return final.directory.best_model(saved.folder if saved else None, ended=False)
