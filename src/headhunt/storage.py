"""Write files atomically, parse JSON safely, take locks and find the cache directory.

A reader never sees half a file: data goes to a temporary file, is synced and renamed into place. So do directories.
"""

from __future__ import annotations

import ctypes
import errno
import json
import math
import os
import re
import secrets
import shutil
import stat
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import filelock
import platformdirs

CACHE_VARIABLE = "HEADHUNT_CACHE"
PARTIAL = ".partial"  # the suffix of every temporary file and directory
MAX_CACHE_BYTES = 20 << 30  # of each directory inside the cache
MAX_CACHE_DAYS = 60  # since the last use
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.EROFS)
MAX_DIGITS = 100  # of an integer in a file; a float holds three times as many
LOCK_ATTEMPTS = 100  # to create a directory that other processes remove
MAX_DEPTH = 64  # levels of nested lists and objects in a file

LockTimeout = filelock.Timeout
"""Raised by `hold_lock` if another process holds the lock."""


class CacheOwnerError(RuntimeError):
    """The cache belongs to another user, or is a link. Not an `OSError`, which readers of data report as damage."""


def cache_root() -> Path:
    """Return the cache: `$HEADHUNT_CACHE`, or the platform's cache directory for applications."""
    return Path(os.environ.get(CACHE_VARIABLE) or platformdirs.user_cache_dir("headhunt", appauthor=False))


def cache_dir(*names: str) -> Path:
    """Return a directory inside Headhunt's cache, creating it readable by this user only.

    Raises:
        CacheOwnerError: If the cache belongs to another user, or is a link.
    """
    path = cache_root()
    path.parent.mkdir(parents=True, exist_ok=True)
    for name in ("", *names):
        path = path / name
        path.mkdir(exist_ok=True, mode=0o700)
        _make_private(path)
    return path


def _make_private(path: Path) -> None:
    """Refuse a link and a directory of another user, and take all rights from others in one of this user."""
    if os.name == "nt":
        return
    state = path.lstat()
    if stat.S_ISLNK(state.st_mode):
        raise CacheOwnerError(f"The cache must not be a link; found {path}. Set {CACHE_VARIABLE} to its target.")
    user = os.geteuid()
    if state.st_uid not in (user, 0) and user != 0:
        raise CacheOwnerError(
            f"The cache must belong to this user; {path} belongs to user {state.st_uid}. "
            f"Set {CACHE_VARIABLE} to a folder of your own."
        )
    if state.st_uid == user and stat.S_IMODE(state.st_mode) & 0o077:
        path.chmod(0o700)


def copy_permissions(source: Path, target: Path) -> None:
    """Give a file the permissions of another one, or those of a directory that files in it have."""
    target.chmod(stat.S_IMODE(source.stat().st_mode) & 0o666 | stat.S_IRUSR)


def share_weights(folder: Path, like: Path) -> None:
    """Give new weights the permissions of other files: safetensors lets only this user read what it writes.

    Args:
        folder: The folder of the weights. Files that share their content with others stay as they are.
        like: A file or directory that was written with the user's umask.
    """
    for path in folder.rglob("*.safetensors"):
        if path.lstat().st_nlink == 1 and not path.is_symlink():
            copy_permissions(like, path)


def prune_cache(
    name: str | Path, *, max_bytes: int = MAX_CACHE_BYTES, max_days: float = MAX_CACHE_DAYS, keep: Path | None = None
) -> int:
    """Remove entries of a directory in the cache: unused ones, then the oldest until the rest fits.

    Use is recorded by `mark_used`. A process that has mapped an entry can go on using it.

    Args:
        name: Name of the directory inside the cache, or its path.
        max_bytes: Bytes that all entries may have.
        max_days: Days that an entry may stay unused.
        keep: An entry that stays and does not count.

    Returns:
        The bytes removed.
    """
    root = cache_root() / name
    if not root.is_dir() or root.is_symlink() or root.parent.is_symlink():
        return 0
    entries = []
    for path in root.iterdir():
        with suppress(FileNotFoundError):
            if path.suffix != ".lock" and path != keep:
                entries.append((path.lstat().st_mtime, directory_size(path), path))
    oldest = time.time() - max_days * 86_400
    total, removed = sum(size for _, size, _ in entries), 0
    for used, size, path in sorted(entries):
        if used >= oldest and total - removed <= max_bytes:
            break
        remove(path)
        removed += size
    return removed


def mark_used(path: Path) -> None:
    """Record that an entry of the cache is used now."""
    with suppress(OSError):
        os.utime(path)


def remove(path: Path) -> None:
    """Remove a file or a directory, if present. A symbolic link is removed, not followed."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def make_directory(path: Path) -> None:
    """Create a directory and its parents, if missing, and make their names durable."""
    if path.is_dir():
        return
    make_directory(path.parent)
    path.mkdir(exist_ok=True)
    sync_directory(path.parent)


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
    make_directory(path.parent)
    partial = _partial(path)
    partial.open("xb").close()  # fails if anything, a link too, has this name
    mode = stat.S_IMODE(partial.stat().st_mode)
    try:
        yield partial
        partial.chmod(mode)  # safetensors makes a file that only this user can read
        if sync:
            sync_file(partial)
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


def read_json(path: Path) -> Any:
    """Read a JSON file that may be damaged or hostile; see `parse_json`."""
    return parse_json(path.read_text(encoding="utf-8"))


def parse_json(text: str | bytes) -> Any:
    """Parse JSON that may be damaged or hostile, so that nothing after it fails on values that JSON allows.

    Raises:
        ValueError: If it is not JSON, nested too deeply, or has half characters, or numbers too large or not finite.
    """
    try:
        value = json.loads(text, **STRICT)
    except RecursionError:
        raise ValueError(f"more than {MAX_DEPTH} levels of nesting") from None
    check_nesting(value)
    marks = ("\\ud", "\\uD") if isinstance(text, str) else (b"\\ud", b"\\uD")
    if any(mark in text for mark in marks):  # type: ignore[operator]
        json.dumps(value, ensure_ascii=False).encode()  # UnicodeEncodeError is a ValueError
    return value


def _parse_integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"an integer of {len(digits):,} digits")
    return int(digits)


def _parse_float(number: str) -> float:
    if not math.isfinite(float(number)):
        raise ValueError(f"{number}, which is no finite number")
    return float(number)


# Arguments of `json.loads` that refuse NaN, Infinity, 1e999 and integers of many digits.
STRICT: dict[str, Any] = {"parse_int": _parse_integer, "parse_float": _parse_float, "parse_constant": _parse_float}


def check_nesting(value: Any) -> None:
    """Refuse nested lists and objects that recursive functions cannot walk.

    Raises:
        ValueError: If there are too many levels.
    """
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            item
            for inner in level
            if isinstance(inner, dict | list)
            for item in (inner.values() if isinstance(inner, dict) else inner)
        ]
        if not level:
            return
    raise ValueError(f"more than {MAX_DEPTH} levels of nesting")


@contextmanager
def atomic_directory(path: Path) -> Iterator[Path]:
    """Yield an empty temporary directory that replaces `path` when the block ends without an error."""
    make_directory(path.parent)
    partial = _partial(path)
    partial.mkdir()
    try:
        yield partial
        share_weights(partial, partial)
        _sync_tree(partial)
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
        if _exchange(source, target):
            shutil.rmtree(source, ignore_errors=True)
            return
        # Without an exchange, rename first: a reader never finds a directory that is half removed.
        old = _partial(target)
        target.replace(old)
        try:
            source.replace(target)
        except BaseException:
            old.replace(target)
            raise
        shutil.rmtree(old, ignore_errors=True)
        return
    source.replace(target)


def _exchange(first: Path, second: Path) -> bool:
    """Exchange two names in one step, so that a crash leaves both; return False where the system cannot."""
    names = os.fsencode(first.absolute()), os.fsencode(second.absolute())
    swap, here = 2, -100  # RENAME_EXCHANGE or RENAME_SWAP, and AT_FDCWD of Linux
    try:
        library = ctypes.CDLL(None, use_errno=True)
        if sys.platform == "linux":
            return bool(library.renameat2(here, names[0], here, names[1], swap) == 0)
        if sys.platform == "darwin":
            return bool(library.renamex_np(*names, swap) == 0)
    except (OSError, AttributeError, TypeError):
        pass
    return False


def _sync_tree(path: Path) -> None:
    """Flush all files below a directory, and their names, to disk."""
    for folder, _, files in os.walk(path):
        for name in files:
            if not Path(folder, name).is_symlink():
                sync_file(Path(folder, name))
        sync_directory(Path(folder))


def link_or_copy(source: str | Path, target: str | Path) -> None:
    """Give a file a second name, or copy it where the file system has no hard links."""
    try:
        os.link(source, target)
    except FileExistsError:
        raise
    except OSError:
        with atomic_path(Path(target), sync=False) as partial:
            shutil.copyfile(source, partial)
        shutil.copymode(source, target)


def copy_directory(source: Path, target: Path) -> None:
    """Copy a directory atomically, with hard links to its files where the file system has them."""
    with atomic_directory(target) as partial:
        shutil.copytree(source, partial, copy_function=link_or_copy, dirs_exist_ok=True)


def disk_failed(error: BaseException) -> bool:
    """Return True if an error means that a disk is full or failing, whatever was written to it.

    Some libraries report it without a number: safetensors in its message, NumPy as a number of items that is too small.
    """
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in DISK_ERRORS
    causes = (error.__cause__, None if error.__suppress_context__ else error.__context__)
    message = str(error)
    return (
        any(os.strerror(code) in message or f"os error {code})" in message for code in DISK_ERRORS)
        or (isinstance(error, OSError) and re.search(r"\d+ requested and \d+ written", message) is not None)
        or any(disk_failed(cause) for cause in causes if cause is not None)
    )


def exists(path: Path) -> bool:
    """Return whether a path exists. One that is too long for a file system, such as a text, does not."""
    try:
        return path.exists()
    except ValueError:  # it has a null character
        return False
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return False
        raise


def find_obstacle(path: Path) -> str | None:
    """Return why a directory cannot be used for new output; None if it can."""
    if path.exists() and any(path.iterdir() if path.is_dir() else [path]):
        return f"{path} has files in it"
    nearest = next(parent for parent in (path, *path.absolute().parents) if parent.exists())
    return None if nearest.is_dir() and os.access(nearest, os.W_OK) else f"{nearest} cannot be written to"


def directory_size(path: Path) -> int:
    """Return the bytes of a file, or of the files in a directory, each counted once; 0 if it is missing."""
    sizes: dict[tuple[int, int], int] = {}
    with suppress(OSError):
        if not path.is_dir():
            return path.lstat().st_size
    for folder, _, files in os.walk(path):
        for name in files:
            with suppress(OSError):  # files may vanish meanwhile
                state = os.lstat(Path(folder, name))
                sizes[state.st_dev, state.st_ino] = state.st_size
    return sum(sizes.values())


def sweep_partial(path: Path, *, deep: bool = False) -> None:
    """Remove temporary files and directories that killed processes left in a directory.

    Args:
        path: The directory.
        deep: Search the directories below it, too.
    """
    for entry in list((path.rglob if deep else path.glob)(f".*{PARTIAL}")):
        remove(entry)


def hold_lock(path: Path, timeout: float = 0.0) -> filelock.FileLock:
    """Take a lock that the operating system releases if this process dies.

    Args:
        path: The lock file.
        timeout: Seconds to wait for another process; negative waits for ever.

    Raises:
        LockTimeout: If another process holds the lock.
    """
    attempts = 0
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.is_symlink():
                path.unlink()  # some versions of filelock empty the file that a link points to
            lock = filelock.FileLock(path, timeout=timeout)
            lock.acquire()
            return lock
        except (FileNotFoundError, FileExistsError):  # another process removed the empty directory meanwhile
            attempts += 1
            if attempts == LOCK_ATTEMPTS:
                raise


def sync_file(path: Path) -> None:
    """Flush a file that was written before to disk."""
    with path.open("r+b" if os.name == "nt" else "rb") as file:
        os.fsync(file.fileno())


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
