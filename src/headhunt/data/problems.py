"""What the user is told about the data: all that is wrong with it, at once; what is odd about it; figures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from headhunt.errors import DataError

if TYPE_CHECKING:
    from headhunt.data.labels import ProblemType
    from headhunt.data.splitting import Split

_EXAMPLES = 5  # row numbers named
_UNEVEN = 10  # largest class to smallest class
_SCARCE = 5
_LONG = 100  # words; about as many as fit in what is read of a text unless more is asked for


def name_rows(numbers: Iterable[int]) -> str:
    """Write the first few row numbers: ``row 3`` or ``rows 3, 8, 9, 14, 20, …``."""
    numbers = list(numbers)
    shown = ", ".join(str(int(number)) for number in numbers[:_EXAMPLES])
    return f"row{'s' if len(numbers) > 1 else ''} {shown}{', …' if len(numbers) > _EXAMPLES else ''}"


def count(number: int, noun: str, plural: str | None = None) -> str:
    """Write a number with its noun: ``1 row``, ``12,000 rows``."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def quote(value: Any, width: int = 60) -> str:
    """Write a value in quotes on one line, cut to a width."""
    text = " ".join(str(value).split())
    return f"'{text[: width - 1]}…'" if len(text) > width else f"'{text}'"


def quote_some(values: Sequence[Any], most: int = 8) -> str:
    """Write the first few values in quotes, and how many more there are."""
    shown = ", ".join(quote(value, 40) for value in values[:most])
    return shown + (f" and {len(values) - most:,} more" if len(values) > most else "")


def brief(error: BaseException) -> str:
    """Write the message of an error on one short line."""
    return " ".join(str(error).split())[:160].rstrip(".")


class Problems:
    """The list of what makes the data unusable.

    Args:
        subject: What is being read, as the user would call it.
    """

    def __init__(self, subject: str) -> None:
        self.subject = subject
        self.lines: list[str] = []

    def __bool__(self) -> bool:
        return bool(self.lines)

    def add(self, where: str, what: str, remedy: str) -> None:
        """Note one problem: the source it is in, what was found and what to do about it."""
        line = f"{where}: {what}. {remedy}"
        if line not in self.lines:
            self.lines.append(line)

    def add_rows(self, where: str, what: str, numbers: Sequence[int] | np.ndarray, remedy: str) -> None:
        """Note a problem of certain rows, if there are any; numbers are what the user counts, from 1."""
        if len(numbers):
            self.add(where, f"{count(len(numbers), 'row')} {what} ({name_rows(numbers)})", remedy)

    def as_error(self) -> DataError:
        """Make an error of every problem noted so far."""
        if len(self.lines) == 1:
            return DataError(self.lines[0])
        listed = "\n".join(f"  - {line}" for line in self.lines)
        return DataError(f"{self.subject} has {len(self.lines)} problems:\n{listed}")

    def raise_if_any(self) -> None:
        """Raise a DataError with every problem noted so far, if there is one."""
        if self.lines:
            raise self.as_error()


def find_oddities(splits: dict[str, Split], problem_type: ProblemType, labels: Sequence[str]) -> list[str]:
    """Say what is odd about the rows as given: repeats, contradictions, leaks, uneven classes, long texts."""
    train = splits["train"]
    return [
        *_tell_repeats(train),
        *_tell_contradictions(train, problem_type),
        *_tell_leaks(splits),
        *_tell_classes(train, problem_type, labels),
        *_tell_long(train),
    ]


def _count_repeats(groups: np.ndarray) -> int:
    return len(groups) - len(np.unique(groups))


def _number(split: Split, positions: np.ndarray) -> str:
    return name_rows(split.rows.number(positions).tolist())


def _tell_repeats(split: Split) -> list[str]:
    same, alike = _count_repeats(split.keys), _count_repeats(split.groups)
    if not alike:
        return []
    _, first, sizes = np.unique(split.groups, return_index=True, return_counts=True)
    largest = np.flatnonzero(split.groups == split.groups[first[sizes.argmax()]])
    found = []
    if same:
        found.append(f"{count(same, 'repeats', 'repeat')} another but for case, punctuation and numbers")
    if alike > same:
        found.append(f"{count(alike - same, 'is', 'are')} nearly the same as another")
    example = _number(split, largest[:3])
    return [f"of the training rows {' and '.join(found)} (such as {example}); no split made here tears them apart"]


def _tell_contradictions(split: Split, problem_type: ProblemType) -> list[str]:
    if problem_type == "regression":
        return []
    targets = (
        split.targets
        if problem_type == "single_label_classification"
        else np.unique(split.targets, axis=0, return_inverse=True)[1].reshape(-1)
    )
    order = np.lexsort((targets, split.keys))
    keys, targets = split.keys[order], targets[order]
    clash = np.flatnonzero((keys[1:] == keys[:-1]) & (targets[1:] != targets[:-1])) + 1
    if not len(clash):
        return []
    texts = len(np.unique(keys[clash]))
    pair = np.sort(order[clash[0] - 1 : clash[0] + 1])
    verb = "has" if texts == 1 else "have"
    return [f"{count(texts, 'text')} {verb} more than one label in the training rows (such as {_number(split, pair)})"]


def count_leaks(splits: dict[str, Split]) -> dict[str, dict[str, int]]:
    """Count the rows of each other split whose text, or nearly, is also in a training row."""
    train = splits["train"]
    return {
        name: {
            "same": int(np.isin(split.keys, train.keys).sum()),
            "near": int(np.isin(split.groups, train.groups).sum()),
        }
        for name, split in splits.items()
        if name != "train"
    }


def _tell_leaks(splits: dict[str, Split]) -> list[str]:
    told = []
    for name, leaks in count_leaks(splits).items():
        if not leaks["near"]:
            continue
        split, train = splits[name], splits["train"]
        leaking = np.flatnonzero(np.isin(split.groups, train.groups))
        source = np.flatnonzero(train.groups == split.groups[leaking[0]])[:1]
        share = f"{count(leaks['near'], f'{name} row leaks', f'{name} rows leak')} ({leaks['near'] / len(split):.1%})"
        what = f"{leaks['same']:,} have the text of a training row, {leaks['near'] - leaks['same']:,} nearly so"
        told.append(f"{share}: {what} ({_number(split, leaking)}; the first is training {_number(train, source)})")
    return told


def _count_classes(split: Split, problem_type: ProblemType, labels: Sequence[str]) -> np.ndarray:
    if problem_type == "single_label_classification":
        return np.bincount(split.targets, minlength=len(labels))
    return split.targets.sum(0).astype(np.int64)


def _tell_classes(split: Split, problem_type: ProblemType, labels: Sequence[str]) -> list[str]:
    if problem_type == "regression":
        return []
    counts = _count_classes(split, problem_type, labels)
    told = []
    ratio = counts.max() / max(1, counts.min())
    if ratio > _UNEVEN:
        most, least = labels[int(counts.argmax())], labels[int(counts.argmin())]
        told.append(
            f"classes are uneven: {quote(most)} has {counts.max():,} training rows, {quote(least)} {counts.min():,} "
            f"({ratio:.0f} to 1)"
        )
    scarce = [labels[at] for at in np.flatnonzero(counts < _SCARCE).tolist()]
    if scarce:
        named = ", ".join(f"{quote(name, 40)}" for name in scarce[:5]) + (", …" if len(scarce) > 5 else "")
        told.append(f"{count(len(scarce), 'class has', 'classes have')} fewer than {_SCARCE} training rows: {named}")
    return told


def _tell_long(split: Split) -> list[str]:
    long = np.flatnonzero(split.words > _LONG)
    if not len(long):
        return []
    found = f"{count(len(long), 'text has', 'texts have')} more than {_LONG:,} words ({_number(split, long)})"
    return [f"{found}; 128 tokens are read and the rest is cut, unless --max-length (in Python max_length) says more"]


def describe(splits: dict[str, Split], problem_type: ProblemType, labels: Sequence[str]) -> dict[str, Any]:
    """Summarise splits as JSON-able data."""
    train = splits["train"]
    summary: dict[str, Any] = {
        "rows": {name: len(split) for name, split in splits.items()},
        "words": {name: _measure(split.words) for name, split in splits.items()},
        "duplicates": {"same": _count_repeats(train.keys), "near": _count_repeats(train.groups)},
        "leaks": count_leaks(splits),
    }
    if problem_type == "regression":
        values = train.targets.astype(float)
        summary["number"] = {"min": values.min(), "mean": values.mean(), "max": values.max()}
        return summary
    counts = {name: _count_classes(split, problem_type, labels).tolist() for name, split in splits.items()}
    summary["classes"] = {name: dict(zip(labels, numbers, strict=True)) for name, numbers in counts.items()}
    summary["imbalance"] = max(counts["train"]) / max(1, min(counts["train"]))
    return summary


def _measure(words: np.ndarray) -> dict[str, int]:
    return {"median": int(np.median(words)), "p95": int(np.quantile(words, 0.95)), "max": int(words.max())}
