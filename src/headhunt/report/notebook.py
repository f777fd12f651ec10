"""What a notebook shows: a search, a model, and how a search goes, each as one card.

Hides HTML and the kernel. A card needs no script and nothing from the network, escapes every word that comes from data,
and follows the notebook's theme. One that follows a search is one output that changes, not many.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from html import escape
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from headhunt.report import charts, facts
from headhunt.report import terminal as progress
from headhunt.report.charts import number
from headhunt.report.figures import progress as progress_of
from headhunt.report.terminal import clock_words
from headhunt.spec import describe, stages

if TYPE_CHECKING:
    from headhunt.engine.driver import View
    from headhunt.engine.search import Search
    from headhunt.predictor import Predictor
    from headhunt.run.state import State
    from headhunt.training.loop import Report

BEST = 5  # candidates that a card lists
LABELS = 12  # labels that a card names
WIDTH, HEIGHT = 392, 190  # of a drawing, two of which stand side by side
PAUSE = 1.0  # seconds between two pictures of a search


def search_card(search: Search) -> str:
    """A search, under way or over: the verdict, winner against plain head, how it went, the best, and the model."""
    found = facts(search.run_dir, ("run", "headline", "scores", "winner", "progress", "trials", "load"))
    run = found["run"]
    told = f"{run['trials']} candidates in {clock_words(run['seconds'])}"
    state = "" if run["over"] else " · not over yet"
    parts = [
        _top(run["name"], f"{told}{state}"),
        f'<p class="said">{escape(found["headline"]).replace(" %", "&nbsp;%")}</p>',
    ]
    drawn = []
    if "scores" in found:
        scores = found["scores"]
        main = next(iter(scores["metrics"]))
        rows = f"{scores['rows']:,} {scores['on']}" if scores["rows"] else scores["on"]
        both = [row for row in scores["metrics"][main] if row["who"] in ("model", "plain")]
        chart = charts.whiskers(both, main, WIDTH)
        drawn.append(_figure(f"on {rows}, with 95 % intervals", chart))
    if "progress" in found:
        chart = charts.progress(_upper(found["progress"]), WIDTH, HEIGHT)
        drawn.append(_figure(f"best {run['metric']} so far, on held-out rows", chart))
    if drawn:
        parts.append(f'<div class="pair">{"".join(drawn)}</div>')
    scored = [trial for trial in found.get("trials", []) if trial["score"] is not None]
    parts.append(_leaderboard(scored[:BEST], run["metric"], found.get("winner", {}).get("trial")))
    if "load" in found:
        parts.append(_code(found["load"]["lines"][1:]))
    return _card(parts)


def predictor_card(predictor: Predictor) -> str:
    """A model: what it answers, how large it is, how it is built, how to ask it."""
    sizes = [(p.numel(), p.numel() * p.element_size()) for p in predictor.model.parameters()]
    parameters, size = (sum(column) for column in zip(*sizes, strict=True))
    takes = "two texts" if predictor.pair else "one text"
    count = len(predictor.labels)
    gives = {
        "single_label_classification": f"one of {count} classes",
        "multi_label_classification": f"any of {count} labels",
    }.get(predictor.problem_type, "a number")
    layers = getattr(predictor.model.config, "num_hidden_layers", None)
    weights = f"{charts.compact(parameters)} parameters · {charts.compact(size / 1e6)} MB · {predictor.device}"
    parts = [_top("model", weights), f'<p class="said">{takes.capitalize()} in, {gives} out.</p>']
    if predictor.spec is not None:
        drawn = stages(predictor.spec, layers, predictor.pair, predictor.problem_type, count)
        if predictor.spec.head.layers == 1:  # the last layer goes without saying
            drawn = [stage for stage in drawn if stage["stage"] != "layers"]
        parts.append(f'<div class="line">{"".join(map(_stage, drawn))}</div>')
    if predictor.labels:
        rest = f' <span class="quiet">and {count - LABELS} more</span>' if count > LABELS else ""
        named = "".join(f"<i>{escape(label)}</i>" for label in predictor.labels[:LABELS])
        parts.append(f'<p class="labels">{named}{rest}</p>')
    scores = (predictor.facts.get("test") or {}).get("scores", {})
    if scores:
        known = [f"{escape(name.replace('_', ' '))} {number(one['value'])}" for name, one in scores.items()]
        parts.append(f'<p class="labels quiet">on test rows: {" · ".join(known[:3])}</p>')
    asked = '"one text", "another"' if predictor.pair else '"a text"'
    answer = {
        "single_label_classification": "label, .probability",
        "multi_label_classification": "label, .probabilities",
    }.get(predictor.problem_type, "label")
    parts.append(_code([f"model.predict({asked})[0]  # .{answer}", 'model.save("folder")']))
    return _card(parts)


def _upper(data: dict[str, Any]) -> dict[str, Any]:
    """The same without the lower half of the results: in a small drawing they would leave no room for the curve."""
    middle = median(point["score"] for point in data["results"])
    return {**data, "results": [point for point in data["results"] if point["score"] >= middle]}


class LiveCard:
    """A search as it goes: one output of the cell, drawn anew at most once a second.

    Args:
        metric: What scores are.
    """

    def __init__(self, metric: str) -> None:
        self.metric = metric
        self._shown = 0.0
        self._stage = ""

    def begin(self, folder: Path, name: str, state: State, deadline: float | None) -> None:
        """Shows the card."""
        from IPython.display import HTML, display

        self._folder, self._name, self._state, self._deadline = folder, name, state, deadline
        self._began = time.time()
        self._handle = display(HTML(self._draw("starting")), display_id=True)

    def update(self, state: State, deadline: float | None, stage: str) -> None:
        """Draws it anew, where something is new and it is time."""
        self._state, self._deadline = state, deadline
        if stage != self._stage or time.time() - self._shown >= PAUSE:
            self._stage, self._shown = stage, time.time()
            self._put(self._draw(stage))

    def end(self) -> None:
        """Leaves one line; the search itself shows the rest."""
        told = f"{len(self._state.trials)} candidates in {clock_words(time.time() - self._began)}"
        self._put(_card([_top(self._name, f"{told}, kept in {self._folder}")], "slim"))

    def _put(self, html: str) -> None:
        from IPython.display import HTML

        self._handle.update(HTML(html))

    def _draw(self, stage: str) -> str:
        state, spent = self._state, time.time() - self._began
        left = None if self._deadline is None else max(0.0, self._deadline - time.time())
        clock = clock_words(spent) + ("" if left is None else f", {clock_words(left)} left")
        parts = [_top(self._name, f"{stage} · {clock}")]
        if left is not None:
            parts.append(_track(spent / max(1e-9, spent + left)))
        data = progress_of(state, self.metric)
        if data is not None:
            parts.append(
                _figure(f"best {self.metric} so far, on held-out rows", charts.progress(_upper(data), 808, HEIGHT))
            )
        board = [
            {"trial": one.number, "score": one.best[1], "words": describe(one.spec)}
            for one in state.leaderboard()[:3]
            if one.best
        ]
        parts.append(_leaderboard(board, self.metric, None))
        told = f"{len(state.trials)} candidates, {len(state.settled)} results, {len(state.running)} running"
        parts.append(f'<p class="quiet" style="margin:0">{told}. Interrupt the kernel to end with what was found.</p>')
        return _card(parts)


def live_card(metric: str) -> View | None:
    """A card that follows a search, in a notebook; elsewhere None."""
    return LiveCard(metric) if in_notebook() else None


@contextmanager
def training_bar(name: str) -> Iterator[Callable[[Report], None]]:
    """A bar that follows one training: on a terminal, or as one changing output of a notebook's cell."""
    if not in_notebook():
        with progress.training_bar(name) as show:
            yield show
        return
    from IPython.display import HTML, display

    handle = display(HTML(_card([_top(name, "starting")], "slim")), display_id=True)
    began = shown = time.time()

    def follow(report: Report) -> None:
        nonlocal shown
        over = report.examples >= report.total
        if over or time.time() - shown >= PAUSE:
            shown = time.time()
            told = f"{report.examples:,} of {report.total:,} examples · loss {number(report.loss, 3)}"
            told += f" · {clock_words(shown - began)}"
            parts = [_top(name, told)] + ([] if over else [_track(report.examples / report.total)])
            handle.update(HTML(_card(parts, "slim")))

    yield follow


def in_notebook() -> bool:
    """Whether a notebook's kernel runs this, and shows what is displayed."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


def _card(parts: Sequence[str], problem_type: str = "") -> str:
    palette, drawings, own = map(charts.read_beside, ("palette.css", "charts.css", "card.css"))
    style = f".headhunt-card {{ {palette}\n{drawings} }}\n{own}"
    return f'<style>{style}</style><div class="headhunt-card {problem_type}">{"".join(parts)}</div>'


def _top(name: str, told: str) -> str:
    return f'<div class="top"><span><b>headhunt</b> · {escape(name)}</span><span>{escape(told)}</span></div>'


def _figure(caption: str, drawing: str) -> str:
    return f'<div><p class="caption">{escape(caption)}</p>{drawing}</div>'


def _track(share: float) -> str:
    return f'<div class="track"><div style="width:{100 * min(1.0, share):.1f}%"></div></div>'


def _stage(stage: dict[str, Any]) -> str:
    """One stage of the line from tokens to answer, with its detail where that says more than the title."""
    title = " and ".join(stage.get("titles") or [stage["title"]])
    problem_type = " output" if stage["stage"] == "output" else ""
    words = f"{escape(title)}<small>{escape(str(stage['detail']))}</small>"
    return f'<span><span class="stage{problem_type}">{words}</span></span>'


def _leaderboard(trials: Sequence[dict[str, Any]], metric: str, winner: int | None) -> str:
    if not trials:
        return ""
    rows = [
        f"<tr{' class=winner' if trial['trial'] == winner else ''}><td class=num>#{trial['trial']}</td>"
        f"<td class=num>{number(trial['score'])}</td><td>{escape(trial['words'])}</td></tr>"
        for trial in trials
    ]
    heads = f"<th class=num></th><th class=num>{escape(metric)}</th><th>candidate</th>"
    return f'<table class="rows"><thead><tr>{heads}</tr></thead><tbody>{"".join(rows)}</tbody></table>'


def _code(lines: Sequence[str]) -> str:
    return f'<pre class="call">{escape(chr(10).join(lines))}</pre>'
