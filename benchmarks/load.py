"""Measure the time and memory of loading a large CSV file: reading, checks, near-duplicates and splits.

`python benchmarks/load.py` writes a file of 1,000,000 rows unless it exists. It loads the file in a new process with an
empty cache, and prints the figures as one line of JSON at the end. `--quick` uses 50,000 rows.

The texts resemble short reviews. Word frequencies follow Zipf's law, and lengths are log-normal. Classes share most of
their words. As in scraped data, some rows repeat others exactly or with an additional word.
"""

import argparse
import csv
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import numpy as np

LABELS = ("delivery", "food", "price", "quality", "service")
_COMMON = """the a and of to in is it was for with on that this but not very we they had have were so at as my be there
all our from place good great food service time really would back just like out up one if about get when which more"""
_SPECIAL = {
    "delivery": "late early parcel courier box tracking arrived shipped packaging doorstep driver damaged",
    "food": "tasty soup bland fresh dessert spicy salad menu portion chicken noodles coffee",
    "price": "cheap expensive refund discount value bill charged overpriced bargain cost deal fee",
    "quality": "broken sturdy material stitching flimsy durable finish scratched leather solid faulty cracked",
    "service": "waiter rude friendly helpful manager queue ignored staff polite attentive answered waited",
}
_ONSETS = "b c d f g h l m n p r s t v st tr ch"
_BLOCK = 20_000


def make_vocabulary(random: np.random.Generator, size: int = 20_000) -> np.ndarray:
    """Return common English words, followed by invented words."""
    syllables = [onset + vowel for onset in _ONSETS.split() for vowel in "aeiou"]
    invented = {"".join(random.choice(syllables, random.integers(2, 5))) for _ in range(size)}
    common = _COMMON.split()
    return np.array(common + sorted(invented - set(common)), dtype=object)


def generate_texts(rows: int, seed: int = 0) -> Iterator[tuple[str, str]]:
    """Yield (text, label). Random numbers are drawn for a block of rows at a time."""
    random = np.random.default_rng(seed)
    words = make_vocabulary(random)
    weights = 1 / (np.arange(len(words)) + 2.7)
    special = [_SPECIAL[label].split() for label in LABELS]
    text = label = ""
    cumulative = np.cumsum(weights / weights.sum())
    for start in range(0, rows, _BLOCK):
        count = min(_BLOCK, rows - start)
        lengths = np.clip(random.lognormal(3.1, 0.5, count), 4, 200).astype(int)
        drawn = words[np.searchsorted(cumulative, random.random(lengths.sum()))].tolist()
        classes = random.choice(len(LABELS), count, p=(0.1, 0.3, 0.15, 0.2, 0.25))
        choices = random.integers(0, 12, (count, 3))
        repeats = random.random(count)
        at = 0
        for row in range(count):
            own = drawn[at : at + lengths[row]]
            at += lengths[row]
            own[1:1] = [special[classes[row]][choice] for choice in choices[row]]
            if repeats[row] < 0.01 and text:
                yield text, label
                continue
            if repeats[row] < 0.02 and text:
                yield f"{text} {own[0]}", label
                continue
            half = len(own) // 2
            text = f"{' '.join(own[:half]).capitalize()}, {' '.join(own[half:])}{'!' if repeats[row] > 0.9 else '.'}"
            if repeats[row] > 0.97:
                text = f'They said "{own[0]}": {text}'
            label = LABELS[classes[row]]
            yield text, label


def write_csv(path: Path, rows: int, seed: int = 0) -> None:
    """Write the file, row by row."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("id", "text", "label"))
        writer.writerows((number, *row) for number, row in enumerate(generate_texts(rows, seed)))


_LOAD = """
import json, resource, sys, time
started = time.perf_counter()
from headhunt.data import Task
task = Task.load(sys.argv[1])
seconds = time.perf_counter() - started
for line in task.notes + task.warnings:
    print(line, file=sys.stderr)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
rows = {name: len(split) for name, split in task.splits.items()}
print(json.dumps({"seconds": round(seconds, 2), "rss_gb": round(peak / 1e9, 3), "splits": rows}))
"""


def load_in_new_process(path: Path) -> dict:
    """Load the file in a new process, so that the peak memory is that of loading only."""
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "HEADHUNT_CACHE": cache}
        command = [sys.executable, "-c", _LOAD, str(path)]
        process = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(process.stdout)


def main() -> None:
    """Parse the command line, write the data, load them and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the file")
    parser.add_argument("--quick", action="store_true", help="use 50,000 rows")
    parser.add_argument("--out", type=Path, help="also write the figures to this file")
    args = parser.parse_args()
    rows = 50_000 if args.quick else args.rows
    path = Path(tempfile.gettempdir()) / f"headhunt-load-{rows}.csv"
    if not path.exists():
        print(f"writing {rows:,} rows to {path}", flush=True)
        unfinished = path.with_suffix(".part")
        write_csv(unfinished, rows)
        unfinished.replace(path)
    print(f"loading {path.stat().st_size / 1e6:.0f} MB", flush=True)
    figures = load_in_new_process(path)
    report = {
        **figures,
        "rows": rows,
        "megabytes": round(path.stat().st_size / 1e6, 1),
        "command": f"python benchmarks/load.py --rows {rows}",
        "versions": {
            "python": platform.python_version(),
            "numpy": version("numpy"),
            "pyarrow": version("pyarrow"),
            "cores": os.cpu_count(),
        },
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(report))


if __name__ == "__main__":
    main()
