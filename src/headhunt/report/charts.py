"""Figure data to drawings: SVG as text, without a plotting library.

Hides coordinates. Colours and type come from the page's CSS variables through classes, so that one drawing serves
light, dark and print; every drawing says in words what it shows. A chart is drawn for a width in CSS pixels, so that
its type keeps its size: a page that is read on a phone too has it drawn twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from importlib import resources
from typing import Any

from headhunt.report.terminal import clock_words

WIDE, HALF, NARROW, SMALL = 920, 440, 360, 214
Point = tuple[float, float]


def read_beside(name: str) -> str:
    """A style sheet or script that is kept beside this module; charts.css is what every drawing needs."""
    return resources.files("headhunt.report").joinpath(name).read_text("utf-8")


def number(value: float | None, digits: int = 4) -> str:
    """A number as the report writes it: fixed digits, a true minus; a dash where there is none."""
    return "–" if value is None else f"{value:.{digits}f}".replace("-", "−")


def signed(value: float, digits: int = 4) -> str:
    """A difference, always with its sign."""
    return f"{value:+.{digits}f}".replace("-", "−")


def percent(value: float, digits: int = 0) -> str:
    """A share."""
    return f"{number(value * 100, digits)}\N{NO-BREAK SPACE}%"


def compact(value: float | None) -> str:
    """A quantity of any size in at most four figures: 12.3, 1,240, 22.7 M."""
    if value is None:
        return "–"
    for size, name in ((1e9, " G"), (1e6, " M")):
        if abs(value) >= size:
            return f"{value / size:.1f}{name}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def svg(width: float, height: float, label: str, body: Iterable[str], kind: str = "") -> str:
    """A drawing of so many CSS pixels with words for those who cannot see it."""
    return (
        f'<svg class="chart {kind}" viewBox="0 0 {_n(width)} {_n(height)}" width="{_n(width)}" height="{_n(height)}" '
        f'role="img" aria-label="{escape(label)}"><desc>{escape(label)}</desc>{"".join(body)}</svg>'
    )


def whiskers(rows: Sequence[Mapping[str, Any]], metric: str, width: float = WIDE) -> str:
    """Values with intervals, one a line; the value of the plain head goes through all as a dashed line.

    Args:
        rows: With `who`, `name`, `value`, `low`, `high`.
        metric: What the values are.
        width: CSS pixels.
    """
    left, right, top, step = (150 if width > NARROW else 104), 74, 10, 46
    height = top + step * len(rows) + 40
    ends = [end for row in rows for end in (row["low"], row["high"])]
    marks, x = _axis(*_padded(ends, 0.03), left, width - right, 7 if width > NARROW else 4)
    bottom = top + step * len(rows)
    body = [_grid_x(marks, x, top, bottom), _text(left, bottom + 36, metric, "label")]
    for row in rows:
        if row["who"] == "plain":
            body.append(_line(x(row["value"]), top, x(row["value"]), bottom, "reference"))
    for place, row in enumerate(rows):
        y = top + step * (place + 0.5)
        kind = "accent" if row["who"] == "model" else "neutral"
        body += [
            _text(left - 16, y + 4, row["name"], "name", "end"),
            _line(x(row["low"]), y, x(row["high"]), y, f"whisker {kind}"),
            _line(x(row["low"]), y - 6, x(row["low"]), y + 6, f"whisker {kind}"),
            _line(x(row["high"]), y - 6, x(row["high"]), y + 6, f"whisker {kind}"),
            f'<circle class="dot {kind}" cx="{_n(x(row["value"]))}" cy="{_n(y)}" r="6"/>',
            _text(width - right + 14, y + 4, number(row["value"]), "value"),
        ]
    said = "; ".join(
        f"{row['name']} {number(row['value'])} [{number(row['low'])}, {number(row['high'])}]" for row in rows
    )
    return svg(width, height, f"{metric} with 95 % intervals: {said}.", body)


def differences(items: Sequence[Mapping[str, Any]], metric: str, width: float = WIDE) -> str:
    """What each change costs: bars from zero with intervals.

    Args:
        items: With `name`, `difference`, `low`, `high`.
        metric: What the differences are of.
        width: CSS pixels.
    """
    stacked = width <= NARROW  # no room for names beside the bars
    left, right, top, step = (8 if stacked else 300), 76, 12, (50 if stacked else 32)
    height = top + step * len(items) + 40
    ends = [0.0, *(end for item in items for end in (item["low"], item["high"], item["difference"]))]
    marks, x = _axis(*_padded(ends, 0.03), left, width - right, 4 if stacked else 6)
    bottom = top + step * len(items)
    body = [_grid_x(marks, x, top, bottom, signed), _text(left, bottom + 36, f"change of {metric}", "label")]
    body.append(_line(x(0), top, x(0), bottom, "zero"))
    for place, item in enumerate(items):
        y = top + step * (place + 0.5) + (9 if stacked else 0)
        start, end = sorted((x(0), x(item["difference"])))
        certain = "accent" if item["low"] > 0 or item["high"] < 0 else "neutral"
        shape = f'x="{_n(start)}" y="{_n(y - 7)}" width="{_n(max(1, end - start))}" height="14"'
        name = _fit(str(item["name"]), 52 if stacked else 42)
        body += [
            _text(left, y - 14, name, "name") if stacked else _text(left - 14, y + 4, name, "name", "end"),
            f'<rect class="bar {certain}" {shape}/>',
            _line(x(item["low"]), y, x(item["high"]), y, "whisker ink"),
            _text(width - right + 12, y + 4, signed(item["difference"]), "value"),
        ]
    said = "; ".join(f"{item['name']} {signed(item['difference'])}" for item in items)
    return svg(width, height, f"What each part is worth, as a change of {metric}: {said}.", body)


def bars(items: Sequence[tuple[str, float]], label: str, words: Callable[[float], str], width: float = HALF) -> str:
    """Plain bars, longest first or as they come.

    Args:
        items: Names and values of 0 or more.
        label: What is shown.
        words: How a value is written.
        width: CSS pixels.
    """
    left, right, step = 140, 66, 26
    largest = max((value for _, value in items), default=0) or 1
    body = []
    for place, (name, value) in enumerate(items):
        y = step * (place + 0.5)
        long = (width - left - right) * value / largest
        body += [
            _text(left - 12, y + 4, _fit(name, 20), "name", "end"),
            f'<rect class="bar accent" x="{left}" y="{_n(y - 7)}" width="{_n(max(1, long))}" height="14"/>',
            _text(left + long + 10, y + 4, words(value), "value"),
        ]
    said = "; ".join(f"{name} {words(value)}" for name, value in items)
    return svg(width, step * len(items) + 4, f"{label}: {said}.", body)


def progress(data: Mapping[str, Any], width: float = WIDE, height: float = 320) -> str:
    """Every result as a dot and the best so far as a line over the time of the search, beside the plain head."""
    left, right, top, bottom = 58, 20, 14, height - 40
    results, best, plain = data["results"], data["best"], data["plain"]
    low, high = _range([point["score"] for point in results] + ([plain["score"]] if plain else []))
    levels, y = _axis(low, high, bottom, top, 5)
    x = _scale(0, data["end"] or 1, left, width - right)
    body = [_grid_y(levels, y, left, width - right)]
    for second in _clock_ticks(data["end"], 8 if width > NARROW else 4):
        body.append(_text(x(second), bottom + 22, clock_words(second), "tick", "middle"))
    body.append(_text(left, height - 2, "time searched", "label"))
    for rung in range(data["top"] + 1):
        kind = "accent" if rung == data["top"] else "faint"
        dots = [(x(p["at"]), y(max(low, p["score"]))) for p in results if p["rung"] == rung]
        body.append(_dots(dots, f"dots {kind}", 3.2 if len(results) < 150 else 2.2))
    if plain:
        level = y(plain["score"])
        body.append(_line(left, level, width - right, level, "reference"))
        body.append(_text(width - right, level - 7, f"plain head {number(plain['score'])}", "note halo", "end"))
    steps = [(x(at), y(max(low, score))) for at, score in best]
    path = f"M{_p(steps[0])}" + "".join(f"H{_n(at)}V{_n(level)}" for at, level in steps[1:]) + f"H{_n(width - right)}"
    body.append(f'<path class="curve accent" d="{path}"/>')
    label = f"Best {data['metric']} so far over {clock_words(data['end'])}: it ends at {number(best[-1][1])}"
    return svg(width, height, label + (f", the plain head at {number(plain['score'])}." if plain else "."), body)


def learning(data: Mapping[str, Any], width: float = HALF) -> str:
    """Scores of each candidate against how much of its training it had seen."""
    height, left, right, top, bottom = 300, 54, 16, 14, 256
    scores = [score for line in data["lines"] for _, score in line["scores"]]
    low, high = _range(scores)
    levels, y = _axis(low, high, bottom, top, 5)
    seen = sorted({share for line in data["lines"] for share, _ in line["scores"]})
    x = _scale(0, len(seen) - 1, left + 14, width - right - 14)
    body = [_grid_y(levels, y, left, width - right)]
    for place, share in enumerate(seen):
        words = "probe" if share == 0 else "all" if share == 1 else f"1/{round(1 / share)}"
        body.append(_text(x(place), bottom + 22, words, "tick", "middle"))
    body.append(_text(left, height - 4, "share of the training seen", "label"))

    def path(line: Mapping[str, Any]) -> str:
        return "M" + "L".join(_p((x(seen.index(share)), y(max(low, score)))) for share, score in line["scores"])

    others = [line for line in data["lines"] if line["trial"] not in (data["winner"], data["plain"])]
    body.append(f'<path class="thread faint" d="{"".join(path(line) for line in others)}"/>')
    for who, kind in (("plain", "curve dashed"), ("winner", "curve accent")):
        body += [f'<path class="{kind}" d="{path(line)}"/>' for line in data["lines"] if line["trial"] == data[who]]
    label = f"{data['metric']} of {len(data['lines'])} candidates against the share of their training they had seen."
    return svg(width, height, label, body)


def losses(data: Mapping[str, Any], width: float = HALF) -> str:
    """The loss of the winner and of the plain head while they trained."""
    height, left, right, top, bottom = 300, 54, 16, 14, 256
    lines = data["losses"]
    low, high = _range([loss for line in lines.values() for loss in line], 0.0)
    levels, y = _axis(low, high, bottom, top, 5)
    body = [
        _grid_y(levels, y, left, width - right),
        _text(left, height - 4, "reports in their order; each part begins anew", "label"),
    ]
    for who, kind in (("plain", "curve dashed"), ("winner", "curve accent")):
        if who in lines:
            x = _scale(0, len(lines[who]) - 1, left + 6, width - right - 6)
            points = "L".join(_p((x(place), y(loss))) for place, loss in enumerate(lines[who]))
            body.append(f'<path class="{kind}" d="M{points}"/>')
    said = "; ".join(f"{who} ends at {number(line[-1], 3)}" for who, line in lines.items())
    return svg(width, height, f"Loss while training: {said}.", body)


def parallel(data: Mapping[str, Any], axes: Sequence[int], width: float = WIDE) -> str:
    """Each candidate as a line through its choices to its score; the best stand out.

    Args:
        data: The space as `figures` gives it.
        axes: Which leaves to draw, by their place.
        width: CSS pixels.
    """
    height, top, bottom, left, right = 380, 48, 352, 36, 52
    rows = sorted(data["trials"], key=lambda row: (row["rung"], row["score"]))
    low, high = _range([row["score"] for row in rows])
    levels, y = _axis(low, high, bottom, top, 5)
    x = _scale(0, len(axes), left, width - right)

    def path(row: Mapping[str, Any]) -> str:
        points, draw = [], "M"
        for place, axis in enumerate(axes):
            at = row["places"][axis]
            if at is None:  # its part is off: the line is broken
                draw = "M"
                continue
            points.append(f"{draw}{_n(x(place))} {_n(bottom - at * (bottom - top))}")
            draw = "L"
        return "".join(points) + f"{draw}{_n(x(len(axes)))} {_n(y(max(low, row['score'])))}"

    best = rows[-best_shown(len(rows)) :]
    pale = f'style="stroke-opacity:{min(0.45, max(0.15, 45 / len(rows))):.2f}"'  # many lines would become one surface
    body = [
        *(f'<path class="thread faint" {pale} d="{path(row)}"/>' for row in rows[: -len(best)]),
        f'<path class="thread accent" d="{"".join(path(row) for row in best)}"/>',
        *(f'<path class="curve accent" d="{path(row)}"/>' for row in best if row["trial"] == data["winner"]),
    ]
    room = (width - left - right) / len(axes)
    for place, axis in enumerate(axes):
        leaf = data["leaves"][axis]
        body.append(_line(x(place), top, x(place), bottom, "axis"))
        up = 20 if place % 2 else 34  # names take turns, so that long ones do not meet
        body.append(_text(x(place), top - up + 6, _fit(leaf["name"], int(room / 3.4)), "name small", "middle"))
        for at, words in leaf["ticks"]:
            spot = bottom - at * (bottom - top)
            body.append(_text(x(place) + 5, spot + 3.5, _fit(words, int(room / 6.4)), "tick halo"))
    body.append(_line(x(len(axes)), top, x(len(axes)), bottom, "axis"))
    body.append(_text(x(len(axes)), top - 14, data["metric"], "name small", "middle"))
    body += [_text(x(len(axes)) + 6, y(level) + 3.5, words, "tick") for level, words in levels]
    names = ", ".join(data["leaves"][axis]["name"] for axis in axes)
    return svg(width, height, f"{len(rows)} candidates as lines through {names} to {data['metric']}.", body)


def best_shown(count: int) -> int:
    """How many of so many candidates stand out: a tenth, and no more than can be told apart."""
    return max(1, min(12, count // 10))


def slice_of(data: Mapping[str, Any], axis: int, width: float = SMALL) -> str:
    """The scores of all candidates against what they chose of one leaf."""
    leaf = data["leaves"][axis]
    rows = [(row, row["places"][axis]) for row in data["trials"] if row["places"][axis] is not None]
    low, high = _range([row["score"] for row in data["trials"]])
    left, right, top, bottom = 72, 8, 26, 142
    marks, x = _axis(low, high, left, width - right, 4)
    lanes = max(1, len(leaf["ticks"]))
    y = _scale(0, 1, bottom - 4, top + 4)
    body = [_text(0, 12, leaf["name"], "name small"), _grid_x(marks, x, top, bottom)]
    body += [_text(left - 8, y(at) + 3.5, _fit(words, 10), "tick", "end") for at, words in leaf["ticks"]]
    spread = 0.36 / lanes if len({at for _, at in rows}) <= 12 else 0.0  # choices lie on lanes; a lane is a little wide
    for top_rung, kind in ((False, "faint"), (True, "accent")):
        dots = [
            (x(max(low, row["score"])), y(at + spread * (row["trial"] * 0.618 % 1 - 0.5)))
            for row, at in rows
            if (row["rung"] == data["top"]) is top_rung
        ]
        body.append(_dots(dots, f"dots {kind}", 3.4 if len(rows) < 150 else 2.0))
    return svg(width, bottom + 22, f"{data['metric']} of {len(rows)} candidates against {leaf['name']}.", body)


def front(data: Mapping[str, Any], cost: str, label: str, width: float = HALF) -> str:
    """Finalists by what they cost and how well they do; those that nothing beats on both are joined.

    Args:
        data: The finalists as `figures` gives them.
        cost: The name of what they cost.
        label: What that is called.
        width: CSS pixels.
    """
    height, left, right, top, bottom = 300, 58, 24, 18, 248
    items = [item for item in data["items"] if item[cost] is not None]
    levels, y = _axis(*_padded([item["score"] for item in items]), bottom, top, 5)
    marks, x = _axis(*_padded([item[cost] for item in items]), left, width - right, 5)
    body = [_grid_y(levels, y, left, width - right), _grid_x(marks, x, top, bottom, compact, lines=False)]
    body.append(_text(left, height - 8, label, "label"))
    best = [item for number in data["fronts"][cost] for item in items if item["trial"] == number]
    steps = [(x(item[cost]), y(item["score"])) for item in best]
    path = f"M{_p(steps[0])}" + "".join(f"H{_n(at)}V{_n(level)}" for at, level in steps[1:])
    body.append(f'<path class="curve accent soft" d="{path}H{_n(width - right)}"/>')
    for item in items:
        kind = "accent" if item in best else "neutral"
        at, level = x(item[cost]), y(item["score"])
        # Below and beside a dot there is no line: the front comes from below it and leaves it level.
        anchor, shift = ("end", -8) if at > width * 0.72 else ("start", 8)
        body.append(
            f"<g><title>{escape(item['name'])}: {number(item['score'])}, {compact(item[cost])}. {escape(item['words'])}"
            f'</title><circle class="dot {kind}" cx="{_n(at)}" cy="{_n(level)}" r="5.5"/></g>'
        )
        body.append(_text(at + shift, level + 17, item["name"], "note", anchor))
    said = "; ".join(f"{item['name']} {number(item['score'])} at {compact(item[cost])}" for item in items)
    return svg(width, height, f"{data['metric']} against {label}: {said}.", body)


def confusion(labels: Sequence[str], matrix: Sequence[Sequence[int]], name: str, width: float = HALF) -> str:
    """How often each class was taken for each; shades are shares of the true class."""
    count = len(labels)
    left, top = 116, 30
    side = min(76.0, (width - left - 8) / count)
    body = [_text(left, 12, "predicted", "label"), _text(left - 12, 12, "true", "label", "end")]
    across = side * 0.9 / 6.6  # characters that fit above a column
    for row, counts in enumerate(matrix):
        total = sum(counts) or 1
        y = top + side * row + 14
        body.append(_text(left - 12, y + side / 2 + 4, _fit(labels[row], 14), "name small", "end"))
        if across >= 2:
            words = _fit(labels[row], int(across))
            body.append(_text(left + side * (row + 0.5), top + 6, words, "tick", "middle"))
        for column, cell in enumerate(counts):
            share = cell / total
            kind = "accent" if row == column else "neutral"
            place = f'x="{_n(left + side * column + 1)}" y="{_n(y + 1)}" width="{_n(side - 2)}" height="{_n(side - 2)}"'
            body.append(f'<rect class="cell {kind}" {place} rx="2" fill-opacity="{0.05 + 0.85 * share:.2f}"/>')
            if cell and side >= 22:
                strong = " strong" if share > 0.5 else ""
                size = "value small" if side < 40 else "value"
                body.append(_text(left + side * (column + 0.5), y + side / 2 + 4, f"{cell:,}", size + strong, "middle"))
    right = sum(matrix[i][i] for i in range(count))
    label = f"Confusion matrix of the {name}: {right:,} of {sum(map(sum, matrix)):,} right."
    return svg(left + side * count + 8, top + side * count + 18, label, body)


def calibration(data: Mapping[str, Any], width: float = HALF) -> str:
    """How often the model is right where it is so sure; on the diagonal it is as good as it says."""
    height, left, right, top, bottom = 340, 58, 20, 14, 290
    bins = data["bins"]
    low = min(min(one["confidence"], one["accuracy"]) for one in bins)
    low = max(0.0, math.floor(low * 10) / 10 - 0.05)
    levels, y = _axis(low, 1.0, bottom, top, 5)
    marks, x = _axis(low, 1.0, left, width - right, 5)
    body = [_grid_y(levels, y, left, width - right), _grid_x(marks, x, top, bottom, lines=False)]
    body.append(_line(x(low), y(low), x(1), y(1), "reference"))
    body.append(_text(left, height - 8, "confidence", "label"))
    body.append(_text(left + 8, top + 12, "how often right", "label"))
    points = "L".join(_p((x(one["confidence"]), y(one["accuracy"]))) for one in bins)
    body.append(f'<path class="curve accent soft" d="M{points}"/>')
    most = max(one["rows"] for one in bins) or 1
    for one in bins:
        radius = 3 + 5 * math.sqrt(one["rows"] / most)
        words = f"{one['rows']:,} rows: {percent(one['confidence'])} sure, {percent(one['accuracy'])} right"
        body.append(
            f'<g><title>{words}</title><circle class="dot accent" cx="{_n(x(one["confidence"]))}" '
            f'cy="{_n(y(one["accuracy"]))}" r="{_n(radius)}"/></g>'
        )
    said = "; ".join(f"{percent(one['confidence'])} sure, {percent(one['accuracy'])} right" for one in bins)
    return svg(width, height, f"Calibration: {said}.", body)


def diagram(stages: Sequence[Mapping[str, Any]], width: float = NARROW) -> str:
    """A candidate from tokens to answer, top to bottom; frozen layers are hatched."""
    gap, middle = 26, width / 2
    hatch = (
        '<defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        '<path class="hatch" d="M0 0V6"/></pattern></defs>'
    )
    body, y = [hatch], 1.0
    ends: list[float] = []  # where the arrows into the next stage start
    for stage in stages:
        twice = stage.get("twice", False)
        wide = (width - 24) / 2 if twice else min(width - 40, 300)
        centres = [wide / 2 + 1, width - wide / 2 - 1] if twice else [middle]
        for centre in centres if twice or len(ends) < 2 else ends:
            if ends:
                body.append(_arrow(centre, y - gap, middle if not twice and len(ends) > 1 else centre, y))
        titles = stage.get("titles") or [stage["title"]]
        height = 0.0
        for place, centre in enumerate(centres):
            drawn, height = _stage(stage, titles[min(place, len(titles) - 1)], centre, y, wide)
            body.append(drawn)
        if twice and stage["stage"] == "encoder":
            body.append(_text(middle, y + height + 17, "the same weights", "tick", "middle"))
        ends = centres
        y += height + gap
    said = " → ".join(
        f"{' and '.join(stage.get('titles') or [stage['title']])} ({stage['detail']})" for stage in stages
    )
    return svg(width, y - gap + 2, f"The architecture: {said}.", body, "diagram")


def _stage(stage: Mapping[str, Any], title: str, centre: float, y: float, wide: float) -> tuple[str, float]:
    """One box, and its height."""
    x, fits = centre - wide / 2, int((wide - 20) / 6.3)
    detail = _wrap(str(stage["detail"]), int((wide - 20) / 5.9))
    layers = stage["stage"] == "encoder"
    count = min(stage["layers"] or 6, 24) if layers else 0
    bar = 8 if count > 12 else 11
    inner = (count + 1) * bar + 8 if layers else 0
    height = 34 + 15 * len(detail) + inner
    kind = {"tokens": "box plain", "output": "box accent"}.get(stage["stage"], "box")
    parts = [
        f'<rect class="{kind}" x="{_n(x)}" y="{_n(y)}" width="{_n(wide)}" height="{_n(height)}" rx="8"/>',
        _text(centre, y + 22, _fit(title, fits), "title", "middle"),
        *(_text(centre, y + 40 + 15 * line, words, "detail", "middle") for line, words in enumerate(detail)),
    ]
    if layers:
        parts.append(_encoder_bars(stage, count, bar, x + 16, y + 36 + 15 * len(detail) - 4, wide - 32))
    return "".join(parts), height


def _encoder_bars(stage: Mapping[str, Any], count: int, bar: int, x: float, y: float, wide: float) -> str:
    """The embeddings and layers of the encoder; a mark beside those whose vectors the head takes."""
    frozen = count if stage["all_frozen"] else min(count, int(stage["frozen"] or 0))
    taken = count if stage["taken"] == "mix" else min(count, int(stage["taken"]))
    parts = []
    for place in range(count + 1):
        still = stage["embeddings_frozen"] if place == 0 else place <= frozen
        inset = 12 if place == 0 else 0
        name = "embeddings" if place == 0 else f"layer {place}"
        words = f"{name}, {'frozen' if still else 'trained'}"
        shape = (
            f'x="{_n(x + inset)}" y="{_n(y + bar * place)}" width="{_n(wide - 2 * inset)}" height="{bar - 3}" rx="2"'
        )
        parts.append(f'<rect class="layer {"frozen" if still else "trained"}" {shape}><title>{words}</title></rect>')
        if place > count - taken:
            spot = f'cx="{_n(x + wide + 7)}" cy="{_n(y + bar * place + (bar - 3) / 2)}"'
            parts.append(f'<circle class="dot accent bare" {spot} r="3"/>')
    return "".join(parts)


def _arrow(x: float, y: float, end: float, to: float) -> str:
    tip = f"M{_n(end - 4)} {_n(to - 7)}L{_n(end)} {_n(to - 2)}L{_n(end + 4)} {_n(to - 7)}"
    bend = f"C{_n(x)} {_n(to - 8)} {_n(end)} {_n(y + 6)} {_n(end)} {_n(to - 3)}" if x != end else f"V{_n(to - 3)}"
    return f'<path class="arrow" d="M{_n(x)} {_n(y + 3)}{bend}{tip}"/>'


def _wrap(text: str, fits: int) -> list[str]:
    lines = [""]
    for word in text.split():
        if lines[-1] and len(lines[-1]) + len(word) + 1 > fits:
            lines.append(word)
        else:
            lines[-1] = f"{lines[-1]} {word}".strip()
    return lines[:3]


def _fit(text: str, fits: int) -> str:
    return text if len(text) <= max(2, fits) else f"{text[: max(1, fits - 1)].rstrip()}…"


def _n(value: float) -> str:
    """A coordinate, as short as it can be."""
    return f"{value:.1f}".rstrip("0").rstrip(".")


def _p(point: Point) -> str:
    return f"{_n(point[0])} {_n(point[1])}"


def _text(x: float, y: float, words: str, kind: str, anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{_n(x)}" y="{_n(y)}" text-anchor="{anchor}">{escape(words)}</text>'


def _line(x: float, y: float, to_x: float, to_y: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{_n(x)}" y1="{_n(y)}" x2="{_n(to_x)}" y2="{_n(to_y)}"/>'


def _dots(points: Iterable[Point], kind: str, size: float) -> str:
    """Many dots as one path of round ends: a tenth of the bytes of circles."""
    path = "".join(f"M{_p(point)}h0" for point in points)
    return f'<path class="{kind}" stroke-width="{2 * size:g}" d="{path}"/>' if path else ""


def _scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    span = high - low
    return lambda value: start + (end - start) * ((value - low) / span if span else 0.5)


def _axis(
    low: float, high: float, start: float, end: float, count: int
) -> tuple[list[tuple[float, str]], Callable[[float], float]]:
    """Round numbers to mark with their words, and the scale they lie on."""
    if high <= low:
        low, high = low - 0.01, high + 0.01
    step = _step((high - low) / count)
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    values = [place * step for place in range(first, last + 1)]
    return [(value, number(value + 0.0, digits)) for value in values], _scale(low, high, start, end)


def _step(rough: float) -> float:
    base = 10.0 ** math.floor(math.log10(rough))
    return next(base * nice for nice in (1, 2, 5, 10) if base * nice >= rough * 0.999)


def _range(values: Sequence[float], cut: float = 0.05) -> Point:
    """From the lowest value that is no outlier to the highest, with a little room."""
    ordered = sorted(values)
    low, high = ordered[int(cut * (len(ordered) - 1))], ordered[-1]
    room = 0.04 * (high - low) or 0.01
    return low - room, high + room


def _padded(values: Sequence[float], share: float = 0.14) -> Point:
    low, high = min(values), max(values)
    room = share * (high - low) or abs(high) * 0.1 or 0.01
    return low - room, high + room


def _grid_x(
    marks: Sequence[tuple[float, str]],
    x: Callable[[float], float],
    top: float,
    bottom: float,
    words: Callable[[float], str] | None = None,
    *,
    lines: bool = True,
) -> str:
    parts = []
    for value, written in marks:
        if lines:
            parts.append(_line(x(value), top, x(value), bottom, "grid"))
        shown = written if words is None else _trimmed(words(value), written)
        parts.append(_text(x(value), bottom + 17, shown, "tick", "middle"))
    return "".join(parts)


def _grid_y(marks: Sequence[tuple[float, str]], y: Callable[[float], float], left: float, right: float) -> str:
    return "".join(
        _line(left, y(value), right, y(value), "grid") + _text(left - 10, y(value) + 4, words, "tick", "end")
        for value, words in marks
    )


def _trimmed(words: str, written: str) -> str:
    """A signed number with no more digits than the axis needs."""
    if words[:1] in "+−" and words[1:2].isdigit():
        return "0" if float(written.replace("−", "-")) == 0 else f"{words[0]}{written.lstrip('−')}"
    return words


def _clock_ticks(end: float, count: int) -> list[float]:
    """Seconds to mark: whole steps of the units people use."""
    steps = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400)
    step = next((step for step in steps if end / step <= count), 86400 * math.ceil(end / 86400 / count))
    return [step * place for place in range(int(end / step) + 1)]
