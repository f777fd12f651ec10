"""Facts of a search as plain data: the contents of report.json, which the page and the notebook show.

A section without facts is missing: the search may be running, or a step may have been skipped.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from headhunt.evaluation import Score, expected_calibration_error, find_metric
from headhunt.report.figures import (
    costs_figure,
    finalists_figure,
    leaf_name,
    learning_figure,
    progress_figure,
    space_figure,
)
from headhunt.report.markup import DELIVERED
from headhunt.report.run_data import RunData
from headhunt.report.svg import shorten
from headhunt.report.terminal import format_duration
from headhunt.report.words import call_words, verdict_words
from headhunt.run.results import ENSEMBLE, PLAIN, SOLVED, WINNER, WORDS, TestResult
from headhunt.run.schema import dump
from headhunt.run.state import SOLVED as SOLVED_ORIGIN
from headhunt.run.state import Trial
from headhunt.run.task import open_task
from headhunt.spec import NAMED, Space, describe, recipe_words, stages

SCHEMA = 2
MAX_TEXT = 600  # characters of a text
MAX_MESSAGE = 200  # characters of an error message
MAX_COUNTED = 20_000  # training rows whose words are counted


def collect_facts(folder: str | Path, sections: Iterable[str] | None = None) -> dict[str, Any]:
    """Return everything the report shows, as JSON-serializable data.

    Args:
        folder: The run directory of a running or finished search.
        sections: Names from `SECTIONS`; all of them if None.

    Raises:
        RunError: If there is no run in the folder.
    """
    run = RunData(folder)
    found = {name: SECTIONS[name](run) for name in (SECTIONS if sections is None else sections)}
    known = {name: section for name, section in found.items() if section not in (None, [], {})}
    return dump({"schema": SCHEMA, **known})


def _run(run: RunData) -> dict[str, Any]:
    state, settings = run.state, run.settings
    outcomes = [result for trial in state.trials for result in trial.results.values()]
    started = state.started_at
    return {
        "name": run.task.name,
        "folder": run.directory.path.as_posix(),
        "started": datetime.fromtimestamp(started, UTC).isoformat(timespec="seconds") if started else None,
        "finished": state.ended is not None,
        "reason": run.result.reason if run.result and state.ended else state.ended,
        "stale": run.result is not None and run.result.results < len(state.settled),
        "trials": len(state.trials),
        "results": len(state.settled),
        "failed": sum(result.score is None for result in outcomes),
        "seconds": round(state.elapsed, 1),
        "worker_seconds": round(state.seconds, 1),
        "examples": sum(result.examples for result in outcomes),
        "metric": run.metric,
        "evaluated_on": run.result.evaluated_on if run.result else run.task.evaluated_on,
        "test_evaluations": run.test_evaluations,
        "encoder": settings.encoder,
        "strategy": settings.strategy,
        "space": settings.space.get("name", "own"),
        "seed": settings.seed,
        "plan": run.plan.sentence if run.plan else None,
        "encoders": _encoders(run),
        "pretraining": _pretraining(run),
    }


def _pretraining(run: RunData) -> str | None:
    """Return what further pretraining did, in words; None without it."""
    done = run.directory.read_pretraining()
    if done is None:
        return None
    if done.folder is None:
        return done.note
    losses = "" if done.first_loss is None else f", loss {done.first_loss:.2f} to {done.last_loss:.2f}"
    return f"{done.texts:,} texts, {done.own:,} of them training rows, {done.epochs:g} epochs{losses}"


def _encoders(run: RunData) -> list[dict[str, Any]]:
    """Return the score of every encoder's solved head on the same rows, best first; empty if there is one encoder."""
    solved = [trial for trial in run.state.trials if trial.origin == SOLVED_ORIGIN and trial.bracket in trial.results]
    scored = [(trial, trial.results[trial.bracket].score) for trial in solved]
    known = [{"encoder": trial.spec.encoder, "score": score} for trial, score in scored if score is not None]
    return sorted(known, key=lambda item: -item["score"]) if len(solved) > 1 else []


def _headline(run: RunData) -> str:
    """Return the verdict, or the best score so far before there is one."""
    if run.result is not None:
        return verdict_words(run.result, run.directory.path)
    best, plain = run.winner, run.state.plain
    count = f"{len(run.state.trials)} candidate{'s' if len(run.state.trials) != 1 else ''}"
    if best is None or best.best is None:
        return f"No candidate has a score yet, after {format_duration(run.state.elapsed)} and {count}."
    score = f"{best.best[1]:.4f} {run.metric}"
    reached = "reached" if run.state.ended else "has reached"
    so_far = "" if run.state.ended else " so far"
    if run.plain_won:
        return f"The plain head is the best of {count}{so_far}: it {reached} {score} on validation rows."
    comparison = (
        f", the plain head {plain.best[1]:.4f}" if plain and plain.best and plain.best[0] == best.best[0] else ""
    )
    return f"The best of {count}{so_far} {reached} {score} on validation rows{comparison}. The gain is not tested yet."


def _verdict(run: RunData) -> dict[str, Any] | None:
    if run.result is None:
        return None
    return {**asdict(run.result.verdict), "delivered_name": DELIVERED.get(run.result.verdict.delivered)}


def _of_evaluation(section: Callable[[RunData, TestResult], Any]) -> Callable[[RunData], Any]:
    """Return a function that adds the evaluated rows to a section of the evaluation; None without an evaluation."""

    def collect(run: RunData) -> dict[str, Any] | None:
        evaluation, on = run.evaluation
        found = None if evaluation is None else section(run, evaluation)
        return {"on": on, "rows": evaluation.rows, **found} if evaluation and found else None

    return collect


def _scores(run: RunData, evaluation: TestResult) -> dict[str, Any] | None:
    """Return every metric of the winner, the plain head and the ensemble, with intervals."""
    scores = dict(evaluation.scores)
    members = len(run.result.ensemble_members) if run.result else 0
    names = {
        WINNER: f"winner (#{run.winner.number})" if run.winner else "model",
        PLAIN: "plain head",
        ENSEMBLE: f"mean of {members} unlike models",
        SOLVED: "frozen encoder, solved head",
        WORDS: "word counts, linear model",
    }
    if run.plain_won and WINNER in scores:
        names[WINNER] = f"plain head (#{run.winner.number})" if run.winner else "plain head"
        scores.pop(PLAIN, None)
    rows = _scores_by_metric({role: scores[role] for role in names if role in scores}, names, run.settings.metric)
    tasks = [
        {
            "name": task.name,
            "metric": task.metric,
            "rows": task.rows,
            "gain": None if task.gain is None else {"value": task.gain, "low": task.low, "high": task.high},
            "metrics": _scores_by_metric(
                {role: task.scores[role] for role in names if role in scores and role in task.scores},
                names,
                task.metric,
            ),
        }
        for task in evaluation.tasks
    ]
    return {"metrics": rows, "tasks": tasks} if scores else None


def _scores_by_metric(
    scores: Mapping[str, Mapping[str, Score]], names: Mapping[str, str], first: str
) -> dict[str, list[dict[str, Any]]]:
    """Return the score of every model by the title of a metric, the first metric first."""
    metrics = sorted(next(iter(scores.values()), {}), key=lambda name: name != first)
    return {
        find_metric(metric).name: [
            {"role": role, "name": names[role], **asdict(values[metric])}
            for role, values in scores.items()
            if metric in values
        ]
        for metric in metrics
    }


def _candidate(run: RunData, trial: Trial | None) -> dict[str, Any] | None:
    if trial is None:
        return None
    rung, score = trial.best or (None, None)
    return {
        "trial": trial.number,
        "rung": rung,
        "score": score,
        "description": describe(trial.spec),
        "spec": trial.spec_data,
        "stages": stages(
            trial.spec,
            run.layers_of(trial.spec),
            run.task.pair,
            run.task.problem_type,
            len(run.task.tasks or run.task.labels),
        ),
        "recipe": recipe_words(trial.spec),
    }


def _importance(run: RunData) -> list[dict[str, Any]]:
    items = run.importances.items if run.importances else ()
    shares = [{"name": leaf_name(item.name), "importance": item.importance} for item in items]
    return sorted(shares, key=lambda item: -item["importance"])


def _ablation(run: RunData) -> dict[str, Any] | None:
    if run.ablation is None or not run.ablation.items or run.winner is None:
        return None
    if run.ablation.trial != run.winner.number:
        return None  # of another winner, before the search was resumed
    items = sorted(run.ablation.items, key=lambda item: item.difference)
    base = {"score": run.ablation.base.value, "low": run.ablation.base.low, "high": run.ablation.base.high}
    return {"metric": run.metric, "base": base, "items": [asdict(item) for item in items]}


def _confusion(run: RunData, evaluation: TestResult) -> dict[str, Any] | None:
    labels = run.task.labels
    matrices = {role: matrix for role, matrix in evaluation.confusion.items() if len(matrix) == len(labels)}
    if run.plain_won:
        matrices.pop(PLAIN, None)
    return {"labels": labels, "models": matrices} if matrices else None


def _calibration(run: RunData, evaluation: TestResult) -> dict[str, Any] | None:
    if not evaluation.calibration:
        return None
    return {
        "bins": [asdict(group) for group in evaluation.calibration],
        "temperature": evaluation.temperature,
        "error": expected_calibration_error(evaluation.calibration),
        "several": run.task.problem_type == "multi_label_classification",
    }


def _mistakes(run: RunData, evaluation: TestResult) -> dict[str, Any] | None:
    items = [
        {
            "texts": [shorten(text, MAX_TEXT) for text in (mistake.text, mistake.text_b) if text is not None],
            "label": mistake.label,
            "prediction": mistake.prediction,
            "plain": mistake.plain_prediction,
            "confidence": mistake.confidence,
        }
        for mistake in evaluation.mistakes
    ]
    return {"items": items} if items else None


def _data(run: RunData) -> dict[str, Any]:
    task = run.task
    data: dict[str, Any] = {
        "name": task.name,
        "problem_type": task.problem_type,
        "labels": task.labels,
        "rows": task.rows,
        "columns": {} if task.tasks else asdict(task.columns),
        "tasks": [
            {"name": each.name, "problem_type": each.problem_type, "labels": each.labels, "pair": each.pair}
            | {"rows": each.rows, "columns": asdict(each.columns)}
            for each in task.tasks
        ],
        "notes": task.notes,
        "warnings": task.warnings,
        "fingerprint": task.fingerprint,
    }
    train = open_task(run.directory.task, ("train",)).splits["train"]
    if task.problem_type == "single_label_classification":
        data["counts"] = np.bincount(train.targets, minlength=len(task.labels)).tolist()
    elif task.problem_type == "multi_label_classification":
        data["counts"] = [int(count) for count in train.targets.sum(0)]
    words = train.words[:MAX_COUNTED]
    if len(words):
        low, middle, high = (int(value) for value in np.quantile(words, [0.05, 0.5, 0.95]))
        data["words"] = {"few": low, "median": middle, "many": high}
    return data


def _trials(run: RunData) -> list[dict[str, Any]]:
    """Return every candidate: those with a score first, best first."""
    ranked = run.state.leaderboard()
    scored = {trial.number for trial in ranked}
    rows = []
    for trial in [*ranked, *(trial for trial in run.state.trials if trial.number not in scored)]:
        rung, score = trial.best or (trial.reached if trial.reached >= 0 else None, None)
        last = trial.results[max(trial.results)] if trial.results else None
        running = trial.number in run.state.running
        row = {
            "trial": trial.number,
            "score": score,
            "rung": rung,
            "outcome": "running" if running else last.outcome if last else "waiting",
            "origin": trial.origin,
            "seconds": round(trial.seconds, 2),
            "description": describe(trial.spec),
        }
        if last is not None and last.score is None and last.extra.get("message"):
            row["message"] = shorten(str(last.extra["message"]), MAX_MESSAGE)
        rows.append(row)
    return rows


def _load(run: RunData) -> dict[str, Any] | None:
    """Return three lines of code that load the model and use it."""
    if run.model is None:
        return None
    folder, first = run.model.as_posix(), next(iter(run.task.tasks), None)
    texts = call_words(first.pair, first.name) if first else call_words(run.task.pair)
    lines = [
        "import headhunt",
        f"model = headhunt.load({json.dumps(folder, ensure_ascii=False)})",
        f"print(model.predict({texts})[0].label)",
    ]
    return {"folder": folder, "lines": lines}


def _repeat(run: RunData) -> dict[str, Any]:
    """Return the command that repeats the search."""
    settings = run.settings
    return {"command": settings.command(run.task, _space_name(run)), "seed": settings.seed, "space": settings.space}


def _space_name(run: RunData) -> str:
    """Return the name of a built-in space, or the file that any other space must be saved as."""
    name = run.settings.space.get("name", "own")
    layers = run.layers
    if name in NAMED and (
        layers is None
        or any(Space.load(name, layers, windows=on).to_dict() == run.settings.space for on in (False, True))
    ):
        return str(name)
    return "space.json"


SECTIONS: dict[str, Callable[[RunData], Any]] = {
    "run": _run,
    "headline": _headline,
    "verdict": _verdict,
    "scores": _of_evaluation(_scores),
    "winner": lambda run: _candidate(run, run.winner),
    "plain": lambda run: _candidate(run, run.state.plain),
    "progress": lambda run: progress_figure(run.state, run.metric, len(run.fractions) - 1),
    "learning": learning_figure,
    "space": space_figure,
    "importance": _importance,
    "ablation": _ablation,
    "finalists": finalists_figure,
    "costs": costs_figure,
    "confusion": _of_evaluation(_confusion),
    "mistakes": _of_evaluation(_mistakes),
    "calibration": _of_evaluation(_calibration),
    "errors": _of_evaluation(lambda run, evaluation: evaluation.errors and asdict(evaluation.errors)),
    "rejection": _of_evaluation(lambda run, evaluation: evaluation.rejection and asdict(evaluation.rejection)),
    "data": _data,
    "rungs": lambda run: [asdict(rung) for rung in run.result.rungs] if run.result else [],
    "trials": _trials,
    "load": _load,
    "repeat": _repeat,
    "versions": lambda run: run.versions,
}
