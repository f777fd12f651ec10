"""Measure whether solved heads rank encoders as fine-tuning does, on eight data sets with 500 rows.

For each data set and encoder: the out-of-fold accuracy of the solved head, which costs seconds, and the mean test
accuracy of two fine-tuning runs with a fixed recipe. Kendall's τ compares the two rankings of each set. Its mean over
sets has a bootstrap interval over sets. `below_best` is the number of points that the encoder with the best solved head
is below the best one in hindsight. Test accuracy has an error of its own, so that not all of this is due to the choice.

    python benchmarks/encoder_ranking.py --data DIR --encoders DIR,DIR,DIR --out benchmarks/results/encoder_ranking.json

The installed all-MiniLM-L6-v2 (or `--encoder`) is the first encoder. Scores in the `.jsonl` file beside the result are
not repeated.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from draws import draw
from measure import encoder_folders, finish, options

from headhunt.data import Task

TASKS = ("search_sst2", "search_trec6", "search_mrpc", "cr", "subj", "mpqa", "ag_news", "rte")
ROWS = 500
SEEDS = (0, 1)
CLOSE = 0.01  # an encoder within one point of the best counts as a good choice
SAMPLES = 10_000
SOLVED_HEAD = {"layers": "concat", "pooling": "cls_mean_max"}
SOLVED_PAIR_HEAD = SOLVED_HEAD | {"siamese": "combined"}
SOLVED_RECIPE = {"solver": "ridge"}
TUNED_HEAD = {"pooling": "mean"}
TUNED_PAIR_HEAD = TUNED_HEAD | {"siamese": "concat"}
TUNED_RECIPE = {"learning_rate": 1e-4, "head_lr_multiplier": 5.0, "freeze": "embeddings", "layer_decay": 0.95}


def solved_score(task: Task, encoder: str) -> float:
    """Return the out-of-fold score of the solved head, evaluated as a search evaluates any candidate."""
    from headhunt.engine.trial_runner import TrialRunner
    from headhunt.engine.workers import RunnerSettings
    from headhunt.evaluation import DEFAULT_METRIC
    from headhunt.run.directory import RunDirectory
    from headhunt.run.task import save_task
    from headhunt.spec import Spec
    from headhunt.study.requests import EvaluateTrial

    head = SOLVED_PAIR_HEAD if task.pair else SOLVED_HEAD
    spec = Spec.from_dict({"encoder": encoder, "head": head, "recipe": SOLVED_RECIPE})
    with tempfile.TemporaryDirectory() as folder:
        save_task(task, RunDirectory(Path(folder)).task)
        runner = TrialRunner(RunnerSettings(directory=folder, metric=DEFAULT_METRIC[task.problem_type]))
        outcome = runner.run(EvaluateTrial(trial=1, spec=spec, seed=0, rung=0, fraction=1.0))
    if outcome.score is None:
        raise RuntimeError(f"The solved head was not evaluated: {outcome.outcome} {outcome.extra.get('message', '')}")
    return outcome.score


def fine_tuned_score(task: Task, encoder: str, seed: int, epochs: float = 10.0) -> float:
    """Return the test score of a fine-tuning run with the fixed recipe."""
    import headhunt
    from headhunt.evaluation import DEFAULT_METRIC
    from headhunt.spec import Spec

    head = TUNED_PAIR_HEAD if task.pair else TUNED_HEAD
    recipe = TUNED_RECIPE | {"epochs": epochs}
    spec = Spec.from_dict({"encoder": encoder, "head": head, "recipe": recipe})
    predictor = headhunt.fit(task, spec=spec, seed=seed)
    return predictor.facts["test"]["scores"][DEFAULT_METRIC[task.problem_type]]["value"]


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Return one score; the job names the data set, the encoder and the kind of score."""
    import torch

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HEADHUNT_CACHE"] = folder
        drawn = draw(job["task"], Path(job["data"]), Path(folder), job["rows"], job["test_rows"])
        task = Task.load(drawn.train, test=drawn.test, problem_type=drawn.problem_type)  # type: ignore[arg-type]
        started = time.perf_counter()
        if job["kind"] == "solved":
            value = solved_score(task, job["encoder"])
        else:
            value = fine_tuned_score(task, job["encoder"], job["seed"], job["epochs"])
        seconds = time.perf_counter() - started
    kept = {key: job[key] for key in ("task", "name", "kind", "seed")}
    return {**kept, "score": round(value, 4), "seconds": round(seconds, 1)}


def rank_agreement(solved: Mapping[str, float], tuned: Mapping[str, float]) -> dict[str, Any]:
    """Return how well the solved scores of encoders predict their fine-tuned scores on one data set.

    Args:
        solved: Out-of-fold score of the solved head by encoder.
        tuned: Test score after fine-tuning by encoder.
    """
    from scipy.stats import kendalltau

    names = list(solved)
    tau = float(kendalltau([solved[name] for name in names], [tuned[name] for name in names]).statistic)
    choice, best = max(names, key=solved.__getitem__), max(names, key=tuned.__getitem__)
    return {
        "tau": None if np.isnan(tau) else round(tau, 3),  # all scores are equal
        "chosen": choice,
        "best": best,
        "below_best": round(tuned[best] - tuned[choice], 4),
        "solved": {name: round(score, 4) for name, score in solved.items()},
        "fine_tuned": {name: round(score, 4) for name, score in tuned.items()},
    }


def bootstrap_mean(values: Sequence[float], seed: int = 0) -> dict[str, float]:
    """Return the mean of values and its 95 % bootstrap interval."""
    draws = np.random.default_rng(seed).choice(np.asarray(values), (SAMPLES, len(values))).mean(1)
    low, high = np.quantile(draws, [0.025, 0.975])
    return {"value": round(float(np.mean(values)), 3), "low": round(float(low), 3), "high": round(float(high), 3)}


def summarize(scores: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the agreement on every data set that has both scores of at least two encoders, and over all sets."""
    sets: dict[str, Any] = {}
    for task in dict.fromkeys(score["task"] for score in scores):
        by_kind: dict[str, dict[str, list[float]]] = {"solved": {}, "fine-tuned": {}}
        for score in scores:
            if score["task"] == task:
                by_kind[score["kind"]].setdefault(score["name"], []).append(score["score"])
        names = [name for name in by_kind["solved"] if name in by_kind["fine-tuned"]]
        if len(names) > 1:
            solved, tuned = ({name: mean(by_kind[kind][name]) for name in names} for kind in by_kind)
            sets[task] = rank_agreement(solved, tuned)
    taus = [agreement["tau"] for agreement in sets.values() if agreement["tau"] is not None]
    return {
        "kendall_tau": bootstrap_mean(taus) if taus else None,
        "sets": len(sets),
        "sets_within_one_point": sum(agreement["below_best"] <= CLOSE + 1e-9 for agreement in sets.values()),
        "each": sets,
    }


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--encoders", default="", metavar="DIR,DIR", help="further encoders")
    parser.add_argument("--workers", type=int, default=2, help="processes with one thread each")
    parser.add_argument("--tasks", nargs="*", default=TASKS, help="data sets")
    args = parser.parse_args()
    encoders = encoder_folders(args.encoder, args.encoders)
    log = args.out.with_suffix(".jsonl") if args.out and not args.quick else None
    scores = [json.loads(line) for line in log.read_text().splitlines()] if log and log.exists() else []
    done = {(score["task"], score["name"], score["kind"], score["seed"]) for score in scores}
    shared = {"data": str(args.data), "rows": ROWS, "test_rows": 2_000, "epochs": 10.0}
    jobs = [
        {**shared, "task": task, "name": name, "encoder": folder, "kind": kind, "seed": seed}
        for kind, seed in (("solved", 0), *(("fine-tuned", seed) for seed in SEEDS))
        for task in args.tasks
        for name, folder in encoders.items()
        if (task, name, kind, seed) not in done
    ]
    if args.quick:
        small = {"rows": 60, "test_rows": 60, "epochs": 1.0}
        jobs = [{**job, **small} for job in jobs if job["task"] in args.tasks[-2:] and job["seed"] == 0]
    with multiprocessing.get_context("spawn").Pool(args.workers, maxtasksperchild=20) as pool:
        for score in pool.imap_unordered(run, jobs):
            print(score, flush=True)
            scores.append(score)
            if log:
                log.parent.mkdir(parents=True, exist_ok=True)
                with log.open("a") as file:
                    file.write(json.dumps(score) + "\n")
    finish(args, {"rows": ROWS, "seeds": len(SEEDS), **summarize(scores)})


if __name__ == "__main__":
    main()
