"""Requests and responses of a service in a process of its own."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from conftest import sentences
from ensembles import save_case
from serving import CLOSE, JSON, MALFORMED, PROBLEM_TYPES, exports_fixture, service_fixture, start_service_fixture  # noqa: F401

pytest.importorskip("fastapi")
pytestmark = pytest.mark.xdist_group("serve")


@pytest.mark.parametrize("problem_type", [*PROBLEM_TYPES, "solved", "windows"])
def test_service_predicts_as_the_model_does(exports, start_service, problem_type):
    from headhunt.delivery.onnx.runtime import Model

    model, service = Model(exports(problem_type)), start_service(exports(problem_type))
    texts = ["the movie was good", "", "\x00 \t\n", "[SEP] a", "dog " * 200, "é 😀 \u202e", "it is bad"]
    second = ["a dog", "", "cat", "[CLS]", "cat " * 99, "plot", "it is not bad"] if problem_type == "pair" else None
    expected = model.predict(texts, second)
    status, _, response = service.request(body={"texts": texts, **({"texts_b": second} if second else {})})
    assert status == 200 and len(response["predictions"]) == len(texts)
    for prediction, wanted in zip(response["predictions"], expected, strict=True):
        label = pytest.approx(wanted["label"], abs=1e-4) if problem_type == "regression" else wanted["label"]
        assert prediction["label"] == label
        assert prediction["probability"] == pytest.approx(wanted["probability"], abs=CLOSE)
        assert prediction["probabilities"] == pytest.approx(wanted["probabilities"], abs=CLOSE)
    status, _, prediction = service.request(body={"text": texts[0], **({"text_b": second[0]} if second else {})})
    assert status == 200 and prediction["probabilities"] == pytest.approx(expected[0]["probabilities"], abs=CLOSE)
    assert service.request(body={"texts": [], **({"texts_b": []} if second else {})})[2] == {"predictions": []}
    status, _, document = service.request("/openapi.json")
    assert status == 200
    body = document["paths"]["/predict"]["post"]["requestBody"]["content"]["application/json"]
    assert len(body["examples"]) == 2
    for example in body["examples"].values():
        assert service.request(body=example["value"])[0] == 200


def test_service_decides_by_the_thresholds_of_the_export(exports, start_service, tmp_path):
    from headhunt.delivery.onnx.runtime import Model

    shutil.copytree(exports("multi_label_classification"), tmp_path / "export")
    texts = sentences(16)[0]
    at_half = Model(tmp_path / "export").predict(texts)
    outputs = [list(prediction["probabilities"].values()) for prediction in at_half]
    thresholds = np.clip(np.median(outputs, axis=0), 1e-4, 1 - 1e-4).tolist()
    metadata = json.loads((tmp_path / "export" / "headhunt.json").read_text())
    (tmp_path / "export" / "headhunt.json").write_text(json.dumps({**metadata, "thresholds": thresholds}))
    expected = Model(tmp_path / "export").predict(texts)
    assert [row["label"] for row in expected] != [row["label"] for row in at_half]
    predictions = start_service(tmp_path / "export").request(body={"texts": texts})[2]["predictions"]
    assert [row["label"] for row in predictions] == [row["label"] for row in expected]
    for prediction, before in zip(predictions, at_half, strict=True):
        assert prediction["probabilities"] == pytest.approx(before["probabilities"], abs=CLOSE)


def test_concurrent_clients_share_batches_and_get_their_own_predictions(exports, service):
    from headhunt.delivery.onnx.runtime import Model

    texts = sentences(300)[0]
    expected = Model(exports()).outputs(texts)
    before = service.metrics()
    with ThreadPoolExecutor(24) as pool:
        predictions = list(pool.map(lambda text: service.request(body={"text": text})[2], texts))
    outputs = [list(prediction["probabilities"].values()) for prediction in predictions]
    assert np.allclose(outputs, expected, atol=CLOSE)
    after = service.metrics()
    passes = after["headhunt_batch_size_count"] - before["headhunt_batch_size_count"]
    assert after["headhunt_texts_total"] - before["headhunt_texts_total"] == 300
    assert after["headhunt_batch_size_sum"] - before["headhunt_batch_size_sum"] == 300
    assert passes < 300
    assert after["headhunt_queue_length"] == 0


@pytest.mark.parametrize("case", ["model", pytest.param("ensemble", marks=pytest.mark.slow)])
def test_saved_model_is_exported_once_and_predicts_as_torch_does(encoders, exports, start_service, tmp_path, case):
    from headhunt.predictor import Predictor

    saved = exports().parent / "saved"
    if case == "ensemble":
        saved = tmp_path / "saved"
        save_case(encoders(), case, saved)
    torch_model = Predictor.load(saved, precision="fp32")  # the default may be 16 bits, which an export never uses
    first = start_service(saved, HEADHUNT_CACHE=str(tmp_path))
    assert "exporting" in "".join(first.log)
    texts = sentences(8)[0]
    predictions = first.request(body={"texts": texts})[2]["predictions"]
    for prediction, wanted in zip(predictions, torch_model.predict(texts), strict=True):
        assert prediction["label"] == wanted.label
        assert prediction["probabilities"] == pytest.approx(wanted.probabilities, abs=1e-4)
    second = start_service(saved, HEADHUNT_CACHE=str(tmp_path))
    assert "exporting" not in "".join(second.log) and "using the ONNX export" in "".join(second.log)


@pytest.mark.parametrize(("status", "body"), MALFORMED, ids=lambda x: x if isinstance(x, int) else str(x[:24]))
def test_malformed_request_is_refused_with_a_reason(service, status, body):
    received, headers, response = service.request(body=body)
    assert (received, headers["content-type"]) == (status, "application/json"), response
    assert list(response) == ["error"] and response["error"].endswith(".") and "Traceback" not in response["error"]


def test_pair_model_names_the_fields_it_takes(exports, start_service):
    service = start_service(exports("pair"))
    for body in ({"text": "a"}, {"texts": ["a"]}, {"text": "a", "texts_b": ["b"]}, {"texts": ["a"], "texts_b": []}):
        status, _, response = service.request(body=body)
        assert status == 422 and "texts_b" in response["error"]


def test_other_content_types_methods_and_paths_are_refused(service):
    for content_type in ("text/plain", "application/x-www-form-urlencoded", "application/jsonx", ""):
        assert service.request(body={"text": "a"}, headers={"content-type": content_type})[0] == 415
    assert service.request(body={"text": "a"}, headers={"content-type": "Application/JSON; charset=utf-8"})[0] == 200
    for method in ("GET", "PUT", "DELETE", "OPTIONS", "PATCH"):
        status, headers, response = service.request(method=method)
        assert (status, headers["allow"], list(response)) == (405, "POST", ["error"])
    for path in ("/nothing", "/predict/", "/%00", "/predict%2f", "/..%2f..%2fetc/passwd"):
        assert service.request(path)[0] == 404, path
    assert service.request("/health", method="POST", body={})[0] == 405
    assert service.request("/health")[2] == {"live": True, "ready": True}


@pytest.mark.slow
@pytest.mark.parametrize("problem_type", ["single_label_classification", "pair"])
def test_schemathesis_finds_no_failure(exports, start_service, problem_type, tmp_path):
    """Send valid and invalid requests generated from the OpenAPI document."""
    service = start_service(exports(problem_type))
    command = [Path(sys.executable).parent / "schemathesis", "run", f"http://127.0.0.1:{service.port}/openapi.json"]
    command += ["--max-examples", "60", "--seed", "1", "--checks"]
    command += ["not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"]
    command += ["--phases", "examples,coverage,fuzzing", "--generation-database", "none"]
    env = {**os.environ, "NO_COLOR": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=tmp_path)  # it writes files
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert service.request("/health")[0] == 200
    assert "Traceback" not in "".join(service.log)
    assert not [name for name in service.metrics() if 'code="5' in name]


def test_token_is_required_for_predict_and_metrics(exports, start_service):
    service = start_service(exports(), HEADHUNT_TOKEN="s3cret")
    for wrong in ({}, {"authorization": "Bearer"}, {"authorization": "Bearer wrong"}, {"authorization": "s3cret"}):
        status, headers, response = service.request(body={"text": "a"}, headers={**JSON, **wrong})
        assert (status, headers["www-authenticate"], list(response)) == (401, "Bearer", ["error"])
        assert service.request("/metrics", headers=wrong)[0] == 401
    valid = {"authorization": "Bearer s3cret"}
    assert service.request(body={"text": "a"}, headers={**JSON, **valid})[0] == 200
    assert service.metrics(valid)['headhunt_requests_total{code="401"}'] == 4
    assert service.request("/health")[0] == 200
    assert service.request("/openapi.json")[2]["components"]["securitySchemes"]


def test_full_queue_refuses_and_recovers(exports, start_service):
    service = start_service(exports(), "--max-queue", "8", "--max-texts", "8", "--max-batch", "1")
    body = {"texts": ["dog " * 300] * 8}
    with ThreadPoolExecutor(16) as pool:
        responses = list(pool.map(lambda _: service.request(body=body), range(64)))
    codes = [status for status, _, _ in responses]
    assert set(codes) == {200, 429}
    for status, headers, response in responses:
        if status == 429:
            assert int(headers["retry-after"]) >= 1 and list(response) == ["error"]
    metrics = service.metrics()
    assert metrics['headhunt_refused_total{reason="queue_full"}'] == codes.count(429)
    assert metrics['headhunt_requests_total{code="200"}'] == codes.count(200)
    assert metrics["headhunt_queue_length"] == 0
    assert service.request(body=body)[0] == 200


def test_timeout_is_reported_and_disconnect_cancels_queued_texts(exports, start_service):
    impatient = start_service(exports(), "--max-wait", "0.001", "--max-batch", "1", "--max-texts", "256")
    status, headers, response = impatient.request(body={"texts": ["dog " * 300] * 256})
    assert (status, list(response)) == (503, ["error"]) and int(headers["retry-after"]) >= 1
    body = json.dumps({"texts": ["dog " * 300] * 256}).encode()
    patient = start_service(exports(), "--max-batch", "1", "--max-texts", "256")
    with socket.create_connection(("127.0.0.1", patient.port)) as client:
        head = (
            b"POST /predict HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        )
        client.sendall(head % len(body) + body)
    for service in (impatient, patient):
        deadline = time.monotonic() + 5
        while service.metrics()["headhunt_queue_length"] and time.monotonic() < deadline:
            time.sleep(0.02)
        assert service.metrics()["headhunt_queue_length"] == 0
        assert service.metrics()["headhunt_batch_size_count"] < 256


def test_examples_of_the_serving_docs_run(exports, service):
    page = (Path(__file__).parents[2] / "docs/howto/serving.md").read_text()
    examples = re.findall(r"<!-- runs in CI -->\n```(bash|python)\n(.*?)```", page, re.DOTALL)
    assert [language for language, _ in examples] == ["bash", "python"]
    for language, example in examples:
        command = ["bash", "-ec"] if language == "bash" else [sys.executable, "-c"]
        code = example.replace("localhost:8000", f"127.0.0.1:{service.port}")
        done = subprocess.run([*command, code], capture_output=True, text=True)
        assert done.returncode == 0 and "error" not in done.stdout, done.stderr
        assert "good" in done.stdout
    from typer.main import get_command

    from headhunt.cli import app

    known = {name for option in get_command(app).commands["serve"].params for name in option.opts}
    assert set(re.findall(r"`(--[a-z-]+)", page)) <= known
