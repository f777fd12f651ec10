"""Files of a run, a model and the cache that are cut, empty or changed: commands recover or say what is wrong."""

from __future__ import annotations

import contextlib
import random
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import sentences
from model_folders import make_predictor
from report_runs import make_run
from typer.testing import CliRunner

from headhunt.cli import app
from headhunt.data import Task
from headhunt.errors import HeadhuntError
from headhunt.predictor import Predictor
from headhunt.run.directory import RunDirectory, read_predictions, read_test_predictions, write_arrays
from headhunt.run.ledger import LedgerWriter
from headhunt.run.plan import Plan
from headhunt.run.task import open_task


def cut(content: bytes, rng: random.Random) -> bytes:
    return content[: rng.randrange(len(content))]


def empty(content: bytes, rng: random.Random) -> bytes:
    return b""


def flip(content: bytes, rng: random.Random) -> bytes:
    data = bytearray(content)
    for _ in range(3):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


def zero(content: bytes, rng: random.Random) -> bytes:
    """Replace the second half by zeros, as some file systems do after a power cut."""
    return content[: len(content) // 2] + bytes(len(content) - len(content) // 2)


READERS = (
    lambda directory: open_task(directory.task, ("train", "validation", "test")).splits["train"].texts(),
    lambda directory: read_predictions(directory.predictions(1, 0)),
    lambda directory: read_test_predictions(directory.test_predictions("winner")),
    lambda directory: LedgerWriter(directory).close(),
    lambda directory: directory.read_plan().sentence,
)
DAMAGES = pytest.mark.parametrize("damage", [cut, empty, flip, zero])


def run(*words: object) -> None:
    """Run a command; it may succeed, or end with an error for the user."""
    done = CliRunner().invoke(app, [str(word) for word in words])
    if done.exit_code not in (0, 2):
        raise AssertionError(f"{words} ended with {done.exit_code}: {done.output[-500:]}") from done.exception


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """A finished search with predictions."""
    folder = make_run(tmp_path_factory.mktemp("run") / "run", 6)
    directory = RunDirectory(folder)
    for path in (directory.predictions(1, 0), directory.test_predictions("winner")):
        write_arrays(path, rows=np.arange(5), outputs=np.random.default_rng(0).random((1, 5, 2)))
    numbers = dict.fromkeys(("used_rows", "held_out", "solved_rows", "counted_rows"), 40)
    numbers |= {"rows": 40, "test_rows": 8, "folds": 3}
    directory.write(Plan(epochs=3.0, encoders=("a", "b"), costs=(1.0, 2.0), **numbers))
    return folder


@DAMAGES
def test_commands_survive_damage_to_any_file_of_a_run(finished, tmp_path, damage):
    names = sorted(path.relative_to(finished) for path in finished.rglob("*") if path.is_file())
    assert {"ledger.jsonl", "search.json", "plan.json", "result.json"} <= {name.name for name in names}
    assert len(names) > 11
    for number, name in enumerate(names):
        copy = tmp_path / "run"
        shutil.copytree(finished, copy)
        content = (copy / name).read_bytes()
        if not content:
            shutil.rmtree(copy)
            continue
        (copy / name).write_bytes(damage(content, random.Random(number)))
        directory = RunDirectory(copy)
        run("status", copy)
        run("report", copy)
        for read in READERS:
            with contextlib.suppress(HeadhuntError):
                read(directory)
        shutil.rmtree(copy)


@DAMAGES
def test_models_with_any_damaged_file_load_or_are_refused(encoders, tmp_path, damage):
    made = make_predictor(encoders(), "conv-blocks")[0].save(tmp_path / "made")
    for number, path in enumerate(sorted(made.iterdir())):
        for repeat in range(3):
            copy = tmp_path / "model"
            shutil.copytree(made, copy)
            (copy / path.name).write_bytes(damage(path.read_bytes(), random.Random(f"{number} {repeat}")))
            with contextlib.suppress(HeadhuntError):
                Predictor.load(copy).predict(["a good film"])
            shutil.rmtree(copy)


@DAMAGES
def test_damaged_table_in_the_cache_is_converted_again(own_cache, tmp_path, damage, monkeypatch):
    monkeypatch.setattr("headhunt.data.tables.MAX_IN_MEMORY", 1)
    path = tmp_path / "rows.csv"
    path.write_text("text,label\n" + "".join(f"{text},{label}\n" for text, label in zip(*sentences(200), strict=True)))
    expected = Task.load(str(path)).fingerprint
    (cached,) = own_cache.rglob("*.arrow")
    content = cached.read_bytes()
    for seed in range(8):
        cached.write_bytes(damage(content, random.Random(seed)))
        with contextlib.suppress(HeadhuntError):
            task = Task.load(str(path))
            if damage in (cut, empty):
                assert task.fingerprint == expected
        cached.unlink(missing_ok=True)
    assert Task.load(str(path)).fingerprint == expected


def test_cut_table_in_the_cache_never_reaches_the_reader(own_cache, tmp_path, monkeypatch):
    monkeypatch.setattr("headhunt.data.tables.MAX_IN_MEMORY", 1)
    texts, labels = sentences(100)
    table = pa.table({"text": texts, "label": labels})
    path = tmp_path / "rows.parquet"
    pq.write_table(table, path)
    expected = Task.load(str(path)).fingerprint
    (cached,) = own_cache.rglob("*.arrow")
    content = cached.read_bytes()
    for size in range(0, len(content), 97):
        cached.write_bytes(content[:size])
        assert Task.load(str(path)).fingerprint == expected, size
