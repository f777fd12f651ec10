"""Write files atomically, take locks and find the cache directory.

A reader never sees half a file: data goes to a temporary file with a unique name in the same directory, is synced, and
is renamed into place. Directories are written the same way.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import filelock
import platformdirs

CACHE_VARIABLE = "HEADHUNT_CACHE"
PARTIAL = ".partial"  # the suffix of every temporary file and directory

LockTimeout = filelock.Timeout
"""Raised by `hold_lock` if another process holds the lock."""


def cache_dir(*names: str) -> Path:
    """Return a directory inside Headhunt's cache, creating it readable by this user only.

    The cache is `$HEADHUNT_CACHE`, or the platform's cache directory for applications.
    """
    root = os.environ.get(CACHE_VARIABLE) or platformdirs.user_cache_dir("headhunt", appauthor=False)
    path = Path(root, *names)
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    return path


@contextmanager
def atomic_file(path: Path, *, sync: bool = True) -> Iterator[IO[bytes]]:
    """Open a temporary file that replaces `path` when the block ends without an error.

    Args:
        path: The file to write. A symbolic link at this place is replaced, not followed.
        sync: Flush the data to disk before renaming. Pass False for files that can be computed again.
    """
    with atomic_path(path, sync=sync) as partial, partial.open("wb") as file:
        yield file


@contextmanager
def atomic_path(path: Path, *, sync: bool = True) -> Iterator[Path]:
    """Yield the name of a temporary file, for libraries that open files themselves; see `atomic_file`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = _partial(path)
    partial.open("xb").close()  # fails if anything, a link too, has this name
    try:
        yield partial
        if sync:
            with partial.open("r+b") as file:
                os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    if sync:
        sync_directory(path.parent)


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file atomically."""
    with atomic_file(path) as file:
        file.write(data)


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 text file atomically."""
    write_bytes(path, text.encode())


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Write an indented JSON file atomically."""
    write_text(path, json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


@contextmanager
def atomic_directory(path: Path) -> Iterator[Path]:
    """Yield an empty temporary directory that replaces `path` when the block ends without an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = _partial(path)
    partial.mkdir()
    try:
        yield partial
        replace_directory(partial, path)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    sync_directory(path.parent)


def replace_directory(source: Path, target: Path) -> None:
    """Move a directory to `target`, removing what is there. A symbolic link at `target` is removed, not followed."""
    if target.is_symlink() or target.is_file():
        target.unlink()
    elif target.exists():
        # Rename first: a reader then finds the old directory or the new one, never one that is half removed.
        old = _partial(target)
        target.replace(old)
        source.replace(target)
        shutil.rmtree(old, ignore_errors=True)
        return
    source.replace(target)


def link_or_copy(source: str | Path, target: str | Path) -> None:
    """Give a file a second name, or copy it where the file system has no hard links."""
    try:
        os.link(source, target)
    except FileExistsError:
        raise
    except OSError:
        shutil.copyfile(source, target)


def copy_directory(source: Path, target: Path) -> None:
    """Copy a directory atomically, with hard links to its files where the file system has them."""
    with atomic_directory(target) as partial:
        shutil.copytree(source, partial, copy_function=link_or_copy, dirs_exist_ok=True)


def find_obstacle(path: Path) -> str | None:
    """Return why a directory cannot be used for new output; None if it can."""
    if path.exists() and any(path.iterdir() if path.is_dir() else [path]):
        return f"{path} has files in it"
    nearest = next(parent for parent in (path, *path.absolute().parents) if parent.exists())
    return None if nearest.is_dir() and os.access(nearest, os.W_OK) else f"{nearest} cannot be written to"


def directory_size(path: Path) -> int:
    """Return the bytes in a directory; 0 if it is missing."""
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def hold_lock(path: Path, timeout: float = 0.0) -> filelock.FileLock:
    """Take a lock that the operating system releases if this process dies.

    Args:
        path: The lock file.
        timeout: Seconds to wait for another process; negative waits for ever.

    Raises:
        LockTimeout: If another process holds the lock.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = filelock.FileLock(path, timeout=timeout)
    lock.acquire()
    return lock


def sync_directory(path: Path) -> None:
    """Make the names of new files in a directory durable."""
    if os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _partial(path: Path) -> Path:
    """Return a unique name for a temporary file or directory beside `path`."""
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}{PARTIAL}")
