"""Arguments and options that several commands share, and the checks of their values."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer

from headhunt.errors import HeadhuntError
from headhunt.run.settings import COMPUTE, DATA, TRAINING, DataOptions, Resources, SearchOptions

Given = dict[str, Any]
"""Options that were given, by name."""


def flags(*declared: type, names: str = "") -> list[Parameter]:
    """Return the options that dataclasses declare as parameters that typer turns into flags.

    Their value is None if they are not given.

    Args:
        declared: The dataclasses.
        names: Names of the options; all by default.
    """
    found = []
    for cls in declared:
        hints = get_type_hints(cls)
        for each in fields(cls):
            if names and each.name not in names.split():
                continue
            about, name, hint = each.metadata, each.name.replace("_", "-"), hints[each.name]
            switch = hint in (bool, bool | None)
            flag = typer.Option(
                f"--{name}/--no-{name}" if switch and each.default is not False else f"--{name}",
                metavar=None if switch else about["metavar"],
                help=about["about"],
                show_default=about["shown"] or False,
                rich_help_panel=about["heading"] or None,
            )
            kind = about["kind"] or hint | None
            annotation: Any = Annotated[kind, flag]
            found.append(Parameter(each.name, Parameter.KEYWORD_ONLY, default=None, annotation=annotation))
    return found


def expand(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command that has its parameters which are `flags` one by one; it passes those that are given as one."""
    hints = get_type_hints(command, include_extras=True)
    listed: dict[str, list[Parameter]] = {}
    for name, parameter in signature(command).parameters.items():
        last = get_args(hints[name])[-1:]
        listed[name] = last[0] if last and isinstance(last[0], list) else [parameter.replace(annotation=hints[name])]
    flat = [parameter for parameters in listed.values() for parameter in parameters]

    @wraps(command)
    def run(**values: Any) -> None:
        for name, parameters in listed.items():
            if name != parameters[0].name:
                given = {each.name: values.pop(each.name, None) for each in parameters}
                values[name] = {key: value for key, value in given.items() if value is not None}
        command(**values)

    run.__signature__ = Signature([each.replace(kind=Parameter.KEYWORD_ONLY) for each in flat])  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in flat}
    return run


def check_out(out: Path, flag: str = "--out") -> None:
    """Refuse a folder that is not empty or cannot be written, before any work is done.

    Args:
        out: The folder.
        flag: The flag that named it.

    Raises:
        HeadhuntError: If the folder cannot be used.
    """
    from headhunt.storage import find_obstacle

    if (obstacle := find_obstacle(out)) is not None:
        raise HeadhuntError(f"{flag} must be a new or empty folder; {obstacle}. Use another.")


def check_model(folder: Path) -> Path:
    """Refuse a folder that is no saved model, before anything is loaded that takes seconds."""
    from headhunt.run.model_info import is_model, not_a_model

    if not is_model(folder):
        raise not_a_model(folder)
    return folder


def complete_encoder(encoder: str | None) -> str | None:
    """Return the complete name of an encoder, before any data is read."""
    from headhunt.engine.encoders import find_encoder

    return find_encoder(encoder) if encoder else encoder


def check_file(source: str | None) -> None:
    """Refuse a file that does not exist. Patterns, URLs and names without a suffix are left to their readers."""
    from headhunt.storage import exists

    if source and "://" not in source and re.fullmatch(r"[^*?\[#]+\.\w+", source) and not exists(Path(source)):
        raise HeadhuntError(f"{source} does not exist. Check the path.")


def find_trackers(names: list[str] | None) -> list[Any]:
    """Return the callbacks that log to these trackers; refuse those that are not there before any data is read."""
    if not names:
        return []
    from headhunt.report.callbacks import create_callbacks

    return create_callbacks(names, "log")


DataFile = Annotated[
    str,
    typer.Argument(metavar="DATA", help="CSV, TSV, JSONL or Parquet file, or a folder with train, dev and test files."),
]
SearchedData = Annotated[
    str | None,
    typer.Argument(
        metavar="DATA",
        help="CSV, TSV, JSONL or Parquet file, or a folder with train, dev and test files; or give --tasks.",
        show_default=False,
    ),
]
Tasks = Annotated[
    str | None,
    typer.Option(
        metavar="TASKS",
        help="Several tasks for one model: a TOML file with a table for each, or a folder of data files.",
        rich_help_panel=DATA,
    ),
]
TaskName = Annotated[
    str | None, typer.Option("--task", metavar="NAME", help="Name of the task, for a model of several tasks.")
]
TaskNames = Annotated[
    list[str] | None,
    typer.Option("--task", metavar="NAME", help="Name of a task, for a model of several tasks; may be repeated."),
]
Model = Annotated[Path, typer.Argument(metavar="MODEL", callback=check_model, help="Folder of a saved model.")]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="Run directory of a search.")]

Encoder = Annotated[
    str | None,
    typer.Option(
        metavar="ENCODER",
        callback=complete_encoder,
        help="Encoder: Hugging Face name or folder.",
        show_default="the one in the spec or space, or all-MiniLM-L6-v2",
        rich_help_panel=TRAINING,
    ),
]
Log = Annotated[
    list[str] | None,
    typer.Option(
        "--log",
        metavar="TRACKER",
        callback=find_trackers,
        help="Log to mlflow, wandb or tensorboard too. May be repeated.",
        rich_help_panel=COMPUTE,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
StepTime = Annotated[str | None, typer.Option(metavar="DURATION", help="Time limit, such as 10m.", show_default="none")]


def _parameter(name: str, annotation: Any) -> Parameter:
    """Return an option of a group, which has no value if it is not given."""
    return Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


_CLUSTER = flags(Resources)
_LOG = _parameter("log", Log)
_RUN_WORKERS = _parameter(
    "workers",
    Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Number of worker processes; 0 trains in this process.",
            show_default="as in the search",
            rich_help_panel=COMPUTE,
        ),
    ],
)
_EPOCHS = _parameter(
    "epochs", Annotated[float | None, typer.Option(metavar="N", help="Passes over the texts.", show_default="3")]
)
_TRAINING = [*flags(SearchOptions, names="seed precision device"), *flags(Resources, names="trust_remote_code")]
LABELLED = flags(DataOptions, names="text text_b label")

Columns = Annotated[Given, LABELLED]
Table = Annotated[Given, flags(DataOptions)]
Searching = Annotated[Given, [_parameter("tasks", Tasks), *flags(DataOptions), *flags(SearchOptions), *_CLUSTER, _LOG]]
Resuming = Annotated[Given, [_RUN_WORKERS, *_CLUSTER, _LOG]]
Evaluating = Annotated[Given, [_RUN_WORKERS, *_CLUSTER]]
Fitting = Annotated[Given, [_parameter("encoder", Encoder), *flags(SearchOptions, names="max_length"), *_TRAINING]]
Pretraining = Annotated[
    Given, [*flags(DataOptions, names="text"), _EPOCHS, *flags(SearchOptions, names="max_length"), *_TRAINING]
]
Distilling = Annotated[Given, [*LABELLED, _EPOCHS, *_TRAINING]]
PREDICTING = [
    _parameter("task", TaskName),
    *flags(DataOptions, names="text text_b"),
    *flags(SearchOptions, names="device"),
]
Device = Annotated[Given, flags(SearchOptions, names="device")]
