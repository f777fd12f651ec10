"""Cache the activations of frozen layers on disk, shared by all workers of a machine.

A candidate that freezes the embeddings and the lowest k layers is trained from the input of layer k. `ActivationCache`
stores that input (16 bit, memory-mapped, keyed by content, under a byte budget). `attach` replaces the frozen part of a
model with the stored values; the model's own code runs unchanged above it. Rows that are not stored are computed, so an
attached model gives the same answers as before for any text.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoModel, PreTrainedModel

from headhunt.modeling.build import embeddings_of, explained, layers_of, quiet
from headhunt.modeling.model import HeadhuntForSequenceClassification, without_pooler
from headhunt.spec import Recipe
from headhunt.training.device import autocast, pick_device
from headhunt.training.tokens import Tokens, by_length

SCHEMA = 1
BATCH = 64
BUDGET = 4 << 30  # bytes of all stores of a machine, unless told; never more than a fifth of the free disk
ALL_AT_ONCE = 0.25  # every layer is stored in one pass where that takes no more than this share of the budget
SMALLEST_SAMPLE = 0.1  # a store of fewer rows than this share is not worth having
LARGEST_HALF = 6e4  # what float16 can hold


class FrozenEncoder:
    """A pretrained encoder of which nothing is trained; gives what enters its layers.

    Args:
        encoder: A Hugging Face name or a folder.
        device: Where it runs.
        precision: "auto", "fp32" or "bf16", as in training.
        trust_remote_code: Whether code that comes with the encoder may run.
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
        with quiet(), explained(encoder):
            loaded = AutoModel.from_pretrained(encoder, dtype=torch.float32, trust_remote_code=trust_remote_code)
        self.model = without_pooler(loaded).to(self.device).eval()
        self.depth = int(self.model.config.num_hidden_layers)
        layers = layers_of(self.model)
        # One layer shared by all depths (ALBERT) cannot be left out for some of them.
        self.layers = layers if len(layers) == self.depth else []
        self.tuples = False  # whether this family's layers give their output in a tuple

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the weights: equal for equal encoders, wherever they came from."""
        digest = hashlib.blake2b(repr((SCHEMA, type(self.model).__name__, self.precision)).encode(), digest_size=16)
        for name, value in self.model.state_dict().items():
            digest.update(name.encode())
            digest.update(value.detach().cpu().contiguous().view(torch.uint8).numpy())
        return digest.hexdigest()

    def states(self, inputs: Mapping[str, Tensor], layers: Sequence[int]) -> dict[int, Tensor]:
        """What enters each of these layers (batch, tokens, width); layer `depth` is what leaves the last one."""
        caught: dict[int, Tensor] = {}

        def hook(number: int) -> Any:
            def catch(module: nn.Module, args: Any, output: Any) -> None:
                self.tuples = isinstance(output, tuple) if number else self.tuples
                caught[number] = output[0] if isinstance(output, tuple) else output
                if number == max(layers):
                    raise _EnoughError  # what lies above is not asked for

            return catch

        places = {0: embeddings_of(self.model)[-1], **{i + 1: layer for i, layer in enumerate(self.layers)}}
        handles = [places[number].register_forward_hook(hook(number)) for number in layers]
        try:
            with torch.inference_mode(), autocast(self.device, self.precision):
                self.model(**{name: x.to(self.device) for name, x in inputs.items()})
        except _EnoughError:
            pass
        finally:
            for handle in handles:
                handle.remove()
        return caught


class _EnoughError(Exception):
    """Ends a pass through the encoder where the last layer asked for has answered."""


class StoppedError(Exception):
    """Somebody asked to stop while activations were computed."""


class ActivationCache:
    """Activations of known rows of tokens.

    Args:
        bottom: The encoder.
        tokens: The rows. For a siamese head, each text alone.
        folder: Where stores are kept; one budget holds for all in it.
        budget: Bytes; BUDGET unless given.
    """

    def __init__(self, bottom: FrozenEncoder, tokens: Tokens, folder: Path, budget: int | None = None) -> None:
        self.bottom, self.tokens = bottom, tokens
        digest = hashlib.blake2b(bottom.fingerprint.encode(), digest_size=16)
        digest.update(np.ascontiguousarray(tokens.ids).tobytes())
        digest.update(np.ascontiguousarray(tokens.ends).tobytes())
        digest.update(repr((tokens.frame, tokens.firsts is None)).encode())
        self.home = folder
        self.folder = folder / digest.hexdigest()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.stop: Callable[[], bool] = lambda: False
        """Asked while activations are computed; true ends it with a `StoppedError`."""
        self.budget = min(BUDGET, shutil.disk_usage(folder).free // 5) if budget is None else budget
        self._layers: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self._refused: set[int] = set()

    @cached_property
    def rows(self) -> dict[bytes, int]:
        """A row's number by its token ids."""
        return {self.tokens.row(i).tobytes(): i for i in range(len(self.tokens))}

    def nearest(self, layer: int) -> int | None:
        """The layer to start from so that as little as possible is computed again; None if nothing is stored.

        Beyond the budget a lower layer that is stored already serves, then a sample of the rows at the layer itself.
        """
        with suppress(OSError):
            os.utime(self.folder)  # the least recently used go first
        if not self.bottom.layers:
            layer = 0
        if self._at(layer) is not None:
            return layer
        return next((lower for lower in range(layer - 1, -1, -1) if self._read(lower) is not None), None)

    def has(self, layers: Sequence[int]) -> bool:
        """Whether all these layers are stored."""
        return all(self._at(layer) is not None for layer in layers)

    def fill(self, layer: int, found: Sequence[int], out: np.ndarray) -> list[int]:
        """Copies the activations of rows into `out` (rows, tokens, width).

        Returns:
            Which of them are not stored: places in `found`.
        """
        stored = self._at(layer)
        assert stored is not None
        values, ends = stored
        missing = []
        for place, row in enumerate(found):
            start, end = (ends[row], ends[row + 1]) if row >= 0 else (0, 0)
            if start == end:
                missing.append(place)
            else:
                out[place, : end - start] = values[start:end]
        return missing

    def _at(self, layer: int) -> tuple[np.ndarray, np.ndarray] | None:
        """A layer's values (tokens, width) and where each row begins and ends in them; computed where it fits."""
        stored = self._read(layer)
        if stored is None and layer not in self._refused:
            with suppress(OSError):  # the disk is full, or others have made room meanwhile: then it is computed anew
                self.folder.mkdir(parents=True, exist_ok=True)
                with _locked(self.folder / "lock"):
                    for stray in self.folder.glob("tmp*"):  # of a worker that died while it wrote
                        shutil.rmtree(stray, ignore_errors=True)
                    if self._read(layer) is None:
                        self._compute(layer)
                stored = self._read(layer)
            if stored is None:
                self._refused.add(layer)
        return stored

    def _read(self, layer: int) -> tuple[np.ndarray, np.ndarray] | None:
        if layer not in self._layers:
            path = self.folder / f"{layer}.npy"
            if not path.exists():
                return None
            values = np.load(path, mmap_mode="r", allow_pickle=False)
            ends = np.load(self.folder / f"{layer}.ends.npy", allow_pickle=False)
            self.bottom.tuples = json.loads((self.folder / "about.json").read_text())["tuples"]
            self._layers[layer] = values, ends
        return self._layers[layer]

    def _compute(self, layer: int) -> None:
        lengths = self.tokens.lengths
        probe = self.bottom.states(self.tokens.batch(np.argsort(lengths)[:1]), [layer])[layer]
        cost = int(lengths.sum()) * probe.shape[-1] * 2
        everything = range(self.bottom.depth + 1 if self.bottom.layers else 1)
        wanted = [number for number in everything if not (self.folder / f"{number}.npy").exists()]
        if cost * len(wanted) > ALL_AT_ONCE * self.budget:
            wanted = [layer]
        room = self.budget - _used(self.home)
        if cost * len(wanted) > room:
            _forget_oldest(self.home, self.folder, cost * len(wanted) - room)
            room = self.budget - _used(self.home)
        rows = np.arange(len(self.tokens))
        if cost * len(wanted) > room:
            if any((self.folder / f"{lower}.npy").exists() for lower in range(layer)):
                return  # a lower layer serves
            wanted = [layer]
            share = max(room, 0) / cost
            if share < SMALLEST_SAMPLE:
                return
            rows = np.sort(np.random.default_rng(0).permutation(len(rows))[: int(len(rows) * min(share, 1.0))])
        self._write(rows, wanted)

    def _write(self, rows: np.ndarray, layers: Sequence[int]) -> None:
        """Computes the activations of some rows and puts them in place at once."""
        lengths = self.tokens.lengths
        sizes = np.zeros(len(lengths), np.int64)
        sizes[rows] = lengths[rows]
        ends = np.concatenate([[0], np.cumsum(sizes)])
        with tempfile.TemporaryDirectory(dir=self.folder) as made:
            files: dict[int, np.ndarray] = {}
            for part in by_length(lengths[rows], BATCH):
                if self.stop():
                    raise StoppedError
                chosen = rows[part]
                states = self.bottom.states(self.tokens.batch(chosen), layers)
                for layer, state in states.items():
                    values = state.float().cpu().numpy()
                    if layer not in files:
                        shape = (int(ends[-1]), values.shape[-1])
                        path = Path(made) / f"{layer}.npy"
                        files[layer] = np.lib.format.open_memmap(path, "w+", np.float16, shape)
                    if np.abs(values).max() > LARGEST_HALF:
                        return  # no layer of this encoder is stored: 16 bits cannot hold it
                    for line, row in enumerate(chosen):
                        files[layer][ends[row] : ends[row + 1]] = values[line, : lengths[row]]
            for layer, file in files.items():
                file.flush()  # type: ignore[attr-defined]
                np.save(Path(made) / f"{layer}.ends.npy", ends)
            about = Path(made) / "about.json"
            about.write_text(json.dumps({"schema": SCHEMA, "tuples": self.bottom.tuples}))
            about.replace(self.folder / "about.json")
            for layer in files:  # the values last: whoever sees them finds the rest
                (Path(made) / f"{layer}.ends.npy").replace(self.folder / f"{layer}.ends.npy")
                (Path(made) / f"{layer}.npy").replace(self.folder / f"{layer}.npy")


def stored_below(recipe: Recipe, depth: int) -> int | None:
    """How many of the lowest layers a recipe leaves as they are; None if it trains the embeddings."""
    if recipe.freeze == "none":
        return None
    if recipe.freeze == "all":
        return depth
    return 0 if recipe.freeze == "embeddings" else int(recipe.freeze)


class Attached:
    """A model whose frozen part is taken from stores. `remove` puts the model together again.

    Args:
        model: The model; its embeddings and lowest layers must be frozen.
        stores: Where activations are looked up.
        layer: The layer to start from.
    """

    def __init__(self, model: PreTrainedModel, stores: Sequence[ActivationCache], layer: int) -> None:
        self.layer = layer
        self._model, self._replaced = model, list[tuple[nn.Module, str, nn.Module]]()
        entry = _Entry(stores, layer)
        embeddings = embeddings_of(model)
        self._replace(embeddings[0], entry)
        for module in embeddings[1:]:
            self._replace(module, _Passed(module, False))
        for module in layers_of(model)[:layer]:
            self._replace(module, _Passed(module, stores[0].bottom.tuples))
        self._hook: Any = None
        if isinstance(model, HeadhuntForSequenceClassification) and model.head.several_layers:
            own = stores[0].bottom.depth + 1 - layer  # states the model still computes, what enters layer k among them
            below = range(max(0, own + layer - model.head.take), layer)
            self._hook = model.head.register_forward_pre_hook(
                lambda module, args: ((*map(entry.look, below), *args[0][-own:]), *args[1:])
            )

    def _replace(self, old: nn.Module, new: nn.Module) -> None:
        for parent in self._model.modules():
            for name, child in parent.named_children():
                if child is old:
                    setattr(parent, name, new)
                    self._replaced.append((parent, name, old))
                    return

    def remove(self) -> None:
        """Puts back what was replaced."""
        for parent, name, module in self._replaced:
            setattr(parent, name, module)
        if self._hook is not None:
            self._hook.remove()
        self._replaced = []


def attach(model: PreTrainedModel, stores: Sequence[ActivationCache], recipe: Recipe) -> Attached | None:
    """Lets a model start from stored activations, as high as its recipe and the stores allow.

    Args:
        model: The model, on its device.
        stores: Of the model's encoder; all rows are looked up in each.
        recipe: How it is trained; says what is frozen.

    Returns:
        None where nothing can be spared: the embeddings are trained, nothing is stored, or the family works otherwise.
    """
    bottom = stores[0].bottom
    frozen = stored_below(recipe, bottom.depth)
    if frozen is None:
        return None
    heights = [store.nearest(frozen) for store in stores]
    if any(height is None for height in heights):
        return None
    layer = min(height for height in heights if height is not None)
    if isinstance(model, HeadhuntForSequenceClassification) and model.head.several_layers:
        below = range(max(0, bottom.depth + 1 - model.head.take), layer)
        if not all(store.has([*below, layer]) for store in stores):
            layer = 0
    if not all(store.has([layer]) for store in stores):
        return None
    attached = Attached(model, stores, layer)
    if _agrees(model, attached, stores[0]):
        return attached
    attached.remove()
    return None


def _agrees(model: PreTrainedModel, attached: Attached, store: ActivationCache) -> bool:
    """Whether an attached model computes what it did before: a family may feed its layers in ways of its own."""
    known = (type(model.base_model).__name__, attached.layer, store.bottom.fingerprint)
    if known not in _AGREED:
        rows = np.argsort(store.tokens.lengths)[-2:]
        batch = {name: x.to(store.bottom.device) for name, x in store.tokens.batch(rows).items()}
        mode = model.training
        model.eval()
        with torch.inference_mode(), autocast(store.bottom.device, store.bottom.precision):
            try:
                above = model.base_model(**batch).last_hidden_state.float()
            except Exception:  # whatever a family's own code makes of a layer that is not there
                above = None
            whole = store.bottom.model(**batch).last_hidden_state.float()
        model.train(mode)
        mask = batch["attention_mask"].bool()
        _AGREED[known] = above is not None and bool((above - whole)[mask].norm() < 0.05 * whole[mask].norm())
    return _AGREED[known]


_AGREED: dict[tuple[str, int, str], bool] = {}


class _Entry(nn.Module):
    """Stands where the embeddings were: gives what enters layer k, looked up by token ids."""

    def __init__(self, stores: Sequence[ActivationCache], layer: int) -> None:
        super().__init__()
        self._stores, self._layer = stores, layer
        self._pad = stores[0].tokens.frame.pad
        self._seen: tuple[np.ndarray, dict[str, Any]] | None = None

    def forward(self, input_ids: Tensor, *args: Any, **others: Any) -> Tensor:
        self._seen = (input_ids.cpu().numpy().astype(np.int32), {"input_ids": input_ids, **others})
        return self.look(self._layer)

    def look(self, layer: int) -> Tensor:
        """What enters a layer for the batch that was seen last (batch, tokens, width)."""
        assert self._seen is not None
        ids, inputs = self._seen
        reached = ids.shape[1] - (ids != self._pad)[:, ::-1].argmax(1)
        keys = [line[:end].tobytes() for line, end in zip(ids, reached, strict=True)]
        places = np.arange(len(keys))
        out: np.ndarray | None = None
        for store in self._stores:
            found = [store.rows.get(keys[place], -1) for place in places]
            if out is None:
                stored = store._at(layer)
                assert stored is not None
                out = np.zeros((*ids.shape, stored[0].shape[1]), np.float16)
            part = out if len(places) == len(out) else np.zeros((len(places), *out.shape[1:]), np.float16)
            missing = store.fill(layer, found, part)
            if part is not out:
                out[places] = part
            places = places[missing]
            if not len(places):
                break
        device = inputs["input_ids"].device
        states = torch.from_numpy(out).to(device, torch.float32)
        if len(places):
            states[places] = self._compute(layer, places, inputs, reached)
        return states

    def _compute(self, layer: int, places: np.ndarray, inputs: dict[str, Any], reached: np.ndarray) -> Tensor:
        """What is not stored is computed."""
        chosen = torch.from_numpy(places).to(inputs["input_ids"].device)
        known = {"input_ids": inputs["input_ids"][chosen]}
        if isinstance(inputs.get("token_type_ids"), Tensor):
            known["token_type_ids"] = inputs["token_type_ids"][chosen]
        steps = torch.arange(known["input_ids"].shape[1], device=chosen.device)
        known["attention_mask"] = (steps[None] < torch.from_numpy(reached[places]).to(chosen.device)[:, None]).long()
        return self._stores[0].bottom.states(known, [layer])[layer].float()


class _Passed(nn.Module):
    """Stands where a frozen layer was: hands on what it is given."""

    def __init__(self, layer: nn.Module, tuples: bool) -> None:
        super().__init__()
        self._tuples = tuples
        for name, value in vars(layer).items():  # a family may ask its layers what kind they are
            if isinstance(value, str | int) and not name.startswith("_"):
                setattr(self, name, value)

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        return (hidden_states,) if self._tuples else hidden_states


def _used(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*/*.npy"))


def _forget_oldest(home: Path, keep: Path, needed: int) -> None:
    """Removes the stores that were not used for longest. Whoever still maps one keeps it until they end."""
    stores = sorted((folder for folder in home.iterdir() if folder.is_dir()), key=lambda path: path.stat().st_mtime)
    for folder in stores:
        if needed <= 0:
            break
        if folder != keep:
            needed -= sum(path.stat().st_size for path in folder.glob("*.npy"))
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One process at a time; the operating system gives the lock back when a process dies."""
    with path.open("ab") as file:
        if os.name == "nt":
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_LOCK, 1)  # type: ignore[attr-defined,unused-ignore]
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        yield
