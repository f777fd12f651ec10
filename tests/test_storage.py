"""Storage: a reader sees a complete file or the one before, whatever happens to the writer."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

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


@pytest.mark.parametrize("umask", [0o002, 0o077])
def test_new_files_have_the_permissions_of_ordinary_ones(tmp_path, umask):
    def save(path):
        save_file({"x": np.zeros(1)}, path)

    before = os.umask(umask)
    try:
        (tmp_path / "ordinary").write_text("x")
        storage.write_text(tmp_path / "text", "x")
        with storage.atomic_path(tmp_path / "weights") as path:
            save(path)
        with storage.atomic_directory(tmp_path / "model") as folder:
            (folder / "inner").mkdir()
            save(folder / "inner" / "model.safetensors")
    finally:
        os.umask(before)
    files = ["text", "weights", "model/inner/model.safetensors"]
    modes = {name: stat.S_IMODE((tmp_path / name).stat().st_mode) for name in files}
    assert set(modes.values()) == {0o666 & ~umask}, modes


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
    for path in (folder, folder.parent):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700, path
        path.chmod(0o777)
    storage.cache_dir("tables")
    assert {stat.S_IMODE(path.stat().st_mode) for path in (folder, folder.parent)} == {0o700}
    monkeypatch.delenv("HEADHUNT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    if sys.platform == "linux":
        assert storage.cache_dir().is_relative_to(tmp_path / "xdg")


def test_cache_dir_refuses_a_directory_of_another_user(own_cache, monkeypatch):
    storage.cache_dir("exports")
    real = os.stat_result
    owner = own_cache.stat().st_uid + 4711

    stat_of_this = type(own_cache).stat

    def stat_of_another(self, **options):
        values = list(stat_of_this(self, **options))
        values[4] = owner
        return real(values)

    monkeypatch.setattr(os, "geteuid", lambda: 1234)
    monkeypatch.setattr(type(own_cache), "stat", stat_of_another)
    with pytest.raises(
        storage.CacheOwnerError, match=rf"belongs to user {owner}\. Set HEADHUNT_CACHE to a folder of your own"
    ):
        storage.cache_dir("exports")


@pytest.mark.parametrize("place", ["", "exports"])
def test_linked_cache_is_refused_and_left_alone(own_cache, tmp_path, place):
    target = tmp_path / "target"
    (target / "exports" / "old").mkdir(parents=True)
    os.utime(target / "exports" / "old", (0, 0))
    for folder in (target, target / "exports"):
        folder.chmod(0o755)
    shutil.rmtree(own_cache, ignore_errors=True)
    if place:
        own_cache.mkdir()
    (own_cache / place).symlink_to(target / place)
    with pytest.raises(storage.CacheOwnerError, match="must not be a link"):
        storage.cache_dir("exports")
    assert storage.prune_cache("exports") == 0 and (target / "exports" / "old").exists()
    assert {stat.S_IMODE(folder.stat().st_mode) for folder in (target, target / "exports")} == {0o755}


def test_prune_cache_removes_unused_then_oldest_entries(own_cache):
    folder = storage.cache_dir("tables")
    now = time.time()
    for name, days in (("ancient", 100), ("old", 3), ("new", 1)):
        (folder / name).write_bytes(b"x" * 1000)
        os.utime(folder / name, (now - days * 86_400,) * 2)
    (folder / "key.lock").touch()
    assert storage.prune_cache("tables") == 1000 and not (folder / "ancient").exists()
    storage.mark_used(folder / "old")
    assert storage.prune_cache("tables", max_bytes=1500) == 1000
    assert {path.name for path in folder.iterdir()} == {"old", "key.lock"}
    assert storage.prune_cache("nothing") == 0


def test_replace_directory_never_leaves_the_target_missing(tmp_path, monkeypatch):
    """Crash at every rename: a complete directory is at the target after each."""
    for exchange in (storage._exchange, lambda *_: False):
        monkeypatch.setattr(storage, "_exchange", exchange)
        target, source = tmp_path / "model", tmp_path / "new"
        for folder, text in ((target, "old"), (source, "new")):
            folder.mkdir(exist_ok=True)
            (folder / "weights").write_text(text)
        real, calls = type(target).replace, []

        def fail_second(self, other, real=real, calls=calls):
            calls.append(other)
            if len(calls) == 2:
                raise OSError("power cut")
            return real(self, other)

        with monkeypatch.context() as patch:
            patch.setattr(type(target), "replace", fail_second)
            try:
                storage.replace_directory(source, target)
            except OSError:
                assert (target / "weights").read_text() == "old"
        assert (target / "weights").read_text() in ("old", "new")
        storage.remove(source)


@pytest.mark.skipif(sys.platform != "linux", reason="the exchange of names depends on the system")
def test_replace_directory_exchanges_names_in_one_step(tmp_path, monkeypatch):
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    monkeypatch.setattr(type(tmp_path), "replace", None)
    storage.replace_directory(tmp_path / "new", tmp_path / "old")
    assert [entry.name for entry in tmp_path.iterdir()] == ["old"] and (tmp_path / "old" / "new").exists()


def test_atomic_directory_syncs_every_file_before_it_appears(tmp_path, monkeypatch):
    synced = []
    real = os.fsync

    def fsync(descriptor):
        synced.append((Path(f"/proc/self/fd/{descriptor}").readlink(), (tmp_path / "model").exists()))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with storage.atomic_directory(tmp_path / "model") as partial:
        (partial / "weights").write_text("x")
        (partial / "nested").mkdir()
        (partial / "nested" / "more").write_text("x")
    before = {name.name for name, exists in synced if not exists}
    assert before >= {"weights", "more", "nested"} and synced[-1] == (tmp_path, True)


def test_directory_size_tolerates_files_that_vanish(tmp_path, monkeypatch):
    (tmp_path / "a").write_bytes(b"12345")
    (tmp_path / "b").write_bytes(b"1")
    real = os.lstat

    def lstat(path, **options):
        if str(path).endswith("b"):
            raise FileNotFoundError(path)
        return real(path, **options)

    monkeypatch.setattr(os, "lstat", lstat)
    assert storage.directory_size(tmp_path) == 5 and storage.directory_size(tmp_path / "missing") == 0


def test_hold_lock_creates_a_directory_that_others_remove_meanwhile(tmp_path):
    folder, done = tmp_path / "folder", threading.Event()

    def remove() -> None:
        while not done.wait(0.0002):
            with contextlib.suppress(OSError):
                folder.rmdir()

    remover = threading.Thread(target=remove)
    remover.start()
    try:
        for _ in range(1000):
            lock = storage.hold_lock(folder / "lock")
            (folder / "lock").unlink(missing_ok=True)
            lock.release()
    finally:
        done.set()
        remover.join()


def test_hold_lock_replaces_a_link_and_leaves_its_target_alone(tmp_path):
    (tmp_path / "target").write_text("untouched")
    (tmp_path / "lock").symlink_to(tmp_path / "target")
    storage.hold_lock(tmp_path / "lock").release()
    assert (tmp_path / "target").read_text() == "untouched" and not (tmp_path / "lock").is_symlink()


def test_link_or_copy_keeps_permissions(tmp_path, monkeypatch):
    (tmp_path / "a").write_text("secret")
    (tmp_path / "a").chmod(0o600)
    monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(OSError("no links here")))
    storage.link_or_copy(tmp_path / "a", tmp_path / "b")
    assert stat.S_IMODE((tmp_path / "b").stat().st_mode) == 0o600


def test_sweep_partial_removes_leftovers_only(tmp_path):
    for name in (".a.0123.partial", "kept", ".kept"):
        (tmp_path / name).touch()
    (tmp_path / ".b.4567.partial").mkdir()
    storage.sweep_partial(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"kept", ".kept"}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_atomic_file_in_a_read_only_directory_is_an_error(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(OSError, match="denied"):
        storage.write_text(tmp_path / "a", "x")
