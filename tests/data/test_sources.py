"""Tests of reading sources into splits."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bad_inputs import GOOD, GOOD_LABELS, GOOD_TEXTS, bad_files, bad_objects, check_refused
from labelled_rows import LABELS, ROWS, TEXTS, write_csv, write_jsonl, write_sources

from headhunt.data import Columns, Task


def test_read_splits_gives_same_task_for_every_source(tmp_path):
    sources = write_sources(tmp_path)
    tasks = {name: Task.load(source) for name, source in sources.items()}
    first = tasks["csv"]
    assert (
        first.problem_type == "single_label_classification"
        and first.labels == ("bad", "fine", "good")
        and not first.pair
    )
    assert first.columns == Columns("text", None, "label")
    for name, task in tasks.items():
        assert task.fingerprint == first.fingerprint, name
        assert task.splits["test"].texts() == first.splits["test"].texts(), name


def test_read_splits_reads_pandas_and_datasets(tmp_path):
    pandas, datasets = pytest.importorskip("pandas"), pytest.importorskip("datasets")
    first = Task.load(ROWS)
    frame = pandas.DataFrame({"text": TEXTS, "label": LABELS}, index=range(5, 85))
    assert Task.load(frame).fingerprint == first.fingerprint
    assert Task.load(frame.astype({"label": "category"})).fingerprint == first.fingerprint
    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["bad", "fine", "good"])}
    )
    dataset = datasets.Dataset.from_dict({"text": TEXTS, "label": LABELS}, features=features)
    assert Task.load(dataset).fingerprint == first.fingerprint
    dataset.to_parquet(tmp_path / "named.parquet")
    assert Task.load(tmp_path / "named.parquet").labels == ("bad", "fine", "good")
    shuffled = dataset.shuffle(seed=1).select(range(60))
    both = datasets.DatasetDict({"train": shuffled, "test": dataset.select(range(60, 80)), "unsupervised": dataset})
    task = Task.load(both)
    assert task.splits["train"].texts() == list(shuffled["text"])
    assert [task.labels[target] for target in task.splits["test"].targets] == LABELS[60:]
    assert any("unsupervised" in note for note in task.notes)


def test_dataset_without_test_labels_gets_new_test_split():
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["no", "yes"])})
    train = datasets.Dataset.from_dict({"text": TEXTS, "label": [0, 1] * 40}, features=features)
    test = datasets.Dataset.from_dict({"text": TEXTS[:9], "label": [-1] * 9}, features=features)
    task = Task.load(datasets.DatasetDict({"train": train, "test": test}))
    assert len(task.splits["test"]) == 16 and any("no labels" in warning for warning in task.warnings)


def test_read_folder_keeps_given_splits(tmp_path):
    folder = tmp_path / "set"
    folder.mkdir()
    write_csv(folder / "train.csv", ROWS[:50])
    write_jsonl(folder / "dev.jsonl", ROWS[50:60])
    pq.write_table(pa.table({"text": TEXTS[60:], "label": LABELS[60:]}), folder / "test.parquet")
    (folder / "README.md").write_text("about")
    (folder / "dev_extra.csv").write_text("whatever")
    task = Task.load(folder)
    assert {name: split.texts() for name, split in task.splits.items()} == {
        "train": TEXTS[:50],
        "validation": TEXTS[50:60],
        "test": TEXTS[60:],
    }
    assert task.name == "set" and any("README.md" in note and "dev_extra.csv" in note for note in task.notes)
    assert task.fingerprint == Task.load(ROWS[:50], test=ROWS[60:], validation=ROWS[50:60]).fingerprint


def test_read_folder_joins_shards_of_split(tmp_path):
    for at in range(2):
        part = pa.table({"text": TEXTS[at * 40 : at * 40 + 40], "label": LABELS[at * 40 : at * 40 + 40]})
        pq.write_table(part, tmp_path / f"train-0000{at}-of-00002.parquet")
    assert len(Task.load(tmp_path).splits["train"]) + len(Task.load(tmp_path).splits["test"]) == 80


@bad_files("sources")
def test_read_splits_refuses_bad_files(make, fragments, tmp_path):
    path, options = make(tmp_path)
    check_refused(path, fragments, **options)


@bad_objects(
    ("lists of different length", (GOOD_TEXTS, GOOD_LABELS[:-1]), {}, ["different lengths", "text 12", "label 11"]),
    ("empty list", [], {}, ["empty"]),
    ("empty lists", ([], []), {}, ["no rows"]),
    ("empty dict", {}, {}, ["no rows"]),
    ("texts alone", GOOD_TEXTS, {}, ["as the label"]),
    ("tuples of different width", [*GOOD, ("a", "b", "c")], {}, ["2", "3", "entries"]),
    ("a number", 7, {}, ["'int'", "Give a path"]),
    ("nothing", None, {}, ["'NoneType'", "Give a path"]),
    ("dict of no lists", {"text": "abc", "label": 1}, {}, ["list"]),
    ("splits without train", {"test": GOOD}, {}, ["no train split"]),
    ("bad split in a dict", {"train": GOOD, "test": [("a b", "new")]}, {}, ["test:", "'new'", "row 1"]),
)
def test_read_splits_refuses_bad_objects(source, options, fragments):
    check_refused(source, fragments, **options)


def test_read_frame_refuses_repeated_column_names():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame([[text, label, text] for text, label in GOOD], columns=["text", "label", "text"])
    check_refused(frame, ["'text'", "two columns"])
