"""Score every model that predicted the test rows, with the thresholds, temperature and rejection it is saved with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from headhunt.engine.view import View
from headhunt.evaluation import (
    Decisions,
    Mistake,
    RejectionScores,
    apply_temperature,
    apply_thresholds,
    bound_errors,
    compare,
    evaluate,
    find_mistakes,
    fit_temperature,
    parts_of,
    reliability_bins,
    score_rejection,
)
from headhunt.run.directory import read_test_predictions
from headhunt.run.model_info import saved_thresholds
from headhunt.run.results import ENSEMBLE, PLAIN, WINNER, TestResult, results_of_tasks
from headhunt.run.state import Trial

UNEQUAL = 0.1  # difference of training examples up to which two training runs are compared


@dataclass(frozen=True)
class Tested:
    """What the models of a trial, or the mean of several, predict for the test rows."""

    name: str
    """Role of the model: one of `results.MODELS`."""
    outputs: list[np.ndarray]
    """Of each training run, as the model returns them."""
    seeds: list[int]
    """Of these training runs."""
    decisions: Decisions
    """Fitted on validation rows."""
    thresholds: tuple[float, ...] | None = None
    """That the model is saved with."""
    solved: bool = False
    """Whether training it again would change nothing."""

    @property
    def scored(self) -> list[np.ndarray]:
        """Outputs as they are scored: for several labels, decision scores with thresholds at 0.5."""
        return [apply_thresholds(outputs, self.thresholds) for outputs in self.outputs]


def read_tested(view: View, trial: Trial, name: str) -> Tested | None:
    """Return what the models of a trial predict for the test rows; None if none of them was tested.

    A further training run counts unless it was cut short: it would say how little time was left.
    """
    outputs, seeds = [], []
    least = (1 - UNEQUAL) * view.training_facts(trial)[0]
    for seed in range(len(view.models_of(trial))):
        path = view.directory.test_predictions(view.directory.final_model(trial.number, seed).name)
        if path.exists() and view.training_facts(trial, seed)[0] >= least:
            outputs.append(read_test_predictions(path)[0])
            seeds.append(seed)
    if not outputs or len(outputs[0]) != len(view.test):
        return None
    decisions = view.decisions(view.held_out(trial))
    return Tested(
        name, outputs, seeds, decisions, _saved(view.models_of(trial)[0]) or decisions.thresholds, trial.is_solved
    )


def mean_of(tested: list[Tested], decisions: Decisions) -> Tested | None:
    """Return the mean prediction of several models; None unless there are several."""
    if len(tested) < 2:
        return None
    mean = np.mean([each.outputs[0] for each in tested], 0)
    return Tested(ENSEMBLE, [mean], [0], decisions, decisions.thresholds)


def score_test_rows(
    view: View, tested: Mapping[str, Tested], delivered: str, source: Trial | None
) -> TestResult | None:
    """Return scores and details on the test rows of every model that predicted them.

    Args:
        view: The search.
        tested: The models by their role.
        delivered: Role of the delivered one.
        source: Its trial, or the first of the ensemble.
    """
    if not tested:
        return None
    targets, groups, task = view.test.targets, view.test.column_groups, view.task
    scored = {role: each.scored[0] for role, each in tested.items()}
    if task.tasks:
        return _score_tasks(view, scored, paired_runs(tested))
    evaluations = {
        role: evaluate(task.problem_type, one, targets, task.labels, groups=groups) for role, one in scored.items()
    }
    result = TestResult(len(targets), {role: evaluation.scores for role, evaluation in evaluations.items()})
    if task.problem_type == "single_label_classification":
        confusion = {role: found.confusion for role, found in evaluations.items() if role in (WINNER, PLAIN)}
        rejection = _score_rejected(view, tested.get(delivered))
        result = replace(result, confusion=confusion, rejection=rejection)
    main = tested.get(WINNER) or tested.get(delivered)
    if main is None or source is None:
        return result
    outputs, held_out = main.outputs[0], view.held_out(source)
    if task.problem_type == "regression":
        return replace(result, errors=None if held_out is None else bound_errors(*held_out, outputs, targets))
    several, plain = task.problem_type == "multi_label_classification", scored.get(PLAIN)
    return replace(
        result,
        calibration=tuple(reliability_bins(outputs, targets)),
        temperature=None if held_out is None else round(fit_temperature(*held_out), 4),
        mistakes=() if several else _mistakes(view, outputs, plain if WINNER in tested else None),
    )


def paired_runs(tested: Mapping[str, Tested], role: str = WINNER) -> tuple[list[np.ndarray], list[np.ndarray]] | None:
    """Return outputs of as many training runs of a model as of the plain head; None if one was not tested.

    A solved head has one; training it again would change nothing.
    """
    winner, plain = tested.get(role), tested.get(PLAIN)
    if winner is None or plain is None:
        return None
    ours, theirs = (dict(zip(each.seeds, each.scored, strict=True)) for each in (winner, plain))
    if winner.solved:
        ours = dict.fromkeys(theirs, winner.scored[0])
    shared = [seed for seed in ours if seed in theirs]
    if not shared:
        return [winner.scored[0]], [plain.scored[0]]
    return [ours[seed] for seed in shared], [theirs[seed] for seed in shared]


def _score_rejected(view: View, tested: Tested | None) -> RejectionScores | None:
    """Return coverage and accuracy of the delivered model on the test rows; None if it answers all texts."""
    rule = view.settings.rejection
    if tested is None or tested.decisions.rejection is None or rule is None:
        return None
    calibrated = apply_temperature(tested.outputs[0], tested.decisions.temperature, several=False)
    return score_rejection(tested.decisions.rejection, calibrated, view.test.targets, view.task.labels, rule.coverage)


def _saved(folder: Path) -> tuple[float, ...] | None:
    thresholds = saved_thresholds(folder)
    return None if thresholds is None else tuple(thresholds)


def _mistakes(view: View, winner: np.ndarray, plain: np.ndarray | None) -> tuple[Mistake, ...]:
    """Return the mistakes on the test rows that a person should read first."""
    test = view.test

    def read_texts(row: int) -> tuple[str, str | None]:
        second = test.texts_b(row, row + 1)
        return test.texts(row, row + 1)[0], second[0] if second else None

    return find_mistakes(winner, test.targets, view.task.labels, read_texts, plain)


def _score_tasks(
    view: View, outputs: Mapping[str, np.ndarray], runs: tuple[list[np.ndarray], list[np.ndarray]] | None
) -> TestResult:
    """Return the mean scores of models on the test rows of several tasks, and those of each, with the winner's gain.

    Args:
        view: The search.
        outputs: Outputs of each model that was tested, by name.
        runs: Outputs of training runs of the winner and as many of the plain head, if both were tested.
    """
    result = results_of_tasks(view.task.tasks, view.metric, outputs, view.test.targets)
    tasks = []
    for number, task in enumerate(result.tasks if runs is not None else ()):
        parts = [[parts_of(view.metric, run, view.test.targets)[number] for run in each] for each in runs or ()]
        (winner, plain), part = ([each.outputs for each in of_model] for of_model in parts), parts[0][0]
        found = compare(part.problem_type, part.metric, winner, plain, part.targets)
        tasks.append(replace(task, gain=found.gain, low=found.low, high=found.high))
    return replace(result, tasks=tuple(tasks)) if tasks else result
