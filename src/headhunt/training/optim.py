"""Set up what is trained and how fast: freezing, LoRA, layer-wise learning rates and schedules."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from headhunt.errors import HeadhuntError, ModelError
from headhunt.modeling.build import embeddings_of, layers_of
from headhunt.spec import Lora, Recipe


def freeze(model: PreTrainedModel, recipe: Recipe) -> list[nn.Module]:
    """Freeze the part of a model that its recipe does not train.

    Returns:
        The frozen modules. They must stay in evaluation mode during training, so that their output is constant.

    Raises:
        ModelError: If the encoder does not have these layers, or shares one layer at all depths.
    """
    embeddings, layers = embeddings_of(model), layers_of(model)
    depth = model.base_model.config.num_hidden_layers
    lowest, frozen = frozen_layers(recipe, depth), list[nn.Module]()
    if recipe.freeze == "all":
        # Everything in the encoder is frozen except a pooler, which belongs to the head.
        frozen = [module for name, module in model.base_model.named_children() if name != "pooler"]
    elif lowest is not None:
        if lowest > depth:
            raise ModelError(f"freeze must be at most the encoder's {depth} layers; found {recipe.freeze}.")
        if len(layers) < depth and 0 < lowest < depth:
            raise ModelError(
                f"freeze must be none, embeddings or all because this encoder shares one layer at all {depth} depths; "
                f"found {recipe.freeze}."
            )
        frozen = [*embeddings, *layers[:lowest]]
        if lowest:
            frozen += _position_tables(model.base_model, [*embeddings, *layers])
    for module in frozen:
        module.requires_grad_(False)
    return frozen


def _position_tables(encoder: nn.Module, parts: Sequence[nn.Module]) -> list[nn.Module]:
    """Return the tables of relative positions that all layers of an encoder read (MPNet, DeBERTa)."""
    inside = {module for part in parts for module in part.modules()}
    return [module for module in encoder.modules() if isinstance(module, nn.Embedding) and module not in inside]


def frozen_layers(recipe: Recipe, depth: int) -> int | None:
    """Return the number of lowest layers that a recipe freezes; None if it trains the embeddings."""
    if recipe.freeze == "none":
        return None
    if recipe.freeze == "all":
        return depth
    return 0 if recipe.freeze == "embeddings" else int(recipe.freeze)


def module_below_trained(model: PreTrainedModel, recipe: Recipe) -> nn.Module:
    """Return the module whose output is the input of the lowest trained layer: the last frozen one, or the embeddings.

    It is at the same position whether or not stored activations replace the frozen layers.
    """
    layers, depth = layers_of(model), model.base_model.config.num_hidden_layers
    frozen = frozen_layers(recipe, depth) or 0
    # A layer that all depths share (ALBERT) runs for every depth: only the embeddings have a single output.
    return layers[frozen - 1] if frozen and len(layers) == depth else embeddings_of(model)[-1]


class LowRank:
    """Low-rank updates of an encoder's layers (LoRA), which are merged into the weights at the end.

    Args:
        model: The model; the weights of its encoder are frozen.
        settings: Rank and scale.
        lowest: The lowest layer with updates.
    """

    def __init__(self, model: PreTrainedModel, settings: Lora, lowest: int = 0) -> None:
        try:
            from peft import LoraConfig, get_peft_model
        except ImportError:
            raise HeadhuntError('LoRA requires the package peft: pip install "headhunt[lora]"') from None
        encoder = model.base_model
        chosen = {id(part) for layer in layers_of(model)[lowest:] for part in layer.modules()}
        names = [name for name, part in encoder.named_modules() if isinstance(part, nn.Linear) and id(part) in chosen]
        trained = {id(parameter) for name, parameter in model.named_parameters() if _is_head(model, name)}
        config = LoraConfig(r=settings.rank, lora_alpha=settings.alpha, target_modules=names, lora_dropout=0.0)
        with warnings.catch_warnings():  # peft reads a property that transformers has renamed
            warnings.filterwarnings("ignore", ".*gradient_checkpointing", FutureWarning)
            self.wrapper = get_peft_model(encoder, config)
        for parameter in model.parameters():  # peft freezes the complete base model, including a pooler
            if id(parameter) in trained:
                parameter.requires_grad_(True)

    def merge(self) -> None:
        """Add the updates to the weights and remove the additional layers."""
        self.wrapper.merge_and_unload()


def _is_head(model: PreTrainedModel, name: str) -> bool:
    prefix = model.base_model_prefix + "."
    return not name.startswith(prefix) or name.startswith(prefix + "pooler")


def parameter_groups(model: PreTrainedModel, recipe: Recipe) -> list[dict[str, Any]]:
    """Return AdamW's parameter groups, one per depth, with norms and biases separate and without weight decay.

    The learning rate is `learning_rate * head_lr_multiplier` for the head and `learning_rate` for the top layer. Each
    layer below, and finally the embeddings, has `layer_decay` times the learning rate of the layer above.
    """
    layers = layers_of(model)
    depth_of: dict[int, int] = {}
    for above, module in enumerate([*reversed(layers), None]):
        modules = [module] if module is not None else embeddings_of(model)
        for parameter in (parameter for module in modules for parameter in module.parameters()):
            depth_of.setdefault(id(parameter), above)
    groups: dict[tuple[str, bool], dict[str, Any]] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        # A norm after the layers belongs to the top one.
        below = None if _is_head(model, name) else depth_of.get(id(parameter), 0)
        if below is None:
            where, rate = "head", recipe.learning_rate * recipe.head_lr_multiplier
        else:
            where = "embeddings" if below == len(layers) else f"layer {len(layers) - 1 - below}"
            rate = recipe.learning_rate * recipe.layer_decay**below
        decays = parameter.ndim > 1
        group = groups.setdefault(
            (where, decays),
            {
                "name": f"{where}{'' if decays else ', norms and biases'}",
                "params": [],
                "rate": rate,
                "below": below,  # layers above it; None for the head
                "weight_decay": recipe.weight_decay if decays else 0.0,
            },
        )
        group["params"].append(parameter)
    return list(groups.values())


def optimiser(model: PreTrainedModel, recipe: Recipe) -> torch.optim.AdamW:
    """Return AdamW over `parameter_groups`, fused on devices where every supported torch version can."""
    groups = [{**group, "lr": group["rate"]} for group in parameter_groups(model, recipe)]
    return torch.optim.AdamW(groups, lr=recipe.learning_rate, fused=model.device.type in ("cpu", "cuda"))


def unfreezing(groups: Sequence[dict[str, Any]], recipe: Recipe) -> list[float]:
    """Return the progress (0 to 1) from which each parameter group is trained; nothing without gradual unfreezing.

    The head is trained from the start. The first half of the training is divided into as many equal shares as there are
    layers to train, with the embeddings as the lowest. After each share one more layer is trained, from the top.
    """
    depths = sorted({group["below"] for group in groups if group["below"] is not None})
    if recipe.unfreeze is None:
        return []
    start = {below: 0.5 * (place + 1) / len(depths) for place, below in enumerate(depths)}
    return [0.0 if group["below"] is None else start[group["below"]] for group in groups]


def schedule(recipe: Recipe) -> Callable[[float], float]:
    """Return the factor of the learning rates as a function of progress (0 to 1)."""
    if recipe.schedule == "slanted":  # Howard and Ruder 2018: cut 0.1, ratio 32
        return lambda progress: (1 + (progress / 0.1 if progress < 0.1 else (1 - progress) / 0.9) * 31) / 32
    decay: Callable[[float], float] = {
        "cosine": lambda progress: 0.5 * (1 + math.cos(math.pi * progress)),
        "linear": lambda progress: 1 - progress,
        "constant": lambda progress: 1.0,
    }[recipe.schedule]
    warmup = recipe.warmup

    def factor(progress: float) -> float:
        if progress < warmup:
            return progress / warmup
        return decay((progress - warmup) / (1 - warmup))

    return factor
