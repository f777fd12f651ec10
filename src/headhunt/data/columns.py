"""Find the text and label columns of a table, by name or by content, and check the texts."""

import difflib
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headhunt.data.problems import Problems, UnreadableError, find_repeated, quote, quote_some
from headhunt.data.sources import Rows
from headhunt.data.tables import to_values

_PAIRS = [
    ("text", "text_b"),
    ("text_a", "text_b"),
    ("text1", "text2"),
    ("text_1", "text_2"),
    ("sentence1", "sentence2"),
    ("sentence_1", "sentence_2"),
    ("sentence_a", "sentence_b"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("query", "document"),
    ("query", "passage"),
    ("question", "sentence"),
    ("question", "passage"),
    ("question", "answer"),
]
_TEXT = (
    "sentence review content comment question tweet document body message utterance query description abstract "
    "headline title post passage input news sms"
)
_LABEL_FIRST = "label labels class target gold_label y"
_LABEL = "category sentiment intent emotion topic score rating stars tag tags polarity similarity is_duplicate verdict"
_NOT_CONTENT = re.compile(
    r"^(id|idx|index|uid|uuid|guid|key|fold|split|lang|language|source|file|filename|date|time|timestamp|url|user|author)$"
    r"|(_id|_idx|id\d)$|^(id_|unnamed)"
)
_SAMPLE = 1000  # rows that are examined
MAX_TEXT = 1 << 20  # bytes; a longer text is an open quote or a file in a cell
FAULTS = ("", "no text", "more than 1 MB of text", "not UTF-8", "not text", "not readable", "the model fails on it")
"""Descriptions of the reasons why a row cannot be used, by code; 0 means that it can."""
NONE, EMPTY, LONG, CODING, OTHER, BROKEN, FAILING = range(len(FAULTS))


@dataclass(frozen=True)
class Columns:
    """The names of the columns that are used.

    Attributes:
        text: The text, or the first text of a pair.
        text_b: The second text of a pair.
        label: The label; None for texts without labels.
        group: The group, whose rows stay in one split; None if every row may be separated from any other.
        order: The number, date or time that the splits follow; None for random splits.
    """

    text: str
    text_b: str | None
    label: str | None
    group: str | None = None
    order: str | None = None


def find_columns(
    rows: Rows,
    problems: Problems,
    *,
    given: Mapping[str, str | None],
    pair: bool | None = None,
    labelled: bool = True,
) -> Columns:
    """Find the columns of a table, or report why they are ambiguous.

    Args:
        rows: The table.
        problems: Receives everything that is wrong.
        given: Names of columns by role: text, text_b, label, group and order. A group or an order is not detected as
            text or label.
        pair: True if two texts are required, False if one is; None infers it from the columns.
        labelled: True if there must be labels.

    Raises:
        DataError: With all problems, if one was added here.
    """
    finder = _Finder(rows, problems)
    before = len(problems.lines)
    for role, name in given.items():
        if name is not None:
            finder.check_given(role, name)
    text, text_b, label, group, order = map(given.get, ("text", "text_b", "label", "group", "order"))
    content = [name for name in (text, text_b, label) if name is not None]
    for name in find_repeated(content):
        problems.add(rows.where, f"column {quote(name)} is given twice", "Give different columns for text and label")
    if label is not None and label in (group, order):
        role = "group" if label == group else "order"
        what = f"column {quote(label)} is given as label and as {role}"
        problems.add(rows.where, what, f"Set {role} to another column")
    others = [name for name in (group, order) if name is not None]
    if len(problems.lines) > before or finder.report_missing_header([*content, *others]):
        raise problems.as_error()
    finder.reserve(set(others) - set(content))
    with suppress(UnreadableError):
        if labelled and label is None:
            label = finder.find_label(taken={text, text_b})
    with suppress(UnreadableError):
        if text is None:
            text, text_b = finder.find_texts(label, text_b, pair)
        elif pair and text_b is None:
            text_b = finder.find_second(text, label)
    if text is None or len(problems.lines) > before:
        raise problems.as_error()
    return Columns(text, None if pair is False else text_b, label if labelled else None, group, order)


def check_columns(rows: Rows, columns: Columns, problems: Problems) -> bool:
    """Check that a split has the columns of the training rows."""
    needed = (columns.text, columns.text_b, columns.label)
    missing = [name for name in needed if name is not None and name not in _find_filled(rows.table)]
    remedy = f"Name its columns as those of the training rows; found {quote_some(rows.table.column_names)}"
    for name in missing:
        problems.add(rows.where, f"there is no column {quote(name)} with values", remedy)
    return not missing


def _find_filled(table: pa.Table) -> list[str]:
    """Return the names of the columns that have values."""
    return [name for name in table.column_names if table[name].null_count < len(table)]


class _Finder:
    """The columns of one table that have values, with methods to choose among them."""

    def __init__(self, rows: Rows, problems: Problems) -> None:
        self.rows, self.problems = rows, problems
        self.filled = _find_filled(rows.table)
        self.reserve(set())

    def reserve(self, names: set[str]) -> None:
        """Leave columns that have another use out of the choice."""
        self.names = [name for name in self.filled if name not in names]
        self.lower = {name.lower(): name for name in reversed(self.names)}

    def check_given(self, role: str, name: str) -> None:
        where = self.rows.where
        if name in self.names:
            return
        if name in self.rows.table.column_names:
            self.problems.add(where, f"column {quote(name)} holds no values", f"Set {role} to another column")
            return
        close = difflib.get_close_matches(name.lower(), self.lower, n=1, cutoff=0.5)
        suggestion = f"Did you mean {quote(self.lower[close[0]])}? " if close else ""
        remedy = f"{suggestion}Set {role} to one of the columns {quote_some(self.names)}"
        self.problems.add(where, f"there is no column {quote(name)}", remedy)

    def report_missing_header(self, given: list[str]) -> bool:
        known = {*_TEXT.split(), "text", *_LABEL_FIRST.split(), *_LABEL.split(), *chain.from_iterable(_PAIRS)}
        if given or known & set(self.lower) or not any(map(_is_like_cell, self.names)):
            return False
        what = f"the first row contains data, not column names ({quote_some(self.names, 4)})"
        self.problems.add(self.rows.where, what, "Put a header line such as text,label before it")
        return True

    def find_label(self, taken: set[str | None]) -> str:
        free = {low: name for low, name in self.lower.items() if name not in taken}
        possible = [name for name in self.names if name not in taken]
        preferred = [free[name] for name in _LABEL_FIRST.split() if name in free]
        known = [free[name] for name in _LABEL.split() if name in free]
        candidates = preferred[:1] or known or list(filter(self._is_like_labels, possible))
        if len(candidates) == 1:
            return candidates[0]
        numbers = [name for name in possible if self._is_number(name) and not _NOT_CONTENT.search(name.lower())]
        example = quote(numbers[0]) if len(numbers) == 1 and not candidates else "one of the columns"
        raise self._report(candidates, "label", possible, f"Set label to {example}")

    def find_texts(self, label: str | None, text_b: str | None, pair: bool | None) -> tuple[str, str | None]:
        free = {low: name for low, name in self.lower.items() if name not in (label, text_b)}
        if text_b is None and pair is not False:
            for first, second in _PAIRS:
                if first in free and second in free and self._is_string(free[first]) and self._is_string(free[second]):
                    return free[first], free[second]
        if pair and text_b is None:
            remedy = f"Set text and text_b to two of {quote_some(self.names)}"
            what = "two texts per row are needed, and their columns are ambiguous"
            raise self.problems.add(self.rows.where, what, remedy)
        if "text" in free:
            return free["text"], text_b
        strings = [name for name in self.names if name in free.values() and self._is_string(name)]
        known = [name for name in strings if name.lower() in _TEXT.split() and free[name.lower()] == name]
        prose = known or [name for name in strings if self._is_prose(name)]
        candidates = prose or [name for name in strings if not _NOT_CONTENT.search(name.lower())]
        if len(candidates) == 1:
            return candidates[0], text_b
        remedy = "Set text to one of the columns"
        if len(candidates) == 2:
            first, second = candidates
            remedy = f"Set text to {quote(first)} or {quote(second)}"
            if text_b is None and pair is None:
                remedy += f", or text to {quote(first)} and text_b to {quote(second)} for pairs of texts"
        raise self._report(candidates, "text", strings, remedy)

    def find_second(self, text: str, label: str | None) -> str:
        for first, second in _PAIRS:
            if first == text.lower() and self.lower.get(second) not in (None, label):
                return self.lower[second]
        remedy = f"Set text_b to one of {quote_some(self.names)}"
        what = "a second text per row is needed, and its column is ambiguous"
        raise self.problems.add(self.rows.where, what, remedy)

    def _report(self, candidates: list[str], role: str, possible: list[str], remedy: str) -> UnreadableError:
        examples = [f"{name} (such as {quote(self._example(name), 40)})" for name in (candidates or possible)[:8]]
        listed = ", ".join(examples)
        if candidates:
            what = f"{len(candidates)} columns could hold the {role}: {listed}"
        else:
            empty = [name for name in self.rows.table.column_names if name not in self.filled]
            what = f"no column is suitable as the {role}" + (f"; the columns are {listed}" if listed else "")
            what += f"; without any value are {quote_some(empty)}" if empty else ""
        return self.problems.add(self.rows.where, what, remedy)

    def _example(self, name: str) -> Any:
        return next((value for value in to_values(self._sample(name)) if value is not None), "")

    def _sample(self, name: str) -> pa.Array:
        return self.rows.read(name, 0, min(_SAMPLE, len(self.rows)))

    def _is_string(self, name: str) -> bool:
        return is_string(self.rows.table.schema.field(name).type)

    def _is_number(self, name: str) -> bool:
        kind = self.rows.table.schema.field(name).type
        return pa.types.is_integer(kind) or pa.types.is_floating(kind) or _is_numeric(self.rows, name)

    def _is_prose(self, name: str) -> bool:
        """Return True for distinct texts of several words or in a script beyond ASCII, unlike identifiers."""
        if _NOT_CONTENT.search(name.lower()):
            return False
        values = [str(value) for value in to_values(self._sample(name)) if value is not None]
        prose = sum(len(value.split()) > 2 or not value.isascii() for value in values)
        return bool(values) and prose >= len(values) / 2 and len(set(values)) > len(values) / 2

    def _is_like_labels(self, name: str) -> bool:
        """Return True for few distinct values, each with several rows, or for lists of names."""
        kind = self.rows.table.schema.field(name).type
        if _NOT_CONTENT.search(name.lower()):
            return False
        if pa.types.is_list(kind) or pa.types.is_large_list(kind):
            return is_string(kind.value_type) or pa.types.is_integer(kind.value_type)
        if not (
            is_string(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_floating(kind)
        ):
            return False
        values = self._sample(name).drop_null()
        return 1 < pc.count_distinct(values).as_py() <= max(2, min(200, len(values) / 4))


def is_string(kind: pa.DataType) -> bool:
    """Return True if an Arrow type holds text, also as categories."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or str(kind) == "string_view"


def _is_like_cell(name: str) -> bool:
    return not name or len(name.split()) > 3 or re.fullmatch(r"[-+]?\d+(\.\d+)?", name) is not None


def check_texts(rows: Rows, columns: Columns, problems: Problems) -> None:
    """Report texts that cannot be used: missing, blank, not text, not UTF-8, or too long."""
    for name in (columns.text, columns.text_b):
        if name is not None:
            with suppress(UnreadableError):
                _check_text_column(rows, name, problems)


def _check_text_column(rows: Rows, name: str, problems: Problems) -> None:
    where, kind = rows.where, rows.table.schema.field(name).type
    if name in rows.mixed:
        raise problems.add(where, f"text column {quote(name)} mixes {rows.mixed[name]}", "Give text in every row")
    remedy = "Set text to the text column"
    if not is_string(kind):
        values = "nested objects or lists" if pa.types.is_nested(kind) else f"{kind} values"
        raise problems.add(where, f"text column {quote(name)} holds {values}, not text", remedy)
    if _is_numeric(rows, name):
        raise problems.add(where, f"text column {quote(name)} holds only numbers", remedy)
    codes = np.zeros(len(rows), np.int8)
    for start, texts in rows.walk(name):
        find_faults(texts, codes[start : start + len(texts)])
    for code, what, remedy in (
        (EMPTY, f"without text in {quote(name)}", "Fill them in or remove the rows"),
        (LONG, f"with more than 1 MB of text in {quote(name)}", "Shorten them, or close an open quote"),
        (CODING, f"with text in {quote(name)} that is not UTF-8", "Write the file again with its texts as UTF-8"),
    ):
        problems.add_rows(where, what, rows.number(np.flatnonzero(codes == code)), remedy)


def find_faults(column: pa.ChunkedArray | pa.Array, codes: np.ndarray) -> pa.Array:
    """Find the rows of a column whose texts cannot be used.

    Args:
        column: The texts.
        codes: The fault of each row (see `FAULTS`); updated in place for rows without a fault so far.

    Returns:
        The texts as one array; null where they are not UTF-8.
    """
    texts = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_dictionary(texts.type):
        texts = texts.dictionary_decode()
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        texts = _drop_invalid(texts, codes)
    if not pa.types.is_large_string(texts.type):
        texts = texts.cast(pa.string())
    lengths = pc.binary_length(texts).fill_null(0)
    empty = pc.or_(pc.equal(lengths, 0), pc.utf8_is_space(texts).fill_null(True))
    for code, faulty in ((EMPTY, empty), (LONG, pc.greater(lengths, MAX_TEXT))):
        codes[(codes == NONE) & faulty.to_numpy(zero_copy_only=False)] = code
    return texts


def _drop_invalid(texts: pa.Array, codes: np.ndarray) -> pa.Array:
    kept: list[str | None] = []
    for at, raw in enumerate(texts.cast(pa.large_binary() if texts.type == pa.large_string() else pa.binary())):
        try:
            kept.append(None if not raw.is_valid else raw.as_py().decode())
        except UnicodeDecodeError:
            kept.append(None)
            codes[at] = CODING
    return pa.array(kept, texts.type)


def _is_numeric(rows: Rows, name: str) -> bool:
    sample = rows.read(name, 0, min(_SAMPLE, len(rows))).drop_null()
    try:
        return len(sample) > 0 and len(sample.cast(pa.float64())) > 0
    except pa.ArrowException:
        return False
