"""What the answers to held-out rows show of two candidates: scores, confusions, calibration, mistakes.

Hides where these rows and answers lie. Used where a search has not looked at test rows, or not yet: the rows are the
ones candidates were chosen by, so that the winner looks a little better than it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from headhunt.data import Task
from headhunt.evaluation import decide, evaluate, reliability
from headhunt.run.directory import read_predictions as predictions_of
from headhunt.run.schema import RunError
from headhunt.run.task import open_task

MISTAKES = 10


def look(task: Path, answers: Mapping[str, Path]) -> dict[str, Any]:
    """Scores, and where classes are predicted also confusions, calibration and mistakes.

    Args:
        task: The folder with the run's data.
        answers: The predictions of `model` and, where there are any, of `plain`.

    Returns:
        `rows`, `scores`, `confusion`, `calibration`, `mistakes`, as `result.json` has them; empty where the model's
        answers are missing or do not fit the data.
    """
    found = {who: read for who, path in answers.items() if (read := _read(path)) is not None}
    if "model" not in found:
        return {}
    rows, outputs = found["model"]
    data = open_task(task)
    splits = [data.splits[name] for name in ("train", "validation") if name in data.splits]
    targets = np.concatenate([split.targets for split in splits])
    if len(rows) == 0 or rows.max() >= len(targets):
        return {}
    truth = targets[rows]
    # Only answers to the same rows may stand side by side.
    alike = {who: given for who, (where, given) in found.items() if np.array_equal(where, rows)}
    judged = {who: evaluate(data.problem_type, given, truth, data.labels) for who, given in alike.items()}
    shown: dict[str, Any] = {
        "rows": len(rows),
        "scores": {who: evaluation.to_dict()["scores"] for who, evaluation in judged.items()},
    }
    if data.problem_type == "single_label_classification":
        shown["confusion"] = {who: evaluation.confusion for who, evaluation in judged.items()}
        shown["calibration"] = {"model": reliability(outputs, truth)}
        shown["mistakes"] = _mistakes(data, rows, alike, truth)
    return shown


def _mistakes(
    data: Task, rows: np.ndarray, answers: Mapping[str, np.ndarray], truth: np.ndarray
) -> list[dict[str, Any]]:
    """The mistakes the model is most sure of."""
    outputs = answers["model"]
    said, sure = decide("single_label_classification", outputs), outputs.max(1)
    wrong = np.flatnonzero(said != truth)
    wrong = wrong[np.argsort(-sure[wrong], kind="stable")][:MISTAKES]
    plain = decide("single_label_classification", answers["plain"]) if "plain" in answers else None
    first = len(data.splits["train"])
    mistakes = []
    for at in wrong:
        row = int(rows[at])
        split, place = (data.splits["train"], row) if row < first else (data.splits["validation"], row - first)
        mistake = {
            "text": split.texts(place, place + 1)[0],
            "label": data.labels[truth[at]],
            "model": data.labels[said[at]],
            "confidence": float(sure[at]),
        }
        second = split.texts_b(place, place + 1)
        if second is not None:
            mistake["text_b"] = second[0]
        if plain is not None:
            mistake["plain"] = data.labels[plain[at]]
        mistakes.append(mistake)
    return mistakes


def _read(path: Path) -> tuple[np.ndarray, np.ndarray] | None:
    try:
        return predictions_of(path)
    except RunError:  # not there, or being written
        return None
