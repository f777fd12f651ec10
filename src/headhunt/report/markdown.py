"""Pieces of Markdown for the model card; text from data is escaped."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from headhunt.evaluation import Score


def section(title: str, parts: Sequence[str]) -> list[str]:
    """Return a heading and its parts; nothing if there are no parts."""
    return [f"## {title}", *parts] if parts else []


def bullet_list(items: Iterable[str]) -> str:
    """Return a list with bullets."""
    return "\n".join(f"- {item}" for item in items)


def table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table; all columns but the first are aligned to the right."""
    lines = [names, ["---", *["---:"] * (len(names) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def escape_text(value: Any) -> str:
    """Return text on one line that Markdown shows unchanged."""
    return re.sub(r"([\\`*_\[\]<>|#~])", r"\\\1", " ".join(str(value).split()))


def code_block(text: str, language: str) -> str:
    """Return text as a block of code, fenced by more backticks than it contains in a row."""
    fence = "`" * max(3, _longest_fence(text) + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def code(value: Any, max_length: int = 80, in_table: bool = False) -> str:
    """Return a name as inline code on one line, fenced by more backticks than it contains in a row.

    Args:
        value: The name.
        max_length: Characters after which it is cut.
        in_table: Escape vertical bars, which would end a table cell.
    """
    text = " ".join(str(value).split())
    text = f"{text[: max_length - 1]}…" if len(text) > max_length else text
    fence = "`" * (_longest_fence(text) + 1)
    space = " " if text.startswith("`") or text.endswith("`") else ""
    text = text.replace("|", "\\|") if in_table else text
    return f"{fence}{space}{text}{space}{fence}" if text else "(empty)"


def _longest_fence(text: str) -> int:
    return max((len(run) for run in re.findall("`+", text)), default=0)


def interval(score: Score | None) -> str:
    """Return a score with its interval; a dash if there is none."""
    return f"{score.value:.4f} ({score.low:.4f} to {score.high:.4f})" if score else "–"
