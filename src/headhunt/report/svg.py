"""Building blocks of the SVG charts: numbers in text, axes, grids, labels and dots.

Colours and fonts are set by CSS classes (charts.css), so that one drawing serves light, dark and print.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable, Sequence
from html import escape
from importlib import resources

Point = tuple[float, float]
Scale = Callable[[float], float]
Ticks = list[tuple[float, str]]


def read_asset(name: str) -> str:
    """Return a style sheet or script of this package. Every drawing needs charts.css."""
    return resources.files("headhunt.report").joinpath(name).read_text("utf-8")


def number(value: float | None, digits: int = 4) -> str:
    """Return a number with fixed digits and a minus sign (U+2212); a dash if there is none."""
    return "–" if value is None else f"{value:.{digits}f}".replace("-", "−")


def signed(value: float, digits: int = 4) -> str:
    """Return a difference, always with its sign."""
    return f"{value:+.{digits}f}".replace("-", "−")


def percent(value: float, digits: int = 0) -> str:
    """Return a proportion as a percentage."""
    return f"{number(value * 100, digits)}\N{NO-BREAK SPACE}%"


def compact(value: float | None) -> str:
    """Return a quantity in at most four figures: 12.3, 1,240, 22.7 M."""
    if value is None:
        return "–"
    for size, unit in ((1e9, " G"), (1e6, " M")):
        if abs(value) >= size:
            return f"{value / size:.1f}{unit}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def draw_svg(width: float, height: float, label: str, body: Iterable[str], kind: str = "") -> str:
    """Return an SVG element.

    Args:
        width: CSS pixels.
        height: CSS pixels.
        label: Description for screen readers.
        body: Elements inside.
        kind: Additional CSS class.
    """
    size = f'width="{coordinate(width)}" height="{coordinate(height)}"'
    return (
        f'<svg class="chart {kind}" viewBox="0 0 {coordinate(width)} {coordinate(height)}" {size} '
        f'role="img" aria-label="{escape(label)}"><desc>{escape(label)}</desc>{"".join(body)}</svg>'
    )


def draw_text(x: float, y: float, text: str, kind: str, anchor: str = "start") -> str:
    """Return a line of text; `kind` is its CSS class."""
    place = f'x="{coordinate(x)}" y="{coordinate(y)}"'
    return f'<text class="{kind}" {place} text-anchor="{anchor}">{escape(text)}</text>'


def draw_line(x: float, y: float, to_x: float, to_y: float, kind: str) -> str:
    """Return a straight line; `kind` is its CSS class."""
    start, end = f'x1="{coordinate(x)}" y1="{coordinate(y)}"', f'x2="{coordinate(to_x)}" y2="{coordinate(to_y)}"'
    return f'<line class="{kind}" {start} {end}/>'


def draw_path(curves: Iterable[Iterable[Point]], kind: str, style: str = "") -> str:
    """Return lines through points as one path; an empty text if there are none."""
    lines = "".join("M" + "L".join(map(coordinates, points)) for points in curves)
    return f'<path class="{kind}" {style}d="{lines}"/>' if lines else ""


def draw_circle(x: float, y: float, radius: float, kind: str) -> str:
    """Return a circle; `kind` is its CSS class."""
    place = f'cx="{coordinate(x)}" cy="{coordinate(y)}"'
    return f'<circle class="{kind}" {place} r="{coordinate(radius)}"/>'


def draw_box(x: float, y: float, width: float, height: float, kind: str, more: str = "", title: str = "") -> str:
    """Return a rectangle.

    Args:
        x: Left.
        y: Top.
        width: CSS pixels.
        height: CSS pixels.
        kind: CSS class.
        more: Further attributes.
        title: Text that is shown under the pointer.
    """
    place = f'x="{coordinate(x)}" y="{coordinate(y)}" width="{coordinate(width)}" height="{coordinate(height)}"'
    return f'<rect class="{kind}" {place} {more}>{f"<title>{title}</title>" if title else ""}</rect>'


def draw_dots(points: Iterable[Point], kind: str, radius: float) -> str:
    """Return many dots as one path with round line ends, which takes a tenth of the bytes of circles."""
    path = "".join(f"M{coordinates(point)}h0" for point in points)
    return f'<path class="{kind}" stroke-width="{2 * radius:g}" d="{path}"/>' if path else ""


def draw_grid_x(
    ticks: Ticks,
    x: Scale,
    top: float,
    bottom: float,
    format_value: Callable[[float], str] | None = None,
    *,
    lines: bool = True,
) -> str:
    """Return the labels and, unless `lines` is False, the vertical lines of a horizontal axis."""
    parts = []
    for value, label in ticks:
        if lines:
            parts.append(draw_line(x(value), top, x(value), bottom, "grid"))
        text = label if format_value is None else _with_axis_digits(format_value(value), label)
        parts.append(draw_text(x(value), bottom + 17, text, "tick", "middle"))
    return "".join(parts)


def draw_grid_y(ticks: Ticks, y: Scale, left: float, right: float) -> str:
    """Return the labels and lines of a vertical axis."""
    return "".join(
        draw_line(left, y(value), right, y(value), "grid") + draw_text(left - 10, y(value) + 4, label, "tick", "end")
        for value, label in ticks
    )


def coordinate(value: float) -> str:
    """Return a coordinate with as few characters as possible."""
    return f"{value:.1f}".rstrip("0").rstrip(".")


def coordinates(point: Point) -> str:
    """Return a point as it stands in a path."""
    return f"{coordinate(point[0])} {coordinate(point[1])}"


def linear_scale(low: float, high: float, start: float, end: float) -> Scale:
    """Return a function from values between `low` and `high` to coordinates between `start` and `end`."""
    span = high - low
    return lambda value: start + (end - start) * ((value - low) / span if span else 0.5)


def make_axis(low: float, high: float, start: float, end: float, count: int) -> tuple[Ticks, Scale]:
    """Return about `count` ticks at round numbers with their labels, and the scale of the axis."""
    if high <= low:
        low, high = low - 0.01, high + 0.01
    step = _round_step((high - low) / count)
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    values = [place * step for place in range(first, last + 1)]
    return [(value, number(value + 0.0, digits)) for value in values], linear_scale(low, high, start, end)


def robust_range(values: Sequence[float], cut: float = 0.05) -> Point:
    """Return the range from a low quantile, which leaves out outliers, to the maximum, with a small margin."""
    ordered = sorted(values)
    low, high = ordered[int(cut * (len(ordered) - 1))], ordered[-1]
    margin = 0.04 * (high - low) or 0.01
    return low - margin, high + margin


def padded_range(values: Sequence[float], share: float = 0.14) -> Point:
    """Return the range of all values with a margin."""
    low, high = min(values), max(values)
    margin = share * (high - low) or abs(high) * 0.1 or 0.01
    return low - margin, high + margin


def clock_ticks(end: float, count: int) -> list[float]:
    """Return at most about `count` seconds to label, at round numbers of seconds, minutes, hours or days."""
    steps = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400)
    step = next((step for step in steps if end / step <= count), 86400 * math.ceil(end / 86400 / count))
    return [step * place for place in range(int(end / step) + 1)]


def shorten(text: str, length: int) -> str:
    """Return text cut to a number of characters, with an ellipsis."""
    return text if len(text) <= max(2, length) else f"{text[: max(1, length - 1)].rstrip()}…"


def wrap(text: str, length: int) -> list[str]:
    """Return text in at most three lines."""
    return textwrap.wrap(text, length, break_long_words=False, break_on_hyphens=False)[:3]


def _round_step(rough: float) -> float:
    base = 10.0 ** math.floor(math.log10(rough))
    return next(base * factor for factor in (1, 2, 5, 10) if base * factor >= rough * 0.999)


def _with_axis_digits(text: str, label: str) -> str:
    """Return a signed number with no more digits than the axis has."""
    if text[:1] in "+−" and text[1:2].isdigit():
        return "0" if float(label.replace("−", "-")) == 0 else f"{text[0]}{label.lstrip('−')}"
    return text
