"""Train a student of a search: a candidate that learns from labels and from a teacher's outputs for other texts."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from headhunt.engine.assembly import Assembly, assemble, tokenise_texts
from headhunt.engine.worker_data import WorkerData
from headhunt.predictor import Predictor
from headhunt.run.task import open_unlabelled
from headhunt.study.requests import TrainStudent
from headhunt.training.activations import StoppedError
from headhunt.training.tokens import Tokens


def train_student(
    data: WorkerData, request: TrainStudent, rows: np.ndarray, teacher: Predictor, stop: Callable[[], bool]
) -> Assembly:
    """Return a student, trained to the end.

    Each labelled row is seen as often as by the candidate itself, each unlabelled text once.

    Args:
        data: The data of the worker.
        request: The job.
        rows: The labelled rows.
        teacher: The model that labels the other texts.
        stop: Asked between steps.

    Raises:
        StoppedError: If `stop` returned True.
    """
    others = open_unlabelled(data.directory.task).others(request.texts)

    def check(count: int) -> None:
        if stop():
            raise StoppedError

    outputs = teacher.outputs(others.texts, others.texts_b, progress=check)
    model, tokenizer, spec = data.build(request.student, request.seed)
    repeated = np.tile(rows, max(1, round(spec.recipe.epochs)))
    own = data.tokens_for(spec, tokenizer)
    assert isinstance(own, Tokens)  # unlabelled texts belong to one task
    tokens = own.take(repeated).joined(tokenise_texts(spec, tokenizer, others.texts, others.texts_b))
    targets = np.concatenate([as_outputs(data.targets[repeated], outputs), outputs]).astype(np.float32)
    # One epoch over rows that are repeated: there is no best one, and a held-out row would also be trained on.
    once = replace(spec, recipe=replace(spec.recipe, epochs=1.0, stopping=None))
    training, student = assemble(
        data.task,
        once,
        model,
        tokenizer,
        tokens,
        targets,
        seed=request.seed,
        device=data.device,
        precision=data.settings.precision,
        gradient_accumulation_steps=request.gradient_accumulation_steps,
    )
    for report in training.reports(stop=stop):
        if not math.isfinite(report.loss):
            raise RuntimeError("The loss of the student is not a number.")
    if training.step < training.steps:
        raise StoppedError
    student.spec, student.recipe = spec, spec.recipe
    student.facts["self_training"] = {"texts": len(others)}
    return Assembly(training, student, own)


def as_outputs(targets: np.ndarray, outputs: np.ndarray) -> np.ndarray:
    """Return the targets of labelled rows in the form of a model's outputs: classes become probabilities of 0 and 1."""
    if targets.ndim == outputs.ndim:
        return targets
    return np.eye(outputs.shape[1], dtype=np.float32)[targets]
