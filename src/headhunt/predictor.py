"""Define `Predictor` and `Ensemble`, trained models that predict, and that can be saved and loaded."""

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
from headhunt.evaluation import check_thresholds
from headhunt.modeling.architecture import from_dict
from headhunt.modeling.build import has_unknown_encoder, load_tokenizer, quiet, register_remote_code
from headhunt.modeling.shared_encoder import share_encoders
from headhunt.report.model_card import write as write_card
from headhunt.run.directory import check_weight_files, not_a_model
from headhunt.run.schema import is_bare_name
from headhunt.spec import Recipe, Spec
from headhunt.storage import read_json, write_text
from headhunt.training.device import autocast, pick_device
from headhunt.training.tokens import Tokens, by_length, tokenise

SCHEMA = 1
CARD = "headhunt.json"
WINDOW = 16_384  # texts tokenised, sorted and predicted at a time, to limit memory
BATCH = 64
OUTPUT_NOUNS = {"single_label_classification": "classes", "multi_label_classification": "labels"}


@dataclass(frozen=True)
class Prediction:
    """The prediction for one text or pair."""

    label: str | list[str] | float
    """The class, the labels, or the number."""
    probability: float | None
    """Probability of that class, or of the least probable of several labels; None in regression."""
    probabilities: dict[str, float]
    """Probability of every label; empty in regression."""


class _Model:
    """Predictions from the outputs of a `Predictor` or an `Ensemble`."""

    problem_type: str
    labels: tuple[str, ...]
    outputs: Callable[..., np.ndarray]
    thresholds: tuple[float, ...] | None

    def predict(self, texts: str | Sequence[str], texts_b: str | Sequence[str] | None = None) -> list[Prediction]:
        """Return predictions for texts, or for pairs if `texts_b` is given."""
        texts = [texts] if isinstance(texts, str) else texts
        texts_b = [texts_b] if isinstance(texts_b, str) else texts_b
        return [self.prediction(row) for row in self.outputs(texts, texts_b)]

    def prediction(self, row: np.ndarray) -> Prediction:
        """Return a row of `outputs` as a `Prediction`."""
        if self.problem_type == "regression":
            return Prediction(float(row), None, {})
        probabilities = dict(zip(self.labels, row.tolist(), strict=True))
        if self.problem_type == "single_label_classification":
            best = max(probabilities, key=probabilities.__getitem__)
            return Prediction(best, probabilities[best], probabilities)
        thresholds = self.thresholds or (0.5,) * len(self.labels)
        chosen = {name: p for (name, p), lowest in zip(probabilities.items(), thresholds, strict=True) if p >= lowest}
        return Prediction(list(chosen), min(chosen.values(), default=None), probabilities)


class Predictor(_Model):
    """A trained model with its tokenizer and label names.

    Args:
        model: A transformers sequence classification model.
        tokenizer: Its tokenizer.
        problem_type: "single_label_classification", "multi_label_classification" or "regression".
        labels: Class names; empty in regression.
        pair: True if the model takes two texts.
        recipe: Training hyperparameters; maximum length and truncation also apply to predictions.
        spec: The candidate, if known.
        facts: Further data to save with the model, such as scores and versions.
        thresholds: Probability from which a row has a label, for each of several labels; 0.5 by default.
        device: Device to run on; the fastest available by default.
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
        thresholds: Sequence[float] | None = None,
        device: torch.device | None = None,
        precision: str = "auto",
    ) -> None:
        self.device = device or pick_device()
        self.model = model.to(self.device).eval()
        self.tokenizer, self.problem_type, self.labels, self.pair = tokenizer, problem_type, tuple(labels), pair
        self.spec, self.recipe = spec, recipe or (spec.recipe if spec else Recipe())
        self.facts = dict(facts or {})
        self.precision = precision
        self.thresholds = thresholds

    @property
    def thresholds(self) -> tuple[float, ...] | None:
        """Probability from which a row has a label, for each of several labels; None decides at 0.5.

        It is stored in the model's configuration, hence in config.json. Probabilities do not depend on it.
        """
        return self._thresholds

    @thresholds.setter
    def thresholds(self, thresholds: Sequence[float] | None) -> None:
        self._thresholds = check_thresholds(thresholds, self.problem_type, len(self.labels))
        # The encoder may be a saved model of another task, with thresholds of other labels.
        vars(self.model.config).pop("thresholds", None)
        if self._thresholds is not None:
            self.model.config.thresholds = list(self._thresholds)

    def __repr__(self) -> str:
        output = f"{len(self.labels)} {OUTPUT_NOUNS[self.problem_type]}" if self.labels else "a number"
        size = sum(parameter.numel() for parameter in self.model.parameters()) / 1e6
        return f"Predictor({'two texts' if self.pair else 'one text'} → {output}, {size:.1f} M parameters)"

    def _repr_html_(self) -> str:
        from headhunt.report import notebook

        return notebook.model_summary(self)

    def outputs(
        self,
        texts: Sequence[str],
        texts_b: Sequence[str] | None = None,
        *,
        batch: int = BATCH,
        progress: Callable[[int], None] | None = None,
    ) -> np.ndarray:
        """Return probabilities (texts, labels), or numbers (texts,), in the order of the texts.

        Args:
            texts: The texts, or the first texts of pairs.
            texts_b: The second texts of pairs.
            batch: Texts per forward pass.
            progress: Function called with the number of texts just predicted.
        """
        self.check(texts, texts_b)
        windows = []
        for start in range(0, len(texts), WINDOW):
            stop = start + WINDOW
            second = None if texts_b is None else texts_b[start:stop]
            windows.append(self.tokens_to_outputs(self.tokenise(texts[start:stop], second), batch, progress))
        shape = (0,) if self.problem_type == "regression" else (0, len(self.labels))
        return np.concatenate(windows) if windows else np.zeros(shape, np.float32)

    def check(self, texts: Sequence[str], texts_b: Sequence[str] | None) -> None:
        """Raise `ModelError` if the model does not take these texts."""
        if self.pair != (texts_b is not None):
            needed = "two texts" if self.pair else "one text"
            raise ModelError(
                f"This model takes {needed} for each prediction; found {'one' if texts_b is None else 'two'}."
            )
        if texts_b is not None and len(texts) != len(texts_b):
            raise ModelError(
                f"texts= and texts_b= must have the same length; found {len(texts)} and {len(texts_b)} texts."
            )
        if isinstance(texts, str):
            raise ModelError("texts= must be a list of texts; found one string.")

    def tokenise(self, texts: Sequence[str], texts_b: Sequence[str] | None = None) -> Tokens:
        """Return the tokens of texts, truncated as in training."""
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
        """Maximum length, truncation, and True if both apply to each text of a pair. Equal models share tokens."""
        return self.recipe.max_length, self.recipe.truncation, bool(self.spec and self.spec.head.siamese)

    def tokens_to_outputs(
        self, tokens: Tokens, batch: int = BATCH, progress: Callable[[int], None] | None = None
    ) -> np.ndarray:
        """Return the outputs of tokenised texts; see `outputs`."""
        return _mean_outputs([self], tokens, batch, progress)

    def activate(self, logits: torch.Tensor) -> torch.Tensor:
        """Return probabilities, or numbers, from logits."""
        if self.problem_type == "single_label_classification":
            return logits.softmax(-1)
        return logits.sigmoid() if self.problem_type == "multi_label_classification" else logits.squeeze(-1)

    def save(self, folder: str | Path, *, card: bool = True) -> Path:
        """Write a folder that transformers can load, with or without Headhunt.

        Args:
            folder: Folder to write; created if missing.
            card: Also write a model card.
        """
        folder = Path(folder)
        (folder / CARD).unlink(missing_ok=True)  # written last: a folder with this file is complete
        self.thresholds = self._thresholds  # another predictor of the same model may have replaced them
        for link in [path for path in folder.glob("*") if path.is_symlink()]:
            link.unlink()  # save_pretrained would write to the file that it points to
        with quiet():
            self.model.save_pretrained(folder)
            # Other tools read these settings: the maximum length, and that "[SEP]" in a text is ordinary text.
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
        _write_json(folder / CARD, facts)
        if card:
            write_card(folder)
        return folder

    @classmethod
    def load(
        cls,
        folder: str | Path,
        *,
        device: torch.device | None = None,
        precision: str = "auto",
        trust_remote_code: bool = False,
    ) -> Predictor:
        """Load a folder that `save` wrote. No code from the folder is run.

        Args:
            folder: The folder.
            device: Device to run on; the fastest available by default.
            precision: "auto", "fp32" or "bf16".
            trust_remote_code: Allow code that comes with the encoder to run.

        Raises:
            ModelError: If the folder does not contain such a model.
        """
        folder = Path(folder)
        if not (folder / CARD).is_file():
            raise not_a_model(folder)
        if _members_of(folder) is not None:
            raise ModelError(
                f"{folder} is an ensemble of several models. It can predict and be evaluated, but not be exported, "
                f"pushed, served or used for a corpus yet. Give one model: {folder.parent / 'model'}."
            )
        if (folder / "model.onnx").is_file():
            raise ModelError(
                f"{folder} is an ONNX export; the folder it was exported from is needed here. An export can be served "
                f'and can label a corpus, and  python {folder / "predict.py"} "some text"  predicts with it.'
            )
        try:
            card = _read_card(folder / CARD)
            spec, recipe = card.pop("spec"), from_dict(Recipe, card.pop("recipe"))
            known = {name: card.pop(name) for name in ("problem_type", "labels", "pair")}
            spec = Spec.from_dict(spec) if spec else None
            if has_unknown_encoder(folder):
                if not (trust_remote_code and spec):
                    raise _AdviceError(
                        f"{folder} has an encoder with its own code. Give trust_remote_code=True to run this code."
                    )
                register_remote_code(spec.encoder)
            check_weight_files(folder)
            with quiet():
                model, loaded = AutoModelForSequenceClassification.from_pretrained(
                    folder,
                    dtype=torch.float32,
                    output_loading_info=True,
                    trust_remote_code=False,  # without it, transformers asks on standard input
                    use_safetensors=True,  # never a pickle
                )
            if loaded["missing_keys"]:  # transformers would initialise them at random
                raise ModelError(f"its weights lack {', '.join(sorted(loaded['missing_keys'])[:3])}")
            tokenizer = load_tokenizer(str(folder), trust_remote_code=False)
            if known["problem_type"] == "multi_label_classification":
                thresholds = getattr(model.config, "thresholds", None)
                known["thresholds"] = check_thresholds(thresholds, known["problem_type"], len(known["labels"]))
            options: dict[str, Any] = {"device": device, "precision": precision}
            predictor = cls(model, tokenizer, **known, recipe=recipe, spec=spec, facts=card, **options)
            # Settings that do not fit each other, or the weights, are found by the first prediction only.
            predictor.predict("a", "a" if predictor.pair else None)
        except _AdviceError:
            raise
        except Exception as error:  # damaged files raise errors of many libraries
            reason = (str(error).strip() or repr(error)).splitlines()[0].rstrip(".")
            raise ModelError(f"{folder} cannot be loaded: {reason}. Save the model again.") from None
        return predictor


class Ensemble(_Model):
    """Several models whose outputs are averaged. It predicts like a `Predictor`.

    Members with equal encoders share one, which runs once per batch.

    Args:
        members: Models of the same task.
        facts: Further data of the ensemble. Its `thresholds` are those of several labels; without them, the mean of the
            members' thresholds.
    """

    def __init__(self, members: Sequence[Predictor], facts: dict[str, Any] | None = None) -> None:
        self.members, self.facts = list(members), dict(facts or {})
        first = self.members[0]
        self.problem_type, self.labels, self.pair = first.problem_type, first.labels, first.pair
        thresholds = self.facts.get("thresholds")
        if thresholds is None and any(member.thresholds for member in self.members):
            thresholds = np.mean([member.thresholds or [0.5] * len(self.labels) for member in self.members], axis=0)
        self.thresholds = check_thresholds(thresholds, self.problem_type, len(self.labels))
        share_encoders([member.model for member in self.members])

    def __repr__(self) -> str:
        return f"Ensemble of {len(self.members)}: {self.members[0]!r}"

    def outputs(
        self,
        texts: Sequence[str],
        texts_b: Sequence[str] | None = None,
        *,
        batch: int = BATCH,
        progress: Callable[[int], None] | None = None,
    ) -> np.ndarray:
        """Return the mean outputs of the members, in the order of the texts; see `Predictor.outputs`."""
        self.members[0].check(texts, texts_b)
        windows, groups = [], self._groups()
        for start in range(0, len(texts), WINDOW):
            first, second = texts[start : start + WINDOW], None if texts_b is None else texts_b[start : start + WINDOW]
            weighted = []
            for i, group in enumerate(groups):
                tokens = group[0].tokenise(first, second)
                mean = _mean_outputs(group, tokens, batch, progress if i == len(groups) - 1 else None)
                weighted.append(mean * np.float32(len(group) / len(self.members)))
            windows.append(np.sum(weighted, axis=0))
        return np.concatenate(windows) if windows else self.members[0].outputs([], None if texts_b is None else [])

    def _groups(self) -> list[list[Predictor]]:
        """Return the members in groups that take the same tokens."""
        groups: dict[Any, list[Predictor]] = {}
        for member in self.members:
            groups.setdefault(member.takes, []).append(member)
        return list(groups.values())


def _mean_outputs(
    predictors: Sequence[Predictor], tokens: Tokens, batch: int, progress: Callable[[int], None] | None
) -> np.ndarray:
    """Return the mean outputs of models that take the same tokens; each batch is given to all of them in turn."""
    first, order, means = predictors[0], [], []
    with torch.inference_mode(), autocast(first.device, first.precision):
        for rows in by_length(tokens.lengths, batch):
            inputs = {name: x.to(first.device) for name, x in tokens.batch(rows).items()}
            outputs = [member.activate(member.model(**inputs).logits.float()) for member in predictors]
            order.append(rows)
            means.append(outputs[0] if len(outputs) == 1 else torch.stack(outputs).mean(0))
            if progress:
                progress(len(rows))
    values = torch.cat(means).cpu().numpy()
    restored = np.empty_like(values)
    restored[np.concatenate(order)] = values
    return restored


def save_ensemble(folder: Path, facts: dict[str, Any]) -> None:
    """Turn a folder of saved models into an ensemble by writing its headhunt.json."""
    names = sorted(member.parent.name for member in folder.glob(f"*/{CARD}"))
    _write_json(folder / CARD, {"schema": SCHEMA, "ensemble": names, **facts})


def open_model(
    folder: str | Path,
    *,
    device: torch.device | None = None,
    precision: str = "auto",
    trust_remote_code: bool = False,
) -> Predictor | Ensemble:
    """Load a saved model or ensemble; see `Predictor.load`.

    Raises:
        ModelError: If the folder contains neither.
    """
    folder = Path(folder)
    names = _members_of(folder)
    options: dict[str, Any] = {"device": device, "precision": precision, "trust_remote_code": trust_remote_code}
    if names is None:
        return Predictor.load(folder, **options)
    if not isinstance(names, list) or not names or not all(map(is_bare_name, names)):
        raise ModelError(f"{folder / CARD} must name the folders of its members; found {names!r}.")
    members = [Predictor.load(folder / name, **options) for name in names]
    return Ensemble(members, read_json(folder / CARD))


class _AdviceError(ModelError):
    """An error whose message already says what to do."""


def _members_of(folder: Path) -> Any:
    """Return the member names in a folder's headhunt.json; None if it is not an ensemble."""
    try:
        card = read_json(folder / CARD)
    except (OSError, ValueError):
        return None
    return card.get("ensemble") if isinstance(card, dict) else None


def _read_card(path: Path) -> dict[str, Any]:
    card = read_json(path)
    if isinstance(card, dict) and "kind" in card:
        raise _AdviceError(
            f"{path.parent} was saved by an older, unreleased version of Headhunt. Train the model again."
        )
    if not isinstance(card, dict) or card.pop("schema", None) != SCHEMA:
        raise ModelError(f"{path.name} must contain one JSON object of schema {SCHEMA}")
    for name in ("problem_type", "labels", "pair", "recipe", "spec"):
        if name not in card:
            raise ModelError(f"{path.name} must contain {name!r}")
    if not isinstance(card["pair"], bool) or card["problem_type"] not in (*OUTPUT_NOUNS, "regression"):
        raise ModelError(f"{path.name} must have a problem_type, and pair must be true or false")
    if not isinstance(card["labels"], list) or not all(isinstance(label, str) for label in card["labels"]):
        raise ModelError(f"the labels in {path.name} must be a list of strings")
    return card


def _write_json(path: Path, data: dict[str, Any]) -> None:
    """Write headhunt.json. Scores may be NaN, which `storage.write_json` refuses."""
    write_text(path, json.dumps(data, indent=2, ensure_ascii=False) + "\n")
