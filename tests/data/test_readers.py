"""Tests of reading single files."""

import json
import random
import warnings

import numpy as np
import pytest
from bad_inputs import bad_files, check_refused, write
from labelled_rows import TEXTS

from headhunt.data import Task
from headhunt.errors import DataError


@bad_files("readers")
def test_read_file_refuses_unreadable_files(make, fragments, tmp_path):
    path, options = make(tmp_path)
    check_refused(path, fragments, **options)


def test_read_file_raises_only_data_errors_for_random_bytes(tmp_path):
    rng = random.Random(0)
    alphabets = [bytes(range(256)), b'text,label\n",;\t ab', b'{"text": "a", "label": [1]}\n\xc3']
    for at in range(300):
        letters = alphabets[at % 3]
        content = bytes(rng.choice(letters) for _ in range(rng.randrange(1, 400)))
        path = write(
            tmp_path / f"{at}{rng.choice(['.csv', '.tsv', '.jsonl', '.json', '.parquet', '.arrow', '.csv.gz'])}",
            content,
        )
        for text in (None, "text"):
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("error")
                    Task.load(path, text=text)
            except DataError:
                pass


def test_read_json_accepts_late_and_widening_columns(tmp_path, monkeypatch):
    monkeypatch.setattr("headhunt.data.tables.MAX_IN_MEMORY", 1)
    monkeypatch.setattr("headhunt.data.readers.BLOCK_BYTES", 512)
    rows = [{"text": text, "label": at if at < 40 else at + 0.5} for at, text in enumerate(TEXTS)]
    for row in rows[50:]:
        row["extra"] = {"source": "web"}
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    task = Task.load(tmp_path / "a.jsonl", test=rows)
    assert task.problem_type == "regression"
    np.testing.assert_allclose(task.splits["train"].targets, [row["label"] for row in rows])
    rows[70]["label"] = "seventy"
    (tmp_path / "b.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(Exception, match="'label' mixes"):
        Task.load(tmp_path / "b.jsonl")
