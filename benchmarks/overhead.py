"""Measure the time of a search beyond its trials, and the speed of Ray workers compared with one process.

`inline_vs_sum` is the wall time of 200 small trials in this process, divided by the sum of their own times. Only the
wall time includes the decisions of the study and the writing of the ledger. `ray_speedup` is the trials per second of
two Ray workers with one thread each, divided by those of this process with all threads. Both run the same trials;
start-up is not counted. The best of two turns counts.

    python benchmarks/overhead.py --data DIR --out benchmarks/results/overhead.json
"""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from measure import encoder_folder, finish, options

from headhunt.data import Task
from headhunt.engine.trial_runner import TrialRunner
from headhunt.engine.workers import RunnerSettings
from headhunt.modeling.architecture import Head
from headhunt.run.directory import RunDirectory
from headhunt.run.ledger import LedgerWriter
from headhunt.run.settings import SearchOptions
from headhunt.run.task import save_task
from headhunt.spec import Space, plain
from headhunt.study.budget import TimeBudget
from headhunt.study.candidates import Candidates
from headhunt.study.executors import InlineExecutor
from headhunt.study.loop import compare
from headhunt.study.ray_executor import RayExecutor
from headhunt.study.requests import EvaluateTrial
from headhunt.study.study import Study

SMALL = Space.from_dict(
    {
        "head": {
            "pooling": ["cls", "mean", "max", "attention"],
            "dropout": {"float": [0.0, 0.4]},
            "mlp": {"optional": True, "width": [64, 128, 256]},
        },
        "recipe": {"epochs": 10.0, "learning_rate": 3e-3, "freeze": "all", "label_smoothing": [0.0, 0.05, 0.1]},
    }
)


def inline_vs_sum(runner: TrialRunner, encoder: str, trials: int, folder: Path) -> dict[str, Any]:
    """Run a study in this process and compare its wall time with the time of its trials."""
    trial_seconds: list[float] = []

    def evaluate(request: EvaluateTrial) -> Any:
        spec = replace(request.spec, recipe=replace(request.spec.recipe, freeze="all")).canonical()
        outcome = runner.run(replace(request, spec=spec, checkpoint=None, resume_from=None))
        trial_seconds.append(outcome.seconds)
        return outcome

    with LedgerWriter(RunDirectory(folder)) as ledger:
        candidates = Candidates(SMALL, encoder=encoder)
        options = SearchOptions(trials=trials, rungs=1, known_recipes=False, solved=False, time=None)
        study = Study(ledger, candidates, options, TimeBudget(None))
        started = time.perf_counter()
        compare(study, InlineExecutor(evaluate))
        wall = time.perf_counter() - started
    return {
        "inline_vs_sum": round(wall / sum(trial_seconds), 4),
        "trials": len(trial_seconds),
        "mean_trial_s": round(sum(trial_seconds) / len(trial_seconds), 3),
    }


def trials_per_second(executor: Any, encoder: str, count: int) -> float:
    """Run short trials on an executor and return the trials per second."""
    spec = replace(plain(encoder), head=Head(pooling="mean"))
    spec = replace(spec, recipe=replace(spec.recipe, freeze=3))
    requests = [EvaluateTrial(trial=i, spec=spec, rung=0, fraction=1 / 9, seed=i) for i in range(count)]
    started = time.perf_counter()
    for request in requests:
        executor.submit(request)
    finished = 0
    while finished < count:
        for _, outcome in executor.wait(60):
            assert outcome.outcome == "ok", outcome
            finished += 1
    return count / (time.perf_counter() - started)


def main() -> None:
    args = options(__doc__).parse_args()
    encoder = encoder_folder(args.encoder)
    trials, count, turns = (10, 2, 1) if args.quick else (200, 8, 2)
    task = Task.load(args.data / "trec6", limit=60 if args.quick else 300, seed=0)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HEADHUNT_CACHE"] = folder
        save_task(task, Path(folder) / "task")
        settings = RunnerSettings(folder, metric="accuracy")
        runner = TrialRunner(settings)
        result = inline_vs_sum(runner, encoder, trials, Path(folder) / "run")
        inline = InlineExecutor(runner.run)
        rates: dict[str, list[float]] = {"inline": [], "ray": []}
        workers = RayExecutor(
            "headhunt.engine.trial_runner:TrialRunner",
            {"settings": replace(settings, threads=1)},
            workers=2,
        )
        try:
            trials_per_second(workers, encoder, 4)  # warm-up of both workers
            for _ in range(turns):
                rates["inline"].append(trials_per_second(inline, encoder, count))
                rates["ray"].append(trials_per_second(workers, encoder, count))
        finally:
            workers.close()
    result["ray_speedup"] = round(max(rates["ray"]) / max(rates["inline"]), 3)
    result["trials_per_second"] = {name: [round(rate, 3) for rate in values] for name, values in rates.items()}
    result["inline_threads"] = torch.get_num_threads()
    finish(args, result)


if __name__ == "__main__":
    main()
