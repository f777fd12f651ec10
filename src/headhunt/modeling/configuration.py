"""The configuration that travels with a saved model: the encoder's own, and the head as data."""

from __future__ import annotations

from typing import Any

from transformers import AutoConfig, PreTrainedConfig

from .architecture import Head, from_dict, to_dict


class HeadhuntConfig(PreTrainedConfig):
    """An encoder's configuration and the head on it.

    Args:
        encoder: The encoder's configuration, as its `to_dict()` gives it.
        head: The head, as `architecture.to_dict` gives it.
        separator: The token that ends the first text of a pair; `separators` of them stand between the two.
        separators: How many special tokens stand between the two texts of a pair.
    """

    model_type = "headhunt"

    encoder: dict[str, Any] | None = None
    head: dict[str, Any] | None = None
    separator: int | None = None
    separators: int = 1

    def __post_init__(self, **kwargs: Any) -> None:
        """Fills in what the fields leave open."""
        self.encoder = self.encoder or {}
        self.head = self.head or to_dict(Head())
        super().__post_init__(**kwargs)

    @property
    def architecture(self) -> Head:
        """The head, checked."""
        return from_dict(Head, self.head)

    @property
    def encoder_config(self) -> PreTrainedConfig:
        """The encoder's configuration as its own class."""
        given = dict(self.encoder or {})
        return AutoConfig.for_model(given.pop("model_type"), **given)


HeadhuntConfig.register_for_auto_class()
