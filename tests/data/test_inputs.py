"""The files of a corpus and ranges of their rows."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.fs import LocalFileSystem

from headhunt.data.inputs import ParquetRows, find_inputs
from headhunt.errors import DataError


@pytest.mark.parametrize(
    ("source", "taken"),
    [
        ("in/*.parquet", ["a", "b"]),
        ("in/[!a]*.parquet", ["b"]),
        ("in/**/*.parquet", ["a", "b", "deep/c"]),
        ("in/de?p/*", ["deep/c"]),
        ("in", ["a", "b", "deep/c"]),
        ("in/b.parquet", ["b"]),
        ("file://{}/in/a*", ["a"]),
    ],
)
def test_find_inputs_matches_folders_patterns_and_urls(tmp_path, source, taken):
    for name in ("a", "b", "deep/c", "deep/_temporary/d", ".hidden"):
        path = tmp_path / "in" / f"{name}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"id": ["r0"], "text": ["good"]}), path)
    (tmp_path / "in" / "readme.txt").write_text("not data")
    source = source.format(tmp_path) if "://" in source else str(tmp_path / source)
    root, files = find_inputs(source)
    assert root == ""
    assert [file.path for file in files] == [f"{tmp_path}/in/{name}.parquet" for name in taken]


def test_find_inputs_refuses_a_source_without_files(tmp_path):
    for source in ("none.parquet", "*.parquet", "no/such/*.csv"):
        with pytest.raises(DataError, match="input must"):
            find_inputs(str(tmp_path / source))
    with pytest.raises(DataError, match="address of a store"):
        find_inputs("nothing://here/x.parquet")


def test_parquet_rows_reads_any_range(tmp_path):
    table = pa.table({"n": range(1000), "text": [f"text {i}" for i in range(1000)]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=170)
    rows = ParquetRows(LocalFileSystem(), str(tmp_path / "a.parquet"))
    rows._step = 48
    rng = np.random.default_rng(0)
    ranges = [(0, 100), (100, 171), (500, 600), (600, 601), (10, 1000), (999, 1000), (0, 1)]
    ranges += [tuple(sorted(rng.integers(0, 1001, 2).tolist())) for _ in range(50)]
    for start, stop in ranges:
        numbers = [number for piece, _ in rows.read(start, stop) for number in piece["n"].to_pylist()]
        assert numbers == list(range(start, stop)), (start, stop)
