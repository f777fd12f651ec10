"""Three tiny tasks of different kinds for one model: classes, pairs and a number."""

from __future__ import annotations

from typing import TYPE_CHECKING

from conftest import sentences

from headhunt import Space, Task, join_tasks

if TYPE_CHECKING:
    from headhunt.predictor import Predictor

SPACE = Space.from_dict(
    {
        "head": {"pooling": ["cls", "mean"], "siamese": ["off", "combined"], "dropout": {"float": [0.0, 0.4]}},
        "recipe": {
            "epochs": 2.0,
            "learning_rate": {"log": [1e-3, 3e-2]},
            "freeze": ["embeddings", 1],
            "batch_size": [8, 16],
            "task_layers": [0, 1, "all"],
            "task_sampling": ["proportional", "sqrt", "sum"],
        },
    },
    "three tasks",
)


def rows_of_tasks(count: int = 48) -> dict[str, dict[str, list]]:
    """Return the columns of three tasks with different numbers of rows."""
    texts, labels = sentences(count)
    others = sentences(count, seed=1)[0]
    pairs = [label if i % 3 else "other" for i, label in enumerate(labels)]
    lengths = [len(text) / 7 + 3 * (label == "good") for text, label in zip(texts, labels, strict=True)]
    half = count // 2
    return {
        "mood": {"text": texts, "label": labels},
        "pairs": {"text": texts, "text_b": others, "label": pairs},
        "length": {"text": texts[:half], "label": lengths[:half]},
    }


def make_tasks(count: int = 48) -> Task:
    """Return three tasks as one."""
    loaded = {name: Task.load(columns, name=name) for name, columns in rows_of_tasks(count).items()}
    return join_tasks(loaded, {"length": "pearson"})


LABELS = {"mood": ["bad", "fine", "good"], "topic": ["film", "food"], "length": [], "same": ["no", "yes"], "near": []}
PAIRS = ("same", "near")


def make_predictor(encoder: str, names: tuple[str, ...] = tuple(LABELS), **recipe) -> Predictor:
    """Return an untrained model of tasks of single texts and of pairs, whose copied layers differ.

    Args:
        encoder: The encoder.
        names: Names of tasks in LABELS.
        recipe: `head`, and fields of the recipe.
    """
    import torch

    from headhunt.modeling.build import build_tasks
    from headhunt.modeling.pretrained import load_tokenizer
    from headhunt.predictor import Predictor
    from headhunt.spec import Head, Recipe, Spec
    from headhunt.training.tokens import SpecialTokens

    head, tokenizer = recipe.pop("head", Head(pooling="mean")), load_tokenizer(encoder)
    kinds = {name: "single_label_classification" if LABELS[name] else "regression" for name in names}
    tasks = [{"name": n, "problem_type": kinds[n], "labels": LABELS[n], "pair": n in PAIRS} for n in names]
    separators = SpecialTokens.of(tokenizer, pair=True).between
    layers = recipe.get("task_layers", 0)
    model = build_tasks(encoder, head, tasks, task_layers=layers, separators=separators)
    with torch.no_grad():
        for number, weights in enumerate(model.parameters()):
            noise = torch.randn(weights.shape, generator=torch.Generator().manual_seed(number))
            weights.add_(0.2 * noise)
    recipe = Recipe(max_length=32, **recipe)
    spec = Spec(encoder=encoder, head=head, recipe=recipe)
    options = {"problem_type": "multi_task", "labels": (), "pair": any(name in PAIRS for name in names)}
    return Predictor(model, tokenizer, **options, spec=spec, precision="fp32", device=torch.device("cpu"))
