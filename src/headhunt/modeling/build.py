"""Build a model that is ready to train from a pretrained encoder and a head.

This module knows the differences between families of encoders. A saved model does not need it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForSequenceClassification,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.dynamic_module_utils import get_class_from_dynamic_module
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from headhunt.errors import ModelError
from headhunt.modeling.architecture import EncoderShape, Head, to_dict
from headhunt.modeling.configuration import HeadhuntConfig
from headhunt.modeling.encoder import HeadhuntEncoder, HeadhuntEncoderConfig
from headhunt.modeling.ensemble import HeadhuntEnsembleConfig, HeadhuntEnsembleForSequenceClassification
from headhunt.modeling.heads import HeadModule, Pooler
from headhunt.modeling.model import HeadhuntForSequenceClassification
from headhunt.modeling.multitask import (
    HeadhuntMultiTaskConfig,
    HeadhuntMultiTaskForSequenceClassification,
    find_layers,
)
from headhunt.modeling.pretrained import loading_errors, quiet
from headhunt.storage import read_json

# Names of the dropout of the encoder and of the classification head in the configurations of all families.
ENCODER_DROPOUTS = (
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "dropout",
    "attention_dropout",
    "mlp_dropout",
    "embedding_dropout",
)
# Settings by which a configuration makes transformers load further code, such as kernels from the Hub.
LOADERS = re.compile(r"_?(attn|experts)_implementation(_internal)?|(quantization|compression|kernel|fusion)_config")
# Settings that no class of transformers lists: ours, and older names.
MORE_SETTINGS = ("model_type", "thresholds", "rejection", "rope_scaling", "torch_dtype", "num_labels")
HEAD_DROPOUTS = ("classifier_dropout", "seq_classif_dropout", "classifier_dropout_prob")

AutoConfig.register("headhunt", HeadhuntConfig)
AutoConfig.register("headhunt_ensemble", HeadhuntEnsembleConfig)
AutoConfig.register("headhunt_multitask", HeadhuntMultiTaskConfig)
AutoModelForSequenceClassification.register(HeadhuntConfig, HeadhuntForSequenceClassification)
AutoModelForSequenceClassification.register(HeadhuntEnsembleConfig, HeadhuntEnsembleForSequenceClassification)
AutoModelForSequenceClassification.register(HeadhuntMultiTaskConfig, HeadhuntMultiTaskForSequenceClassification)


def build(
    encoder: str,
    head: Head,
    *,
    problem_type: str,
    labels: Sequence[str],
    shape: EncoderShape | None = None,
    tokenizer: Any = None,
    separators: Sequence[int] = (),
    encoder_dropout: float | None = None,
    seed: int = 0,
    trust_remote_code: bool = False,
) -> PreTrainedModel:
    """Return an encoder with a new head.

    The plain head uses the encoder's own `…ForSequenceClassification` class, so that the saved model needs no code of
    Headhunt.

    Args:
        encoder: Hugging Face model name or local folder.
        head: The head as data.
        problem_type: "single_label_classification", "multi_label_classification" or "regression".
        labels: Class names; empty for regression.
        shape: Encoder that is built in place of the given one.
        tokenizer: The tokenizer; required by an encoder with random weights.
        separators: Special tokens between two texts; required by a siamese head.
        encoder_dropout: Dropout within the encoder; None keeps its own.
        seed: Random seed of the initial weights.
        trust_remote_code: Allow code that comes with the encoder to run.
    """
    torch.manual_seed(seed)
    with quiet(), loading_errors(encoder):
        config = _config_of(encoder, shape, tokenizer, encoder_dropout, trust_remote_code)
        names: dict[str, Any] = {
            "id2label": dict(enumerate(labels or ["score"])),
            "label2id": {label: i for i, label in enumerate(labels or ["score"])},
            "problem_type": problem_type,
        }
        loading = {"dtype": torch.float32, "trust_remote_code": trust_remote_code}
        if head.plain and type(config) in AutoModelForSequenceClassification._model_mapping:
            config.update(names)
            _set(config, HEAD_DROPOUTS, head.dropout)
            loading |= {"ignore_mismatched_sizes": True, "output_loading_info": True}
            model, info = AutoModelForSequenceClassification.from_pretrained(encoder, config=config, **loading)
            _initialise_classifier(model, {*info["missing_keys"], *(key[0] for key in info["mismatched_keys"])})
            _keep_layers(model, shape, model.config)
            return model
        pretrained, pooler = _load_encoder(encoder, config, shape, trust_remote_code)
        shared = _shared_settings(config, separators)
        model = HeadhuntForSequenceClassification(HeadhuntConfig(head=to_dict(head), **shared, **names), pretrained)
        _initialise_pooling(model.head, pooler)
    return model


def _initialise_classifier(model: PreTrainedModel, new: set[str]) -> None:
    """Initialise the layers after the encoder, but those with `new` weights: others are of another task."""
    for name, module in model.named_children():
        weights = [f"{name}.{weight}" for weight, _ in module.named_parameters()]
        if module is model.base_model or all(weight in new for weight in weights):
            continue
        for weight in module.parameters():
            weight._is_hf_initialized = False  # transformers keeps loaded weights
        with torch.no_grad():
            module.apply(model._init_weights)


def build_tasks(
    encoder: str,
    head: Head,
    tasks: Sequence[Mapping[str, Any]],
    *,
    task_layers: int | str = 0,
    frozen_layers: int = 0,
    shape: EncoderShape | None = None,
    tokenizer: Any = None,
    separators: Sequence[int] = (),
    encoder_dropout: float | None = None,
    seed: int = 0,
    trust_remote_code: bool = False,
) -> HeadhuntMultiTaskForSequenceClassification:
    """Return an encoder with a new head for each of several tasks.

    The heads are equal in architecture, but only those of pairs compare two texts. A plain head starts from the
    encoder's pooler, as that of a single task does.

    Args:
        encoder: Hugging Face model name or local folder.
        head: The head as data.
        tasks: For each task its `name`, `problem_type`, `labels` and `pair`.
        task_layers: Number of layers nearest the output that every task has a copy of; "all" copies every layer.
        frozen_layers: Number of lowest layers that are not trained. They stay equal, and are not copied.
        shape: Encoder that is built in place of the given one.
        tokenizer: The tokenizer; required by an encoder with random weights.
        separators: Special tokens between two texts; required if a task has pairs.
        encoder_dropout: Dropout within the encoder; None keeps its own.
        seed: Random seed of the initial weights.
        trust_remote_code: Allow code that comes with the encoder to run.
    """
    torch.manual_seed(seed)
    with quiet(), loading_errors(encoder):
        config = _config_of(encoder, shape, tokenizer, encoder_dropout, trust_remote_code)
        pretrained, pooler = _load_encoder(encoder, config, shape, trust_remote_code)
        depth = len(find_layers(pretrained) or [])
        if task_layers and not depth:
            raise ModelError("task_layers must be 0 because this encoder shares one layer at all depths.")
        copied = max(0, min(depth if task_layers == "all" else int(task_layers), depth - frozen_layers))
        if head.plain and pooler is not None:
            head = replace(head, pooling="pooler")
        described = [{**task, "head": to_dict(head if task["pair"] else replace(head, siamese=None))} for task in tasks]
        shared = _shared_settings(config, separators)
        joint = HeadhuntMultiTaskConfig(tasks=described, task_layers=copied, **shared)
        model = HeadhuntMultiTaskForSequenceClassification(joint, pretrained)
        for module in heads_of(model):
            _initialise_pooling(module, pooler)
    return model


def _config_of(
    encoder: str, shape: EncoderShape | None, tokenizer: Any, dropout: float | None, trust_remote_code: bool
) -> PretrainedConfig:
    """Return the configuration of the given encoder, or of one with random weights."""
    if shape is not None and shape.is_random:
        config = HeadhuntEncoderConfig(
            vocab_size=max(tokenizer.get_vocab().values()) + 1,
            hidden_size=shape.width,
            num_hidden_layers=shape.depth,
            num_attention_heads=shape.heads,
            intermediate_size=round(shape.ffn_ratio * shape.width),
            hidden_act=shape.activation,
            norm=shape.norm,
            norm_position=shape.norm_position,
            pad_token_id=tokenizer.pad_token_id or 0,
        )
    else:
        config = AutoConfig.from_pretrained(encoder, trust_remote_code=trust_remote_code)
        check_config({**config.to_dict(), "attn_implementation": config._attn_implementation})
    if dropout is not None:
        _set(config, ENCODER_DROPOUTS, dropout)
    return config


def _keep_layers(model: PreTrainedModel, shape: EncoderShape | None, *configs: PretrainedConfig) -> None:
    """Remove the layers of an encoder that a shape leaves out, and note it in its configurations."""
    if shape is None:
        return
    layers = find_layers(model.base_model)
    if layers is None:
        raise ModelError("shape must have random weights because this encoder shares one layer at all depths.")
    try:
        chosen = shape.kept_layers(len(layers))
    except ValueError as error:
        raise ModelError(str(error)) from None
    kept = [layers[number] for number in chosen]
    del layers[:]
    layers.extend(kept)
    for config in configs:
        types = getattr(config, "layer_types", None)  # ModernBERT's layers differ
        if types is not None:
            config.layer_types = [types[number] for number in chosen]
        config.num_hidden_layers = len(chosen)


def _load_encoder(
    encoder: str, config: PretrainedConfig, shape: EncoderShape | None, trust_remote_code: bool
) -> tuple[PreTrainedModel, nn.Linear | None]:
    """Return an encoder, and the linear layer of its pooler if it has one."""
    if isinstance(config, HeadhuntEncoderConfig):
        return HeadhuntEncoder(config), None
    pretrained = AutoModel.from_pretrained(
        encoder, config=config, dtype=torch.float32, trust_remote_code=trust_remote_code
    )
    _keep_layers(pretrained, shape, pretrained.config, config)
    if trust_remote_code:
        _register(type(config), type(pretrained))
    pooler = getattr(pretrained, "pooler", None) or nn.Identity()  # ALBERT's pooler is a linear layer, BERT's has one
    return pretrained, next((module for module in pooler.modules() if isinstance(module, nn.Linear)), None)


def _shared_settings(config: PretrainedConfig, separators: Sequence[int]) -> dict[str, Any]:
    """Return the fields of a configuration that do not depend on the head."""
    return {
        "encoder": {name: value for name, value in config.to_dict().items() if name != "_name_or_path"},
        "separator": separators[0] if separators else None,
        "separators": max(1, len(separators)),
        "pad_token_id": config.pad_token_id,
    }


def _initialise_pooling(head: HeadModule, pooler: nn.Linear | None) -> None:
    """Start a head's pooler from that of the encoder."""
    pooling = head.pooling
    if isinstance(pooling, Pooler) and pooler is not None and pooler.weight.shape == pooling.dense.weight.shape:
        pooling.dense.load_state_dict(pooler.state_dict())


def has_unknown_encoder(folder: Path) -> bool:
    """Return True if an encoder of a saved model has its own code that is not registered yet."""
    config = read_json(folder / "config.json")
    ensemble = config.get("model_type") == HeadhuntEnsembleConfig.model_type
    configs = [entry["config"] for entry in config["members"]] if ensemble else [config]
    own = (HeadhuntConfig.model_type, HeadhuntMultiTaskConfig.model_type)
    encoders = [each["encoder"] for each in configs if each.get("model_type") in own]
    return any(encoder["model_type"] not in CONFIG_MAPPING for encoder in encoders)


def register_remote_code(encoder: str) -> None:
    """Run the code that comes with an encoder and register its classes, so that models saved with it can be loaded."""
    with quiet(), loading_errors(encoder):
        config = AutoConfig.from_pretrained(encoder, trust_remote_code=True)
        _register(type(config), get_class_from_dynamic_module(config.auto_map["AutoModel"], encoder))


def _register(config_class: type[PretrainedConfig], model_class: type[PreTrainedModel]) -> None:
    """Make the classes of an encoder known to transformers, unless they are part of it."""
    if config_class.model_type not in CONFIG_MAPPING:
        AutoConfig.register(config_class.model_type, config_class)
        AutoModel.register(config_class, model_class)


def _set(config: Any, names: Sequence[str], value: float) -> None:
    for name in names:
        if hasattr(config, name):
            setattr(config, name, value)


def layers_of(model: PreTrainedModel) -> list[nn.Module]:
    """Return the encoder's layers, lowest first. ALBERT's shared layer counts as one."""
    encoder = model.base_model
    lists = [module for module in encoder.modules() if isinstance(module, nn.ModuleList)]
    return list(find_layers(encoder) or (lists[0] if lists else []))


def embeddings_of(model: PreTrainedModel) -> list[nn.Module]:
    """Return the modules between token ids and the input of the first layer."""
    return [module for name, module in model.base_model.named_children() if "embed" in name]


def has_own_code(part: Any) -> bool:
    """Return whether the code of a model or a configuration came with its folder, not with a library."""
    return type(part).__module__.startswith("transformers_modules")


def heads_of(model: PreTrainedModel) -> list[HeadModule]:
    """Return Headhunt's heads of a model: one, one for each task, or none if it has the encoder's own."""
    if isinstance(model, HeadhuntMultiTaskForSequenceClassification):
        return [module for module in model.heads if isinstance(module, HeadModule)]
    return [model.head] if isinstance(model, HeadhuntForSequenceClassification) else []


def output_of(model: PreTrainedModel) -> nn.Linear:
    """Return the last linear layer, whose outputs are the logits."""
    last = [module for module in model.modules() if isinstance(module, nn.Linear)][-1]
    return model.head.output if isinstance(model, HeadhuntForSequenceClassification) else last


def longest_input(model: PreTrainedModel) -> int | None:
    """Return the maximum number of tokens of the encoder; None if its positions set no limit."""
    for name, module in model.base_model.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding):
            # RoBERTa and related encoders count positions from the padding id on.
            return module.num_embeddings - (0 if module.padding_idx is None else module.padding_idx + 1)
    return getattr(model.base_model.config, "max_position_embeddings", None)


def hash_weights(model: nn.Module, *more: Any) -> str:
    """Return a hash that is equal for models of equal weights.

    Args:
        model: The model.
        more: Further values that must be equal.
    """
    digest = hashlib.blake2b(repr((*more, type(model).__name__)).encode(), digest_size=16)
    for name, value in model.state_dict().items():
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().view(torch.uint8).numpy())
    return digest.hexdigest()


def check_config(config: Any) -> None:
    """Refuse a configuration, or a part of it, that makes transformers load other code.

    Raises:
        ModelError: If it asks for more than PyTorch's own attention.
    """
    for key, value in config.items() if isinstance(config, dict) else enumerate(config):
        if LOADERS.fullmatch(str(key)) and value not in (None, "sdpa", "eager"):
            raise ModelError(f"its configuration must not load other code; found {key}={str(value)[:60]!r}")
        if isinstance(value, dict | list):
            check_config(value)


def keep_known(config: Any) -> Any:
    """Return a configuration with the settings that its class lists, and with numbers, which cannot name any code.

    Classes that came with an encoder read what they like: their code was run with permission.
    """
    if isinstance(config, list):
        return [keep_known(value) for value in config]
    if not isinstance(config, dict):
        return config
    known = set(config)
    if config.get("model_type") in CONFIG_MAPPING:
        listed = CONFIG_MAPPING[config["model_type"]]()
        if not has_own_code(listed):
            known = {name for name in vars(listed) if name[0] != "_"}.union(listed.attribute_map, MORE_SETTINGS)
    plain = (int, float, type(None))
    return {name: keep_known(value) for name, value in config.items() if name in known or isinstance(value, plain)}


def load_saved(folder: Path) -> PreTrainedModel:
    """Load a saved model. No code from the folder is run, and none that its configuration names.

    Its attention is PyTorch's own, fused or not.

    Raises:
        ModelError: If weights are missing, or the configuration names other code.
    """
    settings = read_json(folder / "config.json")
    check_config(settings)
    with quiet():
        model, loaded = AutoModelForSequenceClassification.from_pretrained(
            folder,
            config=AutoConfig.for_model(**keep_known(settings)),
            dtype=torch.float32,
            output_loading_info=True,
            trust_remote_code=False,  # without it, transformers asks on standard input
            use_safetensors=True,  # never a pickle
        )
    if loaded["missing_keys"]:  # transformers would initialise them at random
        raise ModelError(f"its weights lack {', '.join(sorted(loaded['missing_keys'])[:3])}")
    if loaded["unexpected_keys"] and isinstance(model, HeadhuntMultiTaskForSequenceClassification):
        # A task that was taken out of config.json: the names of the others would stand for other heads.
        found = ", ".join(sorted(loaded["unexpected_keys"])[:3])
        raise ModelError(f"its weights are of other tasks than its config.json: they also have {found}")
    return model
