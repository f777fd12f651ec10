"""Labelled texts, from whatever holds them to checked, split, memory-mapped tasks."""

from headhunt.data.columns import Columns
from headhunt.data.labels import Kind
from headhunt.data.saved import open_task, read_about, save_task
from headhunt.data.splitting import Split
from headhunt.data.task import Task, load_labelled, load_texts

__all__ = ["Columns", "Kind", "Split", "Task", "load_labelled", "load_texts", "open_task", "read_about", "save_task"]
