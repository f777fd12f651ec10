"""Commands that search and that work on the run directory of a search."""

from __future__ import annotations

from pathlib import Path
from time import time as clock
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headhunt.cli import options as opt
from headhunt.cli.output import (
    print_ablation,
    print_notes,
    print_search,
    print_space,
    search_view,
)
from headhunt.errors import HeadhuntError
from headhunt.spec import DEFAULT_ENCODER

if TYPE_CHECKING:
    from headhunt.data import Task
    from headhunt.engine.search import Search

OVERHEAD, OVERHEAD_FRACTION = 10.0, 0.15  # of the time, for starting the program, ending workers and writing the report


def search(
    data: opt.SearchedData = None,
    out: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Run directory.", show_default="a new one in runs/")
    ] = None,
    json_: opt.Json = False,
    tasks: opt.Tasks = None,
    text: opt.Text = None,
    text_b: opt.TextB = None,
    label: opt.Label = None,
    group: opt.Group = None,
    order: opt.Order = None,
    problem_type: opt.ProblemType = None,
    test: opt.Test = None,
    limit: opt.Limit = None,
    unlabelled: opt.Unlabelled = None,
    time: opt.Time = "10m",
    trials: opt.Trials = None,
    target: opt.Target = None,
    space: opt.SpaceName = "default",
    strategy: opt.StrategyOption = opt.Strategy.prior,
    known_recipes: opt.KnownRecipes = True,
    learn_from: opt.LearnFrom = None,
    rungs: opt.RungsOption = True,
    metric: opt.Metric = None,
    max_latency: opt.MaxLatency = None,
    max_size: opt.MaxSize = None,
    max_memory: opt.MaxMemory = None,
    deliver: opt.Deliver = "best",
    encoder: opt.Encoders = None,
    max_length: opt.MaxLength = None,
    pretrain: opt.Pretrain = None,
    seed: opt.Seed = 0,
    precision: opt.PrecisionOption = opt.Precision.auto,
    calibrate: opt.Calibrate = False,
    reject: opt.Reject = None,
    reject_label: opt.RejectLabel = None,
    trust_remote_code: opt.TrustRemoteCode = False,
    workers: opt.Workers = None,
    ray: opt.Ray = None,
    device: opt.Device = None,
) -> None:
    """Search for the best head and training recipe, and save the best model.

    Press Ctrl-C once to end the search within a minute, with the best model so far; twice to stop at once.
    """
    started = clock()
    from headhunt.engine.preloading import preload_workers

    preload_workers(workers, device, ray)  # before anything else is loaded: it takes longest
    from headhunt.engine import search as engine
    from headhunt.engine.options import choose_metric, parse_duration
    from headhunt.engine.workers import rows_within
    from headhunt.report.terminal import SearchView

    if out is not None:
        opt.check_out(out)
    check_quantities(time, max_latency, max_size, max_memory)
    columns: dict[str, Any] = {"text": text, "text_b": text_b, "label": label, "problem_type": problem_type}
    columns |= {"group": group, "order": order, "test": test}
    columns |= {"max_rows": rows_within(parse_duration(time), limit, device, ray)} if tasks is None else {}
    task = load_data(data, tasks, limit, seed, columns)
    print_notes(task)
    limits: dict[str, Any] = {"time": time, "started": started - overhead(time), "trials": trials, "target": target}
    limits |= {"max_latency": max_latency, "max_size": max_size, "max_memory": max_memory}
    choices: dict[str, Any] = {"space": space, "strategy": strategy.value, "metric": metric, "deliver": deliver}
    choices |= {"known_recipes": known_recipes, "learn_from": learn_from or (), "rungs": rungs}
    encoders = encoder[0] if encoder and len(encoder) == 1 else encoder
    training: dict[str, Any] = {"encoder": encoders, "max_length": max_length, "seed": seed}
    training |= {"unlabelled": unlabelled, "pretrain": pretrain}
    training |= {"precision": precision.value, "calibrate": calibrate, "trust_remote_code": trust_remote_code}
    training |= {"reject": reject, "reject_label": reject_label}
    compute: dict[str, Any] = {"workers": workers, "ray": ray, "device": device}
    view = SearchView(choose_metric(task, metric))
    end_search(engine.search(task, out=out, **limits, **choices, **training, **compute, view=view), json_)


def resume(
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
    trust_remote_code: opt.RunTrustRemoteCode = False,
    json_: opt.Json = False,
    workers: opt.RunWorkers = None,
    ray: opt.Ray = None,
) -> None:
    """Resume a search that was stopped, or continue one that has ended.

    Give --ray and --trust-remote-code again: they are not stored in the run.
    """
    from headhunt.engine import search as engine

    compute: dict[str, Any] = {"workers": workers, "ray": ray, "trust_remote_code": trust_remote_code}
    view = search_view(run)
    end_search(engine.resume(run, time=time, trials=trials, view=view, **compute), json_)


def verdict(
    run: opt.RunFolder,
    seeds: Annotated[
        int, typer.Option(min=1, metavar="N", help="Training runs of the winner and of the plain head.")
    ] = 3,
    time: opt.StepTime = None,
    trust_remote_code: opt.RunTrustRemoteCode = False,
    json_: opt.Json = False,
    workers: opt.RunWorkers = None,
    ray: opt.Ray = None,
) -> None:
    """Compare the winner of a search with the plain head again, each trained with several seeds.

    Give --ray and --trust-remote-code again: they are not stored in the run.
    """
    from headhunt.engine import search as engine

    compute: dict[str, Any] = {"workers": workers, "ray": ray, "trust_remote_code": trust_remote_code}
    view = search_view(run)
    end_search(engine.verdict(run, seeds=seeds, time=time, view=view, **compute), json_)


def ablate(
    run: opt.RunFolder,
    seeds: Annotated[int, typer.Option(min=1, metavar="N", help="Training runs of each variant.")] = 1,
    time: opt.StepTime = None,
    trust_remote_code: opt.RunTrustRemoteCode = False,
    json_: opt.Json = False,
    workers: opt.RunWorkers = None,
    ray: opt.Ray = None,
) -> None:
    """Measure how much each part of the winner contributes to its score.

    Each variant lacks one part of the head, or has one item of the training recipe at its default.

    Give --ray and --trust-remote-code again: they are not stored in the run.
    """
    from headhunt.engine import search as engine

    compute: dict[str, Any] = {"workers": workers, "ray": ray, "trust_remote_code": trust_remote_code}
    view = search_view(run)
    print_ablation(engine.ablate(run, seeds=seeds, time=time, view=view, **compute), json_)
    if not json_:
        report(run)


def report(run: opt.RunFolder) -> None:
    """Write RUN/report.html, a self-contained page, and its data as RUN/report.json."""
    from headhunt.report import write

    print(f"report in {write(run)}")


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


def load_data(data: str | None, tasks: str | None, limit: int | None, seed: int, columns: dict[str, Any]) -> Task:
    """Load one task or several.

    Raises:
        HeadhuntError: If both or neither were given, or columns are given for several tasks.
    """
    from headhunt.data import Task, load_tasks

    if (data is None) == (tasks is None):
        found = "neither" if data is None else "both"
        raise HeadhuntError(f"Give DATA for one task or --tasks for several; found {found}.")
    if tasks is None:
        return Task.load(data, limit=limit, seed=seed, **columns)
    given = [f"--{name.replace('_', '-')}" for name, value in columns.items() if value is not None]
    if given:
        raise HeadhuntError(f"{', '.join(given)} cannot be given with --tasks; write them in the tables of the file.")
    return load_tasks(tasks, limit=limit, seed=seed)


def overhead(time: str | None) -> float:
    """Return the seconds of a time limit that the program needs beside the search itself."""
    from headhunt.engine.options import parse_duration

    seconds = parse_duration(time)
    return 0.0 if seconds is None else min(OVERHEAD, OVERHEAD_FRACTION * seconds)


def check_quantities(
    time: str | None, max_latency: str | None, max_size: str | None, max_memory: str | None = None
) -> None:
    """Refuse a wrong duration or size before the data is read."""
    from headhunt.engine.options import MEGABYTES, MILLISECONDS, parse_duration, parse_quantity

    parse_duration(time)
    parse_quantity(max_latency, MILLISECONDS, "max_latency", "20ms")
    parse_quantity(max_size, MEGABYTES, "max_size", "60MB")
    parse_quantity(max_memory, MEGABYTES, "max_memory", "4GB")


def end_search(search: Search, as_json: bool) -> None:
    """Print the result of a search and write its report.

    Raises:
        HeadhuntError: If there is no model.
    """
    print_search(search, as_json)
    if not as_json:
        report(search.run_dir)
    if search.model_dir is None:
        run = search.run_dir
        raise HeadhuntError(f"{run} has no model yet. Continue the search: headhunt resume {run} --time 10m")
