"""One shard of a corpus: a stretch of rows is read, labelled, and written whole or not at all. Runs in a worker."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from headhunt.data.columns import Columns
from headhunt.data.inputs import (
    FAULTS,
    Input,
    ParquetRows,
    TableRows,
    UnreadableInputError,
    check_unchanged,
    filesystem,
    find_faults,
    name_input,
    open_rows,
    split_url,
)
from headhunt.data.problems import brief
from headhunt.errors import HeadhuntError, ModelError
from headhunt.run.directory import not_a_model

WINDOW = 8 << 20  # bytes of text labelled at a time: tokenising takes some hundred times as much memory
_ROW = "\0row"  # a name no column has


class Model(Protocol):
    """What a worker needs of a model; `Predictor` and the runtime of an ONNX export have it."""

    def outputs(self, texts: list[str], texts_b: list[str] | None = None) -> np.ndarray:
        """Probabilities (texts, labels), or numbers (texts,)."""


@dataclass(frozen=True)
class Shard:
    """A stretch of rows of one file, and the name of what is made of it."""

    name: str
    path: str
    size: int
    time: int
    start: int
    stop: int


@dataclass(frozen=True)
class Card:
    """What must be known of a model before it is loaded: the same of a saved one and of an ONNX export."""

    folder: str
    problem_type: str
    labels: tuple[str, ...]
    pair: bool

    @classmethod
    def read(cls, folder: str | Path) -> Card:
        """Reads it.

        Raises:
            ModelError: If the folder holds no model.
        """
        path = Path(folder) / "headhunt.json"
        try:
            card = json.loads(path.read_text(encoding="utf-8"))
            if "ensemble" in card:
                raise ModelError(
                    f"{folder} is the mean of several models, which cannot label a corpus yet. "
                    f"Give one model: {Path(folder).parent / 'model'}."
                )
            return cls(str(Path(folder).absolute()), card["problem_type"], tuple(card["labels"]), card["pair"])
        except OSError:
            raise not_a_model(Path(folder)) from None
        except (ValueError, KeyError, TypeError):
            raise ModelError(f"{path} must describe a model; it does not. Save the model again.") from None

    def fingerprint(self) -> str:
        """Changes with whatever decides what the model answers."""
        found = hashlib.blake2b(digest_size=16)
        for path in sorted(Path(self.folder).iterdir()):
            if path.is_file() and path.suffix != ".md" and not path.name.startswith("."):
                found.update(path.name.encode())
                with path.open("rb") as file:
                    while block := file.read(1 << 22):
                        found.update(block)
        return found.hexdigest()

    def load(self, device: str | None, precision: str, threads: int | None) -> Model:
        """Loads the model."""
        if (Path(self.folder) / "model.onnx").is_file():
            try:
                from headhunt.delivery.onnx import runtime
            except ImportError:
                raise ModelError(
                    f'{self.folder} is an ONNX export, which needs onnxruntime: pip install "headhunt[onnx]".'
                ) from None
            return runtime.Model(self.folder, threads=threads)
        import torch

        from headhunt.predictor import Predictor
        from headhunt.training.device import pick_device

        if threads:
            torch.set_num_threads(threads)
        return Predictor.load(self.folder, device=pick_device(device), precision=precision)


class Place:
    """Where shards go: a folder here, or one behind a URL. Every file in it is whole."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.root, self.path = split_url(url)
        self.store = filesystem(self.root)

    def names(self) -> set[str]:
        """The names of its files."""
        try:
            items = self.store.get_file_info(pafs.FileSelector(self.path, allow_not_found=True))
        except (OSError, pa.ArrowException) as error:
            raise HeadhuntError(f"--out must be a folder that can be read; {self.url}: {brief(error)}.") from None
        return {item.base_name for item in items}

    @contextlib.contextmanager
    def writing(self, name: str) -> Iterator[Path]:
        """A path on this machine to write to; what is there in the end gets the name at once, or never."""
        with contextlib.ExitStack() as stack:
            if self.root:
                temporary = Path(stack.enter_context(tempfile.TemporaryDirectory())) / name
            else:
                temporary = Path(self.path) / f".{name}.{uuid.uuid4().hex[:8]}.tmp"
                stack.callback(temporary.unlink, missing_ok=True)
            yield temporary
            if self.root:  # an object is there when all of it has arrived
                here = pafs.LocalFileSystem()
                pafs.copy_files(
                    temporary.as_posix(),
                    f"{self.path}/{name}",
                    source_filesystem=here,
                    destination_filesystem=self.store,
                )
            else:
                with temporary.open("rb") as file:
                    os.fsync(file.fileno())
                temporary.replace(Path(self.path) / name)

    def read(self, name: str) -> bytes:
        """The bytes of a small file."""
        with self.store.open_input_stream(f"{self.path}/{name}") as file:
            return file.read()

    def write(self, name: str, data: dict[str, Any]) -> None:
        """Writes a small file of JSON."""
        try:
            self.store.create_dir(self.path, recursive=True)
            with self.writing(name) as path:
                path.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        except (OSError, pa.ArrowException) as error:
            raise HeadhuntError(f"--out must be a folder that can be written to; {self.url}: {brief(error)}.") from None

    def count(self, name: str) -> tuple[int, Counter[str]]:
        """Rows of a shard, and its problems by name."""
        with self.store.open_input_file(f"{self.path}/{name}") as file:
            column = pq.ParquetFile(file).read(["problem"])["problem"]
        found = {item["values"]: item["counts"] for item in pc.value_counts(column.drop_null()).to_pylist()}
        return len(column), Counter(found)

    def clear(self) -> None:
        """Clears away what workers that were killed have left half written."""
        if not self.root:
            for path in Path(self.path).glob(".part-*.tmp"):
                path.unlink(missing_ok=True)


class Labeller:
    """Makes shards: runs in a worker, with a model of its own.

    Args:
        card: Which model.
        root: What leads to the filesystem of the input.
        out: The folder or URL of the output.
        columns: The columns with texts.
        keep: Columns of the input that go into the output; all if None.
        probabilities: Whether those of all labels do.
        device: Where to compute.
        precision: How precisely.
        threads: For computing on a CPU; torch decides unless given.
    """

    def __init__(
        self,
        card: Mapping[str, Any],
        root: str,
        out: str,
        columns: Mapping[str, Any],
        keep: list[str] | None,
        probabilities: bool,
        device: str | None,
        precision: str,
        threads: int | None = None,
    ) -> None:
        self._card = Card(**card)
        self._root, self._place = root, Place(out)
        self._columns = Columns(**columns)
        self._keep, self._all = keep, probabilities
        self._model = self._card.load(device, precision, threads)
        self._opened: tuple[Input, ParquetRows | TableRows] | None = None

    def __call__(self, batch: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
        """Makes the shards of a batch, as Ray Data gives them, and tells what is in each."""
        shards = [
            Shard(**{name: _plain(values[at]) for name, values in batch.items()}) for at in range(len(batch["name"]))
        ]
        answers = [self.make(shard) for shard in shards]
        return {name: [answer[name] for answer in answers] for name in answers[0]}

    def make(self, shard: Shard) -> dict[str, Any]:
        """Makes one shard, unless it is there already, as it is when a worker died after its work was done."""
        answer = {"name": shard.name, "path": shard.path, "problems": "{}", "error": ""}
        try:
            rows, problems = self._place.count(shard.name)
            if rows == shard.stop - shard.start:
                return {**answer, "problems": json.dumps(problems)}
        except (OSError, pa.ArrowException):
            pass
        try:
            return {**answer, "problems": json.dumps(self._write(shard))}
        except UnreadableInputError as error:
            self._opened = None
            return {**answer, "error": f"rows {shard.start + 1:,} to {shard.stop:,}: {error}"}

    def _write(self, shard: Shard) -> Counter[str]:
        problems = Counter[str]()
        with self._place.writing(shard.name) as path, contextlib.ExitStack() as stack:
            writer: pq.ParquetWriter | None = None
            for table, codes in self._windows(shard):
                found = self._label(table, codes, shard)
                if writer is None:
                    writer = stack.enter_context(pq.ParquetWriter(path, found.schema, compression="zstd"))
                writer.write_table(found)
                problems.update(
                    {FAULTS[code]: int(number) for code, number in enumerate(np.bincount(codes)) if code and number}
                )
            check_unchanged(self._root, Input(shard.path, shard.size, shard.time))
            stack.close()
        return problems

    def _windows(self, shard: Shard) -> Iterator[tuple[pa.Table, np.ndarray]]:
        """The rows of a shard, with what is wrong with each, in pieces that memory bears."""
        row = shard.start
        for parts in _gathered(self._read(shard)):
            table = pa.concat_tables([part for part, _ in parts])
            codes = np.concatenate([np.zeros(len(part), np.int8) if bad is None else bad for part, bad in parts])
            table = table.append_column(_ROW, pa.array(np.arange(row + 1, row + 1 + len(table))))
            row += len(table)
            yield table, codes

    def _read(self, shard: Shard) -> Iterator[tuple[pa.Table, np.ndarray | None]]:
        file = Input(shard.path, shard.size, shard.time)
        texts = [name for name in (self._columns.text, self._columns.text_b) if name is not None]
        if self._opened is None or self._opened[0] != file:
            self._opened = None  # the old one is let go of first
            self._opened = (file, open_rows(self._root, file, texts))
        wanted = None if self._keep is None else list(dict.fromkeys([*self._keep, *texts]))
        try:
            yield from self._opened[1].read(shard.start, shard.stop, wanted)
        except (OSError, pa.ArrowException) as error:
            raise UnreadableInputError(brief(error)) from None

    def _label(self, table: pa.Table, codes: np.ndarray, shard: Shard) -> pa.Table:
        texts = find_faults(table[self._columns.text], codes)
        texts_b = None if self._columns.text_b is None else find_faults(table[self._columns.text_b], codes)
        good = np.flatnonzero(codes == 0)
        chosen = pa.array(good)
        values = (
            self._model.outputs(
                texts.take(chosen).to_pylist(), None if texts_b is None else texts_b.take(chosen).to_pylist()
            )
            if len(good)
            else np.zeros((0, len(self._card.labels)) if self._card.labels else 0, np.float32)
        )
        ours = {
            "source": pa.repeat(name_input(self._root, shard.path), len(table)),
            "row": table[_ROW],
            **answers(self._card.problem_type, self._card.labels, values, good, len(table), self._all),
            "problem": pa.array(FAULTS).take(pa.array(codes.astype(np.int64), mask=codes == 0)),
        }
        kept = [name for name in table.column_names if name != _ROW and (self._keep is None or name in self._keep)]
        theirs: dict[str, Any] = {}
        for name in kept:
            new = name
            while new in ours or new in theirs or (new != name and new in kept):
                new = f"input_{new}"
            theirs[new] = table[name]
        return pa.table({**theirs, **ours})


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _gathered(
    parts: Iterable[tuple[pa.Table, np.ndarray | None]],
) -> Iterator[list[tuple[pa.Table, np.ndarray | None]]]:
    """Stretches put together to windows: as many rows as memory bears, so that like lengths find together."""
    window: list[tuple[pa.Table, np.ndarray | None]] = []
    size = 0
    for part in parts:
        if window and size + part[0].nbytes > WINDOW:
            yield window
            window, size = [], 0
        window.append(part)
        size += part[0].nbytes
    if window:
        yield window


def answers(
    problem_type: str, labels: Sequence[str], values: np.ndarray, good: np.ndarray, rows: int, every: bool
) -> dict[str, pa.Array]:
    """What a model gave, as columns.

    Args:
        problem_type: What is predicted.
        labels: Names of the classes.
        values: Probabilities (texts, labels) or numbers (texts,).
        good: Which rows the texts are; the others get null.
        rows: How many rows there are.
        every: Whether the probabilities of all labels are wanted.
    """
    missing = np.ones(rows, bool)
    missing[good] = False

    def spread(found: np.ndarray, dtype: Any) -> pa.Array:
        wide = np.zeros(rows, dtype)
        wide[good] = found
        return pa.array(wide, mask=missing)

    if problem_type == "regression":
        return {"label": spread(values, np.float64), "probability": pa.nulls(rows, pa.float32())}
    names = pa.array(list(labels), pa.string())
    if problem_type == "single_label_classification":
        best = values.argmax(1)
        found = {
            "label": names.take(spread(best, np.int64)),
            "probability": spread(values[np.arange(len(best)), best], np.float32),
        }
    else:
        chosen = values >= 0.5
        counts = np.zeros(rows, np.int64)
        counts[good] = chosen.sum(1)
        ends = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        listed = names.take(pa.array(np.nonzero(chosen)[1]))
        least = np.where(chosen, values, np.inf).min(1, initial=np.inf)
        certain = spread(least, np.float32).to_numpy(zero_copy_only=False)
        found = {
            "label": pa.ListArray.from_arrays(pa.array(ends), listed, mask=pa.array(missing)),
            "probability": pa.array(certain, mask=missing | ~np.isfinite(certain)),
        }
    if every:
        each = [spread(values[:, at], np.float32) for at in range(len(labels))]
        found["probabilities"] = pa.StructArray.from_arrays(each, list(labels), mask=pa.array(missing))
    return found
