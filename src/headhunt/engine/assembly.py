"""Build a model, its training and its predictor from a task and a spec."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from headhunt.data import Split, Task
from headhunt.errors import ModelError
from headhunt.modeling.build import build, build_tasks, longest_input
from headhunt.modeling.pretrained import load_tokenizer
from headhunt.modeling.tokenizer import train_tokenizer
from headhunt.predictor import Predictor
from headhunt.spec import Spec
from headhunt.training.device import pick_device
from headhunt.training.features import Features, InitialFeatures, TaskFeatures
from headhunt.training.head_init import TrainingRows
from headhunt.training.loop import Training
from headhunt.training.objectives import Objective, TaskObjectives
from headhunt.training.solve import Solving, SolvingTasks
from headhunt.training.task_tokens import TaskTokens
from headhunt.training.tokens import SpecialTokens, Tokens, tokenise

VOCABULARY_ROWS = 20_000  # rows that a new tokenizer is trained on, at most


@dataclass(frozen=True)
class Assembly:
    """A training that is ready to start, the predictor it trains, and the tokens of all rows."""

    training: Training | Solving | SolvingTasks
    predictor: Predictor
    tokens: Tokens | TaskTokens


def prepare(
    task: Task,
    rows: Split,
    spec: Spec,
    *,
    seed: int = 0,
    device: str | None = None,
    precision: str = "auto",
    trust_remote_code: bool = False,
) -> tuple[Training | Solving | SolvingTasks, Predictor]:
    """Return a training of `spec` on `rows` that is ready to start, and the predictor it trains."""
    tokenizer = make_tokenizer(spec, lambda: rows, trust_remote_code)
    where = Where(pick_device(device), precision, trust_remote_code)
    predictor = build_predictor(task, spec, tokenizer, where, seed)
    tokens = tokenise_for(spec_of(predictor), tokenizer, task, [rows])
    if not spec.recipe.is_solved:
        return make_training(task, predictor, tokens, rows.targets, seed), predictor
    features = make_features(predictor.model, tokens, precision)
    return make_solving(task, predictor, features, np.arange(len(rows)), rows.targets, seed), predictor


def make_tokenizer(spec: Spec, rows: Callable[[], Split], trust_remote_code: bool = False) -> Any:
    """Return the tokenizer of a candidate: that of its encoder, or a new one, trained on texts.

    Args:
        spec: The candidate.
        rows: Returns the training rows, for a new tokenizer. The same rows give the same tokenizer.
        trust_remote_code: Allow code that comes with the encoder to run.
    """
    if spec.shape is None or spec.shape.vocabulary is None:
        return load_tokenizer(spec.encoder, trust_remote_code)
    known = rows()
    sample = known.take(np.sort(np.random.default_rng(0).permutation(len(known))[:VOCABULARY_ROWS]))
    return train_tokenizer([*sample.texts(), *(sample.texts_b() or [])], spec.shape.vocabulary)


@dataclass(frozen=True)
class Where:
    """Where and how a model computes."""

    device: torch.device
    precision: str = "auto"
    trust_remote_code: bool = False


def build_predictor(task: Task, spec: Spec, tokenizer: Any, where: Where, seed: int = 0) -> Predictor:
    """Return the untrained model of a candidate; its spec has a length that its encoder can take."""
    if spec.head.siamese and not task.pair:
        raise ModelError(f"A siamese head ({spec.head.siamese}) compares two texts; this task has one.")
    if spec.head.words and task.tasks:
        raise ModelError("A head with word counts is of one task; this model has several.")
    if spec.head.windows and (task.pair or task.tasks):
        found = "several tasks" if task.tasks else "two texts"
        raise ModelError(f"A head that reads windows ({spec.head.windows}) takes one text; this model has {found}.")
    recipe = spec.recipe
    shared: dict[str, Any] = {
        "shape": spec.shape,
        "tokenizer": tokenizer,
        "separators": SpecialTokens.of(tokenizer, pair=True).between if task.pair else (),
        "encoder_dropout": recipe.encoder_dropout,
        "seed": seed,
        "trust_remote_code": where.trust_remote_code,
    }
    model: Any
    if task.tasks:
        tasks = [
            {"name": each.name, "problem_type": each.problem_type, "labels": list(each.labels), "pair": each.pair}
            for each in task.tasks
        ]
        frozen = recipe.freeze if isinstance(recipe.freeze, int) else 0
        shared |= {"task_layers": recipe.task_layers, "frozen_layers": frozen}
        model = build_tasks(spec.encoder, spec.head, tasks, **shared)
    else:
        model = build(spec.encoder, spec.head, problem_type=task.problem_type, labels=task.labels, **shared)
    limit = longest_input(model)
    if limit is not None and spec.recipe.max_length > limit:
        spec = replace(spec, recipe=replace(spec.recipe, max_length=limit))  # no encoder reads beyond its positions
    special = SpecialTokens.of(tokenizer, pair=task.pair)
    if spec.head.words:
        model.config.special_ids = sorted({*special.before, *special.between, *special.after})
    if spec.head.windows:
        model.config.window = [spec.recipe.max_length, len(special.before), len(special.after)]
    about: dict[str, Any] = {"problem_type": task.problem_type, "labels": task.labels, "pair": task.pair}
    return Predictor(model, tokenizer, spec=spec, device=where.device, precision=where.precision, **about)


def spec_of(predictor: Predictor) -> Spec:
    """Return the spec that an untrained predictor was built from."""
    assert predictor.spec is not None
    return predictor.spec


def tokenise_texts(spec: Spec, tokenizer: Any, texts: list[str], texts_b: list[str] | None) -> Tokens:
    """Tokenise the texts of one task as a candidate reads them."""
    return tokenise(
        tokenizer,
        texts,
        texts_b,
        max_length=spec.input_length,
        truncation=spec.recipe.truncation,
        each=spec.head.siamese is not None,
    )


def tokenise_for(spec: Spec, tokenizer: Any, task: Task, rows: Sequence[Split]) -> Tokens | TaskTokens:
    """Tokenise rows as a candidate reads them.

    Args:
        spec: The candidate.
        tokenizer: Its tokenizer.
        task: The task.
        rows: The rows, in one or more splits.
    """
    texts = [text for split in rows for text in split.texts()]
    texts_b = [text for split in rows for text in split.texts_b() or []] if task.pair else None
    if not task.tasks:
        return tokenise_texts(spec, tokenizer, texts, texts_b)
    tasks = np.concatenate([split.targets["task"] for split in rows])
    parts = []
    for number, each in enumerate(task.tasks):
        chosen = np.flatnonzero(tasks == number)
        second = [texts_b[row] for row in chosen] if texts_b is not None and each.pair else None
        parts.append(tokenise_texts(spec, tokenizer, [texts[row] for row in chosen], second))
    return TaskTokens.join(parts, tasks)


def token_key(spec: Spec) -> tuple[Any, ...]:
    """Return a key that is equal for candidates that read texts in the same way."""
    layout = (spec.head.siamese is not None, spec.head.windows is not None)
    return (tokenizer_key(spec), spec.recipe.max_length, spec.recipe.truncation, *layout)


def tokenizer_key(spec: Spec) -> str | int:
    """Return a key that is equal for candidates of one task that have the same tokenizer."""
    return spec.shape.vocabulary if spec.shape and spec.shape.vocabulary else spec.encoder


def architecture_key(spec: Spec) -> tuple[Any, ...]:
    """Return a key that is equal for candidates whose untrained models differ in their initial weights at most."""
    return (*token_key(spec), spec.encoder, spec.shape, spec.head)


def make_solving(
    task: Task,
    predictor: Predictor,
    features: Features | TaskFeatures,
    rows: np.ndarray,
    targets: np.ndarray,
    seed: int,
    groups: np.ndarray | None = None,
) -> Solving | SolvingTasks:
    """Return the solving of an untrained predictor.

    Args:
        task: The task.
        predictor: The predictor.
        features: Features of all rows of the task.
        rows: Positions of the training rows among them.
        targets: Their targets.
        seed: Random seed.
        groups: Their groups of near-duplicates.
    """
    if isinstance(features, TaskFeatures):
        kinds = _kinds(task)
        return SolvingTasks(predictor.model, features, rows, targets, tasks=kinds, groups=groups, seed=seed)
    return Solving(
        predictor.model,
        features,
        rows,
        targets,
        problem_type=task.problem_type,
        outputs=max(1, len(task.labels)),
        groups=groups,
        seed=seed,
        solver=predictor.recipe.solver,
        balanced=predictor.recipe.class_weights,
    )


def make_training(
    task: Task,
    predictor: Predictor,
    tokens: Tokens | TaskTokens,
    targets: np.ndarray,
    seed: int,
    gradient_accumulation_steps: int = 1,
    initial: tuple[InitialFeatures, np.ndarray] | None = None,
) -> Training:
    """Return the training of an untrained predictor.

    Args:
        task: The task.
        predictor: The predictor.
        tokens: Tokens of the training rows.
        targets: Their targets.
        seed: Random seed.
        gradient_accumulation_steps: Number of micro-batches per step.
        initial: Initial features that candidates share; see `TrainingRows`.
    """
    objective: Objective | TaskObjectives
    if task.tasks:
        objective = TaskObjectives.of(_kinds(task), targets, predictor.recipe)
    else:
        objective = Objective.of(task.problem_type, targets, max(1, len(task.labels)), predictor.recipe)
    return Training(
        predictor.model,
        TrainingRows(tokens, targets, objective, initial),
        predictor.recipe,
        seed=seed,
        device=predictor.device,
        precision=predictor.precision,
        gradient_accumulation_steps=gradient_accumulation_steps,
    )


def _kinds(task: Task) -> list[tuple[str, int]]:
    """Return problem type and number of outputs of each of several tasks."""
    return [(each.problem_type, each.outputs) for each in task.tasks]


def make_features(model: Any, tokens: Tokens | TaskTokens, precision: str = "auto") -> Features | TaskFeatures:
    """Return the features of the rows of one task or of several."""
    if isinstance(tokens, TaskTokens):
        return TaskFeatures(model, tokens, precision)
    return Features(model, tokens, precision)
