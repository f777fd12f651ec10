"""The files of a corpus, here or behind a URL: which there are, how many rows each has, and any stretch of them.

Hides filesystems and formats. Parquet is streamed from where it lies. In other formats no row can be jumped to, so
they are read once by `files`, through the cache where they are big, and mapped from then on.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from headhunt.data.columns import Columns, find_columns, is_string
from headhunt.data.problems import Problems, brief, quote, quote_some
from headhunt.data.readers import FORMATS, name_format, read_file
from headhunt.data.sources import Rows
from headhunt.data.tables import Table, find_cache
from headhunt.errors import DataError

FAULTS = ("", "no text", "more than 1 MB of text", "not UTF-8", "not text", "not readable")
"""What can be wrong with a row, by its code; 0 is nothing."""
NONE, EMPTY, LONG, CODING, OTHER, BROKEN = range(len(FAULTS))
STRETCH = 4 << 20  # bytes of rows read at a time, about
_MOST_TEXT = 1 << 20  # bytes; more is a quote left open or a file in a cell, as it is for training data
_WILD = re.compile(r"[*?\[]")
_QUERY = re.compile(r"\?\w+=[^&?*]*(&\w+=[^&?*]*)*$")


class UnreadableInputError(Exception):
    """A file, or the rest of it, cannot be read; the message says why."""


@dataclass(frozen=True)
class Input:
    """A file as it was found."""

    path: str
    """On its filesystem; what `root` leads to is not part of it."""
    size: int
    time: int
    """When it was last changed, in nanoseconds."""


def split_url(url: str) -> tuple[str, str]:
    """A URL as what leads to its filesystem, "" for this machine's own, and the path there."""
    scheme, mark, rest = url.partition("://")
    if not mark or scheme == "file":
        return "", Path(rest if mark else url).expanduser().absolute().as_posix()
    query = _QUERY.search(rest)
    asked = query.group() if query else ""
    host, _, path = rest.removesuffix(asked).partition("/")
    root = f"{scheme}://{host}{asked}"
    base = _open(root)[1].rstrip("/")
    return root, f"{base}/{path}".rstrip("/")


def filesystem(root: str) -> pafs.FileSystem:
    """The filesystem that the first half of `split_url` leads to."""
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
    """A path as the user writes it."""
    return f"{root.partition('://')[0]}://{path.lstrip('/')}" if root else path


def find_inputs(source: str) -> tuple[str, list[Input]]:
    """The files that a path, folder, glob or URL stands for, in the order of their names.

    Args:
        source: One file; a folder, taken with all below it; or a pattern with `*`, `?`, `[…]` or `**`. Files whose
            name starts with a dot or an underscore, and in a folder those of other formats, are not taken.

    Returns:
        What leads to their filesystem, and the files.

    Raises:
        DataError: If there are none.
    """
    root, path = split_url(source)
    store = filesystem(root)
    try:
        info = store.get_file_info(path)
        if info.type == pafs.FileType.File:
            return root, [_input(info)]
        if info.type == pafs.FileType.Directory:
            found = [item for item in _walk(store, path) if name_format(Path(item.path))]
        elif wild := _WILD.search(path):
            base = path[: wild.start()].rpartition("/")[0]
            pattern = _pattern(path)
            deep = "/" in path[wild.start() :] or "**" in path
            found = [item for item in _walk(store, base or "/", deep) if pattern.fullmatch(item.path)]
        else:
            raise DataError(f"--input must be a file, a folder, a pattern or a URL that is there; found no {source!r}.")
    except FileNotFoundError:
        found = []
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"--input must be readable; {source!r} is not: {brief(error)}.") from None
    if not found:
        raise DataError(f"--input must name at least one file; nothing fits {source!r}. Read are {', '.join(FORMATS)}.")
    return root, sorted(map(_input, found), key=lambda file: file.path)


def _input(info: pafs.FileInfo) -> Input:
    return Input(info.path, info.size, info.mtime_ns or 0)


def _walk(store: pafs.FileSystem, base: str, deep: bool = True) -> list[pafs.FileInfo]:
    items = store.get_file_info(pafs.FileSelector(base, recursive=deep))
    hidden = re.compile(r"(^|/)[._]")
    return [
        item
        for item in items
        if item.type == pafs.FileType.File and not hidden.search(item.path[len(base) :].lstrip("/"))
    ]


def _pattern(path: str) -> re.Pattern[str]:
    """A glob as an expression over whole paths."""
    words = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    parts = re.split(r"(\*\*/|\*\*|\*|\?|\[[^\]]+\])", path)
    return re.compile(
        "".join(
            words.get(part) or ("[^" + part[2:] if part[:2] == "[!" else part if part[:1] == "[" else re.escape(part))
            for part in parts
        )
    )


class ParquetRows:
    """Rows of a Parquet file, streamed: who asks for later rows goes on from where the last stretch ended."""

    def __init__(self, store: pafs.FileSystem, path: str) -> None:
        # Through a buffer: without one, Arrow takes a whole column of a row group into memory.
        self._file = pq.ParquetFile(store.open_input_file(path), buffer_size=STRETCH)
        groups = [self._file.metadata.row_group(number) for number in range(self._file.metadata.num_row_groups)]
        self.rows = self._file.metadata.num_rows
        self.schema = self._file.schema_arrow
        self._ends = np.cumsum([group.num_rows for group in groups])
        width = max((group.total_byte_size / max(1, group.num_rows) for group in groups), default=1)
        self._step = int(np.clip(STRETCH / max(1, width), 16, 8192))
        self._stream: Iterator[pa.RecordBatch] | None = None
        self._at, self._rest = 0, None
        self._columns: list[str] | None = None

    def read(
        self, start: int, stop: int, columns: list[str] | None = None
    ) -> Iterator[tuple[pa.Table, np.ndarray | None]]:
        """Rows from `start` to `stop` in stretches, each with the codes of what is wrong with its rows, if anything."""
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
                self._stream = None  # what comes next is unknown
                if isinstance(error, StopIteration):
                    raise pa.ArrowInvalid(f"the file ends before row {stop:,}") from None
                raise
            end = self._at + len(piece)
            skip, taken = max(0, start - self._at), min(end, stop) - self._at
            self._rest = piece.slice(taken) if 0 <= taken < len(piece) else None
            self._at += max(0, taken)
            if taken > skip:
                yield piece.slice(skip, taken - skip), None

    def _group(self, row: int | None = None) -> int:
        return int(np.searchsorted(self._ends, self._at if row is None else row, side="right"))


class TableRows:
    """Rows of a file that was read whole; rows that could not be read are in their places, empty."""

    def __init__(self, table: Table, other: np.ndarray) -> None:
        self._table, self._broken, self._other = table.arrow, np.sort(table.skipped), other
        self.rows = len(table.arrow) + len(self._broken)
        self.schema = table.arrow.schema
        self._step = int(np.clip(STRETCH * max(1, self.rows) / max(1, table.arrow.nbytes), 16, 8192))

    def read(
        self, start: int, stop: int, columns: list[str] | None = None
    ) -> Iterator[tuple[pa.Table, np.ndarray | None]]:
        """As for Parquet."""
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
    """Opens a file.

    Args:
        root: What leads to its filesystem.
        file: The file.
        texts: Names of the columns with texts: in JSON, rows in which they hold something else are looked for.

    Raises:
        UnreadableInputError: If it cannot be read.
    """
    name = Path(file.path)
    rows: ParquetRows | TableRows
    try:
        if name_format(name) == "parquet":
            check_unchanged(root, file)
            rows = ParquetRows(filesystem(root), file.path)
        else:
            rows = _read_whole(root, file, texts)
    except (OSError, pa.ArrowException) as error:
        raise UnreadableInputError(brief(error)) from None
    names = rows.schema.names
    if len(set(names)) < len(names):
        raise UnreadableInputError(
            f"{quote_some(sorted({name for name in names if names.count(name) > 1}))} names two columns"
        )
    return rows


def check_unchanged(root: str, file: Input) -> None:
    """Refuses a file that is not the one that was planned with.

    Raises:
        UnreadableInputError: If it is another, or gone.
    """
    try:
        if _input(filesystem(root).get_file_info(file.path)) == file:
            return
    except (OSError, pa.ArrowException) as error:
        raise UnreadableInputError(brief(error)) from None
    raise UnreadableInputError("the file was changed or removed meanwhile")


def _read_whole(root: str, file: Input, texts: Sequence[str]) -> TableRows:
    check_unchanged(root, file)
    path = _fetch(root, file) if root else Path(file.path)
    problems = Problems(path.name)
    table = read_file(path, "", problems)
    if table is None:
        raise UnreadableInputError("; ".join(line.strip(" :-") for line in problems.lines))
    mixed = [name for name in texts if name in table.mixed]
    other = np.unique(np.concatenate([_not_text(path, name) for name in mixed])) if mixed else np.empty(0, np.int64)
    return TableRows(table, other)


def _fetch(root: str, file: Input) -> Path:
    """A copy of a remote file on this machine: the readers of text formats go through a file more than once."""
    key = hashlib.blake2b(repr((root, file)).encode(), digest_size=12).hexdigest()
    path = find_cache() / f"{key}-{PurePosixPath(file.path).name}"
    if not path.exists():
        with tempfile.TemporaryDirectory(dir=find_cache()) as folder:
            copy = Path(folder) / "copy"
            pafs.copy_files(
                file.path,
                copy.as_posix(),
                source_filesystem=filesystem(root),
                destination_filesystem=pafs.LocalFileSystem(),
            )
            os.utime(copy, ns=(file.time, file.time))  # the cache of tables goes by it
            copy.replace(path)
    return path


def _not_text(path: Path, name: str) -> np.ndarray:
    """Numbers of the rows of a JSON file in which a column of texts holds something else."""
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as raw:
        file = io.TextIOWrapper(raw, encoding="utf-8-sig")
        start = file.read(1 << 16).lstrip()[:1]
        file.seek(0)
        values: Any = json.load(file) if start == "[" else (line for line in file if line.strip())
        found = []
        for number, value in enumerate(values, 1):
            try:
                row = json.loads(value) if isinstance(value, str) else value
            except (ValueError, RecursionError):
                continue  # is known not to be readable
            if isinstance(row, dict) and not isinstance(row.get(name), str | None):
                found.append(number)
    return np.array(found, np.int64)


def choose_columns(
    rows: ParquetRows | TableRows, where: str, *, pair: bool, text: str | None, text_b: str | None
) -> Columns:
    """The columns with texts, named or found, as `load_texts` finds them.

    Raises:
        DataError: If they cannot be told.
    """
    if text is not None and (text_b is not None) == pair:
        return Columns(text, text_b, None)
    sample = [table for table, _ in rows.read(0, min(rows.rows, 1000))]
    table = pa.concat_tables(sample) if sample else rows.schema.empty_table()
    problems = Problems(where)
    found = find_columns(Rows(where, table), problems, text=text, text_b=text_b, pair=pair, labelled=False)
    if found is None:
        raise problems.as_error()
    return found


def check_schema(schema: pa.Schema, columns: Columns) -> None:
    """Checks that a file has the columns with texts.

    Raises:
        UnreadableInputError: If it has not.
    """
    for name in (columns.text, columns.text_b):
        if name is None:
            continue
        if name not in schema.names:
            raise UnreadableInputError(f"there is no column {quote(name)}; the columns are {quote_some(schema.names)}")
        kind = schema.field(name).type
        if not is_string(kind) and not pa.types.is_null(kind):
            raise UnreadableInputError(f"column {quote(name)} holds {kind} values, not text")


def judge(column: pa.ChunkedArray | pa.Array, codes: np.ndarray) -> pa.Array:
    """Finds the rows of a column that cannot be labelled.

    Args:
        column: Texts.
        codes: What is wrong with each row; what is found is written into it where nothing was before.

    Returns:
        The texts as one array; null where they are not UTF-8.
    """
    texts = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(texts, pa.ChunkedArray):
        texts = texts.chunk(0) if texts.num_chunks else pa.array([], texts.type)
    if pa.types.is_dictionary(texts.type):
        texts = texts.dictionary_decode()
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        texts = _without_strange(texts, codes)
    if not pa.types.is_large_string(texts.type):
        texts = texts.cast(pa.string())
    lengths = pc.binary_length(texts).fill_null(0)
    empty = pc.or_(pc.equal(lengths, 0), pc.utf8_is_space(texts).fill_null(True))
    for code, wrong in ((EMPTY, empty), (LONG, pc.greater(lengths, _MOST_TEXT))):
        codes[(codes == NONE) & wrong.to_numpy(zero_copy_only=False)] = code
    return texts


def _without_strange(texts: pa.Array, codes: np.ndarray) -> pa.Array:
    kept: list[str | None] = []
    for at, raw in enumerate(texts.cast(pa.large_binary() if texts.type == pa.large_string() else pa.binary())):
        try:
            kept.append(None if not raw.is_valid else raw.as_py().decode())
        except UnicodeDecodeError:
            kept.append(None)
            codes[at] = CODING
    return pa.array(kept, texts.type)
