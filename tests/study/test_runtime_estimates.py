"""Tests of runtime estimates."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headhunt.run.state import Outcome, State, Trial
from headhunt.spec import Space, Spec
from headhunt.study.baselines import Baselines
from headhunt.study.budget import TimeBudget
from headhunt.study.candidates import Candidates
from headhunt.study.ladder import Ladder
from headhunt.study.promotions import Promotions
from headhunt.study.runtime_estimates import RuntimeEstimates


@pytest.fixture
def plain() -> Spec:
    return Candidates(Space.load("default"), encoder="toy").plain()


def frozen(spec: Spec, freeze: int | str) -> Spec:
    return replace(spec, recipe=replace(spec.recipe, freeze=freeze))


def test_runtime_estimates_scale_with_the_trained_layers(plain):
    estimates = RuntimeEstimates(layers=6)
    half, head_only = frozen(plain, 3).to_dict(), frozen(plain, "all").to_dict()
    assert estimates.estimate(half) is None and estimates.median is None
    estimates.add(plain.to_dict(), 143.0)
    assert estimates.estimate(plain.to_dict()) == pytest.approx(143.0)
    assert estimates.estimate(half) == pytest.approx(53.0)
    assert estimates.estimate(head_only) is None  # no similar trial yet
    estimates.add(head_only, 3.0)
    assert estimates.estimate(head_only) == pytest.approx(3.0) and estimates.median == 143.0


def test_runtime_estimates_do_not_mix_encoders(plain):
    estimates = RuntimeEstimates(layers=6)
    other = replace(plain, encoder="large")
    estimates.add(plain.to_dict(), 10.0)
    assert estimates.estimate(other.to_dict()) is None
    estimates.add(other.to_dict(), 1000.0)
    assert estimates.estimate(plain.to_dict()) == pytest.approx(10.0)
    assert estimates.estimate(other.to_dict()) == pytest.approx(1000.0)


def test_full_budget_seconds_extrapolates_from_the_rungs_so_far(plain):
    trial = Trial(0, plain.to_dict(), plain.hash, None, "plain", 0)
    ladder = Ladder((1 / 9, 1 / 3, 1.0))
    baselines = Baselines(State(), Candidates(Space.load("default"), encoder="toy"), ladder, solved=False, known=False)
    full_budget_seconds = Promotions(State(), ladder, baselines, TimeBudget(None)).full_budget_seconds
    assert full_budget_seconds(trial, 0) is None
    trial.results[0] = Outcome("ok", 0.5, seconds=1.0)
    trial.results[1] = Outcome("ok", 0.6, seconds=2.0)
    assert full_budget_seconds(trial, 0) == pytest.approx(9.0)
    assert full_budget_seconds(trial, 1) == pytest.approx(9.0)
    assert full_budget_seconds(trial, 2) is None
