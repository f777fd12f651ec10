"""A disk that forgets what was not synced, as after a power cut."""

from __future__ import annotations

import builtins
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock


class VolatileDisk:
    """Records which contents and names below a directory were synced.

    Args:
        root: The directory.
        observe: Called after every operation that changes what is on the disk.
    """

    def __init__(self, root: Path, observe: Callable[[VolatileDisk], None]) -> None:
        self.root, self.observe = root, observe
        self._contents: dict[int, bytes] = {}  # by inode, as of its last sync
        self._names: dict[int, dict[str, int]] = {}  # of a directory, by inode, as of its last sync

    def without_data(self) -> dict[str, bytes]:
        """Return the files after a power cut that spared all names, but no data that was not synced: it is zeros."""
        files = {}
        for path in (path for path in self.root.rglob("*") if path.is_file() and not path.is_symlink()):
            state = path.stat()
            kept = self._contents.get(state.st_ino, b"")[: state.st_size]
            files[str(path.relative_to(self.root))] = kept + bytes(state.st_size - len(kept))
        return files

    def without_names(self) -> dict[str, bytes]:
        """Return the files after a power cut that spared no name and no data that was not synced."""
        files: dict[str, bytes] = {}

        def walk(inode: int, prefix: str) -> None:
            for name, child in self._names.get(inode, {}).items():
                if child in self._names or child not in self._contents:
                    walk(child, f"{prefix}{name}/")
                else:
                    files[f"{prefix}{name}"] = self._contents[child]

        walk(self.root.stat().st_ino, "")
        return files

    def _forget_inode(self, path: Any) -> None:
        """Forget what had the number of a new file or directory before: numbers of removed ones are used again."""
        inode = Path(path).stat().st_ino
        self._contents.pop(inode, None)
        self._names.pop(inode, None)

    @contextmanager
    def inserted(self) -> Iterator[VolatileDisk]:
        """Use this disk in the block."""
        real_open, real_os_open, real_replace, real_mkdir = io.open, os.open, os.replace, os.mkdir
        inside = str(self.root)

        def forget(path: Any) -> None:
            if str(path).startswith(inside) and Path(path).stat().st_size == 0:
                self._forget_inode(path)
                self.observe(self)

        def mkdir(path: Any, *args: Any, **options: Any) -> None:
            real_mkdir(path, *args, **options)
            if str(path).startswith(inside):
                self._forget_inode(path)

        def open_file(path: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
            file = real_open(path, mode, *args, **options)
            if not isinstance(path, int) and set(mode) & set("wax+"):
                forget(path)
            return file

        def os_open(path: Any, flags: int, *args: Any, **options: Any) -> int:
            descriptor = real_os_open(path, flags, *args, **options)
            if flags & (os.O_WRONLY | os.O_RDWR):
                forget(path)
            return descriptor

        def fsync(descriptor: int) -> None:
            path = Path(f"/proc/self/fd/{descriptor}").readlink()
            if not str(path).startswith(inside):
                return
            inode = os.fstat(descriptor).st_ino
            self.observe(self)
            if path.is_dir():
                self._names[inode] = {entry.name: entry.inode() for entry in os.scandir(path)}
            else:
                self._contents[inode] = path.read_bytes()
            self.observe(self)

        def replace(source: Any, target: Any, **options: Any) -> None:
            real_replace(source, target, **options)
            if str(target).startswith(inside):
                self.observe(self)

        with (
            mock.patch.multiple(os, open=os_open, fsync=fsync, replace=replace, mkdir=mkdir),
            mock.patch.object(io, "open", open_file),
            mock.patch.object(builtins, "open", open_file),
        ):
            yield self


def write_tree(folder: Path, files: dict[str, bytes]) -> None:
    """Write files into a directory."""
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
