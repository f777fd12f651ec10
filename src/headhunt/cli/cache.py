"""Commands that show and free disk space."""

from __future__ import annotations

from typing import Annotated

import typer

from headhunt.cli import options as opt
from headhunt.cli.output import print_json

KINDS = {
    "tables": "data files in the form of Arrow",
    "activations": "outputs of frozen layers",
    "exports": "models in the form of ONNX",
    "encoders": "encoders that were trained further",
}


def cache(
    clear: Annotated[bool, typer.Option("--clear", help="Remove everything in the cache.")] = False,
    json_: opt.Json = False,
) -> None:
    """Show the cache and its size, or clear it. Everything in it can be computed again."""
    from headhunt import storage

    root = storage.cache_root()
    sizes = {name: storage.directory_size(root / name) for name in KINDS}
    removed = 0
    if clear:
        removed = sum(storage.prune_cache(name, max_bytes=-1) for name in KINDS)
        sizes = {name: storage.directory_size(root / name) for name in KINDS}
    if json_:
        print_json({"folder": str(root), "bytes": sizes, "removed": removed})
        return
    for name, size in sizes.items():
        print(f"{size / 1e6:10,.1f} MB  {name}: {KINDS[name]}")
    print(f"{root}: removed {removed / 1e6:,.1f} MB" if clear else f"{root}; clear it with  headhunt cache --clear")


def clean(run: opt.RunFolder, json_: opt.Json = False) -> None:
    """Remove the checkpoints of a run that nothing needs. Its models, scores and report stay.

    If the search is resumed, trials without a checkpoint are trained from the start.
    """
    from headhunt import storage
    from headhunt.run.directory import RunDirectory
    from headhunt.run.ledger import clean

    removed, left = clean(RunDirectory(run)), storage.directory_size(run)
    if json_:
        print_json({"run": str(run), "removed": removed, "bytes": left})
        return
    print(f"{run}: removed {removed / 1e6:,.1f} MB; {left / 1e6:,.1f} MB are left")
