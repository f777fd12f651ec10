"""The ledger: one writer, no record lost or invented, and a state that is a function of the events alone."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import zlib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headhunt.run.directory import RunDirectory
from headhunt.run.events import (
    EVENTS,
    OUTCOMES,
    Event,
    FinalTestRun,
    JobFinished,
    JobStarted,
    ModelSaved,
    RunResumed,
    RunStarted,
    SearchEnded,
    TrialAdded,
    TrialFinished,
    TrialStarted,
    decode,
    encode,
)
from headhunt.run.ledger import LedgerWriter, read_ledger, read_state
from headhunt.run.schema import RunError
from headhunt.run.state import RETRIES, Outcome, State, Trial

STARTED = RunStarted({"name": "own"}, "abc", {"eta": 3, "ladder": {"fractions": [0.5, 1.0]}}, 0)


def added(number: int, bracket: int = 0) -> TrialAdded:
    return TrialAdded(number, {"n": number}, f"h{number}", {"a": number}, "random", bracket)


def started(number: int, rung: int = 0, attempt: int = 0) -> TrialStarted:
    return TrialStarted(number, rung, attempt)


def finished(number: int, rung: int = 0, outcome: str = "ok", score: float | None = 0.5) -> TrialFinished:
    return TrialFinished(number, rung, outcome, score if outcome == "ok" else None, 1.0, 10, {"é": "ü"})


def write(folder: Path, *events: Event, header: RunStarted = STARTED):
    with LedgerWriter(RunDirectory(folder), now=lambda: 1.0) as ledger:
        ledger.begin(header)
        ledger.append(*events)
        return ledger.state


def state_of(folder: Path):
    return read_state(RunDirectory(folder))


SMALL = [
    added(0),
    started(0),
    finished(0, score=0.7),
    added(1),
    started(1),
    finished(1),
    started(0, 1),
    finished(0, 1, score=0.8),
]
ONE_OF_EACH: list[Event] = [
    STARTED,
    added(0),
    started(0),
    finished(0),
    ModelSaved(0, "first", 0.5),
    JobStarted("FitAllRows/000000-all", 0, 5),
    JobFinished("FitAllRows/000000-all", "ok", 1.5, 500, {"rows": 50}),
    RunResumed(),
    FinalTestRun(["000000-all"]),
    SearchEnded("time"),
]


def test_ledger_reads_back_what_was_written(tmp_path):
    state = write(tmp_path, *SMALL)
    again = state_of(tmp_path)
    assert again == state
    assert [trial.number for trial in again.leaderboard()] == [0, 1]
    assert again.best is not None and again.best.best == (1, 0.8)
    assert json.loads((tmp_path / "environment.json").read_text()) == {}


def test_every_event_type_survives_encoding():
    assert {type(event) for event in ONE_OF_EACH} == set(EVENTS.values())
    for event in ONE_OF_EACH:
        assert decode(encode(event, 12.5)[:-1]) == (12.5, event)


def test_every_record_is_one_line_of_json_with_checksum_and_schema(tmp_path):
    write(tmp_path, *SMALL)
    lines = (tmp_path / "ledger.jsonl").read_bytes().splitlines()
    assert len(lines) == 1 + len(SMALL)
    for line in lines:
        record = json.loads(line)
        assert record["schema"] == 3 and record["crc"] == f"{zlib.crc32(line[18:]):08x}"


def test_ledger_syncs_once_per_commit(tmp_path, monkeypatch):
    with LedgerWriter(RunDirectory(tmp_path)) as ledger:
        ledger.begin(STARTED)
        syncs = []
        monkeypatch.setattr("os.fsync", syncs.append)
        ledger.append(*SMALL)
        assert len(syncs) == 1
        ledger.stage(added(2))
        assert len(ledger.state.trials) == 3 and len(state_of(tmp_path).trials) == 2
        ledger.commit()
        ledger.commit()  # nothing is staged, nothing is synced
        assert len(syncs) == 2 and len(state_of(tmp_path).trials) == 3


def test_ledger_is_intact_if_not_even_cutting_it_off_worked(tmp_path, monkeypatch):
    """Issue: the same events were written once more after what a failing disk had kept of them."""

    def fail(*arguments):
        raise OSError(errno.EIO, "the disk does not answer")

    with LedgerWriter(RunDirectory(tmp_path)) as ledger:
        ledger.begin(STARTED)
        with monkeypatch.context() as failing:
            failing.setattr("os.fsync", fail)
            real, ledger._file = ledger._file, Untruncatable(ledger._file)
            with pytest.raises(OSError, match="does not answer"):
                ledger.append(added(0))
            ledger._file = real
        ledger.commit()
        ledger.append(started(0), finished(0))
    assert state_of(tmp_path).trials[0].results[0].score == 0.5 and len(state_of(tmp_path).trials) == 1


class Untruncatable:
    """A file that cannot be cut off."""

    def __init__(self, file):
        self._file = file

    def truncate(self, size):
        raise OSError(errno.EIO, "the disk does not answer")

    def __getattr__(self, name):
        return getattr(self._file, name)


def test_ledger_torn_at_any_byte_keeps_every_complete_record(tmp_path, monkeypatch):
    monkeypatch.setattr("os.fsync", lambda handle: None)  # thousands of them would take a while
    write(tmp_path / "complete", *SMALL)
    data = (tmp_path / "complete" / "ledger.jsonl").read_bytes()
    ledger = tmp_path / "torn" / "ledger.jsonl"
    ledger.parent.mkdir()
    for cut in range(len(data) + 1):
        ledger.write_bytes(data[:cut])
        complete = data[:cut].count(b"\n")
        state, length = read_ledger(ledger)
        assert len(state.trials) == sum(isinstance(event, TrialAdded) for event in [STARTED, *SMALL][:complete])
        assert data[:length].count(b"\n") == complete and length <= cut
        with LedgerWriter(RunDirectory(ledger.parent)) as writer:
            assert ledger.stat().st_size == length
            writer.begin(STARTED)
        assert state_of(ledger.parent) == writer.state


def test_ledger_ignores_damaged_last_line(tmp_path):
    write(tmp_path, *SMALL)
    complete = (tmp_path / "ledger.jsonl").read_bytes()
    (tmp_path / "ledger.jsonl").write_bytes(complete + b"\0\0\0\n")
    with LedgerWriter(RunDirectory(tmp_path)) as ledger:
        assert len(ledger.state.trials) == 2
    assert (tmp_path / "ledger.jsonl").read_bytes() == complete


def test_ledger_error_names_damaged_line(tmp_path):
    write(tmp_path, *SMALL)
    lines = (tmp_path / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    lines[3] = lines[3][:20] + b"\n"
    (tmp_path / "ledger.jsonl").write_bytes(b"".join(lines))
    with pytest.raises(RunError, match="Line 4"):
        state_of(tmp_path)


def test_ledger_finds_one_flipped_bit(tmp_path):
    write(tmp_path, *SMALL)
    path = tmp_path / "ledger.jsonl"
    data = bytearray(path.read_bytes())
    where = data.index(b'"score":0.7') + len(b'"score":0.')
    data[where] ^= 1  # 0.7 becomes 0.6: still JSON, still a valid score
    path.write_bytes(bytes(data))
    with pytest.raises(RunError, match="checksum does not fit"):
        state_of(tmp_path)


@pytest.mark.parametrize(
    "event",
    [STARTED, added(3), replace(added(2), hash="h0"), started(9), finished(1)],
    ids=["second run", "number out of order", "repeated hash", "unknown trial", "result without start"],
)
def test_ledger_refuses_event_that_does_not_fit(tmp_path, event):
    write(tmp_path, *SMALL)
    with LedgerWriter(RunDirectory(tmp_path)) as ledger, pytest.raises(RunError):
        ledger.append(event)
    assert len(state_of(tmp_path).trials) == 2


def record(**fields) -> bytes:
    body = json.dumps({"schema": 3, "at": 1.0, **fields}, separators=(",", ":")).encode()[1:]
    return b'{"crc":"%08x",' % zlib.crc32(body) + body


@pytest.mark.parametrize(
    "fields",
    [
        {"event": "gossip"},
        {"event": "start"},
        {"event": "start", "trial": -1, "rung": 0, "attempt": 0},
        {"event": "start", "trial": True, "rung": 0, "attempt": 0},
        {"event": "start", "trial": 0, "rung": 0, "attempt": 0, "more": 1},
        {"event": "start", "trial": 0, "rung": 0, "attempt": 0, "at": "now"},
        {"event": "start", "trial": 0, "rung": 0, "attempt": 0, "schema": 4},
        {"event": "result", "trial": 0, "rung": 0, "outcome": "ok", "score": "0.9", "seconds": 1, "examples": 1},
        {"event": "result", "trial": 0, "rung": 0, "outcome": "ok", "score": None, "seconds": 1, "examples": 1},
        {"event": "result", "trial": 0, "rung": 0, "outcome": "lost", "score": 0.9, "seconds": 1, "examples": 1},
        {"event": "result", "trial": 0, "rung": 0, "outcome": "good", "score": 0.9, "seconds": 1, "examples": 1},
        {"event": "result", "trial": 0, "rung": 0, "outcome": "ok", "score": 0.9, "seconds": -1, "examples": 1},
        {"event": "model", "trial": 0, "folder": "/etc"},
        {"event": "model", "trial": 0, "folder": "../../elsewhere"},
        {"event": "model", "trial": 0, "folder": ".."},
        {"event": "model", "trial": 0, "folder": ""},
        {"event": "model", "trial": -2, "folder": "first"},
        {"event": "failure", "trial": -2, "request": "save", "outcome": "error"},
        {"event": "trial", "trial": -1, "spec": {}, "hash": "a", "params": None, "origin": "x", "bracket": 0},
    ],
    ids=lambda fields: " ".join(str(value) for value in fields.values())[:40],
)
def test_decode_refuses_invalid_record(fields):
    with pytest.raises(RunError):
        decode(record(**fields))


def test_ledger_never_writes_score_that_is_not_a_number(tmp_path):
    with LedgerWriter(RunDirectory(tmp_path)) as ledger:
        ledger.begin(STARTED)
        ledger.append(added(0), started(0))
        with pytest.raises(ValueError, match="score is a number"):
            ledger.append(finished(0, score=float("nan")))
        assert 0 in ledger.state.running


def test_ledger_has_one_writer_and_many_readers(tmp_path):
    with LedgerWriter(RunDirectory(tmp_path)) as ledger:
        ledger.begin(STARTED)
        with pytest.raises(RunError, match="another is writing"):
            LedgerWriter(RunDirectory(tmp_path))
        assert state_of(tmp_path) == ledger.state
    with LedgerWriter(RunDirectory(tmp_path)):
        pass


def test_killed_writer_releases_lock(tmp_path):
    code = (
        "import sys, time; from headhunt.run.directory import RunDirectory; "
        "from headhunt.run.ledger import LedgerWriter; "
        "ledger = LedgerWriter(RunDirectory(sys.argv[1])); print('locked', flush=True); time.sleep(60)"
    )
    child = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None and child.stdout.readline()
        with pytest.raises(RunError, match="another is writing"):
            LedgerWriter(RunDirectory(tmp_path))
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        with LedgerWriter(RunDirectory(tmp_path)):
            pass
    finally:
        child.kill()
        child.wait()
        assert child.stdout is not None
        child.stdout.close()


def test_reading_missing_run_and_writing_closed_ledger_are_refused(tmp_path):
    with pytest.raises(RunError, match="not the run directory of a search: it has no ledger"):
        state_of(tmp_path)
    with LedgerWriter(RunDirectory(tmp_path)) as ledger:
        ledger.begin(STARTED)
    with pytest.raises(RunError, match="closed"):
        ledger.append(RunResumed())


@pytest.mark.parametrize(
    ("name", "value"), [("space", {"name": "other"}), ("task", "other"), ("settings", {}), ("seed", 7)]
)
def test_run_is_not_resumed_as_another_search(tmp_path, name, value):
    write(tmp_path)
    with LedgerWriter(RunDirectory(tmp_path)) as ledger, pytest.raises(RunError, match=f"another {name}"):
        ledger.begin(replace(STARTED, **{name: value}))


def test_running_trials_wait_again_after_resuming(tmp_path):
    write(tmp_path, *SMALL, added(2), started(2), added(3))
    with LedgerWriter(RunDirectory(tmp_path)) as ledger:
        ledger.begin(STARTED)
        assert ledger.state.waiting == {2: 0, 3: 0} and not ledger.state.running
        assert ledger.state.trials[2].failures == {}


def test_state_counts_test_evaluations_and_not_their_time(tmp_path):
    times = iter([0.0, 1.0, 2.0, 5.0, 100.0, 200.0, 300.0])
    with LedgerWriter(RunDirectory(tmp_path), now=lambda: next(times)) as ledger:
        ledger.begin(STARTED)
        ledger.append(added(0), started(0), SearchEnded("time"), FinalTestRun(["a"]), RunResumed(), FinalTestRun(["a"]))
    state = state_of(tmp_path)
    assert state.test_evaluations == 2
    assert state.elapsed == 5.0 + 100.0, "what follows the end is no searching; after resuming time counts again"


@pytest.mark.parametrize("outcome", RETRIES)
def test_trial_runs_again_after_lost_worker_or_memory_a_limited_number_of_times(outcome):
    trial = Trial(0, {}, "h", {}, "random", 0)
    final = [trial.add_result(0, Outcome(outcome)) for _ in range(RETRIES[outcome] + 1)]
    assert final == [False] * RETRIES[outcome] + [True]
    assert trial.results[0].outcome == outcome


@pytest.mark.parametrize("outcome", sorted(OUTCOMES.keys() - RETRIES.keys()))
def test_trial_accepts_other_outcomes_at_once(outcome):
    assert Trial(0, {}, "h", {}, "random", 0).add_result(0, Outcome(outcome))


@settings(max_examples=50, deadline=None)
@given(st.integers(0, len(SMALL) + 1), st.integers(0, len(SMALL) + 1))
def test_replay_can_be_split_anywhere(first, second):
    def replay(events) -> State:
        state = State()
        for at, event in events:
            state.apply(event, at)
        return state

    events = [(0.0, event) for event in (STARTED, *SMALL)]
    low, high = sorted((first, second))
    state = replay(events[:low])
    for at, event in events[low:high]:
        state.apply(event, at)
    assert state == replay(events[:high])


def test_reading_long_ledger_does_bounded_work_per_record(tmp_path):
    """Bytes decoded per record stay constant: reading is linear in the length of the ledger."""
    calls = []
    for count in (200, 400):
        folder = tmp_path / str(count)
        events = [event for n in range(count) for event in (added(n), started(n), finished(n))]
        write(folder, *events)
        profile = []
        sys.setprofile(lambda frame, kind, arg, profile=profile: profile.append(1) if kind == "call" else None)
        try:
            read_ledger(folder / "ledger.jsonl")
        finally:
            sys.setprofile(None)
        calls.append(len(profile))
    assert calls[1] < 2.1 * calls[0]


def test_two_broken_lines_that_join_into_valid_json_are_refused(tmp_path):
    """The beginning of one record and the end of another, as a lost block leaves them."""
    with LedgerWriter(RunDirectory(tmp_path)) as ledger:
        ledger.begin(STARTED)
        for trial in (0, 1):
            ledger.append(TrialAdded(trial, {}, f"hash{trial}", None, "random", 0))
        ledger.append(TrialStarted(0, 0, 0), TrialStarted(1, 0, 0))
    path = RunDirectory(tmp_path).ledger
    *lines, first, second = path.read_bytes().splitlines()
    joined = first[: first.index(b'"trial"')] + second[second.index(b'"trial"') :]
    assert json.loads(joined)["trial"] == 1, "valid JSON of two records"
    path.write_bytes(b"\n".join([*lines, joined, first]) + b"\n")
    with pytest.raises(RunError, match=r"Line 4 .* checksum"):
        read_ledger(path)


@pytest.mark.parametrize("name", ["ledger.jsonl", "checkpoints", "models", "task", "search.json"])
def test_writer_refuses_a_run_with_links_and_leaves_their_targets_alone(tmp_path, name):
    target = tmp_path / "target"
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).symlink_to(target)
    with pytest.raises(RunError, match=rf"must be in its folder; .*{name} is a link to"):
        LedgerWriter(RunDirectory(tmp_path / "run"))
    assert not target.exists()


def test_writer_refuses_links_inside_folders_of_a_run_and_accepts_best(tmp_path):
    directory = RunDirectory(tmp_path / "run")
    (directory.models / "000001").mkdir(parents=True)
    directory.link_best("000001")
    LedgerWriter(directory).close()
    (tmp_path / "run" / "checkpoints").mkdir()
    directory.checkpoint(1, 0).symlink_to(tmp_path, target_is_directory=True)
    with pytest.raises(RunError, match="000001-0 is a link to"):
        LedgerWriter(directory)


def test_writer_does_not_follow_a_lock_that_is_a_link(tmp_path):
    (tmp_path / "target").write_text("untouched")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "lock").symlink_to(tmp_path / "target")
    LedgerWriter(RunDirectory(tmp_path / "run")).close()
    assert (tmp_path / "target").read_text() == "untouched"


def test_writer_sweeps_what_killed_workers_left(tmp_path):
    directory = RunDirectory(tmp_path)
    leftovers = [
        tmp_path / ".model.0123.partial",
        directory.models / ".000001.4567.partial",
        directory.checkpoint(1, 0).parent / ".000001-0.89ab.partial",
        directory.predictions(1, 0).parent / ".000001-0.npz.cdef.partial",
    ]
    for path in leftovers:
        path.mkdir(parents=True)
        (path / "weights").touch()
    directory.checkpoint(1, 0).mkdir()
    LedgerWriter(directory).close()
    assert not any(path.exists() for path in leftovers) and directory.checkpoint(1, 0).exists()
