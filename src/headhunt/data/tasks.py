"""Join several tasks into one, which is learned by one model, and read them from a file or a folder."""

import contextlib
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from headhunt.data.columns import Columns
from headhunt.data.division import count_large_folds
from headhunt.data.duplicates import unite
from headhunt.data.labels import PROBLEM_TYPES
from headhunt.data.readers import FORMATS
from headhunt.data.sources import Rows
from headhunt.data.splitting import TASK_TARGETS, Split
from headhunt.data.task import SubTask, Task
from headhunt.errors import DataError, did_you_mean
from headhunt.storage import check_nesting, exists

MOST_TASKS = 64
MANY_ROWS = 2000  # training rows of all tasks from which each has validation rows: it needs enough of its own
COLUMNS = Columns("text", "text_b", "label")
"""Columns of joined rows; the second text is empty in rows of tasks with one text."""
PATHS = ("data", "test", "validation")
KEYS = (*PATHS, "text", "text_b", "label", "problem_type", "metric", "limit")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


def load_tasks(source: str | Path, *, limit: int | None = None, seed: int = 0) -> Task:
    """Load several tasks, to be learned by one model.

    Args:
        source: A TOML file with one table per task, or a folder in which every file and every folder of splits is a
            task. A table has `data`, and may have `test`, `validation`, `text`, `text_b`, `label`, `problem_type`,
            `metric` and `limit`, as for `Task.load` and `search`. Paths are relative to the file.
        limit: Maximum number of training rows of each task that has no limit of its own.
        seed: Random seed of sampling and splitting.

    Raises:
        DataError: With everything that is wrong, task by task.
    """
    path = Path(source).expanduser()
    if not exists(path):
        raise DataError(f"must be a TOML file or a folder of tasks; {path} does not exist.", "tasks")
    given = _read_folder(path) if path.is_dir() else _read_file(path)
    tasks: dict[str, Task] = {}
    problems: list[str] = []
    for name, options in given.items():
        wanted = {key: value for key, value in options.items() if key not in ("data", "metric")}
        try:
            tasks[name] = Task.load(options["data"], **{"limit": limit, **wanted}, seed=seed, name=name)
        except DataError as error:
            problems.append(f"Task {name!r}: {error}")
    if problems:
        raise DataError("\n".join(problems))
    metrics = {name: str(options["metric"]) for name, options in given.items() if "metric" in options}
    return join_tasks(tasks, metrics, name=path.stem)


def join_tasks(tasks: Mapping[str, Task], metrics: Mapping[str, str] | None = None, *, name: str = "tasks") -> Task:
    """Join tasks into one, whose rows are those of all tasks and whose splits are theirs.

    Args:
        tasks: The tasks by name.
        metrics: Metric of each task; by default that of its problem type.
        name: Name of the joined task.

    Raises:
        DataError: If the tasks cannot be joined.
    """
    _check_tasks(tasks)
    divided = {each: _with_validation(task, tasks) for each, task in tasks.items()}
    notes: list[str] = []
    divided = {each: _without_held_out(each, divided, notes) for each in tasks}
    splits = {}
    for split in ("train", "validation", "test"):
        parts = [divided[each][split] for each in tasks if split in divided[each]]
        if parts and len(parts) < len(tasks):
            without = [each for each in tasks if split not in divided[each]]
            raise DataError(f"All tasks must have {split} rows, or none; {', '.join(without)} has none.")
        if parts:
            splits[split] = _join_splits(split, parts)
    described = tuple(
        SubTask(
            name=each,
            problem_type=task.problem_type,
            labels=task.labels,
            columns=task.columns,
            rows={split: len(rows) for split, rows in divided[each].items()},
            metric=(metrics or {}).get(each),
        )
        for each, task in tasks.items()
    )
    columns = COLUMNS if any(task.pair for task in tasks.values()) else Columns("text", None, "label")
    return Task(
        name,
        "multi_task",
        (),
        columns,
        splits,
        [*(f"{each}: {note}" for each, task in tasks.items() for note in task.notes), *notes],
        [f"{each}: {warning}" for each, task in tasks.items() for warning in task.warnings],
        test_given=all(task.test_given for task in tasks.values()),
        tasks=described,
    )


def _check_tasks(tasks: Mapping[str, Task]) -> None:
    if not 2 <= len(tasks) <= MOST_TASKS:
        raise DataError(f"There must be 2 to {MOST_TASKS} tasks; found {len(tasks)}. Give one task as DATA.")
    for name, task in tasks.items():
        if not NAME.fullmatch(name):
            raise DataError(
                f"The name of a task must be 1 to 64 letters, digits, dots, dashes or underscores; found {name[:80]!r}."
            )
        if task.problem_type not in ("single_label_classification", "regression"):
            raise DataError(
                f"Tasks of one model must have one class or one number per row; {name!r} is {task.problem_type}. "
                "Search for a model of this task alone."
            )
        if task.columns.group is not None or task.columns.order is not None:
            raise DataError(f"Several tasks cannot have group or order; {name!r} has one of them.")


def _with_validation(task: Task, tasks: Mapping[str, Task]) -> dict[str, Split]:
    """Return the splits of a task, with validation rows if any of the tasks has some, or all have many rows."""
    few = sum(len(other.splits["train"]) for other in tasks.values()) < MANY_ROWS
    given = any("validation" in other.splits for other in tasks.values())
    if "validation" in task.splits or (few and not given):
        return task.splits
    rows = task.splits["train"]
    train, held_out = task.first_fold(count_large_folds(len(rows)))
    return {**task.splits, "train": rows.take(train), "validation": rows.take(held_out)}


def _without_held_out(name: str, divided: Mapping[str, dict[str, Split]], notes: list[str]) -> dict[str, Split]:
    """Return the splits of a task without rows whose text another task is tested or validated on.

    Tasks may have texts in common. Their labels are often related, and the shared layers would know them.
    """
    others = [splits for other, splits in divided.items() if other != name]
    splits = dict(divided[name])
    for split, later in (("train", ("validation", "test")), ("validation", ("test",))):
        keys = [each[kind].keys for each in others for kind in later if kind in each]
        if split not in splits or not keys:
            continue
        kept = ~np.isin(splits[split].keys, np.concatenate(keys))
        if not kept.any():
            raise DataError(
                f"Every task must have {split} rows whose texts no other task is evaluated on; {name!r} has none. "
                "Give all tasks the same test rows."
            )
        if not kept.all():
            notes.append(
                f"{name}: {int((~kept).sum())} {split} rows left out: other tasks are evaluated on their texts"
            )
            splits[split] = splits[split].take(kept)
    return splits


def _join_splits(name: str, parts: list[Split]) -> Split:
    """Return the rows of several tasks as one split; groups of different tasks stay different, but for equal texts."""
    targets, groups, keys, words = [], [], [], []
    texts: dict[str, list[pa.Array]] = {"text": [], "text_b": []}
    start = 0
    for number, part in enumerate(parts):
        values = np.empty(len(part), TASK_TARGETS)
        values["task"], values["value"] = number, part.targets
        targets.append(values)
        distinct, group = np.unique(part.groups, return_inverse=True)
        groups.append(group.reshape(-1) + start)
        start += len(distinct)
        keys.append(part.keys)
        words.append(part.words)
        for column, target in ((part.columns.text, "text"), (part.columns.text_b, "text_b")):
            if column is None:
                texts[target].append(pa.array([""] * len(part), pa.large_string()))
            else:
                texts[target] += [each.cast(pa.large_string()) for _, each in part.rows.walk(column)]
    table = pa.table({column: pa.chunked_array(chunks, pa.large_string()) for column, chunks in texts.items()})
    columns = COLUMNS if any(part.columns.text_b is not None for part in parts) else Columns("text", None, "label")
    all_groups, all_keys = np.concatenate(groups), np.concatenate(keys)
    _, first, inverse = np.unique(all_keys, return_index=True, return_inverse=True)
    united = unite(np.arange(start), all_groups[first][inverse.reshape(-1)], all_groups)[all_groups]
    return Split(Rows(name, table), columns, np.concatenate(targets), united, all_keys, np.concatenate(words))


def _read_folder(path: Path) -> dict[str, dict[str, Any]]:
    """Return every data file and every folder with files of a folder, as a task of its name."""
    endings = (*FORMATS, *(f"{ending}.gz" for ending in FORMATS))
    found: dict[str, dict[str, Any]] = {}
    for entry in sorted(path.iterdir()):
        holds_data = entry.is_dir() and any(file.name.lower().endswith(endings) for file in entry.iterdir())
        if entry.name.startswith(".") or not (holds_data or entry.name.lower().endswith(endings)):
            continue
        name = entry.name if entry.is_dir() else entry.name.split(".")[0]
        if name in found:
            raise DataError(f"Every task must have its own name; {path} has two of the name {name!r}.")
        found[name] = {"data": str(entry)}
    if not found:
        raise DataError(f"{path} must contain data files, or folders of splits, one for each task; found none.")
    return found


def _read_file(path: Path) -> dict[str, dict[str, Any]]:
    """Return the options of each task of a TOML file."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
        check_nesting(data)
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path} must be TOML with one table per task; it is not valid: {error}.") from None
    problems: list[str] = []
    for name, options in data.items():
        if not isinstance(options, dict):
            problems.append(f'{name} must be a table such as [{name}] with data = "FILE"; found {options!r:.80}')
            continue
        problems += [f"[{name}] {problem}" for problem in _check_options(options)]
    if problems:
        raise DataError(f"{path} cannot be used:\n" + "\n".join(f"  {problem}" for problem in problems))
    return {name: {key: _resolve(path, key, value) for key, value in table.items()} for name, table in data.items()}


def _check_options(options: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with the table of a task."""
    problems = []
    if "data" not in options:
        problems.append("must have data, the file or folder of its rows")
    for key, value in options.items():
        if key not in KEYS:
            hint = did_you_mean(key, KEYS, f" Known keys: {', '.join(KEYS)}")
            problems.append(f"has an unknown key {key!r:.80}.{hint}")
        elif key == "limit":
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                problems.append(f"limit must be a positive whole number; found {value!r:.80}")
        elif not isinstance(value, str) or not value:
            problems.append(f"{key} must be text; found {value!r:.80}")
        elif key in PATHS and not value.isprintable():
            problems.append(f"{key} must be a path; found {value!r:.80}")
        elif key == "problem_type" and value not in PROBLEM_TYPES:
            problems.append(f"problem_type must be one of {', '.join(PROBLEM_TYPES)}; found {value!r:.80}")
    return problems


def _resolve(path: Path, key: str, value: Any) -> Any:
    if key not in PATHS:
        return value
    with contextlib.suppress(RuntimeError):  # a user that does not exist
        value = str(Path(value).expanduser())
    return str(path.parent / value)
