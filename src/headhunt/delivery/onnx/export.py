"""Export a model as an ONNX graph with everything it needs to predict without torch.

    OUT/model.onnx        token ids to logits, for any number of texts of any length
    OUT/tokenizer.json
    OUT/headhunt.json     labels, special tokens, truncation, and facts about the model
    OUT/predict.py        a copy of `runtime`: the one file that reads the others

An export appears only if its logits agree with those of the model.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

from headhunt.data import Split, load_labelled, load_texts
from headhunt.delivery.onnx.graph import JoinedTasks, choose_tasks, silent, write_graph
from headhunt.errors import DataError, ModelError
from headhunt.evaluation import DEFAULT_METRIC, apply_thresholds, measure
from headhunt.predictor import CARD, Predictor
from headhunt.run.directory import RunDirectory
from headhunt.run.schema import RunError
from headhunt.run.task import open_task
from headhunt.storage import atomic_directory, write_json
from headhunt.training.tokens import SpecialTokens

GRAPH, FULL_PRECISION = "model.onnx", "full_precision.onnx"
TOLERANCE = 1e-4  # largest allowed difference of a logit, as a fraction of the largest logit if that is above 1
NUMBER_TOLERANCE = 1e-3  # of a predicted number: solved heads add up thousands of terms that nearly cancel
MAX_LOSS = 0.5  # points of the score
COMPARED = 64  # texts of the task on which logits are compared
# Compared for every model: short and long texts, other scripts, and input that is hard for tokenizers.
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
    """The loss of score through weights in 8 bits, measured on labelled rows."""

    metric: str
    rows: int
    source: str
    """Origin of the rows."""
    fp32: float
    int8: float
    loss: float
    """Points of the score (of 100)."""
    accepted: bool


@dataclass(frozen=True)
class Export:
    """A finished export."""

    folder: Path
    difference: float
    """Largest difference of any logit in fp32 from torch's, as a fraction of the largest logit if that is above 1."""
    texts: int
    """Number of texts or pairs compared."""
    bytes: int
    """Size of the graph."""
    pair: bool
    int8: Int8 | None = None
    """Set if 8 bits were requested; the graph has them only if `accepted`."""


def export(
    folder: str | Path,
    out: str | Path,
    *,
    data: Any = None,
    task: str | Sequence[str] | None = None,
    int8: bool = False,
    max_loss: float = MAX_LOSS,
    **columns: str | None,
) -> Export:
    """Write a saved model as an ONNX graph, with everything it needs to predict without torch.

    Args:
        folder: A folder that Headhunt saved.
        out: Folder to write; new or empty. It appears when the export is complete.
        data: Texts of the task to compare logits on, labelled if `int8` is set; anything that `Task.load` takes. By
            default made-up sentences, and for `int8` the validation rows of the run that `folder` belongs to.
        task: Name of a task, or several names, for a model of several tasks. By default all are in the graph, with an
            output each, if all take one text or all take two. The layers that they share are in it once.
        int8: Store weights in 8 bits, if the score drops by at most `max_loss`.
        max_loss: Points of the task's score (of 100) that 8 bits may cost; otherwise the graph stays in 32 bits.
        columns: Names of the columns `text`, `text_b` and `label` in `data`; detected by default.

    Raises:
        ModelError: If the logits of the graph differ from the model's; nothing is written then.
    """
    runtime = load_runtime()
    out = Path(out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ModelError(f"must be a new or empty folder; {out} is not empty.", "out")
    predictor = choose_tasks(Predictor.load(folder, device=torch.device("cpu"), precision="fp32"), task)
    if int8 and isinstance(predictor.model, JoinedTasks):
        raise ModelError("is measured on rows of one task; this model has several. Give one task.", "int8")
    rows, source = labelled_rows(predictor, Path(folder), data, columns) if int8 else (None, "")
    texts, texts_b = comparison_texts(predictor, rows, data, columns)
    measured = None
    with atomic_directory(out.absolute()) as partial:
        inputs = write_graph(predictor, partial / GRAPH)
        write_companions(predictor, partial)
        write_metadata(predictor, partial / CARD, inputs)
        model = runtime.Model(partial)
        difference = compare(predictor, model, texts, texts_b)
        numbers = predictor.problem_type == "regression" or any(not task.labels for task in model.tasks)
        tolerance = NUMBER_TOLERANCE if numbers else TOLERANCE
        if not difference <= tolerance:
            raise ModelError(
                f"The logits of the graph must be within {tolerance:g} of the model's; found {difference:.2g} over "
                f"{len(texts)} texts. Nothing was written."
            )
        if rows is not None:
            measured = try_int8(partial, model, rows, source, max_loss)
        checks = {"difference": difference, "int8": asdict(measured) if measured else None}
        write_metadata(predictor, partial / CARD, inputs, checks)
        size = sum(file.stat().st_size for file in partial.glob(f"{GRAPH}*"))
    return Export(out, difference, len(texts), size, predictor.pair, measured)


def try_int8(folder: Path, model: Any, rows: Split, source: str, max_loss: float) -> Int8:
    """Quantize the graph of an export, and restore it if the score drops by more than `max_loss` points."""
    before = score(model, rows)
    quantize(folder / GRAPH, folder / FULL_PRECISION)
    after = score(load_runtime().Model(folder), rows)
    loss = 100 * (before - after)
    accepted = loss <= max_loss
    if accepted:
        (folder / FULL_PRECISION).unlink()
        (folder / f"{GRAPH}.data").unlink(missing_ok=True)  # weights of more than 2 GB are stored there
    else:
        (folder / FULL_PRECISION).replace(folder / GRAPH)
    return Int8(DEFAULT_METRIC[model.problem_type], len(rows), source, before, after, loss, accepted)


def quantize(graph: Path, full_precision: Path) -> None:
    """Move the graph to `full_precision` and write a graph with weights in 8 bits in its place.

    Only weights of matrix products are quantized, with one scale per column; activations are quantized at run time. The
    last layer of each head is not quantized: it is small, and its outputs are the logits.
    """
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    graph.replace(full_precision)
    model = onnx.load(full_precision)
    del model.graph.value_info[:]  # shapes that are about to change
    last = last_products(model.graph)
    last += [f"{name}_MatMul" for name in last]  # onnxruntime first replaces each Gemm by a MatMul of this name
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


def last_products(graph: Any) -> list[str]:
    """Return the names of the matrix products from whose outputs the logits are computed without another product."""
    makers = {output: node for node in graph.node for output in node.output}
    names, pending, seen = [], ["logits"], set()
    while pending:
        node = makers.get(pending.pop())
        if node is None or node.name in seen:
            continue
        seen.add(node.name)
        if node.op_type in ("Gemm", "MatMul"):
            names.append(node.name)
        else:
            pending += node.input
    return names


def write_companions(predictor: Predictor, folder: Path) -> None:
    """Write the tokenizer and the runtime."""
    backend = getattr(predictor.tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ModelError("The tokenizer must be of the tokenizers library; this model's is written in Python.")
    backend.save(str(folder / "tokenizer.json"))
    shutil.copyfile(Path(__file__).with_name("runtime.py"), folder / "predict.py")


def write_metadata(
    predictor: Predictor, path: Path, inputs: Sequence[str], checks: dict[str, Any] | None = None
) -> None:
    """Write `headhunt.json`.

    Args:
        predictor: The model.
        path: The file to write.
        inputs: Names of the inputs of the graph.
        checks: Results of the comparison with torch.
    """
    from headhunt.delivery.onnx import runtime

    special = SpecialTokens.of(predictor.tokenizer, predictor.pair)
    tasks = predictor.model.tasks if isinstance(predictor.model, JoinedTasks) else []
    metadata = runtime.Metadata(
        problem_type=predictor.problem_type,
        labels=list(predictor.labels),
        pair=predictor.pair,
        max_length=predictor.takes[0],
        truncation=predictor.recipe.truncation,
        siamese=predictor.takes[2],
        special_tokens=runtime.SpecialTokens(
            list(special.before), list(special.between), list(special.after), special.pad
        ),
        inputs=list(inputs),
        tasks=[runtime.TaskOutput(task["name"], task["problem_type"], list(task["labels"])) for task in tasks],
        thresholds=list(predictor.thresholds) if predictor.thresholds else None,
        rejection=None if predictor.rejection is None else runtime.Rejection(**asdict(predictor.rejection)),
        facts={
            **predictor.facts,
            "spec": predictor.spec.to_dict() if predictor.spec else None,
            "onnx": checks,
        },
    )
    write_json(path, metadata.to_dict())


def labelled_rows(predictor: Predictor, folder: Path, data: Any, columns: dict[str, str | None]) -> tuple[Split, str]:
    """Return labelled rows to evaluate 8 bits on, and a description of their origin."""
    if data is not None:
        problem_type: Any = predictor.problem_type
        rows = load_labelled(data, problem_type=problem_type, labels=predictor.labels, pair=predictor.pair, **columns)
        return rows, "given rows"
    with contextlib.suppress(DataError, RunError):
        task = open_task(RunDirectory(folder.absolute().parent).task, ("validation",))
        if "validation" in task.splits and not task.tasks:
            return task.splits["validation"], "the run's validation rows, which the model was trained on"
    raise ModelError(
        "needs labelled rows to measure the loss of score; found none beside the model. Pass data.", "int8"
    )


def comparison_texts(
    predictor: Predictor, rows: Split | None, data: Any, columns: dict[str, str | None]
) -> tuple[list[str], list[str] | None]:
    """Return texts to compare logits on: made-up ones, and the first of the task if there are any."""
    if rows is None and data is not None:
        text_columns = {name: column for name, column in columns.items() if name != "label"}
        rows = load_texts(data, pair=predictor.pair, **text_columns)
    made_up = list(SENTENCES)
    texts = made_up + (rows.texts(0, COMPARED) if rows else [])
    if not predictor.pair:
        return texts, None
    second = (rows.texts_b(0, COMPARED) if rows else None) or []
    return texts, made_up[3:] + made_up[:3] + second


def score(model: Any, rows: Split) -> float:
    """Return the score of a model on labelled rows; 1 is the best."""
    scores = apply_thresholds(model.outputs(rows.texts(), rows.texts_b()), model.thresholds)
    return measure(model.problem_type, DEFAULT_METRIC[model.problem_type], scores, rows.targets)


def compare(predictor: Predictor, model: Any, texts: Sequence[str], texts_b: Sequence[str] | None) -> float:
    """Return the largest difference of any logit, for single texts and for padded batches.

    If there are logits above 1, it is a fraction of the largest: the rounding of 32 bits grows with them.

    Raises:
        ModelError: If the runtime's tokens differ from those that the model was trained on.
    """
    tokens, rows = predictor.tokenise(texts, texts_b), model.encode(texts, texts_b)
    for i, row in enumerate(rows):
        if tokens.row(i).tolist() != row.ids:
            raise ModelError(
                f"The tokenizer must give the same tokens without transformers; they differ for {texts[i]!r}."
            )
    single = [[i] for i in range(min(len(rows), 2 * len(SENTENCES)))]
    batches = [list(range(start, min(start + 16, len(rows)))) for start in range(0, len(rows), 16)]
    largest, scale = 0.0, 1.0
    for chosen in single + batches:
        with torch.inference_mode():
            expected = predictor.model(**tokens.batch(np.asarray(chosen))).logits.numpy()
        logits = model.logits([rows[i] for i in chosen])
        largest = float(np.maximum(largest, np.abs(logits - expected).max()))  # propagates NaN
        scale = max(scale, float(np.abs(expected).max()))
    return largest / scale


def load_runtime() -> ModuleType:
    """Return the runtime.

    Raises:
        ModelError: If a package is missing.
    """
    missing = [name for name in ("onnx", "onnxruntime", "onnxscript") if find_spec(name) is None]
    if missing:
        raise ModelError(f'An export needs {" and ".join(missing)}, not installed: pip install "headhunt[onnx]".')
    from headhunt.delivery.onnx import runtime

    return runtime
