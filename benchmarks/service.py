"""Measure the service under load, compared with a bare ONNX Runtime loop over the same texts on the same cores.

The model is the plain head on MiniLM, with one SST-2 sentence per request. The bare loop (with tokenization, batches of
32 sorted by length over all texts, all threads) is measured before and after the load; client and server share the
cores. Then requests arrive at four times the measured rate, at fixed times, independent of earlier responses.

    python benchmarks/service.py --data DIR --out benchmarks/results/service.json

`vs_bare` is the throughput of the service divided by that of the bare loop. `errors` counts responses with another
status than 200 at 64 connections. In `overload`, `malformed` counts refusals without JSON or Retry-After.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from measure import encoder_folder, finish, options

CONNECTIONS = 64
HERE = Path(__file__)


# ---------------------------------------------------------------------------------------------- the client


class Client(asyncio.Protocol):
    """A persistent connection that sends prepared requests with little Python code for each."""

    def __init__(self, load: Load) -> None:
        self.load, self.sent, self.received, self.waiting = load, 0.0, b"", False

    def connection_made(self, transport: Any) -> None:
        """Register the client."""
        self.transport = transport
        self.load.clients.append(self)

    def send(self) -> None:
        """Send the next request."""
        self.sent, self.waiting = time.perf_counter(), True
        self.transport.write(self.load.next_request())

    def data_received(self, data: bytes) -> None:
        """Receive a response or a piece of it."""
        self.received += data
        end = self.received.find(b"\r\n\r\n")
        if end < 0:
            return
        at = self.received.find(b"content-length: ")
        length = int(self.received[at + 16 : self.received.index(b"\r", at)])
        if len(self.received) >= end + 4 + length:
            response, self.received, self.waiting = self.received, b"", False
            self.load.record(self, response, end)

    def connection_lost(self, error: Exception | None) -> None:
        """Count a connection that the server closed, by whether the client was waiting for a response."""
        if not self.load.over:
            self.load.codes["lost" if self.waiting else "idle"] += 1
            self.load.lost(self)


class Load:
    """The state that all clients share."""

    def __init__(self, requests: list[bytes], rate: float | None) -> None:
        self.requests, self.rate = requests, rate
        self.clients: list[Client] = []
        self.idle: deque[Client] = deque()
        self.codes: Counter[str] = Counter()
        self.times: list[float] = []
        self.malformed = self.position = 0
        self.over = False

    def next_request(self) -> bytes:
        """Return the requests in turn, repeatedly."""
        self.position += 1
        return self.requests[self.position % len(self.requests)]

    def record(self, client: Client, response: bytes, end: int) -> None:
        """Record a response; without a rate, the client sends the next request at once."""
        code = response[9:12].decode()
        self.codes[code] += 1
        if code == "200":
            self.times.append(time.perf_counter() - client.sent)
        else:
            self.check(response, end)
        if self.rate is None:
            if not self.over:
                client.send()
        else:
            self.idle.append(client)

    def check(self, response: bytes, end: int) -> None:
        """Check that a refusal has a reason in JSON and a time to try again."""
        try:
            valid = bool(json.loads(response[end + 4 :])["error"]) and re.search(rb"retry-after: \d+\r\n", response)
        except (ValueError, KeyError, TypeError):
            valid = None
        self.malformed += not valid

    def lost(self, client: Client) -> None:
        """Remove a closed connection."""
        with contextlib.suppress(ValueError):
            self.idle.remove(client)


async def load(port: int, texts: list[str], connections: int, seconds: float, rate: float | None) -> dict[str, Any]:
    """Send requests for some seconds: on each connection one after another, or on all at a fixed rate."""
    head = "POST /predict HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: "
    bodies = [json.dumps({"text": text}) for text in texts]
    shared = Load([f"{head}{len(body)}\r\n\r\n{body}".encode() for body in bodies], rate)
    loop = asyncio.get_running_loop()
    for _ in range(connections):
        await loop.create_connection(lambda: Client(shared), "127.0.0.1", port)
    started = time.perf_counter()
    missed = 0
    if rate is None:
        for client in shared.clients:
            client.send()
        await asyncio.sleep(seconds)
    else:
        shared.idle = deque(shared.clients)
        due = 0
        while (now := time.perf_counter() - started) < seconds:
            while due < now * rate:
                due += 1
                if shared.idle:
                    shared.idle.popleft().send()  # in turn, so that no connection times out
                else:
                    missed += 1
            await asyncio.sleep(0.005)
    elapsed = time.perf_counter() - started
    shared.over = True
    codes, times = dict(shared.codes), sorted(shared.times)
    await asyncio.sleep(0 if rate is None else 0.5)
    for client in shared.clients:
        client.transport.abort()
    return {
        "seconds": elapsed,
        "codes": codes,
        "p50_ms": 1000 * times[len(times) // 2] if times else None,
        "p99_ms": 1000 * times[int(len(times) * 0.99)] if times else None,
        "malformed": shared.malformed,
        "unsent": missed,
    }


def run_client(port: int, texts: Path, connections: int, seconds: float, rate: float | None = None) -> dict[str, Any]:
    """Run `load` in a new process."""
    words = [HERE, "--client", json.dumps([port, str(texts), connections, seconds, rate])]
    process = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=True)
    return json.loads(process.stdout)


# ---------------------------------------------------------------------------------------------- the server


def make(encoder: str, data: Path, folder: Path, count: int) -> tuple[Path, Path]:
    """Export the plain head and write a file of texts. Runs in a separate process, which unloads torch."""
    from headhunt.data import Task
    from headhunt.delivery.onnx.export import export
    from headhunt.engine import api
    from headhunt.spec import Recipe, Spec

    task = Task.load(data / "sst2", seed=0)
    _, predictor = api.prepare(task, task.splits["train"], Spec(encoder=encoder, recipe=Recipe(max_length=128)))
    predictor.save(folder / "model")
    export(folder / "model", folder / "export")
    (folder / "texts.json").write_text(json.dumps(task.splits["train"].texts(0, count)))
    return folder / "export", folder / "texts.json"


def bare(export: Path, texts: list[str], threads: int, seconds: float) -> float:
    """Return the texts per second of a loop without a server, the best of several passes."""
    from headhunt.delivery.onnx.runtime import Model

    model = Model(export, threads=threads)
    model.outputs(texts[:64], batch=32)
    best, until = 0.0, time.perf_counter() + seconds
    while not best or time.perf_counter() < until:
        started = time.perf_counter()
        model.outputs(texts, batch=32)
        best = max(best, len(texts) / (time.perf_counter() - started))
    return best


@contextlib.contextmanager
def service(export: Path, threads: int) -> Iterator[tuple[int, int]]:
    """Run a service and yield its port and process id."""
    command = [sys.executable, "-m", "headhunt.cli", "serve", str(export), "--port", "0", "--threads", str(threads)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if match := re.search(r"http://127.0.0.1:(\d+)", line):
                break
            print(line, end="")
        else:
            sys.exit("The service did not start.")
        yield int(match[1]), process.pid
    finally:
        process.terminate()
        print(f"the service ended with exit code {process.wait(60)}")


def rss(pid: int) -> float:
    """Return the resident memory of a process in megabytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="duration of the steady load")
    args = parser.parse_args()
    encoder = encoder_folder(args.encoder)
    seconds, count, sample = (6.0, 2_000, 256) if args.quick else (args.seconds, 20_000, 2_000)
    threads = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        words = json.dumps([encoder, str(args.data), name, count])
        subprocess.run([sys.executable, HERE, "--make", words], check=True)
        export, file = folder / "export", folder / "texts.json"
        texts = json.loads(file.read_text())[:sample]
        before = bare(export, texts, threads, seconds / 6)
        print(f"bare loop: {before:.0f} texts per second", flush=True)
        with service(export, threads) as (port, pid):
            run_client(port, file, CONNECTIONS, seconds / 10)
            warm = rss(pid)
            steady = run_client(port, file, CONNECTIONS, seconds)
            throughput = steady["codes"].get("200", 0) / steady["seconds"]
            print(f"service: {throughput:.0f} texts per second, {steady}", flush=True)
            overload = overload_service(port, pid, file, throughput, seconds)
            overload["rss_mb"] = [round(warm), *overload["rss_mb"]]
        after = bare(export, texts, threads, seconds / 6)
        print(f"bare loop: {after:.0f} texts per second", flush=True)
    finish(
        args,
        {
            "vs_bare": round(throughput / max(before, after), 3),
            "p50_ms": round(steady["p50_ms"], 1),
            "p99_ms": round(steady["p99_ms"], 1),
            "errors": sum(n for code, n in steady["codes"].items() if code != "200"),
            "texts_per_second": {"bare": [round(before), round(after)], "service": round(throughput)},
            "connections": CONNECTIONS,
            "threads": threads,
            "seconds": seconds,
            "overload": overload,
        },
    )


def overload_service(port: int, pid: int, file: Path, rate: float, seconds: float) -> dict[str, Any]:
    """Send four times as many requests as the service handles, then as many as before."""
    before = rss(pid)
    overloaded = run_client(port, file, 1500, seconds / 2, 4 * rate)
    print(f"overload: {overloaded}", flush=True)
    after = rss(pid)
    recovered = run_client(port, file, CONNECTIONS, seconds / 6)
    codes = overloaded["codes"]
    total = sum(codes.values())
    return {
        "offered_per_second": round(4 * rate),
        "answered_per_second": round(codes.get("200", 0) / overloaded["seconds"]),
        "codes": codes,
        "refused": round(codes.get("429", 0) / total, 3),
        "malformed": overloaded["malformed"],
        "unsent": overloaded["unsent"],
        "p99_ms": round(overloaded["p99_ms"], 1),
        "rss_mb": [round(before), round(after), round(rss(pid))],
        "recovered": {"p99_ms": round(recovered["p99_ms"], 1), "codes": recovered["codes"]},
    }


if __name__ == "__main__":
    if sys.argv[1:2] == ["--client"]:
        port_, file_, *settings = json.loads(sys.argv[2])
        print(json.dumps(asyncio.run(load(port_, json.loads(Path(file_).read_text()), *settings))))
    elif sys.argv[1:2] == ["--make"]:
        encoder_, data_, folder_, count_ = json.loads(sys.argv[2])
        make(encoder_, Path(data_), Path(folder_), count_)
    else:
        main()
