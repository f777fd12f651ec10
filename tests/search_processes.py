"""Searches in processes of their own, for tests that kill or stop them."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
from conftest import sentences
from searches import QUICK

from headhunt.run.directory import RunDirectory
from headhunt.run.events import TrialFinished, decode
from headhunt.run.ledger import read_state


def write_data(folder: Path) -> None:
    texts, labels = sentences(72)
    rows = "\n".join(f"{text},{label}" for text, label in zip(texts, labels, strict=True))
    (folder / "data.csv").write_text(f"text,label\n{rows}\n")
    (folder / "space.json").write_text(json.dumps(QUICK.to_dict()))


def start_search(folder: Path, encoder: str, *more: str) -> subprocess.Popen:
    arguments = [
        "search",
        "data.csv",
        "--encoder",
        encoder,
        "--space",
        "space.json",
        "--out",
        "run",
        "--seed",
        "2",
        *more,
    ]
    return subprocess.Popen(
        [sys.executable, "-m", "headhunt.cli", *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "HEADHUNT_CACHE": str(folder / "cache")},
    )


def read_results(folder: Path) -> list[tuple[int, int, str]]:
    path = RunDirectory(folder / "run").ledger
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    events = [decode(line)[1] for line in lines]
    return [(event.trial, event.rung, event.outcome) for event in events if isinstance(event, TrialFinished)]


def count_lost(folder: Path) -> int:
    return sum(outcome == "lost" for *_, outcome in read_results(folder))


def wait_for_results(folder: Path, process: subprocess.Popen, count: int, limit: float = 120) -> None:
    until = time.time() + limit
    while len(read_results(folder)) < count:
        assert process.poll() is None and time.time() < until, process.communicate()[0]
        time.sleep(0.1)


def check_complete(folder: Path, trials: int) -> None:
    """Assert that every trial has results, no rung has two, and a model was saved."""
    state = read_state(RunDirectory(folder / "run"))
    settled = [(trial, rung) for trial, rung, outcome in read_results(folder) if outcome != "lost"]
    assert len(state.trials) == trials and not state.waiting
    assert all(trial.results for trial in state.trials)
    assert len(settled) == len(set(settled))
    assert (folder / "run" / "model" / "headhunt.json").exists()


def wait_for_worker(process: subprocess.Popen) -> psutil.Process:
    """Return a busy worker of this search, never one of another search on this machine."""
    while process.poll() is None:
        for child in psutil.Process(process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if "".join(child.cmdline()).startswith("ray::Worker.run") or child.name() == "headhunt run":
                    return child
    raise AssertionError(process.communicate()[0])
