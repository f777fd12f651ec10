"""The commands that show and free disk space."""

from __future__ import annotations

import json

from command_line import refuse, succeed

from headhunt import storage
from headhunt.run.directory import RunDirectory
from headhunt.run.ledger import LedgerWriter


def test_cache_shows_sizes_and_clears_everything(own_cache):
    (storage.cache_dir("tables") / "a.arrow").write_bytes(b"x" * 1_500_000)
    (storage.cache_dir("exports", "key") / "model.onnx").write_bytes(b"x" * 500_000)
    shown = succeed("cache")
    assert "1.5 MB  tables" in shown and "0.5 MB  exports" in shown and str(own_cache) in shown
    report = json.loads(succeed("cache", "--clear", "--json"))
    assert report["removed"] == 2_000_000 and set(report["bytes"].values()) == {0}
    assert not list(own_cache.rglob("*.arrow")) and not list(own_cache.rglob("*.onnx"))


def test_cache_of_a_new_user_is_empty(own_cache):
    assert "0.0 MB  tables" in succeed("cache") and not own_cache.exists()


def test_clean_keeps_what_a_search_can_continue_from_and_refuses_a_running_one(tmp_path):
    directory = RunDirectory(tmp_path / "run")
    with LedgerWriter(directory):
        for rung in range(3):
            storage.write_bytes(directory.checkpoint(7, rung) / "state", b"x" * 1_000_000)
        refuse("clean", directory.path, fragments=["Only one process"])
    storage.link_or_copy(directory.checkpoint(7, 2) / "state", directory.checkpoint(7, 1) / "linked")
    assert "removed 2.0 MB; 1.0 MB are left" in succeed("clean", directory.path)
    assert list(directory.checkpoint_sizes()) == [(7, 2)]
    refuse("clean", tmp_path, fragments=["not the run directory of a search"])
    assert not list(tmp_path.glob("ledger*"))
