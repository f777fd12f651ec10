"""The server under broken HTTP, at shutdown, and at start."""

from __future__ import annotations

import asyncio
import json
import random
import re
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from serving import exports_fixture, service_fixture, start_service_fixture  # noqa: F401

from headhunt.errors import HeadhuntError, ModelError

pytest.importorskip("fastapi")
pytestmark = pytest.mark.xdist_group("serve")


def test_server_ends_slow_and_torn_requests(service):
    head = b"POST /predict HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 20\r\n\r\n"
    started = time.monotonic()
    with ThreadPoolExecutor(8) as pool:
        slow_body = pool.submit(service.send, head + b'{"te')
        slow_head = pool.submit(service.send, b"POST /predict HT")
        silent = pool.submit(service.send, b"")
        huge = pool.submit(service.send, head.replace(b"20", b"99999999999999999999"), b"x" * 3_000_000)
        no_http = pool.submit(service.send, b"\x16\x03\x01 hello\r\n\r\n")
        chunks = head.replace(b"content-length: 20", b"transfer-encoding: chunked")
        endless = pool.submit(service.send, chunks, *[b"ffff\r\n" + b" " * 0xFFFF + b"\r\n"] * 40)
        torn = pool.submit(service.send, chunks, b"zz\r\n")
    assert time.monotonic() - started < 9
    for response, status in ((slow_body, 408), (slow_head, 408), (silent, 408), (endless, 413), (no_http, 400)):
        first, _, rest = response.result().partition(b"\r\n")
        assert first.startswith(b"HTTP/1.1 %d " % status), (status, first)
        assert json.loads(rest.partition(b"\r\n\r\n")[2])["error"]
    for response in (huge, torn):
        assert response.result()[9:10] in (b"4", b"")
    assert service.request(body={"text": "a"})[0] == 200


def test_pipelined_requests_get_responses_in_order(service):
    template = (
        b"POST /predict HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s"
    )
    bodies = [b'{"text": "good"}', b'{"text": 1}', b'{"texts": ["bad", "a"]}']
    requests = (
        b"".join(template % (len(body), body) for body in bodies)
        + b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", service.port), timeout=10) as client:
        client.sendall(requests)
        responses = b""
        while piece := client.recv(65536):
            responses += piece
    assert re.findall(rb"HTTP/1.1 (\d+)", responses) == [b"200", b"422", b"200", b"200"]


def test_server_survives_two_thousand_malformed_requests(service):
    """Send valid requests with bytes removed, inserted and changed at random."""
    rng = random.Random(0)
    head = "POST /predict HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n"
    values = ['"a"', "1", "null", "[]", "{}", "-0.0", "1e999", '"\\u0000"', '"\\udfff"']
    values += ["[[[[]]]]", "tru", '["a", 1]', "\x00"]
    refusals = 0

    def make_request() -> bytes:
        names = rng.choices(["text", "texts", "text_b", "texts_b", "", "x" * 200, "\\u0000"], k=rng.randint(0, 3))
        body = "{" + ", ".join(f'"{name}": {rng.choice(values)}' for name in names) + "}"
        request = bytearray((head.format(len(body.encode())) + body).encode())
        for _ in range(rng.choice([0, 0, 1, 1, 3, 10])):
            position = rng.randrange(len(request))
            request[position : position + rng.randint(0, 3)] = rng.randbytes(rng.randint(0, 3))
        return bytes(request)

    async def send(request: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
        try:
            writer.write(request)
            writer.write_eof()
            return await asyncio.wait_for(reader.read(), 20)
        except OSError:  # the server may close the connection early
            return b""
        finally:
            writer.close()

    async def send_all() -> list[bytes]:
        limit = asyncio.Semaphore(32)

        async def send_limited(request: bytes) -> bytes:
            async with limit:
                return await send(request)

        return await asyncio.gather(*(send_limited(make_request()) for _ in range(2000)))

    for response in asyncio.run(send_all()):
        refusals += response.startswith(b"HTTP/1.1 4")
        assert b"HTTP/1.1 5" not in response and b"Traceback" not in response, response
        if response.startswith(b"HTTP/1.1 4"):
            assert json.loads(response.split(b"\r\n\r\n", 1)[1].split(b"HTTP/1.1", 1)[0])["error"]
    assert refusals > 1000
    assert service.request("/health")[0] == 200
    assert service.request(body={"text": "good"})[0] == 200
    assert service.metrics()["headhunt_queue_length"] == 0


def test_other_hosts_are_refused_and_what_is_no_http_is_not_logged(service):
    """A page of another site can let its own name lead to this machine, and send JSON to its own name."""
    for host, status in (
        ("localhost", 200),
        (f"127.0.0.1:{service.port}", 200),
        (f"[::1]:{service.port}", 200),
        ("evil.example", 421),
        (f"evil.example:{service.port}", 421),
        ("127.0.0.1.evil.example", 421),
    ):
        for path, body in (("/", None), ("/openapi.json", None), ("/health", None), ("/predict", {"text": "good"})):
            response = service.send(make_request(path, body, host))
            assert response.startswith(b"HTTP/1.1 %d " % status), (host, path, response)
    assert service.send(b"GET /health HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 200 "), "without a host"
    lines = len(service.log)
    for _ in range(20):
        assert service.send(b"nothing\r\n\r\n").startswith(b"HTTP/1.1 400 ")
    assert len(service.log) == lines


def make_request(path: str, body: object, host: str) -> bytes:
    content = b"" if body is None else json.dumps(body).encode()
    head = f"{'GET' if body is None else 'POST'} {path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(content)}\r\n\r\n".encode() + content


def test_sigterm_finishes_queued_requests_and_refuses_new_ones(exports, start_service):
    service = start_service(exports(), "--max-batch", "1", "--max-queue", "4096", "--max-texts", "256")
    body = {"texts": ["dog " * 300] * 256}
    assert service.request(body={"text": "a"})[0] == 200
    with ThreadPoolExecutor(8) as pool:
        queued = [pool.submit(service.request, body=body) for _ in range(8)]
        submitted, metrics = 1 + 8 * 256, service.metrics()
        while metrics["headhunt_queue_length"] + metrics["headhunt_batch_size_sum"] < submitted:
            time.sleep(0.005)
            metrics = service.metrics()
        assert metrics["headhunt_queue_length"] > 256, "nothing would be left to finish"
        service.process.send_signal(signal.SIGTERM)
        later = []
        while not all(future.done() for future in queued):
            try:
                later.append((service.request(body={"text": "a"}), service.request("/health")))
            except OSError:  # the service has stopped
                break
        assert [future.result()[0] for future in queued] == [200] * 8
        assert all(len(future.result()[2]["predictions"]) == 256 for future in queued)
    refused = [(prediction, health) for prediction, health in later if prediction[0] != 200]
    assert refused, "no request was sent during the shutdown"
    for (status, headers, response), (health, _, state) in refused:
        assert (status, list(response)) == (503, ["error"]) and int(headers["retry-after"]) >= 1
        assert (health, state["ready"]) == (503, False)
    assert service.stop() == 0
    with pytest.raises(OSError, match="refused"):
        service.request("/health")


def test_sigint_ends_the_service_as_interrupted_by_the_user(exports, start_service):
    service = start_service(exports())
    assert service.request(body={"text": "a"})[0] == 200
    service.process.send_signal(signal.SIGINT)
    assert service.process.wait(30) == 130
    assert service.stop() == 130
    assert "finishing the queued requests" in "".join(service.log) and "Traceback" not in "".join(service.log)


def test_serve_refuses_invalid_arguments_and_models(exports, tmp_path):
    from headhunt.delivery.serve import Limits, serve
    from headhunt.delivery.serve.server import is_loopback

    with pytest.raises(ModelError, match=r"no headhunt\.json"):
        serve(tmp_path, port=0)
    with pytest.raises(HeadhuntError, match="fits in the queue"):
        Limits(max_texts=10, max_queue=9)
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
    messages: list[str] = []
    with pytest.raises(ModelError):
        serve(tmp_path, host="0.0.0.0", port=0, notify=messages.append)
    assert "warning" in messages[0]
    assert is_loopback("127.0.0.1") and is_loopback("localhost") and is_loopback("::1") and not is_loopback("0.0.0.0")
