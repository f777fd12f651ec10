"""Transformers model that joins any encoder and a head, for single texts and pairs."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoModel, PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput

from .architecture import window_stride
from .configuration import HeadhuntConfig
from .encoder import HeadhuntEncoder  # noqa: F401 - a saved model may have it as its encoder
from .heads import HeadModule
from .words import WordLogits


class EncoderModel(PreTrainedModel):
    """Base class of models that join an encoder and heads of Headhunt.

    Args:
        config: Configuration of the encoder and the heads.
        encoder: Pretrained encoder; without it, one with random weights is created from the configuration.
    """

    base_model_prefix = "encoder"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_attention_backend = True

    def __init__(self, config: HeadhuntConfig, encoder: PreTrainedModel | None = None) -> None:
        super().__init__(config)
        # An encoder with its own code is unknown to AutoConfig; its configuration is then only on the instance.
        encoder = encoder or AutoModel.from_config(config.encoder_config, trust_remote_code=False)
        self.encoder = without_pooler(encoder)
        # ModernBERT, DistilBERT and others have no token types.
        self.takes_types = takes_types(encoder)

    def _init_weights(self, module: nn.Module) -> None:
        """Do nothing: the encoder and the heads initialise themselves."""

    def make_head(self, config: HeadhuntConfig) -> HeadModule:
        """Return a new head for the encoder."""
        encoder: Any = self.encoder.config
        states = encoder.num_hidden_layers + 1
        return HeadModule(config.architecture, encoder.hidden_size, states, config.num_labels)


class HeadhuntForSequenceClassification(EncoderModel):
    """An encoder and a head.

    A pair is always given as the tokenizer joins it, `[CLS] a [SEP] b [SEP]`. A siamese head splits it again, so that
    one tokenizer call, one pipeline and one exported graph serve both modes.

    Args:
        config: Configuration of the encoder and the head.
        encoder: Pretrained encoder; without it, one with random weights is created from the configuration.
    """

    config_class = HeadhuntConfig

    def __init__(self, config: HeadhuntConfig, encoder: PreTrainedModel | None = None) -> None:
        super().__init__(config, encoder)
        self.head = self.make_head(config)
        self.words = WordLogits(config) if config.architecture.words else None
        self.words_alone = config.architecture.words == "alone"
        self.post_init()

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Any,
    ) -> SequenceClassifierOutput:
        """Return logits (batch, outputs), and the loss if labels are given.

        Args:
            input_ids: Token ids (batch, tokens); a pair as the tokenizer joins it.
            attention_mask: 1 for real tokens, 0 for padding (batch, tokens).
            token_type_ids: 1 in the second text of a pair (batch, tokens), for encoders with token types.
            labels: Class ids (batch,), multi-hot rows (batch, outputs) or numbers (batch,).
            kwargs: Ignored; accepted for callers that pass more arguments.
        """
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        logits = self.classify_words(input_ids, mask)
        if not self.words_alone:
            encoded = self.encode(input_ids, mask, token_type_ids, self.encoder, self.head.several_layers)
            logits = self.classify(*encoded) + logits
        loss = None if labels is None else loss_of(self.config.problem_type, logits, labels)
        return SequenceClassifierOutput(loss=loss, logits=logits)

    def encode(
        self, ids: Tensor, mask: Tensor, types: Tensor | None, encoder: nn.Module, all_layers: bool
    ) -> tuple[Any, Tensor, Tensor | None]:
        """Return the output of an encoder for the texts as this head reads them, their mask, and which windows count.

        Args:
            ids: Token ids (batch, tokens).
            mask: 1 for real tokens, 0 for padding (batch, tokens).
            types: 1 in the second text of a pair (batch, tokens).
            encoder: The encoder. Models of an ensemble share one.
            all_layers: Return the hidden states of all layers.
        """
        if self.head.compare is not None:
            ids, mask = split_pairs(ids, mask, self.config)
            types = None
        read = None
        if self.head.windows is not None:
            ids, mask, read = self.split_windows(ids, mask)
            types = None
        given = {"token_type_ids": types} if self.takes_types else {}
        outputs = encoder(input_ids=ids, attention_mask=mask, output_hidden_states=all_layers, **given)
        return outputs, mask, read

    def classify(self, outputs: Any, mask: Tensor, read: Tensor | None = None) -> Tensor:
        """Return the logits (batch, outputs) from what `encode` returns."""
        # From its own field: transformers records no states if no layer runs, as with stored activations of all layers.
        below = outputs.hidden_states[:-1] if self.head.several_layers else ()
        return self.head((*below, outputs.last_hidden_state), mask.bool(), read)

    def classify_words(self, ids: Tensor, mask: Tensor) -> Any:
        """Return the logits (batch, outputs) of the word counts, with the bias if there is nothing else to classify."""
        if self.words is None:
            return 0.0
        logits: Tensor = self.words(ids, mask)
        return logits + self.head.output.bias if self.words_alone else logits

    def split_windows(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the windows of each text as rows of their own (batch · windows, tokens).

        Every window has the special tokens of its text. Shorter texts have windows without any other token, which do
        not count; batches of similar length have few.

        Returns:
            Token ids, their mask, and true for windows that count (batch, windows).
        """
        length, before, after = self.config.window
        stride, body = window_stride(length), length - before - after
        lengths = mask.sum(1)
        needed = 1 + ((lengths - length).clamp(min=0) + stride - 1) // stride  # windows of each text (batch,)
        count = needed.max().item()
        if exporting():  # the number depends on data: give the exporter its bounds
            torch._check(count >= 1)
            torch._check(count <= ids.shape[1])
        window = torch.arange(count, device=ids.device)[None, :, None]
        place = torch.arange(length, device=ids.device)[None, None, :]
        lengths, read = lengths[:, None, None], window < needed[:, None, None]
        inside = (lengths - before - after - window * stride).clamp(min=0, max=body) * read  # tokens of the text
        end = before + inside
        source = torch.where(place < end, place + window * stride, lengths - after + place - end)
        source = torch.where(place < before, place.expand_as(source), source)
        kept = place < end + after
        chosen = ids.gather(1, source.clamp(min=0, max=ids.shape[1] - 1).flatten(1)).reshape(-1, length)
        chosen, kept = trim(chosen.masked_fill(~kept.flatten(0, 1), self.config.pad_token_id or 0), kept.flatten(0, 1))
        return chosen, kept.to(mask.dtype), read[:, :, 0]


HeadhuntForSequenceClassification.register_for_auto_class("AutoModelForSequenceClassification")


def split_pairs(ids: Tensor, mask: Tensor, config: Any) -> tuple[Tensor, Tensor]:
    """Return each text of joined pairs as its own sequence: first texts (batch, …), then second texts (batch, …)."""
    positions = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
    lengths = mask.sum(1, keepdim=True)
    end = (ids == config.separator).int().argmax(1, keepdim=True)  # the first text's closing separator
    # The second text: the opening token again, then everything after the separators.
    source = torch.where(positions == 0, 0, positions + end + config.separators - 1)
    second = ids.gather(1, source.clamp(max=ids.shape[1] - 1))
    masks = torch.cat([positions <= end, source < lengths])
    joined = torch.cat([ids, second])
    # Masked positions may contain tokens of the other text: replace them by padding.
    joined = joined.masked_fill(~masks, config.pad_token_id or 0)
    joined, masks = trim(joined, masks)
    return joined, masks.to(mask.dtype)


def trim(ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Remove the padding that all rows share, from ids and a boolean mask (batch, tokens)."""
    longest = mask.sum(1).max().item()
    if exporting():  # the length depends on data: give the exporter its bounds
        torch._check(longest >= 2)
        torch._check(longest <= ids.shape[1])
    return ids[:, :longest], mask[:, :longest]


def loss_of(problem_type: str, logits: Tensor, labels: Tensor) -> Tensor:
    """Return the loss that transformers computes for a problem type."""
    if problem_type == "regression":
        return functional.mse_loss(logits.squeeze(-1), labels.to(logits.dtype))
    if problem_type == "multi_label_classification":
        return functional.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype))
    return functional.cross_entropy(logits, labels)


def exporting() -> bool:
    """Return True while one of torch's exporters traces the model."""
    return torch.onnx.is_in_onnx_export() or getattr(torch.compiler, "is_exporting", bool)()


def takes_types(model: nn.Module) -> bool:
    """Return True if a model takes token types."""
    return "token_type_ids" in inspect.signature(model.forward).parameters


def without_pooler(encoder: PreTrainedModel) -> PreTrainedModel:
    """Remove the encoder's pooler: it belongs to the head, and unused weights would be stored."""
    if getattr(encoder, "pooler", None) is not None:
        encoder.pooler = None
    return encoder
