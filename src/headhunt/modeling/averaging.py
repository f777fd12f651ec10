"""Average the weights of several models of one spec into one model.

The average of training runs from the same initial weights is one model: it costs no more than each of them.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from headhunt.errors import ModelError
from headhunt.storage import atomic_directory, write_text

INFO, CONFIG, CARD = "headhunt.json", "config.json", "README.md"
EQUAL_FACTS = ("schema", "problem_type", "labels", "pair", "recipe", "spec")
UNEQUAL_SETTINGS = ("thresholds", "rejection", "_name_or_path")  # of config.json; they change no weight
RESULTS = ("test", "temperature", "seconds")  # facts of one training run, which do not hold for the average


def average_weights(models: Sequence[Path], out: Path) -> None:
    """Write a model whose weights are the mean of the weights of saved models.

    Tokenizer, configuration and facts are those of the first model. The mean is computed in 32 bits.
    No model card is written.

    Args:
        models: Folders of models of one spec that Headhunt saved.
        out: Folder to write. It appears when it is complete, and replaces one that exists.

    Raises:
        ModelError: If the models differ in more than their weights.
    """
    if not models:
        raise ModelError("models= must name at least one saved model; found none.")
    facts = [_describe(folder) for folder in models]
    for folder, other in zip(models, facts, strict=True):
        _check_equal(models[0], facts[0], folder, other)
    names = _weight_files(models[0])
    for folder in models:
        if _weight_files(folder) != names or not names:
            raise ModelError(f"The models must have the same weight files; those of {folder} differ from {models[0]}.")
    with atomic_directory(out) as partial:
        for path in sorted(models[0].iterdir()):
            if path.is_file() and path.name not in (*names, CARD, INFO):
                shutil.copyfile(path, partial / path.name)
        for name in names:
            save_file(_mean_tensors([folder / name for folder in models]), partial / name, {"format": "pt"})
        info = json.loads((models[0] / INFO).read_text(encoding="utf-8"))
        info = {key: value for key, value in info.items() if key not in RESULTS} | {"averaged": len(models)}
        write_text(partial / INFO, json.dumps(info, indent=2, ensure_ascii=False) + "\n")


def _describe(folder: Path) -> dict[str, Any]:
    """Return the facts and settings that all models must share."""
    try:
        info = json.loads((folder / INFO).read_text(encoding="utf-8"))
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        settings = {key: value for key, value in config.items() if key not in UNEQUAL_SETTINGS}
        return {name: info[name] for name in EQUAL_FACTS} | {CONFIG: settings}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise ModelError(f"{folder} must be a model that Headhunt saved; it is not.") from None


def _check_equal(first: Path, expected: dict[str, Any], folder: Path, found: dict[str, Any]) -> None:
    different = [name for name, value in expected.items() if found[name] != value]
    if different:
        raise ModelError(
            f"Only models of one spec can be averaged; {folder} and {first} differ in {', '.join(different)}."
        )


def _weight_files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("model*.safetensors"))


def _mean_tensors(paths: Sequence[Path]) -> dict[str, torch.Tensor]:
    """Return the mean of each tensor of several files. Tensors of whole numbers must be equal."""
    means: dict[str, torch.Tensor] = {}
    with safe_open(paths[0], "pt") as file:
        first = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    sums = {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in first.items()}
    for path in paths[1:]:
        with safe_open(path, "pt") as file:
            if set(file.keys()) != set(first):
                raise ModelError(f"The models must have the same tensors; those of {path} differ from {paths[0]}.")
            for name, tensor in first.items():
                other = file.get_tensor(name)
                if other.shape != tensor.shape or other.dtype != tensor.dtype:
                    raise ModelError(
                        f"Tensors must have the same shape and type; {name} has {tuple(other.shape)}, {other.dtype} in "
                        f"{path} and {tuple(tensor.shape)}, {tensor.dtype} in {paths[0]}."
                    )
                if tensor.is_floating_point():
                    sums[name] = sums[name] + other.float()
                elif not torch.equal(other, tensor):
                    raise ModelError(f"Tensors of whole numbers must be equal; {name} of {path} is not.")
    for name, tensor in first.items():
        means[name] = (sums[name] / len(paths)).to(tensor.dtype) if tensor.is_floating_point() else tensor
    return means
