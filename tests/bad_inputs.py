"""Bad inputs: functions that make them, and a check of the error message of `Task.load`."""

import json
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headhunt.data import Task
from headhunt.errors import DataError

GOOD = [
    (f"this is review number {word} of many", "good" if at % 2 else "bad") for at, word in enumerate("abcdefghijkl")
]
GOOD_TEXTS = [text for text, _ in GOOD]
GOOD_LABELS = [label for _, label in GOOD]


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def as_csv(rows=GOOD, header="text,label", end="\n", mark=","):
    return header + end + end.join(mark.join(map(str, row)) for row in rows) + end


def as_jsonl(rows):
    return "\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows) + "\n"


def good_objects(count=12):
    return [{"text": text, "label": label} for text, label in GOOD[:count]]


def csv_file(content, **options):
    return lambda folder: (write(folder / "data.csv", content), options)


def jsonl_file(content, **options):
    return lambda folder: (write(folder / "data.jsonl", content), options)


def named_file(name, content, **options):
    return lambda folder: (write(folder / name, content), options)


def folder_of(**files):
    def make(folder):
        inside = folder / "splits"
        inside.mkdir()
        for name, content in files.items():
            write(inside / name.replace("__", "."), content)
        return inside, {}

    return make


def with_test(test, train=None, name="test.csv", **options):
    def make(folder):
        return write(folder / "data.csv", train or as_csv()), {"test": write(folder / name, test), **options}

    return make


def parquet_file(columns, **options):
    def make(folder):
        pq.write_table(pa.table(columns), folder / "data.parquet")
        return folder / "data.parquet", options

    return make


def replace_row(at, row):
    return [*GOOD[: at - 1], row, *GOOD[at:]]


def cases(*table):
    """Parametrize a test with rows of a name, a function or an object that makes the input, and message fragments."""
    names = [row[0] for row in table]
    assert names and len(set(names)) == len(names), "names must differ"
    return pytest.mark.parametrize(("source", "options", "fragments"), [_complete(row) for row in table], ids=names)


def _complete(row):
    return (row[1], {}, row[2]) if len(row) == 3 else row[1:]


def check_refused(source, fragments, **options):
    """Check that `Task.load` refuses a source with one readable message that has all fragments."""
    with pytest.raises(DataError) as caught:
        Task.load(source, **options)
    message = str(caught.value)
    for fragment in fragments:
        assert fragment in message, message
    assert "Traceback" not in message and "pyarrow." not in message and not re.search(r"<[\w.]+ object|<class", message)
    assert not re.search(r"(^|\s)--\w", message), "a library error must not name CLI flags"
    assert all(len(line) < 600 for line in message.splitlines())
