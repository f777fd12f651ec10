"""Tests of warnings and of the summary of a task."""

import json

import numpy as np
from labelled_rows import LABELS, ROWS, TEXTS

from headhunt.data import Task


def test_find_warnings_reports_leaks_between_splits():
    test = [("an unrelated text", "bad"), (TEXTS[7].upper(), LABELS[7]), (TEXTS[3], LABELS[3])]
    task = Task.load(ROWS, test=test)
    leaks = [warning for warning in task.warnings if "leak" in warning]
    assert (
        len(leaks) == 1 and "2 test rows leak" in leaks[0] and "rows 2, 3" in leaks[0] and "training row 8" in leaks[0]
    )
    assert task.describe()["leaks"]["test"] == {"same": 2, "near": 2}
    assert not any("leak" in warning for warning in Task.load(ROWS, test=test[:1]).warnings)


def test_find_warnings_reports_contradictions_imbalance_and_spelling():
    assert any(
        "more than one label" in w and "rows 1, 81" in w for w in Task.load([*ROWS, (TEXTS[0], "good")]).warnings
    )
    imbalanced = Task.load((TEXTS, ["a"] * 75 + ["b"] * 5)).warnings
    assert any("'a' has 75" in warning and "15 to 1" in warning for warning in imbalanced)
    spelled = Task.load((TEXTS, ["Good", "good", "bad", "bad "] * 20))
    assert spelled.labels == ("Good", "bad", "good")
    assert any("'Good' and 'good'" in warning for warning in spelled.warnings)
    assert any(
        "1 text has more than 100 words (row 81); they are cut to 128 tokens" in w and "max_length=N" in w
        for w in Task.load([*ROWS, ("far too long " * 34, "bad")]).warnings
    )
    assert not Task.load(ROWS).warnings


def test_describe_returns_json_data():
    for labels in (LABELS, np.linspace(0, 1, 80).tolist(), [["a"], ["b", "a"]] * 40):
        summary = json.loads(json.dumps(Task.load((TEXTS, labels), test=(TEXTS[:9], labels[:9])).describe()))
        assert summary["rows"] == {"train": 80, "test": 9} and summary["words"]["train"]["median"] == 8
        assert summary["columns"] == {"text": "text", "text_b": None, "label": "label"}
        assert summary["leaks"]["test"]["same"] == 9
    assert Task.load(ROWS, test=ROWS).describe()["classes"]["train"] == {"bad": 27, "fine": 27, "good": 26}
