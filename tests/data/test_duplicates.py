"""Tests of grouping texts that are the same or nearly the same."""

import random

import numpy as np
import pyarrow as pa
import pytest
from labelled_rows import ADJECTIVES, NOUNS, ROWS, repeat_some

from headhunt.data import Task
from headhunt.data.diagnostics import count_leaks
from headhunt.data.duplicates import compute_sketches, group_duplicates
from headhunt.data.sources import Rows


def long_text(at):
    rng = random.Random(at)
    return " ".join(["warm", *(rng.choice(ADJECTIVES) + rng.choice(NOUNS) for _ in range(24))])


def group_of(*texts):
    rows = Rows("test", pa.table({"text": list(texts)}))
    return group_duplicates([compute_sketches(rows, ["text"])])[0].tolist()


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("The cat sat.", "the CAT -- sat!"),
        ("Order 123 arrived", "order 7 arrived"),
        ("Él comió MUCHO", "él comió mucho"),
        ("it’s “fine”", "it's 'fine'"),
        (
            " ".join(f"word{chr(97 + at)}" for at in range(26)),
            " ".join(f"word{chr(97 + at)}" for at in range(26)) + " more",
        ),
        (
            "这家酒店的房间很干净服务也很好下次还会再来住的推荐给大家",
            "这家酒店的房间很干净服务也很好下次还会再来住的推荐给大家了",
        ),
    ],
)
def test_group_duplicates_joins_equivalent_texts(first, second):
    groups = group_of(first, "something else entirely", second)
    assert groups[0] == groups[2] != groups[1]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("the cat sat", "the dog sat"),
        ("12", "13"),
        ("?!", "..."),
        ("a b c", "c b a"),
        ("很好", "不好"),
        ("ab c", "a bc"),
        ("one two three four five six", "one two three seven eight nine"),
    ],
)
def test_group_duplicates_separates_different_texts(first, second):
    assert len(set(group_of(first, second))) == 2


def test_group_duplicates_finds_near_duplicates_without_false_ones():
    texts = [long_text(at) for at in range(300)]
    near = [text.replace("warm", "hot", 1) + " indeed" for text in texts[:100]]
    groups = np.array(group_of(*texts, *near))
    assert len(set(groups[:300])) == 300
    assert (groups[300:] == groups[:100]).mean() > 0.8


def test_splits_keep_near_duplicates_together():
    task = Task.load(repeat_some(ROWS))
    groups = [set(split.groups) for split in task.splits.values()]
    assert not groups[0] & groups[1]
    normal = [
        {text.lower().replace(" --", "").replace(",", "") for text in split.texts()} for split in task.splits.values()
    ]
    assert not normal[0] & normal[1]
    train = task.splits["train"]
    for kept, held_out in task.folds(4):
        assert not set(train.groups[kept]) & set(train.groups[held_out])
    assert any("16 repeat another" in warning for warning in task.warnings)
    assert count_leaks(task.splits)["test"] == {"same": 0, "near": 0}


def test_group_duplicates_compares_both_texts_of_pairs():
    rows = [(ADJECTIVES[at % 10] + " thing", NOUNS[at // 10] + " again", "ab"[at % 2]) for at in range(80)]
    task = Task.load(rows)
    assert task.pair and task.columns.text_b == "text_b"
    assert len(set(task.splits["train"].groups)) == len(task.splits["train"])
    assert not any("repeat" in warning for warning in task.warnings)
    twice = Task.load([*rows, ("WARM thing", "Kettle again", "a")])
    assert any("1 repeats another" in warning for warning in twice.warnings)
    at = task.splits["train"].texts().index("loud thing")
    assert task.splits["train"].texts_b()[at].endswith("again") and task.splits["train"].texts_b(at, at + 1)
