"""A search on a disk that fails: at every operation of its kind, nothing is lost and nothing is settled wrongly."""

from __future__ import annotations

import contextlib
import errno
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from faulty_disk import OPERATIONS, FaultyDisk
from safetensors import SafetensorError
from study_toys import TINY, Search, VirtualClock, evaluate_toy, leaderboard, run_study, toy_options

from headhunt import storage
from headhunt.run.directory import RunDirectory, read_predictions, write_arrays
from headhunt.run.events import RunStarted, TrialAdded
from headhunt.run.ledger import LedgerWriter, read_state
from headhunt.run.state import Outcome
from headhunt.study.budget import TimeBudget
from headhunt.study.candidates import Candidates
from headhunt.study.executors import InlineExecutor
from headhunt.study.loop import PATIENCE, DiskError
from headhunt.study.requests import EvaluateTrial
from headhunt.study.study import Study

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads the names of descriptors from /proc")
TRIALS = 4
CODES = pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO], ids=["ENOSPC", "EIO"])


@pytest.fixture(autouse=True)
def clock(monkeypatch) -> VirtualClock:
    """Virtual time for pauses."""
    clock = VirtualClock()
    clock.now = 0.0

    def sleep(seconds: float) -> None:
        clock.now += seconds

    monkeypatch.setattr("headhunt.study.loop.time", SimpleNamespace(monotonic=clock, sleep=sleep))
    return clock


def search(folder: Path, disk: FaultyDisk, evaluate=evaluate_toy) -> Search:
    """Run a toy search and return it, closed; an error of the disk ends it."""
    with disk.inserted(), LedgerWriter(RunDirectory(folder)) as ledger:
        study = Search(
            Study(ledger, Candidates(TINY, encoder="toy"), toy_options(trials=TRIALS), TimeBudget(None)),
            InlineExecutor(evaluate),
        )
        study.run()
    return study


def fail_everywhere(folder: Path, operation: str, code: int, lasting: bool, evaluate) -> int:
    """Fail each operation of a search in turn, resume, and compare; return the number of failures."""
    counter = FaultyDisk(folder, operation, None)
    expected = leaderboard(search(folder / "undisturbed", counter, evaluate))
    assert expected and counter.count
    failures = 0
    for number in range(counter.count):
        run = folder / f"{operation}-{number}"
        disk = FaultyDisk(run, operation, number, code, lasting)
        with contextlib.suppress(OSError):
            search(run, disk, evaluate)
        failures += disk.failed
        resumed = search(run, FaultyDisk(run, operation, None), evaluate)
        assert leaderboard(resumed) == expected, number
        outcomes = {result.outcome for trial in resumed.state.trials for result in trial.results.values()}
        assert "error" not in outcomes, number
        assert not list(run.rglob(f"*{storage.PARTIAL}")), "no temporary file is left"
    return failures


@CODES
@pytest.mark.parametrize("lasting", [False, True], ids=["once", "from then on"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_search_resumes_after_a_failure_of_any_operation(tmp_path, operation, code, lasting):
    assert fail_everywhere(tmp_path, operation, code, lasting, evaluate_toy) > 0


def evaluate_and_save(request: EvaluateTrial) -> Outcome:
    """Store predictions of each trial, as a real evaluation does."""
    outcome = evaluate_toy(request)
    write_arrays(request.predictions, rows=np.arange(3), outputs=np.full(3, outcome.score))
    return outcome


@pytest.mark.parametrize(("operation", "code"), list(zip(OPERATIONS, storage.DISK_ERRORS, strict=False)))
def test_failing_disk_in_a_worker_is_not_the_failure_of_its_trial(tmp_path, operation, code):
    assert fail_everywhere(tmp_path, operation, code, False, evaluate_and_save) > 0


def test_search_waits_for_a_full_disk_and_reports_it(tmp_path, clock):
    """The disk of the workers is full for two minutes; the ledger has few records of it, and no result is lost."""
    messages: list[str] = []

    def evaluate(request: EvaluateTrial) -> Outcome:
        if 30 < clock.now < 150:
            raise OSError(errno.ENOSPC, "No space left on device")
        clock.now += 10
        return evaluate_toy(request)

    study = run_study(tmp_path / "full", evaluate, trials=TRIALS, notify=messages.append)
    assert leaderboard(study) == leaderboard(run_study(tmp_path / "undisturbed", trials=TRIALS))
    assert messages and all("No space left on device" in message for message in messages) and study.loop.problem is None
    started = [trial.attempts for trial in study.state.trials]
    assert sum(started) - len(study.state.settled) == len(messages) <= 8 and clock.now > 150


def test_search_on_a_disk_that_stays_full_ends_and_can_be_resumed(tmp_path, clock):
    def evaluate(request: EvaluateTrial) -> Outcome:
        raise OSError(errno.ESTALE, "Stale file handle")

    with pytest.raises(DiskError, match="headhunt resume"):
        run_study(tmp_path / "full", evaluate, trials=TRIALS, notify=lambda message: None)
    assert clock.now > PATIENCE and not read_state(RunDirectory(tmp_path / "full")).settled
    resumed = run_study(tmp_path / "full", trials=TRIALS)
    assert leaderboard(resumed) == leaderboard(run_study(tmp_path / "undisturbed", trials=TRIALS))


def test_errors_of_libraries_are_recognised_as_those_of_the_disk():
    messages = {"I/O error: No space left on device (os error 28)": True, "Error while serializing: x": False}
    for message, expected in messages.items():
        assert storage.disk_failed(SafetensorError(message)) is expected
    assert storage.disk_failed(OSError("4096 requested and 128 written"))
    assert not storage.disk_failed(FileNotFoundError(errno.ENOENT, "No such file"))
    error = RuntimeError("cannot save")
    error.__cause__ = OSError(errno.EIO, "Input/output error")
    assert storage.disk_failed(error) and not storage.disk_failed(RuntimeError("cannot save"))


@CODES
@pytest.mark.parametrize("operation", ["write", "fsync"])
def test_commit_can_be_repeated_after_a_failure(tmp_path, operation, code):
    """The disk fails at each record; every commit is tried again, and the ledger has each record once."""
    disk = FaultyDisk(tmp_path, operation, None, code)
    with disk.inserted():
        with LedgerWriter(RunDirectory(tmp_path)) as ledger:
            ledger.begin(RunStarted({}, "task", {}, 0))
            for trial in range(20):
                disk.number, disk.failed = disk.count, False
                ledger.stage(TrialAdded(trial, {}, f"hash{trial}", None, "random", 0))
                with pytest.raises(OSError, match=r"No space|Input/output"):
                    ledger.commit()
                disk.number = None
                ledger.commit()
        assert [trial.hash for trial in read_state(RunDirectory(tmp_path)).trials] == [f"hash{i}" for i in range(20)]


@CODES
@pytest.mark.parametrize("operation", OPERATIONS)
def test_failed_write_keeps_the_file_before_it(tmp_path, operation, code):
    path = tmp_path / "predictions.npz"
    write_arrays(path, rows=np.arange(3), outputs=np.zeros(3))
    counter = FaultyDisk(tmp_path, operation, None)
    with counter.inserted():
        write_arrays(path, rows=np.arange(3), outputs=np.ones(3))
    for number in range(counter.count):
        with FaultyDisk(tmp_path, operation, number, code).inserted(), pytest.raises(OSError, match=r"No space|Input"):
            write_arrays(path, rows=np.arange(3), outputs=np.full(3, 2.0))
        assert read_predictions(path)[1].tolist() in ([1.0] * 3, [2.0] * 3)
        assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_failed_directory_keeps_the_one_before_it(tmp_path, operation):
    path = tmp_path / "model"

    def write(text: str) -> None:
        with storage.atomic_directory(path) as partial:
            storage.write_text(partial / "weights", text)
            storage.write_text(partial / "card", text)

    write("old")
    counter = FaultyDisk(tmp_path, operation, None)
    with counter.inserted():
        write("old")
    for number in range(counter.count):
        with contextlib.suppress(OSError), FaultyDisk(tmp_path, operation, number).inserted():
            write("new")
        assert {(path / name).read_text() for name in ("weights", "card")} in ({"old"}, {"new"})
        assert [entry.name for entry in tmp_path.iterdir()] == ["model"]
