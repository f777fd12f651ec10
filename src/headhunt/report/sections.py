"""Sections of the report page, each from the facts it shows to HTML."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from html import escape
from pathlib import PurePosixPath
from typing import Any

from headhunt.report import charts
from headhunt.report.diagram import draw_diagram
from headhunt.report.markup import (
    Facts,
    both_widths,
    css_class,
    description_list,
    figure,
    legend,
    rows_text,
    table,
)
from headhunt.report.svg import compact, number, percent
from headhunt.report.terminal import format_duration

SLICES = 12  # slice plots that are visible at first
MIN_DOTS = 3  # candidates from which a slice plot is drawn
FEW_CLASSES, MAX_CLASSES = 6, 16  # from which on confusions are listed, and up to which a matrix is readable
MAX_BARS = 12  # classes whose counts are drawn
COLUMNS = {"text_b": "second text"}
PROBLEM_TYPES = {
    "single_label_classification": "one of several classes",
    "multi_label_classification": "several labels",
    "regression": "a number",
    "multi_task": "the outputs of several tasks",
}


def _scores(found: Facts, data: Any) -> str:
    text = f"On {rows_text(data)} that played no part in choosing candidates."
    if data["on"] != "test rows":
        text = f"On {rows_text(data)}. Candidates were chosen by these rows, so the winner's score is too optimistic."
    main, *others = data["metrics"]
    intro = f"<p>{text} A dot is a score, the line its 95&nbsp;% interval.</p>"
    chart = _whiskers(data["metrics"][main], main)
    if data.get("tasks"):
        return intro + chart + "".join(map(_task_panel, data["tasks"]))
    if not others:
        return intro + chart
    heads = ["", *(item["name"] for item in data["metrics"][main])]
    body = [
        [metric, *(f"{number(item['value'])} [{number(item['low'])}, {number(item['high'])}]" for item in items)]
        for metric, items in data["metrics"].items()
    ]
    return f"{intro}{chart}<details><summary>All metrics</summary>{table(heads, body)}</details>"


def _whiskers(rows: Sequence[Facts], metric: str) -> str:
    drawn = _with_numbers(rows, "value", "low", "high")
    return both_widths(lambda width: charts.whiskers(drawn, metric, width)) if drawn else ""


def _task_panel(task: Facts) -> str:
    """Return the scores of one of several tasks."""
    chart = _whiskers(task["metrics"][task["metric"]], task["metric"])
    gain, text = task["gain"], f"{task['rows']:,} rows."
    if gain is not None and None not in gain.values():
        text += (
            f" Gain of the winner over the plain head: {gain['value']:+.4f} "
            f"(95&nbsp;% interval {gain['low']:+.4f} to {gain['high']:+.4f})."
        )
    return f"<h3>{escape(task['name'])}: {escape(task['metric'])}</h3><p>{text}</p>{chart}"


def _with_numbers(rows: Sequence[Facts], *names: str) -> list[Facts]:
    """Return the rows whose values are known: a correlation with constant predictions is not."""
    return [row for row in rows if all(row[name] is not None for name in names)]


def _architecture(found: Facts, data: Any) -> str:
    keys, notes = [], ""
    for encoder in (stage for stage in data["stages"] if stage["stage"] == "encoder"):  # word counts need none
        frozen = [("hatch", "frozen")] if encoder["embeddings_frozen"] else []
        keys = [("accent", "trained"), *frozen, ("point", "read by the head")]
        notes = "" if encoder["layers"] else " The number of encoder layers is not known here; six are drawn."
    verdict, plain = found.get("verdict", {}), found.get("plain") or {}
    if verdict.get("delivered", "winner") != "winner" and data["trial"] != plain.get("trial"):
        notes = f" It was not delivered: the {verdict['delivered_name']} was.{notes}"
    spec = json.dumps(data["spec"], indent=2, ensure_ascii=False)
    return (
        f"<p>Candidate #{data['trial']}: {escape(data['description'])}.{notes}</p>"
        f'<div class="drawn"><figure>{legend(keys)}{draw_diagram(data["stages"])}</figure>'
        f"<div><h3>Training</h3>{description_list(data['recipe'])}"
        f"<details><summary>Spec, to train it again</summary><pre>{escape(spec)}</pre></details></div></div>"
    )


def _progress(found: Facts, data: Any) -> str:
    keys = [("accent", "best so far, and results of full training")]
    if data["top"]:
        keys.append(("", "results of partial training"))
    if data["plain"]:
        keys.append(("dash", "plain head"))
    text = (
        "Scores on validation rows. The line follows the best score of the longest training so far. It may fall when "
        "the first longer training is evaluated."
    )
    return f"<p>{text}</p>{legend(keys)}{both_widths(lambda width: charts.progress(data, width))}"


def _learning(found: Facts, data: Any) -> str:
    figures = []
    if data["lines"]:
        figures.append(figure(f"{data['metric']} by share of the training", charts.learning(data)))
    if data["losses"]:
        figures.append(figure("training loss", charts.losses(data)))
    keys = [("accent", "winner"), ("dash", "plain head")] + ([("", "other candidates")] if data["lines"] else [])
    text = (
        "Scores of the candidates that were promoted to longer training." if data["lines"] else "Loss while training."
    )
    return f'<p>{text}</p>{legend(keys)}<div class="two">{"".join(figures)}</div>'


def _space(found: Facts, data: Any) -> str:
    rank = {item["name"]: place for place, item in enumerate(found.get("importance", []))}  # the most important first
    order = sorted(range(len(data["leaves"])), key=lambda axis: rank.get(data["leaves"][axis]["name"], len(rank)))
    counts = [sum(row["places"][axis] is not None for row in data["trials"]) for axis in order]
    slices = [charts.slice_plot(data, axis) for axis, count in zip(order, counts, strict=True) if count >= MIN_DOTS]
    if not slices:  # few candidates may have no choice in common
        return ""
    more = ""
    if len(slices) > SLICES:
        rest = "".join(slices[SLICES:])
        more = f'<details><summary>{len(slices) - SLICES} more</summary><div class="slices">{rest}</div></details>'
    levels = [("accent", "full training"), ("", "partial training")]
    return (
        "<p>One choice at a time: each dot is a candidate. Scores to the right are better; very low scores are drawn "
        "at the left edge. The other choices vary too, so a pattern is a hint and not a cause.</p>"
        f'{legend(levels)}<div class="slices">{"".join(slices[:SLICES])}</div>{more}'
    )


def _importance(found: Facts, data: Any) -> str:
    items = [(item["name"], item["importance"]) for item in data[:15]]
    return "<p>Share of the variance between candidates that each choice explains.</p>" + both_widths(
        lambda width: charts.bars(items, "Importance", percent, min(width, 640))
    )


def _ablation(found: Facts, data: Any) -> str:
    base = data.get("base") or {}
    text = f" Score of the winner: {number(base['score'])}." if base.get("score") is not None else ""
    keys = [("accent", "significant"), ("", "may be due to chance")]
    one_seed = all(item["seeds"] < 2 for item in data["items"])
    text += " With one seed each, no change can be significant." if one_seed else ""
    drawn = _with_numbers(data["items"], "difference", "low", "high")
    chart = both_widths(lambda width: charts.differences(drawn, data["metric"], width)) if drawn else ""
    return f"<p>The winner with one choice reverted. Lines are 95&nbsp;% intervals.{text}</p>{legend(keys)}{chart}"


def _costs(found: Facts, data: Any) -> str:
    efficient = ", ".join(item["name"] for item in data["items"] if item["efficient"])
    text = (
        f"All {len(data['items'])} fully evaluated candidates, on validation rows. The lines are Pareto fronts. "
        f"On the front of score, latency and size together: {efficient}."
    )
    costs = {"p50_ms": "milliseconds for one text (median)", "megabytes": "megabytes of weights"}
    fronts = [
        figure(f"{data['metric']} against {name.split(' (')[0]}", charts.front(data, cost, name))
        for cost, name in costs.items()
    ]
    return f'<p>{escape(text)}</p><div class="two">{"".join(fronts)}</div>'


def _finalists(found: Facts, data: Any) -> str:
    if len(data["items"]) < 2 and data["items"][0]["megabytes"] is None:
        return ""  # the score is shown already
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
    rows = [[text(item) for text in columns.values()] for item in data["items"]]
    known = [place for place, name in enumerate(columns) if any(row[place] != "–" for row in rows)]
    cells = [[row[place] for place in known] for row in rows]
    return (
        f"<p>Mean scores over seeds, on validation rows.</p>{table([list(columns)[place] for place in known], cells)}"
    )


def _latency(item: Facts, batch: str) -> str:
    times = item["latency"].get(batch) or {}
    known = [number(times[name], 1) for name in ("p50_ms", "p99_ms") if times.get(name) is not None]
    return " / ".join(known) or "–"


def _confusion(found: Facts, data: Any) -> str:
    labels, models = data["labels"], data["models"]
    names = {role: {"winner": "winner", "plain": "plain head"}.get(role, role) for role in models}
    if "plain" not in models and found.get("winner") and found.get("winner") == found.get("plain"):
        names["winner"] = "plain head"
    text = f"There are {len(labels)} classes; these are confused most often."
    drawn = dict.fromkeys(models, "")
    if len(labels) <= MAX_CLASSES:
        text = "A row is a true class, a shade its proportion; the diagonal is correct."
        drawn = {role: charts.confusion(labels, matrix, names[role]) for role, matrix in models.items()}
    if len(labels) > FEW_CLASSES:
        drawn = {role: drawn[role] + _most_confused(labels, matrix) for role, matrix in models.items()}
    figures = [figure(names[role], body) for role, body in drawn.items()]
    return f'<p>On {rows_text(data)}. {text}</p><div class="two">{"".join(figures)}</div>'


def _most_confused(labels: Sequence[str], matrix: Sequence[Sequence[int]]) -> str:
    cells = [(count, i, j) for i, row in enumerate(matrix) for j, count in enumerate(row) if count and i != j]
    rows = [
        [f"{labels[i]} → {labels[j]}", f"{count:,}"] for count, i, j in sorted(cells, key=lambda cell: -cell[0])[:12]
    ]
    return table(["true → predicted", "rows"], rows)


def _mistakes(found: Facts, data: Any) -> str:
    items = []
    for item in data["items"]:
        texts = "".join(f"<blockquote>{escape(str(text))}</blockquote>" for text in item["texts"])
        confidence = f" (confidence {percent(item['confidence'])})" if item.get("confidence") is not None else ""
        plain = f" · plain head: <b>{escape(str(item['plain']))}</b>" if item.get("plain") is not None else ""
        true, predicted = (f"<b>{escape(str(item.get(key)))}</b>" for key in ("label", "prediction"))
        items.append(f"<li>{texts}<p>true: {true} · winner: {predicted}{confidence}{plain}</p></li>")
    text = f"From {data['on']}. The winner is wrong and confident here; some of the labels may be wrong instead."
    return f'<p>{text}</p><ul class="mistakes">{"".join(items)}</ul>'


def _calibration(found: Facts, data: Any) -> str:
    """Return accuracy against confidence."""
    terms = {
        "expected calibration error": percent(data["error"], 1),
        "temperature": None
        if data["temperature"] is None
        else f"{number(data['temperature'], 2)}, fitted on validation rows; 1 changes nothing",
    }
    several = "share of rows that have a label, at each level of its probability"
    what = several if data.get("several") else "accuracy at each level of confidence"
    text = f"On {data['on']}: {what}. On the dashed line the model is calibrated; below it, the model is overconfident."
    return f'<p>{text}</p><div class="two">{charts.calibration(data)}<div>{description_list(terms)}</div></div>'


def _errors(found: Facts, data: Any) -> str:
    """Return the size of the errors of predicted numbers."""
    return (
        f"<p>{percent(data['level'])} of the validation rows have an error of at most {number(data['error'])}; so have "
        f"{percent(data['coverage'], 1)} of the {data['on']}.</p>"
    )


def _rejection(found: Facts, data: Any) -> str:
    """Return coverage and accuracy of a model that rejects texts."""
    asked = "" if data["asked"] is None else f" to answer {percent(data['asked'])}"
    terms = {
        "threshold": f"{number(data['threshold'])}, fitted on validation rows{asked}",
        "answered": percent(data["coverage"], 1),
        "accuracy of the answers": percent(data["accuracy"], 1),
        "accuracy without rejecting": percent(data["accuracy_of_all"], 1),
    }
    if data["label"] is not None and data["outside_rejected"] is not None:
        rejected = percent(data["outside_rejected"], 1)
        terms[f"rejected of class {data['label']}"] = f"{rejected} of {data['outside_rows']:,} rows"
    text = f"On {data['on']}: the model does not answer texts whose best class has a probability below the threshold."
    return f"<p>{text}</p>{description_list(terms)}"


def _data(found: Facts, data: Any) -> str:
    warnings = "".join(f'<p class="notice">{escape(warning)}</p>' for warning in data["warnings"])
    search, compared, words = found["run"], found["run"]["encoders"], data.get("words")
    baseline = next((item["score"] for item in compared if item["encoder"] == search["encoder"]), None)
    terms = {
        "predicted": _outputs(data),
        "rows": _rows(data),
        "columns": ", ".join(f"{COLUMNS.get(role, role)}: {name}" for role, name in data["columns"].items() if name),
        "fingerprint": data["fingerprint"],
        **{
            f"task {task['name']}": f"{_outputs(task)}; {'pairs' if task['pair'] else 'texts'}; {_rows(task)}"
            for task in data["tasks"]
        },
        "plan": search["plan"],
        "encoders, by solved head": ", ".join(
            f"{PurePosixPath(item['encoder']).name} {item['score']:.4f}" for item in compared
        ),
        "gain from the encoder": None
        if baseline is None
        else f"{compared[0]['score'] - baseline:+.4f} {search['metric']}",
        "further pretraining": search["pretraining"],
        "words per text": words
        and f"{words['median']:,} (median), {words['few']:,} to {words['many']:,} in 90 % of rows",
    }
    counts = sorted(zip(data["labels"], data.get("counts", []), strict=False), key=lambda item: -item[1])
    chart = ""
    if counts:
        caption = (
            f"the {MAX_BARS} largest of {len(counts)} classes" if len(counts) > MAX_BARS else "training rows by class"
        )
        chart = figure(caption, charts.bars(counts[:MAX_BARS], "Training rows by class", lambda value: f"{value:,.0f}"))
    notes = "".join(f"<li>{escape(note)}</li>" for note in data["notes"])
    details = f"<details><summary>How the data was read</summary><ul>{notes}</ul></details>" if notes else ""
    return f'{warnings}<div class="two"><div>{description_list(terms)}{details}</div>{chart}</div>'


def _outputs(data: Facts) -> str:
    return PROBLEM_TYPES[data["problem_type"]] + (f": {len(data['labels'])}" if data["labels"] else "")


def _rows(data: Facts) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in data["rows"].items())


def _trials(found: Facts, data: Any) -> str:
    columns = ("candidate", "score", "rung", "description", "outcome", "origin", "seconds")
    numeric = {"candidate", "score", "rung", "seconds"}
    first = dict.fromkeys(("score", "rung"), ' data-first="descending"')
    heads = "".join(
        f'<th scope="col" aria-sort="none"{css_class(name in numeric)}{first.get(name, "")}>'
        f'<button type="button">{name}</button></th>'
        for name in columns
    )
    winner = found.get("winner", {}).get("trial")
    rows = "".join(_trial_row(trial, trial["trial"] == winner) for trial in data)
    rungs = found.get("rungs")
    return (
        "<p>A higher rung means longer training. Click a column name to sort.</p>"
        '<div class="filter" hidden><input id="filter" type="search" placeholder="Filter, e.g. attention frozen" '
        'aria-label="Filter candidates"><span id="count" aria-live="polite"></span></div>'
        f'<div class="tall" tabindex="0"><table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>'
        + (f"<details><summary>Cost of each rung</summary>{_rungs(rungs)}</details>" if rungs else "")
    )


def _trial_row(trial: Facts, is_winner: bool) -> str:
    text = escape(trial["description"])
    if "message" in trial:
        text += f' <span class="quiet">{escape(trial["message"])}</span>'
    score, rung, seconds = trial["score"], trial["rung"], trial["seconds"]
    numbers = [
        (f"#{trial['trial']}", trial["trial"]),
        (number(score), "" if score is None else score),
        ("–" if rung is None else str(rung), "" if rung is None else rung),
    ]
    cells = "".join(f'<td class="num" data-value="{value}">{words}</td>' for words, value in numbers)
    cells += f"<td>{text}</td><td>{escape(trial['outcome'])}</td><td>{escape(trial['origin'])}</td>"
    cells += f'<td class="num" data-value="{seconds}">{number(seconds, 1)}</td>'
    return f"<tr{' class=is-winner' if is_winner else ''}>{cells}</tr>"


def _rungs(rungs: Sequence[Facts]) -> str:
    columns: dict[str, Callable[[Facts], str]] = {
        "rung": lambda rung: str(rung["rung"]),
        "share of training": lambda rung: percent(rung["fraction"]),
        "results": lambda rung: str(rung["results"]),
        "promoted": lambda rung: str(rung["promoted"]),
        "failed": lambda rung: str(rung["failed"]),
        "worker time": lambda rung: format_duration(rung["seconds"]),
        "best": lambda rung: number(rung["best"]),
    }
    return table(list(columns), [[text(rung) for text in columns.values()] for rung in rungs])


def _load(found: Facts, data: Any) -> str:
    name = found.get("verdict", {}).get("delivered_name")
    text = f"This is the {name}. " if name else ""
    return (
        f"<pre><code>{escape(chr(10).join(data['lines']))}</code></pre>"
        f"<p>{text}The folder also loads with transformers alone, without Headhunt.</p>"
    )


def _repeat(found: Facts, data: Any) -> str:
    run = found["run"]
    terms = {
        "started": (run["started"] or "–").replace("T", " ").replace("+00:00", " UTC"),
        "ended by": run["reason"] or "not yet",
        "encoder": run["encoder"],
        "strategy": f"{run['strategy']} over the space {run['space']}",
        "evaluated on": run["evaluated_on"],
        "seed": str(data["seed"]),
        "worker time": format_duration(run["worker_seconds"]),
        "examples seen": f"{run['examples']:,}" if run["examples"] else None,
        "test rows": f"evaluated {run['test_evaluations']} times" if run["test_evaluations"] > 1 else None,
        "versions": ", ".join(f"{name} {version}" for name, version in found.get("versions", {}).items()) or "–",
    }
    own = " Save the space of report.json as space.json." if "--space space.json" in data["command"] else ""
    words = " ".join(f"<span>{escape(word)}</span>" for word in data["command"])
    return (
        f"<p>Replace words in capitals with the paths of your data. Times differ from machine to machine, so only a "
        f'limit on trials repeats a search exactly.{own}</p><pre class="wrap"><code>{words}</code></pre>'
        f"{description_list(terms)}"
    )


SECTIONS: tuple[tuple[str, str, Callable[[Facts, Any], str]], ...] = (
    ("scores", "Scores", _scores),
    ("winner", "Winning architecture", _architecture),
    ("progress", "Best so far", _progress),
    ("learning", "Learning curves", _learning),
    ("space", "Search space", _space),
    ("importance", "Importance", _importance),
    ("ablation", "Ablation", _ablation),
    ("finalists", "Cost of the finalists", _finalists),
    ("costs", "Cost of all candidates", _costs),
    ("confusion", "Confusion matrix", _confusion),
    ("mistakes", "Mistakes", _mistakes),
    ("calibration", "Calibration", _calibration),
    ("errors", "Size of the errors", _errors),
    ("rejection", "Rejected texts", _rejection),
    ("data", "Data", _data),
    ("trials", "All candidates", _trials),
    ("load", "Load the model", _load),
    ("repeat", "Repeat the search", _repeat),
)
"""The name, title and function of each section, in the order of the page; it is passed all facts, and its own."""
