"""Compare ways of sharing an encoder between three tasks: five classes (SST-5), pairs (Quora), a number (STS).

500 training rows of each task are drawn with each seed and tested on its development rows; the score is the mean of two
accuracies and Pearson's r. MiniLM was trained on Quora pairs, so this compares ways of sharing and nothing else. Cells:

    separate   three models with plain heads, one per task
    k=0        one model, plain heads, everything but the heads shared
    k=2        the same, but every task has a copy of the two layers nearest the output
    k=all      the same, with copies of all layers
    smart      k=2 with SMART (weight 12) and layer decay 0.95

All have the same learning rate and `--epochs`. Cells in the `.jsonl` file beside the result are not repeated; each is
one line of JSON. `--search 30m` adds one search of all tasks in that time, and three searches in a third of it each.
`--speed` measures something else: the time on one thread in which three tasks of one text are predicted, all at once
and one after the other.

    python benchmarks/multitask.py --data DIR --out benchmarks/results/multitask.json
    python benchmarks/multitask.py --data DIR --speed --out benchmarks/results/multitask_speed.json
"""

from __future__ import annotations

import shutil
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from measure import encoder_folder, finish, options, run_jobs, store

SETS = {
    "cs224n_sst5": {"problem_type": "single_label_classification", "metric": "accuracy"},
    "qqp": {"problem_type": "single_label_classification", "metric": "accuracy", "text_b": "text_b"},
    "cs224n_sts": {"problem_type": "regression", "metric": "pearson", "text_b": "text_b"},
}
METRIC = ",".join(options["metric"] for options in SETS.values())
SHARED = {"k=0": 0, "k=2": 2, "k=all": "all", "smart": 2}
CELLS = ("separate", *SHARED)
SEARCHES = ("search", "three searches")
BASELINES = {
    "separate": ("k=0",),
    "k=2": ("k=0",),
    "k=all": ("k=0",),
    "smart": ("k=0",),
    "search": ("three searches", "separate", "k=0"),
    "three searches": ("separate", "k=0"),
}


def load_tasks(job: dict[str, Any]) -> dict[str, Any]:
    """Return the three tasks: training rows drawn with the seed, and the same development rows as test rows."""
    import pandas

    from headhunt import Task

    tasks = {}
    for name, settings in SETS.items():
        columns = ["text", *(["text_b"] if "text_b" in settings else []), "label"]
        rows = {split: pandas.read_parquet(Path(job["data"]) / name / f"{split}.parquet") for split in ("train", "dev")}
        test = rows["dev"][columns].sample(frac=1.0, random_state=0)[: job["test_rows"]]
        known = {key: value for key, value in settings.items() if key != "metric"}
        options = {"text": "text", "label": "label", "limit": job["rows"], "seed": job["seed"], **known}
        tasks[name] = Task.load(rows["train"][columns], test=test, name=name, **options)
    return tasks


def specs(job: dict[str, Any]) -> dict[str, Any]:
    """Return the candidate of each cell."""
    from headhunt import Smart
    from headhunt.spec import plain

    base = plain(job["encoder"], 500)
    base = replace(base, recipe=replace(base.recipe, epochs=job["epochs"]))
    found = {cell: replace(base, recipe=replace(base.recipe, task_layers=k)) for cell, k in SHARED.items()}
    smart = replace(found["smart"].recipe, smart=Smart(weight=12.0), layer_decay=0.95)
    return {"separate": base, **found, "smart": replace(found["smart"], recipe=smart)}


def train(task: Any, spec: Any, seed: int) -> Any:
    """Train a candidate and return the predictor."""
    from headhunt.engine.api import prepare

    training, predictor = prepare(task, task.splits["train"], spec, seed=seed)
    for _ in training.reports(1):
        pass
    training.finish()
    return predictor


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Train the models of one cell, store their outputs for the test rows and return their scores."""
    import torch

    from headhunt import join_tasks

    torch.set_num_threads(1)
    tasks = load_tasks(job)
    joined = join_tasks(tasks, {name: options["metric"] for name, options in SETS.items()})
    test, spec, started = joined.splits["test"], specs(job)[job["cell"]], time.perf_counter()
    if job["cell"] == "separate":
        rows = [task.splits["test"] for task in tasks.values()]
        models = [train(task, spec, job["seed"]) for task in tasks.values()]
        parts = [model.outputs(part.texts(), part.texts_b()) for model, part in zip(models, rows, strict=True)]
        outputs = join_outputs(parts, test.tasks)
    else:
        outputs = train(joined, spec, job["seed"]).outputs(test.texts(), test.texts_b(), test.tasks)
    seconds = time.perf_counter() - started
    np.savez(Path(job["outputs"]) / f"{job['cell']}-{job['seed']}.npz", outputs=outputs, targets=test.targets)
    return {"cell": job["cell"], "seed": job["seed"], **score(outputs, test.targets), "seconds": round(seconds, 1)}


def score(outputs: np.ndarray, targets: np.ndarray) -> dict[str, float]:
    """Return the score of every task and their mean."""
    from headhunt.evaluation import measure, parts_of

    parts = parts_of(METRIC, outputs, targets)
    scores = [measure(part.problem_type, part.metric, part.outputs, part.targets) for part in parts]
    named = {name: round(value, 4) for name, value in zip(SETS, scores, strict=True)}
    return {**named, "mean": round(float(np.mean(scores)), 4)}


def search(job: dict[str, Any]) -> dict[str, Any]:
    """Search with all tasks in one model, or with each of them alone in a third of the time."""
    import headhunt

    tasks = load_tasks(job)
    metrics = {name: options["metric"] for name, options in SETS.items()}
    joined = headhunt.join_tasks(tasks, metrics)
    jobs = {"all": (joined, None, 1)}
    if job["cell"] == "three searches":
        jobs = {name: (task, metrics[name], 3) for name, task in tasks.items()}
    parts, plain, facts = [], {}, {}
    for name, (task, metric, share) in jobs.items():
        folder = Path(tempfile.mkdtemp(dir=job["outputs"]))
        seconds = job["search"] / share
        done = headhunt.search(
            task,
            encoder=job["encoder"],
            time=seconds,
            metric=metric,
            out=folder / "run",
            callbacks=[],
            seed=job["seed"],
        )
        test, rows, model = done.result.test, task.splits["test"], done.load()
        parts.append(model.outputs(rows.texts(), rows.texts_b(), *([rows.tasks] if task is joined else [])))
        facts[name] = {"trials": done.result.trials, "verdict": done.result.verdict.sentence}
        compared = {each.name: (each.scores, each.metric) for each in test.tasks} or {name: (test.scores, metric)}
        for key, (scores, measured) in compared.items():
            if "plain" in scores:
                plain[key] = round(scores["plain"][measured].value, 4)
        shutil.rmtree(folder)
    rows = joined.splits["test"]
    outputs = parts[0] if len(parts) == 1 else join_outputs(parts, rows.tasks)
    np.savez(Path(job["outputs"]) / f"{job['cell']}-{job['seed']}.npz", outputs=outputs, targets=rows.targets)
    if len(plain) == len(SETS):
        plain["mean"] = round(float(np.mean(list(plain.values()))), 4)
    return {"cell": job["cell"], "seed": job["seed"], **score(outputs, rows.targets), "plain": plain, "searches": facts}


def join_outputs(parts: list[np.ndarray], tasks: np.ndarray) -> np.ndarray:
    """Return the outputs of one model per task as those of one model, with as many columns as any task needs."""
    parts = [part.reshape(len(part), -1) for part in parts]
    outputs = np.zeros((len(tasks), max(part.shape[1] for part in parts)), np.float32)
    for number, part in enumerate(parts):
        outputs[tasks == number, : part.shape[1]] = part
    return outputs


def measure_speed(data: Path, encoder: str, texts: int, repeats: int) -> dict[str, Any]:
    """Return milliseconds of one thread per text, for the model and its ONNX graphs, by the number of copied layers."""
    import pandas
    import torch

    from headhunt.delivery.onnx.export import export
    from headhunt.delivery.onnx.runtime import Model
    from headhunt.modeling.build import build_tasks
    from headhunt.modeling.pretrained import load_tokenizer
    from headhunt.predictor import Predictor
    from headhunt.spec import plain
    from headhunt.training.tokens import SpecialTokens

    torch.set_num_threads(1)
    rows = pandas.read_parquet(data / "cs224n_sst5" / "dev.parquet")["text"].astype(str).tolist()[:texts]
    kinds = {"mood": ["bad", "fine", "good"], "topic": ["film", "food"], "length": []}
    types = {name: "single_label_classification" if labels else "regression" for name, labels in kinds.items()}
    tasks = [{"name": n, "problem_type": types[n], "labels": kinds[n], "pair": False} for n in kinds]
    tokenizer, found = load_tokenizer(encoder), {}
    separators = SpecialTokens.of(tokenizer, pair=True).between
    for layers in (0, 2):
        spec = plain(encoder, 500)
        spec = replace(spec, recipe=replace(spec.recipe, task_layers=layers))
        model = build_tasks(encoder, spec.head, tasks, task_layers=layers, separators=separators)
        options: dict[str, Any] = {"problem_type": "multi_task", "labels": (), "pair": False, "precision": "fp32"}
        predictor = Predictor(model, tokenizer, spec=spec, device=torch.device("cpu"), **options)
        with tempfile.TemporaryDirectory() as scratch:
            folder = predictor.save(Path(scratch) / "model")
            graphs = {name: Path(scratch) / name for name in ("all", *kinds)}
            for name, out in graphs.items():
                export(folder, out, task=None if name == "all" else name)
            sizes = {name: sum(file.stat().st_size for file in out.glob("*.onnx*")) for name, out in graphs.items()}
            loaded = {name: Model(out, threads=1) for name, out in graphs.items()}
            runs = {
                "torch": (
                    lambda predictor=predictor: predictor.predict_tasks(rows),
                    lambda predictor=predictor: [predictor.predict(rows, task=name) for name in kinds],
                ),
                "onnx": (
                    lambda loaded=loaded: loaded["all"].outputs(rows),
                    lambda loaded=loaded: [loaded[name].outputs(rows) for name in kinds],
                ),
            }
            for name, ways in runs.items():
                once, apart = (min(seconds_of(run) for _ in range(repeats)) for run in ways)
                figures = {"once": 1000 * once / len(rows), "apart": 1000 * apart / len(rows), "ratio": apart / once}
                found[f"k={layers}, {name}"] = {key: round(value, 2) for key, value in figures.items()}
                print(f"k={layers}, {name}:", found[f"k={layers}, {name}"], flush=True)
            apart = sum(size for name, size in sizes.items() if name != "all")
            found[f"k={layers}, MB"] = {"once": round(sizes["all"] / 1e6, 1), "apart": round(apart / 1e6, 1)}
    return found


def seconds_of(run: Any) -> float:
    """Return the processor time of a run, which other processes do not affect as much as the clock."""
    started = time.process_time()
    run()
    return time.process_time() - started


def summarise(runs: list[dict[str, Any]], folder: Path) -> dict[str, Any]:
    """Return the mean scores of every cell, and its gains over others with intervals."""
    found: dict[str, Any] = {}
    for cell in (*CELLS, *SEARCHES):
        mine = [run for run in runs if run["cell"] == cell]
        if not mine:
            continue
        names = [*SETS, "mean", *(["seconds"] if "seconds" in mine[0] else [])]
        found[cell] = {name: round(float(np.mean([run[name] for run in mine])), 4) for name in names}
        found[cell] |= {"seeds": len(mine)}
        found[cell] |= {name: mine[0][name] for name in ("plain", "searches") if name in mine[0]}
        seeds = [run["seed"] for run in mine]
        gains = {other: gain_over(cell, other, seeds, folder) for other in BASELINES.get(cell, ())}
        found[cell] |= {"gain over": {other: gain for other, gain in gains.items() if gain}}
    return found


def gain_over(cell: str, other: str, seeds: list[int], folder: Path) -> dict[str, float]:
    """Return the gain in the mean score over another cell, of the seeds that both have, with its interval."""
    from headhunt.evaluation import compare

    paths = [[folder / f"{name}-{seed}.npz" for name in (cell, other)] for seed in seeds]
    loaded = [[np.load(path) for path in pair] for pair in paths if all(path.exists() for path in pair)]
    if not loaded:
        return {}
    outputs, baseline = ([pair[i]["outputs"] for pair in loaded] for i in range(2))
    gain = compare("multi_task", METRIC, outputs, baseline, loaded[0][0]["targets"])
    return {name: round(getattr(gain, name), 4) for name in ("gain", "low", "high")}


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--seeds", type=int, default=3, help="training runs of each cell")
    parser.add_argument("--epochs", type=float, default=10.0, help="epochs of each training run")
    parser.add_argument("--workers", type=int, default=2, help="processes with one thread each")
    parser.add_argument("--search", default=None, metavar="TIME", help="also search, one seed, in this time each")
    parser.add_argument("--speed", action="store_true", help="measure predictions of all tasks at once instead")
    args = parser.parse_args()
    if args.speed:
        sizes = {"texts": 8, "repeats": 1} if args.quick else {"texts": 128, "repeats": 3}
        finish(args, {**sizes, "speed": measure_speed(args.data, encoder_folder(args.encoder), **sizes)})
        return
    scratch = Path(tempfile.mkdtemp()) if args.out is None else args.out.with_suffix(".outputs")
    scratch.mkdir(parents=True, exist_ok=True)
    shared: dict[str, Any] = {"data": str(args.data), "encoder": encoder_folder(args.encoder), "outputs": str(scratch)}
    shared |= {"rows": 24, "test_rows": 24, "epochs": 1.0} if args.quick else {}
    shared = {"rows": 500, "test_rows": 2000, "epochs": args.epochs, **shared}
    seeds = range(1 if args.quick else args.seeds)
    jobs = [{**shared, "cell": cell, "seed": seed} for seed in seeds for cell in CELLS]
    runs = run_jobs(args, run, jobs, ("cell", "seed"))
    if args.search:
        from headhunt.run.settings import parse_duration

        for cell in SEARCHES:
            if all(each["cell"] != cell for each in runs):
                runs.append(search({**shared, "cell": cell, "seed": 0, "search": parse_duration(args.search)}))
                store(args, runs[-1])
    finish(args, {"epochs": shared["epochs"], "cells": summarise(runs, scratch), "runs": runs})
    if args.out is None:
        shutil.rmtree(scratch)


if __name__ == "__main__":
    main()
