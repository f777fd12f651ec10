"""Data of the charts, computed from a run: progress, learning curves, search space, Pareto fronts.

Nothing is drawn here, and nothing is computed that needs a model.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from statistics import mean
from typing import Any

from headhunt.report.run_data import RunData
from headhunt.report.terminal import best_so_far
from headhunt.run.results import Finalist
from headhunt.run.state import State, Trial
from headhunt.spec import OFF, Choice, Leaf, describe
from headhunt.study.candidates import contains, position_of, value_at

Figure = dict[str, Any]


def progress_figure(state: State, metric: str, top: int = 0) -> Figure | None:
    """Return every result in order, and the best so far; None before the first result.

    Args:
        state: The state of the search.
        metric: Name of the score.
        top: The highest rung of the search.
    """
    points = []
    for (number, rung), seconds in zip(state.settled, state.times, strict=True):
        score = state.trials[number].results[rung].score
        if score is not None:
            points.append({"at": round(seconds, 2), "score": score, "rung": rung, "trial": number})
    if not points:
        return None
    plain = state.plain.best if state.plain else None
    return {
        "metric": metric,
        "results": points,
        "best": [[round(seconds, 2), score] for seconds, score in best_so_far(state)],
        "end": round(max(state.elapsed, points[-1]["at"]), 2),
        "plain": {"rung": plain[0], "score": plain[1]} if plain else None,
        "top": max(top, max(point["rung"] for point in points)),
    }


def learning_figure(run: RunData) -> Figure | None:
    """Return the scores of candidates with results at several rungs, and training losses if they were recorded."""
    lines = []
    for trial in run.state.trials:
        scored = sorted((rung, result.score) for rung, result in trial.results.items() if result.score is not None)
        if len(scored) > 1 and scored[-1][0] < len(run.fractions):
            lines.append({"trial": trial.number, "scores": [[run.fractions[rung], score] for rung, score in scored]})
    winner, plain = run.winner, run.state.plain
    curves = {"winner": _losses(winner), "plain": _losses(plain)}
    losses = {role: curve for role, curve in curves.items() if len(curve) > 1}
    if not lines and not losses:
        return None
    return {
        "metric": run.metric,
        "fractions": list(run.fractions),
        "lines": lines,
        "losses": losses,
        "winner": winner.number if winner else None,
        "plain": plain.number if plain else None,
    }


def _losses(trial: Trial | None) -> list[float]:
    """Return the training losses of a trial's last result; none of a head that was solved."""
    if trial is None or not trial.results or trial.is_solved:
        return []
    losses = trial.results[max(trial.results)].extra.get("losses")
    return [loss for loss in losses if is_number(loss)] if isinstance(losses, list) else []


def space_figure(run: RunData) -> Figure | None:
    """Return each candidate's position on every searched leaf, from 0 to 1, and its score."""
    scored = [(trial, *trial.best) for trial in run.state.trials if trial.best]
    if len(scored) < 3 or not run.leaves:
        return None
    rows = [
        {
            "trial": trial.number,
            "score": score,
            "rung": rung,
            "places": [_position(trial, path, leaf) for path, leaf in run.leaves.items()],
        }
        for trial, rung, score in scored
    ]
    leaves = [{"path": path, "name": leaf_name(path), "ticks": leaf_ticks(leaf)} for path, leaf in run.leaves.items()]
    return {
        "metric": run.metric,
        "leaves": leaves,
        "trials": rows,
        "top": max(rung for _, rung, _ in scored),
        "winner": run.winner.number if run.winner else None,
    }


def find_value(spec: Mapping[str, Any], path: str, leaf: Leaf) -> list[Any]:
    """Return a candidate's value of a leaf, alone in a list; an empty one if it belongs to a component that is off."""
    value: Any = spec
    for key in path.split("."):
        if not isinstance(value, Mapping):
            return []
        value = value.get(key)
    if leaf == Choice((False, True)) and not isinstance(value, bool):
        value = value is not None  # a leaf that switches a component on or off
    return [value] if contains(leaf, value) else []


def _position(trial: Trial, path: str, leaf: Leaf) -> float | None:
    return next((round(position_of(leaf, value), 4) for value in find_value(trial.spec_data, path, leaf)), None)


def leaf_name(path: str) -> str:
    """Return the name of a leaf in text: "head.mlp.width" becomes "MLP width"."""
    keys = path.split(".")[1:] if path.startswith(("head.", "recipe.")) else path.split(".")
    return " ".join(keys).replace("_", " ").replace("mlp", "MLP").replace("smart", "SMART").replace("lora", "LoRA")


def leaf_ticks(leaf: Leaf) -> list[tuple[float, str]]:
    """Return positions on a leaf with labels: all options, or both ends and the middle."""
    if isinstance(leaf, Choice):
        return [(position_of(leaf, option), value_text(option)) for option in leaf.options]
    values = dict.fromkeys(value_at(leaf, position) for position in (0.0, 0.5, 1.0))
    return [(round(position_of(leaf, value), 4), value_text(value)) for value in values]


def finalists_figure(run: RunData) -> Figure | None:
    """Return score and cost of the finalists."""
    finalists = run.result.finalists if run.result else ()
    items = [_finalist(run, one) for one in finalists if one.scores and one.trial < len(run.state.trials)]
    return {"metric": run.metric, "items": items} if items else None


def costs_figure(run: RunData) -> Figure | None:
    """Return score and cost of all fully evaluated candidates, and the Pareto fronts; None with fewer than three."""
    costs = [cost for cost in (run.result.costs if run.result else ()) if cost.trial < len(run.state.trials)]
    if len(costs) < 3:
        return None
    items = [
        {
            "trial": cost.trial,
            "name": _name_of(run, cost.trial),
            "description": describe(run.state.trials[cost.trial].spec),
            "score": cost.score,
            "p50_ms": cost.latency_ms,
            "megabytes": cost.megabytes,
            "efficient": cost.efficient,
        }
        for cost in costs
    ]
    fronts = {cost: pareto_front(items, cost) for cost in ("p50_ms", "megabytes")}
    return {"metric": run.metric, "items": items, "fronts": fronts}


def _name_of(run: RunData, number: int) -> str:
    """Return the name of a trial in a chart."""
    plain = run.state.plain
    return "plain head" if plain is not None and number == plain.number else f"#{number}"


def _finalist(run: RunData, finalist: Finalist) -> Figure:
    cost = asdict(finalist.cost) if finalist.cost else {"latency": {}}
    return {
        "trial": finalist.trial,
        "name": _name_of(run, finalist.trial),
        "score": mean(finalist.scores),
        "scores": list(finalist.scores),
        **{name: cost.get(name) for name in ("latency", "megabytes", "gflops", "parameters")},
    }


def pareto_front(items: Iterable[Mapping[str, Any]], cost: str) -> list[int]:
    """Return the trials for which no other has at least the same score at no more cost; cheapest first.

    Args:
        items: With `trial`, `score` and the cost.
        cost: Key of the cost.
    """
    front: list[int] = []
    best = -math.inf
    for item in sorted(items, key=lambda item: (item[cost], -item["score"])):
        if item["score"] > best:
            best = item["score"]
            front.append(item["trial"])
    return front


def is_number(value: Any) -> bool:
    """Return True for a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def value_text(value: Any) -> str:
    """Return a value of a leaf in text."""
    if value is None or isinstance(value, bool):
        return {None: OFF, False: "no", True: "yes"}[value]
    return f"{value:.2g}" if isinstance(value, float) else str(value)
