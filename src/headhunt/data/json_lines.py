"""JSON, one object per line or one list of objects."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.json as pajson

from headhunt.data.encoding import BLOCK, UnreadableError
from headhunt.data.problems import Problems, brief
from headhunt.data.tables import Spool, tabulate_columns

_ONE_PER_LINE = 'Write one object per line, such as {"text": "…", "label": "…"}'


def spool_json(path: Path, where: str, problems: Problems, spool: Spool) -> None:
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
