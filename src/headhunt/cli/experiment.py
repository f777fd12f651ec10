"""The command that runs a grid of searches."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headhunt.cli.output import log


def experiment(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="TOML file of the experiment.", exists=True)],
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of the experiment.", show_default="runs/NAME")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder that paths are relative to.", show_default="that of the file"),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(metavar="AXIS=NAME", help="Only some searches: set=rte. May be repeated.")
    ] = None,
    ray: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Ray cluster; local starts Ray on this machine.")
    ] = None,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run code that comes with an encoder.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list the searches and their time.")] = False,
) -> None:
    """Run a grid of searches from a file and compare them; repeat the command to continue."""
    from headhunt.engine.experiment import experiment as run
    from headhunt.report.terminal import format_duration

    folder = out or Path("runs") / file.stem
    rows = run(
        file,
        out=folder,
        data=data,
        only=only or (),
        dry_run=dry_run,
        progress=log,
        ray=ray,
        trust_remote_code=trust_remote_code,
    )
    if dry_run:
        for row in rows:
            print(*(f"{name}={value}" for name, value in row.items() if value not in (None, False)))
        left = sum(row["seconds"] or 0.0 for row in rows if not row["finished"])
        print(f"{len(rows)} searches, {format_duration(left)} left")
        return
    for row in (row for row in rows if "error" in row):
        log(f"error: {row['set']}, {row['encoder']}, seed {row['seed']}: {row['error']}")
    if (folder / "table.md").is_file():
        print((folder / "table.md").read_text(encoding="utf-8"))
