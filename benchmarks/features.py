"""Measure one epoch of training from cached activations, compared with one epoch of `transformers.Trainer`.

The activations are those of the middle layer, with the layers below it frozen, and those of the last layer, where only
the head is trained. The first is also compared with the same training without the cache; `Trainer` trains all layers.
The data are 500 SST sentences of about 25 tokens, in batches of 32. All runs share one process with all threads and
take turns; the best time of each counts. Filling the cache is timed separately, because it is done once for all
candidates.

    python benchmarks/features.py --data DIR --out benchmarks/results/features.json
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from measure import encoder_folder, finish, interleaved, options
from throughput import RECIPE, trainer_epoch

from headhunt.data import Task
from headhunt.engine.trial_runner import FromCachedActivations, TrialRunner
from headhunt.engine.workers import RunnerSettings
from headhunt.modeling.architecture import Head
from headhunt.run.task import save_task
from headhunt.spec import Spec
from headhunt.study.requests import Request


def epoch(runner: TrialRunner, encoder: str, freeze: int, cached: bool = True) -> Callable[[], object]:
    """Return a function that trains one epoch, from the cached activations below the first trained layer or without."""
    recipe = replace(RECIPE, freeze=freeze)
    spec = Spec(encoder=encoder, head=Head(pooling="attention"), recipe=recipe).canonical()
    ready = runner.open(spec, np.arange(len(runner.targets)), Request(trial=0, spec=spec, seed=0))
    training = ready.training

    def run() -> None:
        training.step = training.examples = 0
        with FromCachedActivations(runner, ready) if cached else nullcontext() as attached:
            assert attached is None or attached.layer == freeze
            for _ in training.reports():
                pass

    return run


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--repeats", type=int, default=5, help="timed epochs of each run")
    args = parser.parse_args()
    encoder = encoder_folder(args.encoder)
    rows, repeats = (64, 1) if args.quick else (500, args.repeats)
    task = Task.load(args.data / "cs224n_sst5", limit=rows, seed=0, problem_type="single_label_classification")
    task.splits.pop("validation", None)  # so that all rows of the runner are training rows
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HEADHUNT_CACHE"] = folder
        save_task(task, Path(folder) / "task")
        runner = TrialRunner(RunnerSettings(folder, metric="accuracy"))
        started = time.perf_counter()
        half = epoch(runner, encoder, 3)
        half()
        first_epoch_s = time.perf_counter() - started
        frozen = Spec(encoder=encoder, head=Head(pooling="attention"), recipe=replace(RECIPE, freeze="all"))
        tokens = runner.open(frozen, np.arange(rows), Request(trial=0, spec=frozen, seed=0)).tokens
        depth = runner.activation_caches(frozen, tokens)[0].encoder.depth
        runs = {
            "trainer": trainer_epoch(task, encoder, folder),
            "without_cache": epoch(runner, encoder, 3, cached=False),
            "from_half": half,
            "head_alone": epoch(runner, encoder, depth),
        }
        times = interleaved(runs, repeats, warm=not args.quick)
    best = {name: min(values) for name, values in times.items()}
    finish(
        args,
        {
            "from_half_vs_trainer": round(best["trainer"] / best["from_half"], 2),
            "from_half_vs_without_cache": round(best["without_cache"] / best["from_half"], 2),
            "head_alone_vs_trainer": round(best["trainer"] / best["head_alone"], 1),
            "storing_and_first_epoch_s": round(first_epoch_s, 2),
            "tokens_per_text": round(float(tokens.lengths.mean()), 1),
            "seconds": {name: [round(value, 3) for value in values] for name, values in times.items()},
            "threads": torch.get_num_threads(),
        },
    )


if __name__ == "__main__":
    main()
