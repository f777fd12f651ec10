"""Train the embeddings of the tokens that occur in the training texts, and leave the others alone.

The table of token embeddings is often half of an encoder's weights, and a few hundred texts have a tenth of its tokens.
Trained as a whole, it would take much of a step (gradients, their norm, AdamW) and of a checkpoint, although the other
rows receive nothing but weight decay.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from headhunt.modeling.build import has_own_code
from headhunt.training.tokens import Tokens

LARGEST_SHARE = 0.75  # of the table; above it, nothing is saved


class UsedTokens:
    """The trained rows of a table of token embeddings.

    In training mode the model reads them within `replace`, in evaluation mode the table, which `write` updates.

    Attributes:
        rows: The trained parameter, (used tokens, width).
        name: Name of the parameter of the complete table in the model.

    Args:
        table: The token embeddings of a model.
        name: Name of their parameter.
        used: Ids of the tokens that batches may have, in ascending order.
    """

    def __init__(self, table: nn.Embedding, name: str, used: np.ndarray) -> None:
        device = table.weight.device
        self.table, self.name = table, name
        self._used = torch.as_tensor(used, dtype=torch.long, device=device)
        # The place of another token is not valid, so that the lookup would fail.
        self._places = torch.full((table.num_embeddings,), -1, dtype=torch.long, device=device)
        self._places[self._used] = torch.arange(len(used), device=device)
        self.rows = nn.Parameter(table.weight.detach()[self._used])
        pad = table.padding_idx  # its row has no gradient
        self._pad = int(np.searchsorted(used, pad)) if pad is not None and pad in used else None

    @classmethod
    def find(cls, model: PreTrainedModel, tokens: Tokens) -> UsedTokens | None:
        """Return the used rows of a model's table; None if they are not trained, too many, or used in another place.

        An encoder that comes with its own code may read its table in any way, so nothing is replaced.
        """
        if has_own_code(model.base_model):
            return None
        table, special = model.base_model.get_input_embeddings(), tokens.special
        if type(table) is not nn.Embedding or not table.weight.requires_grad or table.max_norm is not None:
            return None
        names = [name for name, each in model.named_parameters(remove_duplicate=False) if each is table.weight]
        added = [*special.before, *special.between, *special.after, special.pad]
        used = np.union1d(tokens.ids, added)
        if len(names) != 1 or len(used) > LARGEST_SHARE * table.num_embeddings:
            return None
        return cls(table, names[0], used)

    @contextmanager
    def replace(self) -> Iterator[None]:
        """Let the model read the trained rows in training mode, within the context."""
        table, read_all = self.table, self.table.forward

        def forward(ids: Tensor) -> Tensor:
            if not table.training:
                return read_all(ids)
            return functional.embedding(self._places[ids], self.rows, self._pad)

        table.forward = forward  # type: ignore[method-assign,assignment]
        try:
            yield
        finally:
            del table.forward

    def write(self) -> None:
        """Write the trained rows into the table."""
        with torch.no_grad():
            self.table.weight[self._used] = self.rows
