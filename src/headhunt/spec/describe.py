"""Describe a candidate in words for reports, model cards and the terminal."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from headhunt.modeling.architecture import ACTIVATIONS, COMPARISONS, NORMS, POOLINGS, WINDOWS, EncoderShape
from headhunt.spec.spec import FREEZES, STOPPINGS, TASK_SAMPLINGS, UNFREEZES, Spec


def describe(spec: Spec) -> str:
    """Return a one-line summary of a candidate."""
    head, recipe = spec.head, spec.recipe
    if recipe.is_solved:
        compared = f", siamese {head.siamese}" if head.siamese else ""
        layers = "all layers" if head.layers == "concat" else _layers_in_words(head.layers)
        compared += f", {head.windows} of windows" if head.windows else ""
        return f"solved head on {layers}, {head.pooling.replace('_', '+')} pooling{compared}, encoder frozen"
    words = [describe_shape(spec.shape)] if spec.shape else []
    words.append("plain head" if head.plain else f"{head.pooling.replace('_', '+')} pooling")
    if head.siamese:
        words.append(f"siamese {head.siamese}")
    if head.windows:
        words.append(f"{head.windows} of windows")
    if head.layers != 1:
        words.append(_layers_in_words(head.layers))
    for name, part in (("convolutions", head.convolutions), ("encoder blocks", head.blocks), ("MLP", head.mlp)):
        if part is not None:
            words.append(f"{name} with {_count(part.layers, 'layer')}")
    frozen = {"none": "nothing frozen", "embeddings": "embeddings frozen", "all": "encoder frozen"}
    words.append(frozen.get(str(recipe.freeze), f"{recipe.freeze} layers frozen"))
    if recipe.task_layers:
        copied = {"all": "all layers", "1": "the last layer"}.get(
            str(recipe.task_layers), f"the last {recipe.task_layers} layers"
        )
        words.append(f"{copied} copied per task")
    words.append(f"learning rate {recipe.learning_rate:.1g}")
    if recipe.smart:
        words.append("SMART")
    if recipe.head_init == "solved":
        words.append("from the solved head")
    if recipe.standardize:
        words.append("standardised")
    if recipe.stopping:
        words.append("best epoch")
    if recipe.unfreeze:
        words.append("unfrozen gradually")
    return ", ".join(words)


def describe_shape(shape: EncoderShape) -> str:
    """Return an encoder that is built in words, without its attention heads and tokens."""
    layers = _count(shape.depth, "layer")
    if not shape.is_random:
        return f"{layers} of the encoder, " + ("evenly spaced" if shape.initial == "spread" else "lowest")
    activation = "SwiGLU" if shape.activation == "swiglu" else ACTIVATIONS[shape.activation]
    return (
        f"built encoder of {layers}, {shape.width} wide, {activation}, {shape.norm_position}-norm {NORMS[shape.norm]}"
    )


def _layers_in_words(layers: int | str) -> str:
    if layers == 1:
        return "the last layer"
    return {"mix": "mix of all layers", "concat": "all layers concatenated"}.get(str(layers), f"last {layers} layers")


def stages(spec: Spec, layers: int | None, pair: bool, problem_type: str, labels: int) -> list[dict[str, Any]]:
    """Return the stages of a candidate from tokens to output, each with a title and a detail, for diagrams.

    Args:
        spec: The candidate.
        layers: Number of layers of the encoder; None if unknown.
        pair: True if each row has two texts.
        problem_type: "single_label_classification", "multi_label_classification", "regression" or "multi_task".
        labels: Number of labels, or of tasks.
    """
    head, recipe = spec.head, spec.recipe
    twice = head.siamese is not None
    tokens = ("text a", "text b") if twice else ("[CLS] a [SEP] b [SEP]",) if pair else ("[CLS] text [SEP]",)
    frozen = {"none": 0, "embeddings": 0, "all": layers}.get(str(recipe.freeze), recipe.freeze)
    layers_used = {
        1: "the last layer",
        "mix": "a learned mix of all layers",
        "concat": "all layers, each pooled by itself",
    }.get(head.layers, f"the mean of the last {head.layers} layers")
    trained = FREEZES.get(str(recipe.freeze), f"the lowest {recipe.freeze} layers are frozen")
    if recipe.lora is not None:
        trained = f"low-rank updates of rank {recipe.lora.rank}"
    if spec.shape is not None:
        layers = spec.shape.depth
        trained = f"{describe_shape(spec.shape)}; {trained}"
        if spec.shape.is_random:
            tokens_from = "trained on the texts" if spec.shape.vocabulary else "of the given encoder"
            trained += f"; {_count(spec.shape.heads, 'attention head')}, tokenizer {tokens_from}"
    in_windows = f", in windows of {recipe.max_length}" if head.windows else ""
    name, built = spec.encoder.rstrip("/").split("/"), spec.shape is not None and spec.shape.is_random
    drawn: list[dict[str, Any]] = [
        {"stage": "tokens", "titles": list(tokens), "detail": f"up to {spec.input_length} tokens{in_windows}"},
        {
            "stage": "encoder",
            "title": "built encoder" if built else name[-1] if len(name) < 3 else "/".join(name[-2:]),
            "detail": trained,
            "layers": layers,
            "frozen": frozen,
            "all_frozen": recipe.freeze == "all",
            "embeddings_frozen": recipe.freeze != "none",
            "taken": head.layers,
        },
        {"stage": "layers", "title": "token vectors", "detail": layers_used},
    ]
    if head.convolutions is not None:
        part = head.convolutions
        skip = ", skip" if part.skip else ""
        detail = f"{part.channels} channels, kernel {part.kernel}{skip}"
        drawn.append({"stage": "convolutions", "title": _count(part.layers, "convolution"), "detail": detail})
    if head.blocks is not None:
        detail = _count(head.blocks.heads, "attention head")
        drawn.append({"stage": "blocks", "title": _count(head.blocks.layers, "encoder block"), "detail": detail})
    drawn.append(
        {"stage": "pooling", "title": f"{head.pooling.replace('_', ' + ')} pooling", "detail": POOLINGS[head.pooling]}
    )
    for stage in drawn:
        stage["twice"] = twice
    if head.windows is not None:
        drawn.append({"stage": "windows", "title": f"{head.windows} of windows", "detail": WINDOWS[head.windows]})
    if head.siamese is not None:
        drawn.append({"stage": "comparison", "title": head.siamese, "detail": COMPARISONS[head.siamese]})
    if head.mlp is not None:
        title = f"MLP, {_count(head.mlp.layers, 'hidden layer')}"
        drawn.append({"stage": "mlp", "title": title, "detail": f"{head.mlp.width} wide, GELU"})
    if recipe.is_solved:
        trained_by = f"one linear layer, solved by {recipe.solver} regression"
    else:
        trained_by = f"one linear layer, dropout {head.dropout:.2g}"
    output = {
        "single_label_classification": f"one of {labels} classes",
        "multi_label_classification": f"any of {labels} labels",
        "multi_task": f"one of {labels} tasks, each with a head of its own",
    }.get(problem_type, "a number")
    drawn.append({"stage": "output", "title": output, "detail": trained_by})
    return drawn


def recipe_words(spec: Spec) -> dict[str, str]:
    """Return the recipe of a candidate as names and values, without the parts that are off."""
    recipe = asdict(spec.recipe)
    length = f"{recipe['max_length']} tokens, cut " + (
        "at the end" if recipe["truncation"] == "end" else "in the middle"
    )
    if spec.recipe.is_solved:
        return {
            "output layer": f"solved by {spec.recipe.solver} regression",
            "encoder": FREEZES["all"],
            "texts": length,
        }
    words = {
        "learning rate": f"{recipe['learning_rate']:.2g}",
        "head learning rate": f"× {recipe['head_lr_multiplier']:.3g}",
    }
    if recipe["layer_decay"] != 1:
        words["layer decay"] = f"× {recipe['layer_decay']:g} per layer"
    words |= {
        "schedule": recipe["schedule"],
        "warm-up": f"{recipe['warmup'] * 100:.0f}\N{NO-BREAK SPACE}% of the training",
        "epochs": f"{recipe['epochs']:g}",
        "batch size": str(recipe["batch_size"]),
        "weight decay": f"{recipe['weight_decay']:g}",
        "encoder": FREEZES.get(str(recipe["freeze"]), f"the lowest {recipe['freeze']} layers are frozen"),
        "texts": length,
    }
    if recipe["lora"]:
        words["LoRA"] = f"rank {recipe['lora']['rank']}, scale {recipe['lora']['alpha']:g}"
    if recipe["smart"]:
        words["SMART"] = f"weight {recipe['smart']['weight']:.3g}"
    if recipe.get("contrastive"):
        words["contrastive loss"] = f"weight {recipe['contrastive']:g}"
    if recipe["encoder_dropout"] is not None:
        words["encoder dropout"] = f"{recipe['encoder_dropout']:g}"
    if recipe["label_smoothing"]:
        words["label smoothing"] = f"{recipe['label_smoothing']:g}"
    if recipe["class_weights"]:
        words["class weights"] = "inverse to class frequency"
    if recipe["head_init"] == "solved":
        words["first weights"] = "solved by ridge regression"
    if recipe["standardize"]:
        words["features"] = "standardised over the training rows"
    if recipe["stopping"]:
        words["epoch"] = STOPPINGS[recipe["stopping"]]
    if recipe["unfreeze"]:
        words["unfreezing"] = UNFREEZES[recipe["unfreeze"]]
    if recipe["task_layers"]:
        words["layers of each task"] = str(recipe["task_layers"])
    if recipe["task_sampling"] != "proportional":
        words["batches"] = TASK_SAMPLINGS[recipe["task_sampling"]]
    if recipe["swap_pairs"]:
        words["pairs"] = "swapped at random during training"
    return words


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' if number != 1 else ''}"
