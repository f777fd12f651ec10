"""Exceptions for problems that the user can fix."""


class HeadhuntError(Exception):
    """A problem the user can fix. The message says what must hold, what was found and what to do."""


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
