"""Tests of loading checked splits."""

import numpy as np
import pytest
from bad_inputs import BAD_INPUTS, GOOD, bad_files, bad_objects, check_refused, write
from labelled_rows import ROWS, TEXTS, write_csv

from headhunt.data import load_labelled, load_texts
from headhunt.errors import DataError


@bad_files("loading")
def test_load_splits_refuses_bad_files(make, fragments, tmp_path):
    path, options = make(tmp_path)
    check_refused(path, fragments, **options)


@bad_objects(
    ("test share of one", GOOD, {"test_share": 1.0}, ["test_share 1.0", "between 0 and 1"]),
    ("negative limit", GOOD, {"limit": -5}, ["limit -5", "positive"]),
)
def test_load_splits_refuses_bad_options(source, options, fragments):
    check_refused(source, fragments, **options)


def test_load_labelled_picks_split_and_uses_model_labels(tmp_path):
    path = write_csv(tmp_path / "new.csv", ROWS[:5])
    split = load_labelled(
        path, problem_type="single_label_classification", labels=("good", "fine", "bad", "unseen"), pair=False
    )
    assert split.texts() == TEXTS[:5] and split.targets.tolist() == [2, 1, 0, 2, 1]
    folder = tmp_path / "set"
    folder.mkdir()
    write_csv(folder / "train.csv", ROWS[:30])
    write_csv(folder / "dev.csv", ROWS[30:40])
    assert (
        len(
            load_labelled(
                folder, problem_type="single_label_classification", labels=("bad", "fine", "good"), pair=False
            )
        )
        == 10
    )
    write_csv(folder / "test.csv", ROWS[40:47])
    assert (
        len(
            load_labelled(
                folder, problem_type="single_label_classification", labels=("bad", "fine", "good"), pair=False
            )
        )
        == 7
    )
    numbers = load_labelled((TEXTS[:3], [1, 2, 3]), problem_type="regression", labels=(), pair=False)
    assert numbers.targets.tolist() == [1.0, 2.0, 3.0] and numbers.targets.dtype == np.float32
    several = load_labelled(
        (TEXTS[:2], [["a"], []]), problem_type="multi_label_classification", labels=("b", "a"), pair=False
    )
    assert several.targets.tolist() == [[0, 1], [0, 0]]


def test_load_texts_reads_lines_lists_and_tables(tmp_path):
    (tmp_path / "a.txt").write_text("one text\nanother text\n")
    (tmp_path / "b.txt").write_text("one\ttwo\nthree\tfour\n")
    assert load_texts(tmp_path / "a.txt", pair=False).texts() == ["one text", "another text"]
    pairs = load_texts(tmp_path / "b.txt", pair=True)
    assert pairs.texts() == ["one", "three"] and pairs.texts_b() == ["two", "four"] and len(pairs.targets) == 0
    assert load_texts(["a", "b"], pair=False).texts() == ["a", "b"]
    assert load_texts([("a", "b")], pair=True).texts_b() == ["b"]
    assert load_texts(write_csv(tmp_path / "c.csv", ROWS[:1]), pair=False).texts() == TEXTS[:1]
    assert load_texts({"premise": ["a"], "hypothesis": ["b"]}, pair=True).texts_b() == ["b"]
    assert load_texts({"a": ["x y"], "b": ["z"]}, pair=False, text="b").texts() == ["z"]


def test_load_texts_refuses_unusable_texts(tmp_path):
    with pytest.raises(DataError, match=r"1 row without text in 'text' \(row 2\)"):
        load_texts(write(tmp_path / "a.txt", "one\n\nthree\n"), pair=False)
    with pytest.raises(DataError, match=r"not UTF-8.*iconv"):
        load_texts(write(tmp_path / "b.txt", b"caf\xe9\n"), pair=False)
    with pytest.raises(DataError, match="Check the path"):
        load_texts(tmp_path / "c.txt", pair=False)
    with pytest.raises(DataError, match=r"b\.txt|empty|no rows"):
        load_texts(write(tmp_path / "d.txt", ""), pair=False)


def test_bad_inputs_have_distinct_names():
    names = [name for name, _, _ in BAD_INPUTS]
    assert len(set(names)) == len(names) >= 45
