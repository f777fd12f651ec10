"""Load rows for a model: labelled ones to evaluate it, texts to predict, and texts that it may read in pretraining."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headhunt.data.columns import check_texts, find_columns
from headhunt.data.labels import ProblemType, check_labels, encode_targets, read_labels
from headhunt.data.problems import Problems, UnreadableError, count
from headhunt.data.sources import Rows, name_source, pick_split, read_splits
from headhunt.data.splitting import Split
from headhunt.data.task import Task
from headhunt.errors import DataError
from headhunt.storage import exists

MAX_ROWS = 200_000  # rows of a file without labels that are used, a random sample
_STEP = 65_536  # rows read at a time


def load_labelled(
    source: Any,
    *,
    problem_type: ProblemType,
    labels: Sequence[str],
    pair: bool,
    text: str | None = None,
    text_b: str | None = None,
    label: str | None = None,
) -> Split:
    """Load labelled rows to evaluate a model on.

    Args:
        source: As for `Task.load`. Of several splits the test split is used, else validation, else the only one.
        problem_type: The problem type of the model.
        labels: The labels of the model, in its order.
        pair: True if the model reads two texts.
        text: Text column (detected if unambiguous).
        text_b: Column of second texts.
        label: Label column (detected if unambiguous).

    Raises:
        DataError: With a list of everything that is wrong, including labels that the model does not have.
    """
    problems = Problems(name_source(source))
    rows = _read_one(source, problems)
    columns = find_columns(rows, problems, given={"text": text, "text_b": text_b, "label": label}, pair=pair)
    label = str(columns.label)
    check_texts(rows, columns, problems)
    try:
        column = read_labels(rows, label, problem_type, problems)
    except UnreadableError:
        raise problems.as_error() from None
    check_labels(column, label, problem_type, problems)
    targets = encode_targets(column, problem_type, labels, label, problems, "the model")
    problems.raise_if_any()
    return Split(rows, columns, targets)


def load_texts(source: Any, *, pair: bool, text: str | None = None, text_b: str | None = None) -> Split:
    """Load texts without labels, for prediction.

    Args:
        source: As for `Task.load`, without labels; or a .txt file with one text per line, or two texts separated by a
            tab for pairs; or a list of texts or of pairs.
        pair: True if the model reads two texts.
        text: Text column (detected if unambiguous).
        text_b: Column of second texts.

    Raises:
        DataError: With a list of everything that is wrong.
    """
    problems = Problems(name_source(source))
    if isinstance(source, str | Path) and Path(source).suffix.lower() == ".txt":
        source = _read_lines(Path(source), pair, problems)
        text, text_b = "text", "text_b" if pair else None
    elif pair and isinstance(source, list) and all(isinstance(row, tuple | list) and len(row) == 2 for row in source):
        source = {"text": [row[0] for row in source], "text_b": [row[1] for row in source]}
    rows = _read_one(source, problems)
    columns = find_columns(rows, problems, given={"text": text, "text_b": text_b}, pair=pair, labelled=False)
    check_texts(rows, columns, problems)
    problems.raise_if_any()
    return Split(rows, columns, np.empty(0, np.int64))


def _read_one(source: Any, problems: Problems) -> Rows:
    rows = pick_split(read_splits(source, problems, []))
    if rows is not None and not len(rows) and not problems:
        problems.add(rows.where, "there are no rows", "Give at least one text")
    if rows is None or not len(rows):
        raise problems.as_error()
    return rows


def _read_lines(path: Path, pair: bool, problems: Problems) -> dict[str, list[str]]:
    """Read a text file with one text per line, or two separated by a tab. A newline at the end adds no text."""
    try:
        lines = path.expanduser().read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        remedy = "Convert it, for example: iconv -f latin1 -t utf-8 OLD > NEW"
        problems.add(path.name, f"the file is not UTF-8 (byte {error.start:,})", remedy)
    except OSError as error:
        problems.add(path.name, f"the file cannot be read ({error.strerror})", "Check the path")
    problems.raise_if_any()
    if not pair:
        return {"text": lines}
    invalid = [number for number, line in enumerate(lines, 1) if line.count("\t") != 1]
    problems.add_rows(path.name, "without exactly one tab", invalid, "Write two texts per line, separated by a tab")
    problems.raise_if_any()
    return {"text": [line.split("\t")[0] for line in lines], "text_b": [line.split("\t")[1] for line in lines]}


@dataclass(frozen=True)
class Unlabelled:
    """Texts or pairs that a model may read without their labels: those of training rows first.

    Attributes:
        texts: The texts, or the first texts of pairs.
        texts_b: The second texts of pairs.
        own: Number of them that are training rows.
        notes: What was left out.
    """

    texts: list[str]
    texts_b: list[str] | None = None
    own: int = 0
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.texts)


def load_unlabelled(
    task: Task,
    source: Any = None,
    *,
    limit: int = MAX_ROWS,
    seed: int = 0,
) -> Unlabelled:
    """Return the texts of a task's training rows, and those of a source that are new.

    Rows that have a text in common with a test row are left out, wherever they come from. Case and spaces make no
    difference. Equal rows count once.

    Args:
        task: The task.
        source: As for `load_texts`; None for the training rows alone.
        limit: Number of rows of the source that are used at most.
        seed: Random seed of the sample.

    Raises:
        DataError: If the source cannot be read.
    """
    test = task.splits.get("test")
    tested = {normalise(each) for row in (_rows(test) if test is not None else ()) for each in row}
    seen: set[tuple[str, ...]] = set()
    chosen: list[tuple[str, ...]] = []
    left_out = 0

    def add(rows: Iterator[tuple[str, ...]]) -> None:
        nonlocal left_out
        for row in rows:
            key = tuple(map(normalise, row))
            if not tested.isdisjoint(key):
                left_out += 1
            elif key not in seen and any(key):
                seen.add(key)
                chosen.append(row)

    for name in ("train", "validation"):
        if name in task.splits:
            add(_rows(task.splits[name]))
    own = len(chosen)
    if source is not None:
        split = _load(task, source)
        order = np.random.default_rng(seed).permutation(len(split))[:limit]
        add(_rows(split.take(order)))
    notes = (f"{count(left_out, 'unlabelled text')} left out: equal to a test row",) if left_out else ()
    texts = [row[0] for row in chosen]
    return Unlabelled(texts, [row[1] for row in chosen] if task.pair else None, own, notes)


def normalise(text: str) -> str:
    """Return a text without differences of case and spaces."""
    return " ".join(text.casefold().split())


def _load(task: Task, source: Any) -> Split:
    """Load a source. If it has no columns of the task's names, its own are found as for predictions."""
    if isinstance(source, str | Path) and exists(Path(source)) and Path(source).is_dir():
        raise DataError(f"must be a file of texts, not a folder of splits; found {source}.", "unlabelled")
    try:
        return load_texts(source, pair=task.pair, text=task.columns.text, text_b=task.columns.text_b)
    except DataError:
        return load_texts(source, pair=task.pair)


def _rows(split: Split) -> Iterator[tuple[str, ...]]:
    """Yield the texts of every row."""
    for start in range(0, len(split), _STEP):
        first, second = split.texts(start, start + _STEP), split.texts_b(start, start + _STEP)
        yield from zip(first, second, strict=True) if second is not None else ((each,) for each in first)
