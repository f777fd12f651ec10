"""Transformers model that averages the predictions of several models, with one encoder where theirs are equal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoConfig, AutoModelForSequenceClassification, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput

from .configuration import HeadhuntConfig
from .model import HeadhuntForSequenceClassification, loss_of, takes_types, trim


class HeadhuntEnsembleConfig(PretrainedConfig):
    """The configurations of the members of an ensemble.

    Args:
        members: For each member, its configuration (`config`), the number of the member whose encoder it uses
            (`encoder`), and its maximum length and truncation if they differ from those of the inputs (`cut`).
        special_tokens: Number of special tokens before, between and after texts.
        separator: Token that ends the first text of a pair; None for single texts.
        cuts_each: True if the texts of a pair are cut separately before they are given to the model.
        logit_divisor: Temperature that calibrates the probabilities; `temperature` is a setting of text generation.
        kwargs: Fields of every configuration, such as label names, problem type and padding.
    """

    model_type = "headhunt_ensemble"

    def __init__(
        self,
        members: Sequence[dict[str, Any]] = (),
        special_tokens: Sequence[int] = (1, 0, 1),
        separator: int | None = None,
        cuts_each: bool = False,
        logit_divisor: float = 1.0,
        **kwargs: Any,
    ) -> None:
        self.members, self.special_tokens, self.separator = list(members), list(special_tokens), separator
        self.cuts_each, self.logit_divisor = cuts_each, logit_divisor
        super().__init__(**kwargs)


class HeadhuntEnsembleForSequenceClassification(PreTrainedModel):
    """Several models whose probabilities, or numbers, are averaged.

    Members with equal encoders share one, which runs once. The logits are those of the mean probabilities: every tool
    that applies a softmax or a sigmoid gets the mean.

    Args:
        config: Configurations of the members.
        members: The members with their weights; without them, models with random weights are created.
    """

    config_class = HeadhuntEnsembleConfig
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_attention_backend = True

    def __init__(self, config: HeadhuntEnsembleConfig, members: Sequence[PreTrainedModel] | None = None) -> None:
        super().__init__(config)
        self.members = nn.ModuleList(self._create_members() if members is None else members)
        for number, entry in enumerate(config.members):
            if entry["encoder"] != number:
                self.members[number].register_module("encoder", None)
        self.post_init()

    def _create_members(self) -> list[PreTrainedModel]:
        models: list[PreTrainedModel] = []
        for number, entry in enumerate(self.config.members):
            given = dict(entry["config"])
            model_type = given.pop("model_type")
            if model_type == HeadhuntConfig.model_type:
                shared = models[entry["encoder"]].encoder if entry["encoder"] != number else None
                models.append(HeadhuntForSequenceClassification(HeadhuntConfig(**given), shared))
            else:
                config = AutoConfig.for_model(model_type, **given)
                models.append(AutoModelForSequenceClassification.from_config(config, trust_remote_code=False))
        return models

    def _init_weights(self, module: nn.Module) -> None:
        """Do nothing: the members initialise themselves."""

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
        inputs: dict[Any, tuple[Tensor, Tensor, Tensor | None]] = {(): (input_ids, mask, token_type_ids)}
        encoded: dict[Any, tuple[Any, Tensor, Tensor | None]] = {}
        logits = []
        for member, entry in zip(self.members, self.config.members, strict=True):
            cut = tuple(entry["cut"] or ())
            if cut not in inputs:
                inputs[cut] = self.cut(*inputs[()], *cut)
            ids, member_mask, types = inputs[cut]
            if not isinstance(member, HeadhuntForSequenceClassification):
                given = {"token_type_ids": types} if types is not None and takes_types(member) else {}
                logits.append(member(input_ids=ids, attention_mask=member_mask, **given).logits.float())
                continue
            counted = member.classify_words(ids, member_mask)
            if member.words_alone:
                logits.append(counted.float())
                continue
            number = entry["encoder"]
            place = (number, cut, member.head.compare is not None, tuple(member.config.window or ()))
            if place not in encoded:
                encoder, all_layers = self.members[number].encoder, self._reads_layers(number)
                encoded[place] = member.encode(ids, member_mask, types, encoder, all_layers)
            logits.append((member.classify(*encoded[place]) + counted).float())
        joint = self.join(torch.stack(logits))
        loss = None if labels is None else loss_of(self.config.problem_type, joint, labels)
        return SequenceClassifierOutput(loss=loss, logits=joint)

    def _reads_layers(self, encoder: int) -> bool:
        """Return True if any member with this encoder reads more than its last layer."""
        members: Any = zip(self.members, self.config.members, strict=True)
        return any(member.head.several_layers for member, entry in members if entry["encoder"] == encoder)

    def join(self, logits: Tensor) -> Tensor:
        """Return the logits of the mean probabilities, or the mean numbers, of logits (members, batch, outputs)."""
        if self.config.problem_type == "regression":
            return logits.mean(0)
        if self.config.problem_type == "multi_label_classification":
            yes, no = functional.logsigmoid(logits), functional.logsigmoid(-logits)
            return (yes.logsumexp(0) - no.logsumexp(0)) / self.config.logit_divisor
        mean = logits.log_softmax(-1).logsumexp(0) - math.log(len(self.members))
        return mean / self.config.logit_divisor

    def cut(
        self, ids: Tensor, mask: Tensor, types: Tensor | None, max_length: int, truncation: str, each: bool
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the tokens that a member was trained on: texts cut to its maximum length.

        Args:
            ids: Token ids (batch, tokens), of texts that were cut later than the member's.
            mask: 1 for real tokens, 0 for padding (batch, tokens).
            types: 1 in the second text of a pair (batch, tokens).
            max_length: Maximum number of tokens, special tokens included.
            truncation: "end" or "middle".
            each: Apply `max_length` to each text of a pair.
        """
        before, between, after = self.config.special_tokens
        positions = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
        lengths = mask.sum(1, keepdim=True)
        available = max(1, max_length - before - between - after)
        if self.config.separator is None:
            end = lengths - after
            kept = _inside(positions - before, end - before, available, truncation)
        else:
            end = (ids == self.config.separator).int().argmax(1, keepdim=True)  # the first text's closing separator
            first, second = end - before, lengths - after - between - end
            keep: Any = (max_length - 2, max_length - 2) if each else _pair_lengths(first, second, available)
            in_first = _inside(positions - before, first, keep[0], truncation)
            in_second = _inside(positions - end - between, second, keep[1], truncation)
            kept = in_first | in_second | ((positions >= end) & (positions < end + between))
        kept = (kept | (positions < before) | (positions >= lengths - after)) & (positions < lengths)
        # Move the kept tokens to the front, in their order.
        order = torch.where(kept, positions, positions + ids.shape[1]).argsort(1)
        kept_mask = positions < kept.sum(1, keepdim=True)
        moved = ids.gather(1, order).masked_fill(~kept_mask, self.config.pad_token_id or 0)
        moved, new_mask = trim(moved, kept_mask)
        if types is not None:
            types = (types.gather(1, order) * kept_mask)[:, : moved.shape[1]]
        return moved, new_mask.to(mask.dtype), types


HeadhuntEnsembleConfig.register_for_auto_class()
HeadhuntEnsembleForSequenceClassification.register_for_auto_class("AutoModelForSequenceClassification")


def _inside(index: Tensor, length: Tensor, keep: Tensor | int, truncation: str) -> Tensor:
    """Return True for positions of a text of `length` tokens that are kept if `keep` of them are."""
    tail = keep // 2 if truncation == "middle" else 0
    return (index >= 0) & (index < length) & ((index < keep - tail) | (index >= length - tail))


def _pair_lengths(first: Tensor, second: Tensor, available: int) -> tuple[Tensor, Tensor]:
    """Return how many tokens of each text are kept; the longer text is cut first."""
    half = available // 2
    keep_first = first.minimum((available - second).clamp(min=half))
    return keep_first, second.minimum((available - first).clamp(min=available - half))
