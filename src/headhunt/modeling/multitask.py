"""Transformers model of several tasks: one encoder, whose upper layers may be copied per task, and a head each."""

from __future__ import annotations

import contextlib
import copy
import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput

from .architecture import Head, from_dict, one_of, require
from .configuration import HeadhuntConfig
from .model import EncoderModel, HeadhuntForSequenceClassification, loss_of, split_pairs

MOST_TASKS, MOST_LAYERS = 64, 1000
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
CLASSIFICATION, REGRESSION = "single_label_classification", "regression"


class HeadhuntMultiTaskConfig(HeadhuntConfig):
    """An encoder's configuration together with the tasks.

    Args:
        tasks: For each task its `name`, `problem_type`, `labels` (empty for a number), `pair` and `head`.
        task_layers: Number of layers nearest the output that every task has a copy of.
        kwargs: Fields of `HeadhuntConfig`.
    """

    model_type = "headhunt_multitask"

    def __init__(self, tasks: Sequence[dict[str, Any]] = (), task_layers: int = 0, **kwargs: Any) -> None:
        self.tasks, self.task_layers = _check_tasks(tasks), task_layers
        require(
            type(task_layers) is int and 0 <= task_layers <= MOST_LAYERS,
            f"task_layers must be a whole number from 0 to {MOST_LAYERS}; found {task_layers!r:.80}.",
        )
        super().__init__(**kwargs)

    def of_task(self, number: int) -> HeadhuntConfig:
        """Return the configuration of the model of one task alone."""
        task = self.tasks[number]
        labels = task["labels"] or ["score"]
        return HeadhuntConfig(
            encoder=self.encoder,
            head=task["head"],
            separator=self.separator,
            separators=self.separators,
            pad_token_id=self.pad_token_id,
            problem_type=task["problem_type"],
            id2label=dict(enumerate(labels)),
            label2id={label: i for i, label in enumerate(labels)},
        )


def _check_tasks(tasks: Any) -> list[dict[str, Any]]:
    """Return the tasks, which may come from a damaged file."""
    if not isinstance(tasks, list | tuple) or len(tasks) > MOST_TASKS:
        found = len(tasks) if isinstance(tasks, list | tuple) else f"{tasks!r:.80}"
        raise ValueError(f"tasks must be a list of at most {MOST_TASKS} tasks; found {found}.")
    names = []
    for number, task in enumerate(tasks):
        where = f"tasks[{number}]"
        require(
            isinstance(task, dict) and task.keys() >= {"name", "problem_type", "labels", "pair", "head"},
            f"{where} must have a name, a problem_type, labels, pair and head; found {task!r:.80}.",
        )
        labels, kind = task["labels"], task["problem_type"]
        require(
            isinstance(task["name"], str) and bool(NAME.fullmatch(task["name"])),
            f"The name of {where} must be letters, digits, dots, dashes or underscores.",
        )
        require(
            isinstance(labels, list | tuple) and all(isinstance(label, str) for label in labels),
            f"The labels of {where} must be a list of strings; found {labels!r:.80}.",
        )
        require(len(set(labels)) == len(labels), f"Every label of {where} must be different; found {labels!r:.80}.")
        require(
            kind == (CLASSIFICATION if labels else REGRESSION),
            f"{where} must be {CLASSIFICATION} with labels or {REGRESSION} without; found {kind!r:.80}.",
        )
        require(isinstance(task["pair"], bool), f"pair of {where} must be true or false; found {task['pair']!r:.80}.")
        head = from_dict(Head, task["head"], f"head of {where}")
        require(
            head.windows is None and head.words is None and (head.siamese is None or task["pair"]),
            f"The head of {where} must compare two texts only if it gets two, and have no windows or words.",
        )
        names.append(task["name"])
    require(len(set(names)) == len(names), f"Every task must have its own name; found {', '.join(names):.200}.")
    return list(tasks)


class TaskSwitch:
    """The task that layers of an encoder are used for."""

    task = 0


class TaskLayer(nn.Module):
    """A layer of the encoder that every task has a copy of; it stands in the place of the layer.

    Args:
        layer: The layer.
        tasks: Number of tasks.
        switch: Says which copy is used.
    """

    def __init__(self, layer: nn.Module, tasks: int, switch: TaskSwitch) -> None:
        super().__init__()
        self.copies = nn.ModuleList([layer, *(copy.deepcopy(layer) for _ in range(tasks - 1))])
        self.switch = switch

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:  # some families read attributes of their layers
            copies: Any = super().__getattr__("copies")
            return getattr(copies[0], name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the output of the copy of the current task."""
        return self.copies[self.switch.task](*args, **kwargs)


class HeadhuntMultiTaskForSequenceClassification(EncoderModel):
    """One encoder and a head for each task.

    A batch has rows of one task. A pair is given as the tokenizer joins it, also for siamese heads.

    Args:
        config: Configuration of the encoder and the tasks.
        encoder: Pretrained encoder; without it, one with random weights is created from the configuration.
    """

    config_class = HeadhuntMultiTaskConfig

    def __init__(self, config: HeadhuntMultiTaskConfig, encoder: PreTrainedModel | None = None) -> None:
        require(bool(config.tasks), "A model of several tasks must have tasks; found none.")
        super().__init__(config, encoder)
        self.switch = TaskSwitch()
        if config.task_layers:
            layers = find_layers(self.encoder)
            if layers is None or config.task_layers > len(layers):
                raise ValueError(f"This encoder does not have {config.task_layers} layers that can be copied.")
            for number in range(len(layers) - config.task_layers, len(layers)):
                layers[number] = TaskLayer(layers[number], len(config.tasks), self.switch)
        self.heads = nn.ModuleList(self.make_head(config.of_task(number)) for number in range(len(config.tasks)))
        self.post_init()

    def find_task(self, task: int | str | Tensor) -> int:
        """Return the number of a task from its name or number."""
        if not isinstance(task, str):
            return int(task)
        names = [each["name"] for each in self.config.tasks]
        one_of(task, names, "task")
        return names.index(task)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        task: int | str | Tensor = 0,
        labels: Tensor | None = None,
        **kwargs: Any,
    ) -> SequenceClassifierOutput:
        """Return logits (batch, outputs of the task), and the loss if labels are given.

        Args:
            input_ids: Token ids (batch, tokens); a pair as the tokenizer joins it.
            attention_mask: 1 for real tokens, 0 for padding (batch, tokens).
            token_type_ids: 1 in the second text of a pair (batch, tokens), for encoders with token types.
            task: Name or number of the task.
            labels: Class ids (batch,) or numbers (batch,).
            kwargs: Ignored; accepted for callers that pass more arguments.
        """
        number = self.find_task(task)
        (logits,) = self._logits([number], input_ids, attention_mask, token_type_ids)
        problem_type = self.config.tasks[number]["problem_type"]
        loss = None if labels is None else loss_of(problem_type, logits, labels)
        return SequenceClassifierOutput(loss=loss, logits=logits)

    def forward_tasks(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        tasks: Sequence[int | str] | None = None,
    ) -> tuple[Tensor, ...]:
        """Return the logits of several tasks for the same texts. The layers that they share run once.

        Args:
            input_ids: Token ids (batch, tokens), as for `forward`.
            attention_mask: 1 for real tokens, 0 for padding (batch, tokens).
            token_type_ids: 1 in the second text of a pair (batch, tokens).
            tasks: Names or numbers of tasks; all by default.
        """
        numbers = [self.find_task(task) for task in (range(len(self.heads)) if tasks is None else tasks)]
        found: dict[int, Tensor] = {}
        for siamese in (False, True):  # a siamese head reads each text of a pair by itself
            same = [number for number in numbers if (self.heads[number].compare is not None) == siamese]
            if same:
                logits = self._logits(same, input_ids, attention_mask, token_type_ids)
                found |= dict(zip(same, logits, strict=True))
        return tuple(found[number] for number in numbers)

    def outputs_of_tasks(self, inputs: dict[str, Tensor], tasks: Sequence[int | str]) -> Tensor:
        """Return probabilities and numbers of several tasks for the same texts, side by side (batch, all outputs)."""
        found = zip(tasks, self.forward_tasks(**inputs, tasks=tasks), strict=True)
        labels = {task: self.config.tasks[self.find_task(task)]["labels"] for task in tasks}
        return torch.cat([x.float().softmax(-1) if labels[task] else x.float() for task, x in found], 1)

    def _logits(self, tasks: list[int], ids: Tensor, mask: Tensor | None, types: Tensor | None) -> list[Tensor]:
        """Return the logits of tasks whose heads are all siamese or all not."""
        heads = [self.heads[number] for number in tasks]
        mask = torch.ones_like(ids) if mask is None else mask
        if heads[0].compare is not None:
            ids, mask = split_pairs(ids, mask, self.config)
            types = None
        given = {"token_type_ids": types} if self.takes_types else {}
        all_layers = any(bool(head.several_layers) for head in heads)
        logits: list[Tensor] = []
        outputs: Any = None
        repeated = len(tasks) > 1 and self.config.task_layers > 0
        with _computed_once(self._shared_modules() if repeated else ()):
            for number, head in zip(tasks, heads, strict=True):
                if outputs is None or self.config.task_layers:
                    self.switch.task = number
                    outputs = self.encoder(input_ids=ids, attention_mask=mask, output_hidden_states=all_layers, **given)
                below = outputs.hidden_states[:-1] if head.several_layers else ()
                states = (*below, outputs.last_hidden_state)  # see HeadhuntForSequenceClassification.classify
                logits.append(head(states, mask.bool()))
        return logits

    def _shared_modules(self) -> list[nn.Module]:
        """Return the embeddings and the layers below those that are copied."""
        embeddings = [module for name, module in self.encoder.named_children() if "embed" in name]
        return [*embeddings, *(layer for layer in find_layers(self.encoder) or [] if not isinstance(layer, TaskLayer))]

    @property
    def most_outputs(self) -> int:
        """Number of outputs of the task with the most."""
        return max(len(task["labels"]) or 1 for task in self.config.tasks)

    def activate(self, logits: Tensor, tasks: Tensor) -> Tensor:
        """Return probabilities, or numbers, from logits (rows, most outputs) of rows of these tasks; the rest is 0."""
        outputs = torch.zeros(len(logits), self.most_outputs, device=logits.device)
        for number in tasks.unique().tolist():
            labels, rows = self.config.tasks[number]["labels"], (tasks == number).nonzero(as_tuple=True)[0]
            found = logits[rows, : len(labels) or 1]
            outputs[rows, : found.shape[1]] = found.softmax(-1) if labels else found
        return outputs

    def for_task(self, task: int | str) -> HeadhuntForSequenceClassification:
        """Return the model of one task. It shares its weights with this model, and loads and saves like any other."""
        number = self.find_task(task)
        tensors = [*self.encoder.parameters(), *self.encoder.buffers()]
        encoder = copy.deepcopy(self.encoder, {id(tensor): tensor for tensor in tensors})
        layers = find_layers(encoder)
        for position, layer in enumerate(layers or []):
            if isinstance(layer, TaskLayer) and layers is not None:
                layers[position] = layer.copies[number]
        model = HeadhuntForSequenceClassification(self.config.of_task(number), encoder)
        head: Any = self.heads[number]
        model.head = head
        return model.to(self.device).train(self.training)


HeadhuntMultiTaskConfig.register_for_auto_class()
HeadhuntMultiTaskForSequenceClassification.register_for_auto_class("AutoModelForSequenceClassification")


@contextlib.contextmanager
def _computed_once(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Let each module compute its output once in the block, and return the same again in later passes."""
    earlier = [vars(module).get("forward") for module in modules]
    for module in modules:
        module.forward = _remembering(module.forward)
    try:
        yield
    finally:
        for module, forward in zip(modules, earlier, strict=True):
            del module.forward
            if forward is not None:
                module.forward = forward


def _remembering(forward: Any) -> Any:
    outputs: list[Any] = []

    def compute(*args: Any, **kwargs: Any) -> Any:
        if not outputs:
            outputs.append(forward(*args, **kwargs))
        return outputs[0]

    return compute


def find_layers(encoder: nn.Module) -> nn.ModuleList | None:
    """Return the list of the encoder's layers, lowest first; None if all depths share one (ALBERT)."""
    depth = encoder.config.num_hidden_layers  # type: ignore[union-attr]
    lists = [module for module in encoder.modules() if isinstance(module, nn.ModuleList)]
    return next((layers for layers in lists if len(layers) == depth), None)
