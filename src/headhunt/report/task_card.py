"""Parts of the model card of a model of several tasks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from headhunt.evaluation import METRICS
from headhunt.report.markdown import bullet_list, code, code_block, interval, table
from headhunt.run.results import PLAIN, WINNER, TestResult
from headhunt.run.task import TaskInfo

MAX_LABELS = 12  # label names that are listed for a task
TITLES = {PLAIN: "plain heads", WINNER: "best other candidate"}

Task = Mapping[str, Any]
"""A task of config.json: name, problem_type, labels, pair."""


def list_tasks(tasks: Sequence[Task]) -> str:
    """Return inputs and outputs of each task."""
    items = []
    for task in tasks:
        inputs = "a pair of texts" if task["pair"] else "a text"
        labels = [str(label) for label in task["labels"]]
        names = ", ".join(code(label) for label in labels[:MAX_LABELS]) + (" …" if len(labels) > MAX_LABELS else "")
        output = f"one of {len(labels)} classes for {inputs}: {names}" if labels else f"a number for {inputs}"
        items.append(f"{code(task['name'])} predicts {output}")
    return bullet_list(items)


def usage(folder: str, tasks: Sequence[Task]) -> list[str]:
    """Return lines of code that load the model, without Headhunt and with it."""
    where, first = json.dumps(folder, ensure_ascii=False), tasks[0]
    name = json.dumps(str(first["name"]))
    texts = '"one text", "another"' if first["pair"] else '"a text"'
    return [
        f"With transformers alone; {code(folder)} is this folder, or its name on the Hub. The folder contains the code "
        "of the model, six short files: read them before you trust them.",
        code_block(
            "from transformers import AutoModelForSequenceClassification, AutoTokenizer\n"
            f"model = AutoModelForSequenceClassification.from_pretrained({where}, trust_remote_code=True)\n"
            f"tokenizer = AutoTokenizer.from_pretrained({where}, trust_remote_code=True)\n"
            f'inputs = tokenizer({texts}, truncation=True, return_tensors="pt")\n'
            f"print(model(**inputs, task={name}).logits)",
            "python",
        ),
        "With Headhunt, which truncates long texts as in training and runs no code from the folder:",
        code_block(
            f"import headhunt\nmodel = headhunt.load({where})\nprint(model.predict({texts}, task={name})[0])", "python"
        ),
        "The model of one task as an ordinary folder, for pipelines and ONNX:",
        code_block(f"model.for_task({name}).save({name})", "python"),
    ]


def scores(test: TestResult, role: str) -> list[str]:
    """Return the score of each task and their mean, beside those of the other tested models.

    Args:
        test: The result on the test rows.
        role: The model of the card.
    """
    roles = [each for each in (role, *TITLES) if each in test.scores]
    roles = list(dict.fromkeys(roles))
    rows = [
        [
            code(task.name, in_table=True),
            f"{task.rows:,}",
            METRICS[task.metric].title,
            *(interval(task.scores.get(each, {}).get(task.metric)) for each in roles),
        ]
        for task in test.tasks
    ]
    means = [next(iter(test.scores[each].values()), None) for each in roles]
    rows.append(["mean", f"{test.rows:,}", "", *map(interval, means)])
    names = ["this model" if each == role else TITLES[each] for each in roles]
    intro = "Test rows, which played no part in choosing the model; 95 % intervals by bootstrap."
    return [intro, table(["task", "rows", "metric", *names], rows)]


def data_items(task: TaskInfo) -> list[str]:
    """Return the rows of each task."""
    return [
        f"{code(each.name)}: " + ", ".join(f"{count:,} {split}" for split, count in each.rows.items())
        for each in task.tasks
    ]
