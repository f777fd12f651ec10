"""Train, score and load one model or encoder: the functions behind `headhunt fit`, `pretrain` and others."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from headhunt.data import Split, Task, load_texts
from headhunt.engine.assembly import prepare
from headhunt.engine.encoders import find_encoder
from headhunt.engine.options import check_new_directory, choose_metric, load_task
from headhunt.errors import HeadhuntError
from headhunt.evaluation import (
    Evaluation,
    RejectionScores,
    apply_thresholds,
    evaluate,
    evaluate_tasks,
    score_rejection,
)
from headhunt.modeling.architecture import Head
from headhunt.modeling.pretrained import check_length, load_config
from headhunt.predictor import Predictor
from headhunt.run.model_info import versions
from headhunt.run.settings import parse_duration
from headhunt.spec import DEFAULT_ENCODER, MANY_CLASSES, Spec, plain, solved
from headhunt.training import pretraining
from headhunt.training.device import pick_device
from headhunt.training.loop import Report
from headhunt.training.pretraining import Pretraining

LAST_LAYER_ROWS = 20_000  # the features of all layers of more rows may not fit into memory
MOST_EPOCHS = 100  # of further pretraining


def fit(
    data: Any,
    *,
    encoder: str | None = None,
    spec: Spec | None = None,
    fine_tune: bool = False,
    max_length: int | None = None,
    out: str | Path | None = None,
    seed: int = 0,
    device: str | None = None,
    precision: str = "auto",
    trust_remote_code: bool = False,
    on_report: Callable[[Report], None] | None = None,
    **options: Any,
) -> Predictor:
    """Train one candidate on the training rows and score it on the test rows.

    Args:
        data: A `Task`, or anything `Task.load` takes.
        encoder: A Hugging Face model name or a directory; by default the spec's.
        spec: The candidate; by default a head that is solved on the frozen encoder, which takes seconds.
        fine_tune: Train the plain head and the encoder with a fair recipe instead, which takes minutes.
        max_length: Maximum number of tokens per text; by default that of the spec, or 128.
        out: Directory to save the model in; not saved by default.
        seed: Random seed.
        device: "cuda", "mps" or "cpu"; by default the fastest available.
        precision: "auto", "fp32" or "bf16".
        trust_remote_code: Whether code that comes with the encoder may run.
        on_report: Called about a hundred times during training.
        options: Passed to `Task.load`: text, text_b, label, problem_type, test, limit …

    Returns:
        The trained model. Its `facts["test"]` holds the test scores.
    """
    if out is not None:
        check_new_directory(Path(out))
    encoder = find_encoder(encoder or (spec.encoder if spec else DEFAULT_ENCODER))
    task = load_task(data, seed, options, validation_share=0)  # no candidates are compared, so all rows are trained on
    train = task.splits["train"]
    if spec is None and not fine_tune:
        spec = solved(encoder, pair=task.pair, classes=len(task.labels) or 1)
        if len(train) > LAST_LAYER_ROWS and not task.pair:
            spec = replace(spec, head=Head(pooling="mean"))
    elif spec is None:
        width = int(load_config(encoder, trust_remote_code).hidden_size)
        # With many classes each has few rows, and the lower learning rate needs several times the epochs.
        spec = plain(encoder, len(train), recipe=int(len(task.labels) > MANY_CLASSES), width=width)
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
            "columns": asdict(task.columns),
            "limit": task.limit,
            "test_given": task.test_given,
            "warnings": list(task.warnings),
        },
        "seed": seed,
        "seconds": round(time.perf_counter() - started, 2),
        "versions": versions(),
    }
    if "test" in task.splits:
        predictor.facts["test"] = _score_test_rows(predictor, task)
    if out is not None:
        predictor.save(out)
    return predictor


def _score_test_rows(predictor: Predictor, task: Task) -> dict[str, Any]:
    """Return the scores on the test rows as JSON data; of several tasks, the mean and those of each task."""
    test = task.splits["test"]
    if not task.tasks:
        return score(predictor, test).to_dict()
    outputs = predictor.outputs(test.texts(), test.texts_b(), test.tasks)
    labels = [each.labels for each in task.tasks]
    mean, evaluations = evaluate_tasks(choose_metric(task, None), outputs, test.targets, labels)
    of_tasks = {each.name: found.to_dict() for each, found in zip(task.tasks, evaluations, strict=True)}
    return {**mean.to_dict(), "tasks": of_tasks}


def pretrain(
    encoder: str,
    texts: Any,
    *,
    out: str | Path,
    text: str | None = None,
    epochs: float = 3.0,
    time: str | float | None = None,
    max_length: int | None = None,
    seed: int = 0,
    device: str | None = None,
    precision: str = "auto",
    trust_remote_code: bool = False,
    on_report: Callable[[Report], None] = lambda report: None,
) -> Pretraining:
    """Train an encoder further on texts without labels, by masked tokens, and save it as a new encoder.

    The result is kept in the cache. After Ctrl-C, the same call continues.

    Args:
        encoder: A Hugging Face model name or a directory.
        texts: As for `load_texts`: a file or a list.
        out: Directory of the new encoder.
        text: Text column (detected if unambiguous).
        epochs: Passes over the texts.
        time: Time that it may take; as many epochs as fit, at most `epochs`.
        max_length: Maximum number of tokens per text; by default 128.
        seed: Random seed.
        device: "cuda", "mps" or "cpu"; by default the fastest available.
        precision: "auto", "fp32" or "bf16".
        trust_remote_code: Whether code that comes with the encoder may run.
        on_report: Called about a hundred times during training.
    """
    check_new_directory(Path(out))
    if not 0 < epochs <= MOST_EPOCHS:
        raise HeadhuntError(f"must be above 0, up to {MOST_EPOCHS}; found {epochs}.", "epochs")
    if max_length is not None:
        check_length(max_length, encoder, trust_remote_code)
    rows = load_texts(texts, pair=False, text=text)
    return pretraining.pretrain(
        encoder,
        rows.texts(),
        out=Path(out),
        epochs=epochs,
        seconds=parse_duration(time),
        max_length=max_length or 128,
        seed=seed,
        device=device,
        precision=precision,
        trust_remote_code=trust_remote_code,
        on_report=on_report,
    )


def score(predictor: Predictor, rows: Split) -> Evaluation:
    """Score a model on labelled rows, as if it answered every text."""
    return score_answers(predictor, rows)[0]


def score_answers(
    predictor: Predictor, rows: Split, progress: Callable[[int], None] | None = None
) -> tuple[Evaluation, RejectionScores | None]:
    """Score a model on labelled rows and, if it rejects texts, also the answers that it gives.

    Args:
        predictor: The model.
        rows: Labelled rows.
        progress: Function called with the number of texts just predicted.

    Returns:
        Scores as if it answered every text; coverage and accuracy of its answers, None if it rejects nothing.
    """
    outputs = predictor.outputs(rows.texts(), rows.texts_b(), progress=progress)
    decisions = apply_thresholds(outputs, predictor.thresholds)
    evaluation = evaluate(predictor.problem_type, decisions, rows.targets, predictor.labels, groups=rows.column_groups)
    if predictor.rejection is None:
        return evaluation, None
    return evaluation, score_rejection(predictor.rejection, outputs, rows.targets, predictor.labels)


def load(
    folder: str | Path, *, device: str | None = None, precision: str = "auto", trust_remote_code: bool = False
) -> Predictor:
    """Load a model that `fit` or a search saved, or the ensemble of a search.

    Args:
        folder: The saved model.
        device: "cuda", "mps" or "cpu"; by default the fastest available.
        precision: "auto", "fp32" or "bf16".
        trust_remote_code: Whether code that came with the encoder may run.
    """
    return Predictor.load(folder, device=pick_device(device), precision=precision, trust_remote_code=trust_remote_code)
