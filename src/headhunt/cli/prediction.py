"""Read texts for `headhunt predict` and write its predictions."""

from __future__ import annotations

import csv
import io
import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import typer

from headhunt.cli.output import log, print_corpus
from headhunt.errors import HeadhuntError, visible
from headhunt.run.settings import check_number, option

if TYPE_CHECKING:
    from headhunt.evaluation import Prediction
    from headhunt.predictor import Predictor

FIRST_BATCH, LARGEST_BATCH = 8, 1024  # lines of a pipe; the first batches are small, so that output starts at once
FORMULAS = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet computes a cell that begins so
FILE_SUFFIXES = (".csv", ".jsonl")
CORPUS = "Corpus (if --out is a folder or URL)"

Batch = tuple[list[str], list[str] | None]


@dataclass(frozen=True)
class Style:
    """How predictions are written."""

    probabilities: bool = option(
        False, "Write the probability of every label; in a .csv file, a column for each.", heading=""
    )
    escape_formulas: bool = option(
        False, "In a .csv file, write ' before a cell that a spreadsheet would compute, such as =1+1.", heading=""
    )


@dataclass(frozen=True)
class CorpusOptions:
    """The options of labelling a corpus, as for `delivery.corpus.label_corpus`."""

    workers: int | None = option(
        None, "Number of worker processes; 0 labels in this process.", "N", CORPUS, shown="one per core or GPU"
    )
    ray: str | None = option(None, "Address of a Ray cluster.", "ADDRESS", CORPUS)
    keep: str | None = option(None, "Input columns to keep, such as id,text, or none.", "COLUMNS", CORPUS, shown="all")
    shard_rows: int = option(16_384, "Number of rows per shard.", "N", CORPUS)


def predict(
    predictor: Predictor,
    texts: list[str] | None,
    source: str | None,
    columns: Mapping[str, str],
    writer: PredictionWriter,
) -> None:
    """Predict labels for texts, for a file, or for the lines of standard input.

    Args:
        predictor: The model.
        texts: Texts of the command line.
        source: A file, or "-" for standard input.
        columns: The text columns of the file, as for `load_texts`.
        writer: Writes the predictions.
    """
    if source and source != "-":
        predict_file(predictor, source, columns, writer)
        return
    for first, second in split_pairs(texts, predictor.pair) if texts else read_lines(predictor.pair):
        cells = {"text": first} if second is None else {"text": first, "text_b": second}
        writer.write(cells, predictor.predict(first, second))


def predict_file(predictor: Predictor, source: str, columns: Mapping[str, str], writer: PredictionWriter) -> None:
    """Label a file in windows, so that memory does not grow with the file; keep all its columns."""
    from headhunt.data import load_texts
    from headhunt.predictor import WINDOW
    from headhunt.report.terminal import counting_bar

    rows = load_texts(source, pair=predictor.pair, **columns)
    with counting_bar("predicting", len(rows)) as advance:
        for start in range(0, len(rows), WINDOW):
            stop = start + WINDOW
            outputs = predictor.outputs(rows.texts(start, stop), rows.texts_b(start, stop), progress=advance)
            read = {name: rows.rows.read(name, start, stop) for name in rows.rows.table.column_names}
            cells = {name: column.to_pylist() for name, column in read.items()}
            writer.write(cells, map(predictor.prediction, outputs))


def predict_corpus(model: Path, source: str | None, out: str, as_json: bool, options: Mapping[str, Any]) -> None:
    """Label a corpus and print a summary. Exit with code 3 if some files could not be read."""
    if not source or source == "-":
        raise HeadhuntError("A corpus needs --input: a file, a folder, a 'pattern*' or a URL.")
    from headhunt.delivery.corpus import label_corpus
    from headhunt.report.terminal import RowsView

    kept = options.get("keep")
    keep = kept and ([] if kept == "none" else [name.strip() for name in kept.split(",")])
    check_number(options.get("shard_rows"), "shard_rows", 1)
    try:
        summary = label_corpus(model, source, out, view=RowsView(), **{**options, "keep": keep})
    except KeyboardInterrupt:
        log("the labelled shards are kept; the same command goes on from there")
        raise
    print_corpus(summary, out, as_json)
    if summary.unreadable:
        raise typer.Exit(3)


def is_folder(out: str) -> bool:
    """Return whether `--out` names a folder: a URL, an existing folder, or a name without a suffix.

    Raises:
        HeadhuntError: If it has the suffix of a file that cannot be written.
    """
    path = Path(out)
    if "://" in out or out.endswith("/") or path.is_dir() or not path.suffix:
        return True
    if path.suffix not in FILE_SUFFIXES:
        raise HeadhuntError(f"--out must end in .csv or .jsonl, or be a folder for a corpus; found {path.name!r}.")
    if not path.parent.is_dir():  # more likely a typing error than a wish
        raise HeadhuntError(f"--out must be a file that can be written; the folder {path.parent} does not exist.")
    return False


def split_pairs(texts: list[str], pair: bool) -> Iterator[Batch]:
    """Yield the texts of the command line as one batch."""
    if not pair:
        yield texts, None
    elif len(texts) % 2:
        raise HeadhuntError(f"This model takes pairs: give an even number of texts; found {len(texts)}.")
    else:
        yield texts[::2], texts[1::2]


def read_lines(pair: bool) -> Iterator[Batch]:
    """Yield the lines of standard input in batches of growing size."""
    rows, size = _split_lines(pair), FIRST_BATCH
    while batch := list(islice(rows, size)):
        yield [row[0] for row in batch], [row[1] for row in batch] if pair else None
        size = min(LARGEST_BATCH, size * 2)


def _split_lines(pair: bool) -> Iterator[list[str]]:
    """Yield the text or the two texts of each line of standard input."""
    try:
        for number, line in enumerate(io.TextIOWrapper(sys.stdin.buffer, "utf-8-sig"), 1):
            row = line.rstrip("\r\n").split("\t") if pair else [line.rstrip("\r\n")]
            if pair and len(row) != 2:
                raise HeadhuntError(
                    f"Each line must hold two texts with one tab between; line {number} has {len(row)}."
                )
            yield row
    except UnicodeDecodeError as error:
        raise HeadhuntError(f"The piped text must be UTF-8; found other bytes ({error.reason}).") from None


class PredictionWriter:
    """A writer of input columns and predictions: JSON lines, CSV, or `label<TAB>probability`.

    Args:
        stream: The text stream to write to.
        kind: "json", "csv", or "plain" for labels without the input.
        rejects: Whether the model rejects texts: add a column that says which.
        labels: Labels whose probabilities get a column each in CSV.
        escape_formulas: Write an apostrophe before cells of CSV that a spreadsheet would compute.
    """

    def __init__(
        self,
        stream: IO[str],
        kind: str,
        rejects: bool = False,
        labels: Sequence[str] = (),
        escape_formulas: bool = False,
    ) -> None:
        self.stream, self.kind, self.labels, self.escape_formulas = stream, kind, labels, escape_formulas
        self.table, self.started = csv.writer(stream), False
        probabilities = ["probabilities"] if kind == "json" else [f"probability_{label}" for label in labels]
        self.added = ["label", "probability", *probabilities, *(["rejected"] if rejects else [])]

    def write(self, columns: dict[str, list[Any]], predictions: Iterable[Prediction]) -> None:
        """Write rows. An input column named like an added one becomes `input_NAME`, as in a corpus."""
        names = rename_columns(list(columns), self.added)
        if self.kind == "csv" and not self.started:
            self._write_cells([*names, *self.added])
        self.started = True
        for *cells, prediction in zip(*columns.values(), predictions, strict=True):
            if self.kind == "json":
                added = {name: getattr(prediction, name) for name in self.added}
                print(to_json(dict(zip(names, cells, strict=True)) | added), file=self.stream)
            else:
                self._write_row(cells, prediction)
        self.stream.flush()

    def _write_row(self, cells: list[Any], prediction: Prediction) -> None:
        label, probability = prediction.label, prediction.probability
        name = "|".join(label) if isinstance(label, list) else "" if label is None else label
        if self.kind == "csv":
            rejected = [prediction.rejected] if "rejected" in self.added else []
            probabilities = [prediction.probabilities[each] for each in self.labels]
            self._write_cells([*map(format_cell, cells), name, probability, *probabilities, *rejected])
        else:
            name = visible(name)
            print(name if probability is None else f"{name}\t{probability:.4f}", file=self.stream)

    def _write_cells(self, cells: list[Any]) -> None:
        if self.escape_formulas:
            cells = [f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULAS) else cell for cell in cells]
        self.table.writerow(cells)


@contextmanager
def open_writer(predictor: Predictor, out: Path | None, as_json: bool, style: Style) -> Iterator[PredictionWriter]:
    """Open a writer to a file, which appears only when the block ends without an error, or to standard output.

    Args:
        predictor: The model.
        out: The file; standard output if None.
        as_json: Write JSON lines whatever the suffix.
        style: What is written.

    Raises:
        HeadhuntError: If the file cannot be written.
    """
    from headhunt.storage import atomic_file

    kind = "json" if as_json or (out and out.suffix == ".jsonl") else "csv" if out else "plain"
    labels = predictor.labels if style.probabilities else ()
    with ExitStack() as stack:
        stream: IO[str] = sys.stdout
        if out:
            try:
                file = stack.enter_context(atomic_file(out))
            except OSError as error:
                message = f"--out must be a file that can be written; {out}: {error.strerror}."
                raise HeadhuntError(message) from None
            stream = io.TextIOWrapper(file, encoding="utf-8", newline="")
        writer = PredictionWriter(stream, kind, predictor.rejection is not None, labels, style.escape_formulas)
        yield writer
        if not writer.started:  # no texts: a table without rows
            writer.write({name: [] for name in (("text", "text_b") if predictor.pair else ("text",))}, [])
        stream.flush()


def rename_columns(names: list[str], taken: list[str]) -> list[str]:
    """Return names for input columns that differ from the taken names and from each other."""
    renamed: list[str] = []
    for name in names:
        new = name
        while new in taken or new in renamed or (new != name and new in names):
            new = f"input_{new}"
        renamed.append(new)
    return renamed


def format_cell(cell: Any) -> Any:
    """Return a cell as CSV can store it: lists and mappings become JSON."""
    return to_json(cell) if isinstance(cell, list | dict) else cell


def to_json(value: Any) -> str:
    """Return a value as JSON, which has no NaN and no infinity: they become null."""
    return json.dumps(_finite(value), ensure_ascii=False, allow_nan=False, default=str)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
