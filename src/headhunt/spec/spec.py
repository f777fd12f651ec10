"""A candidate as plain data: an encoder, a head, and the recipe by which they are trained.

Frozen, strict JSON, one canonical form and its hash. A part that is off is `None`, so that the same candidate is always
written in the same way however it was reached.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from headhunt.errors import SpecError
from headhunt.modeling.architecture import SCHEMA, SYMMETRIC, Head, from_dict, one_of, require

DEFAULT_ENCODER = "sentence-transformers/all-MiniLM-L6-v2"
SCHEDULES = {
    "cosine": "half a cosine down to zero",
    "linear": "a straight line down to zero",
    "slanted": "slanted triangular: a short rise over the first tenth, then a straight line down to 1/32",
    "constant": "no decay",
}
FREEZES = {
    "none": "everything is trained",
    "embeddings": "all but the embeddings is trained",
    "all": "only the head is trained",
}


@dataclass(frozen=True, kw_only=True)
class Smart:
    """Smoothness-inducing regularisation (Jiang et al. 2020).

    What enters the encoder's layers is moved a little in the direction that changes the answer most, and the change of
    the answer is added to the loss.
    """

    weight: float = 5.0
    """λ, what the regulariser counts beside the loss; above 0, up to 100."""
    radius: float = 0.02
    """The largest change of any feature of a token (ℓ∞), as a share of the root mean square of what is moved."""
    sigma: float = 1e-5
    """Standard deviation of the random start."""
    eta: float = 1e-3
    """Length of the one ascent step, along the gradient divided by its largest value."""
    epsilon: float = 1e-6
    """Added where the step is divided by its size, so that a zero step stays zero."""

    def __post_init__(self) -> None:
        require(0 < self.weight <= 100, f"smart.weight must be above 0, up to 100; found {self.weight}.")
        for name in ("radius", "sigma", "eta", "epsilon"):
            require(getattr(self, name) > 0, f"smart.{name} must be above 0; found {getattr(self, name)}.")


@dataclass(frozen=True, kw_only=True)
class Lora:
    """Low-rank updates of the encoder's layers in place of its weights; merged into them when the model is saved."""

    rank: int = 8
    """Rank of each update, 1 to 256."""
    alpha: float = 16.0
    """Scale of the updates."""

    def __post_init__(self) -> None:
        require(1 <= self.rank <= 256, f"lora.rank must be 1 to 256; found {self.rank}.")
        require(self.alpha > 0, f"lora.alpha must be above 0; found {self.alpha}.")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a candidate is trained."""

    epochs: float = 10.0
    """Passes over the training rows; the budget is counted in examples seen."""
    batch_size: int = 32
    """Examples per step."""
    learning_rate: float = 5e-5
    """Learning rate of the encoder's top layer."""
    head_lr_multiplier: float = 1.0
    """The head's rate as a multiple of `learning_rate`."""
    layer_decay: float = 1.0
    """Each layer below learns at this multiple of the rate of the one above, 0.1 to 1."""
    weight_decay: float = 0.01
    """AdamW's weight decay, never on norms and biases."""
    schedule: str = "cosine"
    """How the rate falls; see SCHEDULES."""
    warmup: float = 0.06
    """Share of the training over which the rate rises from zero, 0 to 0.9."""
    freeze: int | Literal["none", "embeddings", "all"] = "none"
    """What is not trained: see FREEZES; k freezes the embeddings and the lowest k layers."""
    lora: Lora | None = None
    """Low-rank updates in place of training the encoder's weights."""
    encoder_dropout: float | None = None
    """Dropout within the encoder; None keeps the encoder's own."""
    label_smoothing: float = 0.0
    """Share of the target spread over all classes, 0 to 0.5."""
    class_weights: bool = False
    """Whether rare classes count more, so that each class counts alike."""
    smart: Smart | None = None
    """Smoothness-inducing regularisation."""
    max_length: int = 128
    """Tokens kept of a text (a siamese head: of each), special ones included; fewer where the encoder takes fewer."""
    truncation: Literal["end", "middle"] = "end"
    """Where a longer text is cut."""
    swap_pairs: bool = False
    """Whether the two texts of a pair come in random order while training."""

    def __post_init__(self) -> None:
        require(0 < self.epochs <= 1000, f"epochs must be above 0, up to 1000; found {self.epochs}.")
        require(1 <= self.batch_size <= 65536, f"batch_size must be 1 to 65536; found {self.batch_size}.")
        require(0 < self.learning_rate <= 1, f"learning_rate must be above 0, up to 1; found {self.learning_rate}.")
        require(
            0 < self.head_lr_multiplier <= 1e4,
            f"head_lr_multiplier must be above 0, up to 10000; found {self.head_lr_multiplier}.",
        )
        require(0.1 <= self.layer_decay <= 1, f"layer_decay must be 0.1 to 1; found {self.layer_decay}.")
        require(0 <= self.weight_decay <= 1, f"weight_decay must be 0 to 1; found {self.weight_decay}.")
        one_of(self.schedule, SCHEDULES, "schedule")
        require(0 <= self.warmup <= 0.9, f"warmup must be 0 to 0.9; found {self.warmup}.")
        if isinstance(self.freeze, str):
            one_of(self.freeze, FREEZES, "freeze (or a number of layers)")
        else:
            require(0 <= self.freeze <= 128, f"freeze must be 0 to 128 layers; found {self.freeze}.")
        dropout = self.encoder_dropout
        require(dropout is None or 0 <= dropout <= 0.9, f"encoder_dropout must be 0 to 0.9; found {dropout}.")
        require(0 <= self.label_smoothing <= 0.5, f"label_smoothing must be 0 to 0.5; found {self.label_smoothing}.")
        require(8 <= self.max_length <= 32768, f"max_length must be 8 to 32768; found {self.max_length}.")
        require(self.truncation in ("end", "middle"), f"truncation must be end or middle; found {self.truncation!r}.")


@dataclass(frozen=True, kw_only=True)
class Spec:
    """One candidate."""

    encoder: str
    """A Hugging Face name or a folder."""
    head: Head = field(default_factory=Head)
    """What sits on the encoder."""
    recipe: Recipe = field(default_factory=Recipe)
    """How it is trained."""

    def __post_init__(self) -> None:
        require(bool(self.encoder.strip()), "encoder must name a Hugging Face model or a folder; found nothing.")

    def canonical(self) -> Spec:
        """The same candidate with every choice that changes nothing put to one value."""
        recipe = self.recipe
        if recipe.freeze == 0:
            recipe = replace(recipe, freeze="embeddings")
        if recipe.freeze == "all":
            recipe = replace(recipe, layer_decay=1.0, lora=None, encoder_dropout=None)
        if recipe.lora is not None and recipe.freeze == "none":
            recipe = replace(recipe, freeze="embeddings")  # low-rank updates leave the embeddings as they are
        if recipe.schedule == "slanted":
            recipe = replace(recipe, warmup=0.1)  # its rise is part of it
        if self.head.siamese in SYMMETRIC:
            recipe = replace(recipe, swap_pairs=False)
        return replace(self, recipe=recipe)

    def to_dict(self) -> dict[str, Any]:
        """Plain, JSON-able data."""
        return {"schema": SCHEMA, **asdict(self)}

    def to_json(self) -> str:
        """The canonical form: one line, sorted keys."""
        return json.dumps(self.canonical().to_dict(), sort_keys=True, ensure_ascii=False, allow_nan=False)

    @property
    def hash(self) -> str:
        """Sixteen hex digits that are equal for equal candidates and, for all practical purposes, only for them."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:16]

    @classmethod
    def from_dict(cls, data: Any) -> Spec:
        """Reads plain data strictly.

        Raises:
            SpecError: If a key is unknown, missing or has a value of the wrong kind.
        """
        try:
            return from_dict(cls, data).canonical()
        except ValueError as error:
            raise SpecError(str(error)) from None

    @classmethod
    def from_json(cls, text: str) -> Spec:
        """Reads one JSON document; see `from_dict`."""
        try:
            data = json.loads(text)
        except ValueError as error:
            raise SpecError(f"A spec must be one JSON object; found text that is not JSON ({error}).") from None
        return cls.from_dict(data)

    @classmethod
    def read(cls, path: str | Path, encoder: str | None = None) -> Spec:
        """Reads a spec file.

        Args:
            path: A JSON file.
            encoder: Used where the file names none, or in its place.
        """
        path = Path(path)
        if not path.is_file():
            raise SpecError(f"The spec must be a JSON file; {path} is not there.")
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            hint = " Keep one line of it." if "Extra data" in str(error) else ""
            raise SpecError(f"{path} must hold one JSON object; it is not JSON ({error}).{hint}") from None
        if isinstance(data, dict) and encoder:
            data["encoder"] = encoder
        return cls.from_dict(data)


def plain(encoder: str, rows: int = 500) -> Spec:
    """The plain head with a fair recipe: what every result is compared with.

    Args:
        encoder: A Hugging Face name or a folder.
        rows: Training rows; small data is seen more often.
    """
    epochs = 10.0 if rows <= 2_000 else 5.0 if rows <= 20_000 else 3.0
    return Spec(encoder=encoder, recipe=Recipe(learning_rate=1e-4, epochs=epochs))
