"""Time and memory of loading a big CSV: read, check, find near-duplicates, split.

`python benchmarks/load.py` makes 1,000,000 rows where they are missing, loads them in a fresh process with an empty
cache, and prints the figures as one line of JSON at the end. `--quick` does it with 50,000 rows.
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


def load_in_fresh_process(path: Path) -> dict:
    """Load the file in a process of its own, so that its peak memory is that of loading alone."""
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "HEADHUNT_CACHE": cache}
        command = [sys.executable, "-c", _LOAD, str(path)]
        done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


def main() -> None:
    """Parse the command line, make the data, load them and report."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--quick", action="store_true", help="50,000 rows")
    parser.add_argument("--out", type=Path, help="also write the figures to this file")
    given = parser.parse_args()
    rows = 50_000 if given.quick else given.rows
    path = Path(tempfile.gettempdir()) / f"headhunt-load-{rows}.csv"
    if not path.exists():
        print(f"making {rows:,} rows in {path}", flush=True)
        unfinished = path.with_suffix(".part")
        write_csv(unfinished, rows)
        unfinished.replace(path)
    print(f"loading {path.stat().st_size / 1e6:.0f} MB", flush=True)
    figures = load_in_fresh_process(path)
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
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(report))


if __name__ == "__main__":
    main()
