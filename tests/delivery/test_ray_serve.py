"""The service on a Ray cluster of its own."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from conftest import sentences
from serving import (
    CLOSE,
    MALFORMED,
    ServiceClient,
    WordCounter,
    exports_fixture,  # noqa: F401
)

from headhunt.errors import HeadhuntError

pytest.importorskip("fastapi")


@pytest.mark.slow
@pytest.mark.xdist_group("ray")
def test_ray_serve_predicts_as_the_model_does(exports, tmp_path):
    """Run `serve run` as a user does, on a Ray of its own."""
    pytest.importorskip("ray.serve")
    from headhunt.delivery.onnx.runtime import Model

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = {
        "http_options": {"host": "127.0.0.1", "port": port},
        "applications": [
            {
                "name": "headhunt",
                "import_path": "headhunt.delivery.serve.ray_serve:app",
                "args": {"model": str(exports()), "replicas": "1"},
                "runtime_env": {"env_vars": {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}},
            }
        ],
    }
    (tmp_path / "config.yaml").write_text(json.dumps(config))  # JSON is YAML
    env = {**os.environ, "RAY_ADDRESS": "local", "RAY_USAGE_STATS_ENABLED": "0"}
    env.pop("HEADHUNT_TOKEN", None)
    command = [Path(sys.executable).parent / "serve", "run", tmp_path / "config.yaml"]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=env, cwd=tmp_path)
    service = ServiceClient(port)
    try:
        deadline = time.monotonic() + 120
        while True:
            try:
                if service.request("/health")[0] == 200:
                    break
            except (OSError, ValueError):
                pass
            assert process.poll() is None and time.monotonic() < deadline, (tmp_path / "log").read_text()[-3000:]
            time.sleep(0.5)
        texts = sentences(100)[0]
        expected = Model(exports()).outputs(texts)
        with ThreadPoolExecutor(16) as pool:
            predictions = list(pool.map(lambda text: service.request(body={"text": text})[2], texts))
        outputs = [list(prediction["probabilities"].values()) for prediction in predictions]
        assert np.allclose(outputs, expected, atol=CLOSE)
        assert len(service.request(body={"texts": texts})[2]["predictions"]) == 100
        assert service.request(body={"texts": []})[2] == {"predictions": []}
        for status, body in [*MALFORMED[:26], (413, b" " * 1_000_001)]:
            received, _, response = service.request(body=body)
            assert (received, list(response)) == (status, ["error"]), body[:40]
        assert service.metrics()["headhunt_texts_total"] >= 200
        assert service.request("/nothing")[0] == 404 and service.request()[0] == 405
        assert service.request(body={"text": "a"}, headers={"content-type": "text/plain"})[0] == 415
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


def request_replica(replica, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None):
    """Return status, headers and body of a response, as Ray's proxy asks a replica for it."""
    starlette = pytest.importorskip("starlette.requests")
    fields = {"content-type": "application/json", **(headers or {})}
    scope = {
        "type": "http",
        "method": method,
        "path": f"/films{path}",
        "root_path": "/films",
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in fields.items()],
    }

    async def receive():
        return {"type": "http.request", "body": body, "more_body": False}

    async def call():
        response = await replica(starlette.Request(scope, receive))
        return response.status_code, dict(response.headers), response.body

    return asyncio.get_event_loop().run_until_complete(call())  # a replica lives in one event loop


@pytest.fixture
def replica_class(monkeypatch):
    pytest.importorskip("ray.serve")
    from headhunt.delivery.serve import ray_serve

    monkeypatch.setattr(ray_serve, "load_model", lambda *_: WordCounter())
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield ray_serve.Replica
    asyncio.set_event_loop(None)
    loop.close()


def test_replica_has_the_limits_tokens_and_metrics_of_the_service(replica_class):
    from headhunt.delivery.serve.limits import Limits

    replica = replica_class("folder", limits=Limits(max_texts=2, max_body=1000), token="secret")
    token = {"authorization": "Bearer secret"}
    assert request_replica(replica, "POST", "/predict", b'{"text": "a"}')[0] == 401
    for path in ("/metrics", "/films/metrics", "/films/films/metrics", "/films/predict"):
        assert request_replica(replica, "GET", path)[0] == 401, path
    status, _, body = request_replica(replica, "POST", "/predict", b'{"text": "a b"}', token)
    assert status == 200 and json.loads(body)["label"] == 2.0
    assert request_replica(replica, "POST", "/predict", b'{"texts": ["a", "b", "c"]}', token)[0] == 413
    assert request_replica(replica, "POST", "/predict", b" " * 1001, token)[0] == 413
    status, headers, body = request_replica(replica, "GET", "/metrics", headers=token)
    assert status == 200 and b'headhunt_refused_total{reason="token"} 1.0' in body
    assert headers["content-type"].startswith("text/plain")
    assert request_replica(replica, "GET", "/health")[0] == 200


def test_ray_serve_refuses_an_empty_token(replica_class, monkeypatch):
    from headhunt.delivery.serve import ray_serve

    monkeypatch.setenv("HEADHUNT_TOKEN", "")
    with pytest.raises(HeadhuntError, match="token= must be"):
        ray_serve.app({"model": "folder"})
    with pytest.raises(HeadhuntError, match="token= must be"):
        replica_class("folder", token="")
