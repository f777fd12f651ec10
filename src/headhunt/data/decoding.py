"""Bound the size of decoded data and check the structure of Arrow tables, before anything reads their values.

A damaged or hostile file may name offsets outside its buffers, which would end the process, or decode to many times
its size.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

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
