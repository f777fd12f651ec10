"""What moves and how fast: freezing, low-rank updates, layer-wise rates, schedules."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from headhunt.errors import HeadhuntError, ModelError
from headhunt.modeling.build import embeddings_of, layers_of
from headhunt.spec import Lora, Recipe


def freeze(model: PreTrainedModel, recipe: Recipe) -> list[nn.Module]:
    """Marks what is not trained.

    Returns:
        The frozen modules. Their dropout must stay off while training: what is frozen gives the same every time.
    """
    embeddings, layers = embeddings_of(model), layers_of(model)
    if recipe.freeze == "none":
        frozen = []
    elif recipe.freeze == "embeddings":
        frozen = embeddings
    elif recipe.freeze == "all":
        # Whatever else a family has in its encoder is frozen too; only a pooler belongs to the head.
        frozen = [module for name, module in model.base_model.named_children() if name != "pooler"]
    else:
        depth = model.base_model.config.num_hidden_layers
        if recipe.freeze > depth:
            raise ModelError(f"freeze must be at most the encoder's {depth} layers; found {recipe.freeze}.")
        if len(layers) < depth and 0 < recipe.freeze < depth:
            raise ModelError(
                f"This encoder shares one layer {depth} times, so freeze must be none, embeddings or all; "
                f"found {recipe.freeze}."
            )
        frozen = [*embeddings, *layers[: recipe.freeze]]
    for module in frozen:
        module.requires_grad_(False)
    return frozen


class LowRank:
    """Low-rank updates of an encoder's layers, put in at once and merged at the end.

    Args:
        model: The model; its encoder's weights are frozen.
        settings: Rank and scale.
        lowest: The first layer that gets updates.
    """

    def __init__(self, model: PreTrainedModel, settings: Lora, lowest: int = 0) -> None:
        try:
            from peft import LoraConfig, get_peft_model
        except ImportError:
            raise HeadhuntError('LoRA needs the package peft: pip install "headhunt[lora]"') from None
        encoder = model.base_model
        chosen = {id(part) for layer in layers_of(model)[lowest:] for part in layer.modules()}
        names = [name for name, part in encoder.named_modules() if isinstance(part, nn.Linear) and id(part) in chosen]
        trained = {id(parameter) for name, parameter in model.named_parameters() if _is_head(model, name)}
        config = LoraConfig(r=settings.rank, lora_alpha=settings.alpha, target_modules=names, lora_dropout=0.0)
        self.wrapper = get_peft_model(encoder, config)
        for parameter in model.parameters():  # peft freezes the whole base model, a pooler in it too
            if id(parameter) in trained:
                parameter.requires_grad_(True)

    def merge(self) -> None:
        """Adds the updates to the weights and takes the extra layers out."""
        self.wrapper.merge_and_unload()


def _is_head(model: PreTrainedModel, name: str) -> bool:
    prefix = model.base_model_prefix + "."
    return not name.startswith(prefix) or name.startswith(prefix + "pooler")


def parameter_groups(model: PreTrainedModel, recipe: Recipe) -> list[dict[str, Any]]:
    """AdamW's groups: one per depth and kind, with its rate; norms and biases have no weight decay.

    The learning rate is `learning_rate * head_lr_multiplier` for the head and `learning_rate` for the top layer. Each
    layer below it, and last the embeddings, learn at `layer_decay` times the rate of the one above.
    """
    layers = layers_of(model)
    depth_of: dict[int, int] = {}
    for below, module in enumerate([*reversed(layers), None]):
        parts = module.parameters() if module is not None else (p for e in embeddings_of(model) for p in e.parameters())
        for parameter in parts:
            depth_of.setdefault(id(parameter), below)
    groups: dict[tuple[str, bool], dict[str, Any]] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        if _is_head(model, name):
            where, rate = "head", recipe.learning_rate * recipe.head_lr_multiplier
        else:
            below = depth_of.get(id(parameter), 0)  # a norm after the layers goes with the top one
            where = "embeddings" if below == len(layers) else f"layer {len(layers) - 1 - below}"
            rate = recipe.learning_rate * recipe.layer_decay**below
        decays = parameter.ndim > 1
        group = groups.setdefault(
            (where, decays),
            {
                "name": f"{where}{'' if decays else ', norms and biases'}",
                "params": [],
                "rate": rate,
                "weight_decay": recipe.weight_decay if decays else 0.0,
            },
        )
        group["params"].append(parameter)
    return list(groups.values())


def optimiser(model: PreTrainedModel, recipe: Recipe) -> torch.optim.AdamW:
    """AdamW over `parameter_groups`, fused where every torch we admit can."""
    groups = [{**group, "lr": group["rate"]} for group in parameter_groups(model, recipe)]
    return torch.optim.AdamW(groups, lr=recipe.learning_rate, fused=model.device.type in ("cpu", "cuda"))


def schedule(recipe: Recipe) -> Callable[[float], float]:
    """What the rates are multiplied by, as a function of the share of training done (0 to 1)."""
    if recipe.schedule == "slanted":  # Howard and Ruder 2018: cut 0.1, ratio 32
        return lambda done: (1 + (done / 0.1 if done < 0.1 else (1 - done) / 0.9) * 31) / 32
    fall: Callable[[float], float] = {
        "cosine": lambda done: 0.5 * (1 + math.cos(math.pi * done)),
        "linear": lambda done: 1 - done,
        "constant": lambda done: 1.0,
    }[recipe.schedule]
    rise = recipe.warmup

    def factor(done: float) -> float:
        if done < rise:
            return done / rise
        return fall((done - rise) / (1 - rise))

    return factor
