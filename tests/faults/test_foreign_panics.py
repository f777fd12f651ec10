"""Whatever a foreign library raises, a request has an answer, nothing stays queued and health tells the truth."""

from __future__ import annotations

import asyncio
import json

import pytest
from model_folders import make_predictor
from serving import WordCounter, send_request

pytest.importorskip("fastapi")
from headhunt import predictor
from headhunt.delivery.serve import launch
from headhunt.delivery.serve.service import Service
from headhunt.errors import ModelError


class Panic(BaseException):
    """Stand for a panic of a library in Rust, which is no `Exception`."""


ERRORS = [Panic("as asked"), SystemExit(3), KeyboardInterrupt(), GeneratorExit(), MemoryError(), StopIteration()]
ERRORS += [asyncio.CancelledError(), OSError("as asked"), RecursionError(), TimeoutError()]


class Failing(WordCounter):
    """Fails in one method if a text is "fail"."""

    def __init__(self, method: str, error: BaseException) -> None:
        self.method, self.error = method, error

    def fail(self, method: str, failing: bool) -> None:
        if failing and method == self.method:
            raise self.error

    def encode(self, texts, texts_b=None):
        self.fail("encode", "fail" in texts)
        return super().encode(texts)

    def run(self, rows):
        self.fail("run", ["fail"] in rows)
        outputs = super().run(rows)
        outputs[[row == ["fail"] for row in rows]] = -1
        return outputs

    def prediction(self, row, top_k=None):
        self.fail("prediction", row == -1)
        return super().prediction(row)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("method", ["encode", "run", "prediction"])
def test_service_answers_after_any_error_of_a_library(method, error):
    service = Service(Failing(method, error), max_batch=1)

    async def run() -> None:
        service.batcher.start()
        requests = [{"text": "fail"}, {"text": "a b"}, {"texts": ["a", "fail"]}, {"text": "a b c"}]
        sent = [send_request(service, "POST", "/predict", request) for request in requests]
        responses = await asyncio.wait_for(asyncio.gather(*sent), 10)
        assert [status for status, _ in responses] == [500, 200, 500, 200]
        assert [json.loads(responses[at][1])["label"] for at in (1, 3)] == [2.0, 3.0]
        assert all("the log has the details" in json.loads(responses[at][1])["error"] for at in (0, 2))
        status, health = await send_request(service, "GET", "/health")
        assert (status, json.loads(health)) == (200, {"live": True, "ready": True})
        assert service.batcher.queued == 0 and service.batcher.working and not service.batcher.restarts
        service.batcher.close()

    asyncio.run(run())


@pytest.mark.parametrize("error", [Panic("as asked"), MemoryError("as asked")], ids=lambda error: type(error).__name__)
def test_models_that_fail_while_they_are_loaded_are_refused(encoders, tmp_path, monkeypatch, error):
    def fail(*_, **__):
        raise error

    folder = make_predictor(encoders(), "plain")[0].save(tmp_path / "model")
    for name in ("load_saved", "load_tokenizer", "check_weight_files"):
        with monkeypatch.context() as patch:
            patch.setattr(predictor, name, fail)
            with pytest.raises(ModelError, match="cannot be loaded: as asked"):
                predictor.Predictor.load(folder)
    with pytest.raises(ModelError, match="cannot be loaded: as asked"):
        launch._open_export(fail, folder, 1)
    error = KeyboardInterrupt()
    monkeypatch.setattr(predictor, "load_saved", fail)
    with pytest.raises(KeyboardInterrupt):
        predictor.Predictor.load(folder)
