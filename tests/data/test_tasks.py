"""Several tasks as one: read from a file or a folder, joined, divided task by task."""

from __future__ import annotations

import numpy as np
import pytest
from labelled_rows import make_rows, write_csv
from multitask import make_tasks, rows_of_tasks

from headhunt import Task, join_tasks, load_tasks
from headhunt.data.splitting import find_strata
from headhunt.errors import DataError
from headhunt.run import task as run_task
from headhunt.run.task import TaskInfo, open_task, save_task

ROWS = make_rows(40)
NUMBERS = [(text, i / 3) for i, (text, _) in enumerate(make_rows(40))]


@pytest.fixture
def files(tmp_path):
    write_csv(tmp_path / "mood.csv", ROWS)
    write_csv(tmp_path / "length.csv", NUMBERS, ("text", "score"))
    return tmp_path


def write_toml(files, text):
    path = files / "tasks.toml"
    path.write_text(text)
    return path


def test_load_tasks_reads_tables_with_their_options(files):
    path = write_toml(
        files,
        '[mood]\ndata = "mood.csv"\nlimit = 20\n\n'
        '[size]\ndata = "length.csv"\ntext = "text"\nlabel = "score"\nproblem_type = "regression"\n'
        'metric = "pearson"\n',
    )
    task = load_tasks(path, seed=3)
    mood, size = task.tasks
    assert (task.name, task.problem_type, task.labels, task.pair) == ("tasks", "multi_task", (), False)
    assert (mood.name, mood.labels, mood.metric) == ("mood", ("bad", "fine", "good"), None)
    assert (size.problem_type, size.columns.label, size.metric) == ("regression", "score", "pearson")
    alone = Task.load(files / "mood.csv", limit=20, seed=3)
    train = task.splits["train"]
    of_mood, kept = train.targets["task"] == 0, alone.splits["train"]
    tested = task.splits["test"].keys[task.splits["test"].targets["task"] == 1]
    kept = kept.take(~np.isin(kept.keys, tested))  # both tasks have the same texts
    assert len(kept) == mood.rows["train"] < 20
    assert [text for text, mine in zip(train.texts(), of_mood, strict=True) if mine] == kept.texts()
    assert train.targets["value"][of_mood].tolist() == kept.targets.tolist()
    assert any(note.startswith("size: ") for note in task.notes)


def test_load_tasks_reads_a_folder_of_files_and_folders(files):
    (files / "length.csv").unlink()
    (files / "more").mkdir()
    for name in ("train", "dev", "test"):
        write_csv(files / "more" / f"{name}.csv", [(f"{name} of more: {text}", label) for text, label in ROWS])
    (files / "notes.md").write_text("not a task")
    task = load_tasks(files)
    assert [each.name for each in task.tasks] == ["mood", "more"]
    assert all(each.rows.keys() == {"train", "validation", "test"} for each in task.tasks)  # made for mood, too
    assert sum(each.rows["validation"] for each in task.tasks) == len(task.splits["validation"])


@pytest.mark.parametrize(
    ("text", "fragments"),
    [
        ("mood = 3", ["mood must be a table", "found 3"]),
        ('[mood]\nfile = "mood.csv"', ["[mood] must have data", "unknown key 'file'"]),
        ('[mood]\ndata = "mood.csv"\nlable = "label"', ["unknown key 'lable'", "Did you mean 'label'?"]),
        ("[mood]\ndata = 3", ["data must be text; found 3"]),
        ('[mood]\ndata = "mood.csv"\nlimit = 0', ["limit must be a positive whole number"]),
        ('[mood]\ndata = "mood.csv"\nlimit = true', ["limit must be a positive whole number"]),
        ('[mood]\ndata = "mood.csv"\nproblem_type = "classes"', ["problem_type must be one of", "found 'classes'"]),
        ('[mood]\ndata = "mood.csv"', ["There must be 2 to 64 tasks; found 1"]),
        ('[mood]\ndata = "mood.csv"\n["../mood"]\ndata = "mood.csv"', ["name of a task must be", "../mood"]),
        ('[mood]\ndata = "mood.csv"\n[size]\ndata = "none.csv"', ["Task 'size'", "none.csv"]),
        ('[mood]\ndata = "mo\\u0000od.csv"', ["data must be a path"]),
        ('[mood]\ndata = "~no-such-user/mood.csv"\n[size]\ndata = "mood.csv"', ["Task 'mood'", "mood.csv"]),
        ("[mood", ["must be TOML", "not valid"]),
        ("a = " + "[" * 5000, ["must be TOML"]),
    ],
)
def test_load_tasks_says_what_is_wrong(files, text, fragments):
    with pytest.raises(DataError) as error:
        load_tasks(write_toml(files, text))
    for fragment in fragments:
        assert fragment in str(error.value)


def test_load_tasks_refuses_a_missing_file_and_an_empty_folder(tmp_path):
    with pytest.raises(DataError, match="does not exist"):
        load_tasks(tmp_path / "tasks.toml")
    with pytest.raises(DataError, match="found none"):
        load_tasks(tmp_path)


def test_join_tasks_refuses_what_one_model_cannot_learn():
    single = Task.load({"text": [text for text, _ in ROWS], "label": [label for _, label in ROWS]})
    several = Task.load(
        {"text": [text for text, _ in ROWS], "label": [["a"] if i % 2 else ["a", "b"] for i in range(40)]}
    )
    grouped = Task.load(
        {"text": [text for text, _ in ROWS], "label": [label for _, label in ROWS], "user": list(range(40))},
        group="user",
    )
    untested = Task.load({"text": [text for text, _ in ROWS], "label": [label for _, label in ROWS]}, test_share=0)
    for other, message in (
        (several, "one class or one number per row; 'b' is multi_label_classification"),
        (grouped, "cannot have group or order"),
        (untested, "All tasks must have test rows, or none; b has none"),
    ):
        with pytest.raises(DataError, match=message):
            join_tasks({"a": single, "b": other})


def test_folds_divide_every_task_and_keep_its_classes():
    task = make_tasks()
    train = task.splits["train"]
    strata = find_strata(train.targets)
    held_out = np.concatenate([rows for _, rows in task.folds(3)])
    assert sorted(held_out) == list(range(len(train)))
    for fitted, evaluated in task.folds(3):
        assert not set(train.groups[fitted]) & set(train.groups[evaluated])
        counts = np.array([np.bincount(train.targets["task"][rows], minlength=3) for rows in (fitted, evaluated)])
        assert (np.abs(counts[1] * 2 - counts[0]) <= 6).all() and (counts > 0).all()
    assert len(np.unique(strata)) > 5  # classes of each task, and deciles of the number


def test_saved_task_is_the_same(tmp_path):
    task = make_tasks()
    save_task(task, tmp_path)
    opened = open_task(tmp_path, ("train", "test"))
    assert opened.tasks == task.tasks == TaskInfo.of(task).tasks
    for name in ("train", "test"):
        assert (opened.splits[name].targets == task.splits[name].targets).all()
        assert opened.splits[name].texts_b() == task.splits[name].texts_b()
        assert opened.splits[name].tasks.tolist() == task.splits[name].targets["task"].tolist()
    assert opened.splits["train"].texts_b()[0] == ""  # of a task with one text


def test_saved_rows_of_other_tasks_are_refused(tmp_path):
    save_task(make_tasks(), tmp_path)
    with (tmp_path / "train.npz").open("rb") as file:
        arrays = dict(np.load(file))
    arrays["targets"]["task"][0] = 3
    np.savez(tmp_path / "train.npz", **arrays)
    with pytest.raises(DataError, match="do not belong to the tasks"):
        open_task(tmp_path)


def test_fingerprint_depends_on_the_tasks():
    rows = rows_of_tasks()
    loaded = {name: Task.load(rows[name]) for name in ("mood", "length")}
    first, second = join_tasks(loaded), join_tasks({"mood": loaded["mood"], "other": loaded["length"]})
    assert first.fingerprint == join_tasks(loaded).fingerprint != second.fingerprint


def test_tasks_with_many_rows_have_validation_rows_of_their_own():
    few = Task.load({"text": [text for text, _ in ROWS], "label": [label for _, label in ROWS]})
    rng = np.random.default_rng(0)
    letters = rng.integers(ord("a"), ord("z"), (2600, 6, 5), dtype=np.uint8)
    texts = [" ".join(word.tobytes().decode() for word in words) for words in letters]
    many = Task.load({"text": texts, "label": ["a", "b"] * 1300})
    task = join_tasks({"few": few, "many": many})
    rows = [each.rows for each in task.tasks]
    assert rows[1]["validation"] * 9 == pytest.approx(rows[1]["train"], rel=0.3) and rows[0]["validation"]
    assert sum(each["validation"] for each in rows) == len(task.splits["validation"])


def test_tested_rows_are_of_every_task():
    test = make_tasks(200).splits["test"]
    rows = run_task.tested_rows(test, 30)
    assert np.bincount(test.tasks[rows]).tolist() == [10, 10, 10] and len(set(rows)) == 30
    assert run_task.tested_rows(test, None) is None and run_task.tested_rows(test, len(test)) is None


@pytest.mark.parametrize("path", ["x" * 5000, "a\0b"])
def test_paths_that_no_file_can_have_do_not_exist(path):
    with pytest.raises(DataError, match="does not exist"):
        load_tasks(path)
    with pytest.raises(DataError, match="does not exist"):
        Task.load(path)


def test_texts_that_one_task_is_tested_on_are_not_trained_on_by_another():
    """Issue: tasks on the same file were divided one by one, and shared layers learned from each other's test texts."""
    texts, labels = [text for text, _ in ROWS], [label for _, label in ROWS]
    lengths = ["long" if len(text) > np.median([len(each) for each in texts]) else "short" for text in texts]
    tasks = {"tone": Task.load((texts, labels), name="tone"), "length": Task.load((texts, lengths), name="length")}
    joined = join_tasks(tasks)
    splits = {
        name: [
            set(rows.keys[rows.targets["task"] == number]) for rows in (joined.splits["train"], joined.splits["test"])
        ]
        for number, name in enumerate(tasks)
    }
    assert not splits["tone"][0] & splits["length"][1] and not splits["length"][0] & splits["tone"][1]
    assert splits["tone"][0] and splits["length"][0]
    assert any("other tasks are evaluated on their texts" in note for note in joined.notes)
    train = joined.splits["train"]
    shared = set(train.keys[train.targets["task"] == 0]) & set(train.keys[train.targets["task"] == 1])
    assert shared and all(len(set(train.groups[train.keys == key])) == 1 for key in shared)  # in one fold


def test_task_whose_rows_are_all_tested_by_another_is_refused():
    texts, labels = [text for text, _ in ROWS], [label for _, label in ROWS]
    other = {"train": ([f"{text} once more again" for text in texts], labels), "test": (texts, labels)}
    with pytest.raises(DataError, match="train rows whose texts no other task is evaluated on; 'tone' has none"):
        join_tasks({"tone": Task.load((texts, labels), name="tone"), "other": Task.load(other, name="other")})
