"""One file to one Arrow table, whatever its format."""

import gzip
import shutil
import tempfile
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headhunt.data.delimited import read_delimited
from headhunt.data.encoding import BLOCK, UnreadableError, check_bytes
from headhunt.data.json_lines import spool_json
from headhunt.data.problems import Problems, brief, quote
from headhunt.data.tables import BIG, Spool, Table, find_cache, keep, map_arrow

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
    check_bytes(path, where, problems)
    if form == "json":
        return keep(path, origin, "", problems, lambda spool: spool_json(path, where, problems, spool))
    return read_delimited(path, origin, form == "tsv", where, problems)


def _spool_parquet(path: Path, spool: Spool) -> None:
    with pq.ParquetFile(path, memory_map=True) as file:
        for batch in file.iter_batches(batch_size=65536):
            spool.add(pa.Table.from_batches([batch]))
        if not spool.rows:
            spool.add(file.schema_arrow.empty_table())
