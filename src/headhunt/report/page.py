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
    found, page = make(folder)
    storage.write_text(directory.report_data, json.dumps(found, ensure_ascii=False, allow_nan=False) + "\n")
    storage.write_text(directory.report, page)
    return directory.report


def make(folder: str | Path, live: bool = False) -> tuple[Facts, str]:
    """Return the facts of a run and the page that shows them.

    Args:
        folder: The run directory of a running or finished search.
        live: Whether the page follows the search: it then reads its own address again and again.

    Raises:
        RunError: If there is no run in the folder.
    """
    try:
        found = collect_facts(folder)
        return found, render(found, live)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:  # typed, but not what a search writes
        raise RunError(
            f"The files of {folder} hold values that do not fit each other ({error!r:.200}). They were changed, or are "
            "of different runs; resume the search to write them again."
        ) from error


def render(found: Facts, live: bool = False) -> str:
    """Return the page as text."""
    sections = [
        (name, title, body) for name, title, make in SECTIONS if found.get(name) and (body := make(found, found[name]))
    ]
    links = "".join(f'<a href="#{name}">{escape(title)}</a> ' for name, title, _ in sections)
    body = "".join(f'<section id="{name}"><h2>{escape(title)}</h2>{text}</section>' for name, title, text in sections)
    opening = f'<div id="opening">{_opening(found)}</div>\n<nav id="contents" aria-label="Sections">{links}</nav>'
    about = "report.json, beside this page, holds the same facts. This page loads nothing from the network."
    about = "This page follows the search; headhunt watch serves it to this machine alone." if live else about
    return document(found["run"]["name"], opening, body, about, live, found.get("versions", {}).get("headhunt", ""))


def document(name: str, opening: str, body: str, about: str, live: bool = False, version: str = "") -> str:
    """Return a page that loads nothing but, if it is live, its own new version.

    Args:
        name: Name of the page.
        opening: HTML of its header.
        body: HTML of its sections.
        about: HTML of its footer.
        live: Whether it follows a search.
        version: Version of Headhunt that its facts are of.
    """
    palette, chart_style, page_style, script = map(read_asset, ("palette.css", "charts.css", "page.css", "page.js"))
    style = f":root {{\n{palette}}}\n{chart_style}{page_style}"
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'"
    policy += "; connect-src 'self'" if live else ""
    status = '<span id="live" aria-live="polite"></span>' if live else ""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="headhunt {escape(str(version))}">
<title>{escape(name)} · headhunt</title>
<link rel="icon" href="data:,">
<style>{style}</style>
</head>
<body>
<header>
<div class="top"><span><b>headhunt</b> · {escape(name)}</span>
{status}<button id="theme" type="button" hidden></button></div>
{opening}
</header>
<main>{body}</main>
<footer>{about}</footer>
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
    return "".join(parts) + description_list(numbers, "strip")
