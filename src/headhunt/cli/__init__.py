"""The command line, one module per group of commands."""

from headhunt.cli.app import app, main

__all__ = ["app", "main"]
