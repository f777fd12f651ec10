"""Compare, check and draw the cells that anytime.py has stored.

The delivered model is compared with the frozen encoder and a linear model on the same test rows: by McNemar's exact
test for accuracy, by a paired bootstrap for other metrics. The p-values are adjusted by Holm's method over all cells.
Chance in training is not part of these tests, because each cell is one search.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from anytime import SEARCH_TASKS, as_outputs, list_cells, read_arrays, read_rows

from headhunt.evaluation import METRICS, compare
from headhunt.report.svg import (
    coordinate,
    draw_grid_x,
    draw_grid_y,
    draw_line,
    draw_svg,
    draw_text,
    linear_scale,
    make_axis,
    number,
    padded_range,
    read_asset,
    signed,
)

Row = dict[str, Any]
LEVEL = 0.05
GRACE = 5.0  # seconds after the limit at which a search still counts as on time
SMALL_ROWS = 500
FIRST_MODEL = {"one text": 15.0, "pairs": 25.0, "any size": 45.0}  # seconds
REQUIRED = {
    "sst2-all-300s": 0.860,
    "sst2-all-300s-auto": 0.885,
    "goemotions-2000-180s": 0.50,
    "clinc150-3000-180s": 0.940,
    "clinc150-2400-180s": 0.940,
    "search_mrpc-500-300s": 0.765,
    "search_trec6-500-300s": 0.935,
    "search_sst2-500-300s": 0.810,
    "search_trec6-500-60s": 0.91,
}
"""The score that each of these cells must reach."""
REQUIRED_MEANS = {"-500-300s": 0.840, "-500-300s-auto": 0.860}
"""The mean that the three sets of benchmarks/search.py must reach, by the end of the cells' names."""
COLOURS = {"one encoder": "#0b7a75", "several encoders": "#7c3aed", "frozen + linear": "#b45309", "TF-IDF": "#6b7280"}


@dataclass(frozen=True)
class Paired:
    """The difference between the delivered model and the frozen encoder with a linear model on the same rows."""

    cell: str
    gain: float
    low: float
    high: float
    p_value: float
    adjusted: float = 1.0

    @property
    def worse(self) -> bool:
        """True if the delivered model is significantly below."""
        return self.gain < 0 and self.adjusted < LEVEL


def summarize(log: Path) -> dict[str, Any]:
    """Print tables of the cells, write them and a chart beside the log, and return the result as plain data."""
    known = {row["cell"]: row for row in read_rows(log)}
    order = [cell.name for cell in list_cells()]
    rows = sorted(known.values(), key=lambda row: order.index(row["cell"]) if row["cell"] in order else len(order))
    if not rows:
        raise SystemExit(f"{log} has no cells yet. Run the benchmark first.")
    pairs = compare_cells(rows, read_arrays(log))
    checks = check_cells(rows, pairs)
    text = "\n".join([*format_cells(rows, pairs), "", *format_checks(checks)])
    print(text)
    log.with_suffix(".md").write_text(text + "\n", encoding="utf-8")
    log.with_suffix(".svg").write_text(draw_chart(rows), encoding="utf-8")
    gains = [pair.gain for pair in pairs.values()]
    return {
        "cells": len(rows),
        "cells_missing": len(set(order) - known.keys()),
        "mean_difference": round(float(np.mean(gains)), 4) if gains else None,
        "significantly_below": [pair.cell for pair in pairs.values() if pair.worse],
        "significantly_above": [p.cell for p in pairs.values() if p.gain > 0 and p.adjusted < LEVEL],
        "checks": {name: {"passed": not failed, "failed": failed} for name, failed in checks.items()},
    }


def compare_cells(rows: Sequence[Row], arrays: Mapping[str, np.ndarray]) -> dict[str, Paired]:
    """Return the paired comparison of every cell that has a delivered model."""
    pairs = []
    for row in rows:
        names = [f"{row['cell']}/{name}" for name in ("delivered", "frozen", "targets")]
        if all(name in arrays for name in names):
            pairs.append(compare_rows(row, *(arrays[name] for name in names)))
    adjusted = adjust_holm([pair.p_value for pair in pairs])
    return {
        pair.cell: Paired(pair.cell, pair.gain, pair.low, pair.high, pair.p_value, value)
        for pair, value in zip(pairs, adjusted, strict=True)
    }


def compare_rows(row: Row, delivered: np.ndarray, frozen: np.ndarray, targets: np.ndarray) -> Paired:
    """Return the comparison of two models' predictions of the same rows."""
    from scipy.stats import binomtest

    count = int(max(array.max() for array in (delivered, frozen, targets))) + 1 if targets.ndim == 1 else 0
    outputs = [as_outputs(row["problem_type"], predictions, count) for predictions in (delivered, frozen)]
    targets = targets.astype(np.float64 if row["problem_type"] == "regression" else np.int64)
    result = compare(row["problem_type"], row["metric"], outputs[:1], outputs[1:], targets)
    p_value = result.p_value
    if row["metric"] == "accuracy":
        correct = [predictions == targets for predictions in (delivered, frozen)]
        only_delivered, only_frozen = int((correct[0] & ~correct[1]).sum()), int((correct[1] & ~correct[0]).sum())
        discordant = only_delivered + only_frozen
        p_value = binomtest(only_delivered, discordant).pvalue if discordant else 1.0
    return Paired(row["cell"], result.gain, result.low, result.high, float(p_value))


def adjust_holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for many comparisons by Holm's method."""
    order = np.argsort(p_values)
    factors = len(p_values) - np.arange(len(p_values))
    sorted_values = np.minimum(1.0, np.maximum.accumulate(np.asarray(p_values)[order] * factors))
    adjusted = np.empty(len(p_values))
    adjusted[order] = sorted_values
    return adjusted.tolist()


def first_model_limit(row: Row) -> float:
    """Return the seconds within which the first evaluated model must be on disk."""
    if row["rows"] is None or row["rows"] > SMALL_ROWS:
        return FIRST_MODEL["any size"]
    return FIRST_MODEL["pairs" if row["pair"] else "one text"]


def check_cells(rows: Sequence[Row], pairs: Mapping[str, Paired]) -> dict[str, list[str]]:
    """Return the cells that fail each requirement, with what was found.

    A requirement on a score is listed only if its cells were measured.
    """
    scores = {row["cell"]: row["delivered"]["score"] for row in rows if row["delivered"]}
    late = [row for row in rows if row["first_model_s"] is None or row["first_model_s"] > first_model_limit(row)]
    checks = {
        "first evaluated model in time": [
            f"{row['cell']}: {row['first_model_s']} s of {first_model_limit(row):g} s" for row in late
        ],
        "ends on time with exit code 0": [
            f"{row['cell']}: {row['wall_s']} s, exit code {row['exit']}"
            for row in rows
            if row["exit"] != 0 or row["wall_s"] > row["seconds"] + GRACE
        ],
        "delivers a model": [row["cell"] for row in rows if not row["delivered"]],
        "ends tested": [row["cell"] for row in rows if not row["tested"]],
        "not significantly below the frozen encoder": [
            f"{pair.cell}: {signed(pair.gain)}, p {pair.adjusted:.4f}" for pair in pairs.values() if pair.worse
        ],
    }
    if pairs:
        mean = float(np.mean([pair.gain for pair in pairs.values()]))
        checks["mean difference above 0"] = [] if mean > 0 else [signed(mean)]
    for cell, required in REQUIRED.items():
        if any(row["cell"] == cell for row in rows):
            value = scores.get(cell)
            passed = value is not None and value >= required
            checks[f"{cell} at least {required:g}"] = [] if passed else [number(value)]
    for end, required in REQUIRED_MEANS.items():
        values = [scores[f"{task}{end}"] for task in SEARCH_TASKS if f"{task}{end}" in scores]
        if len(values) == len(SEARCH_TASKS):
            mean = float(np.mean(values))
            checks[f"mean of search_*{end} at least {required:g}"] = [] if mean >= required else [number(mean)]
    return checks


def format_cells(rows: Sequence[Row], pairs: Mapping[str, Paired]) -> list[str]:
    """Return the lines of a Markdown table with one line per cell."""
    lines = [
        "| cell | metric | first model, s | wall, s | candidates | tested | delivered, 95 % interval "
        "| frozen + linear (rows) | TF-IDF (rows) | difference to frozen, 95 % interval | p, Holm |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        metric, pair = row["metric"], pairs.get(row["cell"])
        delivered = row["delivered"]
        shown = "–"
        if delivered:
            low, high = show(metric, delivered["low"]), show(metric, delivered["high"])
            shown = f"{show(metric, delivered['score'])} ({low} to {high})"
        references = [
            f"{show(metric, row[name]['score'])} ({row[name]['rows']:,})" if row.get(name) else "–"
            for name in ("frozen", "tfidf")
        ]
        gain = "–"
        if pair:
            gain = (
                f"{show(metric, pair.gain, True)} ({show(metric, pair.low, True)} to {show(metric, pair.high, True)})"
            )
        columns = [row["cell"], metric, number(row["first_model_s"], 1), number(row["wall_s"], 1), row["candidates"]]
        columns += ["yes" if row["tested"] else "no", shown, *references, gain]
        columns.append("–" if pair is None else f"{pair.adjusted:.3f}")
        lines.append(f"| {' | '.join(map(str, columns))} |")
    return lines


def format_checks(checks: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table with one line per requirement."""
    lines = ["| requirement | result | cells |", "|---|---|---|"]
    return lines + [
        f"| {name} | {'failed' if failed else 'passed'} | {'; '.join(failed)} |" for name, failed in checks.items()
    ]


def show(metric: str, value: float, difference: bool = False) -> str:
    """Return a score, or a difference of scores, in percent or as a number."""
    form = signed if difference else number
    return form(100 * value, 1) if METRICS[metric].proportion else form(value, 3)


def draw_chart(rows: Sequence[Row]) -> str:
    """Return an SVG with a panel per data set and number of rows: score against seconds."""
    panels: dict[tuple[str, int | None], list[Row]] = {}
    # Sets in the order of their first cells, each from few rows to all.
    order = list(dict.fromkeys(row["dataset"] for row in rows))
    for row in sorted(rows, key=lambda row: (order.index(row["dataset"]), row["rows"] or float("inf"))):
        panels.setdefault((row["dataset"], row["rows"]), []).append(row)
    across, wide, high = 3, 310, 220
    body = []
    for place, ((dataset, count), members) in enumerate(panels.items()):
        x, y = place % across * wide, place // across * high
        title = f"{dataset}, {f'{count:,}' if count else 'all'} rows: {METRICS[members[0]['metric']].title}"
        body.append(f'<g transform="translate({x} {y})">{_draw_panel(title, members, wide, high)}</g>')
    height = -(-len(panels) // across) * high
    for place, (name, colour) in enumerate(COLOURS.items()):
        x = 20 + place * 180
        body += [_mark(name, x, height + 20, colour), draw_text(x + 12, height + 24, name, "label")]
    body.append(draw_text(20 + len(COLOURS) * 180, height + 24, "test score by seconds", "label"))
    # A picture in a page cannot follow its theme, so the colours are those of the light one.
    colours = "--paper:#fff;--ink:#1d2327;--quiet:#5d666c;--grid:#e9ebe7;--faint:#b9c0c0;--sans:system-ui,sans-serif"
    style = f"<style>svg{{{colours}}}{read_asset('charts.css')}</style>"
    background = '<rect width="100%" height="100%" fill="#fff"/>'
    label = "Test score against seconds: searches with one and with several encoders, frozen encoder, TF-IDF."
    drawing = draw_svg(across * wide, height + 44, label, [style, background, *body])
    return drawing.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1) + "\n"


def _draw_panel(title: str, rows: Sequence[Row], wide: float, high: float) -> str:
    # The references beside a search with several encoders are those of the search with one.
    single = [row for row in rows if not row["auto"]] or rows
    points = {
        "one encoder": [(row["wall_s"], row["delivered"]) for row in rows if row["delivered"] and not row["auto"]],
        "several encoders": [(row["wall_s"], row["delivered"]) for row in rows if row["delivered"] and row["auto"]],
        "frozen + linear": [(row["frozen"]["seconds"], row["frozen"]) for row in single if row.get("frozen")],
        "TF-IDF": [(row["tfidf"]["seconds"], row["tfidf"]) for row in single if row.get("tfidf")],
    }
    values = [facts["score"] for group in points.values() for _, facts in group]
    if not values:
        return draw_text(12, 22, title, "title")
    left, right, top, bottom = 52.0, wide - 14, 36.0, high - 34
    factor = 100 if METRICS[rows[0]["metric"]].proportion else 1
    levels, y = make_axis(*padded_range([factor * value for value in values]), bottom, top, 4)
    end = max([row["seconds"] for row in rows] + [seconds for group in points.values() for seconds, _ in group])
    x = linear_scale(0, end * 1.04, left, right)
    step = 60 if end > 120 else 20
    ticks = [(float(second), str(second)) for second in range(0, int(end) + 1, step)]
    parts = [draw_text(left, 20, title, "title"), draw_grid_y(levels, y, left, right)]
    parts += [draw_grid_x(ticks, x, top, bottom, lines=False)]
    for name, group in points.items():
        ordered = sorted(((seconds, factor * facts["score"]) for seconds, facts in group), key=lambda point: point[0])
        for (start, value), (stop, later) in pairwise(ordered):
            line = draw_line(x(start), y(value), x(stop), y(later), "curve soft")
            parts.append(line.replace("<line ", f'<line style="stroke:{COLOURS[name]}" '))
        parts += [_mark(name, x(seconds), y(value), COLOURS[name]) for seconds, value in ordered]
    return "".join(parts)


def _mark(name: str, x: float, y: float, colour: str) -> str:
    if "encoder" in name:
        return f'<circle cx="{coordinate(x)}" cy="{coordinate(y)}" r="4.5" fill="{colour}"/>'
    return f'<rect x="{coordinate(x - 4)}" y="{coordinate(y - 4)}" width="8" height="8" fill="{colour}"/>'
