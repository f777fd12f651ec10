"""Bad inputs: functions that make them, and a check of the error message of `Task.load`."""

import gzip
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


def cut_parquet(folder):
    pq.write_table(pa.table({"text": ["a"] * 100, "label": ["b"] * 100}), folder / "complete.parquet")
    return write(folder / "data.parquet", (folder / "complete.parquet").read_bytes()[:-40]), {}


def twice_named_parquet(folder):
    table = pa.Table.from_arrays([pa.array(["a b"] * 10), pa.array(["c"] * 10)], names=["text", "text"])
    pq.write_table(table, folder / "data.parquet")
    return folder / "data.parquet", {}


BAD_FILES = {
    "sources": [
        (
            "not found",
            lambda folder: (folder / "nothing.csv", {}),
            ["nothing.csv", "does not exist", "Check the path"],
        ),
        ("column named twice in Parquet", twice_named_parquet, ["'text'", "own name"]),
        ("empty folder", folder_of(), ["splits", "named after a split", "train.csv"]),
        ("folder without train", folder_of(test__csv=as_csv(), notes__txt="x"), ["no train split", "'test'"]),
        (
            "two files for a split",
            folder_of(train__csv=as_csv(), dev__csv=as_csv(), val__csv=as_csv()),
            ["dev.csv, val.csv", "Keep one"],
        ),
        (
            "splits of different columns",
            folder_of(train__csv=as_csv(), test__csv=as_csv(header="body,label")),
            ["no column 'text'"],
        ),
    ],
    "readers": [
        ("empty file", csv_file(""), ["data.csv", "empty"]),
        (
            "latin-1",
            csv_file(as_csv([*GOOD, ("café très bon", "good")]).encode("latin-1")),
            ["not UTF-8", "byte", "line 14", "iconv"],
        ),
        ("utf-16", csv_file(as_csv().encode("utf-16")), ["UTF-16", "iconv -f utf-16"]),
        ("NUL bytes", csv_file(as_csv([*GOOD, ("a\0b", "good")])), ["NUL bytes", "line 14"]),
        (
            "invalid JSON",
            jsonl_file(as_jsonl([*good_objects(), '{"text": "x", "label"'])),
            ["not valid JSON", "row 13"],
        ),
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
        ("unknown extension", named_file("data.docx", "text"), ["'.docx'", ".csv", ".parquet"]),
        ("no extension", named_file("data", "text"), ["'data'", ".csv"]),
        ("Parquet named CSV", named_file("data.csv", b"PAR1" + bytes(100)), ["Parquet", "not text"]),
        ("picture named CSV", named_file("data.csv", b"\x89PNG\r\n" + bytes(range(256)) * 20), ["PNG", "not text"]),
        ("binary named JSONL", named_file("data.jsonl", bytes(range(256)) * 40 + bytes(200)), ["binary", "not text"]),
    ],
    "delimited": [
        ("only blank lines", csv_file("\n\n  \n"), ["empty"]),
        (
            "short row",
            csv_file(as_csv(replace_row(3, ("no label here",)))),
            ["1 row with 1 cell where", "header has 2", "row 3"],
        ),
        (
            "long rows",
            csv_file(as_csv([*GOOD, ("a", "b", "c"), ("d", "e", "f", "g")])),
            ["2 rows", "3, 4 cells", "rows 13, 14"],
        ),
        ("column named twice", csv_file(as_csv(header="text,text")), ["'text' twice"]),
        (
            "quote never closed",
            csv_file(as_csv([*GOOD[:6], ('"an open one', "good"), *GOOD[6:]])),
            ["quote opened in row 7", "never closed"],
        ),
        (
            "quote never closed in a label",
            csv_file(as_csv([*GOOD[:6], ("an open one", '"good'), *GOOD[6:]])),
            ["row 7", "never closed"],
        ),
        ("wrong delimiter", csv_file(as_csv(mark="|", header="text|label")), ["as the label"]),
    ],
    "columns": [
        (
            "no label column",
            csv_file(as_csv([(f"a longer text {at}",) for at in range(12)], "text")),
            ["as the label", "Set label to"],
        ),
        (
            "all labels missing",
            csv_file(as_csv([(text, "") for text, _ in GOOD])),
            ["as the label", "without any value", "'label'"],
        ),
        (
            "named column absent",
            csv_file(as_csv(), text="txt"),
            ["no column 'txt'", "Did you mean 'text'", "Set text to"],
        ),
        (
            "named label absent",
            csv_file(as_csv(), label="Lable"),
            ["no column 'Lable'", "Did you mean 'label'", "Set label to"],
        ),
        ("two columns absent", csv_file(as_csv(), text="x", label="q"), ["2 problems", "'x'", "'q'"]),
        (
            "text and label the same",
            csv_file(as_csv(), text="text", label="text"),
            ["'text' is given twice", "different columns"],
        ),
        ("second text absent", csv_file(as_csv(), text_b="other"), ["no column 'other'", "Set text_b to"]),
        (
            "second text empty",
            csv_file(as_csv([(t, "", y) for t, y in GOOD], "text,text_b,label"), text_b="text_b"),
            ["'text_b' holds no values"],
        ),
        (
            "two label columns",
            csv_file(as_csv([(t, y, "ab"[at % 2]) for at, (t, y) in enumerate(GOOD)], "text,topic,sentiment")),
            ["2 columns could hold the label", "topic (such as 'bad')", "sentiment", "Set label to"],
        ),
        (
            "two text columns",
            csv_file(as_csv([(t, "and " + t, y) for t, y in GOOD], "title,body,label")),
            [
                "2 columns could hold the text",
                "body",
                "title (such as 'this is review",
                "Set text to 'title' or 'body'",
            ],
        ),
        ("no header", csv_file(as_csv(GOOD[1:], ",".join(GOOD[0]))), ["first row contains data", "header"]),
    ],
    "texts": [
        ("empty text", csv_file(as_csv(replace_row(2, ("", "good")))), ["1 row without text in 'text'", "row 2"]),
        (
            "blank texts",
            csv_file(as_csv([*GOOD, ("  ", "good"), ("\t", "bad")])),
            ["2 rows without text", "rows 13, 14"],
        ),
        ("huge cell", csv_file(as_csv([*GOOD, ("word " * 300_000, "good")])), ["more than 1 MB", "row 13"]),
        (
            "numbers as text",
            csv_file(as_csv([(at, "ab"[at % 2]) for at in range(12)])),
            ["'text'", "only numbers", "Set text to"],
        ),
        (
            "number column as text",
            parquet_file({"text": range(12), "label": ["a", "b"] * 6}),
            ["int64 values", "Set text to"],
        ),
        (
            "nested objects as text",
            jsonl_file(as_jsonl([{"text": {"en": t}, "label": label} for t, label in GOOD]), text="text"),
            ["'text'", "nested objects"],
        ),
        (
            "objects and text as text",
            jsonl_file(as_jsonl([*good_objects(), {"text": {"en": "x"}, "label": "good"}])),
            ["'text' mixes", "objects (row 13)"],
        ),
        (
            "pair with a gap",
            csv_file(as_csv([*((t, "b c", y) for t, y in GOOD), ("a", "", "bad")], "text,text_b,label")),
            ["'text_b'", "row 13"],
        ),
    ],
    "labels": [
        ("missing labels", csv_file(as_csv(replace_row(5, ("a text", "")))), ["1 row without a label", "row 5"]),
        ("blank label", csv_file(as_csv(replace_row(5, ("a text", "   ")))), ["1 row without a label", "row 5"]),
        ("one class", csv_file(as_csv([(text, "good") for text, _ in GOOD])), ["every label", "'good'", "two classes"]),
        (
            "NaN number",
            csv_file(as_csv([*((f"a text {at}", at / 7) for at in range(30)), ("one more", "nan")])),
            ["NaN", "row 31"],
        ),
        (
            "infinite number",
            csv_file(as_csv([*((f"a text {at}", at / 7) for at in range(30)), ("more", "inf")])),
            ["infinite", "row 31"],
        ),
        (
            "not numbers",
            csv_file(as_csv(), problem_type="regression"),
            ["not a number", "'bad'", "problem_type to single_label_classification"],
        ),
        (
            "numbers with a word among them",
            csv_file(as_csv([*((f"a text {at}", at / 7) for at in range(80)), ("one more", "n/a")])),
            ["holds numbers, but also 'n/a'", "row 81"],
        ),
        (
            "as many classes as rows",
            csv_file(as_csv([(f"a text of some words {at}", f"class-{at}") for at in range(80)])),
            ["80 distinct values in 80 rows", "Set label to"],
        ),
        (
            "mixed labels",
            jsonl_file(as_jsonl([*good_objects(), {"text": "x y", "label": 3}])),
            ["mixes", "text (row 1)", "row 13"],
        ),
        (
            "only empty lists",
            jsonl_file(as_jsonl([{"text": t, "label": []} for t, _ in GOOD])),
            ["no row has a label", "'label'"],
        ),
        (
            "lists as classes",
            jsonl_file(
                as_jsonl([{"text": t, "label": [y]} for t, y in GOOD]), problem_type="single_label_classification"
            ),
            ["holds lists", "problem_type to multi_label_classification"],
        ),
        (
            "dates as labels",
            parquet_file({"text": [t for t, _ in GOOD], "label": pa.array([1] * 12, pa.date32())}),
            ["date32"],
        ),
    ],
    "splitting": [
        (
            "nothing to hold out",
            csv_file(as_csv([(f"text {w}", f"c{w}") for w in "abcdefghi"])),
            ["No row of", "can be held out", "per class"],
        ),
        (
            "all rows the same",
            csv_file(as_csv([("a text", "ab"[at % 2]) for at in range(20)])),
            ["No row of", "can be held out", "numbers are not compared"],
        ),
    ],
    "loading": [
        ("header only", csv_file("text,label\n"), ["no rows"]),
        (
            "row of delimiters",
            csv_file(as_csv([*GOOD, ("", "")])),
            ["2 problems", "without text", "without a label", "row 13"],
        ),
        (
            "label only in test",
            with_test(as_csv([*GOOD[:4], ("a new one", "neutral")])),
            ["test.csv", "'neutral'", "row 5"],
        ),
        (
            "test without label column",
            with_test(as_csv(header="text,stars")),
            ["test.csv", "no column 'label'", "'stars'"],
        ),
        (
            "test not found",
            lambda folder: (write(folder / "a.csv", as_csv()), {"test": folder / "b.csv"}),
            ["b.csv", "Check the path"],
        ),
        (
            "test with missing labels",
            with_test(as_csv(replace_row(2, ("a text", "")))),
            ["test.csv", "without a label", "row 2"],
        ),
        ("too few rows", csv_file(as_csv(GOOD[:4])), ["only 4 rows", "At least 8"]),
        ("limit of zero", csv_file(as_csv(), limit=0), ["limit 0", "positive"]),
        (
            "limit below the classes",
            csv_file(as_csv([(t, f"c{at % 4}") for at, (t, _) in enumerate(GOOD)]), limit=3),
            ["limit 3", "4 classes"],
        ),
        (
            "unknown problem_type",
            csv_file(as_csv(), problem_type="ranking"),
            ["problem_type 'ranking'", "single_label_classification, multi_label_classification, regression"],
        ),
        (
            "many problems",
            csv_file(as_csv([*GOOD, ("a", "b", "c"), ("", "good"), ("a text", "")])),
            [
                "data.csv has 3 problems",
                "header has 2 (row 13)",
                "without text in 'text' (row 14)",
                "in 'label' (row 15)",
            ],
        ),
    ],
}
"""By the part of `headhunt.data` that reports them: name, function(folder) -> (path, options), message fragments."""
BAD_INPUTS = [row for rows in BAD_FILES.values() for row in rows]


def bad_files(part):
    """Parametrize a test with the bad files that one part of `headhunt.data` reports."""
    rows = BAD_FILES[part]
    return pytest.mark.parametrize(("make", "fragments"), [row[1:] for row in rows], ids=[row[0] for row in rows])


def bad_objects(*table):
    """Parametrize a test with rows of a name, an object, options and message fragments."""
    return pytest.mark.parametrize(
        ("source", "options", "fragments"), [row[1:] for row in table], ids=[row[0] for row in table]
    )


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
