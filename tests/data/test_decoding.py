"""Damaged and hostile data files: no crash, no explosion, a clear message."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import random
import signal
import tracemalloc

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest

from headhunt.data import Task, tables
from headhunt.data.columns import find_faults
from headhunt.data.inputs import UnreadableInputError, find_inputs, open_rows
from headhunt.errors import DataError, HeadhuntError

ROWS = 100
TABLE = pa.table(
    {
        "text": [f"text number {i}" for i in range(ROWS)],
        "label": ["a", "b"] * (ROWS // 2),
        "tags": [["x", "y"]] * ROWS,
        "kind": pa.array(["p", "q"] * (ROWS // 2)).dictionary_encode(),
    }
)


def write_arrow(path, stream: bool = False, compression: str | None = None):
    options = pa.ipc.IpcWriteOptions(compression=compression)
    make = pa.ipc.new_stream if stream else pa.ipc.new_file
    with pa.OSFile(str(path), "wb") as file, make(file, TABLE.schema, options=options) as writer:
        writer.write_table(TABLE)
    return path


def damage(content: bytes, rng: random.Random) -> bytes:
    data = bytearray(content)
    for _ in range(rng.choice([1, 2, 5])):
        at = rng.randrange(len(data))
        if rng.random() < 0.5:
            data[at] ^= 1 << rng.randrange(8)
        else:
            data[at : at + 4] = rng.choice([b"\xff\xff\xff\x7f", b"\0\0\0\x80", b"\xff\xff\xff\xff", b"\0\0\1\0"])
    if rng.random() < 0.2:
        del data[rng.randrange(1, len(data)) :]
    return bytes(data)


def read_everything(path) -> None:
    """Read a file as data of a search and as a corpus; only errors for the user may be raised."""
    with contextlib.suppress(HeadhuntError):
        Task.load(str(path))
    with contextlib.suppress(HeadhuntError, UnreadableInputError, pa.ArrowException):
        root, files = find_inputs(str(path))
        rows = open_rows(root, files[0])
        for table, _ in rows.read(0, rows.rows):
            if "text" in table.column_names and pa.types.is_string(table["text"].type):
                find_faults(table["text"], np.zeros(len(table), np.int8))
            table.combine_chunks().validate()


def exit_status(path) -> int:
    """Return the status of a child process that reads the file, so that a crash does not end the tests."""
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        signal.alarm(20)
        try:
            read_everything(path)
        except BaseException:
            os._exit(3)
        os._exit(0)
    return os.waitpid(child, 0)[1]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a child process")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("compression", [None, "lz4"])
def test_damaged_arrow_files_never_end_the_process(tmp_path, stream, compression):
    content = write_arrow(tmp_path / "good.arrow", stream, compression).read_bytes()
    path = tmp_path / "bad.arrow"
    for seed in range(40):
        path.write_bytes(damage(content, random.Random(seed)))
        assert exit_status(path) == 0, seed


def test_offsets_outside_the_buffers_are_refused(tmp_path):
    """The text column's last offset points 1 GB behind its buffer."""
    content = write_arrow(tmp_path / "good.arrow").read_bytes()
    last = TABLE["text"].chunk(0).buffers()[1].to_pybytes()[4 * (ROWS - 1) : 4 * (ROWS + 1)]
    path = tmp_path / "bad.arrow"
    path.write_bytes(content.replace(last, last[:4] + (1 << 30).to_bytes(4, "little"), 1))
    assert path.read_bytes() != content
    assert exit_status(path) == 0
    with pytest.raises(DataError, match="damaged"):
        Task.load(str(path))


def make_parquet_bomb(path, rows: int = 312):
    indices = pa.array([0] * rows, pa.int32())
    texts = pa.DictionaryArray.from_arrays(indices, pa.array(["x" * 1_000_000])).cast(pa.large_string())
    pq.write_table(pa.table({"text": texts, "label": ["a", "b"] * (rows // 2)}), path, compression="zstd")
    assert path.stat().st_size < 5000
    return path


def test_small_parquet_file_that_decodes_to_much_is_refused(tmp_path):
    path = make_parquet_bomb(tmp_path / "bomb.parquet")
    before = pa.default_memory_pool().max_memory()
    with pytest.raises(DataError, match=r"unpacks to more than 64 MB, 1,000 times its size\. If you trust it, unpack"):
        Task.load(str(path))
    assert pa.default_memory_pool().max_memory() - before < 200 << 20


def test_corpus_reads_a_parquet_bomb_in_small_steps(tmp_path):
    root, files = find_inputs(str(make_parquet_bomb(tmp_path / "bomb.parquet")))
    rows = open_rows(root, files[0])
    sizes = [(len(table), table.nbytes) for table, _ in rows.read(0, rows.rows)]
    assert sum(number for number, _ in sizes) == 312 and max(size for _, size in sizes) < 64 << 20


def test_parquet_file_that_claims_too_many_rows_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "MAX_ROWS", 1000)
    monkeypatch.setattr(tables, "MAX_RATIO", 1)
    pq.write_table(pa.table({"text": pa.nulls(100_000, pa.string())}), tmp_path / "many.parquet")
    with pytest.raises(DataError, match="claims 100,000 rows"):
        Task.load(str(tmp_path / "many.parquet"))
    root, files = find_inputs(str(tmp_path / "many.parquet"))
    with pytest.raises(UnreadableInputError, match="claims 100,000 rows"):
        open_rows(root, files[0])


def test_gzip_bomb_is_refused_before_it_fills_memory_or_disk(tmp_path, monkeypatch):
    path = tmp_path / "bomb.csv.gz"
    with gzip.open(path, "wb") as file:
        file.write(b"text,label\n")
        for _ in range(100):
            file.write(b"a" * (1 << 20))
    monkeypatch.setattr(tables, "ALWAYS_ALLOWED", 4 << 20)
    monkeypatch.setattr(tables, "MAX_RATIO", 50)
    tracemalloc.start()
    with pytest.raises(DataError, match=r"unpacks to more than \d+ MB, 50 times its size"):
        Task.load(str(path))
    assert tracemalloc.get_traced_memory()[1] < 70 << 20
    tracemalloc.stop()


def test_size_limit_leaves_a_part_of_the_disk_free(tmp_path, monkeypatch):
    monkeypatch.setattr(tables.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 100 << 20}))
    limit = tables.SizeLimit(1 << 30, tmp_path)
    limit.check(79 << 20)
    with pytest.raises(tables.TooLargeError, match=r"more than the free disk allows \(80 MB\)"):
        limit.check(81 << 20)


SURROGATE = '{"text": "half \\ud83d", "label": "a"}'


@pytest.mark.parametrize("array", [False, True])
def test_lone_surrogates_are_reported_with_their_rows(tmp_path, array):
    lines = [json.dumps({"text": f"text {i}", "label": "ab"[i % 2]}) for i in range(20)]
    lines[7] = SURROGATE
    path = tmp_path / ("rows.json" if array else "rows.jsonl")
    path.write_text("[" + ",".join(lines) + "]" if array else "\n".join(lines))
    with pytest.raises(DataError, match=r"1 row with half a character .*\(row 8\)\. Write both halves"):
        Task.load(str(path))
    root, files = find_inputs(str(path))
    if not array:
        ((table, codes),) = open_rows(root, files[0], ["text"]).read(0, 20)
        assert len(table) == 20 and np.flatnonzero(codes).tolist() == [7], "a corpus keeps the other rows"


def test_lone_surrogates_in_lists_are_reported():
    texts = [f"text {i}" for i in range(20)]
    texts[3] = "half \ud83d"
    with pytest.raises(DataError, match=r"half a character \(a lone surrogate\) \(row 4\)"):
        Task.load({"text": texts, "label": ["a", "b"] * 10})
