"""Assemble the commands into one application and turn errors into messages and exit codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from headhunt.cli import deliver, maintain, models, search, unlabelled
from headhunt.cli.output import log
from headhunt.errors import HeadhuntError
from headhunt.storage import CacheOwnerError, disk_failed


class Commands(TyperGroup):
    """The group of all commands.

    Exit codes: 2 for an error that the user can fix, 130 for Ctrl-C. Any other exception is a bug in Headhunt: its
    traceback is printed and the exit code is 1.
    """

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except HeadhuntError as error:
            _refuse(describe(error, self.commands[ctx.invoked_subcommand]))
        except CacheOwnerError as error:
            _refuse(str(error))
        except KeyboardInterrupt:
            log("stopped")
            raise typer.Exit(130) from None
        except BrokenPipeError:
            # The reader of the pipe has closed it (`headhunt … | head`). Python must not write there again at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None
        except PermissionError as error:
            name = error.filename or "the file"
            _refuse(f"{name} must be readable and writable by this user; found {error.strerror}.")
        except OSError as error:
            if not disk_failed(error):
                raise
            _refuse(f"the disk must have free space and work; found {error}. Free some space, then try again.")
        return result


def _refuse(message: str) -> NoReturn:
    """End with the message of an error that the user can fix."""
    log(f"error: {message}")
    raise typer.Exit(2) from None


def describe(error: HeadhuntError, command: Any) -> str:
    """Return the message of an error, in which the argument of the library has its name in a command."""
    if error.argument is None:
        return error.message
    names = {param.name: param.opts[0] if param.opts[0].startswith("--") else param.metavar for param in command.params}
    return f"{names.get(error.argument, error.argument)} {error.message}"


app = typer.Typer(
    name="headhunt",
    cls=Commands,
    help="Find the right head for your encoder.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def print_version(value: bool) -> None:
    """Print the version and exit if `--version` was given."""
    if value:
        import headhunt

        print(f"headhunt {headhunt.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Find the right head for your encoder."""


GROUPS: dict[str, list[Callable[..., None]]] = {
    "Search": [
        search.demo,
        search.search,
        search.resume,
        search.status,
        search.watch,
        search.report,
        search.verdict,
        search.ablate,
        search.export_study,
        search.space,
        search.experiment,
    ],
    "Train and use one model": [models.fit, models.evaluate, models.predict],
    "Learn from texts without labels": [unlabelled.pretrain, unlabelled.distil],
    "Deliver": [deliver.export, deliver.serve, deliver.push],
    "Maintain": [maintain.cache, maintain.clean, maintain.doctor],
}
for panel, commands in GROUPS.items():
    for command in commands:
        app.command(rich_help_panel=panel)(command)


def main() -> None:
    """Run the command line."""
    app(prog_name="headhunt")
