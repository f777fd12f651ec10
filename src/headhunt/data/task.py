"""Task: labelled texts in splits, with all that was found out about them on the way in."""

import hashlib
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from headhunt.data.columns import Columns
from headhunt.data.duplicates import view_bytes
from headhunt.data.inspection import describe
from headhunt.data.labels import Kind
from headhunt.data.loading import load_splits
from headhunt.data.problems import count as count_of
from headhunt.data.sources import name_source
from headhunt.data.splitting import Split, deal_folds, find_strata, hold_out


@dataclass(frozen=True, eq=False)
class Task:
    """Labelled texts, checked and split.

    Attributes:
        name: What to call it.
        kind: "classes" (one of several), "labels" (any of several) or "number".
        labels: Class names, sorted (numbers by value); () for a number.
        columns: The columns taken.
        splits: "train" always; "validation" and "test" where given or made.
        notes: What was taken for what.
        warnings: What is odd about the data.
    """

    name: str
    kind: Kind
    labels: tuple[str, ...]
    columns: Columns
    splits: dict[str, Split]
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def pair(self) -> bool:
        """Whether every row has two texts."""
        return self.columns.text_b is not None

    @classmethod
    def load(
        cls,
        source: Any,
        *,
        text: str | None = None,
        text_b: str | None = None,
        label: str | None = None,
        kind: Kind | None = None,
        test: Any = None,
        validation: Any = None,
        limit: int | None = None,
        seed: int = 0,
        test_share: float = 0.2,
        name: str | None = None,
    ) -> "Task":
        """Load labelled texts, check them and set a test split aside.

        Args:
            source: A CSV, TSV, JSONL, Parquet or Arrow file, a folder of splits, a pandas data frame, an Arrow table, a
                `datasets` dataset, a dict of columns or of splits, ``(texts, labels)`` or a list of ``(text, label)``.
            text: The column of texts; found by itself where there is no doubt.
            text_b: The column of second texts, for pairs.
            label: The column of labels.
            kind: "classes", "labels" or "number"; told from the labels where not given.
            test: Another source with the test rows.
            validation: Another source with the validation rows.
            limit: Draw so many training rows, every class with its share.
            seed: Of the drawing and splitting.
            test_share: How much to set aside where no test rows are given.
            name: What to call the task; the name of the file or folder where not given.

        Raises:
            DataError: With everything that is wrong, at once.
        """
        wanted = (text, text_b, label)
        others = {"test": test, "validation": validation}
        loaded = load_splits(source, wanted, kind, others, limit, seed, test_share)
        return cls(name or name_source(source).split(".")[0].replace("the data", "task"), *loaded)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the texts, targets and splits: equal for equal content, whatever file it came from."""
        digest = hashlib.blake2b(repr((self.kind, self.labels, self.pair)).encode(), digest_size=16)
        for split in sorted(self.splits):
            part = self.splits[split]
            digest.update(f"{split} {len(part)} {part.targets.shape}".encode())
            digest.update(np.ascontiguousarray(part.targets).tobytes())
            for column in (self.columns.text, self.columns.text_b):
                if column is None:
                    continue
                for _, texts in part.rows.walk(column):
                    data, offsets = view_bytes(texts)
                    digest.update(offsets.tobytes())
                    digest.update(data.tobytes())
        return digest.hexdigest()

    def with_validation(self, share: float = 0.2, seed: int = 0) -> "Task":
        """Set a validation split aside from the training rows, unless there is one.

        Args:
            share: How much of every class; rows that say the same stay together.
            seed: Which rows.
        """
        if "validation" in self.splits:
            return self
        train = self.splits["train"]
        held = hold_out(find_strata(train.targets), train.groups, share, seed)
        note = f"validation: {count_of(int(held.sum()), 'row')} of the training rows"
        splits = {"train": train.take(~held), "validation": train.take(held)}
        splits |= {split: part for split, part in self.splits.items() if split != "train"}
        return replace(self, splits=splits, notes=[*self.notes, note])

    def folds(self, count: int, seed: int = 0) -> list[tuple[np.ndarray, np.ndarray]]:
        """Deal the training rows to folds, every class evenly and rows that say the same together.

        Args:
            count: How many folds.
            seed: Which rows go where.

        Returns:
            For each fold, the positions to train on and the positions held out.
        """
        train = self.splits["train"]
        fold = deal_folds(find_strata(train.targets), train.groups, count, seed)
        return [(np.flatnonzero(fold != at), np.flatnonzero(fold == at)) for at in range(count)]

    def describe(self) -> dict[str, Any]:
        """Summarise the task as JSON-able data: rows, class counts, lengths, duplicates, leaks, notes and warnings."""
        summary = describe(self.splits, self.kind, self.labels)
        columns = {"text": self.columns.text, "text_b": self.columns.text_b, "label": self.columns.label}
        told = {"notes": list(self.notes), "warnings": list(self.warnings)}
        return {
            "name": self.name,
            "kind": self.kind,
            "labels": list(self.labels),
            "columns": columns,
            **summary,
            **told,
        }
