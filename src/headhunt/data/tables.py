"""Arrow tables: made batch by batch or of Python values, kept in memory or mapped from the cache."""

import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.ipc

from headhunt.data.problems import Problems

BIG = 32 << 20  # bytes; a smaller file is read into memory, a bigger one is mapped from the cache
_CACHE_VERSION = 1


class Table(NamedTuple):
    """A file as read.

    Attributes:
        arrow: The rows that could be read.
        skipped: Numbers (from 1) of the rows that could not.
        mixed: Columns whose values have no common type, with what was found; told only if the column is used.
    """

    arrow: pa.Table
    skipped: np.ndarray
    mixed: dict[str, str]


def find_cache() -> Path:
    """Find the folder for converted files, making it where needed."""
    folder = Path(os.environ.get("HEADHUNT_CACHE") or Path.home() / ".cache" / "headhunt") / "tables"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


class Spool:
    """Where the batches of a file go: memory for a small file, an Arrow file for a big one."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.skipped: list[int] = []
        self.mixed: dict[str, str] = {}
        self.rows = 0
        self._tables: list[pa.Table] = []
        self._writer: pa.ipc.RecordBatchFileWriter | None = None
        self._schema: pa.Schema | None = None
        self._metadata: dict[bytes, bytes] = {}

    def add(self, table: pa.Table) -> None:
        """Take the next rows; columns may appear or widen (null to string, whole numbers to decimals) on the way."""
        schema = table.schema.remove_metadata()
        if self._schema is None:
            # the names of classes are there, in files that `datasets` wrote
            self._metadata = {
                key: value for key, value in (table.schema.metadata or {}).items() if key == b"huggingface"
            }
            self._open(schema)
        elif schema != self._schema:
            merged = self._merge(self._schema, schema)
            if merged != self._schema:
                self._rewrite(merged)
        table = _fit(table, self._schema)
        self.rows += len(table)
        if self._writer:
            self._writer.write_table(table)
        else:
            self._tables.append(table)

    def finish(self) -> pa.Table:
        """Close the file and give the table, mapped where it is a file."""
        if self._schema is None:
            return pa.table({})
        if self._writer is None or self.path is None:
            table = pa.concat_tables([_fit(table, self._schema) for table in self._tables])
            return table.replace_schema_metadata(self._metadata)
        self._writer.close()
        return map_arrow(self.path)

    def _open(self, schema: pa.Schema) -> None:
        self._schema = schema
        if self.path:
            self._writer = pa.ipc.new_file(str(self.path), schema.with_metadata(self._metadata))

    def _rewrite(self, schema: pa.Schema) -> None:
        if self._writer is None or self.path is None:
            self._schema = schema
            return
        self._writer.close()
        written = map_arrow(self.path)
        self.path.unlink()  # the mapping keeps the old rows readable until they are copied
        self._open(schema)
        for batch in written.to_batches():
            self._writer.write_table(_fit(pa.Table.from_batches([batch]), schema))

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


def _fit(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Give a table the columns and types of a schema; what has no other common type becomes text."""
    if table.schema.equals(schema):
        return table
    columns = []
    for field in schema:
        if field.name not in table.column_names:
            columns.append(pa.nulls(len(table), field.type))
            continue
        column = table[field.name]
        nested = pa.types.is_nested(column.type) and pa.types.is_string(field.type)
        columns.append(pa.array(map(str, column.to_pylist())) if nested else column.cast(field.type))
    return pa.table(columns, schema=schema)


def keep(path: Path, origin: Path, option: str, problems: Problems, fill: Callable[[Spool], None]) -> Table:
    """Read a small file into memory and a big one through the cache, where only faultless files stay."""
    if path.stat().st_size < BIG:
        spool = Spool(None)
        fill(spool)
        return Table(spool.finish(), np.array(spool.skipped, np.int64), spool.mixed)
    state = origin.stat()
    key = repr((str(origin.resolve()), state.st_size, state.st_mtime_ns, option, _CACHE_VERSION))
    kept = find_cache() / f"{hashlib.blake2b(key.encode(), digest_size=16).hexdigest()}.arrow"
    if kept.exists():
        return Table(map_arrow(kept), np.empty(0, np.int64), {})
    before = len(problems.lines)
    with tempfile.TemporaryDirectory(dir=find_cache()) as folder:
        spool = Spool(Path(folder) / "rows.arrow")
        fill(spool)
        table = spool.finish()
        if spool.path and spool.path.exists() and not spool.mixed and len(problems.lines) == before:
            del table
            spool.path.replace(kept)
            table = map_arrow(kept)
    return Table(table, np.array(spool.skipped, np.int64), spool.mixed)


def map_arrow(path: Path) -> pa.Table:
    """Map an Arrow file, of either of its two forms, into memory."""
    source = pa.memory_map(str(path))
    try:
        return pa.ipc.open_file(source).read_all()
    except pa.ArrowInvalid:
        source.seek(0)
        return pa.ipc.open_stream(source).read_all()


def tabulate_columns(columns: dict[str, Any], mixed: dict[str, str], first: int = 1) -> pa.Table:
    """Make a table of Python columns; one whose values have no common type is kept as text and noted as mixed."""
    arrays = {}
    for name, values in columns.items():
        try:
            arrays[name] = pa.array(values, from_pandas=True)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            values = list(values)
            mixed[name] = _describe_mix(values, first)
            arrays[name] = pa.array([None if value is None else str(value) for value in values], pa.string())
    return pa.table(arrays)


def _describe_mix(values: list[Any], first: int) -> str:
    firsts: dict[str, int] = {}
    for number, value in enumerate(values, first):
        if value is not None:
            firsts.setdefault(_name_type(value), number)
    return ", ".join(f"{kind} (row {number})" for kind, number in firsts.items())


def _name_type(value: Any) -> str:
    names = {bool: "true/false", int: "whole numbers", float: "numbers", str: "text", dict: "objects", list: "lists"}
    return next((name for kind, name in names.items() if isinstance(value, kind)), type(value).__name__)
