"""Data in: every source gives the same task, columns and kinds are found, splits keep their promises."""

import csv
import gzip
import json
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest

from headhunt.data import Columns, Task, load_labelled, load_texts, splitting
from headhunt.data.sources import Rows

ADJECTIVES = ["warm", "cold", "loud", "quiet", "bright", "dim", "sweet", "sour", "rough", "smooth"]
NOUNS = ["kettle", "garden", "engine", "violin", "harbour", "blanket", "teacher", "window"]


def make_rows(count=80, labels=("bad", "fine", "good")):
    rows = []
    for at in range(count):
        first, second = ADJECTIVES[at % 10], NOUNS[at // 10 % 8]
        rows.append((f"The {second}, {first} as {chr(97 + at % 26) * 3}, said “hello {at}”", labels[at % len(labels)]))
    return rows


ROWS = make_rows()
TEXTS, LABELS = [row[0] for row in ROWS], [row[1] for row in ROWS]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADHUNT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def write_csv(path, rows, header=("text", "label"), delimiter=",", **options):
    with path.open("w", newline="", encoding=options.pop("encoding", "utf-8")) as file:
        csv.writer(file, delimiter=delimiter, **options).writerows([header, *rows])
    return path


def write_jsonl(path, rows, names=("text", "label")):
    path.write_text("".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows))
    return path


def write_sources(folder):
    table = pa.table({"text": TEXTS, "label": LABELS})
    pq.write_table(table, folder / "a.parquet")
    pyarrow.feather.write_feather(table, folder / "a.feather")
    with pa.ipc.new_stream(str(folder / "a.arrow"), table.schema) as writer:
        writer.write_table(table)
    write_csv(folder / "a.csv", ROWS)
    (folder / "a.csv.gz").write_bytes(gzip.compress((folder / "a.csv").read_bytes()))
    write_jsonl(folder / "a.jsonl", ROWS)
    (folder / "a.json").write_text(json.dumps([{"text": text, "label": label} for text, label in ROWS]))
    return {
        "csv": folder / "a.csv",
        "csv as str": str(folder / "a.csv"),
        "csv.gz": folder / "a.csv.gz",
        "crlf and quotes": write_csv(folder / "b.csv", ROWS, lineterminator="\r\n", quoting=csv.QUOTE_ALL),
        "bom": write_csv(folder / "c.csv", ROWS, encoding="utf-8-sig"),
        "semicolons": write_csv(folder / "d.csv", ROWS, delimiter=";"),
        "tabs in csv": write_csv(folder / "e.csv", ROWS, delimiter="\t"),
        "tsv": write_csv(folder / "a.tsv", ROWS, delimiter="\t"),
        "bare tsv": write_csv(folder / "b.tsv", ROWS, delimiter="\t", quoting=csv.QUOTE_NONE),
        "jsonl": folder / "a.jsonl",
        "json": folder / "a.json",
        "parquet": folder / "a.parquet",
        "feather": folder / "a.feather",
        "arrow": folder / "a.arrow",
        "table": table,
        "chunked table": pa.concat_tables([table.slice(0, 30), table.slice(30)]),
        "categories": pa.table({"text": TEXTS, "label": pa.array(LABELS).dictionary_encode()}),
        "dict": {"text": TEXTS, "label": LABELS},
        "dict of arrays": {"text": np.array(TEXTS), "label": np.array(LABELS, dtype=object)},
        "lists": (TEXTS, LABELS),
        "tuples": ROWS,
        "objects": [{"text": text, "label": label} for text, label in ROWS],
        "split": {"train": ROWS},
    }


def test_every_source_gives_the_same_task(tmp_path):
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


def test_pandas_and_datasets(tmp_path):
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


def test_a_dataset_without_test_labels_gets_a_test_split_of_its_own():
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["no", "yes"])})
    train = datasets.Dataset.from_dict({"text": TEXTS, "label": [0, 1] * 40}, features=features)
    test = datasets.Dataset.from_dict({"text": TEXTS[:9], "label": [-1] * 9}, features=features)
    task = Task.load(datasets.DatasetDict({"train": train, "test": test}))
    assert len(task.splits["test"]) == 16 and any("no labels" in warning for warning in task.warnings)


def test_cells_may_hold_newlines_quotes_and_delimiters(tmp_path):
    rows = [(f'line {at}\nsecond, "quoted"; {text}', label) for at, (text, label) in enumerate(ROWS)]
    for name, delimiter in (("a.csv", ","), ("b.csv", ";"), ("c.tsv", "\t")):
        task = Task.load(write_csv(tmp_path / name, rows, delimiter=delimiter))
        assert sorted(task.splits["train"].texts() + task.splits["test"].texts()) == sorted(row[0] for row in rows)


def test_a_bare_quote_in_tab_separated_rows_is_a_character(tmp_path):
    lines = [f'"{text}\t{label}' if at % 9 == 4 else f"{text}\t{label}" for at, (text, label) in enumerate(ROWS)]
    (tmp_path / "a.tsv").write_text("\n".join(["text\tlabel", *lines]))
    task = Task.load(tmp_path / "a.tsv", test=ROWS)
    assert len(task.splits["train"]) == 80 and task.splits["train"].texts(4, 5) == ['"' + TEXTS[4]]


# ------------------------------------------------------------------------------------------------ big files


def test_big_files_are_mapped_from_the_cache(tmp_path, cache, monkeypatch):
    small = Task.load(write_csv(tmp_path / "a.csv", ROWS))
    monkeypatch.setattr("headhunt.data.tables.BIG", 1)
    sources = write_sources(tmp_path)
    for name in ("csv", "csv.gz", "bare tsv", "jsonl", "json", "parquet"):
        before = set(cache.rglob("*.arrow"))
        task = Task.load(sources[name])
        made = set(cache.rglob("*.arrow")) - before
        assert len(made) == 1 and task.fingerprint == small.fingerprint, name
        assert task.fingerprint == Task.load(sources[name]).fingerprint
        assert set(cache.rglob("*")) == before | made | {cache / "tables"}, "reading again or leaving scraps"


def test_mapped_texts_are_not_copied(tmp_path, monkeypatch):
    monkeypatch.setattr("headhunt.data.tables.BIG", 1)
    path = write_csv(tmp_path / "a.csv", ROWS)
    before = pa.total_allocated_bytes()
    split = Task.load(path).with_validation().splits["train"]
    assert pa.total_allocated_bytes() - before < 1024
    maps = Path("/proc/self/maps")
    if maps.exists():
        address = split.rows.table["text"].chunk(0).buffers()[2].address
        spans = [line.split()[0].split("-") for line in maps.read_text().splitlines() if ".arrow" in line]
        assert any(int(low, 16) <= address < int(high, 16) for low, high in spans)


def test_a_changed_file_is_read_again(tmp_path, monkeypatch):
    monkeypatch.setattr("headhunt.data.tables.BIG", 1)
    path = write_csv(tmp_path / "a.csv", ROWS)
    first = Task.load(path)
    write_csv(path, [(text + "!", label) for text, label in ROWS])
    assert Task.load(path).fingerprint != first.fingerprint


def test_json_columns_may_appear_and_widen_late(tmp_path, monkeypatch):
    monkeypatch.setattr("headhunt.data.tables.BIG", 1)
    monkeypatch.setattr("headhunt.data.readers.BLOCK", 512)
    rows = [{"text": text, "label": at if at < 40 else at + 0.5} for at, text in enumerate(TEXTS)]
    for row in rows[50:]:
        row["extra"] = {"source": "web"}
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    task = Task.load(tmp_path / "a.jsonl", test=rows)
    assert task.problem_type == "regression"
    np.testing.assert_allclose(task.splits["train"].targets, [row["label"] for row in rows])
    rows[70]["label"] = "seventy"
    (tmp_path / "b.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(Exception, match="'label' mixes"):
        Task.load(tmp_path / "b.jsonl")


# ------------------------------------------------------------------------------------------------ columns and kinds


@pytest.mark.parametrize(
    ("header", "found"),
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
def test_columns_are_found(header, found):
    names = header.split(",")
    values = {}
    for name in names:
        if name == found[2]:
            values[name] = LABELS
        elif name in found[:2]:
            values[name] = [f"{name} {text}" for text in TEXTS]
        elif name in ("title", "label_fine", "lang"):
            values[name] = ["x", "y"] * 40
        else:
            values[name] = [f"{name}-{at}" for at in range(80)]
    task = Task.load(values)
    assert task.columns == Columns(*found) and task.pair == (found[1] is not None)
    assert task.notes[0] == f"text column: {found[0]}"


def test_an_empty_column_counts_as_absent(tmp_path):
    table = pa.table({"text": TEXTS, "text_b": pa.nulls(80), "label": LABELS, "class": pa.nulls(80, pa.string())})
    pq.write_table(table, tmp_path / "a.parquet")
    assert Task.load(tmp_path / "a.parquet").columns == Columns("text", None, "label")
    path = write_csv(tmp_path / "a.csv", [(t, "", y) for t, y in ROWS], ("text", "text_b", "label"))
    assert Task.load(path).columns == Columns("text", None, "label")


def test_named_columns_win():
    columns = {"text": TEXTS, "body": TEXTS[::-1], "label": LABELS, "other": ["x", "y"] * 40}
    task = Task.load(columns, text="body", label="other")
    assert task.columns == Columns("body", None, "other") and task.labels == ("x", "y")
    assert Task.load(columns, text="body", text_b="text").columns == Columns("body", "text", "label")


@pytest.mark.parametrize(
    ("values", "problem_type", "labels"),
    [
        (["yes", "no"] * 40, "single_label_classification", ("no", "yes")),
        ([2, 10, 1, 2] * 20, "single_label_classification", ("1", "2", "10")),
        ([True, False] * 40, "single_label_classification", ("False", "True")),
        ([1.0, 2.0] * 40, "single_label_classification", ("1", "2")),
        ([at / 4 for at in range(80)], "regression", ()),
        ([float(at) for at in range(80)], "regression", ()),
        (list(range(80)), "regression", ()),
        (["01", "02"] * 40, "single_label_classification", ("01", "02")),
        ([" yes", "no "] * 40, "single_label_classification", ("no", "yes")),
        ([["a", "b"], [], ["b"], ["c"]] * 20, "multi_label_classification", ("a", "b", "c")),
        ([[3, 1], [10]] * 40, "multi_label_classification", ("1", "3", "10")),
    ],
)
def test_the_kind_is_told_from_the_labels(values, problem_type, labels, tmp_path):
    task = Task.load((TEXTS, values))
    assert (task.problem_type, task.labels) == (problem_type, labels)
    path = write_csv(
        tmp_path / "a.csv",
        zip(TEXTS, map(json.dumps if problem_type == "multi_label_classification" else str, values), strict=True),
    )
    again = Task.load(path)
    assert (again.problem_type, again.labels) == (problem_type, labels), "read from CSV"
    for name, split in task.splits.items():
        np.testing.assert_array_equal(split.targets, again.splits[name].targets)


def test_targets():
    test = [("one thing", "b"), ("another thing", "a")]
    split = Task.load((TEXTS, ["a", "b"] * 40), test=test).splits["test"]
    assert split.targets.tolist() == [1, 0] and split.targets.dtype == np.int64
    several = Task.load((TEXTS, [["a", "b"], ["c"]] * 40), test=(["x y", "z w"], [[], ["c", "a"]])).splits["test"]
    assert several.targets.tolist() == [[0, 0, 0], [1, 0, 1]] and several.targets.dtype == np.float32
    numbers = Task.load((TEXTS, np.linspace(0, 5, 80)), test=(["x y"], [2.5])).splits["test"]
    assert numbers.targets.tolist() == [2.5] and numbers.targets.dtype == np.float32


def test_the_kind_can_be_said(tmp_path):
    assert Task.load((TEXTS, list(range(1, 6)) * 16), problem_type="regression").problem_type == "regression"
    task = Task.load((TEXTS, list(range(80)) * 1), problem_type="regression")
    assert not task.warnings
    with_bars = write_csv(tmp_path / "a.csv", [(text, "x|y" if at % 2 else "y") for at, text in enumerate(TEXTS)])
    assert Task.load(with_bars).labels == ("x|y", "y")
    assert Task.load(with_bars, problem_type="multi_label_classification").labels == ("x", "y")


# ------------------------------------------------------------------------------------------------ splits


def test_the_test_split_has_its_share_of_every_class():
    labels = ["rare" if at % 16 == 0 else "usual" if at % 2 else "other" for at in range(80)]
    task = Task.load((TEXTS, labels), test_share=0.25)
    test = task.describe()["classes"]["test"]
    assert test["usual"] == 10 and 1 <= test["rare"] <= 2 and 8 <= test["other"] <= 9
    assert not set(task.splits["test"].texts()) & set(task.splits["train"].texts())
    assert sorted(task.splits["test"].texts() + task.splits["train"].texts()) == sorted(TEXTS)


def test_numbers_and_several_labels_are_split_evenly():
    numbers = Task.load((TEXTS, np.arange(80) / 3.0))
    assert abs(numbers.splits["test"].targets.mean() - numbers.splits["train"].targets.mean()) < 1.5
    several = Task.load((TEXTS, [["a"] + ["b"] * (at % 8 == 0) for at in range(80)]))
    assert several.splits["test"].targets.sum(0).tolist() == [16, 2]


def test_the_seed_decides():
    first, again, other = (Task.load(ROWS, seed=seed) for seed in (0, 0, 1))
    assert first.fingerprint == again.fingerprint != other.fingerprint
    one, same, two = (first.with_validation(seed=seed) for seed in (0, 0, 1))
    assert one.fingerprint == same.fingerprint != two.fingerprint


def test_with_validation():
    task = Task.load(ROWS)
    divided = task.with_validation(0.25)
    assert list(divided.splits) == ["train", "validation", "test"] and "validation" not in task.splits
    assert len(divided.splits["validation"]) in (15, 16, 17)
    assert sorted(divided.splits["validation"].texts() + divided.splits["train"].texts()) == sorted(
        task.splits["train"].texts()
    )
    assert divided.splits["test"].texts() == task.splits["test"].texts()
    assert divided.with_validation() is divided


def test_given_splits_stay_as_they_are(tmp_path):
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


def test_shards_of_a_split_are_joined(tmp_path):
    for at in range(2):
        part = pa.table({"text": TEXTS[at * 40 : at * 40 + 40], "label": LABELS[at * 40 : at * 40 + 40]})
        pq.write_table(part, tmp_path / f"train-0000{at}-of-00002.parquet")
    assert len(Task.load(tmp_path).splits["train"]) + len(Task.load(tmp_path).splits["test"]) == 80


def test_limit_draws_after_the_test_split_was_set_aside():
    labels = ["rare" if at % 20 == 0 else "usual" for at in range(80)]
    whole, part = Task.load((TEXTS, labels)), Task.load((TEXTS, labels), limit=12)
    assert part.splits["test"].texts() == whole.splits["test"].texts()
    assert len(part.splits["train"]) == 12 and set(part.splits["train"].texts()) < set(whole.splits["train"].texts())
    assert np.bincount(part.splits["train"].targets).min() >= 1
    assert len(Task.load((TEXTS, labels), limit=10_000).splits["train"]) == len(whole.splits["train"])


def test_folds_hold_every_row_out_once():
    task = Task.load(repeat_some(ROWS), test=ROWS[:10])
    folds = task.folds(4)
    size = len(task.splits["train"])
    assert np.array_equal(np.sort(np.concatenate([held for _, held in folds])), np.arange(size))
    groups, targets = task.splits["train"].groups, task.splits["train"].targets
    for train, held in folds:
        assert np.array_equal(np.sort(np.concatenate([train, held])), np.arange(size))
        assert not set(groups[train]) & set(groups[held])
        assert abs(len(held) - size / 4) <= 4
        assert np.abs(np.bincount(targets[held], minlength=3) - np.bincount(targets) / 4).max() <= 4
    assert [held.tolist() for _, held in folds] == [held.tolist() for _, held in task.folds(4)]
    assert [held.tolist() for _, held in folds] != [held.tolist() for _, held in task.folds(4, seed=1)]


def test_a_class_with_one_row_stays_in_train_and_is_told():
    task = Task.load([*ROWS, ("a lonely text about nothing", "alone")])
    assert (task.splits["train"].targets == task.labels.index("alone")).sum() == 1
    assert any("fewer than 5" in warning and "'alone'" in warning for warning in task.warnings)


# ------------------------------------------------------------------------------------------------ duplicates and leaks


def long_text(at):
    chance = random.Random(at)
    return " ".join(["warm", *(chance.choice(ADJECTIVES) + chance.choice(NOUNS) for _ in range(24))])


def repeat_some(rows):
    """Add a variant of every fifth text: other case and punctuation."""
    return [*rows, *((text.upper().replace(",", " -- "), label) for text, label in rows[::5])]


def group_of(*texts):
    rows = Rows("test", pa.table({"text": list(texts)}))
    return splitting.group([(rows, ["text"], splitting.sketch(rows, ["text"]))])[0].tolist()


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
def test_texts_that_say_the_same(first, second):
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
def test_texts_that_do_not(first, second):
    assert len(set(group_of(first, second))) == 2


def test_near_duplicates_are_found_and_false_ones_are_not():
    texts = [long_text(at) for at in range(300)]
    near = [text.replace("warm", "hot", 1) + " indeed" for text in texts[:100]]
    groups = np.array(group_of(*texts, *near))
    assert len(set(groups[:300])) == 300
    assert (groups[300:] == groups[:100]).mean() > 0.8


def test_near_duplicates_stay_on_one_side():
    task = Task.load(repeat_some(ROWS)).with_validation()
    groups = [set(split.groups) for split in task.splits.values()]
    assert not groups[0] & groups[1] and not groups[0] & groups[2] and not groups[1] & groups[2]
    normal = [
        {text.lower().replace(" --", "").replace(",", "") for text in split.texts()} for split in task.splits.values()
    ]
    assert not normal[0] & normal[1] and not normal[0] & normal[2] and not normal[1] & normal[2]
    assert any("16 repeat another" in warning for warning in task.warnings)
    assert task.describe()["leaks"]["test"] == {"same": 0, "near": 0}


def test_pairs_are_the_same_only_if_both_texts_are():
    rows = [(ADJECTIVES[at % 10] + " thing", NOUNS[at // 10] + " again", "ab"[at % 2]) for at in range(80)]
    task = Task.load(rows)
    assert task.pair and task.columns.text_b == "text_b"
    assert len(set(task.splits["train"].groups)) == len(task.splits["train"])
    assert not any("repeat" in warning for warning in task.warnings)
    twice = Task.load([*rows, ("WARM thing", "Kettle again", "a")])
    assert any("1 repeats another" in warning for warning in twice.warnings)
    at = task.splits["train"].texts().index("loud thing")
    assert task.splits["train"].texts_b()[at].endswith("again") and task.splits["train"].texts_b(at, at + 1)


def test_leaks_between_given_splits_are_told():
    test = [("a text of its own", "bad"), (TEXTS[7].upper(), LABELS[7]), (TEXTS[3], LABELS[3])]
    task = Task.load(ROWS, test=test)
    told = [warning for warning in task.warnings if "leak" in warning]
    assert len(told) == 1 and "2 test rows leak" in told[0] and "rows 2, 3" in told[0] and "training row 8" in told[0]
    assert task.describe()["leaks"]["test"] == {"same": 2, "near": 2}
    assert not any("leak" in warning for warning in Task.load(ROWS, test=test[:1]).warnings)


def test_contradictions_imbalance_and_spelling_are_told():
    assert any(
        "more than one label" in w and "rows 1, 81" in w for w in Task.load([*ROWS, (TEXTS[0], "good")]).warnings
    )
    uneven = Task.load((TEXTS, ["a"] * 75 + ["b"] * 5)).warnings
    assert any("'a' has 75" in warning and "15 to 1" in warning for warning in uneven)
    spelt = Task.load((TEXTS, ["Good", "good", "bad", "bad "] * 20))
    assert spelt.labels == ("Good", "bad", "good")
    assert any("'Good' and 'good'" in warning for warning in spelt.warnings)
    assert any(
        "1 text has more than 100 words (row 81); 128 tokens are read" in w and "max_length" in w
        for w in Task.load([*ROWS, ("far too long " * 34, "bad")]).warnings
    )
    assert not Task.load(ROWS).warnings


# ------------------------------------------------------------------------------------------------ what a task tells


def test_fingerprint_is_of_content():
    first = Task.load(ROWS)
    assert first.fingerprint == Task.load({"body": TEXTS, "class": LABELS}).fingerprint
    assert first.fingerprint != Task.load([*ROWS[:-1], (TEXTS[-1] + "!", LABELS[-1])]).fingerprint
    assert first.fingerprint != Task.load([*ROWS[:-1], (TEXTS[-1], "good")]).fingerprint
    code = "import sys, json; from headhunt.data import Task; print(Task.load(json.load(sys.stdin)).fingerprint)"
    elsewhere = subprocess.run(
        [sys.executable, "-c", code], input=json.dumps(ROWS), capture_output=True, text=True, check=True
    )
    assert elsewhere.stdout.strip() == first.fingerprint


def test_describe_is_json():
    for labels in (LABELS, np.linspace(0, 1, 80).tolist(), [["a"], ["b", "a"]] * 40):
        told = json.loads(json.dumps(Task.load((TEXTS, labels), test=(TEXTS[:9], labels[:9])).describe()))
        assert told["rows"] == {"train": 80, "test": 9} and told["words"]["train"]["median"] == 8
        assert told["columns"] == {"text": "text", "text_b": None, "label": "label"}
        assert told["leaks"]["test"]["same"] == 9
    assert Task.load(ROWS, test=ROWS).describe()["classes"]["train"] == {"bad": 27, "fine": 27, "good": 26}


def test_a_split_reads_stretches_in_order():
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


def test_load_labelled(tmp_path):
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


def test_load_texts(tmp_path):
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
