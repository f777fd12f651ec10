"""A disk that fails at the Nth operation: opening to write, writing, syncing or renaming."""

from __future__ import annotations

import builtins
import errno
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

OPERATIONS = ("open", "write", "fsync", "rename")


class FaultyDisk:
    """Counts operations below a directory and fails one of them.

    Args:
        root: The directory; other files are left alone.
        operation: One of `OPERATIONS`.
        number: The operation that fails, counted from 0; None counts only.
        code: The error, such as ENOSPC.
        lasting: Fail every later operation too, as a full disk does.
    """

    def __init__(
        self, root: Path, operation: str, number: int | None, code: int = errno.ENOSPC, lasting: bool = False
    ) -> None:
        self.root, self.operation, self.number, self.code = str(root), operation, number, code
        self.lasting, self.count, self.failed = lasting, 0, False

    def check(self, operation: str, path: Any) -> None:
        """Count an operation, or fail it."""
        if operation != self.operation or not str(path).startswith(self.root):
            return
        self.count += 1
        reached = self.number is not None and self.count > self.number
        if reached and (self.lasting or not self.failed):
            self.failed = True
            raise OSError(self.code, os.strerror(self.code), str(path))

    @contextmanager
    def inserted(self) -> Iterator[FaultyDisk]:
        """Use this disk in the block."""
        real_open, real_os_open, real_fdopen = io.open, os.open, os.fdopen
        real_replace, real_rename = os.replace, os.rename

        def name_of(descriptor: int) -> str:
            return str(Path(f"/proc/self/fd/{descriptor}").readlink())

        def wrap(file: Any, path: Any) -> Any:
            return _File(file, path, self)

        def open_file(path: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
            if isinstance(path, int) or not set(mode) & set("wax+"):
                return real_open(path, mode, *args, **options)
            self.check("open", path)
            file = real_open(path, mode, *args, **options)
            return wrap(file, path) if str(path).startswith(self.root) else file

        def os_open(path: Any, flags: int, *args: Any, **options: Any) -> int:
            if flags & (os.O_WRONLY | os.O_RDWR):
                self.check("open", path)
            return real_os_open(path, flags, *args, **options)

        def fdopen(descriptor: int, *args: Any, **options: Any) -> Any:
            name = name_of(descriptor)
            file = real_fdopen(descriptor, *args, **options)
            return wrap(file, name) if name.startswith(self.root) else file

        def fsync(descriptor: int) -> None:
            self.check("fsync", name_of(descriptor))  # tests need not wait for the disk

        def replace(source: Any, target: Any, **options: Any) -> None:
            self.check("rename", source)
            real_replace(source, target, **options)

        def rename(source: Any, target: Any, **options: Any) -> None:
            self.check("rename", source)
            real_rename(source, target, **options)

        patches = {"open": os_open, "fdopen": fdopen, "fsync": fsync, "replace": replace, "rename": rename}
        with (
            mock.patch.multiple(os, **patches),
            mock.patch.object(io, "open", open_file),
            mock.patch.object(builtins, "open", open_file),
        ):
            yield self


class _File:
    """A file whose writes are counted; one that fails has written a half."""

    def __init__(self, file: Any, path: Any, disk: FaultyDisk) -> None:
        self.__dict__.update(_file=file, _path=path, _disk=disk)

    def write(self, data: Any) -> int:
        try:
            self._disk.check("write", self._path)
        except OSError:
            self._file.write(data[: len(data) // 2])
            raise
        return self._file.write(data)

    def __enter__(self) -> _File:
        return self

    def __exit__(self, *_: Any) -> None:
        self._file.close()

    def __iter__(self) -> Any:
        return iter(self._file)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)
