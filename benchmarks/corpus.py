"""Measure the correctness, speed and memory of labelling a corpus on two Ray workers while processes are killed.

The corpus consists of short texts of eight data sets in random order, in Parquet files, with a number for each row.
The model is the plain head on MiniLM. `headhunt predict` is started, its driver is killed with SIGKILL, it is started
again, and one worker is killed. The bare loop is `Predictor.outputs` over texts in memory, in two processes with one
thread each. It is measured before, between and after these runs. The speed of the corpus is measured between shards
while no process is killed; the start of Ray counts only in `seconds`. `--quick` kills only a worker, because Ray takes
long to start again.

    python benchmarks/corpus.py --data DIR --out benchmarks/results/corpus.json
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from measure import encoder_folder, finish, options

SETS = ("sst2", "mr", "subj", "trec6", "banking77", "clinc150", "goemotions", "cola")
FILES = 8
WORKERS = 2
BARE = """
import sys, time, torch
import pyarrow.parquet as pq
torch.set_num_threads(1)
from headhunt.predictor import Predictor
model, file, rows = sys.argv[1], sys.argv[2], int(sys.argv[3])
predictor = Predictor.load(model)
texts = pq.read_table(file, columns=["text"])["text"][:rows].to_pylist()
predictor.outputs(texts[:256])
print("ready", flush=True)
for _ in sys.stdin:
    started = time.perf_counter()
    predictor.outputs(texts)
    print(len(texts) / (time.perf_counter() - started), flush=True)
"""


class BareLoop:
    """Two processes that measure the bare loop on request."""

    def __init__(self, model: Path, files: list[Path], rows: int) -> None:
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-c", BARE, str(model), str(file), str(rows)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
            for file in files[:WORKERS]
        ]
        for process in self._processes:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"

    def rate(self) -> float:
        """Return the rows per second of both processes together."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        rate = sum(float(process.stdout.readline()) for process in self._processes if process.stdout)
        print(f"bare loop: {rate:,.0f} rows/s", flush=True)
        return rate

    def end(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.communicate()


def make_corpus(data: Path, folder: Path, rows: int) -> list[Path]:
    """Write files of texts in random order; texts are repeated under other numbers if there are too few."""
    texts = pa.concat_arrays(
        [
            pq.read_table(data / name / "train.parquet", columns=["text"])["text"].cast(pa.string()).combine_chunks()
            for name in SETS
        ]
    )
    rng = np.random.default_rng(0)
    order = np.concatenate([rng.permutation(len(texts)) for _ in range(-(-rows // len(texts)))])[:rows]
    files = []
    for number, rows_of_file in enumerate(np.array_split(np.arange(rows), FILES)):
        table = pa.table({"id": pa.array(rows_of_file), "text": texts.take(pa.array(order[rows_of_file]))})
        files.append(folder / f"texts-{number}.parquet")
        pq.write_table(table, files[-1])
    return files


def make_model(data: Path, encoder: str, folder: Path) -> None:
    """Train and save the plain head."""
    from headhunt.engine import api
    from headhunt.spec import Recipe, Spec

    spec = Spec(
        encoder=encoder, recipe=Recipe(learning_rate=1e-3, epochs=1, batch_size=32, freeze="all", max_length=128)
    )
    api.fit(str(data / "sst2"), spec=spec, limit=256, out=folder)


class Run:
    """A process of `headhunt predict`, and the peak memory of its workers."""

    def __init__(self, model: Path, folder: Path, shard_rows: int) -> None:
        self.out = folder / "out"
        self.before = len(self.shards())
        words = ["predict", model, "--input", folder / "in" / "*.parquet", "--out", self.out]
        words += ["--workers", WORKERS, "--shard-rows", shard_rows]
        self._log = folder / "log"
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "headhunt.cli", *map(str, words)], stdout=log, stderr=log
            )
        self.peak = 0.0

    def shards(self) -> list[Path]:
        """Return the finished shards."""
        return sorted(self.out.glob("part-*"))

    def workers(self) -> list[psutil.Process]:
        """Return the worker processes of this driver."""
        workers = []
        with contextlib.suppress(psutil.Error):
            for child in psutil.Process(self.process.pid).children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    if "MapBatches(Labeller)" in " ".join(child.cmdline()):
                        workers.append(child)
        return workers

    def watch(self, shards: int | None) -> None:
        """Wait for a number of new shards, or for the end."""
        while self.process.poll() is None and (shards is None or len(self.shards()) - self.before < shards):
            for worker in self.workers():
                with contextlib.suppress(OSError, StopIteration):
                    lines = Path(f"/proc/{worker.pid}/status").read_text(encoding="ascii").splitlines()
                    peak = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
                    self.peak = max(self.peak, peak / (1 << 20))
            time.sleep(0.2)
        if self.process.poll() not in (None, 0) or (shards is not None and self.process.poll() is not None):
            sys.exit(f"headhunt predict ended early:\n{self._log.read_text()[-3000:]}")

    def rate(self, since: float) -> float:
        """Return the rows per second, from when each worker has written a shard."""
        times = sorted((path.stat().st_mtime, path) for path in self.shards() if path.stat().st_mtime > since)
        counted = times[WORKERS:]
        rows = sum(pq.read_metadata(path).num_rows for _, path in counted)
        rate = rows / (counted[-1][0] - times[WORKERS - 1][0])
        print(f"corpus: {rate:,.0f} rows/s over {len(counted)} shards", flush=True)
        return rate

    def kill(self) -> None:
        """Kill the driver and wait until its child processes have ended."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        psutil.wait_procs(children, timeout=60)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the corpus")
    args = parser.parse_args()
    rows, shard_rows, sample = (3_000, 128, 1_000) if args.quick else (args.rows, 16_384, 49_152)
    if not args.quick and rows < 1_000_000:
        shard_rows = max(256, rows // 60)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "in").mkdir()
        model = folder / "model"
        make_model(args.data, encoder_folder(args.encoder), model)
        files = make_corpus(args.data, folder / "in", rows)
        shards = sum(-(-pq.read_metadata(file).num_rows // shard_rows) for file in files)
        bare = BareLoop(model, files, min(sample, rows // FILES))
        limits = [bare.rate()]

        spent, peak, rates = 0.0, 0.0, []
        if not args.quick:
            started = time.time()
            first = Run(model, folder, shard_rows)
            first.watch(shards * 45 // 100)
            first.kill()
            spent, peak = time.time() - started, first.peak
            rates.append(first.rate(started))
            limits.append(bare.rate())

        started = time.time()
        second = Run(model, folder, shard_rows)
        second.watch(shards * 45 // 100)
        rates.append(second.rate(started))
        second.workers()[0].kill()
        second.watch(None)
        spent += time.time() - started
        limits.append(bare.rate())
        bare.end()
        ids = np.concatenate([pq.read_table(path, columns=["id"])["id"].to_numpy() for path in second.shards()])
        unlabelled = sum(pq.read_table(path, columns=["label"])["label"].null_count for path in second.shards())
    counts = np.bincount(ids, minlength=rows)
    ratios = [rate / ((limits[at] + limits[at + 1]) / 2) for at, rate in enumerate(rates)]
    finish(
        args,
        {
            "vs_bare": round(max(ratios), 3),
            "vs_bare_each": [round(ratio, 3) for ratio in ratios],
            "rss_gb": round(max(peak, second.peak), 2),
            "missing": int((counts == 0).sum()),
            "repeated": int((counts > 1).sum()),
            "unlabelled": unlabelled,
            "rows": rows,
            "rows_a_second": round(max(rates)),
            "bare_rows_a_second": [round(limit) for limit in limits],
            "seconds": round(spent),
            "kills": {"driver": int(not args.quick), "worker": 1},
        },
    )


if __name__ == "__main__":
    main()
