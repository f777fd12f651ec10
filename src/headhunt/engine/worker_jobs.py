"""Jobs of a worker that train no candidate: the speed of an encoder, its further pretraining, and TF-IDF."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from headhunt.data import Task
from headhunt.engine.assembly import make_features, tokenise_for
from headhunt.engine.tfidf import TfidfModel, fit_tfidf
from headhunt.engine.worker_data import Texts, WorkerData
from headhunt.run.clock import steady_time
from headhunt.run.directory import write_arrays
from headhunt.run.results import PretrainingResult
from headhunt.run.state import Outcome
from headhunt.run.task import open_unlabelled
from headhunt.study.requests import EvaluateTfidf, MeasureThroughput, PretrainEncoder
from headhunt.training.activations import StoppedError
from headhunt.training.pretraining import EPOCHS, TooLittleTimeError, pretrain

MEASURED_BATCH = 32  # rows of similar lengths, as in training: padding would make random ones slower
TFIDF_SECONDS, TFIDF_FRACTION = 15.0, 0.05  # for all TF-IDF models of a search, at most
PRETRAINING_EXAMPLES = 100_000  # texts that further pretraining reads at most, repeated ones included

Stop = Callable[[], bool]


def measure_throughput(data: WorkerData, request: MeasureThroughput, stop: Stop) -> Outcome:
    """Pass a sample of rows through a candidate's frozen encoder."""
    rows = np.random.default_rng(data.settings.seed).permutation(len(data.splits[0]))[: request.rows or 128]
    sample = data.splits[0].take(np.sort(rows))
    model, tokenizer, spec = data.build(request.spec, request.seed)
    tokens = tokenise_for(spec, tokenizer, data.task, [sample])
    features = make_features(model.to(data.device), tokens, data.settings.precision)
    lengths = tokens.lengths
    first, *batches = np.array_split(np.argsort(lengths, kind="stable"), -(-len(rows) // MEASURED_BATCH) + 1)
    features.get(first)  # the first pass takes longer
    threads = torch.get_num_threads() if data.device.type == "cpu" else 1
    # Workers that start meanwhile may share the core: a single thread's own time says more.
    clock = time.thread_time if data.device.type == "cpu" and threads == 1 else time.perf_counter
    began, started, measured = time.perf_counter(), clock(), 0
    for batch in batches:
        features.get(batch)
        measured += int(lengths[batch].sum())
        if time.perf_counter() - began > request.seconds or stop():
            break
    tokens_per_second = measured / (clock() - started) if measured else lengths[first].sum() / features.seconds
    rate = float(tokens_per_second / lengths.mean())
    return Outcome("ok", extra={"rows_per_second": rate, "threads": threads})


def evaluate_tfidf(data: WorkerData, request: EvaluateTfidf, stop: Stop) -> Outcome:
    """Predict the validation rows with TF-IDF models of the same folds, and the test rows with one of all rows."""
    texts, texts_b, tasks = data.texts()
    left = math.inf if request.deadline is None else request.deadline - steady_time()
    seconds = max(0.2, min(TFIDF_SECONDS, TFIDF_FRACTION * left) / (len(data.folds) + 1))

    def take(rows: np.ndarray) -> Texts:
        second = None if texts_b is None else [texts_b[row] for row in rows]
        return [texts[row] for row in rows], second, None if tasks is None else tasks[rows]

    def fit(rows: np.ndarray) -> _Reference:
        return _Reference(data.task, take(rows), data.targets[rows], seconds)

    outputs = []
    for train, evaluated in data.folds:
        outputs.append(fit(train).outputs(*take(evaluated)))
        if stop():
            raise StoppedError
    positions = data.rows.positions[np.concatenate([evaluated for _, evaluated in data.folds])]
    write_arrays(request.predictions, rows=positions, outputs=np.concatenate(outputs).astype(np.float32))
    if request.test_predictions is not None:
        model = fit(np.arange(len(data.targets)))
        outputs = [model.outputs(*data.test_texts())]
        write_arrays(request.test_predictions, outputs=np.stack(outputs).astype(np.float32))
    return Outcome("ok")


class _Reference:
    """TF-IDF with a linear model, one for each task.

    Args:
        task: The task, or several tasks.
        texts: The texts to learn from.
        targets: Their targets.
        seconds: Time of all models together.
    """

    def __init__(self, task: Task, texts: Texts, targets: np.ndarray, seconds: float) -> None:
        self._task = task
        self._models: list[TfidfModel] = []
        first, second, tasks = texts
        if tasks is None:
            outputs = max(1, len(task.labels))
            self._models = [fit_tfidf(first, second, targets, task.problem_type, outputs, seconds=seconds)]
            return
        for number, each in enumerate(task.tasks):
            rows = np.flatnonzero(tasks == number)
            values = targets["value"][rows]
            values = values if each.problem_type == "regression" else values.astype(np.int64)
            others = [second[row] for row in rows] if second is not None and each.pair else None
            chosen = [first[row] for row in rows]
            model = fit_tfidf(
                chosen, others, values, each.problem_type, each.outputs, seconds=seconds / len(task.tasks)
            )
            self._models.append(model)

    def outputs(self, texts: list[str], texts_b: list[str] | None, tasks: np.ndarray | None) -> np.ndarray:
        """Return probabilities or numbers, as a `Predictor` does."""
        if tasks is None:
            return self._models[0].outputs(texts, texts_b)
        outputs = np.zeros((len(texts), max(each.outputs for each in self._task.tasks)), np.float32)
        for number, (each, model) in enumerate(zip(self._task.tasks, self._models, strict=True)):
            rows = np.flatnonzero(tasks == number)
            if len(rows):
                second = [texts_b[row] for row in rows] if texts_b is not None and each.pair else None
                outputs[rows, : each.outputs] = model.outputs([texts[row] for row in rows], second).reshape(
                    len(rows), -1
                )
        return outputs


def pretrain_encoder(data: WorkerData, request: PretrainEncoder, stop: Stop) -> Outcome:
    """Train an encoder further on the unlabelled texts of the run, and record the result."""
    unlabelled, settings, recipe = open_unlabelled(data.directory.task), data.settings, request.spec.recipe
    about = PretrainingResult(len(unlabelled), unlabelled.own)
    try:
        done = pretrain(
            request.spec.encoder,
            unlabelled.texts,
            unlabelled.texts_b,
            out=request.out,
            epochs=_most_epochs(len(unlabelled)),
            seconds=request.seconds,
            max_length=recipe.max_length,
            seed=settings.seed,
            device=settings.device,
            precision=settings.precision,
            trust_remote_code=settings.trust_remote_code,
            stop=stop,
        )
        about = replace(about, folder=request.out.name, epochs=done.epochs, steps=done.steps, seconds=done.seconds)
        about = replace(about, first_loss=done.first_loss, last_loss=done.last_loss)
    except TooLittleTimeError as error:
        about = replace(about, note=str(error))
    data.directory.write_pretraining(about)
    return Outcome("ok")


def _most_epochs(texts: int) -> float:
    """Return the epochs of further pretraining at most: fewer with many texts, so that it ends without a time limit."""
    return max(each for each in EPOCHS if each * texts <= PRETRAINING_EXAMPLES or each == EPOCHS[0])
