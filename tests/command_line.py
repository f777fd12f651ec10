"""Run `headhunt` in this process, and make the files and models that its tests need."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from conftest import sentences

from headhunt.cli import main

QUICK_SPEC = {"recipe": {"epochs": 12, "batch_size": 16, "learning_rate": 0.003, "max_length": 32}}
COMMAND = [sys.executable, "-m", "headhunt.cli"]


class Completed(NamedTuple):
    code: int
    out: str
    err: str


def run(*words: object, stdin: bytes = b"") -> Completed:
    """Run `headhunt WORDS` in this process."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    source = io.TextIOWrapper(io.BytesIO(stdin), "ascii", "surrogateescape")  # as without a locale
    with (
        mock.patch.object(sys, "argv", ["headhunt", *map(str, words)]),
        mock.patch.object(sys, "stdin", source),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
    return Completed(code, out.getvalue(), err.getvalue())


def succeed(*words: object, stdin: bytes = b"") -> str:
    """Run a command that must succeed and return its standard output."""
    completed = run(*words, stdin=stdin)
    assert completed.code == 0, completed.err
    return completed.out


def refuse(*words: object, fragments: list[str], stdin: bytes = b"") -> None:
    """Run a command that must fail with one error message, which contains the fragments."""
    completed = run(*words, stdin=stdin)
    assert completed.code == 2, completed
    message = completed.err[f"\n{completed.err}".index("\nerror: ") :]
    for fragment in fragments:
        assert fragment in message, message
    assert "Traceback" not in completed.err and not completed.out


def write_csv(path: Path, header: str, rows: list[tuple[object, ...]]) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header.split(","), *rows])
    return path


def make_rows(problem_type: str, count: int, seed: int) -> tuple[str, list[tuple[object, ...]]]:
    """Return a header and rows whose labels follow from their words; the problem type may also be "pair"."""
    texts, labels = sentences(count, seed)
    if problem_type == "single_label_classification":
        return "text,label", list(zip(texts, labels, strict=True))
    if problem_type == "regression":
        return "text,label", [(text, round(len(text.split()) / 7, 3)) for text in texts]
    if problem_type == "multi_label_classification":
        frequent = ["any" if number % 4 else "cat" for number in range(count)]  # a model that learned little has it
        return "text,label", [
            (text, "|".join(w for w in ("any", "cat", "dog", label) if w in (*text.split(), label, other)))
            for text, label, other in zip(texts, labels, frequent, strict=True)
        ]
    others = sentences(count, seed + 100)[0]
    return "text,text_b,label", list(zip(texts, others, labels, strict=True))


def read_texts(path: Path) -> list[str]:
    with path.open(newline="") as file:
        return [row["text"] for row in csv.DictReader(file)]


class SavedModel(NamedTuple):
    folder: Path
    test: Path
    """The file of test rows."""
    facts: dict
    """The output of `fit --json`."""


_SAVED: dict[str, SavedModel] = {}


def saved_models(encoders, tmp_path_factory) -> Callable[..., SavedModel]:
    """Return a function that trains a model of a problem type with `headhunt fit`, once per process."""

    def get(problem_type: str = "single_label_classification") -> SavedModel:
        if problem_type not in _SAVED:
            folder = tmp_path_factory.mktemp(f"cli-{problem_type}")
            train = write_csv(folder / "train.csv", *make_rows(problem_type, 96, 0))
            test = write_csv(folder / "test.csv", *make_rows(problem_type, 32, 1))
            (folder / "spec.json").write_text(json.dumps(QUICK_SPEC))
            several = problem_type == "multi_label_classification"
            options = ["--problem-type", "multi_label_classification"] if several else []
            words = ["fit", train, "--test", test, "--out", folder / "model", "--encoder", encoders()]
            printed = succeed(*words, "--spec", folder / "spec.json", "--json", *options)
            _SAVED[problem_type] = SavedModel(folder / "model", test, json.loads(printed))
        return _SAVED[problem_type]

    return get
