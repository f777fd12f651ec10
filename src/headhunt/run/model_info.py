"""Read and write headhunt.json, the facts that are saved with a model, and recognize a saved model.

This module loads hardly anything, so that a wrong folder is refused at once.
"""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from headhunt.errors import ModelError
from headhunt.storage import read_json, write_text

SCHEMA = 1
MODEL_INFO = "headhunt.json"  # a directory with this file is a complete model
LEDGER = "ledger.jsonl"  # a directory with this file is the run directory of a search
PROBLEM_TYPES = ("single_label_classification", "multi_label_classification", "regression", "multi_task")


class AdviceError(ModelError):
    """An error whose message already says what to do."""


def is_model(path: Path) -> bool:
    """Return whether a directory is a complete model."""
    return (path / MODEL_INFO).exists()


def not_a_model(folder: Path) -> ModelError:
    """Return the error for a directory that is given as a saved model and is not one, with what to give instead."""
    if not folder.exists():
        best = folder.with_name("best")
        hint = f"Use {best}." if folder.name == "model" and is_model(best) else "Check the path."
        return ModelError(f"{folder} must be a saved model; it does not exist. {hint}")
    if (folder / LEDGER).exists():
        models = [path for path in (folder / "model", folder / "best") if is_model(path)]
        hint = f"Use {models[0]}." if models else "It has no model yet; resume the search."
        return ModelError(f"{folder} is the run directory of a search, not a model. {hint}")
    return ModelError(f"{folder} must be a saved model; it has no {MODEL_INFO}.")


def read_model_info(path: Path) -> dict[str, Any]:
    """Return the facts of a saved model, without the schema.

    Raises:
        ModelError: If the file is not valid.
    """
    card = read_json(path)
    if not isinstance(card, dict) or card.pop("schema", None) != SCHEMA:
        raise ModelError(f"{path.name} must contain one JSON object of schema {SCHEMA}")
    for name in ("problem_type", "labels", "pair", "recipe", "spec"):
        if name not in card:
            raise ModelError(f"{path.name} must contain {name!r}")
    if not isinstance(card["pair"], bool) or card["problem_type"] not in PROBLEM_TYPES:
        raise ModelError(f"{path.name} must have a problem_type, and pair must be true or false")
    if not isinstance(card["labels"], list) or not all(isinstance(label, str) for label in card["labels"]):
        raise ModelError(f"the labels in {path.name} must be a list of strings")
    return card


def hash_files(folder: Path, *more: str) -> str:
    """Return a hash of the names and contents of a model's files, without those that change no prediction.

    Args:
        folder: The folder of the model.
        more: Further values that must be equal.
    """
    digest = hashlib.blake2b(repr(more).encode(), digest_size=16)
    for path in sorted(folder.iterdir()):
        if path.is_file() and path.suffix != ".md" and not path.name.startswith("."):
            with path.open("rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
            digest.update(repr((path.name, content)).encode())
    return digest.hexdigest()


def write_model_info(path: Path, facts: dict[str, Any]) -> None:
    """Write the facts of a model. Scores may be NaN, which `storage.write_json` refuses."""
    write_text(path, json.dumps({"schema": SCHEMA, **facts}, indent=2, ensure_ascii=False) + "\n")


def facts_of_task(facts: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the facts of a model of several tasks that hold for the model of one of them."""
    kept: dict[str, Any] = {key: facts[key] for key in ("created", "trial", "seed", "versions") if key in facts}
    return {**kept, "task": {**facts["task"], "name": name}} if isinstance(facts.get("task"), dict) else kept


def saved_thresholds(folder: Path) -> list[float] | None:
    """Return the decision thresholds that a saved model of several labels was saved with; None if it has none."""
    path = folder / "config.json"
    thresholds: list[float] | None = read_json(path).get("thresholds") if path.is_file() else None
    return thresholds


def versions() -> dict[str, str]:
    """Return the library versions that a result depends on."""
    names = ("headhunt", "torch", "transformers", "tokenizers", "numpy")
    return {"python": platform.python_version(), "platform": sys.platform, **{name: version(name) for name in names}}
