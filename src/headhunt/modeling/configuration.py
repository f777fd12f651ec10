"""Configuration of a saved model: the encoder's configuration and the head as data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transformers import AutoConfig, PretrainedConfig

from .architecture import Head, from_dict, require, to_dict
from .words import MOST_BUCKETS


class HeadhuntConfig(PretrainedConfig):
    """An encoder's configuration together with its head.

    A plain `__init__` lets a saved folder load in older versions of transformers too.

    Args:
        encoder: The encoder's configuration as returned by its `to_dict()`.
        head: The head as returned by `architecture.to_dict`.
        separator: Token that ends the first text of a pair.
        separators: Number of special tokens between the two texts of a pair.
        word_buckets: Number of n-grams that word counts have weights for.
        special_ids: Special tokens around texts, which word counts leave out.
        window: Tokens of a window, and special tokens before and after a text; None if texts are read at once.
        kwargs: Fields of every configuration, such as label names, problem type and padding.
    """

    model_type = "headhunt"

    def __init__(
        self,
        encoder: dict[str, Any] | None = None,
        head: dict[str, Any] | None = None,
        separator: int | None = None,
        separators: int = 1,
        word_buckets: int = 0,
        special_ids: Sequence[int] = (),
        window: Sequence[int] | None = None,
        **kwargs: Any,
    ) -> None:
        self.encoder = encoder or {}
        self.head = head or to_dict(Head())
        self.separator, self.separators = separator, separators
        self.window = None if window is None else _check_window(window)
        require(
            type(word_buckets) is int and 0 <= word_buckets <= MOST_BUCKETS,
            f"word_buckets must be a whole number from 0 to {MOST_BUCKETS}; found {word_buckets!r:.80}.",
        )
        self.word_buckets, self.special_ids = word_buckets, list(special_ids)
        super().__init__(**kwargs)

    @property
    def architecture(self) -> Head:
        """The head as a validated dataclass."""
        return from_dict(Head, self.head)

    @property
    def encoder_config(self) -> PretrainedConfig:
        """The encoder's configuration as an instance of its own class.

        It has no dtype: encoder and head are loaded in the same one.
        """
        given = {name: value for name, value in self.encoder.items() if name not in ("dtype", "torch_dtype")}
        return AutoConfig.for_model(given.pop("model_type"), **given)


def _check_window(window: Any) -> list[int]:
    """Return the settings of windows, which may come from a damaged file."""
    whole = isinstance(window, list | tuple) and len(window) == 3 and all(type(value) is int for value in window)
    require(
        whole and 8 <= window[0] <= 32768 and all(0 <= x <= 3 for x in window[1:]),
        f"window must be a length of 8 to 32768 and two numbers of special tokens; found {window!r}.",
    )
    return list(window)


HeadhuntConfig.register_for_auto_class()
