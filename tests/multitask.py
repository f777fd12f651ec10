"""Three tiny tasks of different kinds for one model: classes, pairs and a number."""

from __future__ import annotations

from conftest import sentences

from headhunt import Space, Task, join_tasks

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
