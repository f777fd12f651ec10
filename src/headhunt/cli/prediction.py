"""Read texts for `headhunt predict` and write its predictions."""

from __future__ import annotations

import csv
import io
import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import typer

from headhunt.cli.output import log, print_corpus
from headhunt.errors import HeadhuntError, visible

if TYPE_CHECKING:
    from headhunt.evaluation import Prediction
    from headhunt.predictor import Predictor

FIRST_BATCH, LARGEST_BATCH = 8, 1024  # lines of a pipe; the first batches are small, so that output starts at once
FORMULAS = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet computes a cell that begins so
FILE_SUFFIXES = (".csv", ".jsonl")

Batch = tuple[list[str], list[str] | None]


def predict(
    predictor: Predictor,
    texts: list[str] | None,
    source: str | None,
    out: Path | None,
    as_json: bool,
    columns: Mapping[str, str],
    *,
    probabilities: bool = False,
    escape_formulas: bool = False,
) -> None:
    """Predict labels for texts, for a file, or for the lines of standard input.

    Args:
        predictor: The model.
        texts: Texts of the command line.
        source: A file, or "-" for standard input.
        out: A .csv or .jsonl file; standard output if None.
        as_json: Write JSON lines.
        columns: The text columns of the file, as for `load_texts`.
        probabilities: Add a column for the probability of each label to a .csv file.
        escape_formulas: Write an apostrophe before cells of a .csv file that a spreadsheet would compute.
    """
    labels = list(predictor.labels) if probabilities else []
    with open_writer(out, as_json, predictor.pair, predictor.rejection is not None, labels) as writer:
        writer.escape_formulas = escape_formulas
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


def predict_corpus(model: Path, source: str | None, out: str, as_json: bool, **options: Any) -> None:
    """Label a corpus and print a summary. Exit with code 3 if some files could not be read."""
    if not source or source == "-":
        raise HeadhuntError("A corpus needs --input: a file, a folder, a 'pattern*' or a URL.")
    from headhunt.delivery.corpus import label_corpus
    from headhunt.report.terminal import RowsView

    try:
        summary = label_corpus(model, source, out, view=RowsView(), **options)
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
    size, rows = FIRST_BATCH, []
    try:
        for number, line in enumerate(io.TextIOWrapper(sys.stdin.buffer, "utf-8-sig"), 1):
            row = line.rstrip("\r\n").split("\t") if pair else [line.rstrip("\r\n")]
            if pair and len(row) != 2:
                raise HeadhuntError(
                    f"Each line must hold two texts with one tab between; line {number} has {len(row)}."
                )
            rows.append(row)
            if len(rows) == size:
                yield _batch(rows, pair)
                size, rows = min(LARGEST_BATCH, size * 2), []
    except UnicodeDecodeError as error:
        raise HeadhuntError(f"The piped text must be UTF-8; found other bytes ({error.reason}).") from None
    if rows:
        yield _batch(rows, pair)


def _batch(rows: list[list[str]], pair: bool) -> Batch:
    return [row[0] for row in rows], [row[1] for row in rows] if pair else None


class PredictionWriter:
    """A writer of input columns and predictions: JSON lines, CSV, or `label<TAB>probability`.

    Args:
        stream: The text stream to write to.
        style: "json", "csv", or "plain" for labels without the input.
        rejects: Whether the model rejects texts: add a column that says which.
        labels: Labels whose probabilities get a column each in CSV.
    """

    def __init__(self, stream: IO[str], style: str, rejects: bool = False, labels: Sequence[str] = ()) -> None:
        self.stream, self.style, self.started = stream, style, False
        self.escape_formulas = False
        self.table, self.labels = csv.writer(stream), labels
        self.added = ["label", "probability", *(["probabilities"] if style == "json" else [])]
        self.added += [f"probability_{label}" for label in labels if style == "csv"]
        self.added += ["rejected"] if rejects else []

    def write(self, columns: dict[str, list[Any]], predictions: Iterable[Prediction]) -> None:
        """Write rows. An input column named like an added one becomes `input_NAME`, as in a corpus."""
        names = rename_columns(list(columns), self.added)
        if self.style == "csv" and not self.started:
            self._write_cells([*names, *self.added])
        self.started = True
        for *cells, prediction in zip(*columns.values(), predictions, strict=True):
            self._write_row(dict(zip(names, cells, strict=True)), prediction)
        self.stream.flush()

    def _write_row(self, row: dict[str, Any], prediction: Prediction) -> None:
        label, probability = prediction.label, prediction.probability
        if self.style == "json":
            row |= {"label": label, "probability": probability, "probabilities": prediction.probabilities}
            row |= {"rejected": prediction.rejected} if "rejected" in self.added else {}
            print(to_json(row), file=self.stream)
            return
        name = "|".join(label) if isinstance(label, list) else "" if label is None else label
        if self.style == "csv":
            added = [prediction.probabilities[label] for label in self.labels]
            added += [prediction.rejected] if "rejected" in self.added else []
            self._write_cells([*map(format_cell, row.values()), name, probability, *added])
        else:
            name = visible(name)
            print(name if probability is None else f"{name}\t{probability:.4f}", file=self.stream)

    def _write_cells(self, cells: list[Any]) -> None:
        if self.escape_formulas:
            cells = [f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULAS) else cell for cell in cells]
        self.table.writerow(cells)


@contextmanager
def open_writer(
    out: Path | None, as_json: bool, pair: bool, rejects: bool = False, labels: Sequence[str] = ()
) -> Iterator[PredictionWriter]:
    """Open a writer to a file, which appears only when the block ends without an error, or to standard output.

    Args:
        out: The file; standard output if None.
        as_json: Write JSON lines whatever the suffix.
        pair: Name two text columns in the header of an empty table.
        rejects: Add a column for rejected texts.
        labels: Labels whose probabilities get a column each in CSV.

    Raises:
        HeadhuntError: If the file cannot be written.
    """
    from headhunt.storage import atomic_file

    json_lines = as_json or bool(out and out.suffix == ".jsonl")
    style = "json" if json_lines else "csv" if out else "plain"
    with ExitStack() as stack:
        stream: IO[str] = sys.stdout
        if out:
            try:
                file = stack.enter_context(atomic_file(out))
            except OSError as error:
                message = f"--out must be a file that can be written; {out}: {error.strerror}."
                raise HeadhuntError(message) from None
            stream = io.TextIOWrapper(file, encoding="utf-8", newline="")
        writer = PredictionWriter(stream, style, rejects, labels)
        yield writer
        if not writer.started:  # no texts: a table without rows
            writer.write({name: [] for name in (("text", "text_b") if pair else ("text",))}, [])
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
