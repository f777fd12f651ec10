"""What the commands and Python users call: the one place where data, model, training and evaluation meet."""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from headhunt.data import Split, Task
from headhunt.device import pick_device
from headhunt.errors import ModelError
from headhunt.evaluation import Evaluation, evaluate
from headhunt.modeling.build import build, load_tokenizer, longest_input
from headhunt.predictor import Predictor
from headhunt.spec import DEFAULT_ENCODER, Spec, plain
from headhunt.tokens import Frame, tokenise
from headhunt.training.loop import Report, Training
from headhunt.training.objectives import Objective


def fit(
    data: Any,
    *,
    encoder: str | None = None,
    spec: Spec | None = None,
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
        out: Where to save the model; not saved unless given.
        seed: For the head's first weights, the order of rows, dropout, and a split that has to be made.
        device: "cuda", "mps" or "cpu"; the fastest there is unless given.
        precision: "auto", "fp32" or "bf16".
        trust_remote_code: Whether code that comes with the encoder may run.
        on_report: Called as training goes on, about a hundred times.
        options: Passed on to `Task.load`: text, text_b, label, kind, test, limit …

    Returns:
        The trained model. Its `facts["test"]` holds the test scores.
    """
    task = data if isinstance(data, Task) else Task.load(data, seed=seed, **options)
    train = task.splits["train"]
    if spec is None:
        spec = plain(encoder or DEFAULT_ENCODER, len(train))
    elif encoder:
        spec = replace(spec, encoder=encoder)
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
        "task": {"name": task.name, "rows": {name: len(split) for name, split in task.splits.items()}},
        "seed": seed,
        "seconds": round(time.perf_counter() - started, 2),
        "versions": versions(),
    }
    if "test" in task.splits:
        predictor.facts["test"] = score(predictor, task.splits["test"]).to_dict()
    if out is not None:
        predictor.save(out)
    return predictor


def prepare(
    task: Task,
    rows: Split,
    spec: Spec,
    *,
    seed: int = 0,
    device: str | None = None,
    precision: str = "auto",
    trust_remote_code: bool = False,
) -> tuple[Training, Predictor]:
    """A training of `spec` on `rows` that is ready to start, and the predictor it trains."""
    if spec.head.siamese and not task.pair:
        raise ModelError(f"A siamese head ({spec.head.siamese}) compares two texts; this task has one.")
    tokenizer = load_tokenizer(spec.encoder, trust_remote_code)
    model = build(
        spec.encoder,
        spec.head,
        kind=task.kind,
        labels=task.labels,
        separators=Frame.of(tokenizer, pair=True).between if task.pair else (),
        encoder_dropout=spec.recipe.encoder_dropout,
        seed=seed,
        trust_remote_code=trust_remote_code,
    )
    limit = longest_input(model)
    if limit is not None and spec.recipe.max_length > limit:
        spec = replace(spec, recipe=replace(spec.recipe, max_length=limit))  # no encoder reads beyond its positions
    tokens = tokenise(
        tokenizer,
        rows.texts(),
        rows.texts_b(),
        max_length=spec.recipe.max_length,
        truncation=spec.recipe.truncation,
        each=spec.head.siamese is not None,
    )
    objective = Objective.of(task.kind, rows.targets, max(1, len(task.labels)), spec.recipe)
    where = pick_device(device)
    training = Training(
        model, tokens, rows.targets, objective, spec.recipe, seed=seed, device=where, precision=precision
    )
    predictor = Predictor(
        model,
        tokenizer,
        kind=task.kind,
        labels=task.labels,
        pair=task.pair,
        spec=spec,
        device=where,
        precision=precision,
    )
    return training, predictor


def score(predictor: Predictor, rows: Split, progress: Callable[[int], None] | None = None) -> Evaluation:
    """How good a model is on labelled rows."""
    outputs = predictor.outputs(rows.texts(), rows.texts_b(), progress=progress)
    return evaluate(predictor.kind, outputs, rows.targets, predictor.labels)


def load(folder: str | Path, *, device: str | None = None, precision: str = "auto") -> Predictor:
    """Loads a model that `fit` or a search saved."""
    return Predictor.load(folder, device=pick_device(device), precision=precision)


def versions() -> dict[str, str]:
    """What a result depends on."""
    names = ("headhunt", "torch", "transformers", "tokenizers", "numpy")
    return {"python": platform.python_version(), "platform": sys.platform, **{name: version(name) for name in names}}
