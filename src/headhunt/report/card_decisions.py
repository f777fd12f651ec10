"""Items of the model card about probabilities, thresholds, sizes of errors and rejected texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headhunt.evaluation import expected_calibration_error
from headhunt.report.markdown import code
from headhunt.report.words import rejection_words
from headhunt.run.results import WINNER, TestResult

Facts = Mapping[str, Any]


def card_items(
    problem_type: str, role: str, facts: Facts, test: TestResult | None, is_delivered: bool = True
) -> list[str]:
    """Return what a model card says about probabilities, errors, thresholds and rejected texts.

    Args:
        problem_type: The problem type.
        role: `winner`, `plain` or `ensemble`.
        facts: The contents of `headhunt.json`, and `thresholds` and `rejection` of `config.json`.
        test: Scores of the search on test rows.
        is_delivered: Whether this is the delivered model, which the scores of rejection are of.
    """
    if problem_type == "regression":
        if test is None or test.errors is None or role != WINNER:
            return []
        level, coverage = f"{test.errors.level * 100:.0f} %", f"{test.errors.coverage * 100:.1f} %"
        within = f"within {test.errors.error:.3g} of the true number"
        return [f"Errors: {level} of validation rows are {within}, and {coverage} of test rows."]
    items = []
    if thresholds := facts.get("thresholds"):
        items.append(
            f"Thresholds: a text gets a label from a probability of {min(thresholds):.3g} to {max(thresholds):.3g} "
            "on, depending on the label (`thresholds` in config.json). transformers alone does not apply them."
        )
    temperature, measured = facts.get("temperature"), ""
    if test is not None and test.calibration and role == WINNER:
        error, before = expected_calibration_error(test.calibration), " before calibration" if temperature else ""
        measured = f" The expected calibration error on test rows{before} is {error * 100:.1f} points."
    if temperature:
        items.append(f"Probabilities: calibrated on validation rows (temperature {temperature:g}).{measured}")
    else:
        items.append(
            f"Probabilities: not calibrated; predictions at 0.9 need not be right nine times in ten.{measured}"
        )
    if facts.get("rejection"):
        items.append(_rejection_words(facts["rejection"], test if is_delivered else None))
    return items


def _rejection_words(rejection: Facts, test: TestResult | None) -> str:
    label = rejection.get("label")
    fits_none = f" or whose best class is {code(label)}" if label is not None else ""
    words = (
        f"Rejected texts: those whose best class has a probability below {rejection['threshold']:.3g}{fits_none} "
        "get no label (`rejection` in config.json). transformers alone does not reject."
    )
    scores = test.rejection if test is not None else None
    if scores is None:
        return words
    found = rejection_words(scores, "test rows", code(str(label)))
    return f"{words} {found[0].upper()}{found[1:]}."
