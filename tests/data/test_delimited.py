"""Tests of reading CSV and TSV files."""

import contextlib
import random

from bad_inputs import GOOD, as_csv, bad_files, check_refused, write
from labelled_rows import ROWS, TEXTS, write_csv

from headhunt.data import Task
from headhunt.errors import DataError


def test_read_delimited_keeps_newlines_quotes_and_delimiters_in_cells(tmp_path):
    rows = [(f'line {at}\nsecond, "quoted"; {text}', label) for at, (text, label) in enumerate(ROWS)]
    for name, delimiter in (("a.csv", ","), ("b.csv", ";"), ("c.tsv", "\t")):
        task = Task.load(write_csv(tmp_path / name, rows, delimiter=delimiter))
        assert sorted(task.splits["train"].texts() + task.splits["test"].texts()) == sorted(row[0] for row in rows)


def test_read_tsv_keeps_bare_quotes_as_characters(tmp_path):
    lines = [f'"{text}\t{label}' if at % 9 == 4 else f"{text}\t{label}" for at, (text, label) in enumerate(ROWS)]
    (tmp_path / "a.tsv").write_text("\n".join(["text\tlabel", *lines]))
    task = Task.load(tmp_path / "a.tsv", test=ROWS)
    assert len(task.splits["train"]) == 80 and task.splits["train"].texts(4, 5) == ['"' + TEXTS[4]]


@bad_files("delimited")
def test_read_delimited_refuses_bad_files(make, fragments, tmp_path):
    path, options = make(tmp_path)
    check_refused(path, fragments, **options)


def test_read_delimited_reports_open_quote_longer_than_block(tmp_path, monkeypatch):
    monkeypatch.setattr("headhunt.data.delimited.BLOCK_BYTES", 1 << 12)
    rows = [*GOOD, ('"an open one', "good"), *GOOD * 100]
    check_refused(write(tmp_path / "data.csv", as_csv(rows)), ["row after row 12", "is longer than", "quote"])


def test_read_delimited_raises_only_data_errors_for_damaged_rows(tmp_path):
    rng = random.Random(1)
    good = as_csv([(text + ' with "some" quotes', label) for text, label in GOOD]).encode()
    for at in range(200):
        content = bytearray(good)
        for _ in range(rng.randrange(1, 4)):
            content[rng.randrange(len(content))] = rng.choice(b'",\n\r;\0\xff a')
        with contextlib.suppress(DataError):
            Task.load(write(tmp_path / f"{at}.csv", bytes(content)))
