"""What the commands and Python users call: the one place where data, model, training and evaluation meet."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from headhunt.data import Split, Task
from headhunt.engine.assembly import prepare, versions
from headhunt.evaluation import Evaluation, evaluate
from headhunt.modeling.build import check_length
from headhunt.predictor import Ensemble, Predictor, open_model
from headhunt.spec import DEFAULT_ENCODER, Spec, plain
from headhunt.training.device import pick_device
from headhunt.training.loop import Report


def fit(
    data: Any,
    *,
    encoder: str | None = None,
    spec: Spec | None = None,
    max_length: int | None = None,
    out: str | Path | None = None,
    seed: int = 0,
    device: str | None = None,
    precision: str = "auto",
    trust_remote_code: bool = False,
    on_report: Callable[[Report], None] | None = None,
    **options: Any,
) -> Predictor:
    """Trains one candidate on the training rows and scores it on the test rows.

    Args:
        data: A `Task`, or anything `Task.load` takes.
        encoder: A Hugging Face name or a folder; the spec's own unless given.
        spec: The candidate; the plain head with a fair recipe unless given.
        max_length: Tokens read of a text, the rest is cut; the spec's own number, or 128, unless given.
        out: Where to save the model; not saved unless given.
        seed: For the head's first weights, the order of rows, dropout, and a split that has to be made.
        device: "cuda", "mps" or "cpu"; the fastest there is unless given.
        precision: "auto", "fp32" or "bf16".
        trust_remote_code: Whether code that comes with the encoder may run.
        on_report: Called as training goes on, about a hundred times.
        options: Passed on to `Task.load`: text, text_b, label, problem_type, test, limit …

    Returns:
        The trained model. Its `facts["test"]` holds the test scores.
    """
    task = data if isinstance(data, Task) else Task.load(data, seed=seed, **options)
    train = task.splits["train"]
    if spec is None:
        spec = plain(encoder or DEFAULT_ENCODER, len(train))
    elif encoder:
        spec = replace(spec, encoder=encoder)
    if max_length is not None:
        check_length(max_length, spec.encoder, trust_remote_code)
        spec = replace(spec, recipe=replace(spec.recipe, max_length=max_length))
    started = time.perf_counter()
    training, predictor = prepare(
        task, train, spec, seed=seed, device=device, precision=precision, trust_remote_code=trust_remote_code
    )
    for report in training.reports(100):
        if on_report:
            on_report(report)
    training.finish()
    predictor.facts |= {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "task": {
            "name": task.name,
            "rows": {name: len(split) for name, split in task.splits.items()},
            "columns": {"text": task.columns.text, "text_b": task.columns.text_b, "label": task.columns.label},
            "warnings": list(task.warnings),
        },
        "seed": seed,
        "seconds": round(time.perf_counter() - started, 2),
        "versions": versions(),
    }
    if "test" in task.splits:
        predictor.facts["test"] = score(predictor, task.splits["test"]).to_dict()
    if out is not None:
        predictor.save(out)
    return predictor


def score(predictor: Predictor | Ensemble, rows: Split, progress: Callable[[int], None] | None = None) -> Evaluation:
    """How good a model is on labelled rows."""
    outputs = predictor.outputs(rows.texts(), rows.texts_b(), progress=progress)
    return evaluate(predictor.problem_type, outputs, rows.targets, predictor.labels)


def load(folder: str | Path, *, device: str | None = None, precision: str = "auto") -> Predictor | Ensemble:
    """Loads a model that `fit` or a search saved, or the mean of the best that a search saved."""
    return open_model(folder, device=pick_device(device), precision=precision)
