"""Tests of the task object."""

import json
import subprocess
import sys

from labelled_rows import LABELS, ROWS, TEXTS

from headhunt.data import Task


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


def test_load_records_limit_and_test():
    task = Task.load(ROWS)
    assert task.limit is None and not task.test_given
    task = Task.load(ROWS, limit=10_000, test=ROWS[:10])
    assert task.limit == 10_000 and task.test_given
    assert not Task.load({"train": ROWS, "test": ROWS[:10]}).test_given, "a split of the source is not test="
