"""The configuration that travels with a saved model: the encoder's own, and the head as data."""

from __future__ import annotations

from typing import Any

from transformers import AutoConfig, PretrainedConfig

from .architecture import Head, from_dict, to_dict


class HeadhuntConfig(PretrainedConfig):
    """An encoder's configuration and the head on it.

    Written with a plain `__init__`, so that a saved folder also loads where transformers is older than ours.

    Args:
        encoder: The encoder's configuration, as its `to_dict()` gives it.
        head: The head, as `architecture.to_dict` gives it.
        separator: The token that ends the first text of a pair.
        separators: How many special tokens stand between the two texts of a pair.
        kwargs: What every configuration has: label names, problem type, padding …
    """

    model_type = "headhunt"

    def __init__(
        self,
        encoder: dict[str, Any] | None = None,
        head: dict[str, Any] | None = None,
        separator: int | None = None,
        separators: int = 1,
        **kwargs: Any,
    ) -> None:
        self.encoder = encoder or {}
        self.head = head or to_dict(Head())
        self.separator, self.separators = separator, separators
        super().__init__(**kwargs)

    @property
    def architecture(self) -> Head:
        """The head, checked."""
        return from_dict(Head, self.head)

    @property
    def encoder_config(self) -> PretrainedConfig:
        """The encoder's configuration as its own class."""
        given = dict(self.encoder)
        return AutoConfig.for_model(given.pop("model_type"), **given)


HeadhuntConfig.register_for_auto_class()
