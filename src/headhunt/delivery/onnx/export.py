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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from headhunt.data import Split, load_labelled, load_texts
from headhunt.errors import DataError, ModelError
from headhunt.evaluation import DEFAULT_METRIC, measure
from headhunt.predictor import CARD, Predictor
from headhunt.run.directory import RunDirectory
from headhunt.run.schema import RunError
from headhunt.run.task import open_task
from headhunt.training.tokens import SpecialTokens

GRAPH, FULL = "model.onnx", "full.onnx"
TOLERANCE = 1e-4  # of a logit
MAX_LOSS = 0.5  # points of the score
OPSET = 20
COMPARED = 64  # texts
SCHEMA = 1  # of headhunt.json, as runtime.py reads it
# Where the task's own texts are not at hand: short and long, other scripts, what a tokenizer might trip over.
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
class Int8:
    """What smaller weights cost, measured on labelled rows."""

    metric: str
    rows: int
    source: str
    """Where the rows came from."""
    fp32: float
    int8: float
    loss: float
    """Points of the score, of 100."""
    accepted: bool


@dataclass(frozen=True)
class Export:
    """What was written, and how far it can be trusted."""

    folder: Path
    difference: float
    """The largest difference of any logit in fp32 from torch's, over `texts` texts or pairs."""
    texts: int
    bytes: int
    """Of the graph."""
    pair: bool
    int8: Int8 | None = None
    """Where 8 bits were asked for; the graph has them only if `accepted`."""


def export(
    folder: str | Path,
    out: str | Path,
    *,
    data: Any = None,
    int8: bool = False,
    max_loss: float = MAX_LOSS,
    **columns: str | None,
) -> Export:
    """Writes a saved model as an ONNX graph, with all it takes to answer without torch.

    Args:
        folder: A folder that Headhunt saved.
        out: Where to write; a new or empty folder. It appears when it is whole.
        data: Texts of the task to compare logits on, labelled where `int8` is asked for; anything that `Task.load`
            takes. Unless given, made-up sentences, and for `int8` the validation rows of the run `folder` came from.
        int8: Whether to store weights in 8 bits, if that costs no more than `max_loss`.
        max_loss: Points of the task's score (of 100) that 8 bits may cost; with more, the graph stays as it was.
        columns: Names of the columns `text`, `text_b` and `label` in `data`, where they are not found by themselves.

    Raises:
        ModelError: If the graph does not give what the model gives; nothing is written then.
    """
    runtime = load_runtime()
    predictor = Predictor.load(folder, device=torch.device("cpu"), precision="fp32")
    rows, source = labelled_rows(predictor, Path(folder), data, columns) if int8 else (None, "")
    texts, texts_b = some_texts(predictor, rows, data, columns)
    measured = None
    with whole(Path(out).absolute()) as partial:
        inputs = write_graph(predictor, partial / GRAPH)
        write_companions(predictor, partial)
        write_card(predictor, partial / CARD, inputs)
        model = runtime.Model(partial)
        difference = compare(predictor, model, texts, texts_b)
        if not difference <= TOLERANCE:
            raise ModelError(
                f"The logits of the graph must be within {TOLERANCE:g} of the model's; found {difference:.2g} over "
                f"{len(texts)} texts. Nothing was written."
            )
        if rows is not None:
            before = score(model, rows)
            quantise(partial / GRAPH, partial / FULL)
            after = score(runtime.Model(partial), rows)
            loss = 100 * (before - after)
            kept, dropped = (GRAPH, FULL) if loss <= max_loss else (FULL, GRAPH)
            (partial / dropped).unlink()
            (partial / kept).replace(partial / GRAPH)
            measured = Int8(DEFAULT_METRIC[model.problem_type], len(rows), source, before, after, loss, kept == GRAPH)
            if measured.accepted:
                (partial / f"{GRAPH}.data").unlink(missing_ok=True)  # what weights of more than 2 GB are put in
        about = {"difference": difference, "int8": asdict(measured) if measured else None}
        write_card(predictor, partial / CARD, inputs, about)
        size = sum(file.stat().st_size for file in partial.glob(f"{GRAPH}*"))
    return Export(Path(out), difference, len(texts), size, predictor.pair, measured)


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
    texts, texts_b = ["a", "a b c d", "a b"], ["b c", "a", "b c d e"]
    batch = predictor.tokenise(texts, texts_b if predictor.pair else None).batch(np.arange(3))
    if siamese(predictor):
        batch.pop("token_type_ids", None)  # the texts are taken apart, so types mean nothing
    with silent(), eager_attention(predictor.model):
        program = torch.onnx.export(
            Logits(predictor.model, list(batch)),
            tuple(batch.values()),
            dynamo=True,
            dynamic_shapes=(tuple({0: "batch", 1: "tokens"} for _ in batch),),
            input_names=list(batch),
            output_names=["logits"],
            opset_version=OPSET,
            verbose=False,
        )
        assert program is not None
        for node in program.model.graph.all_nodes():
            node.metadata_props.clear()  # lines of code and paths of the machine that exported
        program.save(path)
    return list(batch)


@contextlib.contextmanager
def eager_attention(model: PreTrainedModel) -> Iterator[None]:
    """Attention written out, for the time being: what torch's fused one becomes in a graph is slower."""
    usual = model.base_model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(usual)


def quantise(graph: Path, full: Path) -> None:
    """Moves the graph to `full` and puts in its place one whose matrices are in 8 bits.

    Weights of matrix products only, each column with a scale of its own; what they are multiplied with is turned into
    8 bits as it comes. The last layer stays as it is: it is small, and its outputs are the answer.
    """
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    graph.replace(full)
    model = onnx.load(full)
    del model.graph.value_info[:]  # the shapes of what is about to change
    last = [node.name for node in model.graph.node if "logits" in node.output]
    with silent():
        quantize_dynamic(
            model,
            graph,
            op_types_to_quantize=["MatMul", "Gemm"],
            per_channel=True,
            weight_type=QuantType.QInt8,
            nodes_to_exclude=last,
            extra_options={"MatMulConstBOnly": True},
        )


def write_companions(predictor: Predictor, folder: Path) -> None:
    """Writes the tokenizer and what answers."""
    backend = getattr(predictor.tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ModelError("An export needs a tokenizer of the tokenizers library; this model's is written in Python.")
    backend.save(str(folder / "tokenizer.json"))
    shutil.copyfile(Path(__file__).with_name("runtime.py"), folder / "predict.py")


def write_card(predictor: Predictor, path: Path, inputs: Sequence[str], about: Mapping[str, Any] | None = None) -> None:
    """Writes how texts become tokens and logits become answers, and where the model came from."""
    frame = SpecialTokens.of(predictor.tokenizer, predictor.pair)
    card = {
        **predictor.facts,
        "schema": SCHEMA,
        "problem_type": predictor.problem_type,
        "labels": list(predictor.labels),
        "pair": predictor.pair,
        "max_length": predictor.recipe.max_length,
        "truncation": predictor.recipe.truncation,
        "each": siamese(predictor),
        "frame": {"before": frame.before, "between": frame.between, "after": frame.after, "pad": frame.pad},
        "inputs": list(inputs),
        "spec": predictor.spec.to_dict() if predictor.spec else None,
        "onnx": about,
    }
    path.write_text(json.dumps(card, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def siamese(predictor: Predictor) -> bool:
    """Whether the two texts of a pair are read apart."""
    return bool(predictor.spec and predictor.spec.head.siamese)


def labelled_rows(predictor: Predictor, folder: Path, data: Any, columns: dict[str, str | None]) -> tuple[Split, str]:
    """The rows 8 bits are judged on, and where they came from in words."""
    if data is not None:
        problem_type: Any = predictor.problem_type
        return load_labelled(
            data, problem_type=problem_type, labels=predictor.labels, pair=predictor.pair, **columns
        ), "given rows"
    with contextlib.suppress(DataError, RunError):
        task = open_task(RunDirectory(folder.absolute().parent).task, ("validation",))
        if "validation" in task.splits:
            return task.splits["validation"], "the run's validation rows, which the model has learned from"
    raise ModelError("What 8 bits cost is measured on labelled rows; found none beside the model. Give --data FILE.")


def some_texts(
    predictor: Predictor, rows: Split | None, data: Any, columns: dict[str, str | None]
) -> tuple[list[str], list[str] | None]:
    """Texts to compare logits on: the first of the task's own where they are at hand, and made-up ones."""
    if rows is None and data is not None:
        named = {name: column for name, column in columns.items() if name != "label"}
        rows = load_texts(data, pair=predictor.pair, **named)
    made_up = list(SENTENCES)
    texts = made_up + (rows.texts(0, COMPARED) if rows else [])
    if not predictor.pair:
        return texts, None
    second = (rows.texts_b(0, COMPARED) if rows else None) or []
    return texts, made_up[3:] + made_up[:3] + second


def score(model: Any, rows: Split) -> float:
    """The task's score on labelled rows, 1 the best there is."""
    found = model.outputs(rows.texts(), rows.texts_b())
    return measure(model.problem_type, DEFAULT_METRIC[model.problem_type], found, rows.targets)


def compare(predictor: Predictor, model: Any, texts: Sequence[str], texts_b: Sequence[str] | None) -> float:
    """The largest difference of any logit, for texts one by one and in padded batches.

    Raises:
        ModelError: If the runtime cuts a text into other tokens than the model was trained on.
    """
    tokens, rows = predictor.tokenise(texts, texts_b), model.encode(texts, texts_b)
    for i, row in enumerate(rows):
        if tokens.row(i).tolist() != row.ids:
            raise ModelError(
                f"The tokenizer must give the same tokens without transformers; it differs on {texts[i]!r}."
            )
    alone = [[i] for i in range(min(len(rows), 2 * len(SENTENCES)))]
    together = [list(range(start, min(start + 16, len(rows)))) for start in range(0, len(rows), 16)]
    worst = 0.0
    for chosen in alone + together:
        with torch.inference_mode():
            expected = predictor.model(**tokens.batch(np.asarray(chosen))).logits.numpy()
        found = model.logits([rows[i] for i in chosen])
        worst = float(np.maximum(worst, np.abs(found - expected).max()))  # keeps what is not a number
    return worst


def load_runtime() -> ModuleType:
    """The runtime, or what to install."""
    missing = [name for name in ("onnx", "onnxruntime", "onnxscript") if find_spec(name) is None]
    if missing:
        raise ModelError(f'An export needs {" and ".join(missing)}, not found here: pip install "headhunt[onnx]".')
    from headhunt.delivery.onnx import runtime

    return runtime


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """Keeps the exporters from speaking of themselves."""
    loggers = [logging.getLogger("torch.onnx"), logging.getLogger()]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
