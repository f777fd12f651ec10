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

from headhunt.errors import ModelError
from headhunt.modeling.architecture import from_dict
from headhunt.modeling.build import load_tokenizer, quiet
from headhunt.modeling.model import HeadhuntForSequenceClassification
from headhunt.report.model_card import write as write_card
from headhunt.run.directory import not_a_model
from headhunt.spec import Recipe, Spec
from headhunt.training.device import autocast, pick_device
from headhunt.training.tokens import Tokens, by_length, tokenise

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
        problem_type: "single_label_classification", "multi_label_classification" or "regression".
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
        problem_type: str,
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
        self.tokenizer, self.problem_type, self.labels, self.pair = tokenizer, problem_type, tuple(labels), pair
        self.spec, self.recipe = spec, recipe or (spec.recipe if spec else Recipe())
        self.facts = dict(facts or {})
        self.precision = precision

    def __repr__(self) -> str:
        answers = f"{len(self.labels)} {self.problem_type}" if self.labels else "a number"
        size = sum(parameter.numel() for parameter in self.model.parameters()) / 1e6
        return f"Predictor({'two texts' if self.pair else 'one text'} → {answers}, {size:.1f} M parameters)"

    def _repr_html_(self) -> str:
        from headhunt.report import notebook

        return notebook.model_summary(self)

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
        self.check(texts, texts_b)
        found = []
        for start in range(0, len(texts), WINDOW):
            stop = start + WINDOW
            second = None if texts_b is None else texts_b[start:stop]
            found.append(self.tokens_to_outputs(self.tokenise(texts[start:stop], second), batch, progress))
        shape = (0,) if self.problem_type == "regression" else (0, len(self.labels))
        return np.concatenate(found) if found else np.zeros(shape, np.float32)

    def check(self, texts: Sequence[str], texts_b: Sequence[str] | None) -> None:
        """Refuses what this model does not take."""
        if self.pair != (texts_b is not None):
            needs = "two texts for each answer" if self.pair else "one text for each answer"
            raise ModelError(f"This model takes {needs}; found {'one' if texts_b is None else 'two'}.")
        if texts_b is not None and len(texts) != len(texts_b):
            raise ModelError(f"Each text needs a second one; found {len(texts)} and {len(texts_b)}.")
        if isinstance(texts, str):
            raise ModelError("outputs() takes a list of texts; found one string.")

    def tokenise(self, texts: Sequence[str], texts_b: Sequence[str] | None = None) -> Tokens:
        """Texts as this model takes them."""
        return tokenise(
            self.tokenizer,
            texts,
            texts_b,
            max_length=self.recipe.max_length,
            truncation=self.recipe.truncation,
            each=self.takes[2],
        )

    @property
    def takes(self) -> tuple[int, str, bool]:
        """Length, truncation and whether each text of a pair is cut by itself: models alike in this share tokens."""
        return self.recipe.max_length, self.recipe.truncation, bool(self.spec and self.spec.head.siamese)

    def tokens_to_outputs(
        self, tokens: Tokens, batch: int = BATCH, progress: Callable[[int], None] | None = None
    ) -> np.ndarray:
        """`outputs` of texts that are tokenised already."""
        return _mean_outputs([self], tokens, batch, progress)

    def activate(self, logits: torch.Tensor) -> torch.Tensor:
        """Logits as answers: probabilities, or the number."""
        if self.problem_type == "single_label_classification":
            return logits.softmax(-1)
        return logits.sigmoid() if self.problem_type == "multi_label_classification" else logits.squeeze(-1)

    def prediction(self, row: np.ndarray) -> Prediction:
        """One row of `outputs` in words."""
        if self.problem_type == "regression":
            return Prediction(float(row), None, {})
        probabilities = dict(zip(self.labels, row.tolist(), strict=True))
        if self.problem_type == "single_label_classification":
            best = max(probabilities, key=probabilities.__getitem__)
            return Prediction(best, probabilities[best], probabilities)
        chosen = [label for label, p in probabilities.items() if p >= 0.5]
        return Prediction(chosen, min((probabilities[label] for label in chosen), default=None), probabilities)

    def save(self, folder: str | Path, *, card: bool = True) -> Path:
        """Writes a folder that transformers loads, with or without Headhunt.

        Args:
            folder: Made where it is not there.
            card: Whether a model card goes with it, for people to read.
        """
        folder = Path(folder)
        (folder / CARD).unlink(missing_ok=True)  # written last: a folder that has it is whole
        with quiet():
            self.model.save_pretrained(folder)
            # What the file says is what other tools do: cut at our length, and take a "[SEP]" in a text for text.
            self.tokenizer.model_max_length = self.recipe.max_length
            self.tokenizer.init_kwargs["split_special_tokens"] = True
            self.tokenizer.save_pretrained(folder)
        facts = {
            "schema": SCHEMA,
            "problem_type": self.problem_type,
            "labels": list(self.labels),
            "pair": self.pair,
            "recipe": asdict(self.recipe),
            "spec": self.spec.to_dict() if self.spec else None,
            **self.facts,
        }
        (folder / CARD).write_text(json.dumps(facts, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        if card:
            write_card(folder)
        return folder

    @classmethod
    def load(cls, folder: str | Path, *, device: torch.device | None = None, precision: str = "auto") -> Predictor:
        """Reads what `save` wrote. Runs no code from the folder.

        Raises:
            ModelError: If the folder holds no such model.
        """
        folder = Path(folder)
        if not (folder / CARD).is_file():
            raise not_a_model(folder)
        if _members_of(folder) is not None:
            raise ModelError(
                f"{folder} is the mean of several models: it answers to predict and evaluate, and cannot be exported, "
                f"pushed, served or used for a corpus yet. Give one model: {folder.parent / 'model'}."
            )
        if (folder / "model.onnx").is_file():
            raise ModelError(
                f"{folder} is an ONNX export, and the folder it was made from is needed here. An export answers to  "
                f'python {folder / "predict.py"} "some text"  and to  headhunt serve {folder}, and labels a corpus.'
            )
        try:
            card = _read_card(folder / CARD)
            spec, recipe = card.pop("spec"), from_dict(Recipe, card.pop("recipe"))
            known = {name: card.pop(name) for name in ("problem_type", "labels", "pair")}
            with quiet():
                model, loaded = AutoModelForSequenceClassification.from_pretrained(
                    folder, dtype=torch.float32, output_loading_info=True
                )
            if loaded["missing_keys"]:  # transformers would fill them with chance
                raise ModelError(f"its weights lack {', '.join(sorted(loaded['missing_keys'])[:3])}")
            tokenizer = load_tokenizer(str(folder))
            spec = Spec.from_dict(spec) if spec else None
        except Exception as error:  # what a damaged file makes transformers raise can be anything
            reason = (str(error).strip() or repr(error)).splitlines()[0].rstrip(".")
            raise ModelError(f"{folder} cannot be loaded: {reason}. Save the model again.") from None
        return cls(model, tokenizer, **known, recipe=recipe, spec=spec, facts=card, device=device, precision=precision)


class Ensemble:
    """The mean of several models; what it answers is what a `Predictor` answers.

    Members whose encoders are equal share one: it runs once for all of them.

    Args:
        members: Models of the same task.
        facts: Anything worth keeping with it.
    """

    def __init__(self, members: Sequence[Predictor], facts: dict[str, Any] | None = None) -> None:
        self.members, self.facts = list(members), dict(facts or {})
        first = self.members[0]
        self.problem_type, self.labels, self.pair, self.prediction = (
            first.problem_type,
            first.labels,
            first.pair,
            first.prediction,
        )
        _share_encoders([member.model for member in self.members])

    def __repr__(self) -> str:
        return f"Ensemble of {len(self.members)}: {self.members[0]!r}"

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
        """The mean of the members' probabilities (texts, labels) or numbers (texts,), in the order of the texts."""
        self.members[0].check(texts, texts_b)
        found = []
        for start in range(0, len(texts), WINDOW):
            first, second = texts[start : start + WINDOW], None if texts_b is None else texts_b[start : start + WINDOW]
            parts, last = [], len(self._alike()) - 1
            for i, group in enumerate(self._alike()):
                tokens = group[0].tokenise(first, second)
                mean = _mean_outputs(group, tokens, batch, progress if i == last else None)
                parts.append(mean * np.float32(len(group) / len(self.members)))
            found.append(np.sum(parts, axis=0))
        return np.concatenate(found) if found else self.members[0].outputs([], None if texts_b is None else [])

    def _alike(self) -> list[list[Predictor]]:
        """Members that take the same tokens."""
        groups: dict[Any, list[Predictor]] = {}
        for member in self.members:
            groups.setdefault(member.takes, []).append(member)
        return list(groups.values())


def _mean_outputs(
    predictors: Sequence[Predictor], tokens: Tokens, batch: int, progress: Callable[[int], None] | None
) -> np.ndarray:
    """The mean of what models that take the same tokens answer, each batch given to all of them in turn."""
    first, order, means = predictors[0], [], []
    with torch.inference_mode(), autocast(first.device, first.precision):
        for rows in by_length(tokens.lengths, batch):
            inputs = {name: x.to(first.device) for name, x in tokens.batch(rows).items()}
            answers = [one.activate(one.model(**inputs).logits.float()) for one in predictors]
            order.append(rows)
            means.append(answers[0] if len(answers) == 1 else torch.stack(answers).mean(0))
            if progress:
                progress(len(rows))
    values = torch.cat(means).cpu().numpy()
    restored = np.empty_like(values)
    restored[np.concatenate(order)] = values
    return restored


class _Once(torch.nn.Module):
    """An encoder that several heads share: asked the same again, it answers what it answered."""

    def __init__(self, encoder: torch.nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self._asked: dict[str, Any] = {}
        self._answer: Any = None

    def forward(self, **asked: Any) -> Any:
        """What the encoder gives for these tokens, with all layers' states."""
        wanted = {name: x for name, x in asked.items() if isinstance(x, torch.Tensor)}
        same = wanted.keys() == self._asked.keys() and all(torch.equal(x, self._asked[n]) for n, x in wanted.items())
        if not same:
            self._asked, self._answer = wanted, self.encoder(**{**asked, "output_hidden_states": True})
        return self._answer


def _share_encoders(models: Sequence[PreTrainedModel]) -> None:
    """Gives models with equal encoders one encoder, which runs once a batch for all of them."""
    shared: list[_Once] = []
    for model in models:
        if not isinstance(model, HeadhuntForSequenceClassification):
            continue
        weights = model.encoder.state_dict()
        for once in shared:
            known = once.encoder.state_dict()
            if known.keys() == weights.keys() and all(torch.equal(known[name], x) for name, x in weights.items()):
                model.encoder = once
                break
        else:
            shared.append(_Once(model.encoder))
            model.encoder = shared[-1]


def save_ensemble(folder: Path, facts: dict[str, Any]) -> None:
    """Makes a folder of saved models an ensemble, by writing its card."""
    names = sorted(member.parent.name for member in folder.glob(f"*/{CARD}"))
    card = {"schema": SCHEMA, "ensemble": names, **facts}
    (folder / CARD).write_text(json.dumps(card, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def open_model(
    folder: str | Path, *, device: torch.device | None = None, precision: str = "auto"
) -> Predictor | Ensemble:
    """Reads a saved model or ensemble. Runs no code from the folder.

    Raises:
        ModelError: If the folder holds neither.
    """
    folder = Path(folder)
    names = _members_of(folder)
    if names is None:
        return Predictor.load(folder, device=device, precision=precision)
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and "/" not in name for name in names):
        raise ModelError(f"{folder / CARD} must name the folders of its members; found {names!r}.")
    members = [Predictor.load(folder / name, device=device, precision=precision) for name in names]
    return Ensemble(members, json.loads((folder / CARD).read_text(encoding="utf-8")))


def _members_of(folder: Path) -> Any:
    """What a folder's card says of an ensemble; None where it is none."""
    try:
        card = json.loads((folder / CARD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return card.get("ensemble") if isinstance(card, dict) else None


def _read_card(path: Path) -> dict[str, Any]:
    card = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(card, dict) or card.pop("schema", None) != SCHEMA:
        raise ModelError(f"{path.name} must hold one JSON object of schema {SCHEMA}")
    for name in ("problem_type", "labels", "pair", "recipe", "spec"):
        if name not in card:
            raise ModelError(f"{path.name} must hold {name!r}")
    return card
