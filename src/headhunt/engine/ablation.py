"""Why the winner won: each of its parts taken out, each item of its recipe put back, judged like any candidate.

Hides which variants a spec has and how a difference is told from chance: every variant is judged on the same rows with
the same seeds as the winner, and the differences are paired.
"""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from headhunt.engine.final_test import FinalEvaluation, judged_targets, write_json
from headhunt.errors import HeadhuntError
from headhunt.evaluation import compare, evaluate
from headhunt.modeling.architecture import Head
from headhunt.run.directory import predictions_of
from headhunt.run.ledger import Request
from headhunt.spec import Spec, plain

ABLATION = "ablation.json"
NAMES = {
    "layers": "layers read",
    "convolutions": "convolutions",
    "blocks": "encoder blocks",
    "pooling": "pooling",
    "siamese": "siamese comparison",
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
    "batch_size": "batch size",
    "epochs": "epochs",
    "truncation": "truncation",
    "swap_pairs": "swapped pairs",
}


def variants(spec: Spec, rows: int) -> dict[str, Spec]:
    """The winner with one thing changed, by what is changed: parts of the head removed, recipe items back to default.

    Args:
        spec: The winner.
        rows: Training rows, which decide the plain recipe.
    """
    spec = spec.canonical()
    usual = plain(spec.encoder, rows).recipe
    found: dict[str, Spec] = {}
    sources: tuple[tuple[str, Any, Any], ...] = (("head", spec.head, Head()), ("recipe", spec.recipe, usual))
    for part, ours, default in sources:
        for field in fields(ours):
            value, back = getattr(ours, field.name), getattr(default, field.name)
            if value == back or field.name == "max_length":
                continue
            changed = replace(spec, **{part: replace(ours, **{field.name: back})}).canonical()
            if changed.hash != spec.hash:
                found[f"{NAMES[field.name]}: {_word(value)} → {_word(back)}"] = changed
    return found


def _word(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.2g}"
    return "on" if hasattr(value, "__dataclass_fields__") else str(value)


def ablate(case: FinalEvaluation, trial_number: int, seeds: int = 1) -> dict[str, Any]:
    """Judges the winner and its variants and writes down what each thing is worth.

    Args:
        case: The run.
        trial_number: The winner.
        seeds: How often each is judged; what is there already is not repeated.

    Raises:
        HeadhuntError: If the winner is the plain head with the plain recipe, which has nothing to take out.
    """
    trial = case.state.trials[trial_number]
    spec = Spec.from_dict(trial.spec)
    every = {"": spec, **variants(spec, case.about["rows"]["train"])}
    if len(every) == 1:
        raise HeadhuntError("The winner is the plain head with the plain recipe; there is nothing to take out.")
    requests = {
        (name, seed): Request(
            trial=trial_number,
            spec=variant.to_dict(),
            rung=0,
            fraction=1.0,
            seed=case.study.seed_of(trial_number) + seed,
            predictions=str(_place(case, variant, seed)),
        )
        for seed in range(seeds)
        for name, variant in every.items()
    }
    case.tell(f"judging {len(every) - 1} variants of the winner")
    case.work([request for request in requests.values() if not Path(request.predictions).exists()], case.deadline)
    targets, problem_type = judged_targets(case), case.about["problem_type"]
    outputs = {
        name: [predictions_of(path) for seed in range(seeds) if (path := _place(case, variant, seed)).exists()]
        for name, variant in every.items()
    }
    if not outputs[""]:
        raise HeadhuntError("The winner could not be judged again in the time given.")
    rows = outputs[""][0][0]
    base = [one for _, one in outputs[""]]
    whole = evaluate(problem_type, base[0], targets[rows], case.about["labels"]).scores[case.metric]
    items: list[dict[str, Any]] = []
    for name in [name for name in every if name and outputs[name]]:
        ours = [one for _, one in outputs[name]]
        compared = compare(problem_type, case.metric, ours, base[: len(ours)], targets[rows])
        item = {"name": name, "difference": compared.gain, "low": compared.low, "high": compared.high}
        items.append({**item, "score": whole.value + compared.gain, "seeds": len(ours)})
    failed = [name for name in every if name and not outputs[name]]
    items.sort(key=lambda item: item["difference"])
    result = {
        "schema": 1,
        "trial": trial_number,
        "metric": case.metric,
        "rows": len(rows),
        "base": {"score": whole.value, "low": whole.low, "high": whole.high},
        "items": items,
        "failed": failed,
    }
    write_json(case.folder / ABLATION, result)
    return result


def _place(case: FinalEvaluation, spec: Spec, seed: int) -> Path:
    return case.folder.absolute() / "ablation" / f"{spec.hash}-{seed}.npz"
