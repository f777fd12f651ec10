"""Read delimited text files (CSV and TSV) into Arrow tables.

Rows that do not fit the header are added to the list of problems with their numbers; the other rows are read.
"""

import csv
import io
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from headhunt.data.problems import Problems, UnreadableError, brief, count, find_repeated, list_rows, quote_some
from headhunt.data.tables import Table, TableWriter, read_cached

BLOCK_BYTES = 16 << 20  # read at a time


class _Layout(NamedTuple):
    """The delimiter, the column names and the use of quotes in a file."""

    delimiter: str
    header: list[str]
    quoted: bool = True


def read_delimited(path: Path, origin: Path, tabs: bool, where: str, problems: Problems) -> Table:
    """Read a delimited file.

    Args:
        path: The file.
        origin: The file that the user gave: the same file, or its compressed form.
        tabs: True if the delimiter can only be a tab.
        where: The name of the file in messages.
        problems: Receives everything that is wrong.

    Raises:
        UnreadableError: If the file cannot be read at all.
    """
    layout = _detect_layout(path, tabs, where, problems)
    if layout.delimiter == "\t":
        return _read_tabs(path, origin, layout, where, problems)
    fill = partial(_write_rows, path, layout, where, problems)
    return read_cached(path, origin, layout.delimiter, problems, fill)


def _detect_layout(path: Path, tabs: bool, where: str, problems: Problems) -> _Layout:
    """Detect the delimiter: the one that divides the header into the most names."""
    with path.open("rb") as file:
        head = file.read(1 << 16).decode("utf-8-sig", errors="replace")
    if not head.strip():
        raise problems.add(where, "the file is empty", "Give a file with a header and rows")
    headers = {}
    for delimiter in "\t" if tabs else ",;\t":
        try:
            # newline=None treats the line ends of all systems alike
            headers[delimiter] = next(filter(None, csv.reader(io.StringIO(head, newline=None), delimiter=delimiter)))
        except (csv.Error, StopIteration):
            headers[delimiter] = [head[:100]]
    best = max(headers, key=lambda delimiter: len(headers[delimiter]))
    names = [name.strip() for name in headers[best]]
    if twice := find_repeated(names):
        raise problems.add(where, f"the header names {quote_some(twice)} twice", "Give every column its own name")
    return _Layout(best, headers[best])


def _write_rows(path: Path, layout: _Layout, where: str, problems: Problems, writer: TableWriter) -> None:
    """Stream the rows of a file into a table and report those that do not fit the header."""
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
            writer.add(table.rename_columns([name.strip() for name in table.column_names]))
            if len(batch):
                last_cell = str(batch.column(batch.num_columns - 1)[len(batch) - 1].as_py() or "")
    except pa.ArrowInvalid as error:
        row = writer.rows + len(ragged)
        what, remedy = f"a row after row {row:,} cannot be read ({brief(error)})", "Fix or remove it"
        if "straddling" in str(error) or "out of sync" in str(error):
            what = f"a row after row {row:,} is longer than {BLOCK_BYTES >> 20} MB"
            remedy = "Close the open quote there, or shorten the cell"
        raise problems.add(where, what, remedy) from None
    writer.skipped = [number for number, _, _ in ragged]
    if layout.quoted and _has_open_quote(path, last_text, last_cell):
        number = writer.rows + len(ragged)
        what = f"a quote opened in row {number:,} is never closed"
        problems.add(where, what, 'Close it, or write a quote that belongs to the text as ""')
        ragged = [row for row in ragged if row[0] != number]
    if ragged:
        _report_ragged(ragged, layout.delimiter, where, problems)


def _stream(path: Path, layout: _Layout, skip: Callable[[Any], str]) -> Iterator[pa.RecordBatch]:
    """Stream a file with every column as text; types are inferred later, from complete columns."""
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
        check_utf8=False,  # already checked
    )
    # With more than one thread, Arrow does not number the rows that it skips.
    reading = pacsv.ReadOptions(use_threads=False, block_size=BLOCK_BYTES)
    yield from pacsv.open_csv(path, read_options=reading, parse_options=parse, convert_options=convert)


def _has_open_quote(path: Path, last_text: str, last_cell: str) -> bool:
    """Return True if the last row extends to the end of the file because its quote is never closed.

    Args:
        path: The file.
        last_text: The last skipped row, as written in the file.
        last_cell: The last cell of the last row that was read. If its quote were closed, the file would end in a quote.
    """
    for ending, is_open in ((last_text, last_text.count('"') % 2 == 1), (last_cell, "\n" in last_cell)):
        raw = ending.encode().rstrip(b"\r\n")
        if is_open:
            with path.open("rb") as file:
                file.seek(max(0, path.stat().st_size - len(raw) - 16))
                if file.read().rstrip(b"\r\n").endswith(raw):
                    return True
    return False


def _report_ragged(ragged: list[tuple[int, int, int]], delimiter: str, where: str, problems: Problems) -> None:
    name = {",": "commas", ";": "semicolons", "\t": "tabs"}[delimiter]
    widths = sorted({actual for _, _, actual in ragged})
    unit = "cell" if widths == [1] else "cells"
    listed = ", ".join(str(width) for width in widths[:5]) + (", …" if len(widths) > 5 else "")
    what = f"{count(len(ragged), 'row')} with {listed} {unit} where the header has {ragged[0][1]}"
    remedy = f"Quote cells that hold {name}, and fill or remove short rows"
    problems.add(where, f"{what} ({list_rows(number for number, _, _ in ragged)})", remedy)


def _read_tabs(path: Path, origin: Path, layout: _Layout, where: str, problems: Problems) -> Table:
    """Read a tab-separated file, in which a quote may be an ordinary character.

    Some programs quote cells in such files and some (those of GLUE) do not. Quotes are interpreted unless that breaks
    rows, or merges the end of one line with the start of the next into one cell.
    """
    quoted, quoted_problems = _try_tabs(path, origin, layout, where)
    if quoted is not None and not quoted_problems and not any(map(_has_tab_and_newline, quoted.arrow.columns)):
        return quoted
    bare, bare_problems = _try_tabs(path, origin, layout._replace(quoted=False), where)
    if bare is not None and not bare_problems:
        return bare
    problems.lines.extend(quoted_problems.lines or bare_problems.lines)
    if quoted is None:
        raise UnreadableError
    return quoted


def _try_tabs(path: Path, origin: Path, layout: _Layout, where: str) -> tuple[Table | None, Problems]:
    problems = Problems(where)
    fill = partial(_write_rows, path, layout, where, problems)
    try:
        return read_cached(path, origin, f"tab {layout.quoted}", problems, fill), problems
    except UnreadableError:
        return None, problems


def _has_tab_and_newline(column: pa.ChunkedArray) -> bool:
    return bool(pc.any(pc.match_substring_regex(column, r"\n[^\t]*\t|\t[^\n]*\n")).as_py())
