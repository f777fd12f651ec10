"""Join several saved models into one model, their ensemble."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np
import torch

from headhunt.errors import ModelError
from headhunt.modeling.ensemble import HeadhuntEnsembleConfig, HeadhuntEnsembleForSequenceClassification
from headhunt.modeling.model import HeadhuntForSequenceClassification
from headhunt.modeling.pretrained import equal_tokenizers, load_tokenizer
from headhunt.predictor import MEMBERS, Predictor
from headhunt.spec import Recipe
from headhunt.training.tokens import SpecialTokens

SHARED_FACTS = ("created", "task", "versions")  # taken from the first member
Takes = tuple[int, Literal["end", "middle"], bool]  # of `Predictor.takes`


def join(members: Iterable[Predictor], facts: dict[str, Any] | None = None) -> Predictor:
    """Return one model whose outputs are the mean of the outputs of several models.

    Members with equal encoders share one. Their thresholds, if they have any, are averaged. The members cannot be used
    afterwards: their modules become parts of the new model.

    Args:
        members: Models of the same task with equal tokenizers.
        facts: Further data to save with the model.

    Raises:
        ModelError: If the models cannot be joined.
    """
    joined: list[Predictor] = []
    owners: list[int] = []
    for member in members:
        _check_same_task([*joined[:1], member])
        owners.append(_find_encoder(member, joined))
        if owners[-1] != len(joined):
            member.model.encoder = None  # free it at once: there may be many members
        joined.append(member)
    if not joined:
        raise ModelError("An ensemble must have at least one member; found none.")
    first = joined[0]
    max_length, truncation, each = takes = _joint_takes([member.takes for member in joined], first.pair)
    special = SpecialTokens.of(first.tokenizer, first.pair)
    config = HeadhuntEnsembleConfig(
        members=[
            {
                "config": _plain_config(member.model.config),
                "encoder": owner,
                "cut": None if member.takes == takes else list(member.takes),
            }
            for member, owner in zip(joined, owners, strict=True)
        ],
        special_tokens=[len(special.before), len(special.between), len(special.after)],
        separator=special.between[0] if first.pair else None,
        cuts_each=each,
        pad_token_id=special.pad,
        problem_type=first.problem_type,
        id2label=first.model.config.id2label,
        label2id=first.model.config.label2id,
    )
    thresholds = None
    if any(member.thresholds for member in joined):
        thresholds = np.mean([member.thresholds or [0.5] * len(first.labels) for member in joined], axis=0).tolist()
    return Predictor(
        HeadhuntEnsembleForSequenceClassification(config, [member.model for member in joined]),
        first.tokenizer,
        problem_type=first.problem_type,
        labels=first.labels,
        pair=first.pair,
        recipe=Recipe(max_length=max_length, truncation=truncation),
        facts={
            **{name: first.facts[name] for name in SHARED_FACTS if name in first.facts},
            **(facts or {}),
            MEMBERS: [member.spec.to_dict() if member.spec else None for member in joined],
        },
        thresholds=thresholds,
        device=first.device,
        precision=first.precision,
    )


def encoders_with_equal_tokenizer(encoders: Sequence[str], trust_remote_code: bool = False) -> list[str]:
    """Return the encoders whose tokenizer equals that of the first: models of them can be joined."""
    distinct = list(dict.fromkeys(encoders))
    tokenizers = {name: load_tokenizer(name, trust_remote_code) for name in distinct}
    return [name for name in distinct if equal_tokenizers(tokenizers[distinct[0]], tokenizers[name])]


def _check_same_task(members: Sequence[Predictor]) -> None:
    first, last = members[0], members[-1]
    for name in ("problem_type", "labels", "pair"):
        if getattr(first, name) != getattr(last, name):
            raise ModelError(
                f"The members of an ensemble must be models of one task; found {name} {getattr(first, name)!r} and "
                f"{getattr(last, name)!r}."
            )
    if last.tasks:
        raise ModelError("The members of an ensemble must be models of one task; found a model of several tasks.")
    if isinstance(last.model, HeadhuntEnsembleForSequenceClassification):
        raise ModelError("The members of an ensemble must be single models; found an ensemble.")
    if not equal_tokenizers(first.tokenizer, last.tokenizer):
        raise ModelError("The members of an ensemble must have equal tokenizers; they differ.")


def _find_encoder(member: Predictor, others: Sequence[Predictor]) -> int:
    """Return the number of the first model with the same encoder; that of the new member if there is none."""
    if isinstance(member.model, HeadhuntForSequenceClassification):
        weights = member.model.encoder.state_dict()
        for number, other in enumerate(others):
            if not isinstance(other.model, HeadhuntForSequenceClassification) or other.model.encoder is None:
                continue
            known = other.model.encoder.state_dict()
            if known.keys() == weights.keys() and all(torch.equal(known[name], x) for name, x in weights.items()):
                return number
    return len(others)


def _joint_takes(takes: Sequence[Takes], pair: bool) -> Takes:
    """Return a maximum length, truncation and pair mode that keep every token that any of the members reads."""
    if len(set(takes)) == 1:
        return takes[0]
    longest, truncations = max(length for length, _, _ in takes), {truncation for _, truncation, _ in takes}
    # Twice the length, cut in the middle, has the first tokens that "end" keeps and the last ones of "middle".
    return (longest, truncations.pop(), pair) if len(truncations) == 1 else (2 * longest, "middle", pair)


def _plain_config(config: Any) -> dict[str, Any]:
    """Return the settings of a member's configuration that its model is built from."""
    unused = (
        "_name_or_path",
        "auto_map",
        "architectures",
        "thresholds",
        "rejection",
        "dtype",
        "torch_dtype",
        "transformers_version",
    )
    return {name: value for name, value in config.to_dict().items() if name not in unused}
