"""Define `Predictor`, a trained model that predicts and can be saved and loaded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from transformers import PreTrainedModel

from headhunt.data.sources import find_wrong_text
from headhunt.errors import ModelError
from headhunt.evaluation import Decisions, Prediction, Rejection, apply_temperature, check_rejection, check_thresholds
from headhunt.modeling.architecture import from_dict
from headhunt.modeling.build import has_unknown_encoder, load_saved, output_of, register_remote_code
from headhunt.modeling.ensemble import HeadhuntEnsembleForSequenceClassification
from headhunt.modeling.multitask import HeadhuntMultiTaskForSequenceClassification
from headhunt.modeling.pretrained import load_tokenizer, quiet
from headhunt.report.model_card import write as write_card
from headhunt.run.directory import check_weight_files
from headhunt.run.model_info import AdviceError, facts_of_task, not_a_model, read_model_info, write_model_info
from headhunt.spec import Recipe, Spec
from headhunt.storage import share_weights
from headhunt.study.fork_server import check_tokenizer
from headhunt.training.device import pick_device
from headhunt.training.prediction import outputs_of_tasks, run_batches
from headhunt.training.task_tokens import TaskTokens
from headhunt.training.tokens import Tokens, tokenise

CARD = "headhunt.json"
MEMBERS = "members"  # key of the members' specs in the facts of an ensemble
WINDOW = 16_384  # texts tokenised, sorted and predicted at a time, to limit memory
BATCH = 64
OUTPUT_NOUNS = {"single_label_classification": "classes", "multi_label_classification": "labels"}


class Predictor:
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
        rejection: The texts that the model does not answer; by default it answers all.
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
        rejection: Rejection | None = None,
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
        self._by_task: dict[str, Predictor] = {}
        self.rejection = rejection

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

    @property
    def rejection(self) -> Rejection | None:
        """The texts that the model does not answer; None if it answers all. It is stored in config.json."""
        return self._rejection

    @rejection.setter
    def rejection(self, rejection: Rejection | None) -> None:
        data = None if rejection is None else asdict(rejection)
        self._rejection = check_rejection(data, self.problem_type, self.labels)
        vars(self.model.config).pop("rejection", None)
        if data is not None:
            self.model.config.rejection = data

    def __repr__(self) -> str:
        output = f"{len(self.labels)} {OUTPUT_NOUNS[self.problem_type]}" if self.labels else "a number"
        size = sum(parameter.numel() for parameter in self.model.parameters()) / 1e6
        if self.tasks:
            return f"Predictor(tasks {', '.join(self.tasks)}, {size:.1f} M parameters)"
        return f"Predictor({'two texts' if self.pair else 'one text'} → {output}, {size:.1f} M parameters)"

    def _repr_html_(self) -> str:
        from headhunt.report import notebook

        return notebook.model_summary(self)

    @property
    def tasks(self) -> tuple[str, ...]:
        """Names of the tasks of a model of several tasks; () for a single task."""
        if not isinstance(self.model, HeadhuntMultiTaskForSequenceClassification):
            return ()
        return tuple(task["name"] for task in self.model.config.tasks)

    def for_task(self, name: str | None) -> Predictor:
        """Return the model of one of several tasks. It shares its weights, and can be saved as a model of its own.

        Args:
            name: Name of the task; None for a model of a single task, which is returned.

        Raises:
            ModelError: If the model does not have this task.
        """
        if not isinstance(self.model, HeadhuntMultiTaskForSequenceClassification):
            if name is not None:
                raise ModelError(f"is for models of several tasks; this model has one. Leave out {name!r}.", "task")
            return self
        if name not in self.tasks:
            found = "nothing" if name is None else repr(name)
            raise ModelError(f"must be one of {', '.join(self.tasks)}; found {found}.", "task")
        if name not in self._by_task:
            task = self.model.config.tasks[self.tasks.index(name)]
            self._by_task[name] = Predictor(
                self.model.for_task(name),
                self.tokenizer,
                problem_type=task["problem_type"],
                labels=task["labels"],
                pair=task["pair"],
                recipe=self.recipe.of_task(),
                spec=self.spec.of_task(task["pair"]) if self.spec else None,
                facts={"from_tasks": list(self.tasks), **facts_of_task(self.facts, name)},
                device=self.device,
                precision=self.precision,
            )
        return self._by_task[name]

    def predict(
        self, texts: str | Sequence[str], texts_b: str | Sequence[str] | None = None, *, task: str | None = None
    ) -> list[Prediction]:
        """Return predictions for texts, or for pairs if `texts_b` is given.

        Args:
            texts: One or more texts, or first texts of pairs.
            texts_b: Second texts of pairs.
            task: Name of the task, for a model of several tasks.
        """
        if task is not None or self.tasks:
            return self.for_task(task).predict(texts, texts_b)
        texts = [texts] if isinstance(texts, str) else texts
        texts_b = [texts_b] if isinstance(texts_b, str) else texts_b
        return [self.prediction(row) for row in self.outputs(texts, texts_b)]

    def predict_tasks(
        self,
        texts: str | Sequence[str],
        texts_b: str | Sequence[str] | None = None,
        *,
        tasks: Sequence[str] | None = None,
    ) -> dict[str, list[Prediction]]:
        """Return predictions of several tasks for the same texts, or pairs, by task. Shared layers run once.

        Args:
            texts: One or more texts, or first texts of pairs.
            texts_b: Second texts of pairs.
            tasks: Names of tasks; by default all that take one text, or all that take two if `texts_b` is given.

        Raises:
            ModelError: If the model has one task, or a task does not take these texts.
        """
        if not isinstance(self.model, HeadhuntMultiTaskForSequenceClassification):
            raise ModelError("predict_tasks is for models of several tasks; this model has one. Use predict.")
        texts = [texts] if isinstance(texts, str) else texts
        texts_b = [texts_b] if isinstance(texts_b, str) else texts_b
        if tasks is None:
            tasks = [task["name"] for task in self.model.config.tasks if task["pair"] == (texts_b is not None)]
        tasks = tuple(dict.fromkeys(tasks))
        models = [self.for_task(name) for name in tasks]
        for model in models:
            model.check(texts, texts_b)
        found: dict[str, list[Prediction]] = {name: [] for name in tasks}
        run = self.model.outputs_of_tasks
        for start in range(0, len(texts) if models else 0, WINDOW):
            second = None if texts_b is None else texts_b[start : start + WINDOW]
            tokens = models[0].tokenise(texts[start : start + WINDOW], second)  # equal for tasks of as many texts
            options: Any = {"device": self.device, "precision": self.precision, "batch": BATCH}
            rows = run_batches(tokens, lambda inputs, _: run(inputs, tasks), **options)
            ends = np.cumsum([max(1, len(model.labels)) for model in models])
            for model, name, part in zip(models, tasks, np.split(rows, ends[:-1], axis=1), strict=True):
                found[name] += [model.prediction(row) for row in (part if model.labels else part[:, 0])]
        return found

    def prediction(self, row: np.ndarray) -> Prediction:
        """Return a row of `outputs` as a `Prediction`."""
        return Prediction.of_row(row, self.problem_type, self.labels, self.thresholds, self.rejection)

    def outputs(
        self,
        texts: Sequence[str],
        texts_b: Sequence[str] | None = None,
        tasks: np.ndarray | None = None,
        *,
        batch: int = BATCH,
        progress: Callable[[int], None] | None = None,
    ) -> np.ndarray:
        """Return probabilities (texts, labels), or numbers (texts,), in the order of the texts.

        The outputs of several tasks have as many columns as the task with the most; the others are 0.

        Args:
            texts: The texts, or the first texts of pairs.
            texts_b: The second texts of pairs.
            tasks: The number of each text's task, for a model of several tasks.
            batch: Texts per forward pass.
            progress: Function called with the number of texts just predicted.
        """
        if self.tasks:
            if tasks is None:
                raise ModelError(f"The task of each text must be given: {', '.join(self.tasks)}. Give a task.")
            assert isinstance(self.model, HeadhuntMultiTaskForSequenceClassification)
            models, width = [self.for_task(name) for name in self.tasks], self.model.most_outputs
            return outputs_of_tasks(models, width, texts, texts_b, tasks, batch=batch, progress=progress)
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
                f"and texts_b must have the same length; found {len(texts)} and {len(texts_b)} texts.", "texts"
            )
        if isinstance(texts, str):
            raise ModelError("must be a list of texts; found one string.", "texts")
        for name, given in (("texts", texts), ("texts_b", texts_b)):
            if given is not None and (wrong := find_wrong_text(given)):
                raise ModelError(f"must contain texts; {wrong}.", name)

    def tokenise(self, texts: Sequence[str], texts_b: Sequence[str] | None = None) -> Tokens:
        """Return the tokens of texts, truncated as in training."""
        return tokenise(
            self.tokenizer,
            texts,
            texts_b,
            max_length=self.takes[0],
            truncation=self.recipe.truncation,
            each=self.takes[2],
        )

    @property
    def takes(self) -> tuple[int, Literal["end", "middle"], bool]:
        """Maximum length, truncation, and True if both apply to each text of a pair. Equal models share tokens."""
        each = bool(self.spec and self.spec.head.siamese) or getattr(self.model.config, "cuts_each", False)
        longest = self.spec.head.reads(self.recipe.max_length) if self.spec else self.recipe.max_length
        return longest, self.recipe.truncation, each

    def tokens_to_outputs(
        self, tokens: Tokens | TaskTokens, batch: int = BATCH, progress: Callable[[int], None] | None = None
    ) -> np.ndarray:
        """Return the outputs of tokenised texts; see `outputs`."""

        def compute(inputs: dict[str, torch.Tensor], rows: np.ndarray) -> torch.Tensor:
            return self.activate(self.model(**inputs).logits.float(), tokens.tasks_of(rows))

        return run_batches(
            tokens, compute, device=self.device, precision=self.precision, batch=batch, progress=progress
        )

    def activate(self, logits: torch.Tensor, tasks: np.ndarray | None = None) -> torch.Tensor:
        """Return probabilities, or numbers, from logits.

        Args:
            logits: Logits (rows, outputs).
            tasks: The number of each row's task, for a model of several tasks.
        """
        if tasks is not None:
            assert isinstance(self.model, HeadhuntMultiTaskForSequenceClassification)
            return self.model.activate(logits, torch.from_numpy(tasks).to(logits.device))
        if self.problem_type == "single_label_classification":
            return logits.softmax(-1)
        return logits.sigmoid() if self.problem_type == "multi_label_classification" else logits.squeeze(-1)

    def calibrate(self, temperature: float) -> None:
        """Divide the logits by a temperature, within the model, so that every tool that loads it sees it.

        The thresholds of several labels are moved with their probabilities: the labels of a text stay the same.
        """
        if self.tasks:
            raise ModelError(
                "A model of several tasks cannot be calibrated; calibrate that of one task, for_task(NAME)."
            )
        if isinstance(self.model, HeadhuntEnsembleForSequenceClassification):
            self.model.config.logit_divisor *= temperature
        else:
            output, words = output_of(self.model), getattr(self.model, "words", None)
            with torch.no_grad():
                for parameter in (output.weight, output.bias, *([] if words is None else [words.weight])):
                    parameter.div_(temperature)
        if self.thresholds is not None:
            moved = apply_temperature(np.array(self.thresholds), temperature, several=True)
            self.thresholds = np.clip(moved, 1e-6, 1 - 1e-6).tolist()
        self.facts["temperature"] = temperature

    def decide_by(self, decisions: Decisions) -> None:
        """Use thresholds, temperature and rejection that were fitted on outputs of this model, each where given."""
        if decisions.thresholds is not None:
            self.thresholds = decisions.thresholds
        if decisions.temperature is not None:
            self.calibrate(decisions.temperature)
        if decisions.rejection is not None:
            self.rejection = decisions.rejection

    def save(self, folder: str | Path, *, card: bool = True) -> Path:
        """Write a folder that transformers can load, with or without Headhunt.

        Args:
            folder: Folder to write; created if missing.
            card: Also write a model card.
        """
        folder = Path(folder)
        (folder / CARD).unlink(missing_ok=True)  # written last: a folder with this file is complete
        # Another predictor of the same model may have replaced them.
        self.thresholds, self.rejection = self._thresholds, self._rejection
        for link in [
            path for path in folder.glob("*") if path.is_symlink() or (path.is_file() and path.stat().st_nlink > 1)
        ]:
            link.unlink()  # save_pretrained would write to the file that it points to, or shares
        with quiet():
            self.model.save_pretrained(folder)
            # Other tools read these settings: the maximum length, and that "[SEP]" in a text is ordinary text.
            self.tokenizer.model_max_length = self.takes[0]
            self.tokenizer.init_kwargs["split_special_tokens"] = True
            self.tokenizer.save_pretrained(folder)
        share_weights(folder, folder / "config.json")
        facts = {
            "problem_type": self.problem_type,
            "labels": list(self.labels),
            "pair": self.pair,
            "recipe": asdict(self.recipe),
            "spec": self.spec.to_dict() if self.spec else None,
            **self.facts,
        }
        write_model_info(folder / CARD, facts)
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
        if (folder / "model.onnx").is_file():
            raise ModelError(
                f"{folder} is an ONNX export; the folder it was exported from is needed here. An export can label a "
                f"corpus, and  headhunt serve {folder}  predicts with it. Its predict.py is code: run it only if you "
                "made the export."
            )
        try:
            card = read_model_info(folder / CARD)
            spec, recipe = card.pop("spec"), from_dict(Recipe, card.pop("recipe"))
            known = {name: card.pop(name) for name in ("problem_type", "labels", "pair")}
            spec = Spec.from_dict(spec) if spec else None
            if has_unknown_encoder(folder):
                specs = [spec] if spec else [Spec.from_dict(member) for member in card.get(MEMBERS, ()) if member]
                if not (trust_remote_code and specs):
                    raise AdviceError(
                        f"{folder} has an encoder with its own code. Give trust_remote_code to run this code."
                    )
                for name in {each.encoder for each in specs}:
                    register_remote_code(name)
            check_weight_files(folder)
            model = load_saved(folder)
            if isinstance(model, HeadhuntMultiTaskForSequenceClassification) != (known["problem_type"] == "multi_task"):
                raise ModelError("headhunt.json and config.json are of different models")
            check_tokenizer(folder / "tokenizer.json")
            tokenizer = load_tokenizer(str(folder), trust_remote_code=False)
            # The encoder may be a saved model of another task, with decisions about other labels.
            if known["problem_type"] == "multi_label_classification":
                known["thresholds"] = getattr(model.config, "thresholds", None)
            if known["problem_type"] == "single_label_classification":
                rejection = getattr(model.config, "rejection", None)
                known["rejection"] = check_rejection(rejection, known["problem_type"], known["labels"])
            known |= {"recipe": recipe, "spec": spec, "facts": card, "device": device, "precision": precision}
            predictor = cls(model, tokenizer, **known)
            # Settings that do not fit each other, or the weights, are found by the first prediction only.
            for task in predictor.tasks or (None,):
                model = predictor.for_task(task)
                model.predict("a", "a" if model.pair else None)
        except (AdviceError, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # damaged files raise errors of many libraries, and panics of those in Rust
            reason = (str(error).strip() or repr(error)).splitlines()[0].rstrip(".")
            raise ModelError(f"{folder} cannot be loaded: {reason}. Save the model again.") from None
        return predictor
