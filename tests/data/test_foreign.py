"""Data from other programs: workbooks, databases, the Hub, polars and annotation tools."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing

import datasets
import openpyxl
import polars
import pytest
from labelled_rows import LABELS, ROWS, TEXTS

from headhunt.data import Task, foreign
from headhunt.errors import DataError

EXPECTED = Task.load(ROWS).fingerprint


def make_database(path, *tables):
    with closing(sqlite3.connect(path)) as connection, connection:
        for table in tables:
            connection.execute(f'CREATE TABLE "{table}" (text TEXT, label TEXT)')
            connection.executemany(f'INSERT INTO "{table}" VALUES (?, ?)', ROWS)  # noqa: S608


def test_workbooks_of_offices_are_read(tmp_path):
    book = openpyxl.Workbook()
    for row in [(), ("text ", "label", None), *ROWS[:40], (None, None), *ROWS[40:], ()]:
        book.active.append(row)
    book.create_sheet("notes").append(["ignored"])
    book.save(tmp_path / "rows.xlsx")
    assert Task.load(tmp_path / "rows.xlsx").fingerprint == EXPECTED
    (tmp_path / "rows.xlsx").write_bytes(b"PK\x03\x04 no workbook")
    with pytest.raises(DataError, match="damaged or not what its name says"):
        Task.load(tmp_path / "rows.xlsx")


def test_databases_are_read_by_file_and_by_url(tmp_path):
    make_database(tmp_path / "one.db", "my rows")
    assert Task.load(tmp_path / "one.db").fingerprint == EXPECTED
    url = f"sqlite:///{tmp_path / 'two.sqlite'}"
    make_database(tmp_path / "two.sqlite", "first", "second")
    for wanted in ("second", "SELECT text, label FROM first"):
        assert Task.load(f"{url}#{wanted}").fingerprint == EXPECTED
    for source in (tmp_path / "two.sqlite", url):
        with pytest.raises(DataError, match=r"must have one table; found .first., .second."):
            Task.load(source)
    with pytest.raises(DataError, match="database cannot be read"):
        Task.load(f"{url}#third")
    with pytest.raises(DataError, match="cannot be read") as error:
        Task.load("postgresql+nothing://user:secret@localhost/rows#x")
    assert "secret" not in str(error.value)
    (tmp_path / "bad.db").write_bytes(b"x" * 5000)
    with pytest.raises(DataError, match="damaged"):
        Task.load(tmp_path / "bad.db")


def test_data_sets_of_the_hub_are_found_by_name(tmp_path, monkeypatch):
    splits = datasets.DatasetDict({"train": datasets.Dataset.from_dict({"text": TEXTS, "label": LABELS})})
    monkeypatch.setattr(datasets, "load_dataset", {"me/films": splits}.__getitem__)
    monkeypatch.chdir(tmp_path)
    assert Task.load("me/films").fingerprint == EXPECTED
    with pytest.raises(DataError, match="no data set 'me/filmz' in the local cache or on the Hub"):
        Task.load("me/filmz")


def test_polars_and_exports_of_annotation_tools_are_read(tmp_path):
    assert Task.load(polars.DataFrame({"text": TEXTS, "label": LABELS})).fingerprint == EXPECTED
    studio, argilla = [], []
    for text, label in ROWS:
        choice = {"from_name": "label", "to_name": "text", "type": "choices", "value": {"choices": [label]}}
        rejected = {"was_cancelled": True, "result": []}
        studio.append({"id": 1, "data": {"text": text}, "annotations": [rejected, {"result": [choice]}]})
        answers = {"label": [{"value": label, "user_id": "a"}]}
        argilla.append({"id": "1", "fields": {"text": text}, "responses": answers, "suggestions": {}})
    for rows in (studio, argilla):
        (tmp_path / "export.json").write_text(json.dumps(rows))
        assert Task.load(tmp_path / "export.json").fingerprint == EXPECTED
    two = [{**choice, "value": {"choices": ["a", "b"]}}]
    assert foreign.flatten_annotations([{**studio[0], "annotations": [{"result": two}]}])[0]["label"] == ["a", "b"]
    assert foreign.flatten_annotations([broken := {"data": {}, "annotations": [3]}]) == [broken]


def test_missing_packages_are_named_with_their_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "openpyxl", None)
    (tmp_path / "rows.xlsx").write_bytes(b"PK")
    with pytest.raises(DataError, match=r"openpyxl is needed.*headhunt\[excel\]"):
        Task.load(tmp_path / "rows.xlsx")
