"""Tests of warnings."""

import numpy as np
import pyarrow as pa
import pytest
from labelled_rows import LABELS, ROWS, TEXTS

from headhunt.data import Task
from headhunt.data.diagnostics import count_leaks
from headhunt.data.sources import Rows
from headhunt.errors import DataError


def test_find_warnings_reports_leaks_between_splits():
    test = [("an unrelated text", "bad"), (TEXTS[7].upper(), LABELS[7]), (TEXTS[3], LABELS[3])]
    task = Task.load(ROWS, test=test)
    leaks = [warning for warning in task.warnings if "leak" in warning]
    assert (
        len(leaks) == 1 and "2 test rows leak" in leaks[0] and "rows 2, 3" in leaks[0] and "training row 8" in leaks[0]
    )
    assert count_leaks(task.splits)["test"] == {"same": 2, "near": 2}
    assert not any("leak" in warning for warning in Task.load(ROWS, test=test[:1]).warnings)


def test_test_rows_that_are_the_validation_rows_are_refused():
    other = [
        (f"another text of {text} and more {text}", label) for text, label in zip(TEXTS[:20], LABELS, strict=False)
    ]
    disguised = [(f"<p>{text.upper()}</p>", label) for text, label in other]
    with pytest.raises(DataError, match=r"20 of 20 test rows have \(nearly\) the text of a validation row.*set aside"):
        Task.load(ROWS, validation=other, test=disguised)
    few = Task.load(ROWS, validation=other[:10], test=disguised[8:])
    assert any("2 of 12 test rows have (nearly) the text of a validation row" in warning for warning in few.warnings)
    assert not any("validation row" in each for each in Task.load(ROWS, validation=other[:8], test=other[8:]).warnings)


def test_find_warnings_reports_contradictions_imbalance_and_spelling():
    assert any(
        "more than one label" in w and "rows 1, 81" in w for w in Task.load([*ROWS, (TEXTS[0], "good")]).warnings
    )
    imbalanced = Task.load((TEXTS, ["a"] * 75 + ["b"] * 5)).warnings
    assert any("'a' has 75 of 80 rows" in warning and "15 to 1" in warning for warning in imbalanced), imbalanced
    given = Task.load((TEXTS, ["a"] * 75 + ["b"] * 5), test=(TEXTS[:2], ["a", "b"])).warnings
    assert any("'a' has 75 of 80 training rows" in warning for warning in given), given
    spelled = Task.load((TEXTS, ["Good", "good", "bad", "bad "] * 20))
    assert spelled.labels == ("Good", "bad", "good")
    assert any("'Good' and 'good'" in warning for warning in spelled.warnings)
    assert any(
        "1 of 81 rows has more than 100 words (row 81); texts are cut to max_length tokens, 128 by default" in w
        for w in Task.load([*ROWS, ("far too long " * 34, "bad")]).warnings
    )
    assert not Task.load(ROWS).warnings


def test_rows_are_counted_and_numbered_as_the_file_has_them(tmp_path):
    lines = [
        f"{chr(97 + number % 26) * 3} {chr(97 + number // 26) * 4} {'yes' * (number % 5 + 1)},{'ab'[number % 2]}"
        for number in range(300)
    ]
    lines[0] = "ragged,row,here"
    lines[99] = f"{'long ' * 120},a"
    (tmp_path / "rows.csv").write_text("\n".join(["text,label", *lines]))
    with pytest.raises(DataError, match=r"1 row with 3 cells.*row 1"):
        Task.load(tmp_path / "rows.csv")
    (tmp_path / "rows.csv").write_text("\n".join(["text,label", *lines[1:]]))
    for seed in range(4):
        task = Task.load(tmp_path / "rows.csv", max_rows=200, seed=seed)
        assert "data: 200 rows drawn from 299" in task.notes and "test: 40 of 200 rows set aside" in task.notes
        long = [warning for warning in task.warnings if "words" in warning]
        assert all("1 of 200 rows has more than 100 words (row 99)" in warning for warning in long), long
        if long:
            break
    assert long
    rows = Rows("x", pa.table({"a": range(5)}), np.array([0, 3]), np.array([2, 4]))
    assert rows.number(np.array([1])).tolist() == [6], "rows 2 and 4 of seven cannot be read: the fourth other is 6"
