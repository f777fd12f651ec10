"""Cache the activations of a frozen encoder on disk, shared by all workers of a machine.

A candidate that freezes the embeddings and the lowest k layers is trained from the input of layer k. `ActivationCache`
stores that input with 16 bits, memory-mapped, keyed by content and within a budget of bytes. `headhunt.training.attach`
lets a model read it.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoModel

from headhunt.modeling.build import embeddings_of, hash_weights, layers_of
from headhunt.modeling.model import without_pooler
from headhunt.modeling.pretrained import loading_errors, quiet
from headhunt.storage import (
    atomic_directory,
    directory_size,
    hold_lock,
    mark_used,
    prune_cache,
    remove,
    sweep_partial,
)
from headhunt.training.device import autocast, pick_device
from headhunt.training.tokens import Tokens, by_length

SCHEMA = 2
BATCH_SIZE = 64
BUDGET = 4 << 30  # default bytes of all caches of a machine; never more than a fifth of the free disk
ALL_LAYERS_FRACTION = 0.25  # every layer is stored in one pass if that takes at most this fraction of the budget
SMALLEST_SAMPLE = 0.1  # a smaller fraction of the rows is not stored
LARGEST_HALF = 6e4  # the range of float16


class FrozenEncoder:
    """A pretrained encoder that is not trained and returns the inputs of its layers.

    Args:
        encoder: Hugging Face model name or local folder.
        device: Device to run on; the fastest available by default.
        precision: "auto", "fp32" or "bf16", as in training.
        trust_remote_code: Allow code that comes with the encoder to run.
    """

    def __init__(
        self,
        encoder: str,
        *,
        device: torch.device | None = None,
        precision: str = "auto",
        trust_remote_code: bool = False,
    ) -> None:
        self.device, self.precision = device or pick_device(), precision
        with quiet(), loading_errors(encoder):
            loaded = AutoModel.from_pretrained(encoder, dtype=torch.float32, trust_remote_code=trust_remote_code)
        self.model = without_pooler(loaded).to(self.device).eval()
        self.depth = int(self.model.config.num_hidden_layers)
        layers = layers_of(self.model)
        # One layer that all depths share (ALBERT) cannot be skipped for some of them.
        self.layers = layers if len(layers) == self.depth else []
        self.returns_tuples = False  # layers of some families return their output in a tuple

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the weights, equal for equal encoders."""
        return hash_weights(self.model, SCHEMA, self.precision)

    def states(self, inputs: Mapping[str, Tensor], layers: Sequence[int]) -> dict[int, Tensor]:
        """Return the input of each of these layers (batch, tokens, width).

        Args:
            inputs: A batch of tokens.
            layers: Layer numbers; `depth` stands for the output of the last layer.
        """
        captured: dict[int, Tensor] = {}

        def make_hook(number: int) -> Any:
            def capture(module: nn.Module, args: Any, output: Any) -> None:
                self.returns_tuples = isinstance(output, tuple) if number else self.returns_tuples
                captured[number] = output[0] if isinstance(output, tuple) else output
                if number == max(layers):
                    raise _CompleteError  # the layers above are not needed

            return capture

        modules = {0: embeddings_of(self.model)[-1], **{i + 1: layer for i, layer in enumerate(self.layers)}}
        handles = [modules[number].register_forward_hook(make_hook(number)) for number in layers]
        try:
            with torch.inference_mode(), autocast(self.device, self.precision):
                self.model(**{name: x.to(self.device) for name, x in inputs.items()})
        except _CompleteError:
            pass
        finally:
            for handle in handles:
                handle.remove()
        return captured


class _CompleteError(Exception):
    """Raised to end a forward pass after the last layer that is needed."""


class _RangeError(Exception):
    """Raised if activations exceed the range of float16."""


class StoppedError(Exception):
    """Raised if a stop is requested while activations are computed."""


class ActivationCache:
    """Stored activations of a fixed set of token rows.

    Args:
        encoder: The frozen encoder.
        tokens: The rows. For a siamese head, each text alone.
        root: Directory of all caches; they share one budget.
        budget: Maximum bytes of all caches; BUDGET by default.
    """

    def __init__(self, encoder: FrozenEncoder, tokens: Tokens, root: Path, budget: int | None = None) -> None:
        self.encoder, self.tokens = encoder, tokens
        digest = hashlib.blake2b(encoder.fingerprint.encode(), digest_size=16)
        digest.update(np.ascontiguousarray(tokens.ids).tobytes())
        digest.update(np.ascontiguousarray(tokens.ends).tobytes())
        digest.update(repr((tokens.special, tokens.firsts is None)).encode())
        self.root = root
        self.folder = root / digest.hexdigest()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.stop: Callable[[], bool] = lambda: False
        """Called while activations are computed; true ends the computation with a `StoppedError`."""
        self.budget = min(BUDGET, shutil.disk_usage(root).free // 5) if budget is None else budget
        self._layers: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self._refused: set[int] = set()

    @cached_property
    def rows(self) -> dict[bytes, int]:
        """Row numbers by token ids."""
        return {self.tokens.row(i).tobytes(): i for i in range(len(self.tokens))}

    def nearest(self, layer: int) -> int:
        """Return the highest layer up to `layer` whose input is stored; 0 if there is none.

        Missing activations are computed if they fit into the budget. Otherwise a lower layer that is stored already is
        used, or else a sample of the rows.
        """
        mark_used(self.folder)  # the least recently used cache is removed first
        if not self.encoder.layers:
            return 0
        if self.load(layer) is not None:
            return layer
        return next((lower for lower in range(layer - 1, 0, -1) if self._read(lower) is not None), 0)

    def has(self, layers: Sequence[int]) -> bool:
        """Return True if all these layers are stored, after computing those that fit into the budget."""
        return all(self.load(layer) is not None for layer in layers)

    def fill(self, layer: int, texts: Sequence[bytes], positions: Iterable[int], out: np.ndarray) -> list[int]:
        """Copy the activations of texts into `out` (texts, tokens, width).

        Args:
            layer: A stored layer.
            texts: Token ids of each text.
            positions: Positions of the texts to copy.
            out: Array to fill.

        Returns:
            Positions of those that are not stored.
        """
        stored = self.load(layer)
        assert stored is not None
        values, ends = stored
        missing = []
        for position in positions:
            row = self.rows.get(texts[position], -1)
            start, end = (ends[row], ends[row + 1]) if row >= 0 else (0, 0)
            if start == end:
                missing.append(position)
            else:
                out[position, : end - start] = values[start:end]
        return missing

    def load(self, layer: int) -> tuple[np.ndarray, np.ndarray] | None:
        """Return a layer's values (tokens, width) and the boundaries of its rows, computing them if they fit.

        Returns None if the layer is not stored and does not fit into the budget.
        """
        stored = self._read(layer)
        if stored is None and layer not in self._refused:
            with suppress(OSError):  # the disk is full, or another process has removed this cache
                lock = hold_lock(self.folder / "lock", timeout=-1)
                try:
                    sweep_partial(self.folder)  # left behind by a worker that died
                    if self._read(layer) is None:
                        self._compute(layer)
                finally:
                    lock.release()
                stored = self._read(layer)
            if stored is None:
                self._refused.add(layer)
        return stored

    def _read(self, layer: int) -> tuple[np.ndarray, np.ndarray] | None:
        if layer not in self._layers:
            path = self.folder / str(layer)
            if not path.exists():
                return None
            try:
                values = np.load(path / "values.npy", mmap_mode="r", allow_pickle=False)
                ends = np.load(path / "ends.npy", allow_pickle=False)
                if ends.shape != (len(self.tokens) + 1,) or ends[-1] != len(values):
                    raise ValueError("the number of rows differs")
                returns_tuples = bool(json.loads((path / "about.json").read_text())["returns_tuples"])
            except (OSError, ValueError, EOFError, KeyError, TypeError):
                remove(path)  # cut or changed, such as by a power cut: it is computed again
                return None
            self._layers[layer] = values, ends
            if layer:  # embeddings say nothing about layers
                self.encoder.returns_tuples = returns_tuples
        return self._layers[layer]

    def _compute(self, layer: int) -> None:
        """Compute and store a layer, together with all others if the budget allows, or a sample of its rows."""
        lengths = self.tokens.lengths
        width = self.encoder.states(self.tokens.batch(np.argsort(lengths)[:1]), [layer])[layer].shape[-1]
        layer_size = int(lengths.sum()) * width * 2
        layers = [number for number in range(self.encoder.depth + 1) if not (self.folder / str(number)).exists()]
        if layer_size * len(layers) > ALL_LAYERS_FRACTION * self.budget:
            layers = [layer]
        left = self.budget - directory_size(self.folder) - layer_size * len(layers)
        prune_cache(self.root, max_bytes=left, keep=self.folder)
        free = self.budget - directory_size(self.root)
        rows = np.arange(len(self.tokens))
        if layer_size * len(layers) > free:
            if any((self.folder / str(lower)).exists() for lower in range(layer)):
                return  # the model starts from the lower layer
            layers = [layer]
            fraction = max(free, 0) / layer_size
            if fraction < SMALLEST_SAMPLE:
                return
            rows = np.sort(np.random.default_rng(0).permutation(len(rows))[: int(len(rows) * min(fraction, 1.0))])
        with suppress(_RangeError):  # no layer of this encoder is stored: 16 bits are not enough
            self._write(rows, layers)

    def _write(self, rows: np.ndarray, layers: Sequence[int]) -> None:
        """Compute the activations of rows and store each layer in a directory that appears when it is complete."""
        lengths = self.tokens.lengths
        sizes = np.zeros(len(lengths), np.int64)
        sizes[rows] = lengths[rows]
        ends = np.concatenate([[0], np.cumsum(sizes)])
        with ExitStack() as stack:
            folders = {layer: stack.enter_context(atomic_directory(self.folder / str(layer))) for layer in layers}
            stored: dict[int, np.ndarray] = {}
            for positions in by_length(lengths[rows], BATCH_SIZE):
                if self.stop():
                    raise StoppedError
                chosen = rows[positions]
                for layer, state in self.encoder.states(self.tokens.batch(chosen), layers).items():
                    values = state.float().cpu().numpy()
                    if np.abs(values).max() > LARGEST_HALF:
                        raise _RangeError
                    if layer not in stored:
                        shape = (int(ends[-1]), values.shape[-1])
                        path = folders[layer] / "values.npy"
                        stored[layer] = np.lib.format.open_memmap(path, "w+", np.float16, shape)
                    for line, row in enumerate(chosen):
                        stored[layer][ends[row] : ends[row + 1]] = values[line, : lengths[row]]
            about = json.dumps({"schema": SCHEMA, "returns_tuples": self.encoder.returns_tuples})
            for layer, file in stored.items():
                file.flush()  # type: ignore[attr-defined]
                np.save(folders[layer] / "ends.npy", ends)
                (folders[layer] / "about.json").write_text(about)
