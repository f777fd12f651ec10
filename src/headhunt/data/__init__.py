"""Labelled texts: read from any source, checked, split and memory-mapped."""

from headhunt.data import datasets
from headhunt.data.columns import Columns
from headhunt.data.labels import ProblemType
from headhunt.data.loading import Unlabelled, load_labelled, load_texts, load_unlabelled
from headhunt.data.splitting import Split
from headhunt.data.task import SubTask, Task
from headhunt.data.tasks import join_tasks, load_tasks

__all__ = [
    "Columns",
    "ProblemType",
    "Split",
    "SubTask",
    "Task",
    "Unlabelled",
    "datasets",
    "join_tasks",
    "load_labelled",
    "load_tasks",
    "load_texts",
    "load_unlabelled",
]
