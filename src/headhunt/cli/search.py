"""Commands that search and that work on the run directory of a search."""

from __future__ import annotations

import shutil
from pathlib import Path
from time import time as clock
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headhunt.cli import options as opt
from headhunt.cli.output import log, print_ablation, print_notes, print_search, print_space
from headhunt.errors import HeadhuntError, ModelError
from headhunt.run.settings import SearchOptions, read_config, write_config
from headhunt.spec import DEFAULT_ENCODER

if TYPE_CHECKING:
    from headhunt.data import Task
    from headhunt.engine.search import Search

OVERHEAD, OVERHEAD_FRACTION = 2.5, 0.04  # of the time, for starting the program, ending workers and writing the report


@opt.expand
def search(
    *,
    data: opt.SearchedData = None,
    out: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Run directory.", show_default="a new one in runs/")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="TOML file of options. Those of the command line win.")
    ] = None,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print all options as TOML, and do nothing else.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check data and encoder, print the plan, and train nothing.")
    ] = False,
    json_: opt.Json = False,
    given: opt.Searching,
) -> None:
    """Search for the best head and training recipe, and save the best model.

    Press Ctrl-C once to end the search within a minute, with the best model so far; twice to stop at once.
    """
    started = clock()
    tasks, callbacks = given.pop("tasks", None), given.pop("log", [])
    cluster = {name: given.pop(name) for name in ("ray", "trust_remote_code") if name in given}
    given = {**(read_config(config) if config else {}), **given}
    options = {name: value for name, value in given.items() if name in SearchOptions.__dataclass_fields__}
    table = {name: value for name, value in given.items() if name not in options}
    chosen = SearchOptions(**options)
    if print_config:
        print(write_config(given))
        return
    if chosen.encoder is not None:
        from headhunt.engine.encoders import find_encoders

        names = find_encoders(chosen.encoder)  # a wrong path is refused at once
        options["encoder"] = names[0] if len(names) == 1 else names
    from headhunt.engine.preloading import preload_workers

    ray = cluster.get("ray")
    preload_workers(chosen.workers, chosen.device, ray)  # before anything else is loaded: it takes longest
    from headhunt.engine import search as engine
    from headhunt.engine.workers import rows_within
    from headhunt.report.terminal import search_view

    if out is not None:
        opt.check_out(out)
    rows = rows_within(chosen.time, table.get("limit"), chosen.device, ray)
    task = load_data(data, tasks, rows, chosen.seed, table)
    print_notes(task)
    if dry_run:
        print(engine.plan(task, **options, **cluster).sentence)
        return
    shown: dict[str, Any] = {"started": started - overhead(chosen.time), "callbacks": [search_view(), *callbacks]}
    end_search(engine.search(task, out=out, **shown, **options, **cluster), json_)


@opt.expand
def resume(
    *,
    run: opt.RunFolder,
    time: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION", help="Additional time, such as 10m, or none.", show_default="the time that is left"
        ),
    ] = None,
    trials: Annotated[
        int | None, typer.Option(metavar="N", help="Maximum number of trials, earlier ones included.")
    ] = None,
    json_: opt.Json = False,
    given: opt.Resuming,
) -> None:
    """Resume a search that was stopped, or continue one that has ended.

    Give --ray and --trust-remote-code again: they are not stored in the run.
    """
    from headhunt.engine import search as engine
    from headhunt.report.terminal import search_view

    callbacks = [search_view(), *given.pop("log", [])]
    end_search(engine.resume(run, time=time, trials=trials, callbacks=callbacks, **given), json_)


@opt.expand
def verdict(
    *,
    run: opt.RunFolder,
    seeds: Annotated[
        int, typer.Option(min=1, metavar="N", help="Training runs of the winner and of the plain head.")
    ] = 3,
    time: opt.StepTime = None,
    json_: opt.Json = False,
    given: opt.Evaluating,
) -> None:
    """Compare the winner of a search with the plain head again, each trained with several seeds.

    Give --ray and --trust-remote-code again: they are not stored in the run.
    """
    from headhunt.engine import search as engine
    from headhunt.report.terminal import search_view

    end_search(engine.verdict(run, seeds=seeds, time=time, callbacks=[search_view()], **given), json_)


@opt.expand
def ablate(
    *,
    run: opt.RunFolder,
    seeds: Annotated[int, typer.Option(min=1, metavar="N", help="Training runs of each variant.")] = 1,
    time: opt.StepTime = None,
    json_: opt.Json = False,
    given: opt.Evaluating,
) -> None:
    """Measure how much each part of the winner contributes to its score.

    Each variant lacks one part of the head, or has one item of the training recipe at its default.

    Give --ray and --trust-remote-code again: they are not stored in the run.
    """
    from headhunt.engine import search as engine
    from headhunt.report.terminal import search_view

    print_ablation(engine.ablate(run, seeds=seeds, time=time, callbacks=[search_view()], **given), json_)
    if not json_:
        report(run)


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

    opt.check_out(out)
    try:
        name = find_encoder(encoder or DEFAULT_ENCODER)
    except ModelError:
        raise HeadhuntError(
            f"The demo needs an encoder, and {encoder or DEFAULT_ENCODER} is not here: connect to the network once, or "
            "give one with  headhunt demo --encoder FOLDER."
        ) from None
    search(data=str(DEMO), out=out, time=time, encoder=[name])
    print(f"{'':<9}measure its parts  headhunt ablate {out}")
    print(f"{'':<9}own experiments    headhunt demo --csv reviews.csv")


def report(run: opt.RunFolder) -> None:
    """Write RUN/report.html, a self-contained page, and its data as RUN/report.json."""
    from headhunt.report import write

    print(f"report in {write(run)}")


def watch(
    run: opt.RunFolder,
    port: Annotated[int, typer.Option(min=0, max=65535, metavar="N", show_default="a free one", help="Port.")] = 0,
) -> None:
    """Show the report of a search as a live page on this machine, until Ctrl-C.

    Open the address that is printed. The page follows the search, and only those who know the address can read it.
    """
    from headhunt.report.watch import watch as serve

    serve(run, port=port, notify=lambda address: print(address, flush=True))


def export_study(run: opt.RunFolder) -> None:
    """Write the trials as RUN/optuna.journal, a study of Optuna, for optuna-dashboard and Optuna's plots."""
    from headhunt.report.optuna_study import export_study as export

    print(f"study in {(path := export(run))}: try  optuna-dashboard {path}")


def status(run: opt.RunFolder, json_: opt.Json = False) -> None:
    """Show the progress or the result of a search."""
    from headhunt.engine.search import Search

    print_search(Search(run), json_)


def space(
    name: Annotated[str, typer.Argument(metavar="SPACE", help="default, paper, encoder, or a TOML or JSON file.")],
    sample: Annotated[
        int, typer.Option(metavar="N", help="Draw N candidates, one JSON object per line, for fit --spec.")
    ] = 0,
    seed: Annotated[int, typer.Option(metavar="N", help="Random seed.")] = 0,
    encoder: Annotated[str, typer.Option(metavar="ENCODER", help="Encoder of the candidates.")] = DEFAULT_ENCODER,
    layers: Annotated[
        int, typer.Option(metavar="N", help="Number of layers of the encoder; it limits how many can be frozen.")
    ] = 6,
    pair: Annotated[bool, typer.Option("--pair", help="Draw candidates for pairs of texts.")] = False,
    json_: opt.Json = False,
) -> None:
    """Show a search space and its number of architectures, or draw candidates from it."""
    from headhunt.spec import Space

    chosen = Space.load(name, layers)
    if not sample:
        print_space(chosen, json_)
    for number in range(sample):
        print(chosen.draw(seed * 1_000_003 + number, encoder=encoder, pair=pair).to_json())


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
    options: dict[str, Any] = {"only": only or (), "ray": ray, "trust_remote_code": trust_remote_code}
    rows = run(file, out=folder, data=data, dry_run=dry_run, progress=log, **options)
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


def load_data(data: str | None, tasks: str | None, max_rows: int | None, seed: int, table: dict[str, Any]) -> Task:
    """Load one task or several.

    Raises:
        HeadhuntError: If both or neither were given, or columns are given for several tasks.
    """
    from headhunt.data import Task, load_tasks

    if (data is None) == (tasks is None):
        found = "neither" if data is None else "both"
        raise HeadhuntError(f"Give DATA for one task or --tasks for several; found {found}.")
    if tasks is None:
        return Task.load(data, max_rows=max_rows, seed=seed, **table)
    limit = table.pop("limit", None)
    if table:
        given = ", ".join(f"--{name.replace('_', '-')}" for name in table)
        raise HeadhuntError(f"{given} cannot be given with --tasks; write them in the tables of the file.")
    return load_tasks(tasks, limit=limit, seed=seed)


def overhead(seconds: float | None) -> float:
    """Return the seconds of a time limit that the program needs beside the search itself."""
    return 0.0 if seconds is None else min(OVERHEAD, OVERHEAD_FRACTION * seconds)


def end_search(search: Search, as_json: bool) -> None:
    """Write the report of a search and print its result.

    Raises:
        HeadhuntError: If there is no model.
    """
    from headhunt.report import write

    if not as_json:
        write(search.run_dir)
    print_search(search, as_json, leaderboard=search.result is None)
    if search.model_dir is None:
        run = search.run_dir
        raise HeadhuntError(f"{run} has no model yet. Continue the search: headhunt resume {run} --time 10m")
