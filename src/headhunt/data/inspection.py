"""What is odd about a task's rows, and the figures that describe them."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from headhunt.data.labels import Kind
from headhunt.data.problems import count, name_rows, quote
from headhunt.data.splitting import Split

_UNEVEN = 10  # largest class to smallest class
_SCARCE = 5
_LONG = 2000  # words; several times what most encoders read


def find_oddities(splits: dict[str, Split], kind: Kind, labels: Sequence[str]) -> list[str]:
    """Say what is odd about the rows as given: repeats, contradictions, leaks, uneven classes, very long texts."""
    train = splits["train"]
    return [
        *_tell_repeats(train),
        *_tell_contradictions(train, kind),
        *_tell_leaks(splits),
        *_tell_classes(train, kind, labels),
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


def _tell_contradictions(split: Split, kind: Kind) -> list[str]:
    if kind == "number":
        return []
    targets = (
        split.targets if kind == "classes" else np.unique(split.targets, axis=0, return_inverse=True)[1].reshape(-1)
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


def _count_classes(split: Split, kind: Kind, labels: Sequence[str]) -> np.ndarray:
    if kind == "classes":
        return np.bincount(split.targets, minlength=len(labels))
    return split.targets.sum(0).astype(np.int64)


def _tell_classes(split: Split, kind: Kind, labels: Sequence[str]) -> list[str]:
    if kind == "number":
        return []
    counts = _count_classes(split, kind, labels)
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
    return [f"{count(len(long), 'text has', 'texts have')} more than {_LONG:,} words ({_number(split, long)})"]


def describe(splits: dict[str, Split], kind: Kind, labels: Sequence[str]) -> dict[str, Any]:
    """Summarise splits as JSON-able data."""
    train = splits["train"]
    summary: dict[str, Any] = {
        "rows": {name: len(split) for name, split in splits.items()},
        "words": {name: _measure(split.words) for name, split in splits.items()},
        "duplicates": {"same": _count_repeats(train.keys), "near": _count_repeats(train.groups)},
        "leaks": count_leaks(splits),
    }
    if kind == "number":
        values = train.targets.astype(float)
        summary["number"] = {"min": values.min(), "mean": values.mean(), "max": values.max()}
        return summary
    counts = {name: _count_classes(split, kind, labels).tolist() for name, split in splits.items()}
    summary["classes"] = {name: dict(zip(labels, numbers, strict=True)) for name, numbers in counts.items()}
    summary["imbalance"] = max(counts["train"]) / max(1, min(counts["train"]))
    return summary


def _measure(words: np.ndarray) -> dict[str, int]:
    return {"median": int(np.median(words)), "p95": int(np.quantile(words, 0.95)), "max": int(words.max())}
