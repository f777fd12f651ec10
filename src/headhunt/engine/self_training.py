"""Self-training: let the delivered model label further texts, and deliver a student if validation rows say so.

The evidence is out of fold: the teacher of a fold has not seen the rows of this fold, and neither has its student.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from headhunt.engine.final_evaluation import FinalEvaluation
from headhunt.engine.final_test import finish_saved
from headhunt.engine.test_scores import score_rejected
from headhunt.evaluation import Decisions, apply_thresholds, compare, decision_scores, evaluate, fit_temperature
from headhunt.run.directory import is_model, read_predictions, read_test_predictions
from headhunt.run.events import FinalTestRun
from headhunt.run.results import STUDENT, SearchResult, SelfTraining
from headhunt.run.state import Trial
from headhunt.run.task import open_unlabelled
from headhunt.storage import copy_directory, remove
from headhunt.study.requests import PredictTestRows, Request, TrainStudent

FRACTION = 0.2  # of the time of a search that is reserved for students
LEAST_TEXTS = 100
MOST_TEXTS = 20_000
LABELLING = 0.4  # cost of labelling a text, relative to training on it
MARGIN = 1.3  # on the time that students are expected to take
FINISHING_SECONDS = 8.0  # for loading, saving and testing
STANDARD_ERRORS = 1.0  # by which a student must be better than its teacher on validation rows


def reserved_fraction(unlabelled: bool) -> float:
    """Return the fraction of the time to reserve for students, beside the final evaluation."""
    return FRACTION if unlabelled else 0.0


def run_self_training(final: FinalEvaluation, result: SearchResult) -> SearchResult:
    """Train a student of the winner for every fold and, if they are better, one on all rows, which is delivered.

    Args:
        final: The search, after its final evaluation.
        result: The result.

    Returns:
        The result with what was found, as it is stored.
    """
    winner = final.state.trials[result.winner.trial] if result.winner else None
    count = len(open_unlabelled(final.directory.task).others())
    learner = _learner(final, winner)
    note = _obstacle(final, result, winner, learner, count)
    if note is None and learner is not None:
        count = _affordable_texts(final, learner, count)
        note = None if count else "there was no time to train students"
    found = SelfTraining(count, note=note)
    if note is None and winner is not None and learner is not None:
        final.show_stage("training students on unlabelled texts")
        found, decisions = _compare(final, winner, learner, count)
        if found.accepted:
            result, found = _deliver_student(final, result, winner, learner, found, decisions)
    result = replace(result, self_training=found)
    final.directory.write_result(result)
    return result


def _learner(final: FinalEvaluation, winner: Trial | None) -> Trial | None:
    """Return the candidate that students are trained as: the winner; if that is solved, the best that is trained."""
    if winner is None or not winner.is_solved:
        return winner
    trained = [trial for trial in final.fully_evaluated() if not trial.is_solved and not trial.is_plain]
    return next((trial for trial in trained if trial.spec.recipe.freeze != "all"), trained[0] if trained else None)


def _obstacle(
    final: FinalEvaluation, result: SearchResult, winner: Trial | None, learner: Trial | None, count: int
) -> str | None:
    """Return why no student can be trained; None if one can."""
    if winner is None or result.verdict.delivered != "winner":
        return "the delivered model is not the winner"
    if learner is None:
        return "the winner is solved, and no other candidate was evaluated on all folds"
    if not winner.best or winner.best[0] != final.study.ladder.top or final.predictions(winner) is None:
        return "the winner was not evaluated on all folds"
    if not winner.is_solved and final.study.checkpoints.latest(winner.number) is None:
        return "the winner's models of the folds are not on disk"
    if count < LEAST_TEXTS:
        return f"there are fewer than {LEAST_TEXTS} unlabelled texts"
    return None


def _affordable_texts(final: FinalEvaluation, learner: Trial, count: int) -> int:
    """Return the number of texts that all students have time for; 0 if there are too few."""
    count = min(count, MOST_TEXTS)
    left = final.budget.left() - FINISHING_SECONDS
    if math.isinf(left):
        return count
    rounds = math.ceil(final.folds / final.workers) + 1  # the last student waits for the others
    examples = left / MARGIN / rounds * final.examples_per_second(learner)
    labelled = learner.spec.recipe.epochs * final.task.rows["train"]
    fitting = int((examples - labelled) / (1 + LABELLING))
    return min(count, fitting) if fitting >= LEAST_TEXTS else 0


def _compare(final: FinalEvaluation, winner: Trial, learner: Trial, count: int) -> tuple[SelfTraining, Decisions]:
    """Train a student for every fold and compare their predictions with those of the winner, on the same rows.

    Also return thresholds, temperature and rejection of the students.
    """
    assert winner.best is not None
    checkpoint, rung = final.study.checkpoints.latest(winner.number), winner.best[0]
    names = [f"student-{winner.number:06d}-{fold}" for fold in range(final.folds)]
    paths = [final.directory.reference_predictions(name) for name in names]
    requests: list[Request] = [
        final.request(
            TrainStudent,
            winner,
            rows=final.study.rows_of(winner, rung),
            checkpoint=checkpoint,
            fold=fold,
            texts=count,
            student=learner.spec,
            worker_timeout=None,
            predictions=path,
        )
        for fold, path in enumerate(paths)
    ]
    for path in paths:
        path.unlink(missing_ok=True)  # of an earlier session
    final.run(requests, final.before_deadline(FINISHING_SECONDS))
    known = final.predictions(winner)
    if known is None or not all(path.exists() for path in paths):
        return SelfTraining(count, note="the students could not be trained in time"), Decisions()
    parts = [read_predictions(path) for path in paths]
    rows, outputs = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
    order = {int(row): place for place, row in enumerate(rows)}
    outputs = outputs[[order[int(row)] for row in known[0]]]
    targets, problem_type = final.validation_targets[known[0]], final.task.problem_type
    student, teacher = (decision_scores(problem_type, final.metric, each, targets) for each in (outputs, known[1]))
    comparison = compare(problem_type, final.metric, [student], [teacher], targets, groups=final.groups_of(known[0]))
    error = (comparison.high - comparison.low) / 3.92  # the interval has 95 %
    found = SelfTraining(
        count,
        score=final.score(outputs, targets),
        teacher_score=final.score(known[1], targets),
        gain=comparison.gain,
        low=comparison.low,
        high=comparison.high,
        temperature=_temperature(final, outputs, targets),
        accepted=bool(comparison.gain > STANDARD_ERRORS * error),
    )
    return found, final.decisions((outputs, targets))


def _temperature(final: FinalEvaluation, outputs: np.ndarray, targets: np.ndarray) -> float | None:
    """Return the temperature that calibrates students, fitted on rows they were not trained on."""
    if final.task.problem_type != "single_label_classification":
        return None
    return round(fit_temperature(outputs, targets), 4)


def _deliver_student(
    final: FinalEvaluation,
    result: SearchResult,
    winner: Trial,
    learner: Trial,
    found: SelfTraining,
    decisions: Decisions,
) -> tuple[SearchResult, SelfTraining]:
    """Train a student of the delivered model on all rows, test it, and put it in place."""
    final.show_stage("training the last student on all rows")
    # Before its calibration, as the models of the folds were teachers.
    saved = final.directory.models / result.model_from if result.model_from else final.directory.model
    teacher = final.directory.ensemble if result.ensemble else saved if is_model(saved) else final.directory.model
    out = final.directory.models / f"{winner.number:06d}-student"
    remove(out)  # of an earlier session
    fields: dict[str, Any] = {"texts": found.texts, "student": learner.spec, "worker_timeout": None}
    request = final.request(TrainStudent, winner, model=teacher, out=out, **fields)
    final.run([request], final.before_deadline(4.0))
    if not is_model(out):
        return result, replace(found, accepted=False, note="there was no time to train the student on all rows")
    outputs = _test(final, winner, out)
    if result.test is not None and outputs is None:
        return result, replace(found, accepted=False, note="there was no time to test the student")
    copy_directory(out, final.directory.model)
    finish_saved(final, decisions)
    if result.test is not None and outputs is not None:
        decided = apply_thresholds(outputs, decisions.thresholds)[0]
        test, task = final.test, final.task
        scores = evaluate(task.problem_type, decided, test.targets, task.labels, groups=test.column_groups).scores
        rejection = score_rejected(final, decisions, outputs)
        tested = replace(result.test, scores={**result.test.scores, STUDENT: dict(scores)}, rejection=rejection)
        result = replace(result, test=tested, test_evaluations=final.state.test_evaluations)
    sentence = (
        f"{result.verdict.sentence} The delivered model is a student of the winner that also learned from "
        f"{found.texts:,} unlabelled texts: {found.score:.4f} on validation rows, the winner {found.teacher_score:.4f}."
    )
    return replace(result, model_from=out.name, verdict=replace(result.verdict, sentence=sentence)), found


def _test(final: FinalEvaluation, winner: Trial, model: Path) -> np.ndarray | None:
    """Return what a model predicts for the test rows; None without test rows, or if there was no time."""
    if "test" not in final.task.rows:
        return None
    path = final.directory.test_predictions(model.name)
    path.unlink(missing_ok=True)
    final.run([final.request(PredictTestRows, winner, model=model, predictions=path)], final.before_deadline(1.0))
    if not path.exists():
        return None
    final.study.ledger.append(FinalTestRun([model.name]))
    return read_test_predictions(path)
