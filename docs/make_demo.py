"""Record `headhunt demo` as a picture: `python docs/make_demo.py [ENCODER]` writes docs/demo.svg from a real run."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text


def main() -> None:
    """Run the demo in an empty folder and draw what it prints."""
    command = ["headhunt", "demo"]
    options = ["--encoder", sys.argv[1]] if len(sys.argv) > 1 else []
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.run(  # noqa: S603 - our own program
            [sys.executable, "-m", "headhunt.cli", *command[1:], *options],
            cwd=folder,
            env={**os.environ, "COLUMNS": "96"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=True,
        )
    console = Console(record=True, width=96, file=Path(os.devnull).open("w"))  # noqa: SIM115 - closed at exit
    console.print(Text(f"$ {' '.join(command)}", "bold green"))
    for line in process.stdout.splitlines():
        label = line[:9].strip()
        style = "bold" if label == "RESULT" else "dim" if line.startswith("[") else ""
        console.print(Text(line, style))
    console.save_svg(str(Path(__file__).with_name("demo.svg")), title="headhunt")


if __name__ == "__main__":
    main()
