"""Train an encoder further on texts without labels, once for the same weights, texts and settings.

The result is kept in the cache. A training run that is stopped leaves a checkpoint there, and continues from it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from headhunt.errors import HeadhuntError, ModelError
from headhunt.modeling.build import hash_weights, longest_input
from headhunt.modeling.masked import build_masked, save_encoder
from headhunt.modeling.pretrained import load_tokenizer, quiet
from headhunt.run.clock import steady_time
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
EPOCHS = 3.0
LEAST_STEPS = 30  # fewer are not worth their time
SAVING_SECONDS = 3.0
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
    epochs: float = EPOCHS,
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
    started = steady_time()
    tokenizer = load_tokenizer(encoder, trust_remote_code)
    model, _ = build_masked(encoder, seed=seed, trust_remote_code=trust_remote_code)
    length = min(max_length, longest_input(model) or max_length)
    tokens = _readable(tokenise(tokenizer, texts, texts_b, max_length=length), tokenizer)
    options = {"seed": seed, "device": pick_device(device), "precision": precision}
    recipe = replace(RECIPE, epochs=epochs, max_length=max_length)
    if int(model.config.hidden_size) >= WIDE:
        recipe = replace(recipe, learning_rate=WIDE_LEARNING_RATE)
    key = _key(model, tokens, recipe, seed)

    def start() -> MaskedTraining:
        model, new_head = build_masked(encoder, seed=seed, trust_remote_code=trust_remote_code)
        return MaskedTraining(model, new_head, tokens, tokenizer, recipe, **options)

    training, cache = start(), cache_dir(CACHE)
    planned, per_epoch = training.steps, training.steps_per_epoch
    # Where time is limited, what is there is fast enough.
    for steps in (planned,) if seconds is None else range(planned, 0, -1):
        if _is_intact(folder := cache / f"{key}-{steps}"):
            mark_used(folder)
            copy_directory(folder, out)
            return Pretraining(len(tokens), round(steps / per_epoch, 2), steps, cached=True)
    checkpoint = cache / f"{key}-{planned}.checkpoint"
    training = _resumed(training, start, checkpoint)
    deadline = None if seconds is None else started + seconds - SAVING_SECONDS
    losses = _train(training, checkpoint, on_report, stop, deadline)
    epochs, folder = round(training.steps / per_epoch, 2), cache / f"{key}-{training.steps}"
    facts = {"schema": SCHEMA, "encoder": encoder, "texts": len(tokens), "epochs": epochs, "steps": training.steps}
    with atomic_directory(folder) as partial:
        save_encoder(training.finish(), encoder, str(partial), trust_remote_code)
        with quiet():
            tokenizer.save_pretrained(partial)
        write_json(partial / ABOUT, {**facts, "losses": losses, "weights": _hash_file(partial / WEIGHTS)})
    copy_directory(folder, out)
    remove(checkpoint)
    prune_cache(CACHE)
    passed = steady_time() - started
    first, last = (losses[0], losses[-1]) if losses else (None, None)
    return Pretraining(len(tokens), epochs, training.steps, first, last, round(passed, 1))


def _resumed(training: MaskedTraining, start: Callable[[], MaskedTraining], checkpoint: Path) -> MaskedTraining:
    """Return a training run as its checkpoint has it, or from the start if that is missing or damaged."""
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
    training: MaskedTraining,
    checkpoint: Path,
    on_report: Callable[[Report], None],
    stop: Callable[[], bool],
    deadline: float | None,
) -> list[float]:
    """Train to the end and return the losses. What is stopped before leaves a checkpoint.

    Raises:
        TooLittleTimeError: As soon as it is clear that there is too little time.
    """
    losses, least = [], min(LEAST_STEPS, training.steps)

    def should_stop() -> bool:
        return stop() or training.steps < least

    try:
        for report in training.reports(REPORTS, stop=should_stop, deadline=deadline):
            if not math.isfinite(report.loss):
                raise ModelError("Training the encoder further failed: the loss is not a number.")
            losses.append(round(report.loss, 4))
            on_report(report)
        if training.steps < least:
            raise TooLittleTimeError(
                f"There is no time to train the encoder further: that takes at least {least} steps; "
                f"{training.steps} fit."
            )
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


def _key(model: Any, tokens: Tokens, recipe: Recipe, seed: int) -> str:
    """Return a hash of everything that the result depends on but the number of epochs."""
    digest = hashlib.blake2b(digest_size=16)
    for array in (tokens.ids, tokens.ends):
        digest.update(np.ascontiguousarray(array).tobytes())
    settings = replace(recipe, epochs=1.0)
    return hash_weights(model, SCHEMA, digest.hexdigest(), tokens.firsts is None, repr(settings), seed)


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
