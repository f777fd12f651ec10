"""Build a model that predicts masked tokens from a pretrained encoder, and take the encoder out of it again."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM, PreTrainedModel
from transformers.modeling_outputs import MaskedLMOutput

from headhunt.modeling.pretrained import loading_errors, quiet


class TiedMaskedModel(nn.Module):
    """An encoder of a family that transformers has no masked-token head for, with one tied to its embeddings.

    Args:
        encoder: The pretrained encoder.
    """

    base_model_prefix = "encoder"

    def __init__(self, encoder: PreTrainedModel) -> None:
        super().__init__()
        self.encoder, self.config = encoder, encoder.config
        vocabulary, width = encoder.get_input_embeddings().weight.shape
        self.dense = nn.Linear(int(encoder.config.hidden_size), width)
        self.norm = nn.LayerNorm(width)
        self.bias = nn.Parameter(torch.zeros(vocabulary))

    @property
    def base_model(self) -> PreTrainedModel:
        """The encoder."""
        return self.encoder

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.bias.device

    def forward(self, **inputs: Tensor) -> MaskedLMOutput:
        """Return the logits of every token (batch, tokens, vocabulary)."""
        states = self.norm(functional.gelu(self.dense(self.encoder(**inputs)[0])))
        embeddings = self.encoder.get_input_embeddings().weight
        return MaskedLMOutput(logits=functional.linear(states, embeddings, self.bias))


def build_masked(encoder: str, *, seed: int = 0, trust_remote_code: bool = False) -> tuple[Any, bool]:
    """Return an encoder with a head that predicts tokens, and whether this head is new.

    An encoder that was saved with such a head keeps it. Others get the head of their family: a dense layer, an
    activation, a layer norm, and a decoder that shares the weights of the token embeddings.

    Args:
        encoder: Hugging Face model name or local folder.
        seed: Random seed of a new head.
        trust_remote_code: Allow code that comes with the encoder to run.
    """
    torch.manual_seed(seed)
    loading: dict[str, Any] = {"dtype": torch.float32, "trust_remote_code": trust_remote_code}
    with quiet(), loading_errors(encoder):
        config = AutoConfig.from_pretrained(encoder, trust_remote_code=trust_remote_code)
        if type(config) not in AutoModelForMaskedLM._model_mapping:
            return TiedMaskedModel(AutoModel.from_pretrained(encoder, config=config, **loading)), True
        model, loaded = AutoModelForMaskedLM.from_pretrained(
            encoder, config=config, output_loading_info=True, **loading
        )
    return model, bool(loaded["missing_keys"])


def set_frequencies(model: Any, counts: np.ndarray) -> None:
    """Let a new head start from the frequencies of the tokens, which it would take hundreds of steps to learn.

    Args:
        model: A model of `build_masked`.
        counts: Number of times that each token of the vocabulary occurs.
    """
    output = model if isinstance(model, TiedMaskedModel) else model.get_output_embeddings()
    bias = getattr(output, "bias", None)
    if bias is None:
        return
    full = np.zeros(len(bias))
    full[: len(counts)] = counts[: len(full)]
    with torch.no_grad():
        bias.copy_(torch.from_numpy(np.log((full + 0.1) / (full + 0.1).sum())))


def save_encoder(model: Any, encoder: str, folder: str, trust_remote_code: bool = False) -> None:
    """Save the encoder of a masked-token model. Parts that such a model lacks, such as a pooler, keep their weights.

    Args:
        model: The trained model.
        encoder: The encoder that it started from.
        folder: Folder to write.
        trust_remote_code: Allow code that comes with the encoder to run.
    """
    with quiet(), loading_errors(encoder):
        complete = AutoModel.from_pretrained(encoder, dtype=torch.float32, trust_remote_code=trust_remote_code)
        complete.load_state_dict(model.base_model.state_dict(), strict=False)
        complete.save_pretrained(folder)
