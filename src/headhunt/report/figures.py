"""What a run directory says of its search, as plain data: the facts and the figures of the report.

Hides which file holds what, and what may be missing: a search that is still going on, one that was cut off, one of an
older version. What is not known is left out; nothing is drawn here, and nothing is computed that needs a model.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from headhunt.report.legacy import result_data, task_data
from headhunt.report.terminal import best_so_far, clock_words
from headhunt.report.validation_diagnostics import look
from headhunt.run.directory import RunDirectory
from headhunt.run.ledger import read_state
from headhunt.run.state import State, Trial
from headhunt.run.task import open_task
from headhunt.spec import NAMED, OFF, Choice, Leaf, Space, describe, recipe_words, stages
from headhunt.study.candidates import Candidates, contains, position_of, value_at

SCHEMA = 1
ABLATION, IMPORTANCE = "ablation.json", "importance.json"
MISTAKES = 10
LONGEST = 600  # characters of a text that is shown
TEXTS = 20_000  # rows whose words are counted for the summary of the data


def facts(folder: str | Path, sections: Iterable[str] | None = None) -> dict[str, Any]:
    """Everything the report says, JSON-able; a section that nothing is known of is missing.

    Args:
        folder: The run directory, of a search under way or over.
        sections: Only these of `SECTIONS`.

    Raises:
        RunError: If there is no run in the folder.
    """
    run = _Run(Path(folder))
    found = {name: SECTIONS[name](run) for name in (SECTIONS if sections is None else sections)}
    kept = {name: section for name, section in found.items() if section not in (None, [], {})}
    return _finite({"schema": SCHEMA, **kept})


@dataclass
class _Run:
    """The files of a run, each read once."""

    folder: Path

    def __post_init__(self) -> None:
        self.files = RunDirectory(self.folder)
        self.state: State = read_state(self.files)
        self.settings, self.task = self.files.read_settings(), self.files.read_task_info()
        self.about, self.result = task_data(self.task), result_data(self.files.read_result())
        self.pair = self.task.pair
        saved = self.state.model
        self.model = self.files.best_model(saved.folder if saved else None, self.state.ended is not None)

    def json(self, name: str) -> dict[str, Any]:
        """A file of the run; empty where it is missing or being written."""
        try:
            data = json.loads((self.folder / name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return data if isinstance(data, dict) else {}

    @property
    def metric(self) -> str:
        """What scores of candidates are; higher is better, so that an error is counted below zero."""
        return "−mse" if self.settings.metric == "mse" else self.settings.metric

    @property
    def plain(self) -> Trial | None:
        """The plain head, which is always tried first."""
        return self.state.trials[0] if self.state.trials else None

    @cached_property
    def winner(self) -> Trial | None:
        """The candidate the search ended with; the best so far where it has not ended."""
        if not self.result:
            return self.state.best
        ended_with = self.result.get("best") or self.result.get("plain") or {}
        number = ended_with.get("trial")
        if not isinstance(number, int) or not 0 <= number < len(self.state.trials):
            return None
        return self.state.trials[number] if ended_with.get("score") is not None else None

    @property
    def fractions(self) -> Sequence[float]:
        """The share of a candidate's examples at each rung."""
        return self.state.started.fractions if self.state.started else ()

    @cached_property
    def leaves(self) -> dict[str, Leaf]:
        """What was searched, by path."""
        space = Space.from_dict(self.settings.space)
        problem_type = self.task.problem_type
        return Candidates(space, encoder=self.settings.encoder, pair=self.pair, problem_type=problem_type).leaves

    @cached_property
    def heldout(self) -> dict[str, Any]:
        """What the answers to held-out rows show."""
        both = {"model": self.winner, "plain": self.plain}
        judged = {who: one for who, one in both.items() if one and one.best}
        answers = {who: self.files.predictions(one.number, one.best[0]) for who, one in judged.items() if one.best}
        return look(self.files.task, answers)

    @cached_property
    def layers(self) -> int | None:
        """How many layers the encoder has, read off a model on disk or the encoder's own folder."""
        places = [self.model, Path(self.settings.encoder)]
        for place in places:
            try:
                config = json.loads((place / "config.json").read_text(encoding="utf-8")) if place else {}
            except (OSError, ValueError):
                continue
            for part in (config, config.get("encoder") or {}):
                for name in ("num_hidden_layers", "n_layers", "num_layers"):
                    if isinstance(part.get(name), int):
                        return part[name]
        return None

    def judged(self, name: str) -> tuple[Any, str, int | None]:
        """A part of the result on test rows or else of the held-out rows, on which rows, and how many."""
        if self.result.get(name):
            return self.result[name], "test rows", self.result.get("test_rows")
        held = {"test": "scores"}.get(name, name)
        return self.heldout.get(held), "held-out rows", self.heldout.get("rows")


def _about_run(run: _Run) -> dict[str, Any]:
    state, result = run.state, run.result
    failed = sum(one.score is None for trial in state.trials for one in trial.results.values())
    began = run.state.started_at
    return {
        "name": run.about["name"],
        "folder": run.folder.as_posix(),
        "began": datetime.fromtimestamp(began, UTC).isoformat(timespec="seconds") if began else None,
        "over": state.ended is not None,
        "reason": state.ended,
        "stale": bool(result) and result.get("results", 0) < len(state.settled),
        "trials": len(state.trials),
        "results": len(state.settled),
        "failed": failed,
        "seconds": round(state.elapsed, 1),
        "worker_seconds": round(state.seconds, 1),
        "metric": run.metric,
        "judged_on": run.task.evaluated_on,
        "encoder": run.settings.encoder,
        "strategy": run.settings.strategy,
        "space": run.settings.space.get("name", "own"),
        "seed": run.settings.seed,
    }


def _headline(run: _Run) -> str:
    """The verdict; before there is one, what can be said without it."""
    verdict = run.result.get("verdict") or {}
    if verdict.get("sentence"):
        return str(verdict["sentence"])
    best, plain = run.winner, run.plain
    count = f"{len(run.state.trials)} candidate{'s' if len(run.state.trials) != 1 else ''}"
    if best is None or best.best is None:
        return f"No candidate has a score yet, after {clock_words(run.state.elapsed)} and {count}."
    words = f"{best.best[1]:.4f} {run.metric}"
    so_far = "reached" if run.state.ended else "has so far reached"
    if best is plain:
        return f"The plain head is the best of {count}: it {so_far} {words} on held-out rows."
    beside = f", the plain head {plain.best[1]:.4f}" if plain and plain.best and plain.best[0] == best.best[0] else ""
    return f"The best of {count} {so_far} {words} on held-out rows{beside}. Whether that is a gain is not tested."


def _verdict(run: _Run) -> dict[str, Any] | None:
    return run.result.get("verdict") or None


def _scores(run: _Run) -> dict[str, Any] | None:
    """Winner against plain head: every metric with its interval."""
    scores, on, rows = run.judged("test")
    if not scores:
        return None
    best, members = run.winner, run.result.get("mean_of") or []
    names = {
        "model": f"winner (#{best.number})" if best else "model",
        "plain": "plain head",
        "mean": {0: "mean of the best", 1: "mean of its parts"}.get(len(members), f"mean of {len(members)}"),
    }
    if best is not None and best is run.plain and "model" in scores:
        names["model"] = "plain head (#0)"
        scores = {who: values for who, values in scores.items() if who != "plain"}
    known = {who: scores[who] for who in names if who in scores}
    metrics = list(next(iter(known.values()), {}))
    metrics.sort(key=lambda name: name != run.settings.metric)  # what was searched for comes first
    rows_of = {
        name: [{"who": who, "name": names[who], **values[name]} for who, values in known.items() if name in values]
        for name in metrics
    }
    return {"on": on, "rows": rows, "metrics": rows_of}


def _candidate(run: _Run, trial: Trial | None) -> dict[str, Any] | None:
    if trial is None:
        return None
    spec = trial.spec
    rung, score = trial.best or (None, None)
    return {
        "trial": trial.number,
        "rung": rung,
        "score": score,
        "words": describe(spec),
        "spec": trial.spec_data,
        "stages": stages(spec, run.layers, run.pair, run.about["problem_type"], len(run.about["labels"])),
        "recipe": recipe_words(spec),
    }


def progress(state: State, metric: str, top: int = 0) -> dict[str, Any] | None:
    """Every result as it came, and the best so far.

    Args:
        state: What the ledger holds.
        metric: What scores are.
        top: The highest rung there is.
    """
    points = []
    for (number, rung), seconds in zip(state.settled, state.times, strict=True):
        score = state.trials[number].results[rung].score
        if score is not None:
            points.append({"at": round(seconds, 2), "score": score, "rung": rung, "trial": number})
    if not points:
        return None
    plain = state.trials[0].best
    return {
        "metric": metric,
        "results": points,
        "best": [[round(seconds, 2), score] for seconds, score in best_so_far(state)],
        "end": round(max(state.elapsed, points[-1]["at"]), 2),
        "plain": {"rung": plain[0], "score": plain[1]} if plain else None,
        "top": max(top, max(point["rung"] for point in points)),
    }


def _learning(run: _Run) -> dict[str, Any] | None:
    """Scores of candidates judged at more than one rung, and the losses of a training where results hold them."""
    lines = []
    for trial in run.state.trials:
        scored = sorted((rung, one.score) for rung, one in trial.results.items() if one.score is not None)
        if len(scored) > 1 and scored[-1][0] < len(run.fractions):
            lines.append({"trial": trial.number, "scores": [[run.fractions[rung], score] for rung, score in scored]})
    losses = {}
    for who, one in (("winner", run.winner), ("plain", run.plain)):
        last = one.results[max(one.results)] if one and one.results else None
        held = _numbers(last.extra.get("losses")) if last else []
        if len(held) > 1:
            losses[who] = held
    if not lines and not losses:
        return None
    winner, plain = run.winner, run.plain
    return {
        "metric": run.metric,
        "fractions": list(run.fractions),
        "lines": lines,
        "losses": losses,
        "winner": winner.number if winner else None,
        "plain": plain.number if plain else None,
    }


def _space(run: _Run) -> dict[str, Any] | None:
    """Where on every searched leaf each candidate lies, from 0 to 1, and how well it did."""
    scored = [trial for trial in run.state.trials if trial.best]
    if len(scored) < 3 or not run.leaves:
        return None
    rows: list[dict[str, Any]] = []
    for trial in scored:
        assert trial.best is not None
        places = [_place(trial.spec_data, path, leaf) for path, leaf in run.leaves.items()]
        rows.append({"trial": trial.number, "score": trial.best[1], "rung": trial.best[0], "places": places})
    leaves = [{"path": path, "name": leaf_words(path), "ticks": ticks(leaf)} for path, leaf in run.leaves.items()]
    return {
        "metric": run.metric,
        "leaves": leaves,
        "trials": rows,
        "top": max(row["rung"] for row in rows),
        "winner": run.winner.number if run.winner else None,
    }


def _place(spec: Mapping[str, Any], path: str, leaf: Leaf) -> float | None:
    """How far along a leaf a candidate lies; None where its part is off, so that the leaf decides nothing."""
    value: Any = spec
    for key in path.split("."):
        if not isinstance(value, Mapping):
            return None
        value = value.get(key)
    if leaf == Choice((False, True)) and not isinstance(value, bool):
        value = value is not None  # the switch of a part
    return round(position_of(leaf, value), 4) if contains(leaf, value) else None


def leaf_words(path: str) -> str:
    """A leaf's path as people say it."""
    parts = path.split(".")[1:] if path.startswith(("head.", "recipe.")) else path.split(".")
    return " ".join(parts).replace("_", " ").replace("mlp", "MLP").replace("smart", "SMART").replace("lora", "LoRA")


def ticks(leaf: Leaf) -> list[tuple[float, str]]:
    """Places on a leaf that are worth naming, and their names: all options, or the ends and the middle."""
    if isinstance(leaf, Choice):
        names = {None: OFF, False: "no", True: "yes"}
        return [
            (position_of(leaf, option), names[option] if option is None or isinstance(option, bool) else _short(option))
            for option in leaf.options
        ]
    values = dict.fromkeys(value_at(leaf, share) for share in (0.0, 0.5, 1.0))
    return [(round(position_of(leaf, value), 4), _short(value)) for value in values]


def _importance(run: _Run) -> list[dict[str, Any]]:
    items = _whole(run.json(IMPORTANCE).get("items"), ("importance",))
    named = [{"name": leaf_words(str(item.get("name", ""))), "importance": item["importance"]} for item in items]
    return sorted(named, key=lambda item: -item["importance"])


def _ablation(run: _Run) -> dict[str, Any] | None:
    data = run.json(ABLATION)
    items = _whole(data.get("items"), ("score", "difference", "low", "high"))
    if not items:
        return None
    return {"metric": run.metric, "base": data.get("base"), "items": sorted(items, key=lambda one: one["difference"])}


def _finalists(run: _Run) -> dict[str, Any] | None:
    """What the last candidates cost, and which of them nothing beats on both score and cost."""
    found = []
    for item in run.result.get("finalists") or []:
        number, scores = item.get("trial"), _numbers(item.get("scores"))
        if not scores or not isinstance(number, int) or not 0 <= number < len(run.state.trials):
            continue
        latency = item.get("latency") or {}
        found.append(
            {
                "trial": number,
                "name": "plain head" if number == 0 else f"#{number}",
                "words": describe(run.state.trials[number].spec),
                "score": mean(scores),
                "scores": scores,
                "latency": latency,
                "p50_ms": (latency.get("1") or {}).get("p50_ms"),
                **{key: item.get(key) for key in ("megabytes", "gflops", "parameters")},
            }
        )
    if not found:
        return None
    fronts = {cost: front(found, cost) for cost in ("p50_ms", "megabytes") if sum(_is(one[cost]) for one in found) > 1}
    return {"metric": run.metric, "items": found, "fronts": fronts, "winner": run.winner.number if run.winner else None}


def front(items: Sequence[Mapping[str, Any]], cost: str) -> list[int]:
    """Trials that no other beats on score without costing more; cheapest first.

    Args:
        items: With `trial`, `score` and what they cost.
        cost: The name of what they cost.
    """
    kept: list[int] = []
    best = -math.inf
    for item in sorted((one for one in items if _is(one[cost])), key=lambda one: (one[cost], -one["score"])):
        if item["score"] > best:
            best = item["score"]
            kept.append(item["trial"])
    return kept


def _confusion(run: _Run) -> dict[str, Any] | None:
    found, on, rows = run.judged("confusion")
    labels = run.about["labels"]
    square = {who: matrix for who, matrix in (found or {}).items() if len(matrix) == len(labels)}
    if run.winner is not None and run.winner is run.plain:
        square.pop("plain", None)
    return {"on": on, "rows": rows, "labels": labels, "models": square} if square else None


def _calibration(run: _Run) -> dict[str, Any] | None:
    found, on, rows = run.judged("calibration")
    bins = _whole((found or {}).get("model"), ("confidence", "accuracy", "rows"))
    if not bins:
        return None
    total = sum(one["rows"] for one in bins)
    error = sum(one["rows"] * abs(one["confidence"] - one["accuracy"]) for one in bins) / max(1, total)
    return {"on": on, "rows": rows, "bins": bins, "temperature": (found or {}).get("temperature"), "error": error}


def _mistakes(run: _Run) -> dict[str, Any] | None:
    found, on, _ = run.judged("mistakes")
    items = [
        {key: _cut(value) if isinstance(value, str) else value for key, value in item.items()}
        for item in (found or [])[:MISTAKES]
    ]
    return {"on": on, "items": items} if items else None


def _data(run: _Run) -> dict[str, Any]:
    about = run.about
    shown = {name: about[name] for name in ("name", "problem_type", "labels", "rows", "columns", "notes", "warnings")}
    shown["fingerprint"] = about["fingerprint"]
    train = open_task(run.files.task, ("train",)).splits["train"]
    if about["problem_type"] == "single_label_classification":
        shown["counts"] = np.bincount(train.targets, minlength=len(about["labels"])).tolist()
    elif about["problem_type"] == "multi_label_classification":
        shown["counts"] = [int(count) for count in train.targets.sum(0)]
    words = train.words[:TEXTS]
    if len(words):
        low, middle, high = (int(value) for value in np.quantile(words, [0.05, 0.5, 0.95]))
        shown["words"] = {"few": low, "median": middle, "many": high}
    return shown


def _trials(run: _Run) -> list[dict[str, Any]]:
    """Every candidate: those with a score first, best first."""
    ranked = run.state.leaderboard()
    there = {trial.number for trial in ranked}
    rows = []
    for trial in [*ranked, *(trial for trial in run.state.trials if trial.number not in there)]:
        rung, score = trial.best or (trial.reached if trial.reached >= 0 else None, None)
        last = trial.results[max(trial.results)] if trial.results else None
        running = trial.number in run.state.running
        row = {
            "trial": trial.number,
            "score": score,
            "rung": rung,
            "outcome": "running" if running else last.outcome if last else "waiting",
            "origin": trial.origin,
            "seconds": round(sum(result.seconds for result in trial.results.values()), 2),
            "words": describe(trial.spec),
        }
        if last is not None and last.score is None and last.extra.get("message"):
            row["message"] = _cut(str(last.extra["message"]), 200)
        rows.append(row)
    return rows


def _load(run: _Run) -> dict[str, Any] | None:
    """Three lines that load the model and ask it."""
    if run.model is None:
        return None
    folder = run.model.as_posix()
    texts = '"one text", "another"' if run.pair else '"a text"'
    lines = [
        "import headhunt",
        f"model = headhunt.load({json.dumps(folder, ensure_ascii=False)})",
        f"print(model.predict({texts})[0].label)",
    ]
    return {"folder": folder, "lines": lines}


def _repeat(run: _Run) -> dict[str, Any]:
    """The command that searches again; the data is where the user has it."""
    settings = run.settings
    return {"command": settings.command(run.task, _space_name(run)), "seed": settings.seed, "space": settings.space}


def _space_name(run: _Run) -> str:
    """The name of a space that Headhunt knows; any other is taken from the run's own record."""
    name = run.settings.space.get("name", "own")
    if name in NAMED and (run.layers is None or NAMED[name](run.layers).to_dict() == run.settings.space):
        return str(name)
    return "space.json"


def _versions(run: _Run) -> dict[str, Any]:
    return run.state.started.versions if run.state.started else {}


def _rungs(run: _Run) -> list[dict[str, Any]]:
    return run.result.get("rungs") or []


def _cost(run: _Run) -> dict[str, Any]:
    return run.result.get("cost") or {}


SECTIONS: dict[str, Callable[[_Run], Any]] = {
    "run": _about_run,
    "headline": _headline,
    "verdict": _verdict,
    "scores": _scores,
    "winner": lambda run: _candidate(run, run.winner),
    "plain": lambda run: _candidate(run, run.plain),
    "progress": lambda run: progress(run.state, run.metric, len(run.fractions) - 1),
    "learning": _learning,
    "space": _space,
    "importance": _importance,
    "ablation": _ablation,
    "finalists": _finalists,
    "confusion": _confusion,
    "mistakes": _mistakes,
    "calibration": _calibration,
    "data": _data,
    "rungs": _rungs,
    "trials": _trials,
    "load": _load,
    "repeat": _repeat,
    "versions": _versions,
    "cost": _cost,
}


def _short(value: Any) -> str:
    return f"{value:.2g}" if isinstance(value, float) else str(value)


def _cut(text: str, longest: int = LONGEST) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1].rstrip()}…"


def _is(value: Any) -> bool:
    """Whether this is a number that can be drawn."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _numbers(values: Any) -> list[float]:
    return [value for value in values if _is(value)] if isinstance(values, list) else []


def _whole(items: Any, keys: Iterable[str]) -> list[dict[str, Any]]:
    """The items that have a number for each of these keys."""
    known = items if isinstance(items, list) else []
    return [item for item in known if isinstance(item, dict) and all(_is(item.get(key)) for key in keys)]


def _finite(data: Any) -> Any:
    """The same data as strict JSON has it: no tuples, and nothing in place of a number that is none."""
    if isinstance(data, Mapping):
        return {str(key): _finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_finite(value) for value in data]
    if isinstance(data, float) and not math.isfinite(data):
        return None
    return data
