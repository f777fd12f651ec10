"""Tests of tables that are mapped from the cache."""

from pathlib import Path

import pyarrow as pa
import pytest
from bad_inputs import BAD_INPUTS, check_refused
from labelled_rows import ROWS, write_csv, write_sources

from headhunt.data import Task


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADHUNT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_read_cached_maps_large_files_from_cache(tmp_path, cache, monkeypatch):
    small = Task.load(write_csv(tmp_path / "a.csv", ROWS))
    monkeypatch.setattr("headhunt.data.tables.MAX_IN_MEMORY", 1)
    sources = write_sources(tmp_path)
    for name in ("csv", "csv.gz", "bare tsv", "jsonl", "json", "parquet"):
        before = set(cache.rglob("*.arrow"))
        task = Task.load(sources[name])
        made = set(cache.rglob("*.arrow")) - before
        assert len(made) == 1 and task.fingerprint == small.fingerprint, name
        assert task.fingerprint == Task.load(sources[name]).fingerprint
        assert set(cache.rglob("*")) == before | made | {cache / "tables"}, "reading again or leaving scraps"


def test_read_cached_does_not_copy_texts(tmp_path, monkeypatch):
    monkeypatch.setattr("headhunt.data.tables.MAX_IN_MEMORY", 1)
    path = write_csv(tmp_path / "a.csv", ROWS)
    before = pa.total_allocated_bytes()
    split = Task.load(path).splits["train"]
    assert pa.total_allocated_bytes() - before < 1024
    maps = Path("/proc/self/maps")
    if maps.exists():
        address = split.rows.table["text"].chunk(0).buffers()[2].address
        spans = [line.split()[0].split("-") for line in maps.read_text().splitlines() if ".arrow" in line]
        assert any(int(low, 16) <= address < int(high, 16) for low, high in spans)


def test_read_cached_reads_changed_file_again(tmp_path, monkeypatch):
    monkeypatch.setattr("headhunt.data.tables.MAX_IN_MEMORY", 1)
    path = write_csv(tmp_path / "a.csv", ROWS)
    first = Task.load(path)
    write_csv(path, [(text + "!", label) for text, label in ROWS])
    assert Task.load(path).fingerprint != first.fingerprint


def test_read_cached_does_not_write_if_file_is_cached(tmp_path, monkeypatch):
    monkeypatch.setattr("headhunt.data.tables.MAX_IN_MEMORY", 1)
    path = write_csv(tmp_path / "a.csv", ROWS)
    first = Task.load(path)
    monkeypatch.delattr("headhunt.data.tables.TableWriter")  # as with a read-only cache
    assert Task.load(path).fingerprint == first.fingerprint


@pytest.mark.parametrize("name", ["short row", "empty text", "mixed labels", "missing labels", "latin-1", "huge cell"])
def test_read_cached_refuses_bad_large_files_every_time(name, tmp_path, monkeypatch):
    monkeypatch.setattr("headhunt.data.tables.MAX_IN_MEMORY", 1)
    make, fragments = {name: rest for name, *rest in BAD_INPUTS}[name]
    path, options = make(tmp_path)
    check_refused(path, fragments, **options)
    check_refused(path, fragments, **options)  # a bad file must not be in the cache
