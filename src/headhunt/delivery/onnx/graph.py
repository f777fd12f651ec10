"""Write the graph of a model, of one task or of several that take the same texts."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput

from headhunt.errors import ModelError
from headhunt.modeling.ensemble import HeadhuntEnsembleForSequenceClassification
from headhunt.modeling.model import HeadhuntForSequenceClassification
from headhunt.modeling.multitask import HeadhuntMultiTaskForSequenceClassification
from headhunt.predictor import Predictor

OPSET = 20


class JoinedTasks(nn.Module):
    """Several tasks of a model that take the same texts; their logits are side by side.

    Args:
        model: The model.
        tasks: Names of the tasks.
    """

    def __init__(self, model: HeadhuntMultiTaskForSequenceClassification, tasks: Sequence[str]) -> None:
        super().__init__()
        self.model, self.config = model, model.config
        self.tasks = [model.config.tasks[model.find_task(task)] for task in tasks]

    def forward_tasks(self, **inputs: Tensor) -> tuple[Tensor, ...]:
        """Return the logits of each task."""
        return self.model.forward_tasks(**inputs, tasks=[task["name"] for task in self.tasks])

    def forward(self, **inputs: Tensor) -> SequenceClassifierOutput:
        """Return the logits (batch, outputs of all tasks)."""
        return SequenceClassifierOutput(logits=torch.cat(self.forward_tasks(**inputs), 1))


def choose_tasks(predictor: Predictor, tasks: str | Sequence[str] | None) -> Predictor:
    """Return the model to export: of one task, or of several as one.

    Args:
        predictor: The model that was saved.
        tasks: Name of a task or several; None for a model of a single task, and for all tasks if they take the same
            texts.

    Raises:
        ModelError: If the model does not have these tasks, or they take different texts.
    """
    names = list(dict.fromkeys(predictor.tasks if tasks is None else [tasks] if isinstance(tasks, str) else tasks))
    if len(names) < 2:
        return predictor.for_task(names[0] if names else None)
    models = {name: predictor.for_task(name) for name in names}
    if len({model.pair for model in models.values()}) > 1:
        ways = {kind: [name for name, model in models.items() if model.pair == kind] for kind in (False, True)}
        raise ModelError(
            f"The tasks of one graph must all take one text ({', '.join(ways[False])}) or all take two "
            f"({', '.join(ways[True])}). Export the ones and then the others."
        )
    first = models[names[0]]
    model: Any = JoinedTasks(predictor.model, names)
    return Predictor(
        model,
        predictor.tokenizer,
        problem_type="multi_task",
        labels=(),
        pair=first.pair,
        recipe=first.recipe,
        spec=first.spec,
        facts={**first.facts, "task": predictor.facts.get("task")},
        device=predictor.device,
        precision=predictor.precision,
    )


class Logits(nn.Module):
    """The model with positional tensors as input, and one tensor for each task as output."""

    def __init__(self, model: nn.Module, inputs: Sequence[str]) -> None:
        super().__init__()
        self.model, self.inputs = model, tuple(inputs)

    def forward(self, *tensors: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Return logits (batch, outputs), or those of each task."""
        inputs = dict(zip(self.inputs, tensors, strict=True))
        if isinstance(self.model, JoinedTasks):
            return self.model.forward_tasks(**inputs)
        return self.model(**inputs).logits


def write_graph(predictor: Predictor, path: Path) -> list[str]:
    """Write the graph and return the names of its inputs. Layers that several tasks share are in it once.

    The graph comes from torch.export, not from tracing: a traced graph keeps the example's lengths in its attention
    masks and is silently wrong for any other.
    """
    texts, texts_b = ["a", "a b c d", "a b"], ["b c", "a", "b c d e"]
    batch = predictor.tokenise(texts, texts_b if predictor.pair else None).batch(np.arange(3))
    if not reads_types(predictor.model):
        batch.pop("token_type_ids", None)
    with silent(), eager_attention(predictor.model):
        program = torch.onnx.export(
            Logits(predictor.model, list(batch)),
            tuple(batch.values()),
            dynamo=True,
            dynamic_shapes=(tuple({0: "batch", 1: "tokens"} for _ in batch),),
            input_names=list(batch),
            output_names=output_names(predictor.model),
            opset_version=OPSET,
            verbose=False,
        )
        assert program is not None
        for node in program.model.graph.all_nodes():
            node.metadata_props.clear()  # contains source lines and paths of this machine
        program.save(path)
    return list(batch)


def output_names(model: nn.Module) -> list[str]:
    """Return the names of the outputs of a graph."""
    return [f"logits.{task['name']}" for task in model.tasks] if isinstance(model, JoinedTasks) else ["logits"]


@contextlib.contextmanager
def eager_attention(model: PreTrainedModel | JoinedTasks) -> Iterator[None]:
    """Use eager attention in the block: torch's fused attention gives a slower graph."""
    model = model.model if isinstance(model, JoinedTasks) else model
    previous = model.base_model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(previous)


def reads_types(model: nn.Module) -> bool:
    """Return whether token types matter. Siamese heads encode the two texts separately; word counts have no types."""
    if isinstance(model, JoinedTasks):
        return any(model.model.heads[model.model.find_task(task["name"])].compare is None for task in model.tasks)
    models = model.members if isinstance(model, HeadhuntEnsembleForSequenceClassification) else [model]
    own = [each for each in models if isinstance(each, HeadhuntForSequenceClassification)]
    return len(own) < len(models) or any(each.head.compare is None and not each.words_alone for each in own)


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """Silence the logs and warnings of the exporters in the block."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logging.disable(logging.NOTSET)
