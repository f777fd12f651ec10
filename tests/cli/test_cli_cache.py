"""The command that shows and clears the cache."""

from __future__ import annotations

import json

from command_line import succeed

from headhunt import storage


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
