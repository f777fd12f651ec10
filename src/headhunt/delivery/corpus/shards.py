"""Make one shard of a corpus in a worker: read a range of rows, label it and write it."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headhunt.data.columns import FAILING, FAULTS, Columns, find_faults
from headhunt.data.inputs import (
    Input,
    ParquetRows,
    TableRows,
    UnreadableInputError,
    check_unchanged,
    name_input,
    open_rows,
)
from headhunt.data.problems import brief
from headhunt.data.tables import TooLargeError
from headhunt.delivery.corpus.output import OutputDirectory
from headhunt.errors import ModelError
from headhunt.evaluation import Rejection, apply_thresholds, decide
from headhunt.run.model_info import not_a_model
from headhunt.storage import disk_failed, read_json
from headhunt.study.fork_server import check_tokenizer

if TYPE_CHECKING:
    from headhunt.delivery.onnx import runtime
    from headhunt.predictor import Predictor

    Model = Predictor | runtime.Model

WINDOW = 8 << 20  # bytes of text labelled at a time: tokenizing takes some hundred times as much memory
MAX_ATTEMPTS = 5  # workers that may die while they make a shard, before it is listed as failed
MAX_FAILING = 100  # texts of a window on which a model may fail, before it is the model that is at fault
_ROW = "\0row"  # a name that no column has
Piece = tuple[pa.Table, np.ndarray | None]  # rows, and the fault of each; None if all are good


@dataclass(frozen=True)
class Shard:
    """A range of rows of one file, and the name of the shard made of it."""

    name: str
    path: str
    size: int
    time: int
    start: int
    stop: int

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.stop - self.start


@dataclass(frozen=True)
class ShardResult:
    """The outcome of one shard."""

    name: str
    path: str
    problems: Mapping[str, int] = field(default_factory=dict)
    """Number of rows without a label, by problem."""
    error: str = ""
    """Reason why the rows cannot be read; empty if the shard was written."""


@dataclass(frozen=True)
class ModelInfo:
    """The facts about a model that are needed before it is loaded."""

    folder: str
    problem_type: str
    labels: tuple[str, ...]
    pair: bool

    @classmethod
    def read(cls, folder: str | Path) -> ModelInfo:
        """Read the facts of a saved model or an ONNX export.

        Raises:
            ModelError: If the folder has no model.
        """
        path = Path(folder) / "headhunt.json"
        try:
            data = read_json(path)
            labels = tuple(data["labels"])
            if not isinstance(data["labels"], list) or not all(isinstance(label, str) for label in labels):
                raise TypeError
            info = cls(str(Path(folder).absolute()), data["problem_type"], labels, data["pair"])
        except OSError:
            raise not_a_model(Path(folder)) from None
        except (ValueError, KeyError, TypeError):
            raise ModelError(f"{path} must describe a model; it does not. Save the model again.") from None
        if info.problem_type == "multi_task":
            raise ModelError(
                f"A corpus is labelled by the model of one task; {folder} has several. "
                f"Save that of one task with  headhunt export {folder} --task NAME --out FOLDER"
            )
        return info

    def load(self, device: str | None, precision: str, threads: int | None) -> Model:
        """Load the model."""
        if (Path(self.folder) / "model.onnx").is_file():
            try:
                from headhunt.delivery.onnx import runtime
            except ImportError:
                raise ModelError(
                    f'{self.folder} is an ONNX export, which needs onnxruntime: pip install "headhunt[onnx]".'
                ) from None
            check_tokenizer(Path(self.folder) / "tokenizer.json")
            return runtime.Model(self.folder, threads=threads)
        import torch

        from headhunt.predictor import Predictor
        from headhunt.training.device import pick_device

        if threads:
            torch.set_num_threads(threads)
        return Predictor.load(self.folder, device=pick_device(device), precision=precision)


@dataclass(frozen=True)
class WorkerSettings:
    """The settings that all workers share."""

    model: ModelInfo
    root: str
    """Root of the filesystem of the input."""
    out: str
    """Folder or URL of the output."""
    columns: Columns
    keep: tuple[str, ...] | None
    """Input columns to keep in the output; None keeps all."""
    probabilities: bool
    """Whether the output has the probabilities of all labels."""
    device: str | None
    precision: str


class Labeller:
    """Makes shards in a worker, with a model of its own.

    Args:
        settings: The settings that all workers share.
        threads: Threads for computing on a CPU; torch decides by default.
    """

    def __init__(self, settings: WorkerSettings, threads: int | None = None) -> None:
        self._settings, self._output = settings, OutputDirectory(settings.out)
        self._model = settings.model.load(settings.device, settings.precision, threads)
        self._opened: tuple[Input, ParquetRows | TableRows] | None = None

    def __call__(self, batch: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
        """Make the shards of a batch of Ray Data and return their results, both as JSON."""
        results = [self.make(Shard(**json.loads(shard))) for shard in batch["shard"]]
        return {"result": [json.dumps(vars(result)) for result in results]}

    def make(self, shard: Shard) -> ShardResult:
        """Make one shard, unless it exists because a worker died after writing it."""
        try:
            rows, problems = self._output.count_problems(shard.name)
            if rows == shard.rows:
                return ShardResult(shard.name, shard.path, problems)
        except (OSError, pa.ArrowException):
            pass
        rows_of_shard = f"rows {shard.start + 1:,} to {shard.stop:,}"
        attempts = self._output.begin_attempt(shard.name)
        if attempts >= MAX_ATTEMPTS:
            reason = f"{rows_of_shard}: {attempts} workers died while they labelled them"
            return ShardResult(shard.name, shard.path, error=reason)
        try:
            result = ShardResult(shard.name, shard.path, self._write(shard))
        except UnreadableInputError as error:
            self._opened = None
            result = ShardResult(shard.name, shard.path, error=f"{rows_of_shard}: {error}")
        self._output.end_attempts(shard.name)
        return result

    def _write(self, shard: Shard) -> Counter[str]:
        problems = Counter[str]()
        with self._output.open(shard.name) as file, contextlib.ExitStack() as stack:
            writer: pq.ParquetWriter | None = None
            for table, codes in self._windows(shard):
                labelled = self._label(table, codes, shard)
                if writer is None:
                    writer = stack.enter_context(pq.ParquetWriter(file, labelled.schema, compression="zstd"))
                writer.write_table(labelled)
                counts = enumerate(np.bincount(codes))
                problems.update({FAULTS[code]: int(number) for code, number in counts if code and number})
            check_unchanged(self._settings.root, Input(shard.path, shard.size, shard.time))
        return problems

    def _windows(self, shard: Shard) -> Iterator[tuple[pa.Table, np.ndarray]]:
        """Yield the rows of a shard with the fault of each, in windows that fit in memory."""
        row = shard.start
        for pieces in _gather(self._read(shard)):
            table = pa.concat_tables([piece for piece, _ in pieces])
            codes = np.concatenate(
                [np.zeros(len(piece), np.int8) if faults is None else faults for piece, faults in pieces]
            )
            table = table.append_column(_ROW, pa.array(np.arange(row + 1, row + 1 + len(table))))
            row += len(table)
            yield table, codes

    def _read(self, shard: Shard) -> Iterator[Piece]:
        file = Input(shard.path, shard.size, shard.time)
        columns, keep = self._settings.columns, self._settings.keep
        texts = [name for name in (columns.text, columns.text_b) if name is not None]
        if self._opened is None or self._opened[0] != file:
            self._opened = None  # releases the previous file first
            self._opened = (file, open_rows(self._settings.root, file, texts))
        wanted = None if keep is None else list(dict.fromkeys([*keep, *texts]))
        try:
            yield from self._opened[1].read(shard.start, shard.stop, wanted)
        except (OSError, pa.ArrowException, TooLargeError) as error:
            raise UnreadableInputError(brief(error)) from None

    def _outputs(self, texts: list[str], texts_b: list[str] | None, rows: np.ndarray, codes: np.ndarray) -> np.ndarray:
        """Return the outputs of texts; mark a text on which the model fails, and leave it out.

        A panic in the tokenizer, which is written in Rust, is no `Exception`.
        """
        try:
            return self._model.outputs(texts, texts_b)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            if disk_failed(error) or (codes == FAILING).sum() >= MAX_FAILING:
                raise ModelError(f"The model fails on many texts: {brief(error)}.") from error
            if len(texts) == 1:
                codes[rows] = FAILING
                return self._model.outputs([], None if texts_b is None else [])
        middle = len(texts) // 2
        parts = [
            self._outputs(texts[part], None if texts_b is None else texts_b[part], rows[part], codes)
            for part in (slice(middle), slice(middle, None))
        ]
        return np.concatenate(parts)

    def _label(self, table: pa.Table, codes: np.ndarray, shard: Shard) -> pa.Table:
        """Return the kept input columns with the predictions."""
        settings, model = self._settings, self._settings.model
        texts = find_faults(table[settings.columns.text], codes)
        texts_b = None if settings.columns.text_b is None else find_faults(table[settings.columns.text_b], codes)
        good = np.flatnonzero(codes == 0)
        outputs = np.zeros((0, len(model.labels)) if model.labels else 0, np.float32)
        if len(good):
            chosen = pa.array(good)
            second = None if texts_b is None else texts_b.take(chosen).to_pylist()
            outputs = self._outputs(texts.take(chosen).to_pylist(), second, good, codes)
            good = np.flatnonzero(codes == 0)
        predictions = prediction_columns(model, self._model, outputs, good, len(table), settings.probabilities)
        added = {
            "source": pa.repeat(name_input(settings.root, shard.path), len(table)),
            "row": table[_ROW],
            **predictions,
            "problem": pa.array(FAULTS).take(pa.array(codes.astype(np.int64), mask=codes == 0)),
        }
        kept = [
            name for name in table.column_names if name != _ROW and (settings.keep is None or name in settings.keep)
        ]
        columns: dict[str, Any] = {}
        for name in kept:
            new = name
            while new in added or new in columns or (new != name and new in kept):
                new = f"input_{new}"
            columns[new] = table[name]
        return pa.table({**columns, **added})


def _gather(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    """Group pieces into windows of as many rows as fit in memory, so that batches have rows of similar length."""
    window: list[Piece] = []
    size = 0
    for piece in pieces:
        if window and size + piece[0].nbytes > WINDOW:
            yield window
            window, size = [], 0
        window.append(piece)
        size += piece[0].nbytes
    if window:
        yield window


def prediction_columns(
    info: ModelInfo, model: Model, outputs: np.ndarray, good: np.ndarray, rows: int, probabilities: bool
) -> dict[str, pa.Array]:
    """Return the outputs of a model as columns.

    Args:
        info: The facts about the model.
        model: The model, whose thresholds decide, and whose rejection adds a column `rejected`.
        outputs: Probabilities (texts, labels) or numbers (texts,).
        good: Positions of the texts among the rows; the other rows get null.
        rows: Number of rows.
        probabilities: Whether to add the probabilities of all labels.
    """
    missing = np.ones(rows, bool)
    missing[good] = False

    def spread(values: np.ndarray, dtype: Any) -> pa.Array:
        column = np.zeros(rows, dtype)
        column[good] = values
        return pa.array(column, mask=missing)

    if info.problem_type == "regression":
        return {"label": spread(outputs, np.float64), "probability": pa.nulls(rows, pa.float32())}
    labels, names = info.labels, pa.array(info.labels, pa.string())
    if info.problem_type == "single_label_classification":
        best = outputs.argmax(1)
        columns = {
            "label": names.take(spread(best, np.int64)),
            "probability": spread(outputs[np.arange(len(best)), best], np.float32),
        }
        if model.rejection is not None:
            rejected = Rejection(model.rejection.threshold, model.rejection.label).rejects(outputs, labels)
            columns["rejected"] = spread(rejected, bool)
            unanswered = missing.copy()
            unanswered[good] = rejected
            columns["label"] = pc.if_else(pa.array(unanswered), pa.scalar(None, pa.string()), columns["label"])
    else:
        chosen = decide(info.problem_type, apply_thresholds(outputs, model.thresholds)).astype(bool)
        counts = np.zeros(rows, np.int64)
        counts[good] = chosen.sum(1)
        ends = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        chosen_names = names.take(pa.array(np.nonzero(chosen)[1]))
        lowest = spread(np.where(chosen, outputs, np.inf).min(1, initial=np.inf), np.float32)
        lowest_values = lowest.to_numpy(zero_copy_only=False)
        columns = {
            "label": pa.ListArray.from_arrays(pa.array(ends), chosen_names, mask=pa.array(missing)),
            "probability": pa.array(lowest_values, mask=missing | ~np.isfinite(lowest_values)),
        }
    if probabilities:
        by_label = [spread(outputs[:, i], np.float32) for i in range(len(labels))]
        columns["probabilities"] = pa.StructArray.from_arrays(by_label, list(labels), mask=pa.array(missing))
    return columns
