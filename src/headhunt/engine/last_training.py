"""Train the winner and the plain head for the last time, on as many rows as the time allows."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from headhunt.engine.final_evaluation import AVERAGING_SECONDS, TRAINING_RUNS, FinalEvaluation, missing
from headhunt.engine.selection import FinalistScores
from headhunt.run.directory import is_model, read_predictions
from headhunt.run.state import Trial
from headhunt.study.requests import AverageModels, FitAllRows, Request

RATE_MARGIN = 1.15  # the last training is laid out for this much less time than there is

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

    def without_untested(self, tested: Container[str]) -> Contest:
        """Return the contest without averages that have not predicted the test rows: what is delivered is tested."""
        averaged = {number: folder for number, folder in self.averaged.items() if folder.name in tested}
        return replace(self, averaged=averaged)


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
        beside: Jobs for workers that have no model to train.
        saving: Seconds to leave for saving an ensemble.
    """
    predicting = saving + 1.5 * sum(final.prediction_seconds(trial) for trial in trials) / final.workers
    for seed in range(TRAINING_RUNS if training_runs is None else training_runs):
        untrained = [trial for trial in trials if not is_model(final.directory.final_model(trial.number, seed))]
        untrained = [trial for trial in untrained if saved_solution(final, trial) is None]
        seconds = max((final.training_seconds(trial) for trial in untrained), default=0.0)
        seconds *= max(1.0, len(untrained) / final.workers)
        if seed and final.by_rows and training_runs is None:
            break  # the first training run has used the time for as many rows as it could
        fits = final.budget.deadline is not None and seconds * 1.3 + predicting + 5 <= final.budget.left()
        if seed and training_runs is None and not fits:
            break
        until = final.before_deadline(min(predicting + 3.0, 0.5 * final.budget.left()))
        available = (math.inf if until is None else until - final.budget.now() - 2.0) / RATE_MARGIN
        plans = final.last_training(untrained, available * min(1.0, final.workers / max(1, len(untrained))))
        requests: list[Request] = [
            final.request(
                FitAllRows,
                trial,
                seed,
                init_seed=final.study.seed_of(trial.number),  # so that the models can be averaged
                spec=spec,
                rows=rows,
                out=final.directory.final_model(trial.number, seed),
                keep_unfinished=final.by_rows,
                validation_predictions=(
                    final.directory.last_predictions(trial.number, seed) if final.plan and final.plan.grows else None
                ),
            )
            for trial in untrained
            for rows, spec in [plans[trial.number]]
        ]
        final.run([*requests, *(missing(beside) if not seed else ())], until)
    models = {trial.number: final.directory.final_models(trial.number) for trial in trials}
    for trial in trials:
        if not models[trial.number] and (solution := saved_solution(final, trial)) is not None:
            models[trial.number] = [solution]
    return models


def average_models(final: FinalEvaluation, models: Mapping[int, list[Path]]) -> dict[int, Path]:
    """Average the models of each trial and those of its folds; return the averages that predict as they do.

    Models of folds have seen fewer rows, but they cost nothing more, and all started from the same weights.
    """
    requests: list[Request] = []
    averages: dict[int, Path] = {}
    needed = AVERAGING_SECONDS
    for number, folders in models.items():
        trial = final.state.trials[number]
        if final.by_rows or trial.is_solved or not folders:
            continue
        top = trial.best is not None and trial.best[0] == final.study.ladder.top
        checkpoint = final.study.checkpoints.latest(number) if top else None
        count = len(folders) + (final.folds if checkpoint else 0)
        if count < 2:
            continue
        averages[number] = out = final.directory.averaged_model(number, count)
        if not is_model(out):
            request = final.request(AverageModels, trial, models=tuple(folders), out=out, checkpoint=checkpoint)
            requests.append(request)
            needed += (count + 1) * final.prediction_seconds(trial, request.checked_rows)
    predicting = 1.5 * sum(final.prediction_seconds(final.state.trials[number]) for number in models)
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
    """Score the models of the last training runs on validation rows; a solved head with a better score wins."""
    scores: dict[int, list[float]] = {}
    for trial in contest.trials:
        path = final.directory.last_predictions(trial.number, 0)
        if contest.models_of(trial) and path.exists():
            rows, outputs = read_predictions(path)
            scores[trial.number] = [final.score(outputs, final.validation_targets[rows])]
    models, winner = dict(contest.models), contest.winner
    saved = final.state.model
    solved = final.state.trials[saved.trial] if saved is not None else None
    if solved is not None and solved.is_solved and solved.best:
        scores[solved.number] = [solved.best[1]]
        if winner is None or scores[solved.number] > scores.get(winner.number, [-math.inf]):
            winner = solved
            folder = best_model(final)
            models[solved.number] = [folder] if folder is not None else []
    return Contest(winner, contest.plain, models), FinalistScores(scores)


def best_model(final: FinalEvaluation) -> Path | None:
    """Return the best model on disk."""
    saved = final.state.model
    return final.directory.best_model(saved.folder if saved else None, final.state.ended is not None)
