"""Words that the report, notebooks, model cards and the command line share."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from headhunt.evaluation import RejectionScores
from headhunt.run.results import SearchResult
from headhunt.spec import Spec, describe


def output_words(problem_type: str, count: int) -> str:
    """Return what a model predicts.

    Args:
        problem_type: The problem type.
        count: Number of its classes, labels or tasks.
    """
    return {
        "single_label_classification": f"one of {count} classes",
        "multi_label_classification": f"any of {count} labels",
        "multi_task": f"the outputs of {count} tasks",
    }.get(problem_type, "a number")


def model_words(spec: Spec) -> str:
    """Return a model in a few words; a head that is solved is named by what it consists of."""
    if not spec.recipe.is_solved or spec.head.words == "alone":
        return describe(spec)
    return "frozen encoder + linear layer" + (" + word counts" if spec.head.words else "")


def call_words(pair: bool, task: str | None = None) -> str:
    """Return the arguments of `Predictor.predict` in an example; several tasks need the name of one."""
    texts = '"one text", "another"' if pair else '"a text"'
    return texts if task is None else f"{texts}, task={json.dumps(task)}"


def verdict_words(result: SearchResult, run: Path) -> str:
    """Return the verdict on a search, with the path of its run in the command that it names."""
    return result.verdict.sentence.replace(" RUN", f" {shlex.quote(run.as_posix())}")


def rejection_words(scores: RejectionScores, rows: str, label: str | None) -> str:
    """Return coverage and accuracy of a model that rejects texts.

    Args:
        scores: The scores.
        rows: Name of the rows.
        label: Name of the class of rejected texts, as it is shown.
    """
    inside = rows if scores.label is None else f"{rows} of other classes than {label}"
    words = (
        f"the model answers {scores.coverage:.1%} of the {inside}; {scores.accuracy:.1%} of these answers "
        f"are correct, against {scores.accuracy_of_all:.1%} if it answered all"
    )
    if scores.outside_rejected is None:
        return words
    return f"{words}; it rejects {scores.outside_rejected:.1%} of the {scores.outside_rows:,} {label}"
