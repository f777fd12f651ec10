"""What is wrong with the data, gathered so that the user hears all of it at once."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from headhunt.errors import DataError

_EXAMPLES = 5


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
