"""The service of a model of several tasks: a service for each, at its own path."""

from __future__ import annotations

import json

import numpy as np
import pytest
from serving import WordCounter, call

pytest.importorskip("fastapi")
from headhunt.delivery.onnx.runtime import TaskOutput


class LetterCounter(WordCounter):
    """A stand-in for the model of another task: it predicts the number of letters."""

    def run(self, rows):
        return super().run(["".join(row) for row in rows])


class BothCounter(WordCounter):
    """A stand-in for the model of both tasks, which counts its forward passes."""

    problem_type, tasks = "multi_task", (TaskOutput("words", "regression", []), TaskOutput("letters", "regression", []))
    passes = 0

    def run(self, rows):
        self.passes += 1
        return np.stack([WordCounter().run(rows), LetterCounter().run(rows)], 1)

    def prediction(self, row, top_k=None):
        return {task.name: super(BothCounter, self).prediction(x) for task, x in zip(self.tasks, row, strict=True)}


def test_every_task_has_its_own_path():
    from headhunt.delivery.serve.service import Service
    from headhunt.delivery.serve.tasks import TaskServices

    service = TaskServices({"words": Service(WordCounter()), "letters": Service(LetterCounter())})
    text = {"text": "a bad film"}
    responses = call(
        service,
        ("POST", "/tasks/words/predict", text),
        ("POST", "/tasks/letters/predict", text),
        ("POST", "/tasks/letters/predict", {"texts": ["ab", "c"]}),
        ("GET", "/tasks/words/", None),
        ("GET", "/tasks/words/openapi.json", None),
        ("GET", "/", None),
        ("GET", "/health", None),
        ("POST", "/predict", text),
        ("POST", "/tasks/other/predict", text),
        ("POST", "/tasks/words/predict", {"task": "words", **text}),
    )
    statuses = [status for status, _ in responses]
    assert statuses == [200, 200, 200, 200, 200, 200, 200, 404, 404, 422]
    bodies = [body for _, body in responses]
    assert [json.loads(body)["label"] for body in bodies[:2]] == [3.0, 8.0]
    assert [each["label"] for each in json.loads(bodies[2])["predictions"]] == [2.0, 1.0]
    assert b"<html" in bodies[3] and "/predict" in json.loads(bodies[4])["paths"]
    assert b'href="tasks/words/"' in bodies[5] and json.loads(bodies[6]) == {"live": True, "ready": True}
    assert "words, letters" in json.loads(bodies[7])["error"]


def test_no_path_leads_past_the_token_or_the_limit():
    from headhunt.delivery.serve.limits import Limits
    from headhunt.delivery.serve.service import Service
    from headhunt.delivery.serve.tasks import TaskServices

    options = {"token": "secret", "limits": Limits(max_body=100)}
    roots = [f"/{root}" for root in ("tasks/words", "texts")]
    paths = [root * times + end for root in roots for times in (1, 2, 3) for end in ("/metrics", "/predict")]
    paths += [
        "/tasks/words//metrics",
        "/tasks/words/metrics/",
        "/texts/tasks/words/predict",
        "/tasks/words/texts/predict",
    ]
    requests = [(method, path, {"text": "a" * 1000}) for path in paths for method in ("GET", "POST", "HEAD", "PUT")]
    tasks = TaskServices({"words": Service(WordCounter(), **options)}, {"texts": Service(WordCounter(), **options)})
    single = Service(WordCounter(), **options)
    pages = [("GET", root + end, None) for root in roots for end in ("/", "/docs", "/openapi.json", "/health")]
    wanted = [*requests, *pages]
    statuses = [status for status, _ in call(tasks, *wanted)]  # a service starts once
    found = {request[:2]: status for request, status in zip(wanted, statuses, strict=True)}
    assert set(statuses[: len(requests)]) <= {401, 405}, found
    assert set(statuses[len(requests) :]) == {200, 307}, found
    wanted = [*requests, ("GET", "/metrics", None), ("GET", "/x", None)]
    assert {status for status, _ in call(single, *wanted)} <= {401, 405}


def test_all_tasks_of_a_text_are_predicted_in_one_forward_pass():
    from headhunt.delivery.serve.launch import join_tasks
    from headhunt.delivery.serve.service import Service
    from headhunt.delivery.serve.tasks import TaskServices

    assert join_tasks({"a": False, "b": True, "c": False}) == {"texts": ["a", "c"]}
    both = BothCounter()
    alone = {"words": Service(WordCounter()), "letters": Service(LetterCounter())}
    responses = call(
        TaskServices(alone, {"texts": Service(both)}),
        ("POST", "/texts/predict", {"text": "a bad film"}),
        ("POST", "/texts/predict", {"texts": ["ab", "c d"]}),
        ("GET", "/texts/openapi.json", None),
        ("GET", "/texts/", None),
        ("GET", "/", None),
        ("POST", "/pairs/predict", {"text": "a", "text_b": "b"}),
        ("POST", "/texts", {"text": "a"}),
    )
    assert [status for status, _ in responses] == [200, 200, 200, 200, 200, 404, 404]
    bodies = [body for _, body in responses]
    labels = {name: answer["label"] for name, answer in json.loads(bodies[0]).items()}
    assert labels == {"words": 3.0, "letters": 8.0}
    found = [{name: answer["label"] for name, answer in row.items()} for row in json.loads(bodies[1])["predictions"]]
    assert found == [{"words": 1.0, "letters": 2.0}, {"words": 2.0, "letters": 2.0}]
    assert both.passes <= 3 and b'["letters", "regression"]' in bodies[3] and b'href="texts/"' in bodies[4]
    assert "/predict" in json.loads(bodies[2])["paths"]
