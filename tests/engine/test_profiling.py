"""Costs of using a model: how often it is called."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from headhunt.engine import profiling


@pytest.mark.parametrize(("seconds", "calls"), [(0.0, 60), (0.5, profiling.LEAST_REPEATS)])
def test_latency_makes_fewer_calls_if_they_take_long(monkeypatch, seconds, calls):
    """Issue: calls with 32 long texts each took 27 of the 60 s of a search."""
    now, made = [0.0], []

    def outputs(texts, texts_b, tasks):
        now[0] += seconds
        made.append(len(texts))

    monkeypatch.setattr(profiling.time, "perf_counter", lambda: now[0])
    predictor = SimpleNamespace(outputs=outputs, device=torch.device("cpu"), model=SimpleNamespace(eval=lambda: None))
    timing = profiling.latency(predictor, ["a text", "another"], None, 32, 60)
    assert len(made) == calls + profiling.WARM_UP and set(made) == {32}
    assert timing.p50_ms == pytest.approx(1000 * seconds)
