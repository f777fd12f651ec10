"""Transformers model of several tasks: one encoder, whose upper layers may be copied per task, and a head each."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModel, PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput

from .configuration import HeadhuntConfig
from .heads import HeadModule
from .model import HeadhuntForSequenceClassification, loss_of, split_pairs, without_pooler


class HeadhuntMultiTaskConfig(HeadhuntConfig):
    """An encoder's configuration together with the tasks.

    Args:
        tasks: For each task its `name`, `problem_type`, `labels` (empty for a number), `pair` and `head`.
        task_layers: Number of layers nearest the output that every task has a copy of.
        kwargs: Fields of `HeadhuntConfig`.
    """

    model_type = "headhunt_multitask"

    def __init__(self, tasks: Sequence[dict[str, Any]] = (), task_layers: int = 0, **kwargs: Any) -> None:
        self.tasks, self.task_layers = list(tasks), task_layers
        for task in self.tasks:
            names = [task["name"], task["problem_type"], *task["labels"]]
            if not all(isinstance(name, str) for name in names) or not isinstance(task["pair"], bool):
                raise ValueError("A task must have a name, a problem_type, labels that are strings, and pair.")
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


class HeadhuntMultiTaskForSequenceClassification(PreTrainedModel):
    """One encoder and a head for each task.

    A batch has rows of one task. A pair is given as the tokenizer joins it, also for siamese heads.

    Args:
        config: Configuration of the encoder and the tasks.
        encoder: Pretrained encoder; without it, one with random weights is created from the configuration.
    """

    config_class = HeadhuntMultiTaskConfig
    base_model_prefix = "encoder"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_attention_backend = True

    def __init__(self, config: HeadhuntMultiTaskConfig, encoder: PreTrainedModel | None = None) -> None:
        super().__init__(config)
        encoder_config = config.encoder_config if encoder is None else encoder.config
        self.encoder = without_pooler(encoder or AutoModel.from_config(encoder_config, trust_remote_code=False))
        self.switch = TaskSwitch()
        if config.task_layers:
            layers = find_layers(self.encoder)
            if layers is None or not 0 <= config.task_layers <= len(layers):
                raise ValueError(f"This encoder does not have {config.task_layers} layers that can be copied.")
            for number in range(len(layers) - config.task_layers, len(layers)):
                layers[number] = TaskLayer(layers[number], len(config.tasks), self.switch)
        self.heads = nn.ModuleList(
            HeadModule(
                config.of_task(number).architecture,
                width=encoder_config.hidden_size,
                states=encoder_config.num_hidden_layers + 1,
                outputs=max(1, len(task["labels"])),
            )
            for number, task in enumerate(config.tasks)
        )
        self.takes_types = "token_type_ids" in inspect.signature(self.encoder.forward).parameters
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """Do nothing: the encoder and the heads initialise themselves."""

    def find_task(self, task: int | str | Tensor) -> int:
        """Return the number of a task from its name or number."""
        if not isinstance(task, str):
            return int(task)
        names = [each["name"] for each in self.config.tasks]
        if task not in names:
            raise ValueError(f"task must be one of {', '.join(names)}; found {task!r}.")
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
        head, mask = self.heads[number], torch.ones_like(input_ids) if attention_mask is None else attention_mask
        if head.compare is not None:
            input_ids, mask = split_pairs(input_ids, mask, self.config)
            token_type_ids = None
        given = {"token_type_ids": token_type_ids} if self.takes_types else {}
        self.switch.task = number
        outputs = self.encoder(
            input_ids=input_ids, attention_mask=mask, output_hidden_states=head.several_layers, **given
        )
        states = outputs.hidden_states if head.several_layers else (outputs.last_hidden_state,)
        logits = head(states, mask.bool())
        problem_type = self.config.tasks[number]["problem_type"]
        loss = None if labels is None else loss_of(problem_type, logits, labels)
        return SequenceClassifierOutput(loss=loss, logits=logits)

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


def find_layers(encoder: nn.Module) -> nn.ModuleList | None:
    """Return the list of the encoder's layers, lowest first; None if all depths share one (ALBERT)."""
    depth = encoder.config.num_hidden_layers  # type: ignore[union-attr]
    lists = [module for module in encoder.modules() if isinstance(module, nn.ModuleList)]
    return next((layers for layers in lists if len(layers) == depth), None)
