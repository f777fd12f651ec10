"""The run directory: one writer, no record lost, none invented, and a state that is a function of the records alone."""

from __future__ import annotations

import copy
import json
import os
import signal
import subprocess
import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headhunt.errors import HeadhuntError
from headhunt.run.directory import Run, droppable, size
from headhunt.run.events import OUTCOMES
from headhunt.run.ledger import read_ledger
from headhunt.run.schema import RunError
from headhunt.run.state import RETRIES, Outcome, Trial, replay
from headhunt.study.requests import EvaluateTrial

HEADER = {"space": {"name": "own"}, "task": "abc", "settings": {"eta": 3}, "seed": 0}


def trial(number: int, bracket: int = 0) -> dict:
    fields = {"spec": {"n": number}, "hash": f"h{number}", "params": {"a": number}, "origin": "random"}
    return {"kind": "trial", "trial": number, "bracket": bracket, **fields}


def start(number: int, rung: int = 0, attempt: int = 0) -> dict:
    return {"kind": "start", "trial": number, "rung": rung, "attempt": attempt}


def result(number: int, rung: int = 0, outcome: str = "ok", score: float | None = 0.5) -> dict:
    score = score if outcome == "ok" else None
    fields = {"outcome": outcome, "score": score, "seconds": 1.0, "examples": 10, "extra": {"é": "ü"}}
    return {"kind": "result", "trial": number, "rung": rung, **fields}


def write(folder, *records, header=HEADER):
    with Run(folder, write=True, now=lambda: 1.0) as run:
        run.begin(header)
        run.append(*records)
        return run.state


SMALL = [trial(0), start(0), result(0, score=0.7), trial(1), start(1), result(1), start(0, 1), result(0, 1, score=0.8)]


def test_what_is_written_is_read_back(tmp_path):
    state = write(tmp_path, *SMALL)
    again = Run(tmp_path).state
    assert again == state
    assert [one.number for one in again.leaderboard()] == [0, 1]
    assert again.best is not None and again.best.best == (1, 0.8)
    assert json.loads((tmp_path / "environment.json").read_text()) == {}


def test_every_record_is_one_line_with_its_schema(tmp_path):
    write(tmp_path, *SMALL)
    lines = (tmp_path / "ledger.jsonl").read_bytes().splitlines()
    assert len(lines) == 1 + len(SMALL)
    assert all(json.loads(line)["schema"] == 1 for line in lines)


def test_records_of_one_commit_share_one_sync(tmp_path, monkeypatch):
    with Run(tmp_path, write=True) as run:
        run.begin(HEADER)
        syncs = []
        monkeypatch.setattr("os.fsync", syncs.append)
        run.append(*SMALL)
        assert len(syncs) == 1
        run.stage(trial(2))
        assert len(run.state.trials) == 3 and len(Run(tmp_path).state.trials) == 2
        run.commit()
        run.commit()  # nothing is staged, nothing is synced
        assert len(syncs) == 2 and len(Run(tmp_path).state.trials) == 3


def test_a_ledger_torn_at_any_byte_keeps_every_whole_record(tmp_path, monkeypatch):
    monkeypatch.setattr("os.fsync", lambda handle: None)  # thousands of them would take a while
    write(tmp_path / "whole", *SMALL)
    data = (tmp_path / "whole" / "ledger.jsonl").read_bytes()
    ledger = tmp_path / "torn" / "ledger.jsonl"
    ledger.parent.mkdir()
    for cut in range(len(data) + 1):
        ledger.write_bytes(data[:cut])
        whole = data[:cut].count(b"\n")
        records, length = read(ledger)
        assert len(records) == whole
        assert data[:length].count(b"\n") == whole and length <= cut
        with Run(ledger.parent, write=True) as run:
            assert ledger.stat().st_size == length
            run.begin(HEADER)
        assert Run(ledger.parent).state == run.state


def test_a_last_line_of_rubbish_is_torn_too(tmp_path):
    write(tmp_path, *SMALL)
    whole = (tmp_path / "ledger.jsonl").read_bytes()
    (tmp_path / "ledger.jsonl").write_bytes(whole + b"\0\0\0\n")
    with Run(tmp_path, write=True) as run:
        assert len(run.state.trials) == 2
    assert (tmp_path / "ledger.jsonl").read_bytes() == whole


def test_a_corrupt_line_elsewhere_is_an_error_that_names_it(tmp_path):
    write(tmp_path, *SMALL)
    lines = (tmp_path / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    lines[3] = lines[3][:20] + b"\n"
    (tmp_path / "ledger.jsonl").write_bytes(b"".join(lines))
    with pytest.raises(HeadhuntError, match="line 4"):
        Run(tmp_path)


@pytest.mark.parametrize(
    "record",
    [
        {"problem_type": "gossip"},
        {"kind": "run", **HEADER},
        trial(3),
        {**trial(2), "hash": "h0"},
        start(9),
        result(1),
        {"kind": "start"},
        {"kind": "note"},
    ],
)
def test_a_record_that_fits_nothing_is_refused(tmp_path, record):
    write(tmp_path, *SMALL)
    with Run(tmp_path, write=True) as run, pytest.raises(RunError):
        run.append(record)
    assert len(Run(tmp_path).state.trials) == 2


@pytest.mark.parametrize("line", ["7", '{"schema": 2, "kind": "note", "event": "x"}', "[]"])
def test_what_is_json_but_no_record_of_ours_is_refused(tmp_path, line):
    write(tmp_path)
    with (tmp_path / "ledger.jsonl").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(RunError):
        Run(tmp_path)


def test_a_score_that_is_no_number_is_never_written(tmp_path):
    with Run(tmp_path, write=True) as run:
        run.begin(HEADER)
        run.append(trial(0), start(0))
        with pytest.raises(ValueError, match="not JSON compliant"):
            run.append(result(0, score=float("nan")))
        assert 0 in run.state.running


def test_a_second_writer_is_refused_and_readers_are_not(tmp_path):
    with Run(tmp_path, write=True) as run:
        run.begin(HEADER)
        with pytest.raises(HeadhuntError, match="another is writing"):
            Run(tmp_path, write=True)
        assert Run(tmp_path).state == run.state
    with Run(tmp_path, write=True):
        pass


def test_a_killed_writer_gives_the_lock_back(tmp_path):
    code = (
        "import sys, time; from headhunt.run.directory import Run; "
        "run = Run(sys.argv[1], write=True); print('held', flush=True); time.sleep(60)"
    )
    child = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None and child.stdout.readline()
        with pytest.raises(HeadhuntError, match="another is writing"):
            Run(tmp_path, write=True)
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        with Run(tmp_path, write=True):
            pass
    finally:
        child.kill()
        child.wait()
        assert child.stdout is not None
        child.stdout.close()


def test_reading_what_is_not_there_and_writing_what_is_only_read_are_refused(tmp_path):
    with pytest.raises(HeadhuntError, match=r"run directory of a search; it has no ledger\.jsonl"):
        Run(tmp_path)
    write(tmp_path)
    with pytest.raises(RunError, match="for reading"):
        Run(tmp_path).append({"kind": "note", "event": "x"})


@pytest.mark.parametrize("key", ["space", "task", "settings", "seed"])
def test_a_run_is_not_taken_up_as_another(tmp_path, key):
    write(tmp_path)
    with Run(tmp_path, write=True) as run, pytest.raises(HeadhuntError, match=f"another {key}"):
        run.begin({**HEADER, key: "other"})


def test_what_was_running_waits_again_after_reopening(tmp_path):
    write(tmp_path, *SMALL, trial(2), start(2), trial(3))
    with Run(tmp_path, write=True) as run:
        run.begin(HEADER)
        assert run.state.waiting == {2: 0, 3: 0} and not run.state.running
        assert run.state.trials[2].losses == {}
    records, _ = read(tmp_path / "ledger.jsonl")
    assert records[-1]["requeued"] == [2]


@pytest.mark.parametrize("outcome", RETRIES)
def test_lost_and_memory_are_tried_again_so_often_and_no_more(outcome):
    one = Trial(0, {}, "h", {}, "random", 0)
    tries = [one.settle(0, Outcome(outcome)) for _ in range(RETRIES[outcome] + 1)]
    assert tries == [False] * RETRIES[outcome] + [True]
    assert one.results[0].outcome == outcome


@pytest.mark.parametrize("outcome", sorted(OUTCOMES.keys() - RETRIES.keys()))
def test_other_outcomes_count_at_once(outcome):
    assert Trial(0, {}, "h", {}, "random", 0).settle(0, Outcome(outcome))


@settings(max_examples=50, deadline=None)
@given(st.integers(0, len(SMALL) + 1), st.integers(0, len(SMALL) + 1))
def test_replay_is_pure_and_can_be_split_anywhere(first, second):
    records = [{"schema": 1, "at": 0.0, **record} for record in ({"kind": "run", **HEADER}, *SMALL)]
    before = copy.deepcopy(records)
    low, high = sorted((first, second))
    state = replay(records[:low])
    for record in records[low:high]:
        state.apply(record)
    assert state == replay(records[:high])
    assert records == before


def test_requests_cross_as_json():
    request = Request(trial=1, spec={"head": {"layers": "mix"}}, rung=0, fraction=1 / 9, seed=3)
    assert Request(**json.loads(json.dumps(request.to_dict()))) == request


def test_checkpoints_nobody_can_use_go_first_then_the_least_promising():
    held = {(0, 0): 5, (1, 0): 5, (2, 0): 5, (3, 1): 5}
    keep = [(3, 1), (2, 0), (1, 0)]
    assert droppable(held, keep, None) == [(0, 0)]
    assert droppable(held, keep, 15) == [(0, 0)]
    assert droppable(held, keep, 12) == [(0, 0), (1, 0)]
    assert set(droppable(held, keep, 0)) == set(held)
    assert droppable(held, [(9, 9), *keep], 15) == [(0, 0)]


def test_artefacts_have_their_places(tmp_path):
    with Run(tmp_path, write=True) as run:
        folder = run.checkpoint(12, 1)
        folder.mkdir(parents=True)
        (folder / "weights").write_bytes(b"x" * 10)
        assert run.checkpoints() == {(12, 1): 10} and size(folder) == 10
        run.drop([(12, 1), (13, 0)])
        assert run.checkpoints() == {}
        assert run.predictions(12, 1).name == "000012-1.npz"


def test_a_long_ledger_is_read_quickly(tmp_path):
    params = {f"head.part.{i}": i / 7 for i in range(30)}
    with (tmp_path / "ledger.jsonl").open("w") as file:
        for record in ({"kind": "run", **HEADER}, *(r for n in range(4000) for r in (trial(n), start(n), result(n)))):
            file.write(json.dumps({"schema": 1, "at": 0.0, **record, "params": params}) + "\n")
    began = time.perf_counter()
    assert len(Run(tmp_path).state.settled) == 4000
    assert time.perf_counter() - began < 5  # a fifth of the promise's 20,000, with room for a busy machine
