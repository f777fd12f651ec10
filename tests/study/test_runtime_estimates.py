"""Tests of runtime estimates."""

from __future__ import annotations

from dataclasses import replace

import pytest
from study_toys import open_study

from headhunt.run.resampling import CrossValidation, Holdout
from headhunt.run.state import Outcome
from headhunt.spec import Space, Spec
from headhunt.study.budget import RuntimeEstimates
from headhunt.study.candidates import Candidates

CANDIDATES = Candidates(Space.load("default"), encoder="toy")


@pytest.fixture
def plain() -> Spec:
    return CANDIDATES.plain()


def frozen(spec: Spec, freeze: int | str) -> Spec:
    return replace(spec, recipe=replace(spec.recipe, freeze=freeze))


def test_runtime_estimates_scale_with_the_trained_layers(plain):
    estimates = RuntimeEstimates(CANDIDATES)
    half, head_only = frozen(plain, 3).to_dict(), frozen(plain, "all").to_dict()
    assert estimates.estimate(half) is None and estimates.median is None
    estimates.add(plain.to_dict(), 143.0)
    assert estimates.estimate(plain.to_dict()) == pytest.approx(143.0)
    assert estimates.estimate(half) == pytest.approx(53.0)
    assert estimates.estimate(head_only) is None  # no similar trial yet
    estimates.add(head_only, 3.0)
    assert estimates.estimate(head_only) == pytest.approx(3.0) and estimates.median == 143.0


def test_runtime_estimates_do_not_mix_encoders(plain):
    estimates = RuntimeEstimates(CANDIDATES)
    other = replace(plain, encoder="large")
    estimates.add(plain.to_dict(), 10.0)
    assert estimates.estimate(other.to_dict()) is None
    estimates.add(other.to_dict(), 1000.0)
    assert estimates.estimate(plain.to_dict()) == pytest.approx(10.0)
    assert estimates.estimate(other.to_dict()) == pytest.approx(1000.0)


@pytest.mark.parametrize(("resampling", "seconds"), [(CrossValidation(), 9.0), (Holdout(), 6.0)])
def test_seconds_of_full_training_are_extrapolated_from_the_rungs_that_it_builds_on(tmp_path, resampling, seconds):
    study = open_study(tmp_path)
    study.study.resampling = resampling
    study.begin()
    trial = study.state.trials[0]
    trial.results[0] = Outcome("ok", 0.5, seconds=1.0)
    trial.results[1] = Outcome("ok", 0.6, seconds=2.0)
    assert study.study._full_seconds(trial, 0) == pytest.approx(9.0)
    assert study.study._full_seconds(trial, 1) == pytest.approx(seconds)
    assert study.study._full_seconds(trial, 2) is None
    study.ledger.close()
