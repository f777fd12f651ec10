"""Predict with a model that Headhunt exported, without torch: only numpy, onnxruntime and tokenizers are needed.

On the command line, one label and its probability per line:

    python predict.py "a text" "another text"
    cat texts.txt | python predict.py

A model of pairs takes two texts for each prediction: two arguments, or a line with a tab between them.
From Python:

    from predict import Model

    model = Model("folder")
    model.predict(["a text"])    # [{"label": "good", "probability": 0.98, "probabilities": {"good": 0.98, …}}]
    model.outputs(texts)         # the same as one array (texts, labels), for many texts

A model of several tasks prints one line for each task, and predicts {"task": {"label": "good", …}, …}.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from tokenizers import Tokenizer

SCHEMA = 1
SLOW_OPTIMIZERS = ["SkipLayerNormFusion", "BiasGeluFusion"]  # fused kernels that are slower on a CPU
WINDOW = 16_384  # texts tokenized and sorted at a time: memory does not grow with their number


@dataclass(frozen=True)
class SpecialTokens:
    """Ids of the special tokens before, between and after texts, and of padding."""

    before: list[int]
    between: list[int]
    after: list[int]
    pad: int


@dataclass(frozen=True)
class Rejection:
    """The texts that a model does not answer."""

    threshold: float
    """A text is answered if the probability of its best class is at least this."""
    label: str | None = None
    """Texts whose best class is this one are not answered."""


@dataclass(frozen=True)
class TaskOutput:
    """One of several tasks of a graph. The name of its output is "logits." and its own name."""

    name: str
    problem_type: str
    labels: list[str]
    """Class names; empty in regression."""

    @property
    def width(self) -> int:
        """Number of outputs."""
        return len(self.labels) or 1


@dataclass(frozen=True)
class Metadata:
    """The content of an export's `headhunt.json`."""

    problem_type: str
    """As in transformers: "single_label_classification", "multi_label_classification" or "regression"; "multi_task" if
    there are `tasks`."""
    labels: list[str]
    pair: bool
    """Whether the model takes pairs of texts."""
    max_length: int
    """Maximum number of tokens."""
    truncation: str
    """Where long texts are cut: "end" or "middle"."""
    siamese: bool
    """Whether the texts of a pair are encoded separately; `max_length` then applies to each."""
    special_tokens: SpecialTokens
    inputs: list[str]
    """Names of the inputs of the graph."""
    tasks: list[TaskOutput] = field(default_factory=list)
    """Several tasks, whose outputs are side by side in this order; empty for one task."""
    thresholds: list[float] | None = None
    """Probability from which a row has a label, for each of several labels; 0.5 if missing."""
    rejection: Rejection | None = None
    """The texts that the model does not answer; None if it answers all."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Further information about the model, which the runtime does not use."""

    @classmethod
    def read(cls, path: Path) -> Metadata:
        """Read a file.

        Raises:
            ValueError: If it is not the `headhunt.json` of an export.
        """
        data = json.loads(path.read_text(encoding="utf-8"))
        json.dumps(data, allow_nan=False)  # refuses NaN and numbers that are too large, which Python reads
        names = [item.name for item in fields(cls) if item.name != "facts"]
        if not isinstance(data, dict) or data.get("schema") != SCHEMA or not data.keys() >= set(names):
            raise ValueError(f"{path} must be of an export with schema {SCHEMA}; export again.")
        known = {name: data.pop(name) for name in names}
        known["special_tokens"] = SpecialTokens(**known["special_tokens"])
        known["rejection"] = None if known["rejection"] is None else Rejection(**known["rejection"])
        known["tasks"] = [TaskOutput(**task) for task in known["tasks"]]
        if problem := next(_problems(known), None):
            raise ValueError(f"{path}: {problem}; export again.")
        return cls(**known, facts=data)

    def to_dict(self) -> dict[str, Any]:
        """Return the data to write as JSON."""
        data = asdict(self)
        return {**data.pop("facts"), "schema": SCHEMA, **data}


def _problems(known: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with the values of a file, which may be damaged."""
    kinds = {"problem_type": str, "labels": list, "pair": bool, "max_length": int, "truncation": str, "siamese": bool}
    wrong = [name for name, kind in kinds.items() if type(known[name]) is not kind]
    if wrong or not all(isinstance(label, str) for label in known["labels"]):
        yield f"{(wrong or ['labels'])[0]} has another type than in an export"
    labels, thresholds, rejection, tasks = (known[name] for name in ("labels", "thresholds", "rejection", "tasks"))
    listed = thresholds if isinstance(thresholds, list) and len(thresholds) == len(labels) else [None]
    if thresholds is not None and not all(isinstance(value, float) and 0 < value < 1 for value in listed):
        yield f"thresholds must be {len(labels)} numbers between 0 and 1"
    threshold, label = (rejection.threshold, rejection.label) if rejection else (0.0, None)
    if not isinstance(threshold, float) or not 0 <= threshold < 1 or label not in (None, *labels):
        yield "rejection must have a threshold between 0 and 1 and a label"
    words = [word for task in tasks for word in (task.name, task.problem_type, *task.labels)]
    named = all(isinstance(word, str) for word in words) and all(isinstance(task.labels, list) for task in tasks)
    if not named or bool(tasks) != (known["problem_type"] == "multi_task"):
        yield "tasks must have names, problem types and labels"


@dataclass(frozen=True, slots=True)
class Encoded:
    """The tokens of one text or pair."""

    ids: list[int]
    """Token ids, including special tokens."""
    second: int
    """Position of the second text in `ids`; the end of `ids` without one."""

    def __len__(self) -> int:
        return len(self.ids)


class Model:
    """An exported model with its tokenizer and labels.

    Args:
        folder: The folder that `headhunt export` wrote.
        threads: Cores for one forward pass; all cores by default.
    """

    def __init__(self, folder: str | Path, threads: int | None = None) -> None:
        folder = Path(folder)
        self.metadata = Metadata.read(folder / "headhunt.json")
        self.problem_type, self.labels = self.metadata.problem_type, self.metadata.labels
        self.pair, self.max_length = self.metadata.pair, self.metadata.max_length
        self.thresholds, self.rejection = self.metadata.thresholds, self.metadata.rejection
        self.tasks = self.metadata.tasks
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True  # a "[SEP]" in a text is text
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        if threads:
            options.intra_op_num_threads = threads
        self.session = onnxruntime.InferenceSession(
            folder / "model.onnx", options, providers=["CPUExecutionProvider"], disabled_optimizers=SLOW_OPTIMIZERS
        )

    # ------------------------------------------------------------------------------------------ predictions

    def predict(self, texts: str | Sequence[str], texts_b: str | Sequence[str] | None = None) -> list[dict[str, Any]]:
        """Return label, probability and all probabilities for each text, or for each pair with `texts_b`.

        A model that rejects texts also returns `rejected`; the label of a rejected text is None. A model of several
        tasks returns such a prediction for each task, by name.
        """
        texts = [texts] if isinstance(texts, str) else texts
        texts_b = [texts_b] if isinstance(texts_b, str) else texts_b
        return [self.prediction(row) for row in self.outputs(texts, texts_b)]

    def outputs(self, texts: Sequence[str], texts_b: Sequence[str] | None = None, batch: int = 64) -> np.ndarray:
        """Return probabilities (texts, labels), or numbers (texts,), in the order of the texts.

        The outputs of several tasks are side by side (texts, outputs of all tasks).
        """
        self._check(texts, texts_b)
        width = sum(task.width for task in self.tasks) or len(self.labels)
        shape = (len(texts),) if self.problem_type == "regression" else (len(texts), width)
        outputs = np.zeros(shape, np.float32)
        for start in range(0, len(texts), WINDOW):
            stop = start + WINDOW
            rows = self.encode(texts[start:stop], None if texts_b is None else texts_b[start:stop])
            # Batches of similar length need little padding.
            order = np.argsort([-len(row) for row in rows], kind="stable")
            for first in range(0, len(order), batch):
                chosen = order[first : first + batch]
                outputs[start + chosen] = self.run([rows[i] for i in chosen])
        return outputs

    def prediction(self, row: np.ndarray, top_k: int | None = None) -> dict[str, Any]:
        """Return one row of `outputs` as label, probability and all probabilities; by task if there are several.

        Args:
            row: The outputs of one text.
            top_k: The number of probabilities, the highest first, if there are more; None keeps all.
        """
        if self.tasks:
            return {
                task.name: self._answer(task.problem_type, task.labels, part if task.labels else part[0], top_k)
                for task, part in zip(self.tasks, self._by_task(row), strict=True)
            }
        return self._answer(self.problem_type, self.labels, row, top_k)

    def _answer(self, problem_type: str, labels: Sequence[str], row: Any, top_k: int | None) -> dict[str, Any]:
        if problem_type == "regression":
            return {"label": float(row), "probability": None, "probabilities": {}}
        shown = range(len(labels)) if top_k is None or top_k >= len(labels) else np.argsort(-row, kind="stable")[:top_k]
        probabilities = {labels[i]: float(row[i]) for i in shown}
        if problem_type == "single_label_classification":
            best = int(row.argmax())
            label, probability = labels[best], float(row[best])
            answer = {"label": label, "probability": probability, "probabilities": probabilities}
            if self.rejection is None:
                return answer
            rejected = probability < self.rejection.threshold or label == self.rejection.label
            return {**answer, "label": None if rejected else label, "rejected": rejected}
        chosen = np.flatnonzero(row >= np.array(self.thresholds or [0.5] * len(labels))).tolist()
        return {
            "label": [labels[i] for i in chosen],
            "probability": min(row[chosen].tolist(), default=None),
            "probabilities": probabilities,
        }

    def run(self, rows: Sequence[Encoded]) -> np.ndarray:
        """Run one forward pass and return probabilities (rows, labels), or numbers (rows,); see `outputs`."""
        logits = self.logits(rows)
        if self.tasks:
            parts = zip(self.tasks, self._by_task(logits), strict=True)
            outputs = [activate(task.problem_type, part) for task, part in parts]
            return np.concatenate([each.reshape(len(rows), -1) for each in outputs], 1)
        return activate(self.problem_type, logits)

    def _by_task(self, values: np.ndarray) -> list[np.ndarray]:
        """Return the columns of each task."""
        return np.split(values, np.cumsum([task.width for task in self.tasks])[:-1], axis=-1)

    def logits(self, rows: Sequence[Encoded]) -> np.ndarray:
        """Run one forward pass over rows padded to the longest of them and return the logits, of all tasks."""
        shape = len(rows), max(len(row) for row in rows)
        ids = np.full(shape, self.metadata.special_tokens.pad, np.int64)
        mask, types = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        for i, row in enumerate(rows):
            ids[i, : len(row)] = row.ids
            mask[i, : len(row)] = 1
            types[i, row.second : len(row)] = 1
        tensors = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
        names = [f"logits.{task.name}" for task in self.tasks] or ["logits"]
        logits = self.session.run(names, {name: tensors[name] for name in self.metadata.inputs})
        return np.concatenate(logits, 1) if self.tasks else logits[0]

    # ------------------------------------------------------------------------------------------ tokens

    def encode(self, texts: Sequence[str], texts_b: Sequence[str] | None = None) -> list[Encoded]:
        """Return token ids as in training: with special tokens, cut to `max_length`, of a pair the longer first."""
        self._check(texts, texts_b)
        special = self.metadata.special_tokens
        before, between, after = special.before, special.between, special.after
        available = max(1, self.max_length - len(before) - len(between) - len(after))
        first = self._ids(texts)
        if texts_b is None:
            rows = [before + self._cut(ids, available) + after for ids in first]
            return [Encoded(ids, len(ids)) for ids in rows]
        pairs = []
        for a, b in zip(first, self._ids(texts_b), strict=True):
            keep_a, keep_b = self._lengths(len(a), len(b), available)
            head = before + self._cut(a, keep_a) + between
            pairs.append(Encoded(head + self._cut(b, keep_b) + after, len(head)))
        return pairs

    def _ids(self, texts: Sequence[str]) -> list[list[int]]:
        return [encoding.ids for encoding in self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]

    def _cut(self, ids: list[int], keep: int) -> list[int]:
        if len(ids) <= keep:
            return ids
        tail = keep // 2 if self.metadata.truncation == "middle" else 0
        return ids[: keep - tail] + ids[len(ids) - tail :]

    def _lengths(self, first: int, second: int, available: int) -> tuple[int, int]:
        """Return the number of tokens to keep of each text of a pair."""
        if self.metadata.siamese:
            return self.max_length - 2, self.max_length - 2
        half = available // 2
        if first <= half:
            return first, available - first
        if second <= available - half:
            return available - second, second
        return half, available - half

    def _check(self, texts: Sequence[str], texts_b: Sequence[str] | None) -> None:
        if isinstance(texts, str) or isinstance(texts_b, str):
            raise ValueError("The texts must be a list; found one string.")
        if self.pair != (texts_b is not None):
            needed = "two texts" if self.pair else "one text"
            found = "one" if texts_b is None else "two"
            raise ValueError(f"This model takes {needed} for each prediction; found {found}.")
        if texts_b is not None and len(texts) != len(texts_b):
            raise ValueError(f"Each text needs a second one; found {len(texts)} and {len(texts_b)}.")


def activate(problem_type: str, logits: np.ndarray) -> np.ndarray:
    """Return probabilities (rows, labels), or numbers (rows,), from logits."""
    if problem_type == "regression":
        return logits[:, 0]
    if problem_type == "multi_label_classification":
        return 0.5 * (1 + np.tanh(0.5 * logits))  # the sigmoid in a form that cannot overflow
    powers = np.exp(logits - logits.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


# ---------------------------------------------------------------------------------------------- command line


def main(texts: list[str]) -> None:
    """Print a prediction for each text of the command line, or for each line of standard input."""
    model = Model(Path(__file__).parent)
    if texts:
        if model.pair and len(texts) % 2:
            sys.exit(f"This model takes pairs: give an even number of texts; found {len(texts)}.")
        print_predictions(model, [texts[i : i + 1 + model.pair] for i in range(0, len(texts), 1 + model.pair)])
    elif sys.stdin.isatty():
        sys.exit("Give texts, or pipe them in, one per line.")
    else:
        for rows in read_lines(model.pair):
            print_predictions(model, rows)


def read_lines(pair: bool, max_rows: int = 1024) -> Iterator[list[list[str]]]:
    """Yield lines of standard input in batches; the first batches are small, so that the output begins at once."""
    sys.stdin.reconfigure(encoding="utf-8-sig")  # type: ignore[union-attr]
    size, rows = 8, []
    for number, line in enumerate(sys.stdin, 1):
        rows.append(line.rstrip("\r\n").split("\t") if pair else [line.rstrip("\r\n")])
        if pair and len(rows[-1]) != 2:
            sys.exit(f"Each line must have two texts with one tab between; line {number} has {len(rows[-1])}.")
        if len(rows) == size:
            yield rows
            size, rows = min(max_rows, 2 * size), []
    if rows:
        yield rows


def print_predictions(model: Model, rows: list[list[str]]) -> None:
    """Print label and probability, one line for each row; with several tasks, one for each task after its name."""
    for prediction in model.predict(*map(list, zip(*rows, strict=True))):
        for name, answer in prediction.items() if model.tasks else [("", prediction)]:
            label, probability = answer["label"], answer["probability"]
            label = "|".join(label) if isinstance(label, list) else "" if label is None else label
            words = [*([name] if name else []), str(label), *([] if probability is None else [f"{probability:.4f}"])]
            print("\t".join(words), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
