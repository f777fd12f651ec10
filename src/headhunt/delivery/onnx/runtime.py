"""Answers with a model that Headhunt exported, without torch: numpy, onnxruntime and tokenizers are all it needs.

From the command line, a label and its probability a line:

    python predict.py "a text" "another text"
    cat texts.txt | python predict.py

A model of pairs takes two texts for each answer: two by two, or with a tab between them on a line.
From Python:

    from predict import Model

    model = Model("folder")
    model.predict(["a text"])    # [{"label": "good", "probability": 0.98, "probabilities": {"good": 0.98, …}}]
    model.outputs(texts)         # the same as one array (texts, labels), for many
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from tokenizers import Tokenizer

SCHEMA = 1
SLOWER = ["SkipLayerNormFusion", "BiasGeluFusion"]  # two fused kernels that take longer than their parts, on a CPU
WINDOW = 16_384  # texts tokenised and sorted at a time: memory stays flat however many there are


@dataclass(frozen=True, slots=True)
class Encoded:
    """One text or pair, ready for the model."""

    ids: list[int]
    """Token ids, special ones included."""
    second: int
    """Where the second text begins; the end of `ids` where there is none."""

    def __len__(self) -> int:
        return len(self.ids)


class Model:
    """A model, its tokenizer and the names of its labels.

    Args:
        folder: What `headhunt export` wrote.
        threads: Cores for one answer; all there are unless given.
    """

    def __init__(self, folder: str | Path, threads: int | None = None) -> None:
        folder = Path(folder)
        card = json.loads((folder / "headhunt.json").read_text(encoding="utf-8"))
        if card.get("schema") != SCHEMA or "frame" not in card:
            raise ValueError(f"{folder / 'headhunt.json'} must be of an export with schema {SCHEMA}; export again.")
        self.problem_type: str = card["problem_type"]
        """As transformers names it: "single_label_classification", "multi_label_classification" or "regression"."""
        self.labels: list[str] = card["labels"]
        self.pair: bool = card["pair"]
        self.max_length: int = card["max_length"]
        self.card: dict[str, Any] = card
        self._frame = card["frame"]
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True  # a "[SEP]" that somebody wrote is text
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        if threads:
            options.intra_op_num_threads = threads
        self.session = onnxruntime.InferenceSession(
            folder / "model.onnx", options, providers=["CPUExecutionProvider"], disabled_optimizers=SLOWER
        )

    # ------------------------------------------------------------------------------------------ answers

    def predict(self, texts: str | Sequence[str], texts_b: str | Sequence[str] | None = None) -> list[dict[str, Any]]:
        """An answer for each text, or pair where `texts_b` is given: label, probability, and all probabilities."""
        texts = [texts] if isinstance(texts, str) else texts
        texts_b = [texts_b] if isinstance(texts_b, str) else texts_b
        return [self.prediction(row) for row in self.outputs(texts, texts_b)]

    def outputs(self, texts: Sequence[str], texts_b: Sequence[str] | None = None, batch: int = 64) -> np.ndarray:
        """Probabilities (texts, labels), or numbers (texts,), in the order of the texts."""
        self._check(texts, texts_b)
        found = np.zeros(
            (len(texts),) if self.problem_type == "regression" else (len(texts), len(self.labels)), np.float32
        )
        for start in range(0, len(texts), WINDOW):
            stop = start + WINDOW
            rows = self.encode(texts[start:stop], None if texts_b is None else texts_b[start:stop])
            # Texts of like length together, so that little is padded.
            order = np.argsort([-len(row) for row in rows], kind="stable")
            for first in range(0, len(order), batch):
                chosen = order[first : first + batch]
                found[start + chosen] = self.run([rows[i] for i in chosen])
        return found

    def prediction(self, row: np.ndarray) -> dict[str, Any]:
        """One row of `outputs` in words."""
        if self.problem_type == "regression":
            return {"label": float(row), "probability": None, "probabilities": {}}
        probabilities = dict(zip(self.labels, row.tolist(), strict=True))
        if self.problem_type == "single_label_classification":
            best: Any = max(probabilities, key=probabilities.__getitem__)
            return {"label": best, "probability": probabilities[best], "probabilities": probabilities}
        best = [label for label, p in probabilities.items() if p >= 0.5]
        least = min((probabilities[label] for label in best), default=None)
        return {"label": best, "probability": least, "probabilities": probabilities}

    def run(self, rows: Sequence[Encoded]) -> np.ndarray:
        """One pass over rows padded to the longest of them: probabilities (rows, labels), or numbers (rows,)."""
        logits = self.logits(rows)
        if self.problem_type == "regression":
            return logits[:, 0]
        if self.problem_type == "multi_label_classification":
            return 0.5 * (1 + np.tanh(0.5 * logits))  # the sigmoid, which cannot overflow in this form
        powers = np.exp(logits - logits.max(1, keepdims=True))
        return powers / powers.sum(1, keepdims=True)

    def logits(self, rows: Sequence[Encoded]) -> np.ndarray:
        """What the graph gives for the same pass, before it is turned into probabilities."""
        shape = len(rows), max(len(row) for row in rows)
        ids = np.full(shape, self._frame["pad"], np.int64)
        mask, types = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        for i, row in enumerate(rows):
            ids[i, : len(row)] = row.ids
            mask[i, : len(row)] = 1
            types[i, row.second : len(row)] = 1
        known = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
        (logits,) = self.session.run(["logits"], {name: known[name] for name in self.card["inputs"]})
        return logits

    # ------------------------------------------------------------------------------------------ tokens

    def encode(self, texts: Sequence[str], texts_b: Sequence[str] | None = None) -> list[Encoded]:
        """Token ids, framed and cut as the model was trained: a text to `max_length`, of a pair the longer first."""
        self._check(texts, texts_b)
        before, between, after = (self._frame[name] for name in ("before", "between", "after"))
        room = max(1, self.max_length - len(before) - len(between) - len(after))
        first = self._ids(texts)
        if texts_b is None:
            rows = [before + self._cut(ids, room) + after for ids in first]
            return [Encoded(ids, len(ids)) for ids in rows]
        found = []
        for a, b in zip(first, self._ids(texts_b), strict=True):
            keep_a, keep_b = self._shares(len(a), len(b), room)
            head = before + self._cut(a, keep_a) + between
            found.append(Encoded(head + self._cut(b, keep_b) + after, len(head)))
        return found

    def _ids(self, texts: Sequence[str]) -> list[list[int]]:
        return [found.ids for found in self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]

    def _cut(self, ids: list[int], keep: int) -> list[int]:
        if len(ids) <= keep:
            return ids
        tail = keep // 2 if self.card["truncation"] == "middle" else 0
        return ids[: keep - tail] + ids[len(ids) - tail :]

    def _shares(self, first: int, second: int, room: int) -> tuple[int, int]:
        """How many tokens of each text of a pair are kept."""
        if self.card["each"]:  # the model reads the two texts apart: the length is that of each
            return self.max_length - 2, self.max_length - 2
        half = room // 2
        if first <= half:
            return first, room - first
        if second <= room - half:
            return room - second, second
        return half, room - half

    def _check(self, texts: Sequence[str], texts_b: Sequence[str] | None) -> None:
        if isinstance(texts, str) or isinstance(texts_b, str):
            raise ValueError("This takes a list of texts; found one string.")
        if self.pair != (texts_b is not None):
            needs = "two texts" if self.pair else "one text"
            raise ValueError(f"This model takes {needs} for each answer; found {'one' if texts_b is None else 'two'}.")
        if texts_b is not None and len(texts) != len(texts_b):
            raise ValueError(f"Each text needs a second one; found {len(texts)} and {len(texts_b)}.")


# ---------------------------------------------------------------------------------------------- command line


def main(words: list[str]) -> None:
    """Prints an answer for each text given, or for each line that is piped in."""
    model = Model(Path(__file__).parent)
    if words:
        if model.pair and len(words) % 2:
            sys.exit(f"This model takes pairs: give an even number of texts; found {len(words)}.")
        answer(model, [words[i : i + 1 + model.pair] for i in range(0, len(words), 1 + model.pair)])
    elif sys.stdin.isatty():
        sys.exit("Give texts, or pipe them in, one a line.")
    else:
        for rows in piped(model.pair):
            answer(model, rows)


def piped(pair: bool, most: int = 1024) -> Iterator[list[list[str]]]:
    """Lines of standard input in batches; the first ones are small, so that answers begin at once."""
    sys.stdin.reconfigure(encoding="utf-8-sig")  # type: ignore[union-attr]
    size, rows = 8, []
    for number, line in enumerate(sys.stdin, 1):
        rows.append(line.rstrip("\r\n").split("\t") if pair else [line.rstrip("\r\n")])
        if pair and len(rows[-1]) != 2:
            sys.exit(f"Each line must hold two texts with one tab between; line {number} has {len(rows[-1])}.")
        if len(rows) == size:
            yield rows
            size, rows = min(most, 2 * size), []
    if rows:
        yield rows


def answer(model: Model, rows: list[list[str]]) -> None:
    """Prints label and probability, one line for each row."""
    for found in model.predict(*map(list, zip(*rows, strict=True))):
        label = "|".join(found["label"]) if isinstance(found["label"], list) else found["label"]
        print(label if found["probability"] is None else f"{label}\t{found['probability']:.4f}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
