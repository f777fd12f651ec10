"""Storage: a reader sees a complete file or the one before, whatever happens to the writer."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading

import pytest

from headhunt import storage


def write_half(path):
    with storage.atomic_file(path) as file:
        file.write(b"half")
        raise RuntimeError


def write_half_a_directory(path):
    with storage.atomic_directory(path) as partial:
        (partial / "weights").write_text("new")
        raise RuntimeError


def test_atomic_file_replaces_only_on_success(tmp_path):
    path = tmp_path / "a.json"
    storage.write_json(path, {"n": 1})
    with pytest.raises(RuntimeError):
        write_half(path)
    assert json.loads(path.read_text()) == {"n": 1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.json"], "no temporary file is left behind"


def test_atomic_file_replaces_a_link_and_leaves_its_target_alone(tmp_path):
    target = tmp_path / "target"
    target.write_text("untouched")
    (tmp_path / "link").symlink_to(target)
    storage.write_text(tmp_path / "link", "new")
    assert target.read_text() == "untouched" and not (tmp_path / "link").is_symlink()


def test_atomic_file_has_the_permissions_of_an_ordinary_file(tmp_path):
    storage.write_text(tmp_path / "ours", "x")
    (tmp_path / "theirs").write_text("x")
    assert stat.S_IMODE((tmp_path / "ours").stat().st_mode) == stat.S_IMODE((tmp_path / "theirs").stat().st_mode)


def test_concurrent_writers_never_mix(tmp_path):
    path = tmp_path / "shared"
    texts = [str(number) * 5000 for number in range(8)]

    def write(text: str) -> None:
        for _ in range(10):
            storage.write_text(path, text)

    threads = [threading.Thread(target=write, args=(text,)) for text in texts]
    for thread in threads:
        thread.start()
    seen = set()
    while any(thread.is_alive() for thread in threads):
        if path.exists():
            seen.add(path.read_text())
    assert seen <= set(texts) and path.read_text() in texts
    assert [entry.name for entry in tmp_path.iterdir()] == ["shared"]


def test_write_json_refuses_numbers_that_are_not_finite(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        storage.write_json(tmp_path / "a", {"x": float("nan")})
    assert not list(tmp_path.iterdir())


def test_atomic_directory_replaces_only_on_success(tmp_path):
    path = tmp_path / "model"
    with storage.atomic_directory(path) as partial:
        (partial / "weights").write_text("old")
    with pytest.raises(RuntimeError):
        write_half_a_directory(path)
    assert (path / "weights").read_text() == "old"
    with storage.atomic_directory(path) as partial:
        (partial / "other").write_text("new")
    assert [entry.name for entry in path.iterdir()] == ["other"]
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]


def test_copy_directory_shares_files_that_are_replaced_not_changed(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "card").write_text("one")
    storage.copy_directory(tmp_path / "a", tmp_path / "b")
    storage.write_text(tmp_path / "b" / "card", "two")
    assert (tmp_path / "a" / "card").read_text() == "one"


def test_lock_is_exclusive_and_released_when_its_holder_dies(tmp_path):
    code = "import sys, time; from headhunt import storage; from pathlib import Path; "
    code += "lock = storage.hold_lock(Path(sys.argv[1])); print('locked', flush=True); time.sleep(60)"
    child = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "lock")], stdout=subprocess.PIPE)
    assert child.stdout is not None and child.stdout.readline()
    with pytest.raises(storage.LockTimeout):
        storage.hold_lock(tmp_path / "lock")
    child.kill()
    child.wait()
    child.stdout.close()
    storage.hold_lock(tmp_path / "lock").release()


def test_cache_dir_follows_the_environment_and_is_private(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADHUNT_CACHE", str(tmp_path / "cache"))
    folder = storage.cache_dir("tables")
    assert folder == tmp_path / "cache" / "tables" and folder.is_dir()
    assert stat.S_IMODE(folder.stat().st_mode) & 0o077 == 0
    monkeypatch.delenv("HEADHUNT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    if sys.platform == "linux":
        assert storage.cache_dir().is_relative_to(tmp_path / "xdg")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_atomic_file_in_a_read_only_directory_is_an_error(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(OSError, match="denied"):
        storage.write_text(tmp_path / "a", "x")
