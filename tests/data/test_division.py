"""Tests of dividing rows by groups and in the order of time."""

import numpy as np
import pytest
from labelled_rows import LABELS, ROWS, TEXTS, write_csv

from headhunt.data import Columns, Task
from headhunt.engine.folds import make_folds
from headhunt.errors import DataError
from headhunt.run.task import TaskInfo, open_task, save_task

USERS = [f"user {at * 7 % 80 // 8}" for at in range(80)]  # ten users of eight rows with different labels
DAYS = [f"2024-{1 + at // 28:02d}-{1 + at % 28:02d}" for at in range(80)]
MIXED = np.random.default_rng(0).permutation(80)  # rows in a random order of time


def users_of(split):
    return set(split.rows.column("user").to_pylist())


def shuffled(**columns):
    values = {"text": TEXTS, "label": LABELS, "day": DAYS, **columns}
    return {name: [column[at] for at in MIXED] for name, column in values.items()}


def days_of(split):
    return split.rows.column("day").to_pylist()


@pytest.mark.parametrize("seed", range(5))
def test_group_stays_in_one_split_and_one_fold(seed):
    task = Task.load({"text": TEXTS, "label": LABELS, "user": USERS}, group="user", seed=seed)
    train, test = task.splits["train"], task.splits["test"]
    assert not users_of(train) & users_of(test) and len(test) == 16
    assert len(np.unique(test.column_groups)) == 2, "intervals draw groups"
    assert test.take(test.groups == test.groups[0]).column_groups is None, "one group has no spread"
    assert task.columns == Columns("text", None, "label", "user") and "group column: user (10 groups)" in task.notes
    users = np.array(train.rows.column("user").to_pylist())
    folds = task.folds(4, seed)
    assert np.array_equal(np.sort(np.concatenate([held_out for _, held_out in folds])), np.arange(len(train)))
    for kept, held_out in [*folds, task.first_fold(4, seed)]:
        assert not set(users[kept]) & set(users[held_out]) and len(held_out) == 16
        assert np.bincount(train.targets[kept], minlength=3).min() > 5, "every fold has rows of every class"


def test_group_and_near_duplicates_stay_together():
    copies = [(TEXTS[0].upper(), LABELS[0]), (TEXTS[79].upper(), LABELS[79])]
    rows = [*ROWS, *copies]
    users = [f"user {at}" for at in range(80)] + ["user 30", "user 40"]
    for seed in range(5):
        columns = {"text": [text for text, _ in rows], "label": [label for _, label in rows], "user": users}
        task = Task.load(columns, group="user", seed=seed)
        for text, user in ((TEXTS[0], "user 30"), (TEXTS[79], "user 40")):
            split = next(split for split in task.splits.values() if text in split.texts())
            assert user in users_of(split) and text.upper() in split.texts()
            groups = split.groups[[split.texts().index(text), split.texts().index(text.upper())]]
            assert groups[0] == groups[1]
        assert sum("2 repeat another" in warning for warning in task.warnings) == 1, "only texts count as repeated"


def test_folds_of_search_respect_groups_after_saving(tmp_path):
    rows = [(text, label, user) for text, label, user in zip(TEXTS, LABELS, USERS, strict=True)]
    path = write_csv(tmp_path / "rows.csv", rows, ("text", "label", "user"))
    save_task(Task.load(path, group="user"), tmp_path / "task")
    task = open_task(tmp_path / "task")
    user_of = dict(zip(TEXTS, USERS, strict=True))
    users = np.array([user_of[text] for text in task.splits["train"].texts()])
    folds = make_folds(task)
    assert len(folds) == TaskInfo.of(task).folds == 3 and task.columns.group == "user"
    for kept, held_out in folds:
        assert len(held_out) and not set(users[kept]) & set(users[held_out])
    test = open_task(tmp_path / "task", ("test",)).splits["test"].texts()
    assert not {user_of[text] for text in test} & set(users)


def test_uneven_groups_give_balanced_splits():
    rng = np.random.default_rng(1)
    users = np.repeat(np.arange(40), rng.integers(1, 100, 40))
    labels = (rng.random(len(users)) < (users % 10) / 10).astype(int)  # users differ in how often each label occurs
    texts = [f"{chr(97 + at % 26)}{chr(97 + at // 26 % 26)}{chr(97 + at // 676)} text" for at in range(len(users))]
    task = Task.load({"text": texts, "label": labels, "user": users}, group="user")
    train, test = task.splits["train"], task.splits["test"]
    assert not users_of(train) & users_of(test)
    assert abs(len(test) / len(users) - 0.2) < 0.03 and abs(test.targets.mean() - labels.mean()) < 0.05
    for _, held_out in task.folds(3):
        assert abs(len(held_out) / len(train) - 1 / 3) < 0.03
        assert abs(train.targets[held_out].mean() - train.targets.mean()) < 0.05
    _, held_out = task.first_fold(20)
    assert 0.02 < len(held_out) / len(train) < 0.08


def test_first_fold_leaves_largest_group_in_train():
    users = ["most rows" if at < 40 else f"user {at // 4}" for at in range(80)]
    task = Task.load({"text": TEXTS, "label": LABELS, "user": users}, group="user")
    kept, held_out = task.first_fold(8)
    train = np.array(task.splits["train"].rows.column("user").to_pylist())
    assert 4 <= len(held_out) <= 12 and "most rows" not in train[held_out] and len(kept) + len(held_out) == len(train)


def test_first_fold_is_the_first_of_all_folds():
    task = Task.load(ROWS)
    for first, other in zip(task.first_fold(4, seed=2), task.folds(4, seed=2)[0], strict=True):
        assert np.array_equal(first, other)


def test_rows_without_group_are_separate_groups():
    users = [None if at % 4 == 0 else f"user {at % 8}" for at in range(80)]
    task = Task.load({"text": TEXTS, "label": LABELS, "user": users}, group="user")
    assert "group column: user (6 groups); 20 rows without a value count as separate groups" in task.notes
    assert None in users_of(task.splits["train"]) and not users_of(task.splits["train"]) & users_of(
        task.splits["test"]
    ) - {None}


def test_groups_in_given_test_rows_are_reported():
    columns = {"text": TEXTS, "label": LABELS, "user": USERS}
    unseen = {"text": ["first new text", "second new one"], "label": ["bad", "good"]}
    task = Task.load(columns, test={**unseen, "user": ["user 3", "somebody"]}, group="user")
    assert any(
        "1 group of column 'user' is in the training rows and in the test rows (such as 'user 3'): 1 test row"
        in warning
        for warning in task.warnings
    )
    assert not Task.load(columns, test={**unseen, "user": ["a", "b"]}, group="user").warnings
    (warning,) = Task.load(columns, test=unseen, group="user").warnings
    assert "has no column 'user'" in warning


def test_text_that_connects_all_groups_is_not_kept_together():
    texts = ["thanks" if at % 8 == 0 else text for at, text in enumerate(TEXTS)]
    users = [f"user {at // 8}" for at in range(80)]
    task = Task.load({"text": texts, "label": LABELS, "user": users}, group="user")
    assert not users_of(task.splits["train"]) & users_of(task.splits["test"])
    assert any("texts in common connect most groups" in warning for warning in task.warnings)
    assert any("test: 2 of 16 rows have (nearly) the text of a training row" in warning for warning in task.warnings)
    assert not any("kept in one split" in w and "repeat another" in w for w in task.warnings)


def test_group_refuses_too_few_groups_for_folds():
    users = ["most rows" if at < 76 else f"user {at}" for at in range(80)]
    with pytest.raises(DataError, match=r"at least 3 groups; found 1 by 'user'.*set group to"):
        Task.load({"text": TEXTS, "label": LABELS, "user": users}, group="user")


def test_folds_refuse_fewer_groups_than_folds():
    task = Task.load({"text": TEXTS, "label": LABELS, "user": USERS}, group="user")
    with pytest.raises(DataError, match="at least 9 groups, one per fold; found 8 in 'user'"):
        task.folds(9)


def test_order_sets_last_rows_aside():
    task = Task.load(shuffled(), order="day")
    splits = task.splits
    assert [len(splits[name]) for name in ("train", "validation", "test")] == [51, 13, 16]
    assert max(days_of(splits["train"])) < min(days_of(splits["validation"]))
    assert max(days_of(splits["validation"])) < min(days_of(splits["test"]))
    assert f"test: the last 16 rows by day set aside, from {DAYS[64]} on" in task.notes
    assert f"validation: the last 13 rows by day set aside, from {DAYS[51]} on" in task.notes
    assert task.columns == Columns("text", None, "label", None, "day")
    assert TaskInfo.of(task).folds == 1
    ((train, validation),) = make_folds(task)
    assert len(train) == 51 and validation.tolist() == list(range(51, 64))
    for folds in (task.folds, task.first_fold):
        with pytest.raises(DataError, match="ordered by 'day'"):
            folds(3)


def test_order_keeps_equal_values_in_one_split():
    days = [f"2024-01-{1 + at // 10:02d}" for at in range(80)]
    splits = Task.load(shuffled(day=days), order="day").splits
    assert [len(splits[name]) for name in ("train", "validation", "test")] == [50, 10, 20]
    assert set(days_of(splits["test"])) == set(days[60:])


def test_order_respects_limit_and_shares():
    splits = Task.load(shuffled(), order="day", limit=20).splits
    assert [len(splits[name]) for name in ("train", "validation", "test")] == [16, 4, 16]
    assert max(days_of(splits["train"])) < min(days_of(splits["validation"]))
    splits = Task.load(shuffled(), order="day", test_share=0, validation_share=0.5).splits
    assert {name: len(split) for name, split in splits.items()} == {"train": 40, "validation": 40}
    assert "validation" not in Task.load(shuffled(), order="day", validation_share=0).splits


def test_order_uses_given_test_and_validation_rows():
    given = {"text": ["first new text", "second new one"], "label": ["bad", "good"]}
    task = Task.load(shuffled(), order="day", test=given)
    assert {name: len(split) for name, split in task.splits.items()} == {"train": 64, "validation": 16, "test": 2}
    other = {"text": ["a third text that is new", "one more of them"], "label": ["bad", "good"]}
    both = Task.load(shuffled(), order="day", test=given, validation=other)
    assert len(both.splits["train"]) == 80 and any("order has no effect" in note for note in both.notes)


def test_order_warns_of_late_classes_and_repeated_texts():
    labels = ["new" if at >= 70 else label for at, label in enumerate(LABELS)]
    texts = [*TEXTS[:-1], TEXTS[0]]
    warnings = Task.load(shuffled(text=texts, label=labels), order="day").warnings
    assert any("1 class has no training row in this order: 'new'" in warning for warning in warnings)
    assert "test: 1 of 16 rows have (nearly) the text of a training row" in warnings
    assert any("1 repeats another" in warning and "kept in one split" not in warning for warning in warnings)


def test_group_and_order_columns_are_not_detected_as_text_or_label():
    columns = {"sentence": TEXTS, "title": [f"a long title of {at % 8}" for at in range(80)], "stars": LABELS}
    columns["topic"] = [at % 9 for at in range(80)]
    with pytest.raises(DataError, match="2 columns could hold the label"):
        Task.load(columns, text="sentence")
    assert Task.load(columns, text="sentence", group="topic").columns.label == "stars"
    assert Task.load(columns, text="sentence", order="topic").columns.label == "stars"
    assert Task.load(columns, label="stars", group="title").columns.text == "sentence"
    pair = {"premise": [f"premise {chr(97 + at // 8)}" for at in range(80)], "hypothesis": TEXTS, "label": LABELS}
    task = Task.load(pair, text="premise", text_b="hypothesis", group="premise")
    assert task.columns == Columns("premise", "hypothesis", "label", "premise"), "a given text can be the group as well"


def test_texts_like_validation_rows_are_not_set_aside_for_the_test():
    """Issue: the last training sees the validation rows, and copies of them were test rows."""
    validation = {"text": TEXTS[:20], "label": LABELS[:20]}
    task = Task.load({"train": {"text": TEXTS, "label": LABELS}, "validation": validation})
    test = task.splits["test"]
    assert len(test) and not np.isin(test.groups, task.splits["validation"].groups).any()
