"""Exceptions for problems that the user can fix."""

import difflib
import re
from collections.abc import Iterable

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def visible(text: object, keep: str = "") -> str:
    """Return text with control characters as escapes: on a terminal they move the cursor, or forge a line.

    Args:
        text: The text, such as a label or the name of a file.
        keep: Control characters to keep.
    """
    return _CONTROL.sub(
        lambda mark: mark[0] if mark[0] in keep else mark[0].encode("unicode_escape").decode(), str(text)
    )


def did_you_mean(given: object, known: Iterable[str], otherwise: str = "") -> str:
    """Return " Did you mean 'NAME'?" for the known name that is closest to the given one, or `otherwise`."""
    near = difflib.get_close_matches(str(given), list(known), n=1)
    return f" Did you mean {near[0]!r}?" if near else otherwise


class HeadhuntError(Exception):
    """A problem the user can fix. The message says what must hold, what was found and what to do.

    Args:
        message: The message.
        argument: The argument that the message is about. It becomes the first word; the command line shows its flag.
    """

    def __init__(self, message: str, argument: str | None = None) -> None:
        super().__init__(message if argument is None else f"{argument}= {message}")
        self.message, self.argument = message, argument


class DataError(HeadhuntError, ValueError):
    """Data that cannot be used as given. The message lists every problem with row numbers."""


class SpecError(HeadhuntError):
    """An invalid spec, space or head."""


class ModelError(HeadhuntError):
    """An encoder or saved model that cannot be loaded or used for this task."""


def out_of_memory(error: BaseException) -> bool:
    """Return True if an error means that memory ran out; torch reports it in several ways."""
    message = str(error).lower()
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or any(phrase in message for phrase in ("out of memory", "can't allocate memory", "not enough memory"))
    )
