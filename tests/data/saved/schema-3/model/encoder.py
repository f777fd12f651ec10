"""Transformers encoder that is built from a configuration: norms, activation and widths are free."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from .heads import EncoderBlock, make_norm

INITIAL_STD = 0.02  # of all weights


class HeadhuntEncoderConfig(PretrainedConfig):
    """Configuration of a `HeadhuntEncoder`; its names are those of BERT, and three of ours.

    A plain `__init__` lets a saved folder load in older versions of transformers too.

    Args:
        vocab_size: Number of tokens.
        hidden_size: Width of the token vectors.
        num_hidden_layers: Number of layers.
        num_attention_heads: Attention heads; they divide the width.
        intermediate_size: Inner width of the feed-forward layers.
        hidden_act: Their activation, a name of `architecture.ACTIVATIONS`.
        norm: A name of `architecture.NORMS`.
        norm_position: A name of `architecture.NORM_POSITIONS`.
        hidden_dropout_prob: Dropout after the embeddings and in every layer.
        max_position_embeddings: Maximum number of tokens.
        type_vocab_size: Number of token types.
        kwargs: Fields of every configuration, such as the padding.
    """

    model_type = "headhunt_encoder"

    def __init__(
        self,
        vocab_size: int = 1000,
        hidden_size: int = 128,
        num_hidden_layers: int = 2,
        num_attention_heads: int = 4,
        intermediate_size: int = 512,
        hidden_act: str = "gelu",
        norm: str = "layer",
        norm_position: str = "pre",
        hidden_dropout_prob: float = 0.1,
        max_position_embeddings: int = 512,
        type_vocab_size: int = 2,
        **kwargs: Any,
    ) -> None:
        self.vocab_size, self.hidden_size, self.num_hidden_layers = vocab_size, hidden_size, num_hidden_layers
        self.num_attention_heads, self.intermediate_size = num_attention_heads, intermediate_size
        self.hidden_act, self.norm, self.norm_position = hidden_act, norm, norm_position
        self.hidden_dropout_prob, self.max_position_embeddings = hidden_dropout_prob, max_position_embeddings
        self.type_vocab_size = type_vocab_size
        super().__init__(**kwargs)


class Embeddings(nn.Module):
    """The sum of the embeddings of tokens, positions and token types, normalised."""

    def __init__(self, config: HeadhuntEncoderConfig) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, config.hidden_size)
        self.norm = make_norm(config.norm, config.hidden_size)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, input_ids: Tensor, token_type_ids: Tensor) -> Tensor:
        """Return token vectors (batch, tokens, width)."""
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)
        x = self.word_embeddings(input_ids) + self.position_embeddings(positions)
        return self.dropout(self.norm(x + self.token_type_embeddings(token_type_ids)))


class HeadhuntEncoder(PreTrainedModel):
    """A transformer encoder with random weights, to be trained on the task itself.

    Args:
        config: Its shape.
    """

    config_class = HeadhuntEncoderConfig
    base_model_prefix = "encoder"
    _supports_sdpa = True

    def __init__(self, config: HeadhuntEncoderConfig) -> None:
        super().__init__(config)
        self.embeddings = Embeddings(config)
        self.layers = nn.ModuleList(
            EncoderBlock(
                config.hidden_size,
                config.num_attention_heads,
                config.hidden_dropout_prob,
                inner=config.intermediate_size,
                activation=config.hidden_act,
                norm=config.norm,
                post_norm=config.norm_position == "post",
            )
            for _ in range(config.num_hidden_layers)
        )
        post = config.norm_position == "post"
        self.norm = nn.Identity() if post else make_norm(config.norm, config.hidden_size)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=INITIAL_STD)
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)

    def get_input_embeddings(self) -> nn.Module:
        """Return the embeddings of tokens."""
        return self.embeddings.word_embeddings

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        output_hidden_states: bool = False,
        **kwargs: Any,
    ) -> BaseModelOutput:
        """Return token vectors (batch, tokens, width), and those of every layer if they are asked for.

        Args:
            input_ids: Token ids (batch, tokens).
            attention_mask: 1 for real tokens, 0 for padding (batch, tokens).
            token_type_ids: 1 in the second text of a pair (batch, tokens).
            output_hidden_states: Return the input of the first layer and the output of every layer too.
            kwargs: Ignored; accepted for callers that pass more arguments.
        """
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        x = self.embeddings(input_ids, torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids)
        states = [x]
        for layer in self.layers:
            x = layer(x, mask.bool())
            states.append(x)
        states[-1] = x = self.norm(x)
        return BaseModelOutput(last_hidden_state=x, hidden_states=tuple(states) if output_hidden_states else None)


# A saved folder imports this module on machines without Headhunt, and beside Headhunt's own copy on others.
AutoConfig.register(HeadhuntEncoderConfig.model_type, HeadhuntEncoderConfig, exist_ok=True)
AutoModel.register(HeadhuntEncoderConfig, HeadhuntEncoder, exist_ok=True)
