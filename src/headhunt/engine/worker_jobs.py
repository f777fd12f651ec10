"""Jobs of a worker that train no candidate: the speed of an encoder and its further pretraining."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from headhunt.engine.assembly import make_features, spec_of, tokenise_for
from headhunt.engine.worker_data import WorkerData
from headhunt.run.results import PretrainingResult
from headhunt.run.state import Outcome
from headhunt.run.task import open_unlabelled
from headhunt.study.requests import MeasureThroughput, PretrainEncoder
from headhunt.training.pretraining import EPOCHS, TooLittleTimeError, pretrain

MEASURED_BATCH = 32  # rows of similar lengths, as in training: padding would make random ones slower
# Texts that further pretraining reads at most, repeated ones included, so that it ends without a time limit too.
PRETRAINING_EXAMPLES, LEAST_EPOCHS = 100_000, 0.1

Stop = Callable[[], bool]


def measure_throughput(data: WorkerData, request: MeasureThroughput, stop: Stop) -> Outcome:
    """Pass a sample of rows through a candidate's frozen encoder."""
    rows = np.random.default_rng(data.settings.seed).permutation(len(data.splits[0]))[: request.rows or 128]
    sample = data.splits[0].take(np.sort(rows))
    predictor = data.build(request.spec, request.seed)
    tokens = tokenise_for(spec_of(predictor), predictor.tokenizer, data.task, [sample])
    features = make_features(predictor.model, tokens, data.settings.precision)
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
            epochs=min(EPOCHS, max(LEAST_EPOCHS, round(PRETRAINING_EXAMPLES / len(unlabelled), 2))),
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
    data.directory.write(about)
    return Outcome("ok")
