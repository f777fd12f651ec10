"""The command that shows a whole search on data that comes with the package."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

from headhunt.cli import options as opt
from headhunt.cli import search
from headhunt.errors import HeadhuntError, ModelError


def demo(
    csv: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Only write the data to this CSV file, to try commands on.")
    ] = None,
    out: Annotated[Path, typer.Option(metavar="RUN", help="Run directory.")] = Path("demo"),
    time: Annotated[str, typer.Option(metavar="DURATION", help="Total time limit.")] = "90s",
    encoder: Annotated[
        str | None, typer.Option(metavar="ENCODER", help="Encoder: Hugging Face name or folder.")
    ] = None,
) -> None:
    """Run a search on 400 questions to a bank, which come with the package, and show what to try next."""
    from headhunt.data.datasets import DEMO

    if csv is not None:
        if csv.exists():
            raise HeadhuntError(f"--csv must be a new file; {csv} exists. Give another name.")
        shutil.copyfile(DEMO, csv)
        print(f"400 rows in {csv}: try  headhunt search {csv} --time 2m --out run")
        return
    from headhunt.engine.encoders import find_encoder
    from headhunt.spec import DEFAULT_ENCODER

    opt.check_out(out)
    try:
        name = find_encoder(encoder or DEFAULT_ENCODER)
    except ModelError:
        raise HeadhuntError(
            f"The demo needs an encoder, and {encoder or DEFAULT_ENCODER} is not here: connect to the network once, or "
            "give one with  headhunt demo --encoder FOLDER."
        ) from None
    search.search(data=str(DEMO), out=out, time=time, encoder=[name])
    print("\nTry next:")
    print(f'  headhunt predict {out / "model"} "My new card has not come yet"')
    print(f"  headhunt ablate {out}")
    print("  headhunt demo --csv reviews.csv")
