"""Collect everything that makes data unusable and report it in one error.

The formatting helpers keep messages alike in all modules that read data.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from headhunt.errors import DataError

_MAX_ROW_NUMBERS = 5


class UnreadableError(Exception):
    """Signal that the rest of a source cannot be read; the problem is already in the list."""


def list_rows(numbers: Iterable[int]) -> str:
    """Format the first few row numbers: ``row 3`` or ``rows 3, 8, 9, 14, 20, …``."""
    numbers = list(numbers)
    listed = ", ".join(str(int(number)) for number in numbers[:_MAX_ROW_NUMBERS])
    return f"row{'s' if len(numbers) > 1 else ''} {listed}{', …' if len(numbers) > _MAX_ROW_NUMBERS else ''}"


def count(number: int, noun: str, plural: str | None = None) -> str:
    """Format a number with its noun: ``1 row``, ``12,000 rows``."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def quote(value: Any, width: int = 60) -> str:
    """Format a value in quotes on one line, cut to a width."""
    text = " ".join(str(value).split())
    return f"'{text[: width - 1]}…'" if len(text) > width else f"'{text}'"


def quote_some(values: Sequence[Any], most: int = 8) -> str:
    """Format the first few values in quotes, followed by the number of the others."""
    listed = ", ".join(quote(value, 40) for value in values[:most])
    return listed + (f" and {len(values) - most:,} more" if len(values) > most else "")


def find_repeated(names: Sequence[str]) -> list[str]:
    """Return the names that are there more than once, sorted."""
    return sorted({name for name in names if names.count(name) > 1})


def brief(error: BaseException) -> str:
    """Format the message of an error on one short line."""
    return " ".join(str(error).split())[:160].rstrip(".")


class Problems:
    """A list of everything that makes the data unusable.

    Args:
        subject: The name of the source, as the user would call it.
    """

    def __init__(self, subject: str) -> None:
        self.subject = subject
        self.lines: list[str] = []

    def __bool__(self) -> bool:
        return bool(self.lines)

    def add(self, where: str, what: str, remedy: str) -> UnreadableError:
        """Add one problem. Return an error to raise if the rest of the source cannot be read for it.

        Args:
            where: The source or argument that has the problem.
            what: The problem.
            remedy: The step that fixes it.
        """
        line = f"{where}: {what}. {remedy}"
        if line not in self.lines:
            self.lines.append(line)
        return UnreadableError(line)

    def add_rows(self, where: str, what: str, numbers: Sequence[int] | np.ndarray, remedy: str) -> None:
        """Add a problem of certain rows, if there are any; `numbers` count from 1."""
        if len(numbers):
            self.add(where, f"{count(len(numbers), 'row')} {what} ({list_rows(numbers)})", remedy)

    def as_error(self) -> DataError:
        """Return an error that lists every problem."""
        if len(self.lines) == 1:
            return DataError(self.lines[0])
        listed = "\n".join(f"  - {line}" for line in self.lines)
        return DataError(f"{self.subject} has {len(self.lines)} problems:\n{listed}")

    def raise_if_any(self) -> None:
        """Raise a DataError that lists every problem, if there is one."""
        if self.lines:
            raise self.as_error()
