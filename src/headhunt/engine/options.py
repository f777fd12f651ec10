"""Check the options of a search against its data, and create its directory."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

from headhunt.data import Task
from headhunt.errors import HeadhuntError
from headhunt.evaluation import DEFAULT_METRIC, RejectionRule, check_metric
from headhunt.run.settings import Resources, SearchOptions, refuse_unknown
from headhunt.spec import Space
from headhunt.storage import find_obstacle


def divide(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return the options of a search, those of its resources, and those of `Task.load`.

    Raises:
        HeadhuntError: If one does not exist.
    """
    own, cluster = ([each.name for each in fields(cls)] for cls in (SearchOptions, Resources))
    columns = [name for name in signature(Task.load).parameters if name != "source"]
    refuse_unknown(given, [*own, *cluster, *columns])
    return (
        {name: given[name] for name in own if name in given},
        {name: given[name] for name in cluster if name in given},
        {name: given[name] for name in columns if name in given and name not in own},
    )


def documented(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a function that takes the options of a search their names and help, for `help()` and notebooks."""
    declared = [*fields(SearchOptions), *fields(Resources)]
    shown = signature(function)
    *named, rest = shown.parameters.values()
    listed = [Parameter(each.name, Parameter.KEYWORD_ONLY, default=each.default) for each in declared]
    function.__signature__ = shown.replace(parameters=[*named, *listed, rest])  # type: ignore[attr-defined]
    lines = [f"        {each.name}: {' '.join(each.metadata['about'].split())}" for each in declared]
    function.__doc__ = "\n".join([str(function.__doc__).rstrip(), "", "    Options:", *lines])
    return function


def check_deliver(deliver: str, task: Task) -> None:
    """Refuse an ensemble for several tasks."""
    if deliver == "ensemble" and task.tasks:
        raise HeadhuntError("cannot be an ensemble for several tasks; found ensemble. Leave it out.", "deliver")


def check_target(target: float | None, metric: str) -> None:
    """Refuse a target that no score can reach.

    Raises:
        HeadhuntError: If it is one.
    """
    most, example = (0, "-0.1, the negative of the error") if metric == "mse" else (1, "0.9")
    if target is not None and not target <= most:
        raise HeadhuntError(f"must be at most {most}, such as {example}; found {target:g}.", "target")


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
            f"cannot be given with several tasks; found {metric}. Each task has its own metric.", "metric"
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
        raise HeadhuntError("is for one task; a model of several tasks cannot be calibrated.", "calibrate")
    if calibrate and task.problem_type == "regression":
        raise HeadhuntError(
            "needs classes or labels: a number has no probability. Leave it out; the report states how "
            "large the errors are.",
            "calibrate",
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
            "Unlabelled texts and further pretraining need one task; found several. Pretrain the encoder first, with "
            "headhunt pretrain, and give the new one as the encoder."
        )
    if pretrain and "encoder" in space.tree:
        raise HeadhuntError(
            "needs a space that names no encoder; give an encoder instead, or leave pretraining out.", "pretrain"
        )


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
        raise HeadhuntError(f"{', '.join(options)} cannot be given with a Task; give them to Task.load.")
    return data


def check_new_directory(path: Path) -> None:
    """Refuse a directory that cannot be created or has files in it, before any work is done.

    Raises:
        HeadhuntError: If it is one.
    """
    if (obstacle := find_obstacle(path)) is not None:
        raise HeadhuntError(f"must be a new or empty directory; {obstacle}. Use another.", "out")


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
