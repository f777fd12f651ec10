"""The bytes of text files: what none may hold, and where one stops being UTF-8."""

import mmap
from pathlib import Path

from headhunt.data.problems import Problems

BLOCK = 16 << 20  # bytes read at a time
_MAGIC = {b"PAR1": "Parquet", b"PK\x03\x04": "zip or Excel", b"\x89PNG": "PNG", b"%PDF": "PDF", b"\x1f\x8b": "gzip"}


class UnreadableError(Exception):
    """The rest of a file cannot be read; the problem has been noted."""


def check_bytes(path: Path, where: str, problems: Problems) -> None:
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
