"""Power cuts at any moment: what was recorded is there afterwards, what is there can be read, the search continues."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest
from power_loss import VolatileDisk, write_tree
from study_toys import RUNGS, TINY, Search, evaluate_toy, leaderboard, run_study, toy_options

from headhunt import storage
from headhunt.run.directory import RunDirectory, read_predictions, write_arrays
from headhunt.run.ledger import LedgerWriter, read_state
from headhunt.run.state import Outcome
from headhunt.study.budget import TimeBudget
from headhunt.study.candidates import Candidates
from headhunt.study.executors import InlineExecutor
from headhunt.study.requests import EvaluateTrial
from headhunt.study.study import Study

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads the names of descriptors from /proc")
TRIALS = 3
Files = dict[str, bytes]


def evaluate_and_save(request: EvaluateTrial) -> Outcome:
    """Store predictions and a checkpoint of each trial, as a real evaluation does."""
    outcome = evaluate_toy(request)
    write_arrays(request.predictions, rows=np.arange(3), outputs=np.full(3, outcome.score))
    storage.write_text(request.checkpoint / "fold-0" / "state", "trained")
    return outcome


def record(folder: Path) -> list[tuple[int, Files]]:
    """Run a search; return each different state of the disk after a power cut, and the results that were settled."""
    cuts: list[tuple[int, Files]] = []
    promised = 0  # results that a commit has returned for

    def observe(disk: VolatileDisk) -> None:
        for files in (disk.without_data(), disk.without_names()):
            if (promised, files) not in cuts:
                cuts.append((promised, files))

    root = folder / "disk"
    root.mkdir()
    disk = VolatileDisk(root, observe)
    commit = LedgerWriter.commit

    def commit_and_note(self: LedgerWriter) -> None:
        nonlocal promised
        commit(self)
        promised = len(self.state.settled)

    with pytest.MonkeyPatch.context() as patch, disk.inserted():
        patch.setattr(LedgerWriter, "commit", commit_and_note)
        with LedgerWriter(RunDirectory(root / "run")) as ledger:
            candidates, executor = Candidates(TINY, encoder="toy"), InlineExecutor(evaluate_and_save)
            Search(Study(ledger, candidates, toy_options(trials=TRIALS, **RUNGS), TimeBudget(None)), executor).run()
    return cuts


def test_search_continues_after_a_power_cut_at_any_moment(tmp_path):
    expected = leaderboard(run_study(tmp_path / "undisturbed", evaluate_and_save, trials=TRIALS))
    cuts = record(tmp_path)
    assert len(cuts) > 50 and max(promised for promised, _ in cuts) >= 3
    for number, (promised, files) in enumerate(cuts):
        folder = tmp_path / str(number)
        write_tree(folder, files)
        run = RunDirectory(folder / "run")
        settled = read_state(run).settled if run.ledger.exists() and run.ledger.stat().st_size else []
        assert len(settled) >= promised, "a result that was recorded is lost"
        for trial, rung in settled:
            if not any(path.name.startswith(f"{trial:06d}-") for path in run.path.glob("predictions/*.npz")):
                raise AssertionError(f"predictions of trial {trial} are lost")
            if (path := run.predictions(trial, rung)).exists():
                read_predictions(path)
        resumed = run_study(run.path, evaluate_and_save, trials=TRIALS)
        assert leaderboard(resumed) == expected, (number, [trial.results for trial in resumed.state.trials])
        assert not list(folder.rglob(f"*{storage.PARTIAL}"))
        for trial in resumed.state.trials:
            assert trial.best and read_predictions(run.predictions(trial.number, trial.best[0]))[1][0] == trial.best[1]


def test_disk_forgets_a_removed_file_whose_number_a_new_directory_has(tmp_path):
    """A file system uses the numbers of removed files again, most often under load."""
    root = tmp_path / "disk"
    root.mkdir()
    disk = VolatileDisk(root, lambda disk: None)
    with disk.inserted():
        storage.write_text(root / "a", "gone")
        inode = (root / "a").stat().st_ino
        (root / "a").unlink()
        real_stat = Path.stat
        with pytest.MonkeyPatch.context() as patch:  # as if the directory had the number of the file
            patch.setattr(
                Path, "stat", lambda path, **options: os.stat_result((0, inode, *[0] * 8)) if path.name == "b"
                else real_stat(path, **options)
            )  # fmt: skip
            (root / "b").mkdir()
    assert inode not in disk._contents


def test_model_is_complete_after_a_power_cut_at_any_moment(tmp_path):
    """A model replaces another one: after any cut one of the two is there, complete."""
    root, cuts = tmp_path / "disk", []
    root.mkdir()
    disk = VolatileDisk(root, lambda disk: cuts.extend((disk.without_data(), disk.without_names())))

    def write(text: str) -> None:
        with storage.atomic_directory(root / "models" / "best") as partial:
            (partial / "weights").write_text(text)
            storage.write_text(partial / "headhunt.json", text)

    with disk.inserted():
        write("first")
        cuts.clear()
        write("other")
    assert len(cuts) > 10
    for files in cuts:
        model = {name: content for name, content in files.items() if name.startswith("models/best/")}
        assert len(model) == 2 and set(model.values()) in ({b"first"}, {b"other"}), model
