"""What the user can mend: every such problem is one of these, and nothing else is."""


class HeadhuntError(Exception):
    """A problem the user can mend. The message says what must hold, what was found and what to do."""


class DataError(HeadhuntError, ValueError):
    """The data cannot be used as given. The message lists every problem found, with row numbers."""


class SpecError(HeadhuntError):
    """A spec, space or head was written in a way that means nothing."""


class ModelError(HeadhuntError):
    """An encoder or a saved model cannot be loaded or used for this task."""


def out_of_memory(error: BaseException) -> bool:
    """Whether there was not enough memory, of whichever kind; torch says so in several ways."""
    words = str(error).lower()
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or any(said in words for said in ("out of memory", "can't allocate memory", "not enough memory"))
    )
