"""Searches and corpus jobs that start at the same moment: one of them gets the folder; by default, each its own."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from conftest import sentences

from headhunt.run.directory import RunDirectory
from headhunt.run.ledger import read_state
from headhunt.run.task import open_task
from headhunt.storage import PARTIAL

JOBS = 4
WAIT = """
import json, sys, time
from pathlib import Path
def wait_for_all(number):
    Path(f"ready-{number}").touch()
    while not Path("go").exists():
        time.sleep(0.002)
number, out = int(sys.argv[1]), (sys.argv[2] if len(sys.argv) > 2 else None)
"""
SEARCH = """
from unittest import mock
import headhunt
from headhunt.engine import search as engine
from headhunt.errors import HeadhuntError
from headhunt.run.directory import RunDirectory
from headhunt.run.ledger import LedgerWriter
from headhunt.study.budget import TimeBudget
from headhunt.study.candidates import Candidates
from headhunt.study.executors import InlineExecutor
from headhunt.study.study import Study
from study_toys import TINY, Search, evaluate_toy, toy_options

def run(self):
    with LedgerWriter(self.directory) as ledger:
        options = toy_options(trials=4, seed=self.settings.seed)
        study = Study(ledger, Candidates(TINY, encoder="toy"), options, TimeBudget(None))
        Search(study, InlineExecutor(evaluate_toy)).run()

task = headhunt.Task.load("rows.csv", seed=number)
with mock.patch.object(engine.Session, "run", run), mock.patch.object(engine, "config_of_encoder"):
    wait_for_all(number)
    try:
        found = engine.search(task, out=out, encoder=None, space=TINY, seed=number, time=None, trials=4, callbacks=[])
        print(json.dumps([number, str(found.run_dir), task.fingerprint]))
    except HeadhuntError as error:
        print(json.dumps([number, None, str(error)]))
"""
CORPUS = """
from headhunt.delivery.corpus.output import OutputDirectory
from headhunt.errors import HeadhuntError
directory = OutputDirectory(out)
wait_for_all(number)
until = time.monotonic() + 1.5
while time.monotonic() < until:
    try:
        with directory.lock():
            owner = Path(out, "owner")
            with owner.open("x") as file:  # fails if another job is inside
                file.write(str(number))
            time.sleep(0.001)
            owner.unlink()
            print(json.dumps([number, out, "held"]))
    except HeadhuntError as error:
        assert "Only one job may write" in str(error), error
    time.sleep(0.001 * number)
"""


def start_together(folder: Path, script: str, *arguments: str) -> list[tuple[int, str | None, str]]:
    """Start processes that begin at the same moment; return what they print."""
    tests = str(Path(__file__).parents[1])
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {tests!r})\n{WAIT}{script}"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": folder}
    processes = [subprocess.Popen([*command, str(number), *arguments], **pipes) for number in range(JOBS)]
    until = time.monotonic() + 120
    while len(list(folder.glob("ready-*"))) < JOBS and time.monotonic() < until:
        time.sleep(0.01)
    (folder / "go").touch()
    lines = []
    for process in processes:
        out, problems = process.communicate(timeout=120)
        assert process.returncode == 0, problems
        lines += [json.loads(line) for line in out.splitlines()]
    return [(number, place, text) for number, place, text in lines]


@pytest.fixture
def folder(tmp_path) -> Path:
    rows = "".join(f"{text},{label}\n" for text, label in zip(*sentences(72), strict=True))
    (tmp_path / "rows.csv").write_text(f"text,label\n{rows}")
    return tmp_path


def check_run(path: Path, number: int, fingerprint: str) -> None:
    """Assert that a run holds the settings, the data and the results of one search."""
    directory = RunDirectory(path)
    state = read_state(directory)
    assert directory.read_settings().seed == number == state.started.seed
    assert directory.read_task_info().fingerprint == fingerprint and len(open_task(directory.task).splits["train"])
    assert len(state.trials) == 4 and state.ended == "trials" and not list(path.rglob(f"*{PARTIAL}"))


def test_one_of_several_searches_gets_the_folder(folder):
    outcomes = start_together(folder, SEARCH, "run")
    (won,) = [outcome for outcome in outcomes if outcome[1] is not None]
    assert all("out= must be a new directory" in text for _, place, text in outcomes if place is None)
    assert len(outcomes) == JOBS
    check_run(folder / "run", won[0], won[2])


@pytest.mark.slow
def test_each_of_several_searches_gets_a_default_folder(folder):
    outcomes = start_together(folder, SEARCH)
    assert len({place for _, place, _ in outcomes}) == JOBS and None not in {place for _, place, _ in outcomes}
    for number, place, fingerprint in outcomes:
        check_run(folder / str(place), number, fingerprint)


def test_corpus_jobs_hold_a_folder_one_at_a_time(tmp_path):
    held = start_together(tmp_path, CORPUS, "out")
    assert len(held) >= JOBS and len(Counter(number for number, *_ in held)) > 1
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())
