"""One file to one Arrow table, whatever its format: CSV, TSV and JSON, plain or packed; Parquet and Arrow.

Hides encodings, delimiters, quotes, and lines that do not fit; each is noted with its number and the rest is read.
"""

import csv
import gzip
import io
import json
import mmap
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.json as pajson
import pyarrow.parquet as pq

from headhunt.data.problems import Problems, brief, count, name_rows, quote, quote_some
from headhunt.data.tables import BIG, Spool, Table, find_cache, keep, map_arrow, tabulate_columns

FORMATS = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".jsonl": "json",
    ".ndjson": "json",
    ".json": "json",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
}
BLOCK = 16 << 20  # bytes read at a time
_MAGIC = {b"PAR1": "Parquet", b"PK\x03\x04": "zip or Excel", b"\x89PNG": "PNG", b"%PDF": "PDF", b"\x1f\x8b": "gzip"}
_ONE_PER_LINE = 'Write one object per line, such as {"text": "…", "label": "…"}'


def name_format(path: Path) -> str | None:
    """Name the format a file name stands for, or None for an unknown one."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes[-1:] == [".gz"]:
        inner = FORMATS.get(suffixes[-2]) if len(suffixes) > 1 else None
        return inner if inner in ("csv", "tsv", "json") else None
    return FORMATS.get(suffixes[-1]) if suffixes else None


def read_file(path: Path, where: str, problems: Problems) -> Table | None:
    """Read one file, or note why it cannot be read.

    Args:
        path: The file.
        where: What messages call it.
        problems: Takes what is wrong.
    """
    form = name_format(path)
    if form is None:
        problems.add(where, f"files of type {quote(path.suffix or path.name)} are not read", f"Use one of: {_listed()}")
        return None
    try:
        size = path.stat().st_size
        if not path.is_file():
            problems.add(where, "this is not a file", "Give a file or a folder of splits")
            return None
        if size == 0:
            problems.add(where, "the file is empty", "Give a file with a header and rows")
            return None
        if path.suffix.lower() == ".gz":
            return _read_gzip(path, form, where, problems)
        return _read_plain(path, path, form, where, problems)
    except UnreadableError:
        return None
    except FileNotFoundError:
        problems.add(where, "there is no such file", "Check the path")
    except PermissionError:
        problems.add(where, "the file may not be read", "Change its permissions")
    except (OSError, EOFError, zlib.error, pa.ArrowException) as error:
        problems.add(where, f"the file is damaged or not what its name says ({brief(error)})", "Write it again")
    return None


def _listed() -> str:
    return ", ".join(FORMATS) + " (.csv, .tsv and .jsonl also with .gz)"


def _read_gzip(path: Path, form: str, where: str, problems: Problems) -> Table:
    with tempfile.TemporaryDirectory(dir=find_cache() if path.stat().st_size > BIG else None) as folder:
        plain = Path(folder) / "plain"
        with gzip.open(path) as packed, plain.open("wb") as unpacked:
            shutil.copyfileobj(packed, unpacked, BLOCK)
        if not plain.stat().st_size:
            problems.add(where, "the file is empty", "Give a file with a header and rows")
            raise UnreadableError
        return _read_plain(plain, path, form, where, problems)


def _read_plain(path: Path, origin: Path, form: str, where: str, problems: Problems) -> Table:
    if form == "arrow":
        return Table(map_arrow(path), np.empty(0, np.int64), {})
    if form == "parquet":
        return keep(path, origin, "", problems, lambda spool: _spool_parquet(path, spool))
    _check_bytes(path, where, problems)
    if form == "json":
        return keep(path, origin, "", problems, lambda spool: _spool_json(path, where, problems, spool))
    return _read_delimited(path, origin, form == "tsv", where, problems)


def _spool_parquet(path: Path, spool: Spool) -> None:
    with pq.ParquetFile(path, memory_map=True) as file:
        for batch in file.iter_batches(batch_size=65536):
            spool.add(pa.Table.from_batches([batch]))
        if not spool.rows:
            spool.add(file.schema_arrow.empty_table())


class UnreadableError(Exception):
    """The rest of a file cannot be read; the problem has been noted."""


def _check_bytes(path: Path, where: str, problems: Problems) -> None:
    """Note what no text file may hold, before a parser trips over it.

    Raises:
        UnreadableError: If there is no point in parsing the file.
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        start = data[:4096]
        nul, strange = data.find(b"\0"), _find_strange_byte(data)
        magic = next((kind for mark, kind in _MAGIC.items() if start.startswith(mark)), None)
        if start[:2] in (b"\xff\xfe", b"\xfe\xff"):
            problems.add(where, "the file is UTF-16, not UTF-8", "Convert it: iconv -f utf-16 -t utf-8 OLD > NEW")
        elif magic or start.count(b"\0") > 64 or (0 <= nul < len(start) and strange is not None):
            what = f"this looks like a {magic or 'binary'} file, not text"
            problems.add(where, what, "Give it the extension of its format, or save it as CSV")
        elif strange is not None:
            what = f"the file is not UTF-8 (byte {strange:,}, line {_count_lines(data, strange):,})"
            problems.add(where, what, "Convert it, for example: iconv -f latin1 -t utf-8 OLD > NEW")
        elif nul >= 0:
            what = f"there are NUL bytes (the first is byte {nul:,}, line {_count_lines(data, nul):,})"
            problems.add(where, what, "Remove them: tr -d '\\000' < OLD > NEW")
            return
        else:
            return
        raise UnreadableError


def _count_lines(data: mmap.mmap, stop: int) -> int:
    """Number the line a byte is in."""
    return 1 + sum(data[at : min(at + BLOCK, stop)].count(b"\n") for at in range(0, stop, BLOCK))


def _find_strange_byte(data: mmap.mmap) -> int | None:
    """Find the first byte that is not UTF-8."""
    at = 0
    while at < len(data):
        block = data[at : at + BLOCK]
        try:
            block.decode()
            at += len(block)
        except UnicodeDecodeError as error:
            cut_off = error.end == len(block) and at + len(block) < len(data) and len(block) - error.start < 4
            if not cut_off:
                return at + error.start
            at += error.start
    return None


class _Layout(NamedTuple):
    delimiter: str
    header: list[str]
    quoted: bool = True


def _read_delimited(path: Path, origin: Path, tabs: bool, where: str, problems: Problems) -> Table:
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
    return keep(
        path, origin, layout.delimiter, problems, lambda spool: _spool_delimited(path, layout, where, problems, spool)
    )


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


def _spool_delimited(path: Path, layout: _Layout, where: str, problems: Problems, spool: Spool) -> None:
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
    table, found = _try_tabs(path, origin, layout, where)
    if table is not None and not found and not any(map(_has_tab_and_newline, table.arrow.columns)):
        return table
    bare, faults = _try_tabs(path, origin, layout._replace(quoted=False), where)
    if bare is not None and not faults:
        return bare
    problems.lines.extend(found.lines or faults.lines)
    if table is None:
        raise UnreadableError
    return table


def _try_tabs(path: Path, origin: Path, layout: _Layout, where: str) -> tuple[Table | None, Problems]:
    problems = Problems(where)
    fill = partial(_spool_delimited, path, layout, where, problems)
    try:
        return keep(path, origin, f"tab {layout.quoted}", problems, fill), problems
    except UnreadableError:
        return None, problems


def _has_tab_and_newline(column: pa.ChunkedArray) -> bool:
    return bool(pc.any(pc.match_substring_regex(column, r"\n[^\t]*\t|\t[^\n]*\n")).as_py())


def _spool_json(path: Path, where: str, problems: Problems, spool: Spool) -> None:
    """Read the objects of a file into a spool, and note the lines that are none."""
    with path.open("rb") as file:
        if file.read(1 << 16).decode("utf-8-sig", errors="replace").lstrip()[:1] == "[":
            _spool_json_array(path, where, problems, spool)
            return
    first = 1
    faults = _JsonFaults()
    for chunk in _cut_lines(path):
        lines = len([line for line in chunk.split(b"\n") if line.strip()])
        if not lines:
            continue
        try:
            options = pajson.ReadOptions(use_threads=False, block_size=len(chunk) + 1)
            table = pajson.read_json(pa.BufferReader(chunk), read_options=options)
            spool.add(table)
        except (pa.ArrowException, TypeError):
            spool.add(_tabulate(faults.parse(chunk, first), spool.mixed, first))
        first += lines
    faults.note(where, problems)
    spool.skipped = faults.skipped


def _cut_lines(path: Path) -> Iterator[bytes]:
    """Yield the file in pieces that end where a line ends."""
    rest = b""
    with path.open("rb") as file:
        if file.read(3) != b"\xef\xbb\xbf":
            file.seek(0)
        while block := file.read(BLOCK):
            head, newline, tail = block.rpartition(b"\n")
            if newline:
                yield rest + head + newline
                rest = tail
            else:
                rest += block
    if rest:
        yield rest


class _JsonFaults:
    """Reads lines one by one where Arrow gave up, and remembers those that are not JSON objects."""

    def __init__(self) -> None:
        self.invalid: list[int] = []
        self.reason = ""
        self.not_objects: list[int] = []

    @property
    def skipped(self) -> list[int]:
        return sorted(self.invalid + self.not_objects)

    def parse(self, chunk: bytes, first: int) -> list[dict[str, Any]]:
        objects = []
        lines = (line for line in chunk.decode().split("\n") if line.strip())
        for number, line in enumerate(lines, first):
            try:
                value = json.loads(line)
            except (ValueError, RecursionError) as error:
                self.invalid.append(number)
                self.reason = self.reason or brief(error)
                continue
            if isinstance(value, dict):
                objects.append(value)
            else:
                self.not_objects.append(number)
        return objects

    def note(self, where: str, problems: Problems) -> None:
        problems.add_rows(where, f"not valid JSON ({self.reason})", self.invalid, _ONE_PER_LINE)
        problems.add_rows(where, "not a JSON object", self.not_objects, _ONE_PER_LINE)


def _spool_json_array(path: Path, where: str, problems: Problems, spool: Spool) -> None:
    try:
        rows = json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        problems.add(where, f"the file is not valid JSON ({brief(error)})", "Write one object per line instead")
        raise UnreadableError from None
    wrong = [number for number, row in enumerate(rows, 1) if not isinstance(row, dict)]
    problems.add_rows(where, "not a JSON object", wrong, _ONE_PER_LINE)
    spool.skipped = wrong
    spool.add(_tabulate([row for row in rows if isinstance(row, dict)], spool.mixed))


def _tabulate(objects: list[dict[str, Any]], mixed: dict[str, str], first: int = 1) -> pa.Table:
    names = list(dict.fromkeys(name for row in objects for name in row))
    return tabulate_columns({name: [row.get(name) for row in objects] for name in names}, mixed, first)
