"""From a name or folder to a model ready to train: pretrained encoder, tokenizer, head.

Stays at home: a saved model never needs it. Hides what differs between families of encoders.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification, AutoTokenizer, PreTrainedModel
from transformers.utils import logging as transformers_logging

from headhunt.errors import ModelError, out_of_memory
from headhunt.modeling.architecture import Head, to_dict
from headhunt.modeling.configuration import HeadhuntConfig
from headhunt.modeling.heads import Pooler
from headhunt.modeling.model import HeadhuntForSequenceClassification

PROBLEMS = {
    "single_label_classification": "single_label_classification",
    "multi_label_classification": "multi_label_classification",
    "regression": "regression",
}
# What families call the dropout of their encoder and of their own classification head.
ENCODER_DROPOUTS = (
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "dropout",
    "attention_dropout",
    "mlp_dropout",
    "embedding_dropout",
)
HEAD_DROPOUTS = ("classifier_dropout", "seq_classif_dropout", "classifier_dropout_prob")

AutoConfig.register("headhunt", HeadhuntConfig)
AutoModelForSequenceClassification.register(HeadhuntConfig, HeadhuntForSequenceClassification)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keeps transformers from listing the weights a new head lacks, and from drawing bars of its own."""
    level, bars = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity(logging.ERROR)
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)
        if bars:
            transformers_logging.enable_progress_bar()


@contextlib.contextmanager
def explained(encoder: str) -> Iterator[None]:
    """Turns what transformers raises when an encoder is not there into one sentence the user can act on."""
    try:
        yield
    except ModelError:
        raise
    except Exception as error:  # broken files raise whatever the library that reads them likes to
        if out_of_memory(error):
            raise
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise ModelError(
            f"The encoder must be a Hugging Face name or a folder with config.json, weights and tokenizer; "
            f"{encoder!r} cannot be loaded ({reason}). Check the name and the network; "
            "offline, give a folder: --encoder DIR."
        ) from None


def load_config(encoder: str, trust_remote_code: bool = False) -> Any:
    """The encoder's configuration."""
    with quiet(), explained(encoder):
        return AutoConfig.from_pretrained(encoder, trust_remote_code=trust_remote_code)


def check_length(tokens: int, encoder: str, trust_remote_code: bool = False) -> None:
    """Refuses to read more of a text than the encoder can take, or next to nothing.

    Raises:
        ModelError: If so.
    """
    known = getattr(load_config(encoder, trust_remote_code), "max_position_embeddings", None)
    longest = known if known and known > 0 else 32768  # what a recipe may hold
    if not 8 <= tokens <= longest:
        raise ModelError(f"The maximum length must be 8 to {longest} tokens with {encoder!r}; found {tokens}.")


def load_tokenizer(encoder: str, trust_remote_code: bool = False) -> Any:
    """The encoder's tokenizer, with truncation and padding that its file may carry switched off."""
    with quiet(), explained(encoder):
        tokenizer = AutoTokenizer.from_pretrained(encoder, trust_remote_code=trust_remote_code)
    if len(tokenizer) <= len(tokenizer.all_special_ids):  # what transformers makes where the files are missing
        raise ModelError(f"{encoder!r} has no tokenizer: its files are missing, or hold no words.")
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        backend.no_truncation()
        backend.no_padding()
    # "[SEP]" written by a user is text, not the end of it.
    tokenizer.split_special_tokens = True
    return tokenizer


def build(
    encoder: str,
    head: Head,
    *,
    problem_type: str,
    labels: Sequence[str],
    separators: Sequence[int] = (),
    encoder_dropout: float | None = None,
    seed: int = 0,
    trust_remote_code: bool = False,
) -> PreTrainedModel:
    """A pretrained encoder with a new head.

    The plain head gives the encoder's own `…ForSequenceClassification`, so that what is saved needs none of our code.

    Args:
        encoder: A Hugging Face name or a folder.
        head: The head as data.
        problem_type: "single_label_classification", "multi_label_classification" or "regression".
        labels: Class names; empty for a number.
        separators: The special tokens the tokenizer puts between two texts; a siamese head needs them.
        encoder_dropout: Dropout within the encoder; None keeps its own.
        seed: For the head's first weights.
        trust_remote_code: Whether code that comes with the encoder may run.
    """
    torch.manual_seed(seed)
    with quiet(), explained(encoder):
        config = AutoConfig.from_pretrained(encoder, trust_remote_code=trust_remote_code)
        names = {
            "id2label": dict(enumerate(labels or ["score"])),
            "label2id": {label: i for i, label in enumerate(labels or ["score"])},
            "problem_type": PROBLEMS[problem_type],
        }
        if encoder_dropout is not None:
            _set(config, ENCODER_DROPOUTS, encoder_dropout)
        loading = {"dtype": torch.float32, "trust_remote_code": trust_remote_code}
        if head.plain and type(config) in AutoModelForSequenceClassification._model_mapping:
            config.update(names)
            _set(config, HEAD_DROPOUTS, head.dropout)
            return AutoModelForSequenceClassification.from_pretrained(encoder, config=config, **loading)
        pretrained = AutoModel.from_pretrained(encoder, config=config, **loading)
        pooler = _dense_of(getattr(pretrained, "pooler", None))
        ours = HeadhuntConfig(
            encoder={name: value for name, value in config.to_dict().items() if name != "_name_or_path"},
            head=to_dict(head),
            separator=separators[0] if separators else None,
            separators=max(1, len(separators)),
            pad_token_id=config.pad_token_id,
            **names,
        )
        model = HeadhuntForSequenceClassification(ours, pretrained)
        pooling = model.head.pooling
        if isinstance(pooling, Pooler) and pooler is not None and pooler.weight.shape == pooling.dense.weight.shape:
            pooling.dense.load_state_dict(pooler.state_dict())
    return model


def _set(config: Any, names: Sequence[str], value: float) -> None:
    for name in names:
        if hasattr(config, name):
            setattr(config, name, value)


def _dense_of(pooler: nn.Module | None) -> nn.Linear | None:
    """The pooler's one linear layer (ALBERT's pooler is that layer, BERT's has it)."""
    if pooler is None:
        return None
    return next((module for module in pooler.modules() if isinstance(module, nn.Linear)), None)


def layers_of(model: PreTrainedModel) -> list[nn.Module]:
    """The encoder's layers, lowest first. ALBERT's shared layer counts as one."""
    encoder = model.base_model
    lists = [module for module in encoder.modules() if isinstance(module, nn.ModuleList)]
    depth = encoder.config.num_hidden_layers
    return list(next((found for found in lists if len(found) == depth), lists[0] if lists else []))


def embeddings_of(model: PreTrainedModel) -> list[nn.Module]:
    """What turns token ids into what enters the first layer."""
    encoder = model.base_model
    return [module for name, module in encoder.named_children() if "embed" in name]


def output_of(model: PreTrainedModel) -> nn.Linear:
    """The last linear layer, whose outputs are the logits."""
    last = [module for module in model.modules() if isinstance(module, nn.Linear)][-1]
    return model.head.output if isinstance(model, HeadhuntForSequenceClassification) else last


def longest_input(model: PreTrainedModel) -> int | None:
    """How many tokens the encoder can take at once; None where positions set no limit."""
    for name, module in model.base_model.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding):
            # RoBERTa and kin count positions from the padding id on.
            return module.num_embeddings - (0 if module.padding_idx is None else module.padding_idx + 1)
    return getattr(model.base_model.config, "max_position_embeddings", None)
