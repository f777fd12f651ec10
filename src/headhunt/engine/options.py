"""Parse and check the options of a search."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headhunt.data import Task
from headhunt.errors import HeadhuntError
from headhunt.evaluation import DEFAULT_METRIC, RejectionRule, check_metric
from headhunt.run.settings import DELIVER
from headhunt.spec import Space
from headhunt.storage import find_obstacle
from headhunt.study.registry import STRATEGIES

PRECISIONS = ("auto", "fp32", "bf16")
MILLISECONDS = {"ms": 1.0, "s": 1000.0}
MEGABYTES = {"mb": 1.0, "gb": 1000.0, "kb": 0.001}


def parse_duration(time: str | float | None) -> float | None:
    """Return seconds from "90s", "10m", "1h30m" or a number of seconds; None for "none".

    Raises:
        HeadhuntError: If it is none of these.
    """
    if time is None or time == "none":
        return None
    text = f"{time}s" if isinstance(time, int | float) else time.strip().lower()
    text = f"{text}s" if re.fullmatch(r"[\d.]+", text) else text  # a bare number is in seconds
    match = re.fullmatch(r"(?:([\d.]+)h)?(?:([\d.]+)m)?(?:([\d.e+-]+)s)?", text)
    try:
        parts = [float(part or 0) for part in match.groups()] if match and text else []
    except ValueError:
        parts = []
    if not parts or not (sum(parts) > 0 and math.isfinite(sum(parts))):
        raise HeadhuntError(f"time= must be a duration such as 90s, 10m or 1h30m; found {time!r}.")
    return parts[0] * 3600 + parts[1] * 60 + parts[2]


def check_deliver(deliver: str, task: Task) -> None:
    """Raise `HeadhuntError` if a rule of delivery is unknown, or there is no ensemble for a task."""
    if deliver not in DELIVER:
        raise HeadhuntError(f"deliver= must be {' or '.join(DELIVER)}; found {deliver!r}.")
    if deliver == "ensemble" and task.tasks:
        raise HeadhuntError("deliver=ensemble needs one task; a model of several tasks has no ensemble. Leave it out.")


def parse_quantity(value: str | float | None, units: Mapping[str, float], argument: str, example: str) -> float | None:
    """Return a positive number in the first of the units.

    Args:
        value: A number, or a number with its unit.
        units: Factor of each unit.
        argument: Name of the argument, for messages.
        example: A valid value, for messages.

    Raises:
        HeadhuntError: If it is not one.
    """
    if value is None:
        return None
    if isinstance(value, int | float):
        number = float(value)
    else:
        match = re.fullmatch(r"([\d.]+)\s*([a-z]*)", value.strip().lower())
        factor = units.get(match[2] or next(iter(units))) if match else None
        try:
            number = float(match[1]) * factor if match and factor else 0.0
        except ValueError:
            number = 0.0
    if not (number > 0 and math.isfinite(number)):
        units_text = ", ".join(units)
        raise HeadhuntError(f"{argument}= must be above 0, such as {example} (units: {units_text}); found {value!r}.")
    return number


def check_target(target: float | None, metric: str) -> None:
    """Refuse a target that no score can reach.

    Raises:
        HeadhuntError: If it is one.
    """
    most, example = (0, "-0.1, the negative of the error") if metric == "mse" else (1, "0.9")
    if target is not None and not target <= most:
        raise HeadhuntError(f"target= must be at most {most}, such as {example}; found {target:g}.")


def choose_metric(task: Task, metric: str | None) -> str:
    """Return the metric of a search; for several tasks, the names of theirs, separated by commas.

    Raises:
        HeadhuntError: If the problem type does not have the metric, or several tasks cannot be compared by it.
    """
    if not task.tasks:
        metric = metric or DEFAULT_METRIC[task.problem_type]
        check_metric(task.problem_type, metric)
        return metric
    if metric is not None:
        raise HeadhuntError(
            f"metric= cannot be given with several tasks; found {metric}. Each task has its own metric."
        )
    for each in task.tasks:
        if each.metric is not None:
            try:
                check_metric(each.problem_type, each.metric)
            except HeadhuntError as error:
                raise HeadhuntError(f"Task {each.name!r}: {error}") from None
        if each.metric == "mse":
            raise HeadhuntError(f"Task {each.name!r}: the mean over tasks needs pearson or spearman; found mse.")
    return ",".join(each.metric or DEFAULT_METRIC[each.problem_type] for each in task.tasks)


def check_decisions(task: Task, calibrate: bool, reject: float | None, reject_label: str | None) -> None:
    """Refuse to calibrate or reject what cannot be, before any work is done.

    Raises:
        HeadhuntError: If the task has no probabilities, or cannot have this rejection.
    """
    if calibrate and task.tasks:
        raise HeadhuntError("calibrate=True is for one task; a model of several tasks cannot be calibrated.")
    if calibrate and task.problem_type == "regression":
        raise HeadhuntError(
            "calibrate= needs classes or labels: a number has no probability. Leave it out; the report states how "
            "large the errors are."
        )
    if reject is not None or reject_label is not None:
        rule = RejectionRule(RejectionRule.coverage if reject is None else reject, reject_label)
        rule.check(task.problem_type, task.labels)


def check_pretraining(task: Task, space: Space, pretrain: bool, unlabelled: bool) -> None:
    """Refuse unlabelled texts and further pretraining where they cannot be used.

    Raises:
        HeadhuntError: If there are several tasks, or the space names its encoder.
    """
    if task.tasks and (pretrain or unlabelled):
        raise HeadhuntError(
            "unlabelled= and pretrain= need one task; found several. Pretrain the encoder first, with "
            "headhunt pretrain, and give the new one as encoder=."
        )
    if pretrain and "encoder" in space.tree:
        raise HeadhuntError("pretrain= needs a space that names no encoder; give encoder= instead, or pretrain=False.")


def load_task(data: Any, seed: int, options: Mapping[str, Any], **defaults: Any) -> Task:
    """Return the data of a search or a training run.

    Args:
        data: A `Task`, or anything `Task.load` takes.
        seed: Random seed of the split.
        options: Options of `Task.load`.
        defaults: Options of `Task.load` that the caller of the search or training run may replace.

    Raises:
        HeadhuntError: If options are given with a `Task`, which has been loaded already.
    """
    if not isinstance(data, Task):
        return Task.load(data, seed=seed, **{**defaults, **options})
    if options:
        raise HeadhuntError(f"{', '.join(options)}= cannot be given with a Task; give them to Task.load.")
    return data


def check_choices(strategy: str, precision: str, workers: int | None) -> None:
    """Refuse names and numbers that no search can use, before any work is done.

    Raises:
        HeadhuntError: If one is not valid.
    """
    for argument, value, known in (("strategy", strategy, STRATEGIES), ("precision", precision, PRECISIONS)):
        if value not in known:
            raise HeadhuntError(f"{argument}= must be one of {', '.join(known)}; found {value!r}.")
    if workers is not None and workers < 0:
        raise HeadhuntError(f"workers= must be 0 or more; found {workers}.")


def check_new_directory(path: Path) -> None:
    """Refuse a directory that cannot be created or has files in it, before any work is done.

    Raises:
        HeadhuntError: If it is one.
    """
    if (obstacle := find_obstacle(path)) is not None:
        raise HeadhuntError(f"out= must be a new or empty directory; {obstacle}. Use another.")


def check_device(device: str | None, ray: str | None = None) -> None:
    """Refuse a device that is not known or, unless a cluster computes, not there.

    Raises:
        HeadhuntError: If the device cannot be used.
    """
    if device is None or device == "cpu" or (ray is not None and device.split(":")[0] in ("cuda", "mps")):
        return
    from headhunt.training.device import pick_device  # torch takes a while to load

    pick_device(device)


def new_run_directory(name: str) -> Path:
    """Create a directory in `runs/` that did not exist, and return it. Two searches never get the same."""
    safe = re.sub(r"[^\w.-]+", "-", name).strip("-.") or "search"
    path = Path("runs") / safe
    number = 2
    path.parent.mkdir(exist_ok=True)
    while True:
        try:
            path.mkdir()
            return path
        except FileExistsError:
            path = Path("runs") / f"{safe}-{number}"
            number += 1


def default_workers() -> int:
    """Return the number of local workers: one per GPU, or one per core without GPUs."""
    from headhunt.study import worker_pool

    return worker_pool.default_workers()
