"""The report as one page that needs nothing but itself: no network, no fonts, no scripts of others.

Hides HTML. Facts come from `figures` and are written beside the page as they are; a section whose facts are missing is
not there. Every word that comes from data is escaped, and the page's own policy lets no other script run.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from headhunt.report import charts
from headhunt.report.charts import NARROW, WIDE, compact, number, percent, read_beside, signed
from headhunt.report.figures import facts
from headhunt.report.terminal import clock_words

PAGE, FACTS = "report.html", "report.json"
AXES, AXES_NARROW = 9, 4  # leaves in the parallel coordinates
SLICES = 12  # slices that are open from the start
CLASSES = 24  # classes up to which a confusion matrix can be read
LABELS = 12  # class counts that are drawn
PROBLEM_TYPES = {
    "single_label_classification": "one of several classes",
    "multi_label_classification": "several labels",
    "regression": "a number",
}
Facts = Mapping[str, Any]


def write(folder: str | Path) -> Path:
    """Writes the report of a run and its facts, each whole or not at all.

    Args:
        folder: The run directory, of a search under way or over.

    Returns:
        The page.

    Raises:
        RunError: If there is no run in the folder.
    """
    found = facts(folder)
    page = Path(folder) / PAGE
    _place(Path(folder) / FACTS, json.dumps(found, ensure_ascii=False, allow_nan=False) + "\n")
    _place(page, render(found))
    return page


def render(found: Facts) -> str:
    """The page as text."""
    palette, drawings, own, script = map(read_beside, ("palette.css", "charts.css", "page.css", "page.js"))
    style = f":root {{\n{palette}}}\n{drawings}{own}"
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
<footer>The same facts are in {FACTS}, beside this page. This page loads nothing from the network.</footer>
<script>{script}</script>
</body>
</html>
"""


def _opening(found: Facts) -> str:
    """The verdict, and the run in a few numbers."""
    run, verdict, winner = found["run"], found.get("verdict", {}), found.get("winner", {})
    parts = [f"<h1>{escape(found['headline']).replace(' %', '&nbsp;%')}</h1>"]
    if run["stale"]:
        parts.append(
            '<p class="notice">The search has gone on since this was found; it will be judged again at its end.</p>'
        )
    elif not run["over"]:
        parts.append('<p class="notice">The search is not over. This page shows what is known so far.</p>')
    numbers = {
        "candidates": f"{run['trials']:,}",
        "time searched": clock_words(run["seconds"]),
        f"held-out {run['metric']}": number(winner.get("score")) if winner else None,
        "gain on test rows": signed(verdict["gain"]) if verdict.get("gain") is not None else None,
        "training rows": f"{found['data']['rows']['train']:,}",
        "delivered": {"winner": "the winner", "plain": "the plain head"}.get(verdict.get("delivered", "")),
    }
    shown = {name: value for name, value in numbers.items() if value is not None}
    return "".join(parts) + _terms(shown, "strip")


def _scores(found: Facts) -> str:
    scores = found.get("scores")
    if not scores:
        return ""
    rows = f"{scores['rows']:,} {scores['on']}" if scores["rows"] else scores["on"]
    told = (
        f"On {rows} that no candidate was chosen by."
        if scores["on"] == "test rows"
        else f"On {rows}. Candidates were chosen by these rows, so that the winner looks a little better than it is."
    )
    main, *others = scores["metrics"]
    intro = f"<p>{told} A dot is a score, the line its 95&nbsp;% interval.</p>"
    chart = _both(lambda width: charts.whiskers(scores["metrics"][main], main, width))
    if not others:
        return intro + chart
    heads = ["", *(item["name"] for item in scores["metrics"][main])]
    body = [
        [metric, *(f"{number(item['value'])} [{number(item['low'])}, {number(item['high'])}]" for item in items)]
        for metric, items in scores["metrics"].items()
    ]
    return f"{intro}{chart}<details><summary>All metrics</summary>{_table(heads, body)}</details>"


def _architecture(found: Facts) -> str:
    winner = found.get("winner")
    if not winner:
        return ""
    encoder = next(stage for stage in winner["stages"] if stage["stage"] == "encoder")
    keys = [("accent", "trained")]
    if encoder["embeddings_frozen"]:
        keys.append(("hatch", "frozen, as it came"))
    keys.append(("point", "read by the head"))
    unknown = "" if encoder["layers"] else " How many layers the encoder has is not known here; six are drawn."
    if found.get("verdict", {}).get("delivered") == "plain" and winner["trial"]:
        unknown = f" It is not what was delivered: that is the plain head.{unknown}"
    spec = json.dumps(winner["spec"], indent=2, ensure_ascii=False)
    return (
        f"<p>Candidate #{winner['trial']}: {escape(winner['words'])}.{unknown}</p>"
        f'<div class="drawn"><figure>{_legend(keys)}{charts.diagram(winner["stages"])}</figure>'
        f"<div><h3>How it is trained</h3>{_terms(winner['recipe'])}"
        f"<details><summary>The spec, to train it again</summary><pre>{escape(spec)}</pre></details></div></div>"
    )


def _progress(found: Facts) -> str:
    data = found.get("progress")
    if not data:
        return ""
    keys = [("accent", "best so far, and results of full training")]
    if data["top"]:
        keys.append(("", "results of partial training"))
    if data["plain"]:
        keys.append(("dash", "plain head"))
    told = (
        "Scores on held-out rows. The line follows the best score of the longest training so far, so it may fall when "
        "a longer training is first judged."
    )
    return f"<p>{told}</p>{_legend(keys)}{_both(lambda width: charts.progress(data, width))}"


def _learning(found: Facts) -> str:
    data = found.get("learning")
    if not data:
        return ""
    drawn = []
    if data["lines"]:
        drawn.append(_figure(f"{data['metric']} by share of the training", charts.learning(data)))
    if data["losses"]:
        drawn.append(_figure("loss while training", charts.losses(data)))
    keys = [("accent", "winner"), ("dash", "plain head")] + ([("", "other candidates")] if data["lines"] else [])
    return f'<p>What more training gave those that went on.</p>{_legend(keys)}<div class="two">{"".join(drawn)}</div>'


def _space(found: Facts) -> str:
    data = found.get("space")
    if not data:
        return ""
    order = _by_importance(found)
    whole = _both(lambda width: charts.parallel(data, _axes(found, AXES if width > NARROW else AXES_NARROW), width))
    slices = [charts.slice_of(data, axis) for axis in order]
    more = ""
    if len(slices) > SLICES:
        rest = "".join(slices[SLICES:])
        more = f'<details><summary>{len(slices) - SLICES} more</summary><div class="slices">{rest}</div></details>'
    keys = [("accent", f"the best {charts.best_shown(len(data['trials']))}"), ("", "the others")]
    levels = [("accent", "full training"), ("", "partial training")]
    return (
        f"<p>Each line is a candidate, from what it chose to the score it reached.</p>{_legend(keys)}{whole}"
        "<h3>One choice at a time</h3><p>Scores to the right are better; those far below the rest lie on the left "
        f"edge. Other choices differ too, so a pattern is a hint, not a cause.</p>{_legend(levels)}"
        f'<div class="slices">{"".join(slices[:SLICES])}</div>{more}'
    )


def _by_importance(found: Facts) -> list[int]:
    """The places of the leaves, those that matter most first; as the space has them where that is not known."""
    names = [leaf["name"] for leaf in found["space"]["leaves"]]
    rank = {item["name"]: place for place, item in enumerate(found.get("importance", []))}
    return sorted(range(len(names)), key=lambda axis: rank.get(names[axis], len(rank)))


def _axes(found: Facts, most: int) -> list[int]:
    """Leaves worth an axis: the first that decide something in most candidates, in the order of the space."""
    trials = found["space"]["trials"]
    on = [
        axis
        for axis in _by_importance(found)
        if sum(row["places"][axis] is not None for row in trials) * 2 > len(trials)
    ]
    return sorted(on[:most])


def _importance(found: Facts) -> str:
    items = [(item["name"], item["importance"]) for item in found.get("importance", [])[:15]]
    if not items:
        return ""
    return "<p>How much of the differences between candidates each choice accounts for.</p>" + _both(
        lambda width: charts.bars(items, "Importance", percent, min(width, 640))
    )


def _ablation(found: Facts) -> str:
    data = found.get("ablation")
    if not data:
        return ""
    base = data.get("base") or {}
    told = f" With everything in place: {number(base['score'])}." if base.get("score") is not None else ""
    keys = [("accent", "the interval leaves out zero"), ("", "may be chance")]
    chart = _both(lambda width: charts.differences(data["items"], data["metric"], width))
    return f"<p>The winner with one thing changed. Lines are 95&nbsp;% intervals.{told}</p>{_legend(keys)}{chart}"


def _finalists(found: Facts) -> str:
    data = found.get("finalists")
    if not data:
        return ""
    names = {"p50_ms": "milliseconds for one text (median)", "megabytes": "megabytes of weights"}
    drawn = [
        _figure(f"{data['metric']} against {name.split(' (')[0]}", charts.front(data, cost, name))
        for cost, name in names.items()
        if cost in data["fronts"]
    ]
    told = "Means over seeds, on held-out rows." + (
        " The line joins those that nothing beats on both." if drawn else ""
    )
    columns: dict[str, Callable[[Facts], str]] = {
        "candidate": lambda item: item["name"],
        data["metric"]: lambda item: number(item["score"]),
        "seeds": lambda item: str(len(item["scores"])),
        "1 text, p50 / p99 ms": lambda item: _latency(item, "1"),
        "32 texts, p50 / p99 ms": lambda item: _latency(item, "32"),
        "MB": lambda item: number(item["megabytes"], 1),
        "GFLOPs": lambda item: compact(item["gflops"]),
        "parameters": lambda item: compact(item["parameters"]),
    }
    cells = {name: [words(item) for item in data["items"]] for name, words in columns.items()}
    known = {name: column for name, column in cells.items() if set(column) != {"–"}}
    table = _table(list(known), list(zip(*known.values(), strict=True)))
    return f'<p>{told}</p><div class="two">{"".join(drawn)}</div>{table}'


def _latency(item: Facts, batch: str) -> str:
    times = item["latency"].get(batch) or {}
    known = [number(times[name], 1) for name in ("p50_ms", "p99_ms") if times.get(name) is not None]
    return " / ".join(known) or "–"


def _confusion(found: Facts) -> str:
    data = found.get("confusion")
    if not data:
        return ""
    labels, models = data["labels"], data["models"]
    names = {who: {"model": "winner", "plain": "plain head"}.get(who, who) for who in models}
    if "plain" not in models and found.get("winner", {}).get("trial") == 0:
        names["model"] = "plain head"
    rows = f"{data['rows']:,} {data['on']}" if data["rows"] else data["on"]
    if len(labels) > CLASSES:
        told = f"<p>On {rows}. There are {len(labels)} classes; these are taken for each other most often.</p>"
        tables = [_figure(names[who], _most_confused(labels, matrix)) for who, matrix in models.items()]
        return f'{told}<div class="two">{"".join(tables)}</div>'
    drawn = [_figure(names[who], charts.confusion(labels, matrix, names[who])) for who, matrix in models.items()]
    told = f"<p>On {rows}. Rows are the true class, shades the share of it; the diagonal is right.</p>"
    return f'{told}<div class="two">{"".join(drawn)}</div>'


def _most_confused(labels: Sequence[str], matrix: Sequence[Sequence[int]]) -> str:
    cells = [(count, i, j) for i, row in enumerate(matrix) for j, count in enumerate(row) if count and i != j]
    rows = [[labels[i], labels[j], f"{count:,}"] for count, i, j in sorted(cells, key=lambda cell: -cell[0])[:12]]
    return _table(["true", "predicted", "rows"], rows)


def _mistakes(found: Facts) -> str:
    data = found.get("mistakes")
    if not data:
        return ""
    items = []
    for item in data["items"]:
        texts = "".join(
            f"<blockquote>{escape(str(item[key]))}</blockquote>" for key in ("text", "text_b") if item.get(key)
        )
        sure = f" ({percent(item['confidence'])} sure)" if item.get("confidence") is not None else ""
        plain = f" · plain head: <b>{escape(str(item['plain']))}</b>" if item.get("plain") is not None else ""
        true, said = (f"<b>{escape(str(item.get(key)))}</b>" for key in ("label", "model"))
        items.append(f"<li>{texts}<p>true: {true} · winner: {said}{sure}{plain}</p></li>")
    told = f"From {data['on']}. What the winner gets wrong and is sure of; some of the labels may be what is wrong."
    return f'<p>{told}</p><ul class="mistakes">{"".join(items)}</ul>'


def _calibration(found: Facts) -> str:
    data = found.get("calibration")
    if not data:
        return ""
    terms = {"mean distance": percent(data["error"], 1)}
    if data["temperature"] is not None:
        terms["temperature"] = f"{number(data['temperature'], 2)}, fitted on held-out rows; 1 changes nothing"
    told = (
        f"On {data['on']}: how often the model is right where it is so sure. On the dashed line it is as sure as it "
        "should be; below the line, too sure."
    )
    return f'<p>{told}</p><div class="two">{charts.calibration(data)}<div>{_terms(terms)}</div></div>'


def _data(found: Facts) -> str:
    data = found["data"]
    warnings = "".join(f'<p class="notice">{escape(warning)}</p>' for warning in data["warnings"])
    columns = ", ".join(f"{name} (the {what.replace('_', ' ')})" for what, name in data["columns"].items() if name)
    terms = {
        "predicted": PROBLEM_TYPES.get(data["problem_type"], data["problem_type"])
        + (f": {len(data['labels'])}" if data["labels"] else ""),
        "rows": ", ".join(f"{count:,} {name}" for name, count in data["rows"].items()),
        "columns": columns,
        "fingerprint": data["fingerprint"],
    }
    if "words" in data:
        words = data["words"]
        terms["words in a text"] = f"{words['median']:,} (median), {words['few']:,} to {words['many']:,} in nine of ten"
    counts = sorted(zip(data["labels"], data.get("counts", []), strict=False), key=lambda item: -item[1])
    chart = ""
    if counts:
        some = f"the {LABELS} largest of {len(counts)} classes" if len(counts) > LABELS else "training rows by class"
        chart = _figure(some, charts.bars(counts[:LABELS], "Training rows by class", lambda value: f"{value:,.0f}"))
    notes = "".join(f"<li>{escape(note)}</li>" for note in data["notes"])
    taken = f"<details><summary>What was taken for what</summary><ul>{notes}</ul></details>" if notes else ""
    return f'{warnings}<div class="two"><div>{_terms(terms)}{taken}</div>{chart}</div>'


def _trials(found: Facts) -> str:
    if "trials" not in found:
        return ""
    columns = ("candidate", "score", "rung", "what it is", "outcome", "origin", "seconds")
    numeric = {"candidate", "score", "rung", "seconds"}
    heads = "".join(
        f'<th scope="col" aria-sort="none"{_kind(name in numeric)}{_first(name)}>'
        f'<button type="button">{name}</button></th>'
        for name in columns
    )
    winner = found.get("winner", {}).get("trial")
    rows = []
    for trial in found["trials"]:
        told = escape(trial["words"]) + (
            f' <span class="quiet">{escape(trial["message"])}</span>' if "message" in trial else ""
        )
        cells = [
            (f"#{trial['trial']}", trial["trial"]),
            (number(trial["score"]), "" if trial["score"] is None else trial["score"]),
            ("–" if trial["rung"] is None else str(trial["rung"]), "" if trial["rung"] is None else trial["rung"]),
        ]
        marked = "".join(f'<td class="num" data-value="{value}">{words}</td>' for words, value in cells)
        marked += f"<td>{told}</td><td>{escape(trial['outcome'])}</td><td>{escape(trial['origin'])}</td>"
        marked += f'<td class="num" data-value="{trial["seconds"]}">{number(trial["seconds"], 1)}</td>'
        rows.append(f"<tr{' class=is-winner' if trial['trial'] == winner else ''}>{marked}</tr>")
    rungs = found.get("rungs")
    return (
        "<p>A rung is how far a candidate was trained: the higher, the longer. A click on a name sorts by it.</p>"
        '<div class="filter" hidden><input id="filter" type="search" placeholder="Filter, as: attention frozen" '
        'aria-label="Filter candidates"><span id="count" aria-live="polite"></span></div>'
        f'<div class="tall" tabindex="0"><table><thead><tr>{heads}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
        + (f"<details><summary>What each rung cost</summary>{_rungs(rungs)}</details>" if rungs else "")
    )


def _kind(numeric: bool) -> str:
    return ' class="num"' if numeric else ""


def _first(name: str) -> str:
    return ' data-first="descending"' if name in ("score", "rung") else ""


def _rungs(rungs: Sequence[Facts]) -> str:
    heads = ["rung", "share of training", "results", "went on to it", "failed", "worker time", "best"]
    rows = [
        [
            str(rung.get("rung")),
            percent(rung.get("fraction", 0)),
            str(rung.get("results")),
            str(rung.get("promoted")),
            str(rung.get("failed")),
            clock_words(rung.get("seconds") or 0),
            number(rung.get("best")),
        ]
        for rung in rungs
    ]
    return _table(heads, rows)


def _load(found: Facts) -> str:
    if "load" not in found:
        return ""
    which = {"winner": "This is the winner. ", "plain": "This is the plain head. "}
    told = which.get(found.get("verdict", {}).get("delivered", ""), "")
    return (
        f"<pre><code>{escape(chr(10).join(found['load']['lines']))}</code></pre>"
        f"<p>{told}The folder also loads with transformers alone, where Headhunt is not installed.</p>"
    )


def _repeat(found: Facts) -> str:
    run, repeat = found["run"], found["repeat"]
    terms = {
        "began": (run["began"] or "–").replace("T", " ").replace("+00:00", " UTC"),
        "ended by": run["reason"] or "not yet",
        "encoder": run["encoder"],
        "strategy": f"{run['strategy']} over the space {run['space']}",
        "judged on": run["judged_on"],
        "seed": str(repeat["seed"]),
        "worker time": clock_words(run["worker_seconds"]),
    }
    cost = found.get("cost", {})
    if cost.get("examples"):
        terms["examples seen"] = f"{cost['examples']:,}"
    if cost.get("peak_gb"):
        terms["peak memory"] = f"{compact(cost['peak_gb'])} GB"
    terms["versions"] = ", ".join(f"{name} {version}" for name, version in found.get("versions", {}).items()) or "–"
    own = " The space is in search.json; save it as space.json." if "--space space.json" in repeat["command"] else ""
    words = " ".join(f"<span>{escape(word)}</span>" for word in repeat["command"])
    return (
        f"<p>DATA stands for the data, wherever it is. Times differ from machine to machine, so only a limit on trials "
        f'repeats a search exactly.{own}</p><pre class="wrap"><code>{words}</code></pre>{_terms(terms)}'
    )


SECTIONS: tuple[tuple[str, str, Callable[[Facts], str]], ...] = (
    ("scores", "Winner against plain head", _scores),
    ("architecture", "The winning architecture", _architecture),
    ("progress", "Best so far", _progress),
    ("learning", "Learning curves", _learning),
    ("space", "What was searched", _space),
    ("importance", "What mattered", _importance),
    ("ablation", "Why it won", _ablation),
    ("finalists", "What it costs", _finalists),
    ("confusion", "Confusions", _confusion),
    ("mistakes", "Mistakes", _mistakes),
    ("calibration", "Calibration", _calibration),
    ("data", "The data", _data),
    ("trials", "All candidates", _trials),
    ("load", "Load the model", _load),
    ("repeat", "Repeat the search", _repeat),
)


def _both(draw: Callable[[float], str]) -> str:
    """A chart for a screen and for a phone; the page shows one of them."""
    wide = draw(WIDE).replace('class="chart', 'class="chart wide', 1)
    return wide + draw(NARROW).replace('class="chart', 'class="chart narrow', 1)


def _figure(caption: str, drawing: str) -> str:
    return f"<figure><figcaption>{escape(caption)}</figcaption>{drawing}</figure>"


def _legend(keys: Iterable[tuple[str, str]]) -> str:
    items = "".join(f'<li><i class="{kind}"></i>{escape(words)}</li>' for kind, words in keys)
    return f'<ul class="legend" aria-hidden="true">{items}</ul>'


def _terms(terms: Mapping[str, str], problem_type: str = "pairs") -> str:
    if problem_type == "strip":
        inner = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in terms.items())
    else:
        inner = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in terms.items())
    return f'<dl class="{problem_type}">{inner}</dl>'


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    first = "".join(f'<th scope="col"{_kind(place > 0)}>{escape(head)}</th>' for place, head in enumerate(heads))
    body = "".join(
        "<tr>" + "".join(f"<td{_kind(place > 0)}>{escape(cell)}</td>" for place, cell in enumerate(row)) + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{first}</tr></thead><tbody>{body}</tbody></table></div>'


def _place(path: Path, text: str) -> None:
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
