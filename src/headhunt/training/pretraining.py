"""Train an encoder further on texts without labels, once for the same weights, texts and settings.

The result is kept in the cache. A training run that is stopped leaves a checkpoint there, and continues from it.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from headhunt.errors import HeadhuntError, ModelError
from headhunt.modeling.build import hash_weights, longest_input
from headhunt.modeling.masked import build_masked, save_encoder
from headhunt.modeling.pretrained import load_tokenizer, quiet
from headhunt.spec import Recipe
from headhunt.spec.spec import WIDE
from headhunt.storage import (
    atomic_directory,
    cache_dir,
    copy_directory,
    disk_failed,
    mark_used,
    prune_cache,
    read_json,
    remove,
    write_json,
)
from headhunt.training.activations import StoppedError
from headhunt.training.device import pick_device
from headhunt.training.loop import Report
from headhunt.training.masked import MaskedTraining
from headhunt.training.tokens import Tokens, tokenise

SCHEMA = 1
CACHE = "encoders"  # directory of the cache
ABOUT = "pretraining.json"  # in a folder of an encoder, what it was trained on
WEIGHTS = "model.safetensors"
EPOCHS = (0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0)  # that fit into a time; few numbers, so that the cache is found
LEAST_STEPS = 30  # fewer are not worth their time
MEASURED_SECONDS, MEASURED_STEPS = 4.0, 12  # of the steps that the speed is measured with
SAVING_SECONDS = 3.0
MARGIN = 1.15  # on the time that the steps are expected to take
REPORTS = 100
RECIPE = Recipe(batch_size=32, learning_rate=2e-4, head_lr_multiplier=3.0, schedule="linear")
WIDE_LEARNING_RATE = 5e-5  # for encoders of the size of BERT


@dataclass(frozen=True)
class Pretraining:
    """The result of training an encoder further."""

    texts: int
    epochs: float
    steps: int
    first_loss: float | None = None
    """Of the first hundredth of the steps."""
    last_loss: float | None = None
    seconds: float = 0.0
    cached: bool = False
    """Whether the encoder was found in the cache."""


class TooLittleTimeError(HeadhuntError):
    """There is no time for the least number of steps."""


def pretrain(
    encoder: str,
    texts: Sequence[str],
    texts_b: Sequence[str] | None = None,
    *,
    out: Path,
    epochs: float = EPOCHS[-1],
    seconds: float | None = None,
    max_length: int = 128,
    seed: int = 0,
    device: str | None = None,
    precision: str = "auto",
    trust_remote_code: bool = False,
    on_report: Callable[[Report], None] = lambda report: None,
    stop: Callable[[], bool] = lambda: False,
) -> Pretraining:
    """Train an encoder to predict masked tokens of texts, and save it as a folder that replaces the encoder.

    Args:
        encoder: Hugging Face model name or local folder.
        texts: The texts, or the first texts of pairs.
        texts_b: The second texts of pairs.
        out: Folder to write.
        epochs: Passes over the texts.
        seconds: Time that it may take; as many epochs as fit, at most `epochs`.
        max_length: Maximum number of tokens per text or pair.
        seed: Random seed.
        device: "cuda", "mps" or "cpu"; by default the fastest available.
        precision: "auto", "fp32" or "bf16".
        trust_remote_code: Allow code that comes with the encoder to run.
        on_report: Called about a hundred times.
        stop: Called after every step; true saves a checkpoint and ends the training.

    Raises:
        StoppedError: If `stop` returned True.
        TooLittleTimeError: If the time is too short.
        ModelError: If the encoder or the texts cannot be used.
    """
    started = time.perf_counter()
    tokenizer = load_tokenizer(encoder, trust_remote_code)
    model, _ = build_masked(encoder, seed=seed, trust_remote_code=trust_remote_code)
    length = min(max_length, longest_input(model) or max_length)
    tokens = _readable(tokenise(tokenizer, texts, texts_b, max_length=length), tokenizer)
    options = {"seed": seed, "device": pick_device(device), "precision": precision}
    recipe = replace(RECIPE, epochs=epochs, max_length=max_length)
    if int(model.config.hidden_size) >= WIDE:
        recipe = replace(recipe, learning_rate=WIDE_LEARNING_RATE)
    key = _key(model, tokens, recipe, seed)
    if seconds is not None:
        known = [each for each in EPOCHS if each <= epochs and _is_intact(_folder(key, each))]
        if known:
            epochs = known[-1]
        else:
            measured = MaskedTraining(model, False, tokens, tokenizer, recipe, **options)
            epochs = _fitting(measured, epochs, lambda: seconds - (time.perf_counter() - started), stop)
        recipe = replace(recipe, epochs=epochs)

    def start() -> MaskedTraining:
        model, new_head = build_masked(encoder, seed=seed, trust_remote_code=trust_remote_code)
        return MaskedTraining(model, new_head, tokens, tokenizer, recipe, **options)

    folder = _folder(key, epochs)
    checkpoint = folder.with_name(f"{folder.name}.checkpoint")
    if _is_intact(folder):
        mark_used(folder)
        copy_directory(folder, out)
        return Pretraining(len(tokens), epochs, start().steps, cached=True)
    training = _resumed(start, checkpoint)
    losses = _train(training, checkpoint, on_report, stop)
    facts = {"schema": SCHEMA, "encoder": encoder, "texts": len(tokens), "epochs": epochs, "steps": training.steps}
    with atomic_directory(folder) as partial:
        save_encoder(training.finish(), encoder, str(partial), trust_remote_code)
        with quiet():
            tokenizer.save_pretrained(partial)
        write_json(partial / ABOUT, {**facts, "losses": losses, "weights": _hash_file(partial / WEIGHTS)})
    copy_directory(folder, out)
    remove(checkpoint)
    prune_cache(CACHE)
    passed = time.perf_counter() - started
    first, last = (losses[0], losses[-1]) if losses else (None, None)
    return Pretraining(len(tokens), epochs, training.steps, first, last, round(passed, 1))


def _resumed(start: Callable[[], MaskedTraining], checkpoint: Path) -> MaskedTraining:
    """Return a training run as its checkpoint has it, or from the start if that is missing or damaged."""
    training = start()
    if checkpoint.exists():
        try:
            training.restore(checkpoint)
        except Exception as error:  # damaged files raise errors of many libraries
            if disk_failed(error):
                raise
            remove(checkpoint)
            return start()
    return training


def _train(
    training: MaskedTraining, checkpoint: Path, on_report: Callable[[Report], None], stop: Callable[[], bool]
) -> list[float]:
    """Train to the end and return the losses. What is stopped before leaves a checkpoint."""
    losses = []
    try:
        for report in training.reports(REPORTS, stop=stop):
            if not math.isfinite(report.loss):
                raise ModelError("Training the encoder further failed: the loss is not a number.")
            losses.append(round(report.loss, 4))
            on_report(report)
        if training.step < training.steps:
            raise StoppedError
    except (KeyboardInterrupt, StoppedError):
        training.save(checkpoint)
        raise
    return losses


def _readable(tokens: Tokens, tokenizer: Any) -> Tokens:
    """Return the texts that have at least one token to predict."""
    known = ~np.isin(tokens.ids, tokenizer.all_special_ids)
    counts = np.add.reduceat(known, tokens.ends - tokens.lengths) if len(tokens) else np.zeros(0)
    rows = np.flatnonzero(counts > 0)
    if not len(rows):
        raise ModelError(f"The texts must have tokens that the encoder knows; found {len(tokens):,} texts without any.")
    return tokens.take(rows)


def _fitting(training: MaskedTraining, epochs: float, left: Callable[[], float], stop: Callable[[], bool]) -> float:
    """Measure the speed of some steps, and return the largest number of epochs that fits into the time.

    Raises:
        TooLittleTimeError: If none fits.
    """
    began = time.perf_counter()

    def enough() -> bool:
        return training.step >= MEASURED_STEPS or time.perf_counter() - began > MEASURED_SECONDS or stop()

    for _ in training.reports(1, stop=enough):
        pass
    if stop():
        raise StoppedError
    seconds = (time.perf_counter() - began) / max(1, training.step)
    available = (left() - SAVING_SECONDS) / (MARGIN * seconds)
    fitting = [each for each in EPOCHS if each <= epochs and each * training.steps_per_epoch <= available]
    if not fitting or fitting[-1] * training.steps_per_epoch < min(LEAST_STEPS, training.steps):
        raise TooLittleTimeError(
            f"There is no time to train the encoder further: {LEAST_STEPS} steps take about "
            f"{LEAST_STEPS * seconds:.0f} s, and {max(0.0, left()):.0f} s are left for it."
        )
    return fitting[-1]


def _key(model: Any, tokens: Tokens, recipe: Recipe, seed: int) -> str:
    """Return a hash of everything that the result depends on but the number of epochs."""
    digest = hashlib.blake2b(digest_size=16)
    for array in (tokens.ids, tokens.ends):
        digest.update(np.ascontiguousarray(array).tobytes())
    settings = replace(recipe, epochs=1.0)
    return hash_weights(model, SCHEMA, digest.hexdigest(), tokens.firsts is None, repr(settings), seed)


def _folder(key: str, epochs: float) -> Path:
    return cache_dir(CACHE) / f"{key}-{epochs:g}"


def _is_intact(folder: Path) -> bool:
    """Return whether a folder of the cache has the weights that were written to it."""
    try:
        about = read_json(folder / ABOUT)
        return isinstance(about, dict) and about.get("weights") == _hash_file(folder / WEIGHTS)
    except (OSError, ValueError):
        return False


def _hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
