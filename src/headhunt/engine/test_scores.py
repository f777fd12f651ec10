"""Score every model that predicted the test rows, with the thresholds, temperature and rejection it is saved with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from headhunt.engine.final_evaluation import FinalEvaluation
from headhunt.engine.last_training import Contest
from headhunt.engine.selection import EnsembleChoice
from headhunt.engine.task_results import score_tasks
from headhunt.evaluation import (
    Decisions,
    Mistake,
    RejectionScores,
    apply_temperature,
    apply_thresholds,
    bound_errors,
    evaluate,
    find_mistakes,
    fit_temperature,
    reliability_bins,
    score_rejection,
)
from headhunt.run.directory import read_predictions, read_test_predictions
from headhunt.run.model_info import saved_thresholds
from headhunt.run.results import ENSEMBLE, PLAIN, SOLVED, TFIDF, WINNER, TestResult
from headhunt.run.state import Trial


def folds_name(trial: Trial) -> str:
    """Return the name of the predictions of a trial's models of folds."""
    return f"folds-{trial.number:06d}"


def decisions_on_test_rows(
    final: FinalEvaluation, contest: Contest, choice: EnsembleChoice, outputs: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Return test predictions as they are scored: for several labels, decision scores with thresholds at 0.5.

    The thresholds are those that each model is saved with; models of folds are not saved and have those of their trial.
    """
    if final.task.problem_type != "multi_label_classification":
        return dict(outputs)
    thresholds: dict[str, Sequence[float] | None] = {ENSEMBLE: choice.decisions.thresholds}
    for trial in [*contest.trials, *choice.members]:
        thresholds[folds_name(trial)] = final.decisions(final.held_out(trial)).thresholds
    for name in outputs:
        if name not in thresholds:
            folder = final.directory.models / name
            thresholds[name] = saved_thresholds(folder if folder.is_dir() else final.directory.path / name)
    return {name: apply_thresholds(each, thresholds[name]) for name, each in outputs.items()}


def score_test_rows(
    final: FinalEvaluation,
    contest: Contest,
    choice: EnsembleChoice,
    predictions: Mapping[str, np.ndarray],
    outputs: Mapping[str, np.ndarray],
    source: Path | None,
) -> TestResult | None:
    """Return scores and details on the test rows of every model that predicted them.

    Args:
        final: The search.
        contest: The winner and the plain head.
        choice: The ensemble.
        predictions: Outputs of the models as they are scored.
        outputs: Outputs of the models.
        source: The saved model that is delivered.
    """
    names: dict[str, str] = {}
    for role, trial in ((WINNER, contest.winner), (PLAIN, contest.plain)):
        tested = [path.name for path in contest.candidates_of(trial) if path.name in predictions]
        if tested:
            names[role] = tested[0]
    if ENSEMBLE in predictions:
        names[ENSEMBLE] = ENSEMBLE
    ensemble = source == final.directory.ensemble
    if WINNER not in names and source is not None and source.name in predictions and not ensemble:
        names[WINNER] = source.name
    if not names:
        return None
    scored = {role: predictions[name][0] for role, name in names.items()} | _references(final)
    targets, groups, task = final.test.targets, final.test.column_groups, final.task
    if task.tasks:
        return score_tasks(final, scored, paired_runs(contest, predictions))
    evaluations = {
        role: evaluate(task.problem_type, one, targets, task.labels, groups=groups) for role, one in scored.items()
    }
    result = TestResult(len(targets), {role: evaluation.scores for role, evaluation in evaluations.items()})
    if task.problem_type == "single_label_classification":
        confusion = {role: found.confusion for role, found in evaluations.items() if role in (WINNER, PLAIN)}
        delivered = outputs.get(source.name) if source is not None else None
        held_out = final.held_out(_trial_of(final, contest, source), source)
        decisions = choice.decisions if ensemble else final.decisions(held_out)
        rejection = score_rejected(final, decisions, delivered)
        result = replace(result, confusion=confusion, rejection=rejection)
    if WINNER not in names:
        return result
    winner = outputs[names[WINNER]][0]
    model = final.directory.models / names[WINNER]
    held_out = final.held_out(_trial_of(final, contest, model), model)
    if task.problem_type == "regression":
        return replace(result, errors=None if held_out is None else bound_errors(*held_out, winner, targets))
    several = task.problem_type == "multi_label_classification"
    return replace(
        result,
        calibration=tuple(reliability_bins(winner, targets)),
        temperature=None if held_out is None else round(fit_temperature(*held_out), 4),
        mistakes=() if several else _mistakes(final, winner, scored.get(PLAIN)),
    )


def paired_runs(
    contest: Contest, predictions: Mapping[str, np.ndarray]
) -> tuple[list[np.ndarray], list[np.ndarray]] | None:
    """Return outputs of as many training runs of the winner as of the plain head; None if one has no predictions."""
    if contest.winner is None or contest.plain is None:
        return None
    outputs: list[dict[str, np.ndarray]] = []
    for trial in (contest.winner, contest.plain):
        prefix = len(f"{trial.number:06d}")
        runs = {p.name[prefix:]: predictions[p.name][0] for p in contest.models_of(trial) if p.name in predictions}
        if not runs:
            return None
        folds = predictions.get(folds_name(trial), ())
        outputs.append(runs | {f"fold {i}": output for i, output in enumerate(folds)})
    if contest.winner.is_solved:  # training it again would change nothing
        solution = next(iter(outputs[0].values()))
        outputs[0] |= {name: solution for name in outputs[1] if name not in outputs[0]}
    shared = [name for name in outputs[0] if name in outputs[1]]
    if shared:
        winner, plain = ([runs[name] for name in shared] for runs in outputs)
    else:
        winner, plain = ([next(iter(runs.values()))] for runs in outputs)
    return winner, plain


def _trial_of(final: FinalEvaluation, contest: Contest, source: Path | None) -> Trial | None:
    """Return the trial of a saved model: the winner, the plain head, or that of the best model during the search."""
    trial = next((trial for trial in contest.trials if source in contest.candidates_of(trial)), None)
    if trial is None and final.state.model:
        return final.state.trials[final.state.model.trial]
    return trial


def score_rejected(final: FinalEvaluation, decisions: Decisions, outputs: np.ndarray | None) -> RejectionScores | None:
    """Return coverage and accuracy of the delivered model on the test rows; None if it answers all texts."""
    if decisions.rejection is None or outputs is None or final.reject is None:
        return None
    calibrated = apply_temperature(outputs[0], decisions.temperature, several=False)
    asked = final.reject.coverage
    return score_rejection(decisions.rejection, calibrated, final.test.targets, final.task.labels, asked)


def _references(final: FinalEvaluation) -> dict[str, np.ndarray]:
    """Return the test predictions of the solved head and of TF-IDF, where they were made in time."""
    found: dict[str, np.ndarray] = {}
    solved = [trial for trial in final.state.leaderboard() if trial.is_solved and trial.best]
    if solved and solved[0].best:
        path = final.directory.test_predictions(final.directory.trial_model(solved[0].number, solved[0].best[0]).name)
        if path.exists():
            thresholds = final.decisions(final.held_out(solved[0])).thresholds
            found[SOLVED] = apply_thresholds(read_test_predictions(path), thresholds)[0]
    path, validation = final.directory.test_predictions(TFIDF), final.directory.reference_predictions(TFIDF)
    if path.exists() and validation.exists():
        rows, outputs = read_predictions(validation)
        thresholds = final.decisions((outputs, final.validation_targets[rows])).thresholds
        found[TFIDF] = apply_thresholds(read_test_predictions(path), thresholds)[0]
    return {name: outputs for name, outputs in found.items() if len(outputs) == len(final.test)}


def _mistakes(final: FinalEvaluation, winner: np.ndarray, plain: np.ndarray | None) -> tuple[Mistake, ...]:
    """Return the winner's mistakes on the test rows that a person should read first."""
    test = final.test

    def read_texts(row: int) -> tuple[str, str | None]:
        second = test.texts_b(row, row + 1)
        return test.texts(row, row + 1)[0], second[0] if second else None

    return find_mistakes(winner, test.targets, final.task.labels, read_texts, plain)
