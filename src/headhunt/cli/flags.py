"""Translate between arguments of the Python library and flags of the command line."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable

from headhunt.errors import HeadhuntError

RENAMED_FLAGS = {
    "--kind": "--problem-type",
    "--lanes": "--model-instances",
    "--max-slow": "--read-timeout",
    "--max-drain": "--timeout-graceful-shutdown",
}
RENAMED_PROBLEM_TYPES = {
    "classes": "single_label_classification",
    "labels": "multi_label_classification",
    "number": "regression",
}

ARGUMENTS = (
    "calibrate",
    "clear",
    "data",
    "deliver",
    "device",
    "dry_run",
    "encoder",
    "epochs",
    "group",
    "host",
    "input",
    "int8",
    "keep",
    "known_recipes",
    "label",
    "layers",
    "learn_from",
    "limit",
    "max_batch",
    "max_body",
    "max_characters",
    "max_latency",
    "max_length",
    "max_loss",
    "max_memory",
    "max_queue",
    "max_size",
    "max_texts",
    "max_wait",
    "message",
    "metric",
    "model_instances",
    "onnx",
    "order",
    "out",
    "pair",
    "port",
    "precision",
    "pretrain",
    "private",
    "probabilities",
    "problem_type",
    "ray",
    "read_timeout",
    "reject",
    "reject_label",
    "rungs",
    "sample",
    "seed",
    "seeds",
    "shard_rows",
    "space",
    "spec",
    "strategy",
    "target",
    "task",
    "tasks",
    "test",
    "text",
    "text_b",
    "texts",
    "threads",
    "time",
    "timeout_graceful_shutdown",
    "token",
    "trials",
    "trust_remote_code",
    "unlabelled",
    "workers",
)
"""Python arguments that are a flag of at least one command."""

QUOTES = ("'", '"')
FLAGS = {name: f"--{name.replace('_', '-')}" for name in ARGUMENTS}
NEGATIVE_FLAGS = {"private": "--public"}
NAMES_IN_COMMAND = {
    "fit": {"data": "DATA", "source": "DATA"},
    "search": {"data": "DATA", "source": "DATA"},
    "evaluate": {"data": "DATA", "source": "DATA"},
    "predict": {"source": "--input", "texts": "TEXTS"},
    "export": {"out": "--onnx"},
}
"""Words for arguments that are positional in a command or have another name there."""

# An argument name, "=" and perhaps a value. After a slash or a quote it is part of a path, a URL or the user's data.
NAME, VALUE = r"""(?<![\w./?&'"-])([a-z]\w*)=""", r"""("[^"\n]*"|'[^'\n]*'|[\w+-](?:[\w.+-]*[\w+-])?)?(?![=\[({])"""
ARGUMENT = re.compile(rf"{NAME}{VALUE}(?:, (?=([a-z]\w*)=))?")


def translate(message: str, command: str | None = None) -> str:
    """Replace Python arguments in a message by flags: `label="x"` becomes `--label x`.

    Args:
        message: A message of the library.
        command: The command that runs, for arguments that have another name in it.
    """
    names = {**FLAGS, **NAMES_IN_COMMAND.get(command or "", {})}

    def replace(match: re.Match[str]) -> str:
        name, value, following = match.groups()
        if name not in names:
            return match[0]
        flag = to_flag(name, names[name], value)
        if following is None:
            return flag
        return f"{flag} " if value is not None and following in names else f"{flag}, "

    return ARGUMENT.sub(replace, message)


def to_flag(name: str, flag: str, value: str | None) -> str:
    """Return a flag with its value as a user would type it.

    Args:
        name: The Python argument.
        flag: Its flag.
        value: Its value in Python; None if the message names the argument only.
    """
    if value is None or value == "True":
        return flag
    if value == "None" and name == "time":
        return f"{flag} none"
    if value in ("False", "None"):
        return NEGATIVE_FLAGS.get(name, f"no {flag}")
    return f"{flag} {shlex.quote(value[1:-1]) if value[0] in QUOTES else value}"


def refuse_renamed(words: Iterable[str], flags: set[str]) -> None:
    """Refuse a flag that has a new name.

    Args:
        words: The words after the command.
        flags: All flags of the command.

    Raises:
        HeadhuntError: If a flag has a new name in this command.
    """
    for word in words:
        if word == "--":
            return
        flag = word.split("=")[0]
        if RENAMED_FLAGS.get(flag) in flags:
            raise HeadhuntError(f"{flag} has been renamed. Use {RENAMED_FLAGS[flag]}.")
