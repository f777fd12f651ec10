"""Tasks on disk: what a run keeps of its data, so that workers and later commands need nothing else.

Each split has files of its own and is read only when asked for: nobody who chooses candidates opens the test rows.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from headhunt.data.columns import Columns
from headhunt.data.sources import Rows
from headhunt.data.splitting import Split
from headhunt.data.tables import map_arrow
from headhunt.data.task import Task
from headhunt.errors import DataError

SCHEMA = 1
_ABOUT = "task.json"


def save_task(task: Task, folder: Path) -> None:
    """Write a task, the description last: a folder that has it is whole."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = [name for name in (task.columns.text, task.columns.text_b) if name is not None]
    for name, split in task.splits.items():
        schema = pa.schema([(column, pa.large_string()) for column in texts])
        with pa.OSFile(str(folder / f"{name}.arrow"), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
            for start, first in split.rows.walk(texts[0]):
                columns = [split.rows.read(column, start, start + len(first)) for column in texts]
                writer.write_batch(pa.record_batch([column.cast(pa.large_string()) for column in columns], schema))
        np.savez(folder / f"{name}.npz", targets=split.targets, groups=split.groups, keys=split.keys, words=split.words)
    about = {
        "schema": SCHEMA,
        "name": task.name,
        "problem_type": task.problem_type,
        "labels": list(task.labels),
        "columns": {"text": task.columns.text, "text_b": task.columns.text_b, "label": task.columns.label},
        "rows": {name: len(split) for name, split in task.splits.items()},
        "fingerprint": task.fingerprint,
        "notes": task.notes,
        "warnings": task.warnings,
    }
    partial = folder / f"{_ABOUT}.partial"
    partial.write_text(json.dumps(about, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    partial.replace(folder / _ABOUT)


def read_about(folder: Path) -> dict[str, Any]:
    """Read what a saved task says of itself, without its rows.

    Raises:
        DataError: If there is no whole task in the folder.
    """
    try:
        about = json.loads((folder / _ABOUT).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{folder} must hold the data of a run; {_ABOUT} cannot be read ({error}).") from None
    if about.get("schema") != SCHEMA:
        raise DataError(f"{folder / _ABOUT} must have schema {SCHEMA}; found {about.get('schema')!r}.")
    return about


def open_task(folder: Path, splits: Sequence[str] = ("train", "validation")) -> Task:
    """Open a saved task.

    Args:
        folder: Where `save_task` wrote it.
        splits: Which splits to open; those that the task does not have are left out.
    """
    about = read_about(folder)
    columns = Columns(**about["columns"])
    opened = {}
    for name in splits:
        if name not in about["rows"]:
            continue
        with np.load(folder / f"{name}.npz", allow_pickle=False) as arrays:
            known = [arrays[key] for key in ("targets", "groups", "keys", "words")]
        opened[name] = Split(Rows(name, map_arrow(folder / f"{name}.arrow")), columns, *known)
    told = (list(about["notes"]), list(about["warnings"]))
    return Task(about["name"], about["problem_type"], tuple(about["labels"]), columns, opened, *told)
