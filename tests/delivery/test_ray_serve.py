"""The service on a Ray cluster of its own."""

from __future__ import annotations

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
    exports_fixture,  # noqa: F401
)

pytest.importorskip("fastapi")


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
    env = {**os.environ, "RAY_ADDRESS": "local", "HEADHUNT_TOKEN": "", "RAY_USAGE_STATS_ENABLED": "0"}
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
        assert service.request("/nothing")[0] == 404 and service.request()[0] == 405
        assert service.request(body={"text": "a"}, headers={"content-type": "text/plain"})[0] == 415
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)
