"""Tiny searches for tests: a small space, a small task, workers in this process."""

from __future__ import annotations

from pathlib import Path

from conftest import sentences

import headhunt
from headhunt import Search, Space, Task

QUICK = Space.from_dict(
    {
        "head": {"pooling": ["cls", "mean", "max"], "dropout": {"float": [0.0, 0.4]}},
        "recipe": {
            "epochs": 3.0,
            "learning_rate": {"log": [1e-3, 3e-2]},
            "freeze": ["embeddings", 1, "all"],
            "batch_size": [8, 16],
        },
    }
)


def make_task(count: int = 72) -> Task:
    """Return a task of easy sentences."""
    return Task.load(sentences(count))


def run_search(folder: Path, encoder: str, **options) -> Search:
    """Run a tiny search in `folder / "run"`."""
    defaults = {"time": None, "trials": 8, "space": QUICK, "workers": 0, "out": folder / "run", "callbacks": []}
    return headhunt.search(make_task(), encoder=encoder, **{**defaults, **options})
