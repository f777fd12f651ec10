"""Load texts without labels for a task: those of its training rows and of a further file, never those of test rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headhunt.data.loading import load_texts
from headhunt.data.problems import count
from headhunt.data.splitting import Split
from headhunt.data.task import Task
from headhunt.errors import DataError
from headhunt.storage import exists

MAX_ROWS = 200_000  # rows of the file that are used, a random sample
_STEP = 65_536  # rows read at a time


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
