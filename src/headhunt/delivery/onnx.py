"""A model as an ONNX graph with all it takes to answer, torch not included.

    OUT/model.onnx        token ids to logits, for any number of texts of any length
    OUT/tokenizer.json
    OUT/headhunt.json     labels, how texts are framed and cut, where it came from
    OUT/predict.py        runtime.py of this room: the one file that reads the others

Hides which exporter is right, what makes the graph fast, and how a folder is written whole or not at all. Nothing is
kept that was not compared with the model it came from.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from headhunt.delivery import runtime
from headhunt.errors import ModelError
from headhunt.predictor import CARD, Predictor
from headhunt.tokens import Frame

TOLERANCE = 1e-4
OPSET = 20
SENTENCES = (
    "",
    "No.",
    "It rained all night, and in the morning the road was gone.",
    "Which of the two would you rather keep, and why?",
    "¡Qué sorpresa! Ein Satz auf Deutsch, une phrase, 一句话, и ещё одна 🙂",
    "Order 66-B (ref. #4711): 3 × 12.50 € paid on 2024-02-29 at 23:59:59, see https://example.org/a?b=c&d=%20",
    "[SEP] [CLS] </s> <pad> are words like any other here.",
    "The committee, which had met every Thursday for eleven years, met on a Friday. " * 3,
    "word " * 700,
)


@dataclass(frozen=True)
class Export:
    """What was written, and how far it can be trusted."""

    folder: Path
    difference: float
    """The largest difference of a logit from torch's, over `texts` texts."""
    texts: int
    bytes: int


def export(folder: str | Path, out: str | Path) -> Export:
    """Writes a saved model as an ONNX graph and all it takes to answer without torch.

    Args:
        folder: A folder that Headhunt saved.
        out: Where to write; a new or empty folder.

    Raises:
        ModelError: If the graph does not give what the model gives.
    """
    predictor = Predictor.load(folder, device=torch.device("cpu"), precision="fp32")
    texts, texts_b = probes(predictor.pair)
    with whole(Path(out)) as partial:
        inputs = write_graph(predictor, partial / "model.onnx")
        write_companions(predictor, partial, inputs)
        difference = compare(predictor, runtime.Model(partial), texts, texts_b)
        if not difference <= TOLERANCE:
            raise ModelError(
                f"The logits of the ONNX graph must be within {TOLERANCE:g} of the model's; found {difference:.2g}. "
                f"Nothing was written."
            )
        size = sum(file.stat().st_size for file in partial.iterdir())
    return Export(Path(out), difference, len(texts), size)


@contextlib.contextmanager
def whole(out: Path) -> Iterator[Path]:
    """A folder beside `out` that takes its place at the end, or vanishes."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ModelError(f"An export needs a new or empty folder; {out} has something in it.")
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        yield partial
        partial.chmod(0o777 & ~_umask())
        if out.exists():
            out.rmdir()
        partial.rename(out)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


class Logits(nn.Module):
    """The model with tensors in, one tensor out."""

    def __init__(self, model: nn.Module, inputs: Sequence[str]) -> None:
        super().__init__()
        self.model, self.inputs = model, tuple(inputs)

    def forward(self, *tensors: Tensor) -> Tensor:
        """Logits (batch, outputs)."""
        return self.model(**dict(zip(self.inputs, tensors, strict=True))).logits


def write_graph(predictor: Predictor, path: Path) -> list[str]:
    """Writes the graph and gives the names of its inputs.

    torch.export's graph, not a traced one: a trace runs too, but keeps the example's lengths in its attention masks and
    is silently wrong for any other.
    """
    need("onnx", "onnxscript")
    texts, texts_b = ["a", "a b c d", "a b"], ["b c", "a", "b c d e"]
    batch = predictor.tokenise(texts, texts_b if predictor.pair else None).batch(np.arange(3))
    if predictor.spec and predictor.spec.head.siamese:
        batch.pop("token_type_ids", None)  # the texts are taken apart, so types mean nothing
    dynamic = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    with silent():
        program = torch.onnx.export(
            Logits(predictor.model, list(batch)),
            tuple(batch.values()),
            dynamo=True,
            dynamic_shapes=(tuple(dynamic for _ in batch),),
            input_names=list(batch),
            output_names=["logits"],
            opset_version=OPSET,
            verbose=False,
        )
        assert program is not None
        program.save(path)
    return list(batch)


def write_companions(predictor: Predictor, folder: Path, inputs: Sequence[str]) -> None:
    """Writes what stands beside the graph."""
    backend = getattr(predictor.tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ModelError("An export needs a tokenizer of the tokenizers library; this model's is written in Python.")
    backend.save(str(folder / "tokenizer.json"))
    shutil.copyfile(runtime.__file__, folder / "predict.py")
    frame = asdict(Frame.of(predictor.tokenizer, predictor.pair))
    frame.pop("types")
    card = {
        "schema": runtime.SCHEMA,
        "kind": predictor.kind,
        "labels": list(predictor.labels),
        "pair": predictor.pair,
        "max_length": predictor.recipe.max_length,
        "truncation": predictor.recipe.truncation,
        "each": bool(predictor.spec and predictor.spec.head.siamese),
        "frame": frame,
        "inputs": list(inputs),
        "spec": predictor.spec.to_dict() if predictor.spec else None,
        **predictor.facts,
    }
    (folder / CARD).write_text(json.dumps(card, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def probes(pair: bool) -> tuple[list[str], list[str] | None]:
    """Texts of all lengths, in pairs where the model takes pairs."""
    texts = list(SENTENCES)
    return texts, [*texts[3:], *texts[:3]] if pair else None


def compare(predictor: Predictor, model: runtime.Model, texts: Sequence[str], texts_b: Sequence[str] | None) -> float:
    """The largest difference of any logit, texts one by one and all in one padded batch."""
    tokens, rows = predictor.tokenise(texts, texts_b), model.encode(texts, texts_b)
    worst = 0.0
    for chosen in [*([i] for i in range(len(rows))), list(range(len(rows)))]:
        batch = tokens.batch(np.asarray(chosen))
        with torch.inference_mode():
            expected = predictor.model(**batch).logits.numpy()
        worst = max(worst, float(np.abs(model.logits([rows[i] for i in chosen]) - expected).max()))
    return worst


def need(*modules: str) -> None:
    """Says what to install where something is missing."""
    from importlib.util import find_spec

    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        raise ModelError(f'An export needs {" and ".join(missing)}: pip install "headhunt[onnx]".')


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """Keeps the exporter from speaking of itself."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
