"""Find the right head for your encoder.

The names below are the public API. Each is loaded on first use, so that `import headhunt` does not load torch.
"""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headhunt.data import Task, datasets, join_tasks, load_tasks
    from headhunt.engine.api import fit, load, pretrain
    from headhunt.engine.distillation import distil
    from headhunt.engine.experiment import experiment
    from headhunt.engine.search import Search, ablate, resume, search, verdict
    from headhunt.errors import HeadhuntError
    from headhunt.evaluation import Evaluation, evaluate
    from headhunt.modeling.architecture import Blocks, Convolutions, EncoderShape, Head, Mlp
    from headhunt.predictor import Predictor
    from headhunt.report.callbacks import Callback
    from headhunt.spec import Lora, Recipe, Smart, Spec

# Where tqdm is imported in a notebook without ipywidgets it warns; Headhunt's own progress needs neither.
warnings.filterwarnings("ignore", message="IProgress not found")

_HOME = {
    "fit": "headhunt.engine.api",
    "load": "headhunt.engine.api",
    "pretrain": "headhunt.engine.api",
    "distil": "headhunt.engine.distillation",
    "experiment": "headhunt.engine.experiment",
    "Search": "headhunt.engine.search",
    "ablate": "headhunt.engine.search",
    "verdict": "headhunt.engine.search",
    "Space": "headhunt.spec",
    "resume": "headhunt.engine.search",
    "search": "headhunt.engine.search",
    "Task": "headhunt.data",
    "datasets": "headhunt.data",
    "join_tasks": "headhunt.data",
    "load_tasks": "headhunt.data",
    "HeadhuntError": "headhunt.errors",
    "Evaluation": "headhunt.evaluation.metrics",
    "evaluate": "headhunt.evaluation.metrics",
    "Blocks": "headhunt.modeling.architecture",
    "Convolutions": "headhunt.modeling.architecture",
    "EncoderShape": "headhunt.modeling.architecture",
    "Head": "headhunt.modeling.architecture",
    "Mlp": "headhunt.modeling.architecture",
    "Predictor": "headhunt.predictor",
    "Callback": "headhunt.report.callbacks",
    "Lora": "headhunt.spec.spec",
    "Recipe": "headhunt.spec.spec",
    "Smart": "headhunt.spec.spec",
    "Spec": "headhunt.spec.spec",
}
__all__ = [
    "Blocks",
    "Callback",
    "Convolutions",
    "EncoderShape",
    "Evaluation",
    "Head",
    "HeadhuntError",
    "Lora",
    "Mlp",
    "Predictor",
    "Recipe",
    "Search",
    "Smart",
    "Space",
    "Spec",
    "Task",
    "ablate",
    "datasets",
    "distil",
    "evaluate",
    "experiment",
    "fit",
    "join_tasks",
    "load",
    "load_tasks",
    "pretrain",
    "resume",
    "search",
    "verdict",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("headhunt")
    if name not in _HOME:
        raise AttributeError(f"module 'headhunt' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
