"""The sentences that say what a reader must know about the delivered model."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from headhunt.engine import workers
from headhunt.engine.verdict import conclude
from headhunt.errors import HeadhuntError
from headhunt.evaluation.metrics import Score
from headhunt.run.results import TestResult
from headhunt.run.settings import SearchSettings
from headhunt.run.state import Outcome, Trial
from headhunt.spec import plain as plain_spec
from headhunt.spec import solved as solved_spec

ENCODER, ROWS = "someone/encoder", 1000


def make_view(chosen: Trial, plain: Trial, *, outputs=None, space="default", examples=3000):
    """Return a view of a search whose plain head saw some examples, with outputs for the rows held out."""
    outputs = np.eye(2, dtype=np.float32)[[0, 1, 0]] if outputs is None else outputs
    return SimpleNamespace(
        task=SimpleNamespace(
            rows={"train": ROWS, "test": 100}, problem_type="single_label_classification", labels=["bad", "good"]
        ),
        settings=SimpleNamespace(space={"name": space}, calibrate=False, rejection=None),
        state=SimpleNamespace(plain=plain, jobs={}),
        directory=SimpleNamespace(final_model=lambda number, seed: SimpleNamespace(name=f"trial{number:04d}")),
        metric="accuracy",
        training_facts=lambda trial, seed=0: (examples, {"rows": ROWS}),
        held_out=lambda trial: (outputs, np.zeros(len(outputs), np.int64)),
        fitted=lambda: [chosen],
        compare=lambda first, second: None,
    )


def make_trial(number: int, origin: str, spec, params=None, **results) -> Trial:
    return Trial(number, spec.to_dict(), str(number), params, origin, 0, results={0: Outcome(**results)})


def sentence(view, chosen: Trial) -> str:
    test = TestResult(rows=100, scores={"winner": {"accuracy": Score(0.8, 0.7, 0.9)}}, confusion={})
    return conclude(view, chosen, test, None, "winner", unequal=False).sentence


@pytest.fixture
def solved() -> Trial:
    return make_trial(1, "solved", solved_spec(ENCODER), outcome="ok", score=0.8)


@pytest.fixture
def plain() -> Trial:
    return make_trial(0, "plain", plain_spec(ENCODER, ROWS), outcome="ok", score=0.7)


def test_model_that_gives_every_row_one_class_is_delivered_with_a_warning(solved, plain):
    same = sentence(make_view(solved, plain, outputs=np.eye(2)[[1, 1, 1]]), solved)
    assert "It gives every validation row the class 'good'" in same
    assert "every validation row" not in sentence(make_view(solved, plain), solved)


def test_model_outside_the_space_is_named_as_such(solved, plain):
    assert "It is not from the space 'paper'" in sentence(make_view(solved, plain, space="paper"), solved)
    assert "not from the space" not in sentence(make_view(solved, plain), solved)
    solved.params = {"head.pooling": "mean"}
    assert "not from the space" not in sentence(make_view(solved, plain, space="paper"), solved)


def test_plain_head_with_too_little_time_is_noted_without_a_comparison_too(solved, plain):
    assert "The plain head had time for 0.1 of its usual" in sentence(make_view(solved, plain, examples=100), solved)
    assert "had time for" not in sentence(make_view(solved, plain, examples=100 * ROWS), solved)


def test_error_of_the_plain_head_is_not_called_a_lack_of_time(solved):
    failed = make_trial(
        0, "plain", plain_spec(ENCODER, ROWS), outcome="error", extra={"message": "ValueError: as asked"}
    )
    said = sentence(make_view(solved, failed), solved)
    assert "The plain head could not be trained: ValueError: as asked." in said and "no time" not in said


def test_memory_limit_that_cannot_be_kept_is_refused(monkeypatch):
    monkeypatch.setattr(workers.sys, "platform", "darwin")
    monkeypatch.setattr(workers, "uses_gpu", lambda device: True)
    settings = SearchSettings(encoder=ENCODER, space={}, max_memory=4000.0)
    with pytest.raises(HeadhuntError, match="max_memory= needs Linux"):
        workers.start_workers(settings, workers.RunnerSettings("run", "accuracy"), None)
