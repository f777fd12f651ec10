"""Tests of reading single files."""

import gzip
import json
import random
import warnings

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bad_inputs import (
    GOOD,
    as_csv,
    as_jsonl,
    cases,
    check_refused,
    csv_file,
    good_objects,
    jsonl_file,
    named_file,
    write,
)
from labelled_rows import TEXTS

from headhunt.data import Task
from headhunt.errors import DataError


def cut_parquet(folder):
    pq.write_table(pa.table({"text": ["a"] * 100, "label": ["b"] * 100}), folder / "complete.parquet")
    return write(folder / "data.parquet", (folder / "complete.parquet").read_bytes()[:-40]), {}


@cases(
    ("empty file", csv_file(""), ["data.csv", "empty"]),
    (
        "latin-1",
        csv_file(as_csv([*GOOD, ("café très bon", "good")]).encode("latin-1")),
        ["not UTF-8", "byte", "line 14", "iconv"],
    ),
    ("utf-16", csv_file(as_csv().encode("utf-16")), ["UTF-16", "iconv -f utf-16"]),
    ("NUL bytes", csv_file(as_csv([*GOOD, ("a\0b", "good")])), ["NUL bytes", "line 14"]),
    ("invalid JSON", jsonl_file(as_jsonl([*good_objects(), '{"text": "x", "label"'])), ["not valid JSON", "row 13"]),
    (
        "JSON that is no object",
        jsonl_file(as_jsonl([*good_objects(), "[1, 2]", '"text"'])),
        ["not a JSON object", "rows 13, 14"],
    ),
    ("JSON list of no objects", named_file("data.json", "[1, 2, 3]"), ["not a JSON object"]),
    ("broken JSON list", named_file("data.json", '[{"text": "a"}, '), ["not valid JSON"]),
    ("corrupt Parquet", named_file("data.parquet", b"PAR1 this is not Parquet PAR1"), ["data.parquet", "damaged"]),
    ("cut-off Parquet", cut_parquet, ["data.parquet", "damaged"]),
    ("corrupt Arrow", named_file("data.arrow", b"ARROW1 nothing more"), ["data.arrow", "damaged"]),
    ("corrupt gzip", named_file("data.csv.gz", b"\x1f\x8b not gzip at all"), ["data.csv.gz", "damaged"]),
    (
        "cut-off gzip",
        named_file("data.csv.gz", gzip.compress(as_csv(GOOD * 50).encode())[:-20]),
        ["data.csv.gz", "damaged"],
    ),
    ("empty gzip", named_file("data.csv.gz", gzip.compress(b"")), ["empty"]),
    ("unknown extension", named_file("data.xlsx", "text"), ["'.xlsx'", ".csv", ".parquet"]),
    ("no extension", named_file("data", "text"), ["'data'", ".csv"]),
    ("Parquet named CSV", named_file("data.csv", b"PAR1" + bytes(100)), ["Parquet", "not text"]),
    ("picture named CSV", named_file("data.csv", b"\x89PNG\r\n" + bytes(range(256)) * 20), ["PNG", "not text"]),
    ("binary named JSONL", named_file("data.jsonl", bytes(range(256)) * 40 + bytes(200)), ["binary", "not text"]),
)
def test_read_file_refuses_unreadable_files(source, options, fragments, tmp_path):
    path, options = source(tmp_path)
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
