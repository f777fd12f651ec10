"""Find the files of a corpus, on this machine or behind a URL, and read their rows in ranges.

Parquet is streamed from its place. Other formats do not allow reading from an arbitrary row, so such a file is read
once, through the cache if it is large, and memory-mapped.
"""

import gzip
import hashlib
import io
import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from headhunt.data.columns import BROKEN, NONE, OTHER, Columns, find_columns, is_string
from headhunt.data.problems import Problems, UnreadableError, brief, find_repeated, quote, quote_some
from headhunt.data.readers import FORMATS, detect_format, read_file
from headhunt.data.sources import Rows
from headhunt.data.tables import Table, TooLargeError, parquet_step
from headhunt.errors import DataError
from headhunt.storage import atomic_file, cache_dir, parse_json

READ_BYTES = 4 << 20  # approximate size of the rows read at a time
_WILD = re.compile(r"[*?\[]")
_QUERY = re.compile(r"\?\w+=[^&?*]*(&\w+=[^&?*]*)*$")


class UnreadableInputError(Exception):
    """Signal that a file, or the rest of it, cannot be read; the message gives the reason."""


@dataclass(frozen=True)
class Input:
    """A file with its size and time at the start of a job."""

    path: str
    """Path on its filesystem, without the root."""
    size: int
    time: int
    """Time of the last change, in nanoseconds."""


def split_url(url: str) -> tuple[str, str]:
    """Split a URL into the root of its filesystem ("" for the local one) and the path on it."""
    scheme, mark, rest = url.partition("://")
    if not mark or scheme == "file":
        return "", Path(rest if mark else url).expanduser().absolute().as_posix()
    query = _QUERY.search(rest)
    options = query.group() if query else ""
    host, _, path = rest.removesuffix(options).partition("/")
    root = f"{scheme}://{host}{options}"
    base = _open(root)[1].rstrip("/")
    return root, f"{base}/{path}".rstrip("/")


def filesystem(root: str) -> pafs.FileSystem:
    """Return the filesystem of a root (see `split_url`)."""
    return _open(root)[0]


@lru_cache(maxsize=8)
def _open(root: str) -> tuple[pafs.FileSystem, str]:
    if not root:
        return pafs.LocalFileSystem(), ""
    try:
        return pafs.FileSystem.from_uri(root)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DataError(
            f"{root} must be the address of a store that Arrow opens, such as s3://bucket, gs://bucket or "
            f"hdfs://host; found: {brief(error)}."
        ) from None


def name_input(root: str, path: str) -> str:
    """Return a path as the user writes it."""
    return f"{root.partition('://')[0]}://{path.lstrip('/')}" if root else path


def find_inputs(source: str) -> tuple[str, list[Input]]:
    """Find the files that a path, folder, glob or URL stands for, sorted by name.

    Args:
        source: One file; a folder with everything below it; or a pattern with `*`, `?`, `[…]` or `**`. Names that start
            with a dot or an underscore are ignored, and so are files of other formats in a folder.

    Returns:
        The root of their filesystem, and the files.

    Raises:
        DataError: If there are no files.
    """
    root, path = split_url(source)
    store = filesystem(root)
    try:
        info = store.get_file_info(path)
        if info.type == pafs.FileType.File:
            return root, [_input(info)]
        if info.type == pafs.FileType.Directory:
            matches = [item for item in _walk(store, path) if detect_format(Path(item.path))]
        elif wild := _WILD.search(path):
            base = path[: wild.start()].rpartition("/")[0]
            pattern = _compile_glob(path)
            recursive = "/" in path[wild.start() :] or "**" in path
            matches = [item for item in _walk(store, base or "/", recursive) if pattern.fullmatch(item.path)]
        else:
            raise DataError(f"The input must be an existing file, folder, pattern or URL; {source!r} does not exist.")
    except FileNotFoundError:
        matches = []
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"The input must be readable; {source!r} is not: {brief(error)}.") from None
    if not matches:
        formats = ", ".join(FORMATS)
        raise DataError(f"The input must match at least one file; {source!r} matches none. Supported: {formats}.")
    return root, sorted(map(_input, matches), key=lambda file: file.path)


def _input(info: pafs.FileInfo) -> Input:
    return Input(info.path, info.size, info.mtime_ns or 0)


def _walk(store: pafs.FileSystem, base: str, recursive: bool = True) -> list[pafs.FileInfo]:
    items = store.get_file_info(pafs.FileSelector(base, recursive=recursive))
    hidden = re.compile(r"(^|/)[._]")
    return [
        item
        for item in items
        if item.type == pafs.FileType.File and not hidden.search(item.path[len(base) :].lstrip("/"))
    ]


def _compile_glob(path: str) -> re.Pattern[str]:
    """Convert a glob to a regular expression for complete paths."""
    wildcards = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    tokens = re.split(r"(\*\*/|\*\*|\*|\?|\[[^\]]+\])", path)
    return re.compile(
        "".join(
            wildcards.get(token)
            or ("[^" + token[2:] if token[:2] == "[!" else token if token[:1] == "[" else re.escape(token))
            for token in tokens
        )
    )


class ParquetRows:
    """Rows of a Parquet file. Reading later rows continues the stream of the last read."""

    def __init__(self, store: pafs.FileSystem, path: str) -> None:
        # Without a buffer, Arrow loads a complete column of a row group into memory.
        self._file = pq.ParquetFile(store.open_input_file(path), buffer_size=READ_BYTES)
        groups = [self._file.metadata.row_group(number) for number in range(self._file.metadata.num_row_groups)]
        self.rows = self._file.metadata.num_rows
        self.schema = self._file.schema_arrow
        self._ends = np.cumsum([group.num_rows for group in groups])
        size = store.get_file_info(path).size or 0
        largest_step = parquet_step(self._file, lambda: store.open_input_file(path), size)
        width = max((group.total_byte_size / max(1, group.num_rows) for group in groups), default=1)
        self._step = min(int(np.clip(READ_BYTES / max(1, width), 16, 8192)), largest_step)
        self._stream: Iterator[pa.RecordBatch] | None = None
        self._at, self._rest = 0, None
        self._columns: list[str] | None = None

    def read(
        self, start: int, stop: int, columns: list[str] | None = None
    ) -> Iterator[tuple[pa.Table, np.ndarray | None]]:
        """Iterate over the rows from `start` to `stop` in tables, each with fault codes, or None without faults."""
        if self._stream is None or start < self._at or columns != self._columns or self._group(start) > self._group():
            first = self._group(start)
            self._at = int(self._ends[first - 1]) if first else 0
            groups = list(range(first, len(self._ends)))
            self._stream = self._file.iter_batches(self._step, groups, columns, use_threads=False)
            self._columns, self._rest = columns, None
        while self._at < stop:
            try:
                piece = self._rest if self._rest is not None else pa.Table.from_batches([next(self._stream)])
            except BaseException as error:
                self._stream = None  # its position is unknown now
                if isinstance(error, StopIteration):
                    raise pa.ArrowInvalid(f"the file ends before row {stop:,}") from None
                raise
            end = self._at + len(piece)
            first, last = max(0, start - self._at), min(end, stop) - self._at
            self._rest = piece.slice(last) if 0 <= last < len(piece) else None
            self._at += max(0, last)
            if last > first:
                yield piece.slice(first, last - first), None

    def _group(self, row: int | None = None) -> int:
        return int(np.searchsorted(self._ends, self._at if row is None else row, side="right"))


class TableRows:
    """Rows of a file that was read completely. Unreadable rows keep their places and are empty."""

    def __init__(self, table: Table, other: np.ndarray) -> None:
        self._table, self._broken, self._other = table.arrow, np.sort(table.skipped), other
        self.rows = len(table.arrow) + len(self._broken)
        self.schema = table.arrow.schema
        self._step = int(np.clip(READ_BYTES * max(1, self.rows) / max(1, table.arrow.nbytes), 16, 8192))

    def read(
        self, start: int, stop: int, columns: list[str] | None = None
    ) -> Iterator[tuple[pa.Table, np.ndarray | None]]:
        """Iterate over rows as `ParquetRows.read` does."""
        table = self._table if columns is None else self._table.select(columns)
        for first in range(start, stop, self._step):
            numbers = np.arange(first, min(first + self._step, stop)) + 1
            if not len(self._broken) and not len(self._other):
                yield table.slice(first, len(numbers)), None
                continue
            broken = np.isin(numbers, self._broken)
            places = numbers - 1 - np.searchsorted(self._broken, numbers)
            codes = np.where(broken, BROKEN, np.where(np.isin(numbers, self._other), OTHER, NONE)).astype(np.int8)
            yield table.take(pa.array(places, mask=broken)), codes


def open_rows(root: str, file: Input, texts: Sequence[str] = ()) -> ParquetRows | TableRows:
    """Open a file.

    Args:
        root: The root of its filesystem.
        file: The file.
        texts: Names of the text columns. In JSON, rows with other values in them are marked as faulty.

    Raises:
        UnreadableInputError: If it cannot be read.
    """
    name = Path(file.path)
    rows: ParquetRows | TableRows
    try:
        if detect_format(name) == "parquet":
            check_unchanged(root, file)
            rows = ParquetRows(filesystem(root), file.path)
        else:
            rows = _read_table(root, file, texts)
    except (OSError, pa.ArrowException, TooLargeError) as error:
        raise UnreadableInputError(brief(error)) from None
    if repeated := find_repeated(rows.schema.names):
        raise UnreadableInputError(f"{quote_some(repeated)} names two columns")
    return rows


def check_unchanged(root: str, file: Input) -> None:
    """Check that a file is the same as at the start of the job.

    Raises:
        UnreadableInputError: If it was changed or removed.
    """
    try:
        if _input(filesystem(root).get_file_info(file.path)) == file:
            return
    except (OSError, pa.ArrowException) as error:
        raise UnreadableInputError(brief(error)) from None
    raise UnreadableInputError("the file was changed or removed meanwhile")


def _read_table(root: str, file: Input, texts: Sequence[str]) -> TableRows:
    check_unchanged(root, file)
    path = _fetch(root, file) if root else Path(file.path)
    problems = Problems(path.name)
    try:
        table = read_file(path, "", problems)
    except UnreadableError:
        raise UnreadableInputError("; ".join(line.strip(" :-") for line in problems.lines)) from None
    mixed = [name for name in texts if name in table.mixed]
    other = np.unique(np.concatenate([_not_text(path, name) for name in mixed])) if mixed else np.empty(0, np.int64)
    return TableRows(table, other)


def _fetch(root: str, file: Input) -> Path:
    """Copy a remote file into the cache, because the readers of text formats read a file more than once."""
    key = hashlib.blake2b(repr((root, file)).encode(), digest_size=12).hexdigest()
    path = cache_dir("tables") / f"{key}-{PurePosixPath(file.path).name}"
    if not path.exists():
        with atomic_file(path) as copy, filesystem(root).open_input_stream(file.path, None) as remote:
            shutil.copyfileobj(remote, copy, READ_BYTES)
        os.utime(path, ns=(file.time, file.time))  # the time is in the key of the converted table
    return path


def _not_text(path: Path, name: str) -> np.ndarray:
    """Return the numbers of the rows of a JSON file in which a text column holds another type."""
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as raw:
        file = io.TextIOWrapper(raw, encoding="utf-8-sig")
        start = file.read(1 << 16).lstrip()[:1]
        file.seek(0)
        values: Any = json.load(file) if start == "[" else (line for line in file if line.strip())
        numbers = []
        for number, value in enumerate(values, 1):
            try:
                row = parse_json(value) if isinstance(value, str) else value
            except ValueError:
                continue  # already reported as unreadable
            if isinstance(row, dict) and not isinstance(row.get(name), str | None):
                numbers.append(number)
    return np.array(numbers, np.int64)


def choose_columns(
    rows: ParquetRows | TableRows, where: str, *, pair: bool, text: str | None, text_b: str | None
) -> Columns:
    """Return the text columns, as given or as `load_texts` finds them.

    Raises:
        DataError: If they are missing or ambiguous.
    """
    if text is not None and (text_b is not None) == pair:
        return Columns(text, text_b, None)
    sample = [table for table, _ in rows.read(0, min(rows.rows, 1000))]
    table = pa.concat_tables(sample) if sample else rows.schema.empty_table()
    given = {"text": text, "text_b": text_b}
    return find_columns(Rows(where, table), Problems(where), given=given, pair=pair, labelled=False)


def check_schema(schema: pa.Schema, columns: Columns) -> None:
    """Check that a file has the text columns.

    Raises:
        UnreadableInputError: If a column is missing or does not hold text.
    """
    for name in (columns.text, columns.text_b):
        if name is None:
            continue
        if name not in schema.names:
            raise UnreadableInputError(f"there is no column {quote(name)}; the columns are {quote_some(schema.names)}")
        kind = schema.field(name).type
        if not is_string(kind) and not pa.types.is_null(kind):
            raise UnreadableInputError(f"column {quote(name)} holds {kind} values, not text")
