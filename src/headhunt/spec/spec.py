"""Define `Spec`, a candidate as plain data: an encoder, a head, and the recipe that trains them.

A spec is frozen, reads and writes strict JSON, and has one canonical form and one hash. A part that is off is `None`.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal

from headhunt.errors import SpecError
from headhunt.modeling.architecture import (
    FIXED_POOLINGS,
    SCHEMA,
    SIMILARITIES,
    SYMMETRIC,
    EncoderShape,
    Head,
    from_dict,
    one_of,
    require,
)
from headhunt.storage import parse_json, read_json

DEFAULT_ENCODER = "sentence-transformers/all-MiniLM-L6-v2"
SCHEDULES = {
    "cosine": "cosine decay to zero",
    "linear": "linear decay to zero",
    "slanted": "slanted triangular: linear warm-up over the first tenth, then linear decay to 1/32",
    "constant": "no decay",
}
FREEZES = {
    "none": "everything is trained",
    "embeddings": "everything except the embeddings is trained",
    "all": "only the head is trained",
}
SOLVERS = {
    "adamw": "gradient descent with AdamW",
    "ridge": "ridge regression on the frozen encoder",
    "logistic": "logistic regression on the frozen encoder, for one of many classes",
}
ONE_CLASS = "single_label_classification"
FEW_ROWS = 200  # up to which batches are small and a contrastive loss is tried first: benchmarks/testbed/few_shot.py
MANY_CLASSES = 20  # with more, heads are solved by logistic regression and rates are higher
HEAD_INITS = {"random": "small random weights", "solved": "ridge regression on the pretrained encoder's features"}
UNFREEZES = {"gradual": "layers are trained from the top, one more at a time, in the first half of the training"}
TASK_SAMPLINGS = {
    "proportional": "batches of one task, in proportion to its rows",
    "sqrt": "batches of one task, in proportion to the square root of its rows",
    "sum": "one batch of every task in each step, gradients summed",
}
NAMED_VALUES = {
    "schedule": SCHEDULES,
    "solver": SOLVERS,
    "head_init": HEAD_INITS,
    "unfreeze": UNFREEZES,
    "task_sampling": TASK_SAMPLINGS,
}
"""Values and their explanations, of the fields of a recipe that name one."""
ABOVE_ZERO: dict[str, float] = {"epochs": 1000, "learning_rate": 1, "head_lr_multiplier": 10000}
"""Largest values of the fields of a recipe that must be above 0."""
RANGES: dict[str, tuple[float, float]] = {
    "batch_size": (1, 65536),
    "layer_decay": (0.1, 1),
    "weight_decay": (0, 1),
    "warmup": (0, 0.9),
    "freeze": (0, 128),
    "encoder_dropout": (0, 0.9),
    "label_smoothing": (0, 0.5),
    "contrastive": (0, 100),
    "max_length": (8, 32768),
    "task_layers": (0, 128),
}
"""Smallest and largest values of the other fields of a recipe that are numbers."""
NUMBERS_OR_NAMES = {"freeze": FREEZES, "task_layers": ("all",)}
"""Names that some of these fields take in place of a number."""
PLAIN_LEARNING_RATES = (1e-4, 3e-4)  # of the standard recipes for small encoders
WIDE_LEARNING_RATES = (3e-5, 1e-4)  # for encoders of the size of BERT
WIDE = 768  # hidden size from which an encoder has that size


@dataclass(frozen=True, kw_only=True)
class Smart:
    """Settings of smoothness-inducing regularisation (SMART, Jiang et al. 2020).

    The input of the lowest trained layer is perturbed in the direction that changes the output most. The change of the
    output is added to the loss.
    """

    weight: float = 5.0
    """Weight of the regulariser (λ), above 0 and up to 100."""
    radius: float = 0.02
    """Largest change of any feature of a token (ℓ∞), relative to the root mean square of the perturbed tensor."""
    sigma: float = 1e-5
    """Standard deviation of the random initial perturbation."""
    eta: float = 1e-3
    """Length of the single ascent step along the normalised gradient."""
    epsilon: float = 1e-6
    """Constant added to the divisor when the step is normalised."""

    def __post_init__(self) -> None:
        require(0 < self.weight <= 100, f"smart.weight must be above 0, up to 100; found {self.weight}.")
        for name in ("radius", "sigma", "eta", "epsilon"):
            require(getattr(self, name) > 0, f"smart.{name} must be above 0; found {getattr(self, name)}.")


@dataclass(frozen=True, kw_only=True)
class Lora:
    """Settings of low-rank adaptation (LoRA). The updates are merged into the weights when the model is saved."""

    rank: int = 8
    """Rank of each update, 1 to 256."""
    alpha: float = 16.0
    """Scale of the updates (LoRA's alpha)."""

    def __post_init__(self) -> None:
        require(1 <= self.rank <= 256, f"lora.rank must be 1 to 256; found {self.rank}.")
        require(self.alpha > 0, f"lora.alpha must be above 0; found {self.alpha}.")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Training hyperparameters of a candidate."""

    epochs: float = 10.0
    """Passes over the training rows."""
    batch_size: int = 32
    """Examples per step."""
    learning_rate: float = 5e-5
    """Learning rate of the encoder's top layer."""
    head_lr_multiplier: float = 1.0
    """Learning rate of the head as a multiple of `learning_rate`."""
    layer_decay: float = 1.0
    """Factor by which the learning rate falls from each layer to the one below, 0.1 to 1."""
    weight_decay: float = 0.01
    """AdamW's weight decay; norms and biases have none."""
    schedule: str = "cosine"
    """Learning rate schedule; see SCHEDULES."""
    warmup: float = 0.06
    """Fraction of the training over which the learning rate rises from zero, 0 to 0.9."""
    freeze: int | Literal["none", "embeddings", "all"] = "none"
    """Frozen part of the encoder: see FREEZES; a number k freezes the embeddings and the lowest k layers."""
    lora: Lora | None = None
    """Low-rank updates in place of training the encoder's weights."""
    encoder_dropout: float | None = None
    """Dropout within the encoder; None keeps the encoder's own."""
    label_smoothing: float = 0.0
    """Fraction of the target spread over all classes, 0 to 0.5. No effect in regression."""
    class_weights: bool = False
    """Weight classes inversely to their frequency, or to its square root in a solved head. No effect in regression."""
    smart: Smart | None = None
    """Smoothness-inducing regularisation."""
    contrastive: float = 0.0
    """Weight of a contrastive loss, 0 to 100: the features of two texts of a batch should be similar if they have the
    same class. An output layer with `head_init` "solved" is solved again after the training. Needs one class per row,
    an encoder that is trained and a head that does not compare texts."""
    max_length: int = 128
    """Maximum number of tokens, special tokens included. A siamese head applies it to each text, a head that reads
    windows to each window."""
    truncation: Literal["end", "middle"] = "end"
    """Position at which longer texts are cut."""
    swap_pairs: bool = False
    """Swap the two texts of a pair at random during training."""
    solver: str = "adamw"
    """Optimiser of the weights; see SOLVERS. All but "adamw" train the output layer alone and ignore other fields."""
    head_init: str = "random"
    """Initial weights of the output layer; see HEAD_INITS. No effect with hidden layers."""
    standardize: bool = False
    """Scale the features that the head classifies by their mean and standard deviation over the training rows."""
    unfreeze: str | None = None
    """Gradual unfreezing; see UNFREEZES. The head is trained from the start; layers that `freeze` names never are."""
    task_layers: int | Literal["all"] = 0
    """Several tasks: number of layers nearest the output that every task has a copy of; the others are shared."""
    task_sampling: str = "proportional"
    """Several tasks: which tasks the batches of a step are from; see TASK_SAMPLINGS."""

    def __post_init__(self) -> None:
        for name, high in ABOVE_ZERO.items():
            number = getattr(self, name)
            require(0 < number <= high, f"{name} must be above 0, up to {high}; found {number}.")
        for name, (low, high) in RANGES.items():
            value = getattr(self, name)
            if isinstance(value, str):
                one_of(value, NUMBERS_OR_NAMES[name], f"{name} (or a number of layers)")
            else:
                require(value is None or low <= value <= high, f"{name} must be {low} to {high}; found {value}.")
        require(self.truncation in ("end", "middle"), f"truncation must be end or middle; found {self.truncation!r}.")
        for name, known in NAMED_VALUES.items():
            if (value := getattr(self, name)) is not None:
                one_of(value, known, name)

    @property
    def is_solved(self) -> bool:
        """True if the output layer is solved for, on features of an encoder that is not trained."""
        return self.solver != "adamw"

    def of_task(self) -> Recipe:
        """Return the recipe as one task of several sees it."""
        return replace(self, task_layers=0, task_sampling="proportional")


@dataclass(frozen=True, kw_only=True)
class Spec:
    """A candidate: an encoder, a head and a recipe."""

    encoder: str
    """Hugging Face model name or local folder."""
    shape: EncoderShape | None = None
    """Encoder that is built in place of the given one; None uses the given one as it is."""
    head: Head = field(default_factory=Head)
    """Architecture of the head."""
    recipe: Recipe = field(default_factory=Recipe)
    """Training hyperparameters."""

    def __post_init__(self) -> None:
        require(bool(self.encoder.strip()), "encoder must name a Hugging Face model or a folder; found nothing.")
        head = self.head
        if self.shape is not None and self.shape.is_random:
            recipe = self.recipe
            require(
                recipe.freeze == "none" and recipe.lora is None and not recipe.is_solved,
                'An encoder with random weights must be trained: freeze "none", solver "adamw" and no lora; '
                f"found freeze {recipe.freeze!r}, solver {recipe.solver!r} and {'a' if recipe.lora else 'no'} lora.",
            )
        require(
            head.words is None or self.recipe.is_solved,
            f'words must be left out with solver "adamw": only a solved head counts them; found {head.words!r}.',
        )
        if self.recipe.is_solved:
            trained = head.mlp or head.convolutions or head.blocks or head.layers == "mix"
            require(
                not trained
                and head.pooling in FIXED_POOLINGS
                and head.siamese not in SIMILARITIES
                and head.windows in (None, *FIXED_POOLINGS),
                f'solver "{self.recipe.solver}" takes a head without weights before its output layer: '
                f"pooling {', '.join(FIXED_POOLINGS)}; windows mean or max; no mlp, convolutions, blocks or mix.",
            )

    @property
    def input_length(self) -> int:
        """Number of tokens of a text that are read, special tokens included."""
        return self.head.reads(self.recipe.max_length)

    def of_task(self, pair: bool) -> Spec:
        """Return the candidate as one task of several sees it; `pair` is True if the task has two texts per row."""
        head = self.head if pair else replace(self.head, siamese=None)
        return replace(self, head=head, recipe=self.recipe.of_task())

    def canonical(self, problem_type: str | None = None) -> Spec:
        """Return the same candidate with every field that has no effect at its default.

        Args:
            problem_type: Problem type of the task, if known. Regression ignores label smoothing and class weights;
                logistic regression and the contrastive loss take one class per row.
        """
        recipe, head = self.recipe, self.head
        if self.shape is not None and self.shape != self.shape.canonical():
            return replace(self, shape=self.shape.canonical()).canonical(problem_type)
        if recipe.is_solved:
            names = ("solver", "class_weights", "max_length", "truncation")
            kept = {name: getattr(recipe, name) for name in names}
            if problem_type not in (None, ONE_CLASS):
                kept |= {"solver": "ridge", "class_weights": False}
            head = Head(words="alone") if head.words == "alone" else replace(head, dropout=Head().dropout)
            return replace(self, head=head, recipe=Recipe(freeze="all", **kept))
        frozen, similarity = recipe.freeze == "all", head.siamese in SIMILARITIES
        one_class, several = problem_type in (None, ONE_CLASS), problem_type in (None, "multi_task")
        regression = problem_type == "regression"
        unused = {
            "head_init": head.mlp is not None or similarity,
            "standardize": head.plain or similarity,
            "contrastive": head.plain or head.siamese or frozen or not one_class,
            "layer_decay": frozen,
            "lora": frozen,
            "encoder_dropout": frozen,
            "unfreeze": frozen,
            "task_layers": frozen or not several,
            "task_sampling": not several,
            "swap_pairs": head.siamese in SYMMETRIC,
            "label_smoothing": regression,
            "class_weights": regression,
        }
        recipe = replace(recipe, **{name: getattr(Recipe, name) for name, off in unused.items() if off})
        if recipe.freeze == 0 or (recipe.lora is not None and recipe.freeze == "none"):
            recipe = replace(recipe, freeze="embeddings")  # LoRA does not train the embeddings
        if recipe.schedule == "slanted":
            recipe = replace(recipe, warmup=0.1)  # the schedule defines its own warm-up
        return replace(self, recipe=recipe)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON, with every field."""
        return {"schema": SCHEMA, **asdict(self)}

    def to_json(self) -> str:
        """Return the canonical form as one line with sorted keys."""
        return _dumps(self.canonical().to_dict())

    @property
    def hash(self) -> str:
        """Identifier of sixteen hexadecimal digits, equal for equal candidates.

        Fields at their default are left out, so that a field added later does not change the hash of earlier
        candidates. A change of a default changes their meaning and needs a new `SCHEMA`.
        """
        content = {"schema": SCHEMA, **_non_defaults(self.canonical())}
        return hashlib.sha256(_dumps(content).encode()).hexdigest()[:16]

    @classmethod
    def from_dict(cls, data: Any) -> Spec:
        """Read plain data strictly.

        Raises:
            SpecError: If a key is unknown or missing, or a value has the wrong type.
        """
        try:
            return from_dict(cls, data).canonical()
        except ValueError as error:
            raise SpecError(str(error)) from None

    @classmethod
    def from_json(cls, text: str) -> Spec:
        """Read one JSON document; see `from_dict`."""
        try:
            data = parse_json(text)
        except ValueError as error:
            raise SpecError(f"A spec must be one JSON object; found text that is not JSON ({error}).") from None
        return cls.from_dict(data)

    @classmethod
    def read(cls, path: str | Path, encoder: str | None = None) -> Spec:
        """Read a spec file.

        Args:
            path: A JSON file.
            encoder: Encoder to use instead of the one in the file.
        """
        path = Path(path)
        if not path.is_file():
            raise SpecError(f"The spec must be a JSON file; {path} does not exist.")
        try:
            data = read_json(path)
        except ValueError as error:
            hint = " Keep only one of its lines." if "Extra data" in str(error) else ""
            raise SpecError(f"{path} must contain one JSON object; it is not valid JSON ({error}).{hint}") from None
        if isinstance(data, dict) and encoder:
            data["encoder"] = encoder
        return cls.from_dict(data)


def plain(encoder: str, rows: int = 500, recipe: int = 0, width: int = 384) -> Spec:
    """Return the plain head with a standard recipe, the baseline of every search.

    Args:
        encoder: Hugging Face model name or local folder.
        rows: Number of training rows; smaller data is trained for more epochs and in smaller batches.
        recipe: Which of the two standard recipes, which differ in their learning rate.
        width: Hidden size of the encoder.
    """
    epochs = 10.0 if rows <= 5_000 else 5.0 if rows <= 20_000 else 3.0
    rate = (WIDE_LEARNING_RATES if width >= WIDE else PLAIN_LEARNING_RATES)[recipe]
    batch_size = 8 if rows <= FEW_ROWS else Recipe.batch_size
    return Spec(encoder=encoder, recipe=Recipe(learning_rate=rate, epochs=epochs, batch_size=batch_size))


def solved(
    encoder: str,
    *,
    pair: bool = False,
    classes: int = 2,
    last_layer: bool = False,
    words: str | None = None,
    balanced: bool = False,
) -> Spec:
    """Return the solved head: every layer of the frozen encoder, pooled in three ways, and one linear regression.

    Args:
        encoder: Hugging Face model name or local folder.
        pair: Whether the task has two texts per row; both are then encoded separately and compared.
        classes: Number of classes if each row has one of them; many are told apart better by logistic regression.
        last_layer: Whether to use only the mean of the last layer with many classes, which is fast with many rows.
        words: Word counts that are classified too, or alone; see `architecture.WORDS`.
        balanced: Whether rare classes get more weight.
    """
    head = Head(layers="concat", pooling="cls_mean_max", siamese="combined" if pair else None)
    if classes > MANY_CLASSES and last_layer and not pair:
        head = Head(pooling="mean")
    recipe = Recipe(solver="logistic" if classes > MANY_CLASSES else "ridge", class_weights=balanced)
    return Spec(encoder=encoder, head=replace(head, words=words), recipe=recipe).canonical()


def _dumps(data: dict[str, Any]) -> str:
    return json.dumps(data, sort_keys=True, ensure_ascii=False, allow_nan=False)


def _non_defaults(part: Any) -> dict[str, Any]:
    """Return the fields that differ from their default, recursively.

    An optional part that is on is kept even if all its fields are at their defaults: it differs from one that is off.
    """
    content = {}
    for item in fields(part):
        value = getattr(part, item.name)
        default = item.default_factory() if item.default_factory is not MISSING else item.default
        if is_dataclass(value):
            inner = _non_defaults(value)
            if not is_dataclass(default) or inner != _non_defaults(default):
                content[item.name] = inner
        elif value != default:
            content[item.name] = value
    return content
