"""Describe a candidate in words for reports, model cards and the terminal."""

from __future__ import annotations

from typing import Any

from headhunt.modeling.architecture import ACTIVATIONS, COMPARISONS, NORMS, POOLINGS, WINDOWS, WORDS, EncoderShape
from headhunt.spec.spec import FREEZES, TASK_SAMPLINGS, UNFREEZES, Spec


def describe(spec: Spec) -> str:
    """Return a one-line summary of a candidate."""
    head, recipe = spec.head, spec.recipe
    if recipe.is_solved:
        compared = f", siamese {head.siamese}" if head.siamese else ""
        layers = "all layers" if head.layers == "concat" else _layers_in_words(head.layers)
        compared += f", {head.windows} of windows" if head.windows else ""
        if head.words == "alone":
            return "word counts, no encoder"
        compared += " and word counts" if head.words else ""
        return f"solved head on {layers}, {head.pooling.replace('_', '+')} pooling{compared}, encoder frozen"
    parts = (("convolutions", head.convolutions), ("encoder blocks", head.blocks), ("MLP", head.mlp))
    frozen = {"none": "nothing frozen", "embeddings": "embeddings frozen", "all": "encoder frozen"}
    copied = {"all": "all layers", "1": "the last layer"}
    words = [
        describe_shape(spec.shape) if spec.shape else None,
        "plain head" if head.plain else f"{head.pooling.replace('_', '+')} pooling",
        f"siamese {head.siamese}" if head.siamese else None,
        f"{head.windows} of windows" if head.windows else None,
        _layers_in_words(head.layers) if head.layers != 1 else None,
        *(f"{name} with {_count(part.layers, 'layer')}" for name, part in parts if part is not None),
        frozen.get(str(recipe.freeze), f"{recipe.freeze} layers frozen"),
        copied.get(str(recipe.task_layers), f"the last {recipe.task_layers} layers") + " copied per task"
        if recipe.task_layers
        else None,
        f"learning rate {recipe.learning_rate:.1g}",
        "SMART" if recipe.smart else None,
        "from the solved head" if recipe.head_init == "solved" else None,
        "standardised" if recipe.standardize else None,
        "unfrozen gradually" if recipe.unfreeze else None,
    ]
    return ", ".join(word for word in words if word)


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
    trained = _trained_part(recipe.freeze)
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
    convolutions, blocks, mlp = head.convolutions, head.blocks, head.mlp
    of_each_text: list[dict[str, Any] | None] = [
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
        _stage("layers", "token vectors", layers_used),
        _stage(
            "convolutions",
            _count(convolutions.layers, "convolution"),
            f"{convolutions.channels} channels, kernel {convolutions.kernel}{', skip' if convolutions.skip else ''}",
        )
        if convolutions
        else None,
        _stage("blocks", _count(blocks.layers, "encoder block"), _count(blocks.heads, "attention head"))
        if blocks
        else None,
        _stage("pooling", f"{head.pooling.replace('_', ' + ')} pooling", POOLINGS[head.pooling]),
    ]
    of_both = [
        _stage("windows", f"{head.windows} of windows", WINDOWS[head.windows]) if head.windows else None,
        _stage("comparison", head.siamese, COMPARISONS[head.siamese]) if head.siamese else None,
        _stage("mlp", f"MLP, {_count(mlp.layers, 'hidden layer')}", f"{mlp.width} wide, GELU") if mlp else None,
    ]
    drawn = [{**stage, "twice": twice} for stage in of_each_text if stage]
    drawn += [stage for stage in of_both if stage]
    if head.words is not None:
        counts = _stage("words", "word counts", WORDS[head.words])
        drawn = [drawn[0], counts] if head.words == "alone" else [*drawn, counts]
    return [*drawn, _output_stage(spec, problem_type, labels)]


def _output_stage(spec: Spec, problem_type: str, labels: int) -> dict[str, Any]:
    """Return the last stage: what the model predicts, and how its last layer is trained."""
    output = {
        "single_label_classification": f"one of {labels} classes",
        "multi_label_classification": f"any of {labels} labels",
        "multi_task": f"one of {labels} tasks, each with a head of its own",
    }.get(problem_type, "a number")
    trained = f"dropout {spec.head.dropout:.2g}"
    trained = f"solved by {spec.recipe.solver} regression" if spec.recipe.is_solved else trained
    return _stage("output", output, f"one linear layer, {trained}")


def _stage(stage: str, title: str, detail: str) -> dict[str, Any]:
    return {"stage": stage, "title": title, "detail": detail}


def recipe_words(spec: Spec) -> dict[str, str]:
    """Return the recipe of a candidate as names and values, without the parts that are off."""
    recipe = spec.recipe
    length = f"{recipe.max_length} tokens, cut {'at the end' if recipe.truncation == 'end' else 'in the middle'}"
    if recipe.is_solved:
        return {
            "output layer": f"solved by {recipe.solver} regression",
            "encoder": FREEZES["all"],
            "texts": length,
        }
    words = {
        "learning rate": f"{recipe.learning_rate:.2g}",
        "head learning rate": f"× {recipe.head_lr_multiplier:.3g}",
        "layer decay": f"× {recipe.layer_decay:g} per layer" if recipe.layer_decay != 1 else None,
        "schedule": recipe.schedule,
        "warm-up": f"{recipe.warmup * 100:.0f}\N{NO-BREAK SPACE}% of the training",
        "epochs": f"{recipe.epochs:g}",
        "batch size": str(recipe.batch_size),
        "weight decay": f"{recipe.weight_decay:g}",
        "encoder": _trained_part(recipe.freeze),
        "texts": length,
        "LoRA": f"rank {recipe.lora.rank}, scale {recipe.lora.alpha:g}" if recipe.lora else None,
        "SMART": f"weight {recipe.smart.weight:.3g}" if recipe.smart else None,
        "contrastive loss": f"weight {recipe.contrastive:g}" if recipe.contrastive else None,
        "encoder dropout": f"{recipe.encoder_dropout:g}" if recipe.encoder_dropout is not None else None,
        "label smoothing": f"{recipe.label_smoothing:g}" if recipe.label_smoothing else None,
        "class weights": "inverse to class frequency" if recipe.class_weights else None,
        "first weights": "solved by ridge regression" if recipe.head_init == "solved" else None,
        "features": "standardised over the training rows" if recipe.standardize else None,
        "unfreezing": UNFREEZES[recipe.unfreeze] if recipe.unfreeze else None,
        "layers of each task": str(recipe.task_layers) if recipe.task_layers else None,
        "batches": TASK_SAMPLINGS[recipe.task_sampling] if recipe.task_sampling != "proportional" else None,
        "pairs": "swapped at random during training" if recipe.swap_pairs else None,
    }
    return {name: text for name, text in words.items() if text is not None}


def _trained_part(freeze: int | str) -> str:
    return FREEZES.get(str(freeze), f"the lowest {freeze} layers are frozen")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' if number != 1 else ''}"
