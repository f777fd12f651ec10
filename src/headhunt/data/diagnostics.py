"""Warn about unusual training data."""

from collections.abc import Sequence

import numpy as np

from headhunt.data.labels import ProblemType
from headhunt.data.problems import Problems, count, list_rows, quote
from headhunt.data.splitting import Split

_MAX_IMBALANCE = 10  # rows of the largest class per row of the smallest
_FEW_ROWS = 5
_MANY_WORDS = 100  # about as many as fit into the default maximum length
_DEFAULT_MAX_LENGTH = 128


def find_warnings(
    splits: dict[str, Split],
    problem_type: ProblemType,
    labels: Sequence[str],
    *,
    divided: bool = True,
    duplicates_together: bool = True,
) -> list[str]:
    """Return warnings about duplicates, contradictions, leaks, class imbalance and long texts.

    Args:
        splits: The splits as they were given.
        problem_type: The problem type.
        labels: The class names.
        divided: False if test rows will be set aside, or rows left out: the rows are not the training rows then.
        duplicates_together: True if rows with nearly the same text will be kept in one split.
    """
    train, rows = splits["train"], "training rows" if divided else "rows"
    return [
        *_warn_of_duplicates(train, rows, duplicates_together),
        *_warn_of_contradictions(train, rows, problem_type),
        *_warn_of_leaks(splits),
        *_warn_of_classes(train, rows, problem_type, labels),
        *_warn_of_long_texts(train, rows),
    ]


def _count_repeats(groups: np.ndarray) -> int:
    ordered = np.sort(groups)  # np.unique without further results hashes, which takes ten times as long
    return int((ordered[1:] == ordered[:-1]).sum())


def _list_positions(split: Split, positions: np.ndarray) -> str:
    return list_rows(split.rows.number(positions).tolist())


def _warn_of_duplicates(split: Split, rows: str, together: bool) -> list[str]:
    same, near = _count_repeats(split.keys), _count_repeats(split.near)
    if not near:
        return []
    _, first, sizes = np.unique(split.near, return_index=True, return_counts=True)
    largest = np.flatnonzero(split.near == split.near[first[sizes.argmax()]])
    clauses = []
    if same:
        clauses.append(f"{count(same, 'repeats', 'repeat')} another but for case, punctuation and numbers")
    if near > same:
        clauses.append(f"{count(near - same, 'is', 'are')} nearly the same as another")
    example = _list_positions(split, largest[:3])
    kept = "; such rows are kept in one split" if together else ""
    return [f"of {len(split):,} {rows}, {' and '.join(clauses)} (such as {example}){kept}"]


def _warn_of_contradictions(split: Split, rows: str, problem_type: ProblemType) -> list[str]:
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
    example = _list_positions(split, np.sort(order[clash[0] - 1 : clash[0] + 1]))
    verb = "has" if texts == 1 else "have"
    return [f"{count(texts, 'text')} {verb} more than one label in the {rows} (such as {example})"]


def count_leaks(splits: dict[str, Split]) -> dict[str, dict[str, int]]:
    """Count the rows of each other split whose text, or nearly the same text, is also in a training row."""
    train = splits["train"]
    return {
        name: {
            "same": int(np.isin(split.keys, train.keys).sum()),
            "near": int(np.isin(split.near, train.near).sum()),
        }
        for name, split in splits.items()
        if name != "train"
    }


def check_test_rows(splits: dict[str, Split], problems: Problems, warnings: list[str]) -> None:
    """Refuse test rows that are the validation rows, and warn if some are: a model is trained on both in the end."""
    if "test" not in splits or "validation" not in splits:
        return
    near = splits["test"].near
    shared = int((np.isin(near, splits["validation"].near) & ~np.isin(near, splits["train"].near)).sum())
    what = f"{shared:,} of {count(len(near), 'test row')} have (nearly) the text of a validation row"
    if 2 * shared > len(near):
        remedy = "Validation rows choose and train the model. Give other rows, or no test rows: some are then set aside"
        problems.add("test", what, remedy)
    elif shared:
        warnings.append(f"{what}, which the model learns from")


def _warn_of_leaks(splits: dict[str, Split]) -> list[str]:
    warnings = []
    for name, leaks in count_leaks(splits).items():
        if not leaks["near"]:
            continue
        split, train = splits[name], splits["train"]
        leaking = np.flatnonzero(np.isin(split.near, train.near))
        source = np.flatnonzero(train.near == split.near[leaking[0]])[:1]
        share = f"{count(leaks['near'], f'{name} row leaks', f'{name} rows leak')} ({leaks['near'] / len(split):.1%})"
        what = f"{leaks['same']:,} have the text of a training row, {leaks['near'] - leaks['same']:,} nearly so"
        examples = f"{_list_positions(split, leaking)}; the first is training {_list_positions(train, source)}"
        warnings.append(f"{share}: {what} ({examples})")
    return warnings


def count_classes(targets: np.ndarray, classes: int) -> np.ndarray:
    """Return the number of rows of each class, or with each of several labels."""
    return np.bincount(targets, minlength=classes) if targets.ndim == 1 else targets.sum(0).astype(np.int64)


def _warn_of_classes(split: Split, rows: str, problem_type: ProblemType, labels: Sequence[str]) -> list[str]:
    if problem_type == "regression":
        return []
    counts = count_classes(split.targets, len(labels))
    warnings = []
    ratio = counts.max() / max(1, counts.min())
    if ratio > _MAX_IMBALANCE:
        most, least = labels[int(counts.argmax())], labels[int(counts.argmin())]
        warnings.append(
            f"classes are imbalanced: {quote(most)} has {counts.max():,} of {len(split):,} {rows}, "
            f"{quote(least)} {counts.min():,} ({ratio:.0f} to 1)"
        )
    rare = [labels[at] for at in np.flatnonzero(counts < _FEW_ROWS).tolist()]
    if rare:
        listed = ", ".join(quote(name, 40) for name in rare[:5]) + (", …" if len(rare) > 5 else "")
        warnings.append(f"{count(len(rare), 'class has', 'classes have')} fewer than {_FEW_ROWS} {rows}: {listed}")
    return warnings


def _warn_of_long_texts(split: Split, rows: str) -> list[str]:
    long = np.flatnonzero(split.words > _MANY_WORDS)
    if not len(long):
        return []
    have = "has" if len(long) == 1 else "have"
    texts = f"{len(long):,} of {len(split):,} {rows} {have} more than {_MANY_WORDS:,} words"
    cut = f"texts are cut to max_length tokens, {_DEFAULT_MAX_LENGTH} by default"
    return [f"{texts} ({_list_positions(split, long)}); {cut}"]
