"""The report as one HTML page that loads nothing: no network, no fonts, no foreign scripts.

The page shows the facts that `headhunt.report.facts` collects. A section without facts is left out. Every text that
originates in data is escaped, and the page's content security policy allows only its own script.
"""

from __future__ import annotations

import base64
import hashlib
import json
from html import escape
from pathlib import Path

from headhunt import storage
from headhunt.report.facts import collect_facts
from headhunt.report.markup import Facts, description_list, statement
from headhunt.report.sections import SECTIONS
from headhunt.report.svg import number, read_asset, signed
from headhunt.report.terminal import format_duration
from headhunt.run.directory import RunDirectory
from headhunt.run.schema import RunError


def write(folder: str | Path) -> Path:
    """Write the report of a run and its facts, each atomically, and return the path of the page.

    Args:
        folder: The run directory of a running or finished search.

    Raises:
        RunError: If there is no run in the folder.
    """
    directory = RunDirectory(Path(folder))
    try:
        found = collect_facts(folder)
        page = render(found)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:  # typed, but not what a search writes
        raise RunError(
            f"The files of {folder} hold values that do not fit each other ({error!r:.200}). They were changed, or are "
            "of different runs; resume the search to write them again."
        ) from error
    storage.write_text(directory.report_data, json.dumps(found, ensure_ascii=False, allow_nan=False) + "\n")
    storage.write_text(directory.report, page)
    return directory.report


def render(found: Facts) -> str:
    """Return the page as text."""
    palette, chart_style, page_style, script = map(read_asset, ("palette.css", "charts.css", "page.css", "page.js"))
    style = f":root {{\n{palette}}}\n{chart_style}{page_style}"
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'"
    sections = [(name, title, body) for name, title, make in SECTIONS if (body := make(found))]
    links = "".join(f'<a href="#{name}">{escape(title)}</a> ' for name, title, _ in sections)
    body = "".join(f'<section id="{name}"><h2>{escape(title)}</h2>{text}</section>' for name, title, text in sections)
    run = found["run"]
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="headhunt {escape(str(found.get("versions", {}).get("headhunt", "")))}">
<title>{escape(run["name"])} · headhunt</title>
<link rel="icon" href="data:,">
<style>{style}</style>
</head>
<body>
<header>
<div class="top"><span><b>headhunt</b> · {escape(run["name"])}</span>
<button id="theme" type="button" hidden></button></div>
{_opening(found)}
<nav aria-label="Sections">{links}</nav>
</header>
<main>{body}</main>
<footer>report.json, beside this page, holds the same facts. This page loads nothing from the network.</footer>
<script>{script}</script>
</body>
</html>
"""


def _opening(found: Facts) -> str:
    """Return the verdict and the key numbers of the run."""
    run, verdict, winner = found["run"], found.get("verdict", {}), found.get("winner", {})
    parts = [f"<h1>{statement(found['headline'])}</h1>"]
    if run["stale"]:
        parts.append(
            '<p class="notice">The search continued after this verdict. A new verdict follows when it ends.</p>'
        )
    elif not run["finished"]:
        parts.append('<p class="notice">The search is not finished. This page shows the results so far.</p>')
    if run["test_evaluations"] > 1:
        parts.append(
            f'<p class="notice">Test rows evaluated {run["test_evaluations"]} times. Each further evaluation makes '
            "the scores on test rows a little too optimistic.</p>"
        )
    numbers = {
        "candidates": f"{run['trials']:,}",
        "search time": format_duration(run["seconds"]),
        f"validation {run['metric']}": number(winner["score"]) if winner and winner["score"] is not None else None,
        "gain on test rows": signed(verdict["gain"]) if verdict.get("gain") is not None else None,
        "training rows": f"{found['data']['rows']['train']:,}",
        "delivered": verdict.get("delivered_name"),
    }
    return "".join(parts) + description_list(
        {name: text for name, text in numbers.items() if text is not None}, "strip"
    )
