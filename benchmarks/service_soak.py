"""Send many requests to one service and measure whether its memory and open files grow.

The model is tiny and has random weights, so that a request costs little: a leak of the service shows, and the model
hides nothing. Requests arrive on persistent connections that are replaced from time to time, and one request in
twenty is refused. After each block of requests, memory and file descriptors of the service are read. The first tenth
of the blocks is a warm-up.

    python benchmarks/service_soak.py --requests 1000000 --out benchmarks/results/service_soak.json

`slope` is the growth per million requests with a 95 % interval, from a regression over the blocks. Its standard error
allows for correlation between neighbouring blocks (Newey and West). `flat` is true if the interval includes 0, or if
the growth over the complete run is below one per mille of the memory.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from measure import finish, options
from scipy.stats import t

sys.path.insert(0, str(Path(__file__).parent))
from service import service

TESTS = Path(__file__).parent.parent / "tests"
TEXTS = ["a good film", "the plot was awful", "it is not bad", "a dog runs", "very very great"]
WARM_UP = 0.1


def make(folder: Path) -> None:
    """Export a tiny model with random weights."""
    sys.path.insert(0, str(TESTS))
    from conftest import make_encoder
    from serving import make_export

    make_export(make_encoder("bert", folder / "encoder"), folder)


class Client(asyncio.Protocol):
    """A connection that sends prepared requests, several at a time, and counts the responses by status."""

    def __init__(self, requests: list[bytes], number: int, codes: dict[str, int]) -> None:
        self.requests, self.left, self.codes = requests, number, codes
        self.sent = self.waiting = 0
        self.received = b""
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        """Send the first requests."""
        self.transport = transport
        self.send()

    def send(self) -> None:
        """Send as many requests as may be under way at once."""
        count = min(PIPELINED, self.left)
        batch = [self.requests[(self.sent + i) % len(self.requests)] for i in range(count)]
        self.sent += count
        self.left -= count
        self.waiting = count
        self.transport.write(b"".join(batch))

    def data_received(self, data: bytes) -> None:
        """Count complete responses; then send the next requests."""
        self.received += data
        while (end := self.received.find(b"\r\n\r\n")) >= 0:
            at = self.received.find(b"content-length: ")
            size = end + 4 + int(self.received[at + 16 : self.received.index(b"\r", at)])
            if len(self.received) < size:
                return
            code = self.received[9:12].decode()
            self.codes[code] = self.codes.get(code, 0) + 1
            self.received = self.received[size:]
            self.waiting -= 1
        if not self.waiting:
            if self.left:
                self.send()
            else:
                self.transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        """Count a connection that was closed before its last response."""
        if self.waiting or self.left:
            self.codes["lost"] = self.codes.get("lost", 0) + 1
        if not self.done.done():
            self.done.set_result(None)


PIPELINED = 8
CONNECTIONS = 8


def prepare_requests() -> list[bytes]:
    """Return requests of one text; one in twenty is refused because it has an unknown field."""
    bodies = [{"text": text} for text in TEXTS] * 4
    bodies[-1] = {"text": TEXTS[0], "unknown": "1"}
    requests = []
    for body in map(json.dumps, bodies):
        head = "POST /predict HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        requests.append(f"{head}content-length: {len(body)}\r\n\r\n{body}".encode())
    return requests


async def send_block(port: int, requests: list[bytes], number: int) -> dict[str, int]:
    """Send a block of requests over new connections and return the number of responses by status."""
    loop = asyncio.get_running_loop()
    codes: dict[str, int] = {}
    clients = []
    for place in range(CONNECTIONS):
        share = number // CONNECTIONS + (place < number % CONNECTIONS)
        if share:
            _, client = await loop.create_connection(
                lambda share=share: Client(requests, share, codes), "127.0.0.1", port
            )
            clients.append(client)
    await asyncio.wait_for(asyncio.gather(*(client.done for client in clients)), 600)
    return codes


def read_process(pid: int) -> dict[str, float]:
    """Return the memory in megabytes, the file descriptors and the threads of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    fields = dict(line.split(":", 1) for line in status.splitlines())
    return {
        "memory_mb": int(fields["VmRSS"].split()[0]) / 1024,
        "descriptors": len(list(Path(f"/proc/{pid}/fd").iterdir())),
        "threads": int(fields["Threads"]),
    }


def slope(values: list[float], block: int) -> dict[str, Any]:
    """Return the growth per million requests, its 95 % interval, and whether there is any.

    Args:
        values: One per block.
        block: Requests of a block.
    """
    y = np.asarray(values)
    x = np.arange(len(y)) * block / 1e6
    centred = x - x.mean()
    growth = float(centred @ y / (centred @ centred))
    scores = centred * (y - y.mean() - growth * centred)
    lags = int(4 * (len(y) / 100) ** (2 / 9)) + 1
    variance = scores @ scores
    for lag in range(1, min(lags, len(y) - 2) + 1):
        variance += 2 * (1 - lag / (lags + 1)) * (scores[lag:] @ scores[:-lag])
    error = float(np.sqrt(max(variance, 0.0))) / float(centred @ centred)
    half = float(t.ppf(0.975, max(1, len(y) - 2))) * error
    small = abs(growth) * x[-1] <= 0.001 * float(y.mean())
    return {
        "per_million": round(growth, 4),
        "low": round(growth - half, 4),
        "high": round(growth + half, 4),
        "first": round(float(y[0]), 2),
        "last": round(float(y[-1]), 2),
        "flat": bool(growth - half <= 0 <= growth + half or small),
    }


def main() -> None:
    parser = options(__doc__, data=False, encoder=False)
    parser.add_argument("--requests", type=int, default=1_000_000, help="number of requests")
    parser.add_argument("--blocks", type=int, default=200, help="measurements")
    args = parser.parse_args()
    number, blocks = (4_000, 20) if args.quick else (args.requests, args.blocks)
    block = max(CONNECTIONS, number // blocks)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    requests, codes, readings = prepare_requests(), {}, []
    with tempfile.TemporaryDirectory() as name:
        subprocess.run([sys.executable, __file__, "--make", name], check=True)
        with service(Path(name) / "export", threads=1) as (port, pid):
            started = time.perf_counter()
            for place in range(blocks):
                for code, count in asyncio.run(send_block(port, requests, block)).items():
                    codes[code] = codes.get(code, 0) + count
                time.sleep(0.1)  # closed connections are noticed
                readings.append(read_process(pid))
                if place % max(1, blocks // 20) == 0:
                    print(
                        f"{(place + 1) * block} requests, {time.perf_counter() - started:.0f} s, {readings[-1]}",
                        flush=True,
                    )
            seconds = time.perf_counter() - started
    kept = readings[int(WARM_UP * blocks) :]
    slopes = {name: slope([reading[name] for reading in kept], block) for name in kept[0]}
    finish(
        args,
        {
            "requests": blocks * block,
            "codes": codes,
            "slopes": slopes,
            "flat": all(result["flat"] for result in slopes.values()),
            "seconds": round(seconds),
            "per_second": round(blocks * block / seconds),
            "memory_mb": [round(reading["memory_mb"], 2) for reading in readings[:: max(1, blocks // 50)]],
        },
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--make"]:
        make(Path(sys.argv[2]))
    else:
        main()
