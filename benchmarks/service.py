"""The service under load, beside a bare ONNX Runtime loop over the same texts on the same cores.

The plain head on MiniLM, one SST-2 sentence a request. The bare loop (tokenising included, batches of 32 sorted by
length over all texts, all threads) is measured before and after the load; client and server share the cores. Then the
load is four times what was carried, as requests at fixed times whether or not the earlier ones are answered.

    python benchmarks/service.py --data DIR --out benchmarks/results/service.json

`vs_bare` is texts a second of the service through texts a second of the bare loop, `errors` everything but an answer
with status 200 at 64 connections. In `overload`, `malformed` counts refusals without JSON or Retry-After.
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
    """One connection that is kept: sends requests made beforehand, as little Python as will do for each."""

    def __init__(self, load: Load) -> None:
        self.load, self.sent, self.seen, self.waits = load, 0.0, b"", False

    def connection_made(self, transport: Any) -> None:
        """Ready to ask."""
        self.transport = transport
        self.load.clients.append(self)

    def ask(self) -> None:
        """Sends the next request."""
        self.sent, self.waits = time.perf_counter(), True
        self.transport.write(self.load.next_request())

    def data_received(self, data: bytes) -> None:
        """An answer, or a part of one."""
        self.seen += data
        end = self.seen.find(b"\r\n\r\n")
        if end < 0:
            return
        at = self.seen.find(b"content-length: ")
        length = int(self.seen[at + 16 : self.seen.index(b"\r", at)])
        if len(self.seen) >= end + 4 + length:
            answer, self.seen, self.waits = self.seen, b"", False
            self.load.answered(self, answer, end)

    def connection_lost(self, error: Exception | None) -> None:
        """The server hung up; on a client that waits for an answer, or on one that had nothing to ask."""
        if not self.load.over:
            self.load.codes["lost" if self.waits else "idle"] += 1
            self.load.lost(self)


class Load:
    """What the clients share."""

    def __init__(self, requests: list[bytes], rate: float | None) -> None:
        self.requests, self.rate = requests, rate
        self.clients: list[Client] = []
        self.idle: deque[Client] = deque()
        self.codes: Counter[str] = Counter()
        self.times: list[float] = []
        self.malformed = self.place = 0
        self.over = False

    def next_request(self) -> bytes:
        """The texts one after the other, over and over."""
        self.place += 1
        return self.requests[self.place % len(self.requests)]

    def answered(self, client: Client, answer: bytes, end: int) -> None:
        """Notes an answer; without a rate, the client asks on at once."""
        code = answer[9:12].decode()
        self.codes[code] += 1
        if code == "200":
            self.times.append(time.perf_counter() - client.sent)
        else:
            self.check(answer, end)
        if self.rate is None:
            if not self.over:
                client.ask()
        else:
            self.idle.append(client)

    def check(self, answer: bytes, end: int) -> None:
        """A refusal must say why in JSON, and when to come back."""
        try:
            good = bool(json.loads(answer[end + 4 :])["error"]) and re.search(rb"retry-after: \d+\r\n", answer)
        except (ValueError, KeyError, TypeError):
            good = None
        self.malformed += not good

    def lost(self, client: Client) -> None:
        """A connection that is gone asks no more."""
        with contextlib.suppress(ValueError):
            self.idle.remove(client)


async def load(port: int, texts: list[str], connections: int, seconds: float, rate: float | None) -> dict[str, Any]:
    """Asks for a while: each connection as fast as it is answered, or all together at a rate."""
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
            client.ask()
        await asyncio.sleep(seconds)
    else:
        shared.idle = deque(shared.clients)
        due = 0
        while (now := time.perf_counter() - started) < seconds:
            while due < now * rate:
                due += 1
                if shared.idle:
                    shared.idle.popleft().ask()  # in turn, so that no connection falls asleep
                else:
                    missed += 1
            await asyncio.sleep(0.005)
    taken = time.perf_counter() - started
    shared.over = True
    codes, times = dict(shared.codes), sorted(shared.times)
    await asyncio.sleep(0 if rate is None else 0.5)
    for client in shared.clients:
        client.transport.abort()
    return {
        "seconds": taken,
        "codes": codes,
        "p50_ms": 1000 * times[len(times) // 2] if times else None,
        "p99_ms": 1000 * times[int(len(times) * 0.99)] if times else None,
        "malformed": shared.malformed,
        "unsent": missed,
    }


def ask(port: int, texts: Path, connections: int, seconds: float, rate: float | None = None) -> dict[str, Any]:
    """`load` in a process of its own."""
    words = [HERE, "--client", json.dumps([port, str(texts), connections, seconds, rate])]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


# ---------------------------------------------------------------------------------------------- the rest


def make(encoder: str, data: Path, folder: Path, count: int) -> tuple[Path, Path]:
    """An export of the plain head, and a file of texts. In a process of its own, so that torch is gone afterwards."""
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
    """Texts a second of a loop without a server, the best of several passes over some of the texts."""
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
    """A running service: its port and its process."""
    command = [sys.executable, "-m", "headhunt.cli", "serve", str(export), "--port", "0", "--threads", str(threads)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if found := re.search(r"http://127.0.0.1:(\d+)", line):
                break
            print(line, end="")
        else:
            sys.exit("the service did not start")
        yield int(found[1]), process.pid
    finally:
        process.terminate()
        print(f"the service ended with {process.wait(60)}")


def rss(pid: int) -> float:
    """Megabytes a process holds."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    args = parser.parse_args()
    encoder = encoder_folder(args.encoder)
    seconds, count, some = (6.0, 2_000, 256) if args.quick else (args.seconds, 20_000, 2_000)
    threads = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        words = json.dumps([encoder, str(args.data), name, count])
        subprocess.run([sys.executable, HERE, "--make", words], check=True)
        export, file = folder / "export", folder / "texts.json"
        texts = json.loads(file.read_text())[:some]
        before = bare(export, texts, threads, seconds / 6)
        print(f"bare loop: {before:.0f} texts a second", flush=True)
        with service(export, threads) as (port, pid):
            ask(port, file, CONNECTIONS, seconds / 10)
            warm = rss(pid)
            steady = ask(port, file, CONNECTIONS, seconds)
            carried = steady["codes"].get("200", 0) / steady["seconds"]
            print(f"service: {carried:.0f} texts a second, {steady}", flush=True)
            overload = crowd(port, pid, file, carried, seconds)
            overload["rss_mb"] = [round(warm), *overload["rss_mb"]]
        after = bare(export, texts, threads, seconds / 6)
        print(f"bare loop: {after:.0f} texts a second", flush=True)
    finish(
        args,
        {
            "vs_bare": round(carried / max(before, after), 3),
            "p50_ms": round(steady["p50_ms"], 1),
            "p99_ms": round(steady["p99_ms"], 1),
            "errors": sum(n for code, n in steady["codes"].items() if code != "200"),
            "texts_per_second": {"bare": [round(before), round(after)], "service": round(carried)},
            "connections": CONNECTIONS,
            "threads": threads,
            "seconds": seconds,
            "overload": overload,
        },
    )


def crowd(port: int, pid: int, file: Path, carried: float, seconds: float) -> dict[str, Any]:
    """Four times as much as it carries, then as much as before."""
    held = rss(pid)
    crowded = ask(port, file, 1500, seconds / 2, 4 * carried)
    print(f"overload: {crowded}", flush=True)
    late = rss(pid)
    again = ask(port, file, CONNECTIONS, seconds / 6)
    codes = crowded["codes"]
    whole = sum(codes.values())
    return {
        "offered_per_second": round(4 * carried),
        "answered_per_second": round(codes.get("200", 0) / crowded["seconds"]),
        "codes": codes,
        "refused": round(codes.get("429", 0) / whole, 3),
        "malformed": crowded["malformed"],
        "unsent": crowded["unsent"],
        "p99_ms": round(crowded["p99_ms"], 1),
        "rss_mb": [round(held), round(late), round(rss(pid))],
        "recovered": {"p99_ms": round(again["p99_ms"], 1), "codes": again["codes"]},
    }


if __name__ == "__main__":
    if sys.argv[1:2] == ["--client"]:
        port_, file_, *how = json.loads(sys.argv[2])
        print(json.dumps(asyncio.run(load(port_, json.loads(Path(file_).read_text()), *how))))
    elif sys.argv[1:2] == ["--make"]:
        encoder_, data_, folder_, count_ = json.loads(sys.argv[2])
        make(encoder_, Path(data_), Path(folder_), count_)
    else:
        main()
