"""Batches of similar length, and errors of the model."""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from typing import ClassVar

import numpy as np
import pytest
from serving import WordCounter, call

from headhunt.delivery.onnx import runtime
from headhunt.delivery.serve.batching import OVERHEAD, Batcher, Row, RowQueue
from headhunt.delivery.serve.limits import Limits
from headhunt.delivery.serve.service import Service
from headhunt.errors import HeadhuntError


class Tokens(list):
    """A stand-in for tokens, of which only the number matters."""


def test_row_queue_batches_similar_lengths_and_always_takes_the_oldest():
    rng = random.Random(0)
    lengths = [int(rng.lognormvariate(2.5, 0.7)) + 2 for _ in range(2000)]
    rows, numbers, work = RowQueue(), iter(range(2000)), 0
    for number in range(64):
        rows.add(Row(next(numbers), None, number, Tokens([0] * lengths[number])))
    seen: list[int] = []
    while rows.count:
        oldest = min(same_length[0].number for same_length in rows.rows.values())
        batch = rows.take(32)
        assert oldest in [row.number for row in batch] and 0 < len(batch) <= 32
        seen += [row.number for row in batch]
        work += len(batch) * max(len(row.tokens) for row in batch) + OVERHEAD
        for number in [n for n in (next(numbers, None) for _ in batch) if n is not None]:
            rows.add(Row(number, None, number, Tokens([0] * lengths[number])))
    assert sorted(seen) == list(range(2000)) and not rows.rows and not rows.lengths
    ordered = sorted(lengths)
    sorted_work = sum(len(ordered[i : i + 32]) * ordered[min(i + 31, 1999)] + OVERHEAD for i in range(0, 2000, 32))
    assert work < 1.25 * sorted_work  # batches in order of arrival take three times as much


def test_batcher_reports_model_errors_only_to_their_own_requests():
    class Fragile:
        def encode(self, texts, texts_b=None):
            if "no tokens" in texts:
                raise ValueError("as asked")
            return [Tokens([0] * len(text)) for text in texts]

        def run(self, rows):
            if len(rows[0]) == 3:
                raise RuntimeError("as asked")
            return np.array([len(row) for row in rows])

    async def submit() -> None:
        batcher = Batcher(Fragile(), model_instances=2, max_batch=4)
        batcher.start()
        assert await batcher.submit(["abcd", "ab"]) == [4, 2]
        for bad in ("abc", "no tokens"):
            with pytest.raises(RuntimeError, match="as asked"):
                await batcher.submit([bad])
        futures = [batcher.submit(["x" * 40_000, "y" * n]) for n in range(4, 40)]
        assert [(await future)[1] for future in futures] == list(range(4, 40))
        assert batcher.queued == 0
        batcher.close()
        for thread in batcher.threads:
            thread.join(10)
            assert not thread.is_alive()

    asyncio.run(submit())


class Exploding(WordCounter):
    """Fails with errors that are no ordinary exceptions, or with too few outputs."""

    def run(self, rows):
        if rows[0] == ["exit"]:
            raise SystemExit
        return super().run(rows)[1:] if rows[0] == ["short"] else super().run(rows)


def test_batcher_survives_everything_a_model_does():
    async def submit() -> None:
        batcher = Batcher(Exploding(), model_instances=1, max_batch=4)
        batcher.start()
        for text, message in (("exit", "SystemExit"), ("short", "0 outputs for 1 texts")):
            with pytest.raises(RuntimeError, match=message):
                await asyncio.wait_for(batcher.submit([text]), 5)
        assert await asyncio.wait_for(batcher.submit(["a b c"]), 5) == [3.0]
        assert batcher.queued == 0 and batcher.working
        batcher.close()

    asyncio.run(submit())


def test_batcher_recovers_from_an_error_of_its_queue(monkeypatch):
    real, calls = RowQueue.take, []

    def fail_once(self, max_batch):
        calls.append(1)
        if len(calls) == 1:
            raise KeyError("as asked")
        return real(self, max_batch)

    monkeypatch.setattr(RowQueue, "take", fail_once)

    async def submit() -> None:
        batcher = Batcher(WordCounter(), model_instances=1, max_batch=4)
        batcher.start()
        with pytest.raises(RuntimeError, match="KeyError"):
            await asyncio.wait_for(batcher.submit(["a"]), 5)
        assert await asyncio.wait_for(batcher.submit(["a b"]), 5) == [2.0]
        assert batcher.queued == 0 and batcher.restarts == 1
        batcher.close()

    asyncio.run(submit())


class Panic(BaseException):
    """Stand for a panic of a library in Rust, which is no `Exception`."""


class Panicking(WordCounter):
    """Panics at one text when it is tokenized, and is stuck at another until it is released."""

    def __init__(self):
        self.stuck, self.batches = threading.Event(), []

    def encode(self, texts, texts_b=None):
        self.batches.append(texts)
        if "panic" in texts:
            raise Panic
        if "stuck" in texts:
            self.stuck.wait(10)
        return super().encode(texts)


def test_text_that_panics_fails_its_own_request_and_leaves_nothing_queued():
    async def run() -> None:
        model = Panicking()
        service = Service(model, limits=Limits(max_wait=0.2))
        batcher = service.batcher
        batcher.start()
        futures = [batcher.submit(["stuck"])]
        deadline = time.monotonic() + 5
        while service.is_ready():
            assert time.monotonic() < deadline, "health must look at progress"
            await asyncio.sleep(0.02)
        futures += [batcher.submit([text]) for text in ("a", "panic", "b c")]
        model.stuck.set()
        done = await asyncio.wait_for(asyncio.gather(*futures, return_exceptions=True), 5)
        assert ["a", "panic", "b c"] in model.batches, "they were tokenized together"
        assert done[:2] == [[1.0], [1.0]] and isinstance(done[2], RuntimeError) and done[3] == [2.0]
        assert batcher.queued == 0 and batcher.working and service.is_ready()
        batcher.close()

    asyncio.run(run())


def test_requests_of_a_dead_thread_fail_at_once():
    class Dying(WordCounter):
        def run(self, rows):
            asked.set()
            dead.wait(10)
            return super().run(rows)

    asked, dead = threading.Event(), threading.Event()

    async def run() -> None:
        batcher = Batcher(Dying(), model_instances=1, max_batch=4)
        batcher.start()
        held = batcher.submit(["a"])
        await asyncio.to_thread(asked.wait, 5)
        old, batcher.threads[0] = batcher.threads[0], threading.Thread()  # not alive
        batcher.replace_dead_threads()
        with pytest.raises(RuntimeError, match="died"):
            await asyncio.wait_for(held, 5)
        assert batcher.queued == 0
        dead.set()
        assert await asyncio.wait_for(batcher.submit(["a b"]), 5) == [2.0]
        batcher.close()
        old.join(5)

    asyncio.run(run())


class ManyLabels(WordCounter):
    """A model of many labels, whose answers note the thread that builds them."""

    problem_type, labels = "single_label_classification", [f"label {i}" for i in range(20_000)]
    threads: ClassVar[list] = []

    def run(self, rows):
        return np.tile(np.linspace(0, 1, len(self.labels), dtype=np.float32), (len(rows), 1))

    def prediction(self, row, top_k=None):
        self.threads.append(threading.current_thread())
        return runtime.Model._answer(self, self.problem_type, self.labels, row, top_k)


def test_answers_are_limited_and_built_outside_the_event_loop():
    model = ManyLabels()
    service = Service(model)
    few = [{"text": "a"}, {"texts": ["a", "b"], "top_k": 3}]
    refused = [{"texts": ["a"] * 11}, {"text": "a", "top_k": 0}, {"text": "a", "top_k": True}]
    responses = call(service, *(("POST", "/predict", body) for body in [*few, *refused]))
    assert [status for status, _ in responses] == [200, 200, 413, 422, 422]
    bodies = [json.loads(body) for _, body in responses]
    assert list(bodies[0]["probabilities"]) == [f"label {i}" for i in range(19_999, 19_994, -1)]
    assert bodies[0]["label"] == "label 19999" and bodies[0]["probability"] == 1.0
    assert [len(each["probabilities"]) for each in bodies[1]["predictions"]] == [3, 3]
    assert "at most 10 texts for 20000 labels; found 11" in bodies[2]["error"]
    assert '"top_k" must be a number of labels, at least 1; found' in bodies[3]["error"]
    assert model.threads and set(model.threads) <= set(service.batcher.threads)


def test_service_reports_a_dead_thread_and_replaces_it():
    async def run() -> None:
        service = Service(WordCounter())
        service.batcher.start()
        assert service.is_ready()
        service.batcher._inbox.put(None)  # ends the thread, as nothing else can from outside
        service.batcher.threads[0].join(10)
        service.batcher._inbox.get()
        assert not service.is_ready(), "health reports the dead thread"
        assert service.is_ready() and b"headhunt_thread_restarts 1.0" in service.metrics.render()
        assert await asyncio.wait_for(service.batcher.submit(["a b"]), 5) == [2.0]
        service.batcher.close()

    asyncio.run(run())


@pytest.mark.parametrize("token", ["", " ", "a\nb", "\u00e9"])
def test_service_refuses_a_token_that_protects_nothing(token):
    with pytest.raises(HeadhuntError, match="token= must be"):
        Service(WordCounter(), token=token)
