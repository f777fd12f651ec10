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
    "data",
    "device",
    "dry_run",
    "encoder",
    "host",
    "input",
    "int8",
    "keep",
    "label",
    "layers",
    "limit",
    "max_batch",
    "max_body",
    "max_characters",
    "max_latency",
    "max_length",
    "max_loss",
    "max_queue",
    "max_size",
    "max_texts",
    "max_wait",
    "message",
    "metric",
    "model_instances",
    "onnx",
    "out",
    "pair",
    "port",
    "precision",
    "private",
    "probabilities",
    "problem_type",
    "ray",
    "read_timeout",
    "sample",
    "seed",
    "seeds",
    "shard_rows",
    "space",
    "spec",
    "strategy",
    "target",
    "test",
    "text",
    "text_b",
    "threads",
    "time",
    "timeout_graceful_shutdown",
    "token",
    "trials",
    "trust_remote_code",
    "workers",
)
"""Python arguments that are a flag of at least one command."""

FLAGS = {name: f"--{name.replace('_', '-')}" for name in ARGUMENTS}
NEGATIVE_FLAGS = {"private": "--public"}
NAMES_IN_COMMAND = {
    "fit": {"data": "DATA", "source": "DATA"},
    "search": {"data": "DATA", "source": "DATA"},
    "evaluate": {"data": "DATA", "source": "DATA"},
    "predict": {"source": "--input"},
    "export": {"out": "--onnx"},
}
"""Words for arguments that are positional in a command or have another name there."""

# An argument name, "=" and perhaps a value. After a slash or a quote it is part of a path, a URL or the user's data.
ARGUMENT = re.compile(r"""(?<![\w./?&'"-])([a-z]\w*)=("[^"\n]*"|'[^'\n]*'|[\w+-](?:[\w.+-]*[\w+-])?)?(?!=)""")


def translate(message: str, command: str | None = None) -> str:
    """Replace Python arguments in a message by flags: `label="x"` becomes `--label x`.

    Args:
        message: A message of the library.
        command: The command that runs, for arguments that have another name in it.
    """
    names = {**FLAGS, **NAMES_IN_COMMAND.get(command or "", {})}

    def to_flag(match: re.Match[str]) -> str:
        name, value = match.groups()
        if name not in names:
            return match[0]
        flag = names[name]
        if value is None or value == "True":
            return flag
        if value == "None" and name == "time":
            return f"{flag} none"
        if value in ("False", "None"):
            return NEGATIVE_FLAGS.get(name, f"no {flag}")
        if value[0] in "\"'":
            value = shlex.quote(value[1:-1])
        return f"{flag} {value}"

    return ARGUMENT.sub(to_flag, message)


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
