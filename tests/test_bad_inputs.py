"""Bad inputs: every one is refused with a single message that says what is wrong, where, and what to do."""

import contextlib
import gzip
import json
import random
import re
import warnings
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headhunt.data import Task, load_labelled, load_texts
from headhunt.errors import DataError

GOOD = [
    (f"this is review number {word} of many", "good" if at % 2 else "bad") for at, word in enumerate("abcdefghijkl")
]


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


def twice_named_parquet(folder):
    table = pa.Table.from_arrays([pa.array(["a b"] * 10), pa.array(["c"] * 10)], names=["text", "text"])
    pq.write_table(table, folder / "data.parquet")
    return folder / "data.parquet", {}


def cut_parquet(folder):
    pq.write_table(pa.table({"text": ["a"] * 100, "label": ["b"] * 100}), folder / "whole.parquet")
    return write(folder / "data.parquet", (folder / "whole.parquet").read_bytes()[:-40]), {}


def replace_row(at, row):
    return [*GOOD[: at - 1], row, *GOOD[at:]]


#: name, maker(folder) -> (path, options), fragments the message must have
BAD_INPUTS = [
    ("not found", lambda folder: (folder / "nothing.csv", {}), ["nothing.csv", "no file or folder", "Check the path"]),
    ("empty file", csv_file(""), ["data.csv", "empty"]),
    ("only blank lines", csv_file("\n\n  \n"), ["empty"]),
    ("header only", csv_file("text,label\n"), ["no rows"]),
    (
        "latin-1",
        csv_file(as_csv([*GOOD, ("café très bon", "good")]).encode("latin-1")),
        ["not UTF-8", "byte", "line 14", "iconv"],
    ),
    ("utf-16", csv_file(as_csv().encode("utf-16")), ["UTF-16", "iconv -f utf-16"]),
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
    (
        "no label column",
        csv_file(as_csv([(f"a longer text {at}",) for at in range(12)], "text")),
        ["for the label", "--label"],
    ),
    ("missing labels", csv_file(as_csv(replace_row(5, ("a text", "")))), ["1 row without a label", "row 5"]),
    (
        "all labels missing",
        csv_file(as_csv([(text, "") for text, _ in GOOD])),
        ["for the label", "without any value", "'label'"],
    ),
    ("blank label", csv_file(as_csv(replace_row(5, ("a text", "   ")))), ["1 row without a label", "row 5"]),
    ("empty text", csv_file(as_csv(replace_row(2, ("", "good")))), ["1 row without text in 'text'", "row 2"]),
    ("blank texts", csv_file(as_csv([*GOOD, ("  ", "good"), ("\t", "bad")])), ["2 rows without text", "rows 13, 14"]),
    (
        "row of delimiters",
        csv_file(as_csv([*GOOD, ("", "")])),
        ["2 problems", "without text", "without a label", "row 13"],
    ),
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
        ["no number", "'bad'", "--problem-type single_label_classification"],
    ),
    (
        "numbers with a word among them",
        csv_file(as_csv([*((f"a text {at}", at / 7) for at in range(80)), ("one more", "n/a")])),
        ["holds numbers, but also 'n/a'", "row 81"],
    ),
    (
        "as many classes as rows",
        csv_file(as_csv([(f"a text of some words {at}", f"class-{at}") for at in range(80)])),
        ["80 different values in 80 rows", "--label"],
    ),
    (
        "mixed labels",
        jsonl_file(as_jsonl([*good_objects(), {"text": "x y", "label": 3}])),
        ["mixes", "text (row 1)", "row 13"],
    ),
    ("column named twice", csv_file(as_csv(header="text,text")), ["'text' twice"]),
    ("column named twice in Parquet", twice_named_parquet, ["'text'", "own name"]),
    ("huge cell", csv_file(as_csv([*GOOD, ("word " * 300_000, "good")])), ["more than 1 MB", "row 13"]),
    ("NUL bytes", csv_file(as_csv([*GOOD, ("a\0b", "good")])), ["NUL bytes", "line 14"]),
    (
        "label only in test",
        with_test(as_csv([*GOOD[:4], ("a new one", "neutral")])),
        ["test.csv", "'neutral'", "row 5"],
    ),
    ("test without label column", with_test(as_csv(header="text,stars")), ["test.csv", "no column 'label'", "'stars'"]),
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
    (
        "only empty lists",
        jsonl_file(as_jsonl([{"text": t, "label": []} for t, _ in GOOD])),
        ["no row has a label", "'label'"],
    ),
    (
        "numbers as text",
        csv_file(as_csv([(at, "ab"[at % 2]) for at in range(12)])),
        ["'text'", "only numbers", "--text"],
    ),
    ("number column as text", parquet_file({"text": range(12), "label": ["a", "b"] * 6}), ["int64 values", "--text"]),
    ("too few rows", csv_file(as_csv(GOOD[:4])), ["only 4 rows", "At least 8"]),
    ("invalid JSON", jsonl_file(as_jsonl([*good_objects(), '{"text": "x", "label"'])), ["not valid JSON", "row 13"]),
    (
        "JSON that is no object",
        jsonl_file(as_jsonl([*good_objects(), "[1, 2]", '"text"'])),
        ["not a JSON object", "rows 13, 14"],
    ),
    ("JSON list of no objects", named_file("data.json", "[1, 2, 3]"), ["not a JSON object"]),
    ("broken JSON list", named_file("data.json", '[{"text": "a"}, '), ["not valid JSON"]),
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
    ("named column absent", csv_file(as_csv(), text="txt"), ["no column 'txt'", "Did you mean 'text'", "--text"]),
    ("named label absent", csv_file(as_csv(), label="Lable"), ["no column 'Lable'", "Did you mean 'label'", "--label"]),
    ("two columns absent", csv_file(as_csv(), text="x", label="q"), ["2 problems", "'x'", "'q'"]),
    (
        "text and label the same",
        csv_file(as_csv(), text="text", label="text"),
        ["'text' is named twice", "different columns"],
    ),
    ("limit of zero", csv_file(as_csv(), limit=0), ["limit", "0", "positive"]),
    (
        "limit below the classes",
        csv_file(as_csv([(t, f"c{at % 4}") for at, (t, _) in enumerate(GOOD)]), limit=3),
        ["limit of 3", "4 classes"],
    ),
    ("second text absent", csv_file(as_csv(), text_b="other"), ["no column 'other'", "--text-b"]),
    (
        "second text empty",
        csv_file(as_csv([(t, "", y) for t, y in GOOD], "text,text_b,label"), text_b="text_b"),
        ["'text_b' holds no values"],
    ),
    (
        "pair with a gap",
        csv_file(as_csv([*((t, "b c", y) for t, y in GOOD), ("a", "", "bad")], "text,text_b,label")),
        ["'text_b'", "row 13"],
    ),
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
    (
        "two label columns",
        csv_file(as_csv([(t, y, "ab"[at % 2]) for at, (t, y) in enumerate(GOOD)], "text,topic,sentiment")),
        ["2 columns could hold the label", "topic (such as 'bad')", "sentiment", "--label"],
    ),
    (
        "two text columns",
        csv_file(as_csv([(t, "and " + t, y) for t, y in GOOD], "title,body,label")),
        ["2 columns could hold the text", "body", "title (such as 'this is review", "--text"],
    ),
    ("no header", csv_file(as_csv(GOOD[1:], ",".join(GOOD[0]))), ["first row looks like data", "header"]),
    (
        "nothing to hold out",
        csv_file(as_csv([(f"text {w}", f"c{w}") for w in "abcdefghi"])),
        ["none can be held out", "per class"],
    ),
    (
        "all rows the same",
        csv_file(as_csv([("a text", "ab"[at % 2]) for at in range(20)])),
        ["none can be held out", "numbers are not compared"],
    ),
    ("unknown problem_type", csv_file(as_csv(), problem_type="ranking"), ["'ranking'", "classes, labels, number"]),
    (
        "lists as classes",
        jsonl_file(as_jsonl([{"text": t, "label": [y]} for t, y in GOOD]), problem_type="single_label_classification"),
        ["holds lists", "--problem-type multi_label_classification"],
    ),
    ("wrong delimiter", csv_file(as_csv(mark="|", header="text|label")), ["for the label"]),
    (
        "dates as labels",
        parquet_file({"text": [t for t, _ in GOOD], "label": pa.array([1] * 12, pa.date32())}),
        ["date32"],
    ),
    (
        "many problems",
        csv_file(as_csv([*GOOD, ("a", "b", "c"), ("", "good"), ("a text", "")])),
        ["data.csv has 3 problems", "header has 2 (row 13)", "without text in 'text' (row 14)", "in 'label' (row 15)"],
    ),
]

GOOD_TEXTS = [text for text, _ in GOOD]
GOOD_LABELS = [label for _, label in GOOD]

#: name, source, options, fragments the message must have
BAD_OBJECTS = [
    ("lists of different length", (GOOD_TEXTS, GOOD_LABELS[:-1]), {}, ["different lengths", "text 12", "label 11"]),
    ("empty list", [], {}, ["empty"]),
    ("empty lists", ([], []), {}, ["no rows"]),
    ("empty dict", {}, {}, ["no rows"]),
    ("texts alone", GOOD_TEXTS, {}, ["for the label"]),
    ("numbers among texts", ([*GOOD_TEXTS, 7], [*GOOD_LABELS, "bad"]), {}, ["'text' mixes", "whole numbers (row 13)"]),
    ("None among texts", ([*GOOD_TEXTS, None], [*GOOD_LABELS, "bad"]), {}, ["without text", "row 13"]),
    ("None among labels", ([*GOOD_TEXTS, "a b"], [*GOOD_LABELS, None]), {}, ["without a label", "row 13"]),
    ("mixed labels", (GOOD_TEXTS, [*GOOD_LABELS[:-1], 3]), {}, ["'label' mixes", "whole numbers (row 12)"]),
    ("tuples of different width", [*GOOD, ("a", "b", "c")], {}, ["2", "3", "entries"]),
    ("a number", 7, {}, ["'int'", "Give a path"]),
    ("nothing", None, {}, ["'NoneType'", "Give a path"]),
    ("dict of no lists", {"text": "abc", "label": 1}, {}, ["list"]),
    ("splits without train", {"test": GOOD}, {}, ["no train split"]),
    ("bad split in a dict", {"train": GOOD, "test": [("a b", "new")]}, {}, ["test:", "'new'", "row 1"]),
    ("infinite numbers", (GOOD_TEXTS, [float("inf"), *[at / 7 for at in range(11)]]), {}, ["infinite", "row 1"]),
    ("test share of one", GOOD, {"test_share": 1.0}, ["test share", "between 0 and 1"]),
    ("negative limit", GOOD, {"limit": -5}, ["limit", "-5"]),
]


def refuse(source, fragments, **options):
    with pytest.raises(DataError) as caught:
        Task.load(source, **options)
    message = str(caught.value)
    for fragment in fragments:
        assert fragment in message, message
    assert "Traceback" not in message and "pyarrow." not in message and not re.search(r"<[\w.]+ object|<class", message)
    assert all(len(line) < 600 for line in message.splitlines())


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADHUNT_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize(("name", "make", "fragments"), BAD_INPUTS, ids=[name for name, _, _ in BAD_INPUTS])
def test_a_bad_file_is_refused(name, make, fragments, tmp_path):
    path, options = make(tmp_path)
    refuse(path, fragments, **options)


@pytest.mark.parametrize(("name", "source", "options", "fragments"), BAD_OBJECTS, ids=[row[0] for row in BAD_OBJECTS])
def test_a_bad_object_is_refused(name, source, options, fragments):
    refuse(source, fragments, **options)


def test_the_table_is_long_and_its_names_differ():
    names = [name for name, _, _ in BAD_INPUTS]
    assert len(set(names)) == len(names) >= 45


@pytest.mark.parametrize(
    ("name", "make", "fragments"),
    [
        row
        for row in BAD_INPUTS
        if row[0] in {"short row", "empty text", "mixed labels", "missing labels", "latin-1", "huge cell"}
    ],
)
def test_big_files_are_refused_just_the_same(name, make, fragments, tmp_path, monkeypatch):
    monkeypatch.setattr("headhunt.data.tables.BIG", 1)
    path, options = make(tmp_path)
    refuse(path, fragments, **options)
    refuse(path, fragments, **options)  # nor is a bad file believed the second time


def test_a_quote_left_open_in_a_big_file(tmp_path, monkeypatch):
    monkeypatch.setattr("headhunt.data.readers.BLOCK", 1 << 12)
    rows = [*GOOD, ('"an open one', "good"), *GOOD * 100]
    refuse(write(tmp_path / "data.csv", as_csv(rows)), ["row after row 12", "runs on", "quote"])


def test_a_data_frame_with_two_columns_of_one_name():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame([[text, label, text] for text, label in GOOD], columns=["text", "label", "text"])
    refuse(frame, ["'text'", "two columns"])


def test_random_bytes_raise_nothing_else(tmp_path):
    chance = random.Random(0)
    alphabets = [bytes(range(256)), b'text,label\n",;\t ab', b'{"text": "a", "label": [1]}\n\xc3']
    for at in range(300):
        letters = alphabets[at % 3]
        content = bytes(chance.choice(letters) for _ in range(chance.randrange(1, 400)))
        path = write(
            tmp_path / f"{at}{chance.choice(['.csv', '.tsv', '.jsonl', '.json', '.parquet', '.arrow', '.csv.gz'])}",
            content,
        )
        for text in (None, "text"):
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("error")
                    Task.load(path, text=text)
            except DataError:
                pass


def test_damaged_rows_raise_nothing_else(tmp_path):
    chance = random.Random(1)
    good = as_csv([(text + ' with "some" quotes', label) for text, label in GOOD]).encode()
    for at in range(200):
        content = bytearray(good)
        for _ in range(chance.randrange(1, 4)):
            content[chance.randrange(len(content))] = chance.choice(b'",\n\r;\0\xff a')
        with contextlib.suppress(DataError):
            Task.load(write(tmp_path / f"{at}.csv", bytes(content)))


def test_labels_a_model_does_not_know_are_listed_with_their_rows(tmp_path):
    path = write(tmp_path / "new.csv", as_csv([*GOOD, ("a text", "awful"), ("another", "fine")]))
    with pytest.raises(DataError, match=r"'awful', 'fine'.*label of the model.*rows 13, 14"):
        load_labelled(path, problem_type="single_label_classification", labels=("bad", "good"), pair=False)


def test_a_pair_is_needed(tmp_path):
    path = write(tmp_path / "new.csv", as_csv())
    with pytest.raises(DataError, match=r"two texts per row are needed.*--text-b"):
        load_labelled(path, problem_type="single_label_classification", labels=("bad", "good"), pair=True)
    with pytest.raises(DataError, match=r"second text per row is needed.*--text-b"):
        load_texts(path, pair=True, text="text")
    with pytest.raises(DataError, match=r"2 rows without exactly one tab \(rows 1, 3\)"):
        load_texts(write(tmp_path / "pairs.txt", "one text\na\tb\nc\td\te\n"), pair=True)


def test_texts_to_predict_are_checked_too(tmp_path):
    with pytest.raises(DataError, match=r"1 row without text in 'text' \(row 2\)"):
        load_texts(write(tmp_path / "a.txt", "one\n\nthree\n"), pair=False)
    with pytest.raises(DataError, match=r"not UTF-8.*iconv"):
        load_texts(write(tmp_path / "b.txt", b"caf\xe9\n"), pair=False)
    with pytest.raises(DataError, match="Check the path"):
        load_texts(tmp_path / "c.txt", pair=False)
    with pytest.raises(DataError, match=r"b\.txt|empty|no rows"):
        load_texts(write(tmp_path / "d.txt", ""), pair=False)
