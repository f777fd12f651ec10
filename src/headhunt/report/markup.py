"""Pieces of HTML that the sections of the report share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import Any

from headhunt.report.charts import NARROW, WIDE

Facts = Mapping[str, Any]
DELIVERED = {"winner": "winner", "plain": "plain head", "ensemble": "ensemble"}


def both_widths(draw: Callable[[float], str]) -> str:
    """Return a chart for a screen and one for a phone; the page's style shows one of them."""
    wide = draw(WIDE).replace('class="chart', 'class="chart wide', 1)
    return wide + draw(NARROW).replace('class="chart', 'class="chart narrow', 1)


def figure(caption: str, chart: str) -> str:
    """Return a chart with a caption."""
    return f"<figure><figcaption>{escape(caption)}</figcaption>{chart}</figure>"


def legend(keys: Iterable[tuple[str, str]]) -> str:
    """Return a legend of pairs of CSS class and text."""
    items = "".join(f'<li><i class="{kind}"></i>{escape(text)}</li>' for kind, text in keys)
    return f'<ul class="legend" aria-hidden="true">{items}</ul>'


def description_list(terms: Mapping[str, str | None], kind: str = "pairs") -> str:
    """Return terms that have a description, with it: in two columns ("pairs") or side by side ("strip")."""
    items = [f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in terms.items() if text]
    inner = "".join(f"<div>{item}</div>" if kind == "strip" else item for item in items)
    return f'<dl class="{kind}">{inner}</dl>'


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; all columns but the first are aligned as numbers."""
    head = "".join(f'<th scope="col"{css_class(place > 0)}>{escape(name)}</th>' for place, name in enumerate(heads))
    body = "".join(
        "<tr>" + "".join(f"<td{css_class(place > 0)}>{escape(cell)}</td>" for place, cell in enumerate(row)) + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def css_class(numeric: bool) -> str:
    """Return the class attribute of a table cell."""
    return ' class="num"' if numeric else ""


def statement(text: str) -> str:
    """Return a sentence whose numbers stay together at line breaks."""
    return escape(text).replace(" %", "&nbsp;%").replace(" = ", "&nbsp;=&nbsp;")


def rows_text(section: Facts) -> str:
    """Return the rows that a section is about, with their number if it is known."""
    return f"{section['rows']:,} {section['on']}" if section.get("rows") else str(section["on"])
