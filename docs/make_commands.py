"""Writes docs/commands.md from the commands themselves; a test holds the two equal."""

from __future__ import annotations

import os
from pathlib import Path

# Plain text of one width, whatever terminal this runs in.
os.environ.update(TERM="dumb", COLUMNS="100", NO_COLOR="1", TYPER_USE_RICH="0")

from typer.main import get_command
from typer.testing import CliRunner

from headhunt.cli import app

PAGE = Path(__file__).parent / "commands.md"


def render() -> str:
    """The page."""
    app.rich_markup_mode = None
    runner = CliRunner()
    parts = ["# Commands", "", "Made by `make docs` from the commands themselves.", ""]
    for words in [[], *[[name] for name in get_command(app).commands]]:  # type: ignore[attr-defined]
        shown = runner.invoke(app, [*words, "--help"], prog_name="headhunt", terminal_width=100).output
        parts += [f"## headhunt {' '.join(words)}".rstrip(), "", "```text", shown.strip(), "```", ""]
    codes = "0 done, 2 you can mend it (the message says how), 3 done but for files that cannot be read (predict)"
    parts += [f"Exit codes: {codes}, 1 a bug of ours, 130 stopped by you.", ""]
    return "\n".join(line.rstrip() for line in "\n".join(parts).split("\n"))


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
    print(f"wrote {PAGE.name}")
