"""CSV and TSV: delimiters, quotes and rows that do not fit the header."""

import csv
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from headhunt.data.encoding import BLOCK, UnreadableError
from headhunt.data.problems import Problems, brief, count, name_rows, quote_some
from headhunt.data.tables import Spool, Table, keep


class _Layout(NamedTuple):
    delimiter: str
    header: list[str]
    quoted: bool = True


def read_delimited(path: Path, origin: Path, tabs: bool, where: str, problems: Problems) -> Table:
    """Read a delimited file.

    Args:
        path: The file.
        origin: The file the user named; the same, or its compressed form.
        tabs: Whether the delimiter can only be a tab.
        where: What messages call the file.
        problems: Takes what is wrong.
    """
    layout = _sniff(path, tabs, where, problems)
    if layout.delimiter == "\t":
        return _read_tabs(path, origin, layout, where, problems)
    return keep(path, origin, layout.delimiter, problems, lambda spool: _spool(path, layout, where, problems, spool))


def _sniff(path: Path, tabs: bool, where: str, problems: Problems) -> _Layout:
    """Find the delimiter that cuts the header into most names."""
    with path.open("rb") as file:
        head = file.read(1 << 16).decode("utf-8-sig", errors="replace")
    if not head.strip():
        problems.add(where, "the file is empty", "Give a file with a header and rows")
        raise UnreadableError
    headers = {}
    for delimiter in "\t" if tabs else ",;\t":
        try:
            # newline=None makes the line ends of every system the same
            headers[delimiter] = next(filter(None, csv.reader(io.StringIO(head, newline=None), delimiter=delimiter)))
        except (csv.Error, StopIteration):
            headers[delimiter] = [head[:100]]
    best = max(headers, key=lambda delimiter: len(headers[delimiter]))
    names = [name.strip() for name in headers[best]]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        problems.add(where, f"the header names {quote_some(twice)} twice", "Give every column its own name")
        raise UnreadableError
    return _Layout(best, headers[best])


def _spool(path: Path, layout: _Layout, where: str, problems: Problems, spool: Spool) -> None:
    """Stream the rows of a file into a spool, and note those that do not fit the header."""
    ragged: list[tuple[int, int, int]] = []
    last_text, last_cell = "", ""

    def skip(row: Any) -> str:
        nonlocal last_text
        last_text = row.text
        ragged.append((row.number - 1, row.expected_columns, row.actual_columns))  # Arrow counts the header as row 1
        return "skip"

    try:
        for batch in _stream(path, layout, skip):
            table = pa.Table.from_batches([batch])
            spool.add(table.rename_columns([name.strip() for name in table.column_names]))
            if len(batch):
                last_cell = str(batch.column(batch.num_columns - 1)[len(batch) - 1].as_py() or "")
    except pa.ArrowInvalid as error:
        row = spool.rows + len(ragged)
        if "straddling" in str(error) or "out of sync" in str(error):
            what = f"a row after row {row:,} runs on for more than {BLOCK >> 20} MB"
            problems.add(where, what, "Close the quote that is left open there, or shorten the cell")
        else:
            problems.add(where, f"a row after row {row:,} cannot be read ({brief(error)})", "Mend or remove it")
        raise UnreadableError from None
    spool.skipped = [number for number, _, _ in ragged]
    if layout.quoted and _is_left_open(path, last_text, last_cell):
        number = spool.rows + len(ragged)
        what = f"a quote opened in row {number:,} is never closed"
        problems.add(where, what, 'Close it, or write a quote that belongs to the text as ""')
        ragged = [row for row in ragged if row[0] != number]
    if ragged:
        _note_ragged(ragged, layout.delimiter, where, problems)


def _stream(path: Path, layout: _Layout, skip: Callable[[Any], str]) -> Iterator[pa.RecordBatch]:
    """Stream a file with every column as text; what the cells mean is decided for whole columns, later."""
    parse = pacsv.ParseOptions(
        delimiter=layout.delimiter,
        quote_char='"' if layout.quoted else False,
        newlines_in_values=layout.quoted,
        invalid_row_handler=skip,
    )
    convert = pacsv.ConvertOptions(
        column_types=dict.fromkeys(layout.header, pa.string()),
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=True,
        check_utf8=False,  # has been
    )
    # one thread: with more, Arrow does not number the rows it refuses
    reading = pacsv.ReadOptions(use_threads=False, block_size=BLOCK)
    yield from pacsv.open_csv(path, read_options=reading, parse_options=parse, convert_options=convert)


def _is_left_open(path: Path, last_text: str, last_cell: str) -> bool:
    """Tell whether the last row runs to the end of the file because its quote is never closed.

    Args:
        path: The file.
        last_text: The last row that was refused, as it is in the file.
        last_cell: The last cell of the last row that was read; had its quote been closed, the file would end in one.
    """
    for ending, is_open in ((last_text, last_text.count('"') % 2 == 1), (last_cell, "\n" in last_cell)):
        raw = ending.encode().rstrip(b"\r\n")
        if is_open:
            with path.open("rb") as file:
                file.seek(max(0, path.stat().st_size - len(raw) - 16))
                if file.read().rstrip(b"\r\n").endswith(raw):
                    return True
    return False


def _note_ragged(ragged: list[tuple[int, int, int]], delimiter: str, where: str, problems: Problems) -> None:
    name = {",": "commas", ";": "semicolons", "\t": "tabs"}[delimiter]
    found = sorted({actual for _, _, actual in ragged})
    unit = "cell" if found == [1] else "cells"
    listed = ", ".join(str(number) for number in found[:5]) + (", …" if len(found) > 5 else "")
    what = f"{count(len(ragged), 'row')} with {listed} {unit} where the header has {ragged[0][1]}"
    remedy = f"Quote cells that hold {name}, and fill or remove short rows"
    problems.add(where, f"{what} ({name_rows(number for number, _, _ in ragged)})", remedy)


def _read_tabs(path: Path, origin: Path, layout: _Layout, where: str, problems: Problems) -> Table:
    """Read a tab-separated file, in which a quote may be just a character.

    Some programs quote cells there and some (those of GLUE) do not. Quoting is believed unless it breaks rows or makes
    a cell swallow the end of a line and the start of the next.
    """
    table, found = _try(path, origin, layout, where)
    if table is not None and not found and not any(map(_has_tab_and_newline, table.arrow.columns)):
        return table
    bare, faults = _try(path, origin, layout._replace(quoted=False), where)
    if bare is not None and not faults:
        return bare
    problems.lines.extend(found.lines or faults.lines)
    if table is None:
        raise UnreadableError
    return table


def _try(path: Path, origin: Path, layout: _Layout, where: str) -> tuple[Table | None, Problems]:
    problems = Problems(where)
    try:
        option = f"tab {layout.quoted}"
        return keep(
            path, origin, option, problems, lambda spool: _spool(path, layout, where, problems, spool)
        ), problems
    except UnreadableError:
        return None, problems


def _has_tab_and_newline(column: pa.ChunkedArray) -> bool:
    return bool(pc.any(pc.match_substring_regex(column, r"\n[^\t]*\t|\t[^\n]*\n")).as_py())
