"""Labelled texts, from whatever holds them to checked, split, memory-mapped tasks."""

from headhunt.data.columns import Columns
from headhunt.data.labels import ProblemType
from headhunt.data.splitting import Split
from headhunt.data.task import Task, load_labelled, load_texts

__all__ = ["Columns", "ProblemType", "Split", "Task", "load_labelled", "load_texts"]
