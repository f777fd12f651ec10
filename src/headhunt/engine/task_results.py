"""Score the models of a search on the test rows of each of several tasks."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from headhunt.engine.final_evaluation import FinalEvaluation
from headhunt.evaluation import compare, parts_of
from headhunt.run.results import PLAIN, WINNER, TaskResult, TestResult


def score_tasks(
    final: FinalEvaluation,
    outputs: Mapping[str, np.ndarray],
    runs: tuple[list[np.ndarray], list[np.ndarray]] | None,
) -> TestResult:
    """Return the mean scores of models on the test rows, and those of each task.

    Args:
        final: The search.
        outputs: Outputs of each model that was tested, by name.
        runs: Outputs of training runs of the winner and as many of the plain head, if both were tested.
    """
    targets = final.test.targets
    scored = {name: final.evaluate_tasks(each, targets) for name, each in outputs.items()}
    results = []
    for number, (task, metric) in enumerate(zip(final.task.tasks, final.metric.split(","), strict=True)):
        found = {name: tasks[number] for name, (_, tasks) in scored.items()}
        result = TaskResult(
            name=task.name,
            metric=metric,
            rows=next(iter(found.values())).rows,
            scores={name: evaluation.scores for name, evaluation in found.items()},
            confusion={name: found[name].confusion for name in (WINNER, PLAIN) if name in found},
        )
        results.append(result if runs is None else _with_gain(result, number, final, runs))
    return TestResult(len(targets), {name: mean.scores for name, (mean, _) in scored.items()}, tasks=tuple(results))


def _with_gain(
    result: TaskResult, number: int, final: FinalEvaluation, runs: tuple[list[np.ndarray], list[np.ndarray]]
) -> TaskResult:
    """Return the result of a task with the winner's gain over the plain head."""
    parts = [[parts_of(final.metric, run, final.test.targets)[number] for run in each] for each in runs]
    winner, plain = ([part.outputs for part in each] for each in parts)
    part = parts[0][0]
    comparison = compare(part.problem_type, part.metric, winner, plain, part.targets)
    return TaskResult(
        name=result.name,
        metric=result.metric,
        rows=result.rows,
        scores=result.scores,
        gain=comparison.gain,
        low=comparison.low,
        high=comparison.high,
        confusion=result.confusion,
    )
