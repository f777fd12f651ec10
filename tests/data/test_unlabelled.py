"""Unlabelled texts: training rows and a file, without test rows."""

from __future__ import annotations

import pandas
import pytest
from conftest import sentences

from headhunt.data import Task, load_unlabelled
from headhunt.errors import DataError
from headhunt.run.task import open_unlabelled, save_unlabelled

TRAIN = {"review": [f"text number {i} of all" for i in range(16)], "label": ["a", "b"] * 8}
TEST = {"review": ["Held out one", "text  NUMBER 3 of all"], "label": ["a", "b"]}


@pytest.fixture
def task() -> Task:
    return Task.load(TRAIN, test=TEST)


def test_texts_of_test_rows_are_left_out(task):
    found = load_unlabelled(task, ["held  OUT one", "new text here", "new Text here", "text number 1 of all"])
    assert found.own == 15 and "text number 3 of all" not in found.texts  # given as a test row, too
    assert found.texts[15:] == ["new text here"] or found.texts[15:] == ["new Text here"]
    assert found.notes == ("2 unlabelled texts left out: equal to a test row",)


def test_test_rows_of_a_split_are_left_out():
    texts, labels = sentences(40)
    task = Task.load((texts, labels))
    tested = set(task.splits["test"].texts())
    found = load_unlabelled(task, texts)
    assert tested and tested.isdisjoint(found.texts) and set(found.texts) == set(texts) - tested


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet", "txt"])
def test_files_are_read(tmp_path, task, suffix):
    frame = pandas.DataFrame({"id": range(4), "review": [f"a new text {i}" for i in range(4)]})
    path = tmp_path / f"more.{suffix}"
    if suffix == "csv":
        frame.to_csv(path, index=False)
    elif suffix == "jsonl":
        frame.to_json(path, orient="records", lines=True)
    elif suffix == "parquet":
        frame.to_parquet(path)
    else:
        path.write_text("\n".join(frame.review) + "\n")
    found = load_unlabelled(task, str(path))
    assert sorted(found.texts[found.own :]) == frame.review.tolist()


def test_pairs_without_test_rows():
    pairs = {"text": [f"first {i} text" for i in range(16)], "text_b": [f"second {i} text" for i in range(16)]}
    test = {"text": ["other here"], "text_b": ["second 2 text"], "label": ["a"]}
    task = Task.load({**pairs, "label": ["a", "b"] * 8}, test=test)
    found = load_unlabelled(task, [("new one", "new two"), ("new one", "Other  here")])
    assert found.own == 15 and found.texts[-1] == "new one" and found.texts_b[-1] == "new two"
    assert len(found) == 16


def test_sample_is_limited(task):
    many = [f"yet another text {i}" for i in range(500)]
    found = [load_unlabelled(task, many, limit=50, seed=seed) for seed in (0, 0, 1)]
    assert len(found[0]) - found[0].own == 50 and found[0].texts == found[1].texts != found[2].texts


def test_folder_is_refused(tmp_path, task):
    with pytest.raises(DataError, match="must be a file of texts"):
        load_unlabelled(task, str(tmp_path))


def test_saved_texts_are_read_back(tmp_path, task):
    found = load_unlabelled(task, ["new text here"])
    save_unlabelled(found, tmp_path)
    again = open_unlabelled(tmp_path)
    assert (again.texts, again.texts_b, again.own) == (found.texts, None, found.own)
    (tmp_path / "unlabelled.arrow").write_bytes(b"ARROW1 and no more")
    with pytest.raises(DataError, match="unlabelled texts of a run"):
        open_unlabelled(tmp_path)
