"""Train an encoder further on texts without labels: a fraction of the tokens is masked, and the model predicts them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from headhunt.errors import ModelError
from headhunt.modeling.masked import set_frequencies
from headhunt.spec import Recipe
from headhunt.training.device import autocast, set_seed
from headhunt.training.head_init import TrainingRows
from headhunt.training.loop import Training
from headhunt.training.objectives import Objective, Perturbation
from headhunt.training.tokens import Tokens

MASKED = 0.15  # fraction of the tokens that are predicted
REPLACED, RANDOM = 0.8, 0.1  # of these, by the mask token and by a random token; the rest stays as it is
HEAD_FIRST = 0.1  # fraction of the steps that train a new head alone, whose gradients would harm the encoder


class MaskedTraining(Training):
    """A training run on masked tokens. It is stopped, saved and resumed as any other.

    Args:
        model: A model of `build_masked`.
        new_head: Whether its head has random weights.
        tokens: Tokens of the texts; each has at least one that is not special.
        tokenizer: The tokenizer of the encoder.
        recipe: Training hyperparameters.
        options: Seed, device and precision; see `Training`.
    """

    def __init__(
        self, model: Any, new_head: bool, tokens: Tokens, tokenizer: Any, recipe: Recipe, **options: Any
    ) -> None:
        # The targets are drawn with every batch, so there are none to prepare.
        super().__init__(model, TrainingRows(tokens, np.zeros(0), Objective("regression")), recipe, **options)
        self._new_head = new_head
        if new_head:
            counts = np.bincount(tokens.ids)
            counts[[each for each in tokenizer.all_special_ids if each < len(counts)]] = 0  # they are never predicted
            set_frequencies(model, counts)
        self._mask = mask_token(tokenizer)
        self._special = np.unique(tokenizer.all_special_ids)
        self._vocabulary = min(len(tokenizer), model.base_model.get_input_embeddings().num_embeddings)

    def _find_used_tokens(self) -> None:
        """Train the complete table: random tokens replace some, and the output layer reads it too."""

    def _step(self, batches: list[np.ndarray], perturbation: Perturbation | None) -> Tensor:
        if not (self._new_head and self.step < HEAD_FIRST * self.steps):
            return super()._step(batches, perturbation)
        self.model.base_model.requires_grad_(False)
        try:
            return super()._step(batches, perturbation)
        finally:
            self.model.base_model.requires_grad_(True)

    def _share(self, part: np.ndarray, rows: np.ndarray) -> float:
        return len(part) / len(rows)

    def _losses(self, rows: np.ndarray, number: int, perturbation: Perturbation | None) -> tuple[Tensor, None]:
        randomness = np.random.SeedSequence([self.seed, self.step, number])
        batch = self.tokens.batch(rows)
        ids = batch["input_ids"].numpy()
        chosen, replaced = mask_tokens(
            ids, self._special, self._mask, self._vocabulary, np.random.default_rng(randomness)
        )
        labels, places = torch.from_numpy(ids[chosen]).to(self.device), torch.from_numpy(chosen).to(self.device)
        batch["input_ids"] = torch.from_numpy(replaced)
        set_seed(int(randomness.generate_state(1, np.uint64)[0] >> np.uint64(1)), self.device)

        def select(module: nn.Module, inputs: object, output: Any) -> Any:
            # The vocabulary is large: logits of tokens that are not predicted would take most of the time.
            return type(output)(last_hidden_state=output[0][places][None])

        handle = self.model.base_model.register_forward_hook(select)
        try:
            with autocast(self.device, self.precision):
                logits = self.model(**{name: x.to(self.device) for name, x in batch.items()}).logits
        finally:
            handle.remove()
        return functional.cross_entropy(logits[0].float(), labels), None


def mask_token(tokenizer: Any) -> int:
    """Return the token that stands for a masked one: the mask token, or that of unknown words if there is none.

    Raises:
        ModelError: If the tokenizer has neither.
    """
    for token in (tokenizer.mask_token_id, tokenizer.unk_token_id):
        if token is not None:
            return int(token)
    raise ModelError("The encoder's tokenizer must have a mask token to be trained further; it has none.")


def mask_tokens(
    ids: np.ndarray, special: Sequence[int] | np.ndarray, mask: int, vocabulary: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Draw the tokens of a batch that are predicted, at least one, and replace them as BERT does.

    Args:
        ids: Token ids (texts, tokens), padded.
        special: Ids of special tokens, which are never predicted.
        mask: Id of the mask token.
        vocabulary: Number of tokens to draw random ones from.
        rng: Source of randomness.

    Returns:
        True for tokens that are predicted, and the ids that the model reads.
    """
    possible = ~np.isin(ids, special)
    draws = np.where(possible, rng.random(ids.shape), 1.0)
    chosen = possible & (draws < max(MASKED, draws.min() + 1e-12))
    kind = rng.random(ids.shape)
    replaced = np.where(chosen & (kind < REPLACED), mask, ids)
    random = chosen & (kind >= REPLACED) & (kind < REPLACED + RANDOM)
    return chosen, np.where(random, rng.integers(0, vocabulary, ids.shape), replaced)
