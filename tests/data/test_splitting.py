"""Tests of assigning rows to splits and folds."""

import numpy as np
import pyarrow as pa
from bad_inputs import bad_files, check_refused
from labelled_rows import LABELS, ROWS, TEXTS, repeat_some

from headhunt.data import Task
from headhunt.data.splitting import hold_out


def test_hold_out_takes_share_of_every_class():
    labels = ["rare" if at % 16 == 0 else "usual" if at % 2 else "other" for at in range(80)]
    task = Task.load((TEXTS, labels), test_share=0.25)
    other, rare, usual = np.bincount(task.splits["test"].targets)
    assert usual == 10 and 1 <= rare <= 2 and 8 <= other <= 9
    assert not set(task.splits["test"].texts()) & set(task.splits["train"].texts())
    assert sorted(task.splits["test"].texts() + task.splits["train"].texts()) == sorted(TEXTS)


def test_hold_out_stratifies_numbers_and_several_labels():
    numbers = Task.load((TEXTS, np.arange(80) / 3.0))
    assert abs(numbers.splits["test"].targets.mean() - numbers.splits["train"].targets.mean()) < 1.5
    several = Task.load((TEXTS, [["a"] + ["b"] * (at % 8 == 0) for at in range(80)]))
    assert several.splits["test"].targets.sum(0).tolist() == [16, 2]


def test_hold_out_divides_rows_by_share_and_seed_and_keeps_groups():
    strata, groups = np.arange(200) % 4, np.arange(200) // 4 // 2 * 4 + np.arange(200) % 4  # pairs of rows
    first, again, other = (hold_out(strata, groups, 0.25, seed) for seed in (0, 0, 1))
    assert first.dtype == bool and np.array_equal(first, again) and not np.array_equal(first, other)
    assert np.bincount(strata[first]).tolist() == [12] * 4, "a share of 12.5 rows in groups of two"
    assert not set(groups[first]) & set(groups[~first])


def test_assign_folds_holds_every_row_out_once():
    task = Task.load(repeat_some(ROWS), test=ROWS[:10])
    folds = task.folds(4)
    size = len(task.splits["train"])
    assert np.array_equal(np.sort(np.concatenate([held_out for _, held_out in folds])), np.arange(size))
    groups, targets = task.splits["train"].groups, task.splits["train"].targets
    for train, held_out in folds:
        assert np.array_equal(np.sort(np.concatenate([train, held_out])), np.arange(size))
        assert not set(groups[train]) & set(groups[held_out])
        assert abs(len(held_out) - size / 4) <= 4
        assert np.abs(np.bincount(targets[held_out], minlength=3) - np.bincount(targets) / 4).max() <= 4
    assert [held_out.tolist() for _, held_out in folds] == [held_out.tolist() for _, held_out in task.folds(4)]
    assert [held_out.tolist() for _, held_out in folds] != [held_out.tolist() for _, held_out in task.folds(4, seed=1)]


def test_draw_sample_leaves_test_split_unchanged():
    labels = ["rare" if at % 20 == 0 else "usual" for at in range(80)]
    complete, limited = Task.load((TEXTS, labels)), Task.load((TEXTS, labels), limit=12)
    assert limited.splits["test"].texts() == complete.splits["test"].texts()
    assert len(limited.splits["train"]) == 12 and set(limited.splits["train"].texts()) < set(
        complete.splits["train"].texts()
    )
    assert np.bincount(limited.splits["train"].targets).min() >= 1
    assert len(Task.load((TEXTS, labels), limit=10_000).splits["train"]) == len(complete.splits["train"])


def test_hold_out_keeps_class_of_one_row_in_train():
    task = Task.load([*ROWS, ("a lonely text about nothing", "alone")])
    assert (task.splits["train"].targets == task.labels.index("alone")).sum() == 1
    assert any("fewer than 5" in warning and "'alone'" in warning for warning in task.warnings)


def test_split_reads_ranges_in_order():
    table = pa.concat_tables(
        [pa.table({"text": TEXTS[at : at + 7], "label": LABELS[at : at + 7]}) for at in range(0, 80, 7)]
    )
    split = Task.load(table, test=ROWS[:9]).splits["train"]
    assert split.texts(5, 9) == TEXTS[5:9] and split.texts(78) == TEXTS[78:] and split.texts_b() is None
    mixed = split.take(np.array([40, 3, 79, 3]))
    assert mixed.texts() == [TEXTS[40], TEXTS[3], TEXTS[79], TEXTS[3]] and len(mixed) == 4
    assert mixed.take(np.array([2, 0])).texts() == [TEXTS[79], TEXTS[40]]
    assert mixed.targets.tolist() == split.targets[[40, 3, 79, 3]].tolist()
    assert len(split.take(np.arange(80) < 3)) == 3


@bad_files("splitting")
def test_hold_out_refuses_rows_that_cannot_be_divided(make, fragments, tmp_path):
    path, options = make(tmp_path)
    check_refused(path, fragments, **options)
