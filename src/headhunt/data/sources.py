"""Read any source (a file, a folder, a data frame, lists) as rows of Arrow tables, split by split."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from headhunt.data.foreign import HUB_NAME, READERS, SQL_URL, Columns, load_from_hub, read_url
from headhunt.data.problems import Problems, UnreadableError, brief, count, find_repeated, quote, quote_some
from headhunt.data.readers import detect_format, read_file
from headhunt.data.tables import from_columns
from headhunt.storage import exists, parse_json

SPLIT_NAMES = {
    "train": "train",
    "training": "train",
    "dev": "validation",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "eval": "validation",
    "test": "test",
    "testing": "test",
}
_SHARD = re.compile(r"-\d+-of-\d+$")
_BATCH_ROWS, _BATCH_BYTES = 65536, 64 << 20


@dataclass(frozen=True)
class Rows:
    """Rows of an Arrow table, in order.

    Attributes:
        where: The name of the source in messages.
        table: The table; its columns may be memory-mapped from a file.
        positions: The positions of the rows in the table, or None for all rows.
        skipped: Numbers (from 1) of rows of the source that are not in the table.
        class_names: Names of integer labels, for columns that have them.
        mixed: Columns whose values have no common type, with a description.
    """

    where: str
    table: pa.Table
    positions: np.ndarray | None = None
    skipped: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    class_names: dict[str, list[str]] = field(default_factory=dict)
    mixed: dict[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.table) if self.positions is None else len(self.positions)

    def take(self, positions: np.ndarray) -> "Rows":
        """Select rows by position; only the positions are copied."""
        selected = positions if self.positions is None else self.positions[positions]
        return Rows(self.where, self.table, selected, self.skipped, self.class_names, self.mixed)

    def number(self, positions: np.ndarray) -> np.ndarray:
        """Return row numbers as the source has them: from 1, including unreadable rows and those not selected."""
        rows = np.asarray(positions) if self.positions is None else self.positions[positions]
        if not len(self.skipped):
            return rows + 1
        return np.setdiff1d(np.arange(1, len(self.table) + len(self.skipped) + 1), self.skipped)[rows]

    def column(self, name: str) -> pa.ChunkedArray:
        """Return a complete column, with categories decoded. It may be copied, so do not use it for texts."""
        column = self.table[name]
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        return column if self.positions is None else column.take(pa.array(self.positions))

    def read(self, name: str, start: int, stop: int) -> pa.Array:
        """Return the rows of a column from `start` to `stop` as one array, with categories decoded."""
        column = self.table[name]
        if self.positions is None:
            piece = column.slice(start, stop - start)
            array = piece.chunk(0) if piece.num_chunks == 1 else piece.combine_chunks()
        else:
            array = _gather(column, self.positions[start:stop])
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        return array.cast(pa.string()) if str(array.type) == "string_view" else array

    def walk(self, name: str) -> Iterator[tuple[int, pa.Array]]:
        """Iterate over a column in batches, each with the position of its first row."""
        width = max(1, self.table[name].nbytes // max(1, len(self.table)))
        step = max(1, min(_BATCH_ROWS, _BATCH_BYTES // width))
        for start in range(0, len(self), step):
            yield start, self.read(name, start, min(start + step, len(self)))


def _gather(column: pa.ChunkedArray, positions: np.ndarray) -> pa.Array:
    """Take rows of a chunked column without concatenating its chunks first, unlike Arrow's own take."""
    bounds = np.cumsum([0] + [len(chunk) for chunk in column.chunks])
    owners = np.searchsorted(bounds, positions, side="right") - 1
    pieces = [
        column.chunk(int(owner)).take(pa.array(positions[owners == owner] - bounds[owner]))
        for owner in np.unique(owners)
    ]
    if len(pieces) == 1:
        return pieces[0]
    joined = pa.concat_arrays(pieces) if pieces else pa.array([], column.type)
    order = np.argsort(owners, kind="stable")  # of the rows in the pieces
    return joined.take(pa.array(np.argsort(order, kind="stable")))


def read_splits(source: Any, problems: Problems, notes: list[str]) -> dict[str, Rows]:
    """Read a source into splits; a source without splits is ``{"": rows}``.

    Args:
        source: A path, table, data frame, dataset, dict or lists (see `Task.load`).
        problems: Receives everything that is wrong; a split that cannot be read is missing from the result.
        notes: Receives the names of ignored files and splits.
    """
    if isinstance(source, str | Path) and exists(path := Path(source).expanduser()) and path.is_dir():
        return _read_folder(path, problems, notes)
    with suppress(UnreadableError):
        if isinstance(source, str) and HUB_NAME.fullmatch(source) and not exists(path.parent):
            source = load_from_hub(source, source, problems)
        if isinstance(source, Mapping) and _has_splits(source):
            return _read_mapping(source, problems, notes)
        return {"": _read_rows(source, name_source(source), problems)}
    return {}


def pick_split(splits: dict[str, Rows], preferred: str = "test") -> Rows | None:
    """Return the rows to evaluate on: the preferred split, else test, else validation, else the only one."""
    return next((splits[name] for name in (preferred, "test", "validation", "", *splits) if name in splits), None)


def name_source(source: Any) -> str:
    """Return the name of a source in messages."""
    if isinstance(source, str | Path):
        return Path(source).name or str(source)
    return "the data"


def _read_rows(source: Any, where: str, problems: Problems) -> Rows:
    """Read one source without splits, or report why it cannot be read.

    Raises:
        UnreadableError: If it cannot.
    """
    if isinstance(source, str | Path):
        return _read_path(source, where, problems)
    if isinstance(source, Rows):
        return source
    if not isinstance(source, pa.Table) and hasattr(source, "to_arrow"):
        source = source.to_arrow()  # polars
    if isinstance(source, pa.Table):
        _check_names(source.column_names, where, problems)
        return _read_class_names(Rows(where, source))
    if hasattr(source, "features") and hasattr(source, "data"):  # a `datasets.Dataset`; its selection is `_indices`
        indices = source._indices
        positions = None if indices is None else indices.column(0).to_numpy().astype(np.int64)
        return _read_class_names(Rows(where, source.data.table, positions))
    if hasattr(source, "iloc") and hasattr(source, "columns"):
        names = [str(name) for name in source.columns]
        _check_names(names, where, problems)
        return _read_columns({name: source.iloc[:, at] for at, name in enumerate(names)}, where, problems)
    if isinstance(source, Mapping):
        return _read_columns({str(name): values for name, values in source.items()}, where, problems)
    if isinstance(source, Sequence) and not isinstance(source, bytes):
        return _read_sequence(source, where, problems)
    remedy = "Give a path, a data frame, an Arrow table, a dataset, a dict of columns, or lists of texts and labels"
    raise problems.add(where, f"data cannot be read from {quote(type(source).__name__)}", remedy)


def _read_path(source: str | Path, where: str, problems: Problems) -> Rows:
    path = Path(source).expanduser()
    reader = READERS.get(path.suffix.lower())
    if isinstance(source, str) and SQL_URL.match(source):
        return _read_foreign(partial(read_url, source, where, problems), where, problems)
    if not exists(path):
        raise problems.add(where, "this file or folder does not exist", "Check the path")
    if reader is not None:
        return _read_foreign(partial(reader, path, where, problems), where, problems)
    table = read_file(path, where, problems)
    _check_names(table.arrow.column_names, where, problems)
    return _read_class_names(Rows(where, table.arrow, skipped=table.skipped, mixed=table.mixed))


def _read_foreign(read: Callable[[], Columns], where: str, problems: Problems) -> Rows:
    try:
        return _read_columns(read(), where, problems)
    except UnreadableError:
        raise
    except Exception as error:  # damaged files raise errors of many libraries
        what = f"the file is damaged or not what its name says ({brief(error)})"
        raise problems.add(where, what, "Write it again") from None


def _check_names(names: Sequence[str], where: str, problems: Problems) -> None:
    if repeated := find_repeated(names):
        raise problems.add(where, f"{quote_some(repeated)} names two columns", "Give every column its own name")


def _read_folder(folder: Path, problems: Problems, notes: list[str]) -> dict[str, Rows]:
    files: dict[str, list[Path]] = {}
    ignored = []
    for path in sorted(folder.iterdir()):
        stem = path.name.split(".")[0].lower()
        split = SPLIT_NAMES.get(_SHARD.sub("", stem))
        if split and path.is_file() and detect_format(path):
            files.setdefault(split, []).append(path)
        elif not path.name.startswith("."):
            ignored.append(path.name)
    if ignored:
        notes.append(f"ignored in {folder.name}: {quote_some(ignored)}")
    splits = {}
    for split, paths in files.items():
        if len(paths) > 1 and not all(_SHARD.search(path.name.split(".")[0]) for path in paths):
            what = f"{count(len(paths), 'file')} for the {split} split ({', '.join(path.name for path in paths)})"
            problems.add(folder.name, what, "Keep one of them")
            continue
        shards = []
        for path in paths:
            with suppress(UnreadableError):
                shards.append(_read_path(path, f"{folder.name}/{path.name}", problems))
        if len(shards) == len(paths):
            splits[split] = shards[0] if len(shards) == 1 else _join_shards(shards)
    if not files:
        what = "no file in this folder is named after a split" + (f" (found {quote_some(ignored)})" if ignored else "")
        problems.add(folder.name, what, "Name them train.csv and, if you have them, validation.csv and test.csv")
    return splits


def _join_shards(shards: list[Rows]) -> Rows:
    table = pa.concat_tables([shard.table for shard in shards], promote_options="permissive")
    return Rows(shards[0].where, table, class_names=shards[0].class_names, mixed=shards[0].mixed)


def _has_splits(source: Mapping[Any, Any]) -> bool:
    """Return True for a dict of splits: it has the name of a split, with a value that is not a column."""
    values = [value for key, value in source.items() if str(key).lower() in SPLIT_NAMES]
    return any(not _is_column(value) for value in values)


def _is_column(value: Any) -> bool:
    if isinstance(value, str | Path | Mapping) or hasattr(value, "columns") or hasattr(value, "features"):
        return False
    return not (_is_list(value) and len(value) and (_is_list(value[0]) or isinstance(value[0], Mapping)))


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple | np.ndarray | pa.Array | pa.ChunkedArray) or hasattr(value, "to_list")


def _read_mapping(source: Mapping[Any, Any], problems: Problems, notes: list[str]) -> dict[str, Rows]:
    splits: dict[str, Rows] = {}
    for key, value in source.items():
        split = SPLIT_NAMES.get(str(key).lower())
        if split is None or split in splits:
            notes.append(f"ignored: split {quote(key)}")
            continue
        with suppress(UnreadableError):
            splits[split] = _read_rows(value, str(key), problems)
    return splits


def _read_class_names(rows: Rows) -> Rows:
    """Read class names from the metadata that `datasets` writes into its tables."""
    try:
        features = parse_json((rows.table.schema.metadata or {})[b"huggingface"])["info"]["features"]
        for name, feature in features.items():
            inner = feature.get("feature", feature) if isinstance(feature, dict) else {}
            names = inner.get("names") if isinstance(inner, dict) and inner.get("_type") == "ClassLabel" else None
            if isinstance(names, list) and names and all(isinstance(label, str) for label in names):
                rows.class_names[name] = names
    except (KeyError, ValueError, TypeError, AttributeError):
        pass
    return rows


def _read_columns(columns: dict[str, Any], where: str, problems: Problems) -> Rows:
    if scalars := [name for name, values in columns.items() if not _is_list(values)]:
        raise problems.add(where, f"{quote_some(scalars)} must be a list of values", "Give every column as a list")
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name} {length:,}" for name, length in lengths.items())
        raise problems.add(where, f"the columns have different lengths ({listed})", "Give one value per row in each")
    if not columns or not any(lengths.values()):
        raise problems.add(where, "there are no rows", "Give at least one text and its label")
    mixed: dict[str, str] = {}
    return Rows(where, from_columns(columns, mixed), mixed=mixed)


def _read_sequence(source: Sequence[Any], where: str, problems: Problems) -> Rows:
    """Read (texts, labels), or a list of (text, label), (text, text_b, label), mappings or texts."""
    if not len(source):
        raise problems.add(where, "the list is empty", "Give at least one text and its label")
    if isinstance(source, tuple) and len(source) in (2, 3) and all(_is_list(column) for column in source):
        names = ("text", "label") if len(source) == 2 else ("text", "text_b", "label")
        return _read_columns(dict(zip(names, source, strict=True)), where, problems)
    if all(isinstance(row, Mapping) for row in source):
        keys = dict.fromkeys(name for row in source for name in row)
        return _read_columns({str(key): [row.get(key) for row in source] for key in keys}, where, problems)
    if all(isinstance(row, tuple | list) for row in source):
        widths = {len(row) for row in source}
        if len(widths) > 1 or not widths <= {2, 3}:
            remedy = "Give (text, label) or (text, text_b, label) in every row"
            raise problems.add(where, f"the rows have {quote_some(sorted(widths))} entries", remedy)
        names = ("text", "label") if widths == {2} else ("text", "text_b", "label")
        return _read_columns(dict(zip(names, map(list, zip(*source, strict=True)), strict=True)), where, problems)
    return _read_columns({"text": list(source)}, where, problems)


def text_columns(given: Any) -> list[list[Any]]:
    """Return the one or two columns of a data frame, an array, or a list of texts or of rows."""
    rows = given if isinstance(given, list | tuple) else np.atleast_1d(np.asarray(given)).tolist()
    if not len(rows) or not all(isinstance(row, list | tuple | np.ndarray) for row in rows):
        return [list(rows)]
    widths = {len(row) for row in rows}
    if len(widths) > 1:
        raise ValueError(f"X must have equally many texts in each row; found {', '.join(map(str, sorted(widths)))}.")
    columns = [list(column) for column in zip(*rows, strict=True)]
    if len(columns) not in (1, 2):
        raise ValueError(f"X must have one or two texts per row; found {len(columns)} columns.")
    return columns


def find_wrong_text(texts: Iterable[Any]) -> str | None:
    """Return which of the texts is missing or something else, in words; None if all are texts."""
    for row, text in enumerate(texts):
        if not isinstance(text, str):
            # pandas' NA is neither equal to itself nor different from it.
            missing = text is None or type(text).__name__ == "NAType" or text != text
            value = "a missing value (NaN)" if missing else f"{type(text).__name__} {text!r:.40}"
            return f"row {row} has {value}"
    return None
