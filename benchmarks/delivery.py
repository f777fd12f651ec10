"""Measure what different rules of delivery make of the same five-minute searches, with 500 rows and MiniLM.

Three data sets, three draws of rows each (those of `search.py` with seeds 3, 4 and 5). Each search is one command with
default options. All rules are applied to its stored predictions of the test rows:

- `proven`: the plain head unless the test rows prove a gain; one training run of either
- `best`: the candidate with the best validation score; one training run
- `averaged`: the same with the weights of its training runs averaged, if the average predicts as they do (the default)
- `ensemble`: the ensemble if it has a better validation score, otherwise as `averaged`
- `plain`: the plain head, averaged in the same way

    python benchmarks/delivery.py --data DIR --encoder DIR --out benchmarks/results/delivery.json

Searches in the `.jsonl` file beside the result are not repeated.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import search
from measure import encoder_folder, finish, options

from headhunt.run.directory import RunDirectory, read_test_predictions
from headhunt.run.results import ENSEMBLE, PLAIN, WINNER, SearchResult
from headhunt.run.task import open_task, tested_rows

RULES = ("proven", "best", "averaged", "ensemble", "plain")
DRAWS = (3, 4, 5)


def apply_rules(directory: RunDirectory, result: SearchResult) -> dict[str, float | None]:
    """Return the test score of what each rule delivers; None if it was not tested."""
    metric = result.metric
    assert result.test is not None
    scores = {name: values[metric].value for name, values in result.test.scores.items()}
    test = open_task(directory.task, ("test",)).splits["test"]
    rows = tested_rows(test, result.test.rows)  # a slow machine predicts a sample of them
    targets = test.targets if rows is None else test.targets[rows]

    def first_run(trial: int | None, otherwise: float | None) -> float | None:
        """Return the score of a trial's first training run on all rows."""
        path = None if trial is None else directory.test_predictions(directory.final_model(trial, 0).name)
        if path is None or not path.exists():
            return otherwise
        return float((read_test_predictions(path)[0].argmax(1) == targets).mean())

    winner = first_run(result.winner.trial if result.winner else None, scores.get(WINNER))
    plain = first_run(result.plain.trial if result.plain else None, scores.get(PLAIN))
    delivered_plain = result.verdict.delivered == "plain"
    averaged = scores.get(PLAIN if delivered_plain else WINNER)
    return {
        "proven": winner if result.verdict.claim == "gain" else plain,
        "best": plain if delivered_plain else winner,
        "averaged": averaged,
        "ensemble": scores.get(ENSEMBLE, averaged) if result.ensemble else averaged,
        "plain": scores.get(PLAIN),
    }


def measure_search(task: str, draw: int, data: Path, encoder: str, seconds: int, rows: int) -> dict[str, Any]:
    """Run one search and return the score of each rule."""
    with tempfile.TemporaryDirectory() as folder:
        words = search.draw(task, data, Path(folder), rows, seed=draw)
        command = [sys.executable, "-m", "headhunt.cli", "search", *words, "--encoder", encoder]
        command += ["--time", f"{seconds}s", "--out", f"{folder}/run"]
        process = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        print(process.stdout[-1500:], flush=True)
        if process.returncode:
            sys.exit(f"The search failed with exit code {process.returncode}.")
        directory = RunDirectory(Path(folder) / "run")
        result = directory.read_result()
        assert result is not None and result.test is not None
        return {
            "task": task,
            "draw": draw,
            **{
                name: None if score is None else round(score, 4)
                for name, score in apply_rules(directory, result).items()
            },
            "claim": result.verdict.claim,
            "gain": result.verdict.gain,
            "delivered": result.verdict.delivered,
            "model": result.model_from,
            "training_runs": result.verdict.training_runs,
            "winner": None if result.winner is None else result.winner.score,
            "ensemble_score": result.ensemble_score,
            "trials": result.trials,
            "seconds": result.seconds,
        }


def interval(differences: Sequence[float]) -> dict[str, float]:
    """Return the mean of differences and its 95 % interval (Student's t)."""
    from scipy.stats import t

    values = np.asarray(differences)
    half = (
        float(t.ppf(0.975, max(1, len(values) - 1)) * values.std(ddof=1) / np.sqrt(len(values)))
        if len(values) > 1
        else 0.0
    )
    mean = float(values.mean())
    return {"value": round(mean, 4), "low": round(mean - half, 4), "high": round(mean + half, 4)}


def summarize(searches: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the mean score of each rule, by task and in all, and its difference from `proven`."""
    complete = [each for each in searches if all(each[rule] is not None for rule in RULES)]
    if not complete:
        return {"searches": len(searches), "complete": 0}
    tasks = list(dict.fromkeys(each["task"] for each in complete))
    return {
        "searches": len(searches),
        "complete": len(complete),
        "mean": {rule: round(float(np.mean([each[rule] for each in complete])), 4) for rule in RULES},
        "by_task": {
            task: {rule: round(float(np.mean([e[rule] for e in complete if e["task"] == task])), 4) for rule in RULES}
            for task in tasks
        },
        "above_proven": {rule: interval([e[rule] - e["proven"] for e in complete]) for rule in RULES[1:]},
        "averaged_above_best": interval([each["averaged"] - each["best"] for each in complete]),
    }


def main() -> None:
    args = options(__doc__).parse_args()
    encoder = encoder_folder(args.encoder)
    log = args.out.with_suffix(".jsonl") if args.out and not args.quick else None
    searches = [json.loads(line) for line in log.read_text().splitlines()] if log and log.exists() else []
    done = {(each["task"], each["draw"]) for each in searches}
    for draw in DRAWS[:1] if args.quick else DRAWS:
        for task in search.TASKS[:1] if args.quick else search.TASKS:
            if (task, draw) in done:
                continue
            seconds, rows = (35, 100) if args.quick else (300, 500)
            searches.append(measure_search(task, draw, args.data, encoder, seconds, rows))
            print(searches[-1], flush=True)
            if log:
                with log.open("a") as file:
                    file.write(json.dumps(searches[-1]) + "\n")
    finish(args, summarize(searches))


if __name__ == "__main__":
    main()
