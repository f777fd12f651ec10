"""A real server on a free port of this machine: it answers as the model does, refuses in JSON, and never falls over."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from conftest import sentences

from headhunt.errors import HeadhuntError, ModelError

pytest.importorskip("fastapi")
pytestmark = pytest.mark.xdist_group("serve")

CLOSE = 1e-5  # how near an answer must be to the model's own
JSON = {"content-type": "application/json"}


def make(encoder: str, folder: Path, problem_type: str = "single_label_classification") -> Path:
    """An export of an untrained model, with the folder it came from beside it.

    Its weights are made large: untrained, a tiny model answers everything alike to six digits, and a test that compares
    answers would not see them change places.
    """
    import torch

    from headhunt.data import Task
    from headhunt.delivery.onnx.export import export
    from headhunt.delivery.onnx.runtime import Model
    from headhunt.engine.trial_runner import prepare
    from headhunt.spec import Head, Recipe, Spec

    texts, labels = sentences(32)
    given = {
        "single_label_classification": (texts, labels),
        "pair": (texts, texts[::-1], labels),
        "multi_label_classification": (texts, [["a"] if i % 2 else ["a", "b"] for i in range(32)]),
        "regression": (texts, [float(i) + 0.5 for i in range(32)]),
    }[problem_type]
    task = Task.load(given, seed=0)
    spec = Spec(encoder=encoder, head=Head(), recipe=Recipe(max_length=32))
    _, predictor = prepare(task, task.splits["train"], spec)
    with torch.no_grad():
        for weights in predictor.model.parameters():
            if weights.dim() > 1:
                weights.normal_(0, 0.5, generator=torch.Generator().manual_seed(weights.numel()))
    predictor.save(folder / "saved")
    export(folder / "saved", folder / "export")
    found = Model(folder / "export").outputs(texts, texts[::-1] if problem_type == "pair" else None)
    assert np.ptp(found, axis=0).max() > 1000 * CLOSE, "answers must differ by far more than the tests allow"
    return folder / "export"


@pytest.fixture(scope="module")
def exports(encoders, tmp_path_factory):
    """An export by problem_type of task, made once."""
    made: dict[str, Path] = {}

    def get(problem_type: str = "single_label_classification") -> Path:
        if problem_type not in made:
            made[problem_type] = make(encoders(), tmp_path_factory.mktemp(problem_type), problem_type)
        return made[problem_type]

    return get


class Served:
    """A service in a process of its own."""

    def __init__(self, folder: Path, *words: str, **env: str) -> None:
        command = [sys.executable, "-m", "headhunt.cli", "serve", str(folder), "--port", "0", "--threads", "1", *words]
        self.said: list[str] = []
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, **env})
        self.port = 0
        for line in self.process.stderr:
            self.said.append(line)
            if found := re.search(r"serving on http://[^ ]*:(\d+)", line):
                self.port = int(found[1])
                break
        assert self.port, "".join(self.said)
        self._reader = threading.Thread(target=lambda: self.said.extend(self.process.stderr), daemon=True)
        self._reader.start()

    def ask(self, path: str = "/predict", body=None, headers=JSON, method: str | None = None):
        """Status, headers and JSON of an answer."""
        client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            given = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
            client.request(method or ("GET" if body is None else "POST"), path, given, dict(headers))
            answer = client.getresponse()
            return answer.status, answer.headers, json.loads(answer.read())
        finally:
            client.close()

    def raw(self, *parts: bytes, pause: float = 0.0, wait: float = 10.0) -> bytes:
        """What comes back for these bytes until the server hangs up or has answered."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=wait) as client:
            with contextlib.suppress(OSError):  # it may have hung up while we were still sending
                for part in parts:
                    client.sendall(part)
                    time.sleep(pause)
            found = b""
            with contextlib.suppress(TimeoutError, ConnectionError):
                while piece := client.recv(65536):
                    found += piece
                    head, _, body = found.partition(b"\r\n\r\n")
                    length = re.search(rb"content-length: (\d+)", head)
                    if length and len(body) >= int(length[1]):
                        break
            return found

    def figures(self, headers=()) -> dict[str, float]:
        """What /metrics says."""
        client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        client.request("GET", "/metrics", headers=dict(headers))
        answer = client.getresponse()
        assert answer.status == 200 and answer.headers["content-type"].startswith("text/plain")
        lines = [line for line in answer.read().decode().splitlines() if not line.startswith("#")]
        client.close()
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}

    def stop(self) -> int:
        """Asks it to stop and gives its exit code."""
        if self.process.poll() is None:
            self.process.terminate()
        code = self.process.wait(60)
        self._reader.join(10)
        self.process.stderr.close()
        return code


@pytest.fixture
def served(request):
    """Starts services and stops them."""
    running: list[Served] = []

    def start(*args, **env) -> Served:
        running.append(Served(*args, **env))
        return running[-1]

    yield start
    for one in running:
        one.stop()


@pytest.fixture(scope="module")
def plain(exports):
    """One service for the tests that only ask."""
    one = Served(
        exports(), "--max-texts", "16", "--max-queue", "64", "--max-characters", "500", "--read-timeout", "1.5"
    )
    yield one
    assert one.stop() == 0
    assert "Traceback" not in "".join(one.said)


# ---------------------------------------------------------------------------------------------- answers


@pytest.mark.parametrize(
    "problem_type", ["single_label_classification", "pair", "multi_label_classification", "regression"]
)
def test_answers_are_those_of_the_model(exports, served, problem_type):
    from headhunt.delivery.onnx.runtime import Model

    model, service = Model(exports(problem_type)), served(exports(problem_type))
    texts = ["the movie was good", "", "\x00 \t\n", "[SEP] a", "dog " * 200, "é 😀 \u202e", "it is bad"]
    second = ["a dog", "", "cat", "[CLS]", "cat " * 99, "plot", "it is not bad"] if problem_type == "pair" else None
    expected = model.predict(texts, second)
    status, _, found = service.ask(body={"texts": texts, **({"texts_b": second} if second else {})})
    assert status == 200 and len(found["predictions"]) == len(texts)
    for one, other in zip(found["predictions"], expected, strict=True):
        assert one["label"] == (
            pytest.approx(other["label"], abs=1e-4) if problem_type == "regression" else other["label"]
        )
        assert one["probability"] == pytest.approx(other["probability"], abs=CLOSE)
        assert one["probabilities"] == pytest.approx(other["probabilities"], abs=CLOSE)
    status, _, found = service.ask(body={"text": texts[0], **({"text_b": second[0]} if second else {})})
    assert status == 200 and found["probabilities"] == pytest.approx(expected[0]["probabilities"], abs=CLOSE)
    assert service.ask(body={"texts": [], **({"texts_b": []} if second else {})})[2] == {"predictions": []}
    assert service.ask("/openapi.json")[0] == 200
    for example in service.ask("/openapi.json")[2]["paths"]["/predict"]["post"]["requestBody"]["content"][
        "application/json"
    ]["examples"].values():
        assert service.ask(body=example["value"])[0] == 200


@pytest.mark.parametrize(
    "problem_type", ["single_label_classification", "pair", "multi_label_classification", "regression"]
)
def test_the_page_answers_as_the_model_does(exports, served, browser, problem_type):
    service = served(exports(problem_type))
    address = f"http://127.0.0.1:{service.port}/"
    browser.open(address, 1000, False)
    texts = {"text": "a good film", **({"text_b": "</script>"} if problem_type == "pair" else {})}
    for name, text in texts.items():
        browser.click(f"#{name}")
        browser.type(text)
    browser.click("#ask")
    answer = service.ask(body=texts)[2]
    shown = browser.run(
        "new Promise(done => setTimeout(function look() { const one = document.querySelector('#answer .says');"
        "one ? done(one.textContent) : setTimeout(look, 20) }, 0))"
    )
    if problem_type == "regression":
        assert float(shown) == pytest.approx(answer["label"], rel=1e-5)
    else:
        assert shown == (
            ", ".join(answer["label"]) or "none of the labels"
            if problem_type == "multi_label_classification"
            else answer["label"]
        )
        bars = browser.run("[...document.querySelectorAll('.bar')].map(bar => bar.innerText.split('\\n'))")
        ordered = sorted(answer["probabilities"].items(), key=lambda item: -item[1])
        assert [bar[0] for bar in bars] == [name for name, _ in ordered]
        assert [bar[-1] for bar in bars] == [f"{100 * share:.1f} %" for _, share in ordered]
    assert browser.run("document.documentElement.scrollWidth") <= 1000
    assert browser.trouble(own=address) == []
    browser.run("document.querySelector('#text').value = 'x'.repeat(30000)")
    browser.click("#ask")
    said = browser.run(
        "new Promise(done => setTimeout(function look() { const one = document.querySelector('#answer .bad');"
        "one ? done(one.textContent) : setTimeout(look, 20) }, 0))"
    )
    assert said == "A text may have 20000 characters; found 30000."


def test_the_page_asks_with_the_token(exports, served, browser):
    service = served(exports(), HEADHUNT_TOKEN="secret")
    browser.open(f"http://127.0.0.1:{service.port}/docs", 400, True)  # leads to the page
    browser.click("#token")
    browser.type("secret")
    browser.click("#ask")
    look = "new Promise(done => setTimeout(function look() { const one = document.querySelector('#answer').textContent;"
    assert browser.run(f"{look} one ? done(one) : setTimeout(look, 20) }}, 0))").startswith(("good", "bad"))
    assert "secret" not in browser.run("document.querySelector('#curl').textContent")
    assert browser.run("document.documentElement.scrollWidth") <= 400


def test_many_callers_at_once_each_get_their_own_answer_in_shared_batches(exports, plain):
    from headhunt.delivery.onnx.runtime import Model

    texts = sentences(300)[0]
    expected = Model(exports()).outputs(texts)
    before = plain.figures()
    with ThreadPoolExecutor(24) as pool:
        found = list(pool.map(lambda text: plain.ask(body={"text": text})[2], texts))
    assert np.allclose([list(one["probabilities"].values()) for one in found], expected, atol=CLOSE)
    after = plain.figures()
    passes = after["headhunt_batch_size_count"] - before["headhunt_batch_size_count"]
    assert after["headhunt_texts_total"] - before["headhunt_texts_total"] == 300
    assert after["headhunt_batch_size_sum"] - before["headhunt_batch_size_sum"] == 300
    assert passes < 300
    assert after["headhunt_queue_length"] == 0


@pytest.mark.slow
def test_a_saved_folder_is_exported_once_and_answers_as_it_does(encoders, exports, served, tmp_path):
    from headhunt.predictor import Predictor

    saved = exports().parent / "saved"
    torch_model = Predictor.load(
        saved, precision="fp32"
    )  # by itself torch may compute in 16 bits, an export never does
    first = served(saved, HEADHUNT_CACHE=str(tmp_path))
    assert "exporting" in "".join(first.said)
    texts = sentences(8)[0]
    found = first.ask(body={"texts": texts})[2]["predictions"]
    for one, other in zip(found, torch_model.predict(texts), strict=True):
        assert one["label"] == other.label and one["probabilities"] == pytest.approx(other.probabilities, abs=1e-4)
    second = served(saved, HEADHUNT_CACHE=str(tmp_path))
    assert "exporting" not in "".join(second.said) and "taking the ONNX export" in "".join(second.said)


# ---------------------------------------------------------------------------------------------- refusals


REFUSED = [
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


@pytest.mark.parametrize(("status", "body"), REFUSED, ids=lambda x: x if isinstance(x, int) else str(x[:24]))
def test_what_is_malformed_is_refused_with_a_reason(plain, status, body):
    found, headers, answer = plain.ask(body=body)
    assert (found, headers["content-type"]) == (status, "application/json"), answer
    assert list(answer) == ["error"] and answer["error"].endswith(".") and "Traceback" not in answer["error"]


def test_a_pair_model_says_what_it_takes(exports, served):
    service = served(exports("pair"))
    for body in ({"text": "a"}, {"texts": ["a"]}, {"text": "a", "texts_b": ["b"]}, {"texts": ["a"], "texts_b": []}):
        status, _, answer = service.ask(body=body)
        assert status == 422 and "texts_b" in answer["error"]


def test_only_json_is_taken_by_post_and_other_paths_are_not_there(plain):
    for problem_type in ("text/plain", "application/x-www-form-urlencoded", "application/jsonx", ""):
        assert plain.ask(body={"text": "a"}, headers={"content-type": problem_type})[0] == 415
    assert plain.ask(body={"text": "a"}, headers={"content-type": "Application/JSON; charset=utf-8"})[0] == 200
    for method in ("GET", "PUT", "DELETE", "OPTIONS", "PATCH"):
        status, headers, answer = plain.ask(method=method)
        assert (status, headers["allow"], list(answer)) == (405, "POST", ["error"])
    for path in ("/nothing", "/predict/", "/%00", "/predict%2f", "/..%2f..%2fetc/passwd"):
        assert plain.ask(path)[0] == 404, path
    assert plain.ask("/health", method="POST", body={})[0] == 405
    assert plain.ask("/health")[2] == {"live": True, "ready": True}


def test_slow_and_torn_requests_end(plain):
    head = b"POST /predict HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: 20\r\n\r\n"
    started = time.monotonic()
    with ThreadPoolExecutor(8) as pool:
        slow_body = pool.submit(plain.raw, head + b'{"te')
        slow_head = pool.submit(plain.raw, b"POST /predict HT")
        silent = pool.submit(plain.raw, b"")
        huge = pool.submit(plain.raw, head.replace(b"20", b"99999999999999999999"), b"x" * 3_000_000)
        no_http = pool.submit(plain.raw, b"\x16\x03\x01 hello\r\n\r\n")
        chunks = head.replace(b"content-length: 20", b"transfer-encoding: chunked")
        endless = pool.submit(plain.raw, chunks, *[b"ffff\r\n" + b" " * 0xFFFF + b"\r\n"] * 40)
        torn = pool.submit(plain.raw, chunks, b"zz\r\n")
    assert time.monotonic() - started < 9
    for answer, status in ((slow_body, 408), (slow_head, 408), (silent, 408), (endless, 413), (no_http, 400)):
        first, _, rest = answer.result().partition(b"\r\n")
        assert first.startswith(b"HTTP/1.1 %d " % status), (status, first)
        assert json.loads(rest.partition(b"\r\n\r\n")[2])["error"]
    for answer in (huge, torn):
        assert answer.result()[9:10] in (b"4", b"")
    assert plain.ask(body={"text": "a"})[0] == 200


def test_pipelined_requests_are_answered_in_order(plain):
    one = b"POST /predict HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s"
    bodies = [b'{"text": "good"}', b'{"text": 1}', b'{"texts": ["bad", "a"]}']
    asked = (
        b"".join(one % (len(body), body) for body in bodies)
        + b"GET /health HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", plain.port), timeout=10) as client:
        client.sendall(asked)
        found = b""
        while piece := client.recv(65536):
            found += piece
    assert re.findall(rb"HTTP/1.1 (\d+)", found) == [b"200", b"422", b"200", b"200"]


def test_two_thousand_malformed_requests_leave_it_well(plain):
    """Valid requests with bytes cut out, put in and changed, in whatever way comes to a seeded mind."""
    rng = random.Random(0)
    head = "POST /predict HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n"
    values = [
        '"a"',
        "1",
        "null",
        "[]",
        "{}",
        "-0.0",
        "1e999",
        '"\\u0000"',
        '"\\udfff"',
        "[[[[]]]]",
        "tru",
        '["a", 1]',
        "\x00",
    ]
    answers = 0

    def request() -> bytes:
        names = rng.choices(["text", "texts", "text_b", "texts_b", "", "x" * 200, "\\u0000"], k=rng.randint(0, 3))
        body = "{" + ", ".join(f'"{name}": {rng.choice(values)}' for name in names) + "}"
        made = bytearray((head.format(len(body.encode())) + body).encode())
        for _ in range(rng.choice([0, 0, 1, 1, 3, 10])):
            place = rng.randrange(len(made))
            made[place : place + rng.randint(0, 3)] = rng.randbytes(rng.randint(0, 3))
        return bytes(made)

    async def one(sent: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", plain.port)
        try:
            writer.write(sent)
            writer.write_eof()
            return await asyncio.wait_for(reader.read(), 20)
        except OSError:  # it has hung up already, which is its right
            return b""
        finally:
            writer.close()

    async def all_of_them() -> list[bytes]:
        limit = asyncio.Semaphore(32)

        async def bounded(sent: bytes) -> bytes:
            async with limit:
                return await one(sent)

        return await asyncio.gather(*(bounded(request()) for _ in range(2000)))

    for found in asyncio.run(all_of_them()):
        answers += found.startswith(b"HTTP/1.1 4")
        assert b"HTTP/1.1 5" not in found and b"Traceback" not in found, found
        if found.startswith(b"HTTP/1.1 4"):
            assert json.loads(found.split(b"\r\n\r\n", 1)[1].split(b"HTTP/1.1", 1)[0])["error"]
    assert answers > 1000
    assert plain.ask("/health")[0] == 200
    assert plain.ask(body={"text": "good"})[0] == 200
    assert plain.figures()["headhunt_queue_length"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("problem_type", ["single_label_classification", "pair"])
def test_schemathesis_finds_nothing(exports, served, problem_type, tmp_path):
    """Requests made from its own OpenAPI, valid and not."""
    service = served(exports(problem_type))
    command = [Path(sys.executable).parent / "schemathesis", "run", f"http://127.0.0.1:{service.port}/openapi.json"]
    command += ["--max-examples", "60", "--seed", "1", "--checks"]
    command += ["not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"]
    command += ["--phases", "examples,coverage,fuzzing", "--generation-database", "none"]
    env = {**os.environ, "NO_COLOR": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=tmp_path)  # it leaves files behind
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert service.ask("/health")[0] == 200
    assert "Traceback" not in "".join(service.said)
    assert not [name for name in service.figures() if 'code="5' in name]


# ---------------------------------------------------------------------------------------------- token, pressure, end


def test_a_token_guards_what_is_worth_it(exports, served):
    service = served(exports(), HEADHUNT_TOKEN="s3cret")
    for shown in ({}, {"authorization": "Bearer"}, {"authorization": "Bearer wrong"}, {"authorization": "s3cret"}):
        status, headers, answer = service.ask(body={"text": "a"}, headers={**JSON, **shown})
        assert (status, headers["www-authenticate"], list(answer)) == (401, "Bearer", ["error"])
        assert service.ask("/metrics", headers=shown)[0] == 401
    right = {"authorization": "Bearer s3cret"}
    assert service.ask(body={"text": "a"}, headers={**JSON, **right})[0] == 200
    assert service.figures(right)['headhunt_requests_total{code="401"}'] == 4
    assert service.ask("/health")[0] == 200
    assert service.ask("/openapi.json")[2]["components"]["securitySchemes"]


def test_a_full_queue_refuses_and_recovers(exports, served):
    service = served(exports(), "--max-queue", "8", "--max-texts", "8", "--max-batch", "1")
    body = {"texts": ["dog " * 300] * 8}
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda _: service.ask(body=body), range(64)))
    codes = [status for status, _, _ in found]
    assert set(codes) == {200, 429}
    for status, headers, answer in found:
        if status == 429:
            assert int(headers["retry-after"]) >= 1 and list(answer) == ["error"]
    figures = service.figures()
    assert figures['headhunt_refused_total{reason="queue_full"}'] == codes.count(429)
    assert figures['headhunt_requests_total{code="200"}'] == codes.count(200)
    assert figures["headhunt_queue_length"] == 0
    assert service.ask(body=body)[0] == 200


def test_who_waits_too_long_is_told_and_who_leaves_is_forgotten(exports, served):
    service = served(exports(), "--max-wait", "0.001", "--max-batch", "1", "--max-texts", "256")
    status, headers, answer = service.ask(body={"texts": ["dog " * 300] * 256})
    assert (status, list(answer)) == (503, ["error"]) and int(headers["retry-after"]) >= 1
    body = json.dumps({"texts": ["dog " * 300] * 256}).encode()
    patient = served(exports(), "--max-batch", "1", "--max-texts", "256")
    with socket.create_connection(("127.0.0.1", patient.port)) as client:
        head = b"POST /predict HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        client.sendall(head % len(body) + body)
    for one in (service, patient):
        until = time.monotonic() + 5
        while one.figures()["headhunt_queue_length"] and time.monotonic() < until:
            time.sleep(0.02)
        assert one.figures()["headhunt_queue_length"] == 0
        assert one.figures()["headhunt_batch_size_count"] < 256


def test_sigterm_finishes_what_is_queued_and_refuses_the_rest(exports, served):
    service = served(exports(), "--max-batch", "1", "--max-queue", "4096", "--max-texts", "256")
    body = {"texts": ["dog " * 300] * 256}
    assert service.ask(body={"text": "a"})[0] == 200
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(service.ask, body=body) for _ in range(8)]
        taken_in, figures = 1 + 8 * 256, service.figures()
        while figures["headhunt_queue_length"] + figures["headhunt_batch_size_sum"] < taken_in:
            time.sleep(0.005)
            figures = service.figures()
        assert figures["headhunt_queue_length"] > 256, "nothing would be left to finish"
        service.process.send_signal(signal.SIGTERM)
        refused = []
        while not all(one.done() for one in asked):
            try:
                refused.append((service.ask(body={"text": "a"}), service.ask("/health")))
            except OSError:  # it has ended meanwhile
                break
        assert [one.result()[0] for one in asked] == [200] * 8
        assert all(len(one.result()[2]["predictions"]) == 256 for one in asked)
    told = [(one, health) for one, health in refused if one[0] != 200]
    assert told, "nothing was asked while it was draining"
    for (status, headers, answer), (health, _, state) in told:
        assert (status, list(answer)) == (503, ["error"]) and int(headers["retry-after"]) >= 1
        assert (health, state["ready"]) == (503, False)
    assert service.stop() == 0
    with pytest.raises(OSError, match="refused"):
        service.ask("/health")


def test_it_says_what_cannot_be_served(exports, tmp_path):
    from headhunt.delivery.serve.schemas import Limits
    from headhunt.delivery.serve.service import is_loopback, serve

    with pytest.raises(ModelError, match=r"no headhunt\.json"):
        serve(tmp_path, port=0)
    with pytest.raises(HeadhuntError, match="fit in the queue"):
        Limits(texts=10, queue=9)
    with pytest.raises(HeadhuntError, match="printable"):
        serve(exports(), port=0, token="ü")
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(HeadhuntError, match="listen on"):
        serve(exports(), port=taken.getsockname()[1])
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    for name in ("headhunt.json", "tokenizer.json"):
        (damaged / name).write_bytes((exports() / name).read_bytes())
    (damaged / "model.onnx").write_bytes(b"nothing")
    with pytest.raises(ModelError, match="cannot be loaded"):
        serve(damaged, port=0)
    said: list[str] = []
    with pytest.raises(ModelError):
        serve(tmp_path, host="0.0.0.0", port=0, say=said.append)
    assert "warning" in said[0]
    assert is_loopback("127.0.0.1") and is_loopback("localhost") and is_loopback("::1") and not is_loopback("0.0.0.0")


def test_the_examples_of_the_page_run(exports, plain):
    page = (Path(__file__).parent.parent / "docs/serving.md").read_text()
    examples = re.findall(r"<!-- runs in CI -->\n```(bash|python)\n(.*?)```", page, re.DOTALL)
    assert [kind for kind, _ in examples] == ["bash", "python"]
    for problem_type, example in examples:
        command = ["bash", "-ec"] if problem_type == "bash" else [sys.executable, "-c"]
        code = example.replace("localhost:8000", f"127.0.0.1:{plain.port}")
        done = subprocess.run([*command, code], capture_output=True, text=True)
        assert done.returncode == 0 and "error" not in done.stdout, done.stderr
        assert "good" in done.stdout
    from typer.main import get_command

    from headhunt.cli import app

    known = {name for one in get_command(app).commands["serve"].params for name in one.opts}
    assert set(re.findall(r"`(--[a-z-]+)", page)) <= known


# ---------------------------------------------------------------------------------------------- batches


class Rows(list):
    """Stands for tokens: only its length matters."""


def test_batches_are_of_like_length_and_the_oldest_always_goes():
    from headhunt.delivery.serve.batching import OVERHEAD, Waiting

    rng = random.Random(0)
    lengths = [int(rng.lognormvariate(2.5, 0.7)) + 2 for _ in range(2000)]
    waiting, numbers, work, full = Waiting(), iter(range(2000)), 0, 0
    for number in range(64):
        waiting.add((next(numbers), None, number, Rows([0] * lengths[number])))
    seen: list[int] = []
    while waiting.count:
        oldest = min(rows[0][0] for rows in waiting.rows.values())
        batch = waiting.take(32)
        assert oldest in [row[0] for row in batch] and 0 < len(batch) <= 32
        seen += [row[0] for row in batch]
        work += len(batch) * max(len(row[3]) for row in batch) + OVERHEAD
        for number in [n for n in (next(numbers, None) for _ in batch) if n is not None]:
            waiting.add((number, None, number, Rows([0] * lengths[number])))
    assert sorted(seen) == list(range(2000)) and not waiting.rows and not waiting.lengths
    ordered = sorted(lengths)
    full = sum(len(ordered[i : i + 32]) * ordered[min(i + 31, 1999)] + OVERHEAD for i in range(0, 2000, 32))
    assert work < 1.25 * full  # of what sorting all of them beforehand would take; in order of arrival it is thrice


def test_a_model_that_fails_fails_its_callers_and_no_others():
    from headhunt.delivery.serve.batching import Batcher

    class Fragile:
        def encode(self, texts, texts_b=None):
            if "no tokens" in texts:
                raise ValueError("as asked")
            return [Rows([0] * len(text)) for text in texts]

        def run(self, rows):
            if len(rows[0]) == 3:
                raise RuntimeError("as asked")
            return np.array([len(row) for row in rows])

    async def ask() -> None:
        batcher = Batcher(Fragile(), model_instances=2, most=4)
        batcher.start()
        assert await batcher.submit(["abcd", "ab"]) == [4, 2]
        for bad in ("abc", "no tokens"):
            with pytest.raises((RuntimeError, ValueError), match="as asked"):
                await batcher.submit([bad])
        many = [batcher.submit(["x" * 40_000, "y" * n]) for n in range(4, 40)]
        assert [(await one)[1] for one in many] == list(range(4, 40))
        assert batcher.queued == 0
        batcher.close()
        for lane in batcher._lanes:
            lane.join(10)
            assert not lane.is_alive()

    asyncio.run(ask())


# ---------------------------------------------------------------------------------------------- Ray Serve


@pytest.mark.slow
@pytest.mark.xdist_group("ray")
def test_the_same_answers_come_from_a_ray_cluster(exports, tmp_path):
    """`serve run` as a user types it, on a Ray of its own."""
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
    service = Served.__new__(Served)
    service.port = port
    try:
        until = time.monotonic() + 120
        while True:
            try:
                if service.ask("/health")[0] == 200:
                    break
            except (OSError, ValueError):
                pass
            assert process.poll() is None and time.monotonic() < until, (tmp_path / "log").read_text()[-3000:]
            time.sleep(0.5)
        texts = sentences(100)[0]
        expected = Model(exports()).outputs(texts)
        with ThreadPoolExecutor(16) as pool:
            found = list(pool.map(lambda text: service.ask(body={"text": text})[2], texts))
        assert np.allclose([list(one["probabilities"].values()) for one in found], expected, atol=CLOSE)
        assert len(service.ask(body={"texts": texts})[2]["predictions"]) == 100
        assert service.ask(body={"texts": []})[2] == {"predictions": []}
        for status, body in [*REFUSED[:26], (413, b" " * 1_000_001)]:
            status_found, _, answer = service.ask(body=body)
            assert (status_found, list(answer)) == (status, ["error"]), body[:40]
        assert service.ask("/nothing")[0] == 404 and service.ask()[0] == 405
        assert service.ask(body={"text": "a"}, headers={"content-type": "text/plain"})[0] == 415
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)
