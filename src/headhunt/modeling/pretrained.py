"""Load configurations and tokenizers of pretrained encoders.

Models are in `build`, which takes seconds longer to load.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoTokenizer
from transformers.utils import logging as transformers_logging

from headhunt.errors import ModelError, out_of_memory
from headhunt.storage import read_json

SAVED_HEADS = ("headhunt", "headhunt_ensemble", "headhunt_multitask")  # values of `model_type`


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence the warnings and progress bars of transformers."""
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
def loading_errors(encoder: str) -> Iterator[None]:
    """Turn errors of transformers about an encoder into a `ModelError` with advice."""
    try:
        yield
    except ModelError:
        raise
    except Exception as error:  # damaged files raise errors of many libraries
        if out_of_memory(error):
            raise
        if "trust_remote_code" in str(error):
            raise ModelError(f"{encoder!r} comes with its own code. Give trust_remote_code to run it.") from None
        absent = encoder.startswith((".", "/", "~")) and not Path(encoder).exists()
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        reason = "this folder does not exist" if absent else reason
        raise ModelError(
            f"The encoder must be a Hugging Face name or a folder with config.json, weights and tokenizer; "
            f"{encoder!r} cannot be loaded ({reason}). Check the name and the network; "
            "without a network, it must be a folder."
        ) from None


def load_config(encoder: str, trust_remote_code: bool = False) -> Any:
    """Return the encoder's configuration.

    Raises:
        ModelError: If it cannot be loaded, or is a model with a head.
    """
    path = Path(encoder) / "config.json"
    with quiet(), loading_errors(encoder):
        if path.is_file() and read_json(path).get("model_type") in SAVED_HEADS:
            raise ModelError(
                f"The encoder must be a pretrained one; {encoder!r} is a model with a head of Headhunt. "
                "Give the encoder that it was made from."
            )
        return AutoConfig.from_pretrained(encoder, trust_remote_code=trust_remote_code)


def check_length(tokens: int, encoder: str, trust_remote_code: bool = False) -> None:
    """Check a maximum length against the positions of an encoder.

    Raises:
        ModelError: If it is larger than the encoder allows, or below 8.
    """
    positions = getattr(load_config(encoder, trust_remote_code), "max_position_embeddings", None)
    longest = positions if positions and positions > 0 else 32768  # the limit of `Recipe.max_length`
    if not 8 <= tokens <= longest:
        raise ModelError(f"must be 8 to {longest} tokens for {encoder!r}; found {tokens}.", "max_length")


def freezable_layers(config: Any) -> int:
    """Return the number of layers that can be frozen one by one; 0 if all depths share one layer (ALBERT)."""
    depth = int(config.num_hidden_layers)
    return depth if getattr(config, "num_hidden_groups", depth) == depth else 0


def load_tokenizer(encoder: str, trust_remote_code: bool = False) -> Any:
    """Return the encoder's tokenizer with truncation and padding switched off."""
    with quiet(), loading_errors(encoder):
        tokenizer = AutoTokenizer.from_pretrained(encoder, trust_remote_code=trust_remote_code)
    if len(tokenizer) <= len(tokenizer.all_special_ids):  # transformers' result if files are missing
        raise ModelError(f"{encoder!r} has no tokenizer: its files are missing or have no vocabulary.")
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        backend.no_truncation()
        backend.no_padding()
    # "[SEP]" in a user's text is ordinary text.
    tokenizer.split_special_tokens = True
    return tokenizer


def equal_tokenizers(first: Any, second: Any) -> bool:
    """Return True if two tokenizers give the same tokens and special tokens for every text."""
    if first.model_input_names != second.model_input_names or type(first) is not type(second):
        return False
    if not hasattr(first, "backend_tokenizer"):
        return first.get_vocab() == second.get_vocab()
    return first.backend_tokenizer.to_str() == second.backend_tokenizer.to_str()
