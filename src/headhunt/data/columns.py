"""Which columns hold the texts and the labels: by name where the names are known, by content where that settles it."""

import difflib
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headhunt.data.problems import Problems, quote, quote_some
from headhunt.data.sources import Rows

_PAIRS = (
    "text text_b|text_a text_b|text1 text2|text_1 text_2|sentence1 sentence2|sentence_1 sentence_2|"
    "sentence_a sentence_b|premise hypothesis|question1 question2|query document|query passage|question sentence|"
    "question passage|question answer"
)
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
_SAMPLE = 1000


@dataclass(frozen=True)
class Columns:
    """The names of the columns taken.

    Attributes:
        text: The text, or the first of a pair.
        text_b: The second text of a pair.
        label: The label; None where texts are only to be predicted.
    """

    text: str
    text_b: str | None
    label: str | None


def find_columns(
    rows: Rows,
    problems: Problems,
    *,
    text: str | None = None,
    text_b: str | None = None,
    label: str | None = None,
    pair: bool | None = None,
    labelled: bool = True,
) -> Columns | None:
    """Find the columns of a table, or note why they cannot be told.

    Args:
        rows: The table.
        problems: Takes what is wrong.
        text: Name of the text column, if given.
        text_b: Name of the column of second texts, if given.
        label: Name of the label column, if given.
        pair: Whether two texts are needed; None leaves it to the columns.
        labelled: Whether there must be labels.
    """
    finder = _Finder(rows, problems)
    before = len(problems.lines)
    for role, name in (("text", text), ("text_b", text_b), ("label", label)):
        if name is not None:
            finder.check_named(role, name)
    given = [name for name in (text, text_b, label) if name is not None]
    for name in sorted({name for name in given if given.count(name) > 1}):
        problems.add(rows.where, f"column {quote(name)} is named twice", "Name different columns for text and label")
    if len(problems.lines) > before or finder.note_no_header(given):
        return None
    if labelled and label is None:
        label = finder.find_label(taken={text, text_b})
    if text is None:
        text, text_b = finder.find_texts(label, text_b, pair)
    elif pair and text_b is None:
        text_b = finder.find_second(text, label)
    if text is None or (labelled and label is None) or len(problems.lines) > before:
        return None
    return Columns(text, None if pair is False else text_b, label if labelled else None)


def check_columns(rows: Rows, columns: Columns, problems: Problems) -> bool:
    """Check that another split has the columns found in the first."""
    before = len(problems.lines)
    finder = _Finder(rows, problems)
    for role, name in (("text", columns.text), ("text_b", columns.text_b), ("label", columns.label)):
        if name is not None:
            finder.check_named(role, name)
    return len(problems.lines) == before


class _Finder:
    """Looks at the columns of one table, those without any value left out."""

    def __init__(self, rows: Rows, problems: Problems) -> None:
        self.rows = rows
        self.problems = problems
        table = rows.table
        self.names = [name for name in table.column_names if table[name].null_count < len(table)]
        self.lower = {name.lower(): name for name in reversed(self.names)}

    def check_named(self, role: str, name: str) -> None:
        if name in self.names:
            return
        where, option = self.rows.where, f"--{role.replace('_', '-')}"
        if name in self.rows.table.column_names:
            self.problems.add(where, f"column {quote(name)} holds no values", f"Name another with {option}")
            return
        close = difflib.get_close_matches(name.lower(), self.lower, n=1, cutoff=0.5)
        meant = f"Did you mean {quote(self.lower[close[0]])}? " if close else ""
        remedy = f"{meant}The columns are {quote_some(self.names)}; name one with {option}"
        self.problems.add(where, f"there is no column {quote(name)}", remedy)

    def note_no_header(self, given: list[str]) -> bool:
        known = set((_TEXT + " text " + _LABEL_FIRST + " " + _LABEL + " " + _PAIRS.replace("|", " ")).split())
        if given or known & set(self.lower) or not self.names:
            return False
        if any(_looks_like_cell(name) for name in self.names):
            what = f"the first row looks like data, not like column names ({quote_some(self.names, 4)})"
            self.problems.add(self.rows.where, what, "Put a header line such as text,label before it")
            return True
        return False

    def find_label(self, taken: set[str | None]) -> str | None:
        first = [self.lower[name] for name in _LABEL_FIRST.split() if name in self.lower]
        first = [name for name in first if name not in taken]
        if first:
            return first[0]
        known = [self.lower[name] for name in _LABEL.split() if name in self.lower and self.lower[name] not in taken]
        found = known or [name for name in self.names if name not in taken and self._is_labelling(name)]
        return self._settle(found, "label", [name for name in self.names if name not in taken])

    def find_texts(self, label: str | None, text_b: str | None, pair: bool | None) -> tuple[str | None, str | None]:
        free = {low: name for low, name in self.lower.items() if name not in (label, text_b)}
        if text_b is None and pair is not False:
            for first, second in (names.split() for names in _PAIRS.split("|")):
                if first in free and second in free and self._is_string(free[first]) and self._is_string(free[second]):
                    return free[first], free[second]
        if pair and text_b is None:
            remedy = f"Name the two with --text and --text-b; the columns are {quote_some(self.names)}"
            self.problems.add(self.rows.where, "two texts per row are needed, and their columns cannot be told", remedy)
            return None, None
        if "text" in free:
            return free["text"], text_b
        strings = [name for name in free.values() if self._is_string(name)]
        known = [free[name] for name in _TEXT.split() if name in free and free[name] in strings]
        found = known or [name for name in strings if self._is_prose(name)]
        if not found:
            found = [name for name in strings if not _NOT_CONTENT.search(name.lower())]
        return self._settle(found, "text", strings), text_b

    def find_second(self, text: str, label: str | None) -> str | None:
        for first, second in (names.split() for names in _PAIRS.split("|")):
            if first == text.lower() and self.lower.get(second) not in (None, label):
                return self.lower[second]
        remedy = f"Name it with --text-b; the columns are {quote_some(self.names)}"
        self.problems.add(self.rows.where, "a second text per row is needed, and its column cannot be told", remedy)
        return None

    def _settle(self, found: list[str], role: str, possible: list[str]) -> str | None:
        if len(found) == 1:
            return found[0]
        listed = ", ".join(f"{name} (such as {quote(self._example(name), 40)})" for name in (found or possible)[:8])
        if found:
            what = f"{len(found)} columns could hold the {role}: {listed}"
        else:
            empty = [name for name in self.rows.table.column_names if name not in self.names]
            what = f"no column was found for the {role}" + (f"; there are {listed}" if listed else "")
            what += f"; without any value are {quote_some(empty)}" if empty else ""
        self.problems.add(self.rows.where, what, f"Name it with --{role} COLUMN")
        return None

    def _example(self, name: str) -> Any:
        return next((value for value in self._sample(name).to_pylist() if value is not None), "")

    def _sample(self, name: str) -> pa.Array:
        return self.rows.read(name, 0, min(_SAMPLE, len(self.rows)))

    def _is_string(self, name: str) -> bool:
        return is_string(self.rows.table.schema.field(name).type)

    def _is_prose(self, name: str) -> bool:
        """Long and varied, and written with spaces or in letters beyond ASCII, as identifiers are not."""
        if _NOT_CONTENT.search(name.lower()):
            return False
        values = [str(value) for value in self._sample(name).to_pylist() if value is not None]
        prose = sum(len(value.split()) > 2 or not value.isascii() for value in values)
        return bool(values) and prose >= len(values) / 2 and len(set(values)) > len(values) / 2

    def _is_labelling(self, name: str) -> bool:
        """Few distinct values, each with several rows; or lists of names."""
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
    """Tell whether an Arrow type holds text, also as categories."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or str(kind) == "string_view"


def _looks_like_cell(name: str) -> bool:
    return not name or len(name.split()) > 3 or re.fullmatch(r"[-+]?\d+(\.\d+)?", name) is not None


def check_texts(rows: Rows, name: str, problems: Problems) -> None:
    """Note texts that cannot be used: absent, blank, not text, not UTF-8, or too big to be a text."""
    kind = rows.table.schema.field(name).type
    where = rows.where
    if name in rows.mixed:
        problems.add(where, f"text column {quote(name)} mixes {rows.mixed[name]}", "Give text in every row")
        return
    if not is_string(kind):
        named = "nested objects or lists" if pa.types.is_nested(kind) else f"{kind} values"
        problems.add(where, f"text column {quote(name)} holds {named}, not text", "Name the text column with --text")
        return
    if _is_numeric(rows, name):
        problems.add(where, f"text column {quote(name)} holds only numbers", "Name the text column with --text")
        return
    blank: list[np.ndarray] = []
    huge: list[np.ndarray] = []
    for start, texts in rows.walk(name):
        try:
            texts.validate(full=True)
        except pa.ArrowInvalid:
            what = f"text column {quote(name)} is not UTF-8 (after row {start + 1:,})"
            problems.add(where, what, "Write the file again with its texts as UTF-8")
            return
        lengths = pc.binary_length(texts)
        empty = pc.or_(pc.equal(lengths, 0), pc.utf8_is_space(texts)).fill_null(True)
        blank.append(start + np.flatnonzero(empty.to_numpy(zero_copy_only=False)))
        huge.append(
            start + np.flatnonzero(pc.greater(lengths, 1 << 20).fill_null(False).to_numpy(zero_copy_only=False))
        )
    remedy = "Fill them in or remove the rows"
    problems.add_rows(where, f"without text in {quote(name)}", rows.number(np.concatenate(blank)), remedy)
    what = f"with more than 1 MB of text in {quote(name)}"
    problems.add_rows(where, what, rows.number(np.concatenate(huge)), "Shorten them, or close a quote left open")


def _is_numeric(rows: Rows, name: str) -> bool:
    sample = rows.read(name, 0, min(_SAMPLE, len(rows))).drop_null()
    try:
        return len(sample) > 0 and len(sample.cast(pa.float64())) > 0
    except pa.ArrowException:
        return False
