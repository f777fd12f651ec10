"""Charts of the report as SVG text.

They are drawn by hand: a page with plotly is 20 times larger, and one with matplotlib cannot follow the theme. Each
chart is drawn for a width in CSS pixels, so that its text keeps its size; a page that is also read on a phone holds it
twice. Each chart describes itself in words for screen readers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from headhunt.report.svg import (
    Point,
    Scale,
    Ticks,
    clock_ticks,
    compact,
    coordinate,
    coordinates,
    draw_box,
    draw_circle,
    draw_dots,
    draw_grid_x,
    draw_grid_y,
    draw_line,
    draw_path,
    draw_svg,
    draw_text,
    linear_scale,
    make_axis,
    number,
    padded_range,
    percent,
    robust_range,
    shorten,
    signed,
)
from headhunt.report.terminal import format_duration

WIDE, HALF, NARROW, SMALL = 920, 440, 360, 214
NAME = 17  # characters of the name of a bar
NAMED = 10  # dots of a chart that all have their names
Figure = Mapping[str, Any]
Box = tuple[float, float, float, float]  # left, top, right and bottom
Curves = dict[str, list[list[Point]]]


def whiskers(rows: Sequence[Figure], metric: str, width: float = WIDE) -> str:
    """Return values with intervals, one per line; a dashed line marks the value of the plain head.

    Args:
        rows: With `role`, `name`, `value`, `low`, `high`.
        metric: Name of the metric.
        width: CSS pixels.
    """
    longest = max(len(row["name"]) for row in rows)
    left = max(150, 22 + round(7.2 * longest)) if width > NARROW else 118
    top, step, right = 10, 46, width - 74
    bottom = top + step * len(rows)
    ends = [end for row in rows for end in (row["low"], row["high"])]
    body, x = _value_axis(ends, (left, top, right, bottom), metric, 7 if width > NARROW else 4)
    for row in rows:
        if row["role"] == "plain":
            body.append(draw_line(x(row["value"]), top, x(row["value"]), bottom, "reference"))
    for place, row in enumerate(rows):
        y = top + step * (place + 0.5)
        kind = "accent" if row["role"] == "winner" else "neutral"
        low, high = x(row["low"]), x(row["high"])
        body += [
            draw_text(left - 16, y + 4, row["name"] if width > NARROW else shorten(row["name"], 14), "name", "end"),
            draw_line(low, y, high, y, f"whisker {kind}"),
            draw_line(low, y - 6, low, y + 6, f"whisker {kind}"),
            draw_line(high, y - 6, high, y + 6, f"whisker {kind}"),
            draw_circle(x(row["value"]), y, 6, f"dot {kind}"),
            draw_text(right + 14, y + 4, number(row["value"]), "value"),
        ]
    described = "; ".join(
        f"{row['name']} {number(row['value'])} [{number(row['low'])}, {number(row['high'])}]" for row in rows
    )
    return draw_svg(width, bottom + 40, f"{metric} with 95 % intervals: {described}.", body)


def differences(items: Sequence[Figure], metric: str, width: float = WIDE) -> str:
    """Return the change that each variant makes: bars from zero with intervals.

    Args:
        items: With `name`, `difference`, `low`, `high`, `significant`.
        metric: Name of the metric.
        width: CSS pixels.
    """
    stacked = width <= NARROW  # names above the bars instead of beside them
    left, top, right, step = (8 if stacked else 300), 12, width - 76, (50 if stacked else 32)
    bottom = top + step * len(items)
    ends = [0.0, *(end for item in items for end in (item["low"], item["high"], item["difference"]))]
    body, x = _value_axis(ends, (left, top, right, bottom), f"change of {metric}", 4 if stacked else 6, signed)
    body.append(draw_line(x(0), top, x(0), bottom, "zero"))
    for place, item in enumerate(items):
        y = top + step * (place + 0.5) + (9 if stacked else 0)
        start, end = sorted((x(0), x(item["difference"])))
        kind = "accent" if item["significant"] else "neutral"
        name = shorten(str(item["name"]), 52 if stacked else 42)
        body += [
            draw_text(left, y - 14, name, "name") if stacked else draw_text(left - 14, y + 4, name, "name", "end"),
            _bar(start, y, end - start, kind),
            draw_line(x(item["low"]), y, x(item["high"]), y, "whisker ink"),
            draw_text(right + 12, y + 4, signed(item["difference"]), "value"),
        ]
    described = "; ".join(f"{item['name']} {signed(item['difference'])}" for item in items)
    return draw_svg(width, bottom + 40, f"Change of {metric} with each variant: {described}.", body)


def _value_axis(
    values: Sequence[float], box: Box, label: str, count: int, format_value: Callable[[float], str] | None = None
) -> tuple[list[str], Scale]:
    """Return a grid with its label for values that are drawn one per line, and the scale of their axis."""
    left, top, right, bottom = box
    ticks, x = make_axis(*padded_range(values, 0.03), left, right, count)
    return [draw_grid_x(ticks, x, top, bottom, format_value), draw_text(left, bottom + 36, label, "label")], x


def bars(
    items: Sequence[tuple[str, float]], label: str, format_value: Callable[[float], str], width: float = HALF
) -> str:
    """Return horizontal bars in the given order.

    Args:
        items: Names and values of 0 or more.
        label: Name of the values.
        format_value: Function that turns a value into text.
        width: CSS pixels.
    """
    left, right, step = 140, 66, 26
    largest = max((value for _, value in items), default=0) or 1
    body = []
    for place, (name, value) in enumerate(items):
        y = step * (place + 0.5)
        length = (width - left - right) * value / largest
        body += [
            draw_text(left - 12, y + 4, shorten(name, NAME), "name", "end"),
            _bar(left, y, length, "accent"),
            draw_text(left + length + 10, y + 4, format_value(value), "value"),
        ]
    described = "; ".join(f"{name} {format_value(value)}" for name, value in items)
    return draw_svg(width, step * len(items) + 4, f"{label}: {described}.", body)


def progress(data: Figure, width: float = WIDE, height: float = 320) -> str:
    """Return every result as a dot and the best so far as a line over time, with the plain head as a reference."""
    left, right, top, bottom = 58, 20, 14, height - 40
    results, best, plain = data["results"], data["best"], data["plain"]
    low, high = robust_range([point["score"] for point in results] + ([plain["score"]] if plain else []))
    levels, y = make_axis(low, high, bottom, top, 5)
    x = linear_scale(0, data["end"] or 1, left, width - right)
    body = [draw_grid_y(levels, y, left, width - right)]
    for second in clock_ticks(data["end"], 8 if width > NARROW else 4):
        body.append(draw_text(x(second), bottom + 22, format_duration(second), "tick", "middle"))
    body.append(draw_text(left, height - 2, "search time", "label"))
    for rung in range(data["top"] + 1):
        kind = "accent" if rung == data["top"] else "faint"
        dots = [(x(point["at"]), y(max(low, point["score"]))) for point in results if point["rung"] == rung]
        body.append(draw_dots(dots, f"dots {kind}", 3.2 if len(results) < 150 else 2.2))
    if plain:
        level = y(plain["score"])
        body.append(draw_line(left, level, width - right, level, "reference"))
        body.append(draw_text(width - right, level - 7, f"plain head {number(plain['score'])}", "note halo", "end"))
    steps = [(x(at), y(max(low, score))) for at, score in best]
    body.append(f'<path class="curve accent" d="{_staircase(steps, width - right)}"/>')
    label = f"Best {data['metric']} so far over {format_duration(data['end'])}: it ends at {number(best[-1][1])}"
    return draw_svg(width, height, label + (f", the plain head at {number(plain['score'])}." if plain else "."), body)


def learning(data: Figure, width: float = HALF) -> str:
    """Return the scores of each candidate against the share of its training."""
    shares = sorted({share for curve in data["lines"] for share, _ in curve["scores"]})
    places = {share: place / max(1, len(shares) - 1) for place, share in enumerate(shares)}
    names = {share: "all" if share == 1 else f"1/{round(1 / share)}" if share else "0" for share in shares}
    kinds = {data["plain"]: "curve dashed", data["winner"]: "curve accent"}
    curves: Curves = {kind: [] for kind in ("thread faint", *kinds.values())}
    for curve in data["lines"]:
        points = [(places[share], score) for share, score in curve["scores"]]
        curves[kinds.get(curve["trial"], "thread faint")].append(points)
    described = f"{data['metric']} of {len(data['lines'])} candidates against the share of their training."
    ticks = [(places[share], name) for share, name in names.items()]
    return _draw_curves(curves, ticks, "share of the training", described, width)


def losses(data: Figure, width: float = HALF) -> str:
    """Return the training loss of the winner and of the plain head."""
    found = {role: data["losses"][role] for role in ("plain", "winner") if role in data["losses"]}
    curves: Curves = {
        "curve accent" if role == "winner" else "curve dashed": [
            [(place / (len(curve) - 1), loss) for place, loss in enumerate(curve)]
        ]
        for role, curve in found.items()
    }
    described = "; ".join(f"{role} ends at {number(curve[-1], 3)}" for role, curve in data["losses"].items())
    label = "training progress; each fold starts anew"
    return _draw_curves(curves, [], label, f"Training loss: {described}.", width, 0.0)


def _draw_curves(curves: Curves, ticks: Ticks, label: str, described: str, width: float, cut: float = 0.05) -> str:
    """Return curves by their CSS class; their points and the ticks lie between 0 and 1."""
    height, left, right, top, bottom = 300, 54, 16, 14, 256
    low, high = robust_range([value for each in curves.values() for points in each for _, value in points], cut)
    levels, y = make_axis(low, high, bottom, top, 5)
    x = linear_scale(0, 1, left + 14, width - right - 14)
    body = [
        draw_grid_y(levels, y, left, width - right),
        draw_grid_x(ticks, x, top, bottom + 5, lines=False),
        draw_text(left, height - 4, label, "label"),
    ]
    for kind, lines in curves.items():
        body.append(draw_path([[(x(at), y(max(low, value))) for at, value in points] for points in lines], kind))
    return draw_svg(width, height, described, body)


def slice_plot(data: Figure, axis: int, width: float = SMALL) -> str:
    """Return the scores of all candidates against their choice on one leaf."""
    leaf = data["leaves"][axis]
    rows = [(row, row["places"][axis]) for row in data["trials"] if row["places"][axis] is not None]
    low, high = robust_range([row["score"] for row in data["trials"]])
    left, right, top, bottom = 72, 8, 26, 142
    ticks, x = make_axis(low, high, left, width - right, 4)
    y = linear_scale(0, 1, bottom - 4, top + 4)
    body = [draw_text(0, 12, leaf["name"], "name small"), draw_grid_x(ticks, x, top, bottom)]
    body += [draw_text(left - 8, y(at) + 3.5, shorten(label, 10), "tick", "end") for at, label in leaf["ticks"]]
    # Dots of one option are spread a little, so that they do not cover each other.
    jitter = 0.36 / max(1, len(leaf["ticks"])) if len({at for _, at in rows}) <= 12 else 0.0
    for full, kind in ((False, "faint"), (True, "accent")):
        dots = [
            (x(max(low, row["score"])), y(at + jitter * (row["trial"] * 0.618 % 1 - 0.5)))
            for row, at in rows
            if (row["rung"] == data["top"]) is full
        ]
        body.append(draw_dots(dots, f"dots {kind}", 3.4 if len(rows) < 150 else 2.0))
    return draw_svg(width, bottom + 22, f"{data['metric']} of {len(rows)} candidates against {leaf['name']}.", body)


def front(data: Figure, cost: str, label: str, width: float = HALF) -> str:
    """Return candidates by cost and score; a line joins the Pareto front. Of many, only those on the line are named.

    Args:
        data: The section `costs` of the facts.
        cost: Key of the cost.
        label: Name of the cost.
        width: CSS pixels.
    """
    items, box = data["items"], (58.0, 18.0, width - 24, 248.0)
    across, up = (padded_range([item[key] for item in items]) for key in (cost, "score"))
    body, x, y = _draw_axes(box, across, up, label, compact)
    best = [item for trial in data["fronts"][cost] for item in items if item["trial"] == trial]
    steps = [(x(item[cost]), y(item["score"])) for item in best]
    body.append(f'<path class="curve accent soft" d="{_staircase(steps, box[2])}"/>')
    taken = [(x(item[cost]) - 6, y(item["score"]) - 6, x(item[cost]) + 6, y(item["score"]) + 6) for item in items]
    for item in items:
        at, level = x(item[cost]), y(item["score"])
        title = f"{item['name']}: {number(item['score'])}, {compact(item[cost])}. {item['description']}"
        dot = draw_circle(at, level, 5.5, "dot accent" if item in best else "dot neutral")
        body.append(f"<g><title>{escape(title)}</title>{dot}</g>")
        if item in best or len(items) <= NAMED:
            place, anchor = _place_name(at, level, item["name"], (box[0], 0, width, box[3]), taken)
            body.append(draw_text(*place, item["name"], "note", anchor))
    items = best if len(items) > NAMED else items
    described = "; ".join(f"{item['name']} {number(item['score'])} at {compact(item[cost])}" for item in items)
    return draw_svg(width, 300, f"{data['metric']} against {label}: {described}.", body)


def _draw_axes(
    box: Box, across: Point, up: Point, label: str, format_value: Callable[[float], str] | None = None
) -> tuple[list[str], Scale, Scale]:
    """Return the axes of a chart with the label of the horizontal one, and both scales."""
    left, top, right, bottom = box
    levels, y = make_axis(*up, bottom, top, 5)
    ticks, x = make_axis(*across, left, right, 5)
    axes = draw_grid_y(levels, y, left, right) + draw_grid_x(ticks, x, top, bottom, format_value, lines=False)
    return [axes, draw_text(left, bottom + 44, label, "label")], x, y


def _place_name(at: float, level: float, name: str, frame: Box, taken: list[Box]) -> tuple[tuple[float, float], str]:
    """Return where the name of a dot stands, and its anchor; what it covers is added to `taken`.

    Below and beside the dot if that is free: the front reaches a dot from below and leaves it to the right.
    """
    length = 6.2 * len(name)
    places, boxes = [], []
    for shift, down in ((8, 17), (10, 4), (8, -9), (8, 30), (8, -22), (8, 43), (8, -35)):
        places += [((at + shift, level + down), "start"), ((at - shift, level + down), "end")]
        lines = (level + down - 10, level + down + 3)
        boxes += [(at + shift, lines[0], at + shift + length, lines[1])]
        boxes += [(at - shift - length, lines[0], at - shift, lines[1])]

    def is_good(box: Box) -> bool:
        inside = frame[0] <= box[0] and frame[1] <= box[1] and box[2] <= frame[2] and box[3] <= frame[3]
        return inside and not any(
            box[0] <= other[2] and other[0] <= box[2] and box[1] <= other[3] and other[1] <= box[3] for other in taken
        )

    chosen = next((number for number, box in enumerate(boxes) if is_good(box)), 0)
    taken.append(boxes[chosen])
    return places[chosen]


def confusion(labels: Sequence[str], matrix: Sequence[Sequence[int]], name: str, width: float = HALF) -> str:
    """Return a confusion matrix; shades are proportions of the true class. Many classes have numbers as columns."""
    count, top = len(labels), 30
    numbered = count > 6 and max(map(len, labels)) > 3
    left = 190 if numbered else 116
    side = min(76.0, (width - left - 8) / count)
    body = [draw_text(left, 12, "predicted", "label"), draw_text(left - 12, 12, "true", "label", "end")]
    length = side * 0.9 / 6.6  # characters that fit above a column
    for row, counts in enumerate(matrix):
        total = sum(counts) or 1
        y = top + side * row + 14
        label = f"{shorten(labels[row], 22)} {row + 1}" if numbered else shorten(labels[row], 14)
        body.append(draw_text(left - 12, y + side / 2 + 4, label, "name small", "end"))
        above = str(row + 1) if numbered else shorten(labels[row], int(length))
        body.append(draw_text(left + side * (row + 0.5), top + 6, above, "tick", "middle"))
        for column, cell in enumerate(counts):
            kind = "accent" if row == column else "neutral"
            body.append(_cell(left + side * column, y, side, cell, cell / total, kind))
    correct = sum(matrix[i][i] for i in range(count))
    label = f"Confusion matrix of the {name}: {correct:,} of {sum(map(sum, matrix)):,} correct."
    return draw_svg(left + side * count + 8, top + side * count + 18, label, body)


def _cell(x: float, y: float, side: float, count: int, share: float, kind: str) -> str:
    """Return one cell of a confusion matrix with its count, if that fits."""
    opacity = f'rx="2" fill-opacity="{0.05 + 0.85 * share:.2f}"'
    cell = draw_box(x + 1, y + 1, side - 2, side - 2, f"cell {kind}", opacity)
    if not count or side < 22:
        return cell
    style = ("value small" if side < 40 else "value") + (" strong" if share > 0.6 else "")
    return cell + draw_text(x + side / 2, y + side / 2 + 4, f"{count:,}", style, "middle")


def calibration(data: Figure, width: float = HALF) -> str:
    """Return accuracy against confidence; on the diagonal the model is calibrated."""
    bins, box = data["bins"], (58.0, 14.0, width - 20, 290.0)
    lowest = min(min(group["confidence"], group["accuracy"]) for group in bins)
    low = max(0.0, math.floor(lowest * 10) / 10 - 0.05)
    body, x, y = _draw_axes(box, (low, 1.0), (low, 1.0), "confidence")
    body.append(draw_line(x(low), y(low), x(1), y(1), "reference"))
    body.append(draw_text(box[0] + 8, box[1] + 12, "accuracy", "label"))
    body.append(draw_path([[(x(group["confidence"]), y(group["accuracy"])) for group in bins]], "curve accent soft"))
    most = max(group["rows"] for group in bins) or 1
    described = []
    for group in bins:
        text = f"confidence {percent(group['confidence'])}, accuracy {percent(group['accuracy'])}"
        radius = 3 + 5 * math.sqrt(group["rows"] / most)
        dot = draw_circle(x(group["confidence"]), y(group["accuracy"]), radius, "dot accent")
        body.append(f"<g><title>{group['rows']:,} rows: {text}</title>{dot}</g>")
        described.append(text)
    return draw_svg(width, 340, f"Calibration: {'; '.join(described)}.", body)


def _staircase(steps: Sequence[tuple[float, float]], end: float) -> str:
    """Return a path that is level between steps and ends at `end`."""
    turns = "".join(f"H{coordinate(at)}V{coordinate(level)}" for at, level in steps[1:])
    return f"M{coordinates(steps[0])}{turns}H{coordinate(end)}"


def _bar(x: float, y: float, length: float, kind: str) -> str:
    return draw_box(x, y - 7, max(1, length), 14, f"bar {kind}")
