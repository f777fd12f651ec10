"""Tests of the task object."""

import json
import subprocess
import sys

import numpy as np
import pandas
import pytest
from labelled_rows import LABELS, ROWS, TEXTS

from headhunt.data import Task
from headhunt.errors import DataError


def test_load_depends_on_seed():
    first, again, other = (Task.load(ROWS, seed=seed) for seed in (0, 0, 1))
    assert first.fingerprint == again.fingerprint != other.fingerprint


def test_fingerprint_depends_only_on_content():
    first = Task.load(ROWS)
    assert first.fingerprint == Task.load({"body": TEXTS, "class": LABELS}).fingerprint
    assert first.fingerprint != Task.load([*ROWS[:-1], (TEXTS[-1] + "!", LABELS[-1])]).fingerprint
    assert first.fingerprint != Task.load([*ROWS[:-1], (TEXTS[-1], "good")]).fingerprint
    code = "import sys, json; from headhunt.data import Task; print(Task.load(json.load(sys.stdin)).fingerprint)"
    elsewhere = subprocess.run(
        [sys.executable, "-c", code], input=json.dumps(ROWS), capture_output=True, text=True, check=True
    )
    assert elsewhere.stdout.strip() == first.fingerprint


@pytest.mark.parametrize("column", [{}, {"group": "user"}, {"order": "user"}], ids=["random", "group", "order"])
def test_load_draws_rows_before_it_divides_them(column):
    frame = pandas.DataFrame(
        {"text": [f"{chr(97 + n // 26)}{chr(97 + n % 26)} row" for n in range(400)], "user": np.arange(400) // 4}
    )
    frame["label"] = np.where(np.arange(400) % 10 == 0, "rare", "common")
    task = Task.load(frame, max_rows=100, label="label", **column)
    assert sum(map(len, task.splits.values())) == 100
    train = task.splits["train"]
    assert 5 <= (train.targets == task.labels.index("rare")).sum() <= 10
    assert any("100 rows drawn from 400" in note for note in task.notes)
    rows = dict(zip(frame.text, frame.label, strict=True))
    for split in task.splits.values():
        texts = [str(text) for text in split.texts(0, len(split))]
        assert [rows[text] for text in texts] == [task.labels[target] for target in split.targets]


def test_load_draws_rows_of_given_test_rows():
    task = Task.load(ROWS, test=[(f"{text} again", label) for text, label in ROWS], max_rows=20)
    assert {name: len(split) for name, split in task.splits.items()} == {"train": 20, "test": 20}
    assert Task.load(ROWS, max_rows=10**6).fingerprint == Task.load(ROWS).fingerprint
    with pytest.raises(DataError, match="max_rows 0: the number of rows must be positive"):
        Task.load(ROWS, max_rows=0)
    with pytest.raises(DataError, match="max_rows 1: the limit is too low for 3 classes"):
        Task.load(ROWS, max_rows=1)


def test_load_records_limit_and_test():
    task = Task.load(ROWS)
    assert task.limit is None and not task.test_given
    task = Task.load(ROWS, limit=10_000, test=ROWS[:10])
    assert task.limit == 10_000 and task.test_given
    assert not Task.load({"train": ROWS, "test": ROWS[:10]}).test_given, "a split of the source is not test="
