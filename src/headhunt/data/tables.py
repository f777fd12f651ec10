"""Build Arrow tables batch by batch or from Python values, in memory or in the cache.

The size of decoded data is bounded and the structure of tables checked before anything reads their values. A damaged or
hostile file may name offsets outside its buffers, which would end the process, or decode to many times its size.
"""

import hashlib
import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc
import pyarrow.parquet as pq

from headhunt.data.problems import Problems
from headhunt.storage import cache_dir, copy_permissions, mark_used, prune_cache, remove, sync_directory, sync_file

MAX_IN_MEMORY = 32 << 20  # bytes; a larger file is converted once and mapped from the cache
MAX_DECODED_IN_MEMORY = 512 << 20  # bytes; a file that decodes to more is mapped from the cache too
_CACHE_VERSION = 1
MAX_RATIO = 1000  # decoded bytes for each byte of a file; texts compress by 3 to 10
ALWAYS_ALLOWED = 64 << 20  # decoded bytes of any file, however small
MAX_ROWS = 10_000_000  # rows of any file, however small
FREE_SHARE = 0.8  # of the free disk, for one file
_STEP_BYTES, _STEP_ROWS = 32 << 20, 1024  # decoded at a time from Parquet


class TooLargeError(Exception):
    """Signal that a file decodes to too much; the message says what must hold and what was found."""


class SizeLimit:
    """The number of bytes that a file may decode to.

    Args:
        size: Size of the file.
        disk: Directory that decoded data is written to; None if it stays in memory.
    """

    def __init__(self, size: int, disk: Path | None = None) -> None:
        self.bytes = max(ALWAYS_ALLOWED, MAX_RATIO * size)
        self.rows = max(MAX_ROWS, MAX_RATIO * size)
        self.free = None if disk is None else int(shutil.disk_usage(disk).free * FREE_SHARE)

    def check(self, decoded: int, rows: int = 0) -> None:
        """Check the bytes and rows decoded so far.

        Raises:
            TooLargeError: If they are too many.
        """
        if decoded > self.bytes:
            raise TooLargeError(f"the file unpacks to more than {self.bytes >> 20:,} MB, {MAX_RATIO:,} times its size")
        if rows > self.rows:
            raise TooLargeError(f"the file claims {rows:,} rows, more than {MAX_RATIO:,} for each of its bytes")
        if self.free is not None and decoded > self.free:
            raise TooLargeError(f"the file unpacks to more than the free disk allows ({self.free >> 20:,} MB)")


def check_table(table: pa.Table) -> None:
    """Check that all offsets, lengths and indices of a table are inside its buffers.

    Texts that are not UTF-8 are accepted here; they are reported row by row.

    Raises:
        pa.ArrowInvalid: If the table is damaged.
    """
    table.validate()
    for column in table.columns:
        for chunk in column.chunks:
            if pa.types.is_string(chunk.type):
                chunk = chunk.view(pa.binary())
            elif pa.types.is_large_string(chunk.type):
                chunk = chunk.view(pa.large_binary())
            chunk.validate(full=True)


def parquet_step(file: pq.ParquetFile, open_again: Callable[[], Any], size: int) -> int:
    """Return a number of rows of a Parquet file that can be decoded at a time.

    A dictionary stores a long text once and refers to it from every row, so that a small file can decode to a large
    table. The longest text of any dictionary decides.

    Args:
        file: The open file.
        open_again: Returns the same file, open for reading.
        size: Its size in bytes.

    Raises:
        TooLargeError: If its own description exceeds the limits.
    """
    metadata = file.metadata
    numbers = range(metadata.num_row_groups)
    decoded = sum(metadata.row_group(number).total_byte_size for number in numbers)
    SizeLimit(size).check(decoded, metadata.num_rows)
    names = [field.name for field in file.schema_arrow if _is_text(field.type)]
    if not names or len(set(file.schema_arrow.names)) < len(file.schema_arrow.names):
        return _STEP_ROWS
    longest = 1
    with open_again() as source, pq.ParquetFile(source, read_dictionary=names) as probe:
        for number in numbers:
            try:
                longest = max(longest, _longest_value(probe, number, names))
            except (OSError, pa.ArrowException):
                continue  # damaged: reading these rows says so
    return max(1, min(_STEP_BYTES // longest, _STEP_ROWS))


def _longest_value(probe: pq.ParquetFile, group: int, names: list[str]) -> int:
    """Return the bytes of the longest value in the dictionaries of a row group."""
    longest = 0
    for batch in probe.iter_batches(1, [group], names, use_threads=False):
        for column in batch.columns:
            values = column.dictionary if pa.types.is_dictionary(column.type) else column
            longest = max(longest, pc.max(pc.binary_length(values)).as_py() or 0)
        break
    return longest


def _is_text(kind: pa.DataType) -> bool:
    return kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())


class _MemoryLimitError(Exception):
    """Signal that rows do not fit into memory."""


class Table(NamedTuple):
    """The contents of a file.

    Attributes:
        arrow: The rows that could be read.
        skipped: Numbers (from 1) of the rows that could not be read.
        mixed: Columns whose values have no common type, with a description; reported only if the column is used.
    """

    arrow: pa.Table
    skipped: np.ndarray
    mixed: dict[str, str]


class TableWriter:
    """A table under construction, in memory or in an Arrow file.

    Args:
        path: The Arrow file; None keeps the rows in memory.
        limit: The size that the rows may have; no limit by default.
    """

    def __init__(self, path: Path | None, limit: SizeLimit | None = None) -> None:
        self.path, self.limit = path, limit
        self.bytes = 0
        self.skipped: list[int] = []
        self.mixed: dict[str, str] = {}
        self.rows = 0
        self._tables: list[pa.Table] = []
        self._writer: pa.ipc.RecordBatchFileWriter | None = None
        self._schema: pa.Schema | None = None
        self._metadata: dict[bytes, bytes] = {}

    def add(self, table: pa.Table) -> None:
        """Append rows. Later rows may add columns or widen their types (null to string, integers to floats).

        Raises:
            TooLargeError: If the rows exceed the limit.
        """
        self.bytes += table.nbytes
        if self.limit is not None:
            self.limit.check(self.bytes, self.rows + len(table))
        if self.path is None and self.bytes > MAX_DECODED_IN_MEMORY:
            raise _MemoryLimitError
        schema = table.schema.remove_metadata()
        if self._schema is None:
            # Files written by `datasets` keep the names of classes in their metadata.
            self._metadata = {
                key: value for key, value in (table.schema.metadata or {}).items() if key == b"huggingface"
            }
            self._open(schema)
        elif schema != self._schema and (merged := self._merge(self._schema, schema)) != self._schema:
            self._open(merged)
        table = _convert(table, self._schema)
        self.rows += len(table)
        if self._writer:
            self._writer.write_table(table)
        else:
            self._tables.append(table)

    def finish(self) -> pa.Table:
        """Close the file and return the table, memory-mapped if it is in a file."""
        if self._schema is None:
            return pa.table({})
        if self._writer is None or self.path is None:
            table = pa.concat_tables([_convert(table, self._schema) for table in self._tables])
            return table.replace_schema_metadata(self._metadata)
        self._writer.close()
        return map_arrow(self.path)

    def _open(self, schema: pa.Schema) -> None:
        """Set the schema. A file is written again with the rows that it has."""
        self._schema = schema
        if self.path is None:
            return
        written = []
        if self._writer is not None:
            self._writer.close()
            written = map_arrow(self.path).to_batches()
            self.path.unlink()  # the memory map keeps the old rows readable until they are copied
        self._writer = pa.ipc.new_file(str(self.path), schema.with_metadata(self._metadata))
        for batch in written:
            self._writer.write_table(_convert(pa.Table.from_batches([batch]), schema))

    def _merge(self, old: pa.Schema, new: pa.Schema) -> pa.Schema:
        fields = {field.name: field for field in old}
        for field in new:
            known = fields.get(field.name, field)
            try:
                fields[field.name] = pa.unify_schemas(
                    [pa.schema([known]), pa.schema([field])], promote_options="permissive"
                ).field(0)
            except pa.ArrowException:
                self.mixed.setdefault(field.name, f"{known.type} before row {self.rows + 1:,}, {field.type} after it")
                fields[field.name] = pa.field(field.name, pa.string())
        return pa.schema(fields.values())


def _convert(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Convert a table to a schema. Nested values become text where the schema says so."""
    if table.schema.equals(schema):
        return table
    columns = []
    for field in schema:
        if field.name not in table.column_names:
            columns.append(pa.nulls(len(table), field.type))
            continue
        column = table[field.name]
        nested = pa.types.is_nested(column.type) and pa.types.is_string(field.type)
        columns.append(pa.array(map(str, to_values(column))) if nested else column.cast(field.type))
    return pa.table(columns, schema=schema)


def read_cached(
    path: Path, origin: Path, variant: str, problems: Problems, fill: Callable[[TableWriter], None]
) -> Table:
    """Read a small file into memory and a large one through the cache, which keeps only files without problems.

    Args:
        path: The file.
        origin: The file that the user gave; its path, size and times are the key of the cache.
        variant: The way of reading, for example the delimiter; another part of the key.
        problems: The list that `fill` adds to.
        fill: Writes the rows of the file into a table.
    """
    size, before = origin.stat().st_size, len(problems.lines)
    if path.stat().st_size < MAX_IN_MEMORY:
        writer = TableWriter(None, SizeLimit(size))
        try:
            fill(writer)
            return Table(writer.finish(), np.array(writer.skipped, np.int64), writer.mixed)
        except _MemoryLimitError:
            del writer, problems.lines[before:]
    state = origin.stat()
    # The time of the last change of the entry (ctime) cannot be set: a file with an old time is noticed.
    times = state.st_mtime_ns, state.st_ctime_ns, state.st_ino
    key = repr((str(origin.resolve()), state.st_size, times, variant, _CACHE_VERSION))
    cache = cache_dir("tables")
    cached = cache / f"{hashlib.blake2b(key.encode(), digest_size=16).hexdigest()}.arrow"
    if cached.exists():
        try:
            table = map_arrow(cached)
            mark_used(cached)
            return Table(table, np.empty(0, np.int64), {})
        except (OSError, ValueError, pa.ArrowException, TooLargeError):
            remove(cached)  # damaged: converted again
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        writer = TableWriter(Path(folder) / "rows.arrow", SizeLimit(size, cache))
        fill(writer)
        table = writer.finish()
        if writer.path and writer.path.exists() and not writer.mixed and len(problems.lines) == before:
            del table
            copy_permissions(origin, writer.path)
            sync_file(writer.path)
            writer.path.replace(cached)  # atomic: the temporary directory is on the same file system
            sync_directory(cache)
            table = map_arrow(cached)
            prune_cache("tables")
    return Table(table, np.array(writer.skipped, np.int64), writer.mixed)


def map_arrow(path: Path) -> pa.Table:
    """Memory-map an Arrow file, in the file format or the stream format, and check its structure.

    Raises:
        pa.ArrowInvalid: If the file is damaged.
        TooLargeError: If compressed buffers decode to too much.
    """
    source, limit = pa.memory_map(str(path)), SizeLimit(path.stat().st_size)
    try:
        reader = pa.ipc.open_file(source)
        batches = map(reader.get_batch, range(reader.num_record_batches))
        return _collect(reader.schema, batches, limit)
    except pa.ArrowInvalid:
        source.seek(0)
        stream = pa.ipc.open_stream(source)
        return _collect(stream.schema, stream, limit)


def _collect(schema: pa.Schema, batches: Iterable[pa.RecordBatch], limit: SizeLimit) -> pa.Table:
    # An empty table from `schema.empty_table` loads pandas, for which every worker would wait.
    tables, decoded, rows = [pa.Table.from_batches([], schema)], 0, 0
    for batch in batches:
        table = pa.Table.from_batches([batch])
        check_table(table)  # before anything else: the size of a damaged table is as wrong as its offsets
        decoded, rows = decoded + table.nbytes, rows + len(table)
        limit.check(decoded, rows)
        tables.append(table)
    return pa.concat_tables(tables[1:] or tables)


def from_columns(columns: dict[str, Any], mixed: dict[str, str], first: int = 1) -> pa.Table:
    """Build a table from Python columns. A column without a common type becomes text and is added to `mixed`."""
    arrays = {}
    for name, values in columns.items():
        try:
            arrays[name] = pa.array(values, from_pandas=True)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            values = list(values)
            mixed[name] = _describe_mix(values, first)
            arrays[name] = pa.array([None if value is None else _to_text(value) for value in values], pa.string())
    return pa.table(arrays)


def simplify_types(table: pa.Table) -> pa.Table:
    """Return a table whose texts and numbers have types that all functions of Arrow take."""
    for place, field in enumerate(table.schema):
        column = table.column(place)
        if pa.types.is_run_end_encoded(field.type):
            column = pa.chunked_array([pc.run_end_decode(chunk) for chunk in column.chunks], field.type.value_type)
        if pa.types.is_float16(column.type):
            column = column.cast(pa.float32())
        elif str(column.type) in ("string_view", "binary_view"):
            column = column.cast(pa.large_string() if str(column.type) == "string_view" else pa.large_binary())
        if column.type != field.type:
            table = table.set_column(place, field.name, column)
    return table


def encode(column: pa.ChunkedArray) -> tuple[pa.Array, np.ndarray]:
    """Return the distinct values of a column and the position of each row's value among them, -1 for a null."""
    chunks = column.dictionary_encode().unify_dictionaries().chunks  # none for a column without rows
    encoded = pa.concat_arrays(chunks) if chunks else pa.array([], column.type).dictionary_encode()
    return encoded.dictionary, encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)


def to_values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Return the Python values of a column. Dates and times that Python cannot hold become text."""
    try:
        return column.to_pylist()
    except (OverflowError, ValueError):
        return [_to_value(item) for item in column]


def _to_value(item: pa.Scalar) -> Any:
    try:
        return item.as_py()
    except (OverflowError, ValueError):
        return f"a value of type {item.type}"


def _to_text(value: Any) -> str:
    return str(value).encode(errors="replace").decode()  # lone surrogates cannot be stored


def _describe_mix(values: list[Any], first: int) -> str:
    firsts: dict[str, int] = {}
    for number, value in enumerate(values, first):
        if value is not None:
            firsts.setdefault(_name_type(value), number)
    return ", ".join(f"{kind} (row {number})" for kind, number in firsts.items())


def _name_type(value: Any) -> str:
    if isinstance(value, str) and _to_text(value) != value:
        return "text with half a character (a lone surrogate)"
    names = {bool: "true/false", int: "integers", float: "numbers", str: "text", dict: "objects", list: "lists"}
    return next((name for kind, name in names.items() if isinstance(value, kind)), type(value).__name__)
