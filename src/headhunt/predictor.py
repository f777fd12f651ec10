"""What the user takes home: encoder, head, tokenizer and label names, which predict, save and load as one."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForSequenceClassification, PreTrainedModel

from headhunt.device import autocast, pick_device
from headhunt.errors import ModelError
from headhunt.modeling.architecture import from_dict
from headhunt.modeling.build import load_tokenizer, quiet
from headhunt.spec import Recipe, Spec
from headhunt.tokens import Tokens, by_length, tokenise

SCHEMA = 1
CARD = "headhunt.json"
WINDOW = 16_384  # texts tokenised, sorted and predicted at a time: memory stays flat however many there are
BATCH = 64


@dataclass(frozen=True)
class Prediction:
    """The answer for one text or pair."""

    label: str | list[str] | float
    """A class, several labels, or a number."""
    probability: float | None
    """Of that class, or of the least certain of several labels; None for a number."""
    probabilities: dict[str, float]
    """Of every label; empty for a number."""


class Predictor:
    """A trained model that answers.

    Args:
        model: A transformers sequence classification model.
        tokenizer: Its tokenizer.
        kind: "classes", "labels" or "number".
        labels: Class names; empty for a number.
        pair: Whether it takes two texts.
        recipe: How it was trained; length and truncation are used again.
        spec: The candidate it was, where known.
        facts: Anything else worth keeping with it: scores, versions, data.
        device: Where it runs; the fastest there is unless told.
        precision: "auto", "fp32" or "bf16".
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: Any,
        *,
        kind: str,
        labels: Sequence[str],
        pair: bool,
        recipe: Recipe | None = None,
        spec: Spec | None = None,
        facts: dict[str, Any] | None = None,
        device: torch.device | None = None,
        precision: str = "auto",
    ) -> None:
        self.device = device or pick_device()
        self.model = model.to(self.device).eval()
        self.tokenizer, self.kind, self.labels, self.pair = tokenizer, kind, tuple(labels), pair
        self.spec, self.recipe = spec, recipe or (spec.recipe if spec else Recipe())
        self.facts = dict(facts or {})
        self.precision = precision

    def __repr__(self) -> str:
        answers = f"{len(self.labels)} {self.kind}" if self.labels else "a number"
        size = sum(parameter.numel() for parameter in self.model.parameters()) / 1e6
        return f"Predictor({'two texts' if self.pair else 'one text'} → {answers}, {size:.1f} M parameters)"

    def _repr_html_(self) -> str:
        from headhunt import notebook

        return notebook.predictor_card(self)

    def predict(self, texts: str | Sequence[str], texts_b: str | Sequence[str] | None = None) -> list[Prediction]:
        """Answers for texts, or pairs where `texts_b` is given."""
        texts = [texts] if isinstance(texts, str) else texts
        texts_b = [texts_b] if isinstance(texts_b, str) else texts_b
        return [self.prediction(row) for row in self.outputs(texts, texts_b)]

    def outputs(
        self,
        texts: Sequence[str],
        texts_b: Sequence[str] | None = None,
        *,
        batch: int = BATCH,
        progress: Callable[[int], None] | None = None,
    ) -> np.ndarray:
        """Probabilities (texts, labels), or numbers (texts,), in the order of the texts.

        Args:
            texts: The texts, or the first texts of pairs.
            texts_b: The second texts of pairs.
            batch: Texts per forward pass.
            progress: Called with the number of texts just done.
        """
        if self.pair != (texts_b is not None):
            needs = "two texts for each answer" if self.pair else "one text for each answer"
            raise ModelError(f"This model takes {needs}; found {'one' if texts_b is None else 'two'}.")
        if texts_b is not None and len(texts) != len(texts_b):
            raise ModelError(f"Each text needs a second one; found {len(texts)} and {len(texts_b)}.")
        if isinstance(texts, str):
            raise ModelError("outputs() takes a list of texts; found one string.")
        found = []
        for start in range(0, len(texts), WINDOW):
            stop = start + WINDOW
            second = None if texts_b is None else texts_b[start:stop]
            found.append(self.tokens_to_outputs(self.tokenise(texts[start:stop], second), batch, progress))
        shape = (0,) if self.kind == "number" else (0, len(self.labels))
        return np.concatenate(found) if found else np.zeros(shape, np.float32)

    def tokenise(self, texts: Sequence[str], texts_b: Sequence[str] | None = None) -> Tokens:
        """Texts as this model takes them."""
        return tokenise(
            self.tokenizer,
            texts,
            texts_b,
            max_length=self.recipe.max_length,
            truncation=self.recipe.truncation,
            each=bool(self.spec and self.spec.head.siamese),
        )

    def tokens_to_outputs(
        self, tokens: Tokens, batch: int = BATCH, progress: Callable[[int], None] | None = None
    ) -> np.ndarray:
        """`outputs` of texts that are tokenised already."""
        order: list[np.ndarray] = []
        logits: list[torch.Tensor] = []
        with torch.inference_mode(), autocast(self.device, self.precision):
            for rows in by_length(tokens.lengths, batch):
                inputs = {name: x.to(self.device) for name, x in tokens.batch(rows).items()}
                order.append(rows)
                logits.append(self.model(**inputs).logits.float())
                if progress:
                    progress(len(rows))
        values = self._activate(torch.cat(logits)).cpu().numpy()
        restored = np.empty_like(values)
        restored[np.concatenate(order)] = values
        return restored

    def _activate(self, logits: torch.Tensor) -> torch.Tensor:
        if self.kind == "classes":
            return logits.softmax(-1)
        return logits.sigmoid() if self.kind == "labels" else logits.squeeze(-1)

    def prediction(self, row: np.ndarray) -> Prediction:
        """One row of `outputs` in words."""
        if self.kind == "number":
            return Prediction(float(row), None, {})
        probabilities = dict(zip(self.labels, row.tolist(), strict=True))
        if self.kind == "classes":
            best = max(probabilities, key=probabilities.__getitem__)
            return Prediction(best, probabilities[best], probabilities)
        chosen = [label for label, p in probabilities.items() if p >= 0.5]
        return Prediction(chosen, min((probabilities[label] for label in chosen), default=None), probabilities)

    def save(self, folder: str | Path) -> Path:
        """Writes a folder that transformers loads, with or without Headhunt."""
        folder = Path(folder)
        (folder / CARD).unlink(missing_ok=True)  # written last: a folder that has it is whole
        with quiet():
            self.model.save_pretrained(folder)
            # What the file says is what other tools do: cut at our length, and take a "[SEP]" in a text for text.
            self.tokenizer.model_max_length = self.recipe.max_length
            self.tokenizer.init_kwargs["split_special_tokens"] = True
            self.tokenizer.save_pretrained(folder)
        card = {
            "schema": SCHEMA,
            "kind": self.kind,
            "labels": list(self.labels),
            "pair": self.pair,
            "recipe": asdict(self.recipe),
            "spec": self.spec.to_dict() if self.spec else None,
            **self.facts,
        }
        (folder / CARD).write_text(json.dumps(card, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        return folder

    @classmethod
    def load(cls, folder: str | Path, *, device: torch.device | None = None, precision: str = "auto") -> Predictor:
        """Reads what `save` wrote. Runs no code from the folder.

        Raises:
            ModelError: If the folder holds no such model.
        """
        folder = Path(folder)
        if not (folder / CARD).is_file():
            raise ModelError(f"{folder} must be a folder that Headhunt saved; it has no {CARD}.")
        try:
            card = _read_card(folder / CARD)
            spec, recipe = card.pop("spec"), from_dict(Recipe, card.pop("recipe"))
            known = {name: card.pop(name) for name in ("kind", "labels", "pair")}
            with quiet():
                model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32)
            tokenizer = load_tokenizer(str(folder))
            spec = Spec.from_dict(spec) if spec else None
        except Exception as error:  # what a damaged file makes transformers raise can be anything
            reason = (str(error).strip() or repr(error)).splitlines()[0].rstrip(".")
            raise ModelError(f"{folder} cannot be loaded: {reason}. Save the model again.") from None
        return cls(model, tokenizer, **known, recipe=recipe, spec=spec, facts=card, device=device, precision=precision)


def _read_card(path: Path) -> dict[str, Any]:
    card = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(card, dict) or card.pop("schema", None) != SCHEMA:
        raise ModelError(f"{path.name} must hold one JSON object of schema {SCHEMA}")
    for name in ("kind", "labels", "pair", "recipe", "spec"):
        if name not in card:
            raise ModelError(f"{path.name} must hold {name!r}")
    return card
