"""Measure the effect of each part and recipe item of the winner, by evaluating it without them.

Every variant is evaluated on the same rows with the same seeds as the winner, and the differences are paired.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from headhunt.engine.view import View
from headhunt.errors import HeadhuntError
from headhunt.evaluation import Score, compare, decision_scores, find_metric, measure
from headhunt.modeling.architecture import Head
from headhunt.run.directory import read_predictions
from headhunt.run.results import AblationItem, AblationResult
from headhunt.spec import Spec, plain
from headhunt.spec.spec import TASK_SAMPLINGS
from headhunt.study.loop import Batch, Loop
from headhunt.study.requests import EvaluateTrial

NAMES = {
    "layers": "layers read",
    "convolutions": "convolutions",
    "blocks": "encoder blocks",
    "pooling": "pooling",
    "siamese": "siamese comparison",
    "windows": "windows of long texts",
    "words": "word counts",
    "mlp": "MLP",
    "dropout": "head dropout",
    "learning_rate": "learning rate",
    "head_lr_multiplier": "faster head",
    "layer_decay": "layer-wise rates",
    "weight_decay": "weight decay",
    "schedule": "schedule",
    "warmup": "warm-up",
    "freeze": "freezing",
    "lora": "LoRA",
    "encoder_dropout": "encoder dropout",
    "label_smoothing": "label smoothing",
    "class_weights": "class weights",
    "smart": "SMART",
    "contrastive": "contrastive loss",
    "batch_size": "batch size",
    "epochs": "epochs",
    "truncation": "truncation",
    "solver": "solver",
    "head_init": "first weights",
    "standardize": "standardised features",
    "unfreeze": "gradual unfreezing",
    "swap_pairs": "swapped pairs",
    "task_layers": "layers of each task",
    "task_sampling": "choice of tasks",
}


@dataclass(frozen=True)
class Variant:
    """The winner with one thing changed."""

    spec: Spec
    left_out: int | None = None
    """Number of a task that is not trained on; the others are scored."""

    @property
    def key(self) -> str:
        """Name of the files of its predictions."""
        return self.spec.hash if self.left_out is None else f"{self.spec.hash}-without-{self.left_out}"


def variants(spec: Spec, rows: int, tasks: bool = False) -> dict[str, Spec]:
    """Return the winner with one thing changed, by name: a part of the head removed, or a recipe item at its default.

    Args:
        spec: The winner.
        rows: Number of training rows, which decides the plain recipe.
        tasks: The model has several tasks: everything and nothing is shared, and every sampling is tried.
    """
    spec = spec.canonical()
    changed: dict[str, Spec] = {}

    def change(name: str, part: str, field: str, value: Any) -> None:
        with suppress(ValueError):  # it may not fit the rest: only a solved head counts words
            variant = replace(spec, **{part: replace(getattr(spec, part), **{field: value})}).canonical()
            if variant.hash != spec.hash:
                changed[name] = variant

    if spec.shape is not None:
        changed["built encoder → the given one"] = replace(spec, shape=None).canonical()
        for name, nested in _nested_variants(spec.shape) if spec.shape.is_random else ():
            changed[f"encoder, {name}"] = replace(spec, shape=nested)
    for part, default in (("head", Head()), ("recipe", plain(spec.encoder, rows).recipe)):
        for name in (each.name for each in fields(default) if each.name != "max_length"):
            value, replacement = getattr(getattr(spec, part), name), getattr(default, name)
            if value != replacement:
                change(f"{NAMES[name]}: {_word(value)} → {_word(replacement)}", part, name, replacement)
                for detail, nested in _nested_variants(value):
                    change(f"{NAMES[name]}, {detail}", part, name, nested)
    for name, choices in {"task_layers": (0, "all"), "task_sampling": TASK_SAMPLINGS}.items() if tasks else ():
        for choice in choices:
            change(f"{NAMES[name]}: {getattr(spec.recipe, name)} → {choice}", "recipe", name, choice)
    return changed


def _all_variants(view: View, spec: Spec) -> dict[str, Variant]:
    """Return the winner, with an empty name, and its variants."""
    tasks = view.task.tasks
    changed = variants(spec, view.task.rows["train"], bool(tasks))
    found = {"": Variant(spec), **{name: Variant(variant) for name, variant in changed.items()}}
    if spec.recipe.freeze != "all" and not spec.recipe.is_solved:  # otherwise tasks do not affect each other
        found |= {
            f"without task {task.name}: score of the others": Variant(spec, number) for number, task in enumerate(tasks)
        }
    return found


def _nested_variants(part: Any) -> Iterator[tuple[str, Any]]:
    """Yield a part of the head or recipe with one thing changed: a switch turned off, or a value at its default."""
    if not is_dataclass(part) or isinstance(part, type):
        return
    for field in fields(part):
        value = getattr(part, field.name)
        replacement = False if value is True else field.default
        if value != replacement and replacement is not MISSING:
            name = f"{field.name.replace('_', ' ')}: {_word(value)} → {_word(replacement)}"
            with suppress(ValueError):  # the default may not fit the other values: a width and its heads
                yield name, replace(part, **{field.name: replacement})


def _word(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.2g}"
    return "on" if hasattr(value, "__dataclass_fields__") else str(value)


def run_ablation(view: View, loop: Loop, trial_number: int, seeds: int = 1) -> AblationResult:
    """Evaluate the winner and its variants and write the result.

    Args:
        view: The search.
        loop: Runs the training.
        trial_number: The winner.
        seeds: How often each is evaluated; predictions on disk are used again.

    Raises:
        HeadhuntError: If the winner is the plain head with the plain recipe, which has nothing to remove.
    """
    specs = _all_variants(view, view.state.trials[trial_number].spec)
    if len(specs) == 1:
        raise HeadhuntError("The winner is the plain head with the plain recipe; there is nothing to remove.")
    requests = [
        _request(view, trial_number, variant, seed, path)
        for seed in range(seeds)
        for variant in specs.values()
        if not (path := view.directory.ablation_predictions(variant.key, seed)).exists()
    ]
    loop.run(Batch(requests))
    rows, outputs = _read_outputs(view, specs, seeds)
    if not outputs[""]:
        raise HeadhuntError("There was no time to evaluate the winner again. Give more time, or none for no limit.")
    scores = [view.evaluate(run, rows).scores for run in outputs[""].values()]
    base = Score(*(float(np.mean([getattr(s[view.metric], end) for s in scores])) for end in ("value", "low", "high")))
    found = [_item(view, name, specs[name], outputs[name], outputs[""], rows) for name in specs if name]
    items = [item for item in found if item is not None]
    items.sort(key=lambda item: item.difference)
    evaluated = {item.name for item in items}
    failed = tuple(name for name in specs if name and name not in evaluated)
    result = AblationResult(trial_number, view.metric, len(rows), base, tuple(items), failed)
    view.directory.write(result)
    return result


def _item(
    view: View,
    name: str,
    variant: Variant,
    outputs: Mapping[int, np.ndarray],
    winner: Mapping[int, np.ndarray],
    rows: np.ndarray,
) -> AblationItem | None:
    """Return a variant's score and its difference from the winner's; None if no seed has both.

    Args:
        view: The search.
        name: Name of the variant.
        variant: The variant.
        outputs: Its outputs by seed.
        winner: Outputs of the winner by seed.
        rows: Positions of the rows they predict.
    """
    targets = view.validation_targets[rows]
    shared = [seed for seed in outputs if seed in winner]
    if not shared:
        return None
    pair, metric = [[each[seed] for seed in shared] for each in (outputs, winner)], view.metric
    if variant.left_out is not None:
        kept = targets["task"] != variant.left_out
        pair, targets = [[run[kept] for run in runs] for runs in pair], targets[kept]
        targets["task"] -= targets["task"] > variant.left_out
        metric = ",".join(each for number, each in enumerate(metric.split(",")) if number != variant.left_out)
    problem_type = view.task.problem_type
    comparison = compare(problem_type, metric, pair[0], pair[1], targets, groups=view.groups_of(rows))
    # `measure` is signed so that higher is better; an error is shown as it is.
    score = float(np.mean([measure(problem_type, metric, run, targets) for run in pair[0]]))
    return AblationItem(
        name=name,
        score=score if find_metric(metric).higher_is_better else -score,
        difference=comparison.gain,
        low=comparison.low,
        high=comparison.high,
        seeds=len(shared),
        significant=len(shared) > 1 and not comparison.low <= 0 <= comparison.high,
    )


def _request(view: View, trial: int, variant: Variant, seed: int, path: Path) -> EvaluateTrial:
    winner = view.state.trials[trial]
    top = view.study.ladder.top
    return view.request(
        EvaluateTrial,
        winner,
        seed,
        spec=variant.spec,
        left_out=variant.left_out,
        rung=top,
        fraction=1.0,
        rows=view.study.rows_of(winner, top),
        predictions=path,
        deadline=view.study.budget.deadline,
        worker_timeout=None,
        recorded=False,
    )


def _read_outputs(
    view: View, specs: Mapping[str, Variant], seeds: int
) -> tuple[np.ndarray, dict[str, dict[int, np.ndarray]]]:
    """Return the rows, and the outputs of each variant by seed."""
    rows = np.arange(0)
    outputs: dict[str, dict[int, np.ndarray]] = {name: {} for name in specs}
    for name, variant in specs.items():
        for seed in range(seeds):
            path = view.directory.ablation_predictions(variant.key, seed)
            if path.exists():
                evaluated, predicted = read_predictions(path)
                rows = evaluated if name == "" else rows
                truth = view.validation_targets[evaluated]
                outputs[name][seed] = decision_scores(view.task.problem_type, view.metric, predicted, truth)
    return rows, outputs
