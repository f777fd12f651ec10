"""Read texts that a user gives as a list, an array or a data frame."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np


def text_columns(given: Any) -> list[list[Any]]:
    """Return the one or two columns of a data frame, an array, or a list of texts or of rows."""
    rows = given if isinstance(given, list | tuple) else np.atleast_1d(np.asarray(given)).tolist()
    if not len(rows) or not all(isinstance(row, list | tuple | np.ndarray) for row in rows):
        return [list(rows)]
    widths = {len(row) for row in rows}
    if len(widths) > 1:
        raise ValueError(f"X must have equally many texts in each row; found {', '.join(map(str, sorted(widths)))}.")
    columns = [list(column) for column in zip(*rows, strict=True)]
    if len(columns) not in (1, 2):
        raise ValueError(f"X must have one or two texts per row; found {len(columns)} columns.")
    return columns


def find_wrong_text(texts: Iterable[Any]) -> str | None:
    """Return which of the texts is missing or something else, in words; None if all are texts."""
    for row, text in enumerate(texts):
        if not isinstance(text, str):
            # pandas' NA is neither equal to itself nor different from it.
            missing = text is None or type(text).__name__ == "NAType" or text != text
            value = "a missing value (NaN)" if missing else f"{type(text).__name__} {text!r:.40}"
            return f"row {row} has {value}"
    return None
