"""Services in processes of their own, and the exports they serve."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from conftest import sentences

CLOSE = 1e-5  # allowed difference between a response and the model's own outputs
JSON = {"content-type": "application/json"}
# A shell that runs the tests in the background makes their children ignore SIGINT.
LAUNCH = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from headhunt.cli import main
sys.argv[0] = "headhunt"
main()
"""
PROBLEM_TYPES = ["single_label_classification", "pair", "multi_label_classification", "regression"]
# Request bodies with the status of the response, for the limits of the fixture `service`.
MALFORMED = [
    (400, b""),
    (400, b"{"),
    (400, b'{"text": "\xff\xfe"}'),
    (400, b'{"text": "\xed\xa0\x80"}'),
    (400, b'{"text": "\\ud800"}'),
    (400, b'{"text": NaN}'),
    (400, b"[" * 100_000),
    (400, b'{"text":' * 50_000),
    (400, b'\xef\xbb\xbf{"text": "a"}'),
    (400, '{"text": "a"}'.encode("utf-16")),
    (422, b"null"),
    (422, b"[]"),
    (422, b'"text"'),
    (422, b"{}"),
    (422, b'{"text": 1}'),
    (422, b'{"text": null}'),
    (422, b'{"text": ["a"]}'),
    (422, b'{"text": {"text": "a"}}'),
    (422, b'{"texts": "a"}'),
    (422, b'{"texts": {"0": "a"}}'),
    (422, b'{"texts": ["a", 2]}'),
    (422, b'{"texts": ["a", null]}'),
    (400, b'{"texts": 1e400}'),
    (400, b'{"texts": 1' + b"0" * 400 + b"}"),
    (422, b'{"text": "a", "texts": ["a"]}'),
    (422, b'{"text": "a", "text_b": "b"}'),
    (422, b'{"text": "a", "more": 1}'),
    (422, b'{"text\\u0000": "a"}'),
    (413, json.dumps({"text": "a" * 501}).encode()),
    (413, json.dumps({"texts": ["a"] * 17}).encode()),
    (413, b'{"text": "' + b"a" * 1_000_001 + b'"}'),
]


def make_export(encoder: str, folder: Path, problem_type: str = "single_label_classification") -> Path:
    """Export an untrained model to `folder/export`, beside the saved model in `folder/saved`.

    The weights are made large. Otherwise the outputs of a tiny untrained model agree to six digits, and a test that
    compares outputs would not notice two that are swapped.
    """
    import torch

    from headhunt.data import Task
    from headhunt.delivery.onnx.export import export
    from headhunt.delivery.onnx.runtime import Model
    from headhunt.engine.assembly import prepare
    from headhunt.spec import Head, Recipe, Spec, solved

    texts, labels = sentences(32)
    data = {
        "single_label_classification": (texts, labels),
        "pair": (texts, texts[::-1], labels),
        "multi_label_classification": (texts, [["a"] if i % 2 else ["a", "b"] for i in range(32)]),
        "regression": (texts, [float(i) + 0.5 for i in range(32)]),
        "solved": (texts, labels),
        "windows": (texts, labels),
    }[problem_type]
    task = Task.load(data, seed=0)
    spec = Spec(encoder=encoder, head=Head(), recipe=Recipe(max_length=32))
    if problem_type == "windows":
        spec = Spec(encoder=encoder, head=Head(pooling="mean", windows="max"), recipe=Recipe(max_length=8))
    training, predictor = prepare(task, task.splits["train"], solved(encoder) if problem_type == "solved" else spec)
    if problem_type == "solved":
        list(training.reports())
    with torch.no_grad():
        for weights in predictor.model.parameters():
            if weights.dim() > 1 and problem_type != "solved":
                weights.normal_(0, 0.5, generator=torch.Generator().manual_seed(weights.numel()))
    predictor.save(folder / "saved")
    export(folder / "saved", folder / "export")
    outputs = Model(folder / "export").outputs(texts, texts[::-1] if problem_type == "pair" else None)
    assert np.ptp(outputs, axis=0).max() > 1000 * CLOSE, "outputs must differ by far more than the tests allow"
    return folder / "export"


class WordCounter:
    """A stand-in for an exported model: it predicts the number of words."""

    pair, problem_type, labels, rejection, tasks = False, "regression", (), None, ()

    def encode(self, texts, texts_b=None):
        return [text.split() for text in texts]

    def run(self, rows):
        return np.array([float(len(row)) for row in rows])

    def prediction(self, row, top_k=None):
        return {"label": float(row), "probability": None, "probabilities": {}}


def call(service, *requests):
    """Start a service, send requests of (method, path, body) and return their (status, body)."""

    async def run():
        events = asyncio.Queue()
        sent = asyncio.Queue()
        lifespan = asyncio.create_task(service({"type": "lifespan"}, events.get, sent.put))
        await events.put({"type": "lifespan.startup"})
        await sent.get()
        responses = [await send_request(service, *request) for request in requests]
        await service.drain()
        await events.put({"type": "lifespan.shutdown"})
        await lifespan
        return responses

    return asyncio.run(run())


async def send_request(service, method, path, body=None, headers=(), root_path="", raw=None):
    scope = {"type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": b""}
    scope |= {"headers": [(b"content-type", b"application/json"), *headers], "http_version": "1.1", "scheme": "http"}
    scope |= {"server": ("localhost", 80), "client": ("localhost", 1), "root_path": root_path}
    messages = []

    async def receive():
        content = raw if raw is not None else json.dumps(body).encode() if body else b""
        return {"type": "http.request", "body": content, "more_body": False}

    async def send(message):
        messages.append(message)

    await service(scope, receive, send)
    content = b"".join(message.get("body", b"") for message in messages[1:])
    return messages[0]["status"], content


class ServiceClient:
    """A client of a service on a port of this machine."""

    def __init__(self, port: int) -> None:
        self.port = port

    def request(self, path: str = "/predict", body=None, headers=JSON, method: str | None = None):
        """Return status, headers and JSON of a response."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
            connection.request(method or ("GET" if body is None else "POST"), path, data, dict(headers))
            response = connection.getresponse()
            return response.status, response.headers, json.loads(response.read())
        finally:
            connection.close()

    def send(self, *chunks: bytes, pause: float = 0.0, wait: float = 10.0) -> bytes:
        """Send raw bytes and return the response, up to its end or the end of the connection."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=wait) as connection:
            with contextlib.suppress(OSError):  # the service may close the connection early
                for chunk in chunks:
                    connection.sendall(chunk)
                    time.sleep(pause)
            response = b""
            with contextlib.suppress(TimeoutError, ConnectionError):
                while piece := connection.recv(65536):
                    response += piece
                    head, _, body = response.partition(b"\r\n\r\n")
                    length = re.search(rb"content-length: (\d+)", head)
                    if length and len(body) >= int(length[1]):
                        break
            return response

    def metrics(self, headers=()) -> dict[str, float]:
        """Return the values of /metrics by name."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.request("GET", "/metrics", headers=dict(headers))
        response = connection.getresponse()
        assert response.status == 200 and response.headers["content-type"].startswith("text/plain")
        lines = [line for line in response.read().decode().splitlines() if not line.startswith("#")]
        connection.close()
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


class Service(ServiceClient):
    """A service in a process of its own."""

    def __init__(self, folder: Path, *options: str, **env: str) -> None:
        command = [sys.executable, "-c", LAUNCH, "serve", str(folder), "--port", "0", "--threads", "1"]
        self.log: list[str] = []
        self.process = subprocess.Popen(
            [*command, *options], stderr=subprocess.PIPE, text=True, env={**os.environ, **env}
        )
        port = 0
        for line in self.process.stderr:
            self.log.append(line)
            if match := re.search(r"serving on http://[^ ]*:(\d+)", line):
                port = int(match[1])
                break
        assert port, "".join(self.log)
        super().__init__(port)
        self._reader = threading.Thread(target=lambda: self.log.extend(self.process.stderr), daemon=True)
        self._reader.start()

    def stop(self) -> int:
        """Ask the service to stop and return its exit code."""
        if self.process.poll() is None:
            self.process.terminate()
        code = self.process.wait(60)
        self._reader.join(10)
        self.process.stderr.close()
        return code


_EXPORTS: dict[str, Path] = {}  # of all test modules of this process


@pytest.fixture(name="exports", scope="session")
def exports_fixture(encoders, tmp_path_factory):
    """Return the export for a problem type, made once."""

    def get(problem_type: str = "single_label_classification") -> Path:
        if problem_type not in _EXPORTS:
            _EXPORTS[problem_type] = make_export(encoders(), tmp_path_factory.mktemp(problem_type), problem_type)
        return _EXPORTS[problem_type]

    return get


@pytest.fixture(name="start_service")
def start_service_fixture():
    """Start services that are stopped after the test."""
    running: list[Service] = []

    def start(*args, **env) -> Service:
        running.append(Service(*args, **env))
        return running[-1]

    yield start
    for service in running:
        service.stop()


@pytest.fixture(name="service", scope="module")
def service_fixture(exports):
    """Return one service for all tests of a module that only send requests."""
    options = ["--max-texts", "16", "--max-queue", "64", "--max-characters", "500", "--read-timeout", "1.5"]
    running = Service(exports(), *options)
    yield running
    assert running.stop() == 0
    log = "".join(running.log)
    assert "Traceback" not in log, log[max(0, log.find("Traceback") - 300) :][:3000]
