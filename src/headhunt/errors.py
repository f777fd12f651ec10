"""What the user can mend: every such problem is one of these, and nothing else is."""

from pathlib import Path


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


def not_a_model(folder: Path) -> ModelError:
    """What a folder is that was given as a saved model and is none, and what to give instead."""
    must = f"{folder} must be a folder that Headhunt saved"
    if not folder.exists():
        return ModelError(f"{must}; it is not there. Check the path.")
    if (folder / "ledger.jsonl").is_file():
        found = next((name for name in ("model", "best") if (folder / name / "headhunt.json").is_file()), None)
        hint = f"Give {folder / found}." if found else f"It has no model yet: headhunt resume {folder} --time 10m"
        return ModelError(f"{must}; it is the run directory of a search. {hint}")
    return ModelError(f"{must}; it has no headhunt.json.")
