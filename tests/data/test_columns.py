"""Tests of finding columns and checking texts."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bad_inputs import GOOD_LABELS, GOOD_TEXTS, as_csv, bad_files, bad_objects, check_refused, write
from labelled_rows import LABELS, ROWS, TEXTS, write_csv

from headhunt.data import Columns, Task, load_labelled, load_texts
from headhunt.errors import DataError


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("id,text,label", ("text", None, "label")),
        ("Review,Sentiment", ("Review", None, "Sentiment")),
        ("label_fine,label,text,title", ("text", None, "label")),
        ("premise,hypothesis,label", ("premise", "hypothesis", "label")),
        ("idx,question1,question2,is_duplicate", ("question1", "question2", "is_duplicate")),
        ("sentence1,sentence2,score", ("sentence1", "sentence2", "score")),
        ("text,text_b,label,lang", ("text", "text_b", "label")),
        ("what they wrote,verdict of us", ("what they wrote", None, "verdict of us")),
        ("uid,prose,mood", ("prose", None, "mood")),
        ("label,question,sentence", ("question", "sentence", "label")),
    ],
)
def test_find_columns_detects_columns(header, expected):
    names = header.split(",")
    values = {}
    for name in names:
        if name == expected[2]:
            values[name] = LABELS
        elif name in expected[:2]:
            values[name] = [f"{name} {text}" for text in TEXTS]
        elif name in ("title", "label_fine", "lang"):
            values[name] = ["x", "y"] * 40
        else:
            values[name] = [f"{name}-{at}" for at in range(80)]
    task = Task.load(values)
    assert task.columns == Columns(*expected) and task.pair == (expected[1] is not None)
    assert task.notes[0] == f"text column: {expected[0]}"


def test_find_columns_ignores_columns_without_values(tmp_path):
    table = pa.table({"text": TEXTS, "text_b": pa.nulls(80), "label": LABELS, "class": pa.nulls(80, pa.string())})
    pq.write_table(table, tmp_path / "a.parquet")
    assert Task.load(tmp_path / "a.parquet").columns == Columns("text", None, "label")
    path = write_csv(tmp_path / "a.csv", [(t, "", y) for t, y in ROWS], ("text", "text_b", "label"))
    assert Task.load(path).columns == Columns("text", None, "label")


def test_find_columns_prefers_given_columns():
    columns = {"text": TEXTS, "body": TEXTS[::-1], "label": LABELS, "other": ["x", "y"] * 40}
    task = Task.load(columns, text="body", label="other")
    assert task.columns == Columns("body", None, "other") and task.labels == ("x", "y")
    assert Task.load(columns, text="body", text_b="text").columns == Columns("body", "text", "label")


@bad_files("columns")
def test_find_columns_refuses_missing_or_ambiguous_columns(make, fragments, tmp_path):
    path, options = make(tmp_path)
    check_refused(path, fragments, **options)


@bad_files("texts")
def test_check_texts_refuses_unusable_texts(make, fragments, tmp_path):
    path, options = make(tmp_path)
    check_refused(path, fragments, **options)


@bad_objects(
    ("numbers among texts", ([*GOOD_TEXTS, 7], [*GOOD_LABELS, "bad"]), {}, ["'text' mixes", "integers (row 13)"]),
    ("None among texts", ([*GOOD_TEXTS, None], [*GOOD_LABELS, "bad"]), {}, ["without text", "row 13"]),
)
def test_check_texts_refuses_objects_among_texts(source, options, fragments):
    check_refused(source, fragments, **options)


@pytest.mark.parametrize("score", ["score", "amount"])
def test_find_columns_offers_both_text_columns_as_pair(score):
    columns = {score: [at / 7 for at in range(80)], "a": TEXTS, "b": [f"{text}, or not" for text in TEXTS]}
    offers = [
        "2 columns could hold the text: a (such as",
        "Set text to 'a' or 'b', or text to 'a' and text_b to 'b' for pairs",
    ]
    check_refused(columns, offers)
    task = Task.load(columns, text="a", text_b="b", label=score)
    assert task.columns == Columns("a", "b", score) and task.problem_type == "regression"


def test_find_columns_offers_only_number_column_as_label():
    columns = {"text": TEXTS, "id": list(range(80)), "amount": [at / 7 for at in range(80)]}
    check_refused(columns, ["Set label to 'amount'"])


def test_find_columns_refuses_missing_second_text(tmp_path):
    path = write(tmp_path / "new.csv", as_csv())
    with pytest.raises(DataError, match=r"two texts per row are needed.*text_b"):
        load_labelled(path, problem_type="single_label_classification", labels=("bad", "good"), pair=True)
    with pytest.raises(DataError, match=r"second text per row is needed.*Set text_b"):
        load_texts(path, pair=True, text="text")
    with pytest.raises(DataError, match=r"2 rows without exactly one tab \(rows 1, 3\)"):
        load_texts(write(tmp_path / "pairs.txt", "one text\na\tb\nc\td\te\n"), pair=True)


def test_test_rows_must_have_the_columns_of_the_training_rows():
    """Issue: the advice was to set text=, which is the name in both files."""
    rows = {"text": [f"text number {i}" for i in range(20)], "label": ["a", "b"] * 10}
    with pytest.raises(DataError, match="Name its columns as those of the training rows; found 'body', 'label'"):
        Task.load(rows, test={"body": ["some text", "another"], "label": ["a", "b"]})
