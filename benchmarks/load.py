"""Measure the time and memory of loading a large CSV file: reading, checks, near-duplicates and splits.

`python benchmarks/load.py` writes a file of 1,000,000 rows unless it exists. It loads the file in a new process with an
empty cache, and prints the figures as one line of JSON at the end. `--quick` uses 50,000 rows.
"""

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from make_csv import write_csv

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
