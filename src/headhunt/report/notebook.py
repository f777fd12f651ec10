"""Summaries in a notebook: of a search, of a model, and of a search or training run in progress.

A summary is HTML without scripts that loads nothing from the network, escapes every text that originates in data, and
follows the notebook's theme. A search in progress is one output that changes, not many outputs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from html import escape
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from headhunt.evaluation import METRICS
from headhunt.report import charts, terminal
from headhunt.report.callbacks import Callback, RunningSearch
from headhunt.report.facts import collect_facts
from headhunt.report.figures import progress_figure
from headhunt.report.markup import rows_text, statement
from headhunt.report.svg import compact, number, read_asset
from headhunt.report.terminal import format_duration
from headhunt.report.words import call_words, output_words
from headhunt.run.clock import steady_time
from headhunt.spec import describe, stages

if TYPE_CHECKING:
    from headhunt.training.loop import Report

MAX_TRIALS = 5  # candidates in the leaderboard of a search
MAX_LABELS = 12  # labels that are named
WIDTH, HEIGHT = 392, 190  # of a chart, two of which stand side by side
FULL_WIDTH = 808
INTERVAL = 1.0  # seconds between two drawings of a search


def search_summary(folder: str | Path) -> str:
    """Return the summary of a running or finished search.

    Args:
        folder: The run directory.
    """
    found = collect_facts(folder, ("run", "headline", "scores", "winner", "progress", "trials", "load"))
    run = found["run"]
    status = f"{run['trials']} candidates in {format_duration(run['seconds'])}"
    status += "" if run["finished"] else " · not finished"
    parts = [_top(run["name"], status), f'<p class="statement">{statement(found["headline"])}</p>']
    figures = []
    if scores := found.get("scores"):
        main = next(iter(scores["metrics"]))
        both = [row for row in scores["metrics"][main] if row["role"] in ("winner", "plain")]
        caption = f"on {rows_text(scores)}, with 95 % intervals"
        figures.append(_figure(caption, charts.whiskers(both, main, WIDTH)))
    if "progress" in found:
        figures.append(_progress(found["progress"], WIDTH))
    if figures:
        parts.append(f'<div class="pair">{"".join(figures)}</div>')
    scored = [trial for trial in found.get("trials", []) if trial["score"] is not None]
    parts.append(_leaderboard(scored[:MAX_TRIALS], run["metric"], found.get("winner", {}).get("trial")))
    if used := terminal.repeated_test_use(run["test_evaluations"]):
        parts.append(f'<p class="quiet">{used}</p>')
    if "load" in found:
        parts.append(_code(found["load"]["lines"][1:]))
    return _summary(parts)


def model_summary(model: Any) -> str:
    """Return the summary of a `Predictor`: its inputs and outputs, size, architecture and use."""
    sizes = [(weights.numel(), weights.numel() * weights.element_size()) for weights in model.model.parameters()]
    parameters, size = (sum(column) for column in zip(*sizes, strict=True))
    count, task = len(model.labels), model.tasks[0] if model.tasks else None
    output = output_words(model.problem_type, count)
    weights = f"{compact(parameters)} parameters · {compact(size / 1e6)} MB · {model.device}"
    statement = f"{'Two texts' if model.pair else 'One text'} in, {output} out."
    if model.tasks:
        statement = f"One of {len(model.tasks)} tasks: {', '.join(model.tasks)}."
    if members := model.facts.get("members"):
        statement += f" The mean of {len(members)} models."
    parts = [_top("model", weights), f'<p class="statement">{statement}</p>']
    if model.spec is not None:
        layers = getattr(model.model.config, "num_hidden_layers", None)
        described = stages(model.spec, layers, model.pair, model.problem_type, len(model.tasks) or count)
        if model.spec.head.layers == 1:  # reading the last layer is the norm
            described = [stage for stage in described if stage["stage"] != "layers"]
        parts.append(f'<div class="line">{"".join(map(_stage, described))}</div>')
    if model.labels:
        rest = f' <span class="quiet">and {count - MAX_LABELS} more</span>' if count > MAX_LABELS else ""
        names = "".join(f"<i>{escape(label)}</i>" for label in model.labels[:MAX_LABELS])
        parts.append(f'<p class="labels">{names}{rest}</p>')
    scores = (model.facts.get("test") or {}).get("scores", {})
    if scores:
        known = [f"{METRICS[name].title} {number(score['value'])}" for name, score in scores.items() if name in METRICS]
        parts.append(f'<p class="labels quiet">on test rows: {escape(" · ".join(known[:3]))}</p>')
    fields = {
        "single_label_classification": "label, .probability",
        "multi_label_classification": "label, .probabilities",
    }.get(model.problem_type, "label")
    parts.append(_code([f"model.predict({call_words(model.pair, task)})[0]  # .{fields}", 'model.save("folder")']))
    return _summary(parts)


class LiveView(Callback):
    """A search in progress: one output of the cell, drawn again at most once a second."""

    def on_start(self, search: RunningSearch) -> None:
        """Show the output."""
        self._started = self._drawn_at = steady_time()
        self._stage = search.stage
        self._replace = _show(self._draw(search))

    def on_update(self, search: RunningSearch) -> None:
        """Draw the output again if the stage changed or the last drawing is a second old."""
        if search.stage != self._stage or steady_time() - self._drawn_at >= INTERVAL:
            self._stage, self._drawn_at = search.stage, steady_time()
            self._replace(self._draw(search))

    def on_end(self, search: RunningSearch) -> None:
        """Reduce the output to one line; the search itself shows the rest."""
        status = f"{len(search.state.trials)} candidates in {format_duration(steady_time() - self._started)}"
        status += f", saved in {terminal.short_path(search.directory.path)}"
        self._replace(_summary([_top(search.name, status)], "slim"))

    def _draw(self, search: RunningSearch) -> str:
        state, metric, elapsed = search.state, search.score_name, steady_time() - self._started
        left = None if search.deadline is None else max(0.0, search.deadline - steady_time())
        clock = format_duration(elapsed) + ("" if left is None else f", {format_duration(left)} left")
        parts = [_top(search.name, f"{search.stage} · {clock}")]
        if left is not None:
            parts.append(_track(elapsed / max(1e-9, elapsed + left)))
        if data := progress_figure(state, metric):
            parts.append(_progress(data, FULL_WIDTH))
        board = [
            {"trial": trial.number, "score": trial.best[1], "description": describe(trial.spec)}
            for trial in state.leaderboard()[:3]
            if trial.best
        ]
        parts.append(_leaderboard(board, metric, None))
        counts = f"{terminal.count_results(state)}, {len(state.running)} running"
        hint = "Interrupt the kernel to stop and keep the best model."
        return _summary([*parts, f'<p class="quiet" style="margin:0">{counts}. {hint}</p>'])


@contextmanager
def training_bar(name: str) -> Iterator[Callable[[Report], None]]:
    """Show a bar that follows one training run: on a terminal, or as one changing output of a notebook's cell."""
    if not in_notebook():
        with terminal.training_bar(name) as update:
            yield update
        return
    replace = _show(_summary([_top(name, "starting")], "slim"))
    started = drawn_at = steady_time()

    def follow(report: Report) -> None:
        nonlocal drawn_at
        finished = report.examples >= report.total
        if finished or steady_time() - drawn_at >= INTERVAL:
            drawn_at = steady_time()
            status = f"{report.examples:,} of {report.total:,} examples · loss {number(report.loss, 3)}"
            status += f" · {format_duration(drawn_at - started)}"
            parts = [_top(name, status)] + ([] if finished else [_track(report.examples / report.total)])
            replace(_summary(parts, "slim"))

    yield follow


def _show(html: str) -> Callable[[str], None]:
    """Show an output of the cell, and return a function that replaces it."""
    from IPython.display import HTML, display

    handle = display(HTML(html), display_id=True)
    return lambda html: handle.update(HTML(html))


def in_notebook() -> bool:
    """Return True in the kernel of a notebook, which shows displayed objects."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


def _progress(data: Mapping[str, Any], width: float) -> str:
    """Return the progress without results below the median: in a small chart they would flatten the curve."""
    middle = median(point["score"] for point in data["results"])
    upper = {**data, "results": [point for point in data["results"] if point["score"] >= middle]}
    caption = f"best {data['metric']} so far, on validation rows"
    return _figure(caption, charts.progress(upper, width, HEIGHT))


def _summary(parts: Iterable[str], kind: str = "") -> str:
    palette, chart_style, summary_style = map(read_asset, ("palette.css", "charts.css", "summary.css"))
    style = f".headhunt-summary {{ {palette}\n{chart_style} }}\n{summary_style}"
    return f'<style>{style}</style><div class="headhunt-summary {kind}">{"".join(parts)}</div>'


def _top(name: str, status: str) -> str:
    return f'<div class="top"><span><b>headhunt</b> · {escape(name)}</span><span>{escape(status)}</span></div>'


def _figure(caption: str, chart: str) -> str:
    return f'<div><p class="caption">{escape(caption)}</p>{chart}</div>'


def _track(share: float) -> str:
    return f'<div class="track"><div style="width:{100 * min(1.0, share):.1f}%"></div></div>'


def _stage(stage: Mapping[str, Any]) -> str:
    title = " and ".join(stage.get("titles") or [stage["title"]])
    kind = " output" if stage["stage"] == "output" else ""
    text = f"{escape(title)}<small>{escape(str(stage['detail']))}</small>"
    return f'<span><span class="stage{kind}">{text}</span></span>'


def _leaderboard(trials: Sequence[Mapping[str, Any]], metric: str, winner: int | None) -> str:
    if not trials:
        return ""
    rows = [
        f"<tr{' class=winner' if trial['trial'] == winner else ''}><td class=num>#{trial['trial']}</td>"
        f"<td class=num>{number(trial['score'])}</td><td>{escape(trial['description'])}</td></tr>"
        for trial in trials
    ]
    heads = f"<th class=num></th><th class=num>{escape(metric)}</th><th>candidate</th>"
    return f'<table class="rows"><thead><tr>{heads}</tr></thead><tbody>{"".join(rows)}</tbody></table>'


def _code(lines: Sequence[str]) -> str:
    return f'<pre class="call">{escape(chr(10).join(lines))}</pre>'
