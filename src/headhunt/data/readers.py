"""Read one file of any supported format into an Arrow table: CSV, TSV, JSON, Parquet or Arrow.

Text formats may be compressed with gzip. Everything that cannot be read is added to the list of problems.
"""

import codecs
import gzip
import json
import mmap
import re
import tempfile
import zlib
from collections import defaultdict
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.json as pajson
import pyarrow.parquet as pq

from headhunt.data.delimited import BLOCK_BYTES, read_delimited
from headhunt.data.foreign import READERS, flatten_annotations
from headhunt.data.problems import Problems, brief, quote
from headhunt.data.tables import (
    MAX_IN_MEMORY,
    SizeLimit,
    Table,
    TableWriter,
    TooLargeError,
    from_columns,
    map_arrow,
    parquet_step,
    read_cached,
    simplify_types,
)
from headhunt.storage import MAX_DEPTH, STRICT, cache_dir, check_nesting, parse_json

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
_MAGIC = {b"PAR1": "Parquet", b"PK\x03\x04": "zip or Excel", b"\x89PNG": "PNG", b"%PDF": "PDF", b"\x1f\x8b": "gzip"}
_INVALID, _NO_OBJECT = "not valid JSON", "not a JSON object"
_SURROGATE = "with half a character (a lone surrogate such as \\ud83d)"
_WHOLE_CHARACTERS = "Write both halves, or the character itself in UTF-8"
_NO_BRACKETS = re.compile(rb'"(?:[^"\\]|\\.)*"|[^][{}]')  # strings, and everything else but brackets
_ONE_PER_LINE = 'Write one object per line, such as {"text": "…", "label": "…"}'


def detect_format(path: Path) -> str | None:
    """Return the format that a file name stands for, or None if it is unknown."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes[-1:] == [".gz"]:
        inner = FORMATS.get(suffixes[-2]) if len(suffixes) > 1 else None
        return inner if inner in ("csv", "tsv", "json") else None
    return FORMATS.get(suffixes[-1]) if suffixes else None


def read_file(path: Path, where: str, problems: Problems) -> Table:
    """Read one file, or report why it cannot be read.

    Args:
        path: The file.
        where: The name of the file in messages.
        problems: Receives everything that is wrong.

    Raises:
        UnreadableError: If nothing can be read.
    """
    file_format = detect_format(path)
    if file_format is None:
        known = ", ".join([*FORMATS, *READERS]) + " (.csv, .tsv and .jsonl also with .gz)"
        what = f"files of type {quote(path.suffix or path.name)} are not supported"
        raise problems.add(where, what, f"Use {known}")
    try:
        size = path.stat().st_size
        if not path.is_file():
            raise problems.add(where, "this must be a file", "Give a file or a folder of splits")
        if size == 0:
            raise problems.add(where, "the file is empty", "Give a file with a header and rows")
        if path.suffix.lower() == ".gz":
            return _read_gzip(path, file_format, where, problems)
        return _read_plain(path, path, file_format, where, problems)
    except TooLargeError as error:
        what, remedy = str(error), "If you trust it, unpack it or write it in several files"
    except FileNotFoundError:
        what, remedy = "there is no such file", "Check the path"
    except PermissionError as error:
        what, remedy = f"permission is denied for {quote(error.filename, 200)}", "Change its permissions"
    except (OSError, EOFError, zlib.error, pa.ArrowException) as error:
        what, remedy = f"the file is damaged or not what its name says ({brief(error)})", "Write it again"
    raise problems.add(where, what, remedy)


def _read_gzip(path: Path, file_format: str, where: str, problems: Problems) -> Table:
    with tempfile.TemporaryDirectory(
        dir=cache_dir("tables") if path.stat().st_size > MAX_IN_MEMORY else None
    ) as folder:
        plain = Path(folder) / "plain"
        limit = SizeLimit(path.stat().st_size, Path(folder))
        with gzip.open(path) as packed, plain.open("wb") as unpacked:
            while block := packed.read(BLOCK_BYTES):
                limit.check(unpacked.tell() + len(block))
                unpacked.write(block)
        if not plain.stat().st_size:
            raise problems.add(where, "the file is empty", "Give a file with a header and rows")
        return _read_plain(plain, path, file_format, where, problems)


def _read_plain(path: Path, origin: Path, file_format: str, where: str, problems: Problems) -> Table:
    if file_format == "arrow":
        return Table(simplify_types(map_arrow(path)), np.empty(0, np.int64), {})
    if file_format == "parquet":
        return read_cached(path, origin, "", problems, lambda writer: _write_parquet(path, writer))
    _check_bytes(path, where, problems)
    if file_format == "json":
        return read_cached(path, origin, "", problems, lambda writer: _write_json(path, where, problems, writer))
    return read_delimited(path, origin, file_format == "tsv", where, problems)


def _write_parquet(path: Path, writer: TableWriter) -> None:
    with pq.ParquetFile(path, memory_map=True) as file:
        step = parquet_step(file, lambda: path.open("rb"), path.stat().st_size)
        batches: list[pa.RecordBatch] = []
        for batch in file.iter_batches(batch_size=step):
            batches.append(batch)
            if sum(piece.nbytes for piece in batches) > BLOCK_BYTES or len(batches) == 64:
                writer.add(simplify_types(pa.Table.from_batches(batches)))
                batches = []
        if batches:
            writer.add(simplify_types(pa.Table.from_batches(batches)))
        if not writer.rows:
            writer.add(simplify_types(file.schema_arrow.empty_table()))


def _check_bytes(path: Path, where: str, problems: Problems) -> None:
    """Report bytes that no text file may contain, before a parser fails on them.

    Raises:
        UnreadableError: If the file cannot be parsed.
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        start = data[:4096]
        nul, invalid = data.find(b"\0"), _find_invalid_byte(data)
        magic = next((kind for mark, kind in _MAGIC.items() if start.startswith(mark)), None)
        if start[:2] in (b"\xff\xfe", b"\xfe\xff"):
            remedy = "Convert it: iconv -f utf-16 -t utf-8 OLD > NEW"
            raise problems.add(where, "the file is UTF-16, not UTF-8", remedy)
        if magic or start.count(b"\0") > 64 or (0 <= nul < len(start) and invalid is not None):
            what = f"this looks like a {magic or 'binary'} file, not text"
            raise problems.add(where, what, "Give it the extension of its format, or save it as CSV")
        if invalid is not None:
            what = f"the file is not UTF-8 (byte {invalid:,}, line {_count_lines(data, invalid):,})"
            raise problems.add(where, what, "Convert it, for example: iconv -f latin1 -t utf-8 OLD > NEW")
        if nul >= 0:
            what = f"there are NUL bytes (the first is byte {nul:,}, line {_count_lines(data, nul):,})"
            problems.add(where, what, "Remove them: tr -d '\\000' < OLD > NEW")


def _count_lines(data: mmap.mmap, stop: int) -> int:
    """Return the number of the line that contains a byte."""
    return 1 + sum(data[at : min(at + BLOCK_BYTES, stop)].count(b"\n") for at in range(0, stop, BLOCK_BYTES))


def _find_invalid_byte(data: mmap.mmap) -> int | None:
    """Return the position of the first byte that is not UTF-8."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    for start in range(0, len(data), BLOCK_BYTES):
        stop = min(start + BLOCK_BYTES, len(data))
        try:
            decoder.decode(data[start:stop], stop == len(data))
        except UnicodeDecodeError as error:  # its bytes may begin in the block before
            return stop - len(error.object) + error.start
    return None


def _write_json(path: Path, where: str, problems: Problems, writer: TableWriter) -> None:
    """Read the objects of a file into a table and report the lines that are not objects."""
    with path.open("rb") as file:
        if file.read(1 << 16).decode("utf-8-sig", errors="replace").lstrip()[:1] == "[":
            _write_json_array(path, where, problems, writer)
            return
    first = 1
    faults: dict[str, list[int]] = defaultdict(list)
    for piece in _iterate_pieces(path):
        lines = [line for raw in piece.split(b"\n") if (line := raw.strip())]
        if not lines:
            continue
        try:
            if not all(map(_is_flat_object, lines)) or b"NaN" in piece or b"Infinity" in piece:
                raise TypeError("only the parser of single lines takes these")
            options = pajson.ReadOptions(use_threads=False, block_size=len(piece) + 1)
            writer.add(pajson.read_json(pa.BufferReader(piece), read_options=options))
        except (pa.ArrowException, TypeError):
            writer.add(_from_objects(_parse_lines(piece, first, faults), writer.mixed, first))
        first += len(lines)
    _report_faults(faults, where, problems, writer)


def _is_flat_object(line: bytes) -> bool:
    """Return whether Arrow can parse a line: it ends the process if lists or objects are nested too deeply.

    A line that starts and ends with a brace is complete, so that no nesting goes on in the next line.
    """
    if not (line[:1] == b"{" and line[-1:] == b"}"):
        return False
    if line.count(b"{") + line.count(b"[") <= MAX_DEPTH:
        return True
    depth = deepest = 0
    for mark in _NO_BRACKETS.sub(b"", line):
        depth += 1 if mark in b"[{" else -1
        deepest = max(deepest, depth)
    return deepest <= MAX_DEPTH


def _iterate_pieces(path: Path) -> Iterator[bytes]:
    """Yield the file in pieces that end at the end of a line."""
    with path.open("rb") as file:
        if file.read(3) != codecs.BOM_UTF8:
            file.seek(0)
        while piece := file.read(BLOCK_BYTES) + file.readline():
            yield piece


def _parse_lines(piece: bytes, first: int, faults: dict[str, list[int]]) -> list[dict[str, Any]]:
    """Return the objects of a piece that Arrow cannot parse, and add the numbers of other lines to `faults`."""
    objects = []
    lines = (line for line in piece.decode().split("\n") if line.strip())
    for number, line in enumerate(lines, first):
        try:
            value = parse_json(line)
        except UnicodeEncodeError:
            faults[_SURROGATE].append(number)
        except ValueError as error:  # the reason of the first one stands for all
            what = next((what for what in faults if what.startswith(_INVALID)), f"{_INVALID} ({brief(error)})")
            faults[what].append(number)
        else:
            if isinstance(value, dict):
                objects.append(value)
            else:
                faults[_NO_OBJECT].append(number)
    return objects


def _report_faults(faults: dict[str, list[int]], where: str, problems: Problems, writer: TableWriter) -> None:
    """Report the rows that are left out, by what is wrong with them."""
    for what, numbers in faults.items():
        problems.add_rows(where, what, numbers, _WHOLE_CHARACTERS if what == _SURROGATE else _ONE_PER_LINE)
    writer.skipped = sorted(chain.from_iterable(faults.values()))


def _has_surrogate(value: Any) -> bool:
    """Return whether a value contains half of a surrogate pair, which no text in UTF-8 can hold."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False


def _write_json_array(path: Path, where: str, problems: Problems, writer: TableWriter) -> None:
    try:
        rows = json.loads(path.read_text(encoding="utf-8-sig"), **STRICT)
        check_nesting(rows)
    except (ValueError, RecursionError) as error:
        what = f"the file is not valid JSON ({brief(error)})"
        raise problems.add(where, what, "Write one object per line instead") from None
    kept = []
    faults: dict[str, list[int]] = defaultdict(list)
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            faults[_NO_OBJECT].append(number)
        elif _has_surrogate(row):
            faults[_SURROGATE].append(number)
        else:
            kept.append(row)
    _report_faults(faults, where, problems, writer)
    writer.add(_from_objects(flatten_annotations(kept), writer.mixed))


def _from_objects(objects: list[dict[str, Any]], mixed: dict[str, str], first: int = 1) -> pa.Table:
    names = list(dict.fromkeys(name for row in objects for name in row))
    return from_columns({name: [row.get(name) for row in objects] for name in names}, mixed, first)
