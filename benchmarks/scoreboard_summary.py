"""Compare and draw the cells that scoreboard.py has stored.

Headhunt and a tool are compared on the settings and draws that both have, by accuracy where the tool stored no
predictions. The interval is a paired bootstrap over these cells: it shows whether a difference would hold on other
draws and data sets, as far as so few can tell.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scoreboard import HEADHUNT, PEERS, SETTINGS, read_rows

from headhunt.evaluation.metrics import METRICS
from headhunt.report.svg import (
    Scale,
    coordinate,
    draw_grid_x,
    draw_grid_y,
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
SAMPLES = 10_000
REACHED = "hf_optuna"
LEAST_PAIRS = 5  # for an interval: a bootstrap of fewer is far too narrow
TABLES = {"same": "Same encoder", "own": "Own choice of encoder"}
TITLES = {HEADHUNT: "Headhunt"} | {name: peer.title for name, peer in PEERS.items()}
COLOURS = dict(zip(TITLES, ("#0b7a75", "#6b7280", "#b45309", "#7c3aed", "#2563eb", "#be123c", "#65a30d"), strict=True))


def summarize(log: Path) -> dict[str, Any]:
    """Print tables of the cells, write them and a chart beside the log, and return the result as plain data."""
    rows = [row for row in read_rows(log) if row["exit"] == 0 and (row["score"] or row["accuracy"]) is not None]
    if not rows:
        raise SystemExit(f"{log} has no cells yet. Run the benchmark first.")
    lines, result, over_best = [], {}, {}
    for table, title in TABLES.items():
        members = [row for row in rows if row["table"] == table]
        if members:
            result[table] = compare(members)
            over_best[table] = best = compare_with_best(members)
            lines += [f"## {title}", "", *format_table(members, result[table]), ""]
            each = ", ".join(f"{setting} {gain:+.1f}" for setting, gain in best["settings"].items())
            lines += [f"Headhunt minus the best tool of each setting: {best['mean']:+.1f} on average ({each}).", ""]
    reached = seconds_to_reach(rows)
    if reached:
        each = ", ".join(f"{name} {text_of(seconds)}" for name, seconds in reached["settings"].items())
        lines += [
            f"Headhunt has a model with the final score of {TITLES[REACHED]} after {text_of(reached['median'])} "
            f"(median of the settings; mean over draws: {each}).",
            "",
        ]
    text = "\n".join(lines)
    print(text)
    log.with_suffix(".md").write_text(text, encoding="utf-8")
    log.with_suffix(".svg").write_text(draw_chart(rows), encoding="utf-8")
    return {"cells": len(rows), "tables": result, "over_best": over_best, "reached": reached}


def seconds_to_reach(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the seconds after which Headhunt has a model with the final score of the other tool, same encoder.

    It is the first model from which on every model has at least that score; without one, there is no number. A search
    whose models were not kept counts with its end.
    """
    cells = {(row["tool"], row["setting"], row["draw"]): row for row in rows if row["table"] == "same"}
    settings: dict[str, list[float]] = {}
    for (tool, setting, draw), row in cells.items():
        ours = cells.get((HEADHUNT, setting, draw), {})
        if tool == REACHED and row["score"] is not None and ours.get("score") is not None:
            curve = ours.get("curve") or [(ours["seconds"], ours["score"])]
            late = [at for at, score in curve if score < row["score"]]
            after = [at for at, _ in curve if not late or at > late[-1]]
            settings.setdefault(setting, []).append(after[0] if after else float("inf"))
    means = {name: float(np.mean(each)) for name, each in settings.items()}
    if not means:
        return {}
    numbers = {name: round(mean, 1) if np.isfinite(mean) else None for name, mean in means.items()}
    median = float(np.median(list(means.values())))
    return {"median": round(median, 1) if np.isfinite(median) else None, "settings": numbers}


def text_of(seconds: float | None) -> str:
    """Return seconds as text."""
    return "never" if seconds is None else f"{seconds:.0f} s"


def compare(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the mean difference between Headhunt and each tool with its interval, in percentage points."""
    cells = {(row["tool"], row["setting"], row["draw"]): row for row in rows}
    result = {}
    for tool in dict.fromkeys(row["tool"] for row in rows if row["tool"] != HEADHUNT):
        pairs = [
            (cells[HEADHUNT, *key[1:]], row)
            for key, row in cells.items()
            if key[0] == tool and (HEADHUNT, *key[1:]) in cells
        ]
        differences = np.array([100 * difference(*pair) for pair in pairs])
        if len(differences):
            figures = {"difference": float(differences.mean())}
            if len(differences) >= LEAST_PAIRS:
                draws = np.random.default_rng(0).choice(differences, (SAMPLES, len(differences))).mean(1)
                low, high = np.quantile(draws, [0.025, 0.975])
                figures |= {"low": float(low), "high": float(high)}
            result[tool] = {name: round(value, 2) for name, value in figures.items()} | {"pairs": len(pairs)}
    return result


def compare_with_best(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the difference between Headhunt and the best other tool of each setting, and their mean, in points.

    The best tool is the one with the smallest difference over the draws that it shares with Headhunt.
    """
    best = {}
    for setting in SETTINGS:
        compared = compare([row for row in rows if row["setting"] == setting])
        if compared:
            best[setting] = min(figures["difference"] for figures in compared.values())
    return {"mean": round(float(np.mean(list(best.values()))), 2) if best else 0.0, "settings": best}


def difference(headhunt: Row, other: Row) -> float:
    """Return the difference of scores, or of accuracies if one of them has no other score."""
    name = "score" if headhunt["score"] is not None and other["score"] is not None else "accuracy"
    return float(headhunt[name] - other[name])


def format_table(rows: Sequence[Row], compared: dict[str, Any]) -> list[str]:
    """Return the lines of a Markdown table: tools by settings, the mean over draws."""
    settings = [name for name in SETTINGS if any(row["setting"] == name for row in rows)]
    heads = [f"{name} ({SETTINGS[name].metric}, {SETTINGS[name].seconds} s)" for name in settings]
    lines = [f"| tool | {' | '.join(heads)} | Headhunt minus tool, 95 % interval |", "|---" * (len(settings) + 2) + "|"]
    for tool, title in TITLES.items():
        members = [row for row in rows if row["tool"] == tool]
        if not members:
            continue
        cells = [format_cell([row for row in members if row["setting"] == name]) for name in settings]
        gain = compared.get(tool)
        shown = "–" if gain is None else f"{gain['difference']:+.1f}"
        if gain is not None and "low" in gain:
            shown += f" ({gain['low']:+.1f} to {gain['high']:+.1f})"
        lines.append(f"| {title} | {' | '.join(cells)} | {shown} |")
    return lines


def format_cell(rows: Sequence[Row]) -> str:
    """Return the mean score of a tool on a setting, its range over draws and the mean seconds."""
    if not rows:
        return "–"
    name = "score" if all(row["score"] is not None for row in rows) else "accuracy"
    metric = rows[0]["metric"] if name == "score" else "accuracy"
    values = [row[name] for row in rows]
    spread = f" ({show(metric, min(values))} to {show(metric, max(values))})" if len(values) > 1 else ""
    note = "" if name == "score" else "accuracy "
    return f"{note}{show(metric, float(np.mean(values)))}{spread}, {np.mean([row['seconds'] for row in rows]):.0f} s"


def show(metric: str, value: float, difference: bool = False) -> str:
    """Return a score, or a difference of scores, in percent or as a number."""
    form = signed if difference else number
    return form(100 * value, 1) if METRICS[metric].proportion else form(value, 3)


def draw_chart(rows: Sequence[Row]) -> str:
    """Return an SVG with a panel per setting: score against seconds of every tool, the mean and each draw."""
    across, wide, high = 4, 250, 220
    rows = [row for row in rows if row["score"] is not None]
    settings = [name for name in SETTINGS if any(row["setting"] == name for row in rows)]
    body = []
    for place, name in enumerate(settings):
        panel = _draw_panel(name, [row for row in rows if row["setting"] == name], wide, high)
        body.append(f'<g transform="translate({place % across * wide} {place // across * high})">{panel}</g>')
    height = -(-len(settings) // across) * high
    tools = [tool for tool in TITLES if any(row["tool"] == tool for row in rows)]
    for place, tool in enumerate(tools):
        x, y = 24 + place % 3 * 230, height + 20 + place // 3 * 20
        body += [_mark("same", x, y, COLOURS[tool]), draw_text(x + 12, y + 4, TITLES[tool], "label")]
    height += 20 * -(-len(tools) // 3) + 20
    note = "large: mean of the draws; small: each draw; line: the best model of a search so far"
    if any(row["table"] == "own" for row in rows):
        note += "; filled: same encoder; open: own choice"
    body.append(draw_text(20, height + 4, note, "label"))
    # A picture in a page cannot follow its theme, so the colours are those of the light one.
    colours = "--paper:#fff;--ink:#1d2327;--quiet:#5d666c;--grid:#e9ebe7;--faint:#b9c0c0;--sans:system-ui,sans-serif"
    style = f"<style>svg{{{colours}}}{read_asset('charts.css')}</style>"
    background = '<rect width="100%" height="100%" fill="#fff"/>'
    width = max(3, min(across, len(settings))) * wide
    drawing = draw_svg(width, height + 20, "Test score against seconds, by tool.", [style, background, *body])
    return drawing.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1) + "\n"


def _draw_panel(name: str, rows: Sequence[Row], wide: float, high: float) -> str:
    title = draw_text(52, 20, f"{name}: {SETTINGS[name].metric}", "title")
    left, right, top, bottom = 52.0, wide - 14, 36.0, high - 50
    levels, y = make_axis(*padded_range([100 * score for row in rows for score in _scores(row)]), bottom, top, 4)
    end = max(SETTINGS[name].seconds, *(row["seconds"] for row in rows))
    x = linear_scale(0, end * 1.04, left, right)
    step = 100 if end > 120 else 20
    ticks = [(float(second), str(second)) for second in range(0, int(end) + 1, step)]
    parts = [title, draw_grid_y(levels, y, left, right), draw_grid_x(ticks, x, top, bottom, lines=False)]
    parts.append(draw_text((left + right) / 2, bottom + 34, "seconds", "label"))
    for table in TABLES:
        for tool in TITLES:
            members = [row for row in rows if (row["table"], row["tool"]) == (table, tool)]
            places = [(row["seconds"], 100 * row["score"]) for row in members]
            parts += [_mark(table, x(at), y(score), COLOURS[tool], 2.5) for at, score in places if len(places) > 1]
            parts += [
                _steps(row["curve"], x, y, COLOURS[tool]) for row in members if "curve" in row and table == "same"
            ]
            if places:
                at, score = np.mean(places, axis=0)
                parts.append(_mark(table, x(float(at)), y(float(score)), COLOURS[tool]))
    return "".join(parts)


def _scores(row: Row) -> list[float]:
    curve = row.get("curve", ()) if row["table"] == "same" else ()
    return [row["score"], *(score for _, score in curve)]


def _steps(curve: Sequence[tuple[float, float]], x: Scale, y: Scale, colour: str) -> str:
    """Return a line of the score of the best model at every time."""
    parts = [
        f"{'H' if place else 'M'}{coordinate(x(at))}{'V' if place else ' '}{coordinate(y(100 * score))}"
        for place, (at, score) in enumerate(curve)
    ]
    return f'<path d="{"".join(parts)}" fill="none" stroke="{colour}" stroke-opacity="0.6"/>'


def _mark(table: str, x: float, y: float, colour: str, radius: float = 5.0) -> str:
    fill = colour if table == "same" else "#fff"
    return f'<circle cx="{coordinate(x)}" cy="{coordinate(y)}" r="{radius:g}" fill="{fill}" stroke="{colour}"/>'
