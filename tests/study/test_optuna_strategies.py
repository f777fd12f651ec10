"""Tests of the strategies that use Optuna's samplers."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from study_toys import TINY, run_study

from headhunt.study.budget import Limits
from headhunt.study.candidates import Candidates
from headhunt.study.registry import create_strategy


@pytest.mark.parametrize("name", ["bohb", "tpe", "gp"])
def test_model_sees_failures_as_the_worst_score_so_far(name):
    candidates = Candidates(TINY, encoder="toy")
    strategy = create_strategy(name, candidates)
    for number, score in enumerate([None, 0.5, None, 0.3, 0.7]):
        strategy.tell(number, candidates.draw(random.Random(number)), 0, score)
    assert [trial.value for trial in strategy._trials(0)] == [0.3, 0.5, 0.3, 0.3, 0.7]
    strategy.tell(5, candidates.draw(random.Random(5)), 0, 0.2)
    assert [trial.value for trial in strategy._trials(0)] == [0.2, 0.5, 0.2, 0.3, 0.7, 0.2]


def test_bohb_models_the_highest_rung_with_enough_results():
    candidates = Candidates(TINY, encoder="toy")
    strategy = create_strategy("bohb", candidates, random_fraction=0.0)
    enough = len(candidates.leaves) + 2
    for number in range(2 * enough):
        assert strategy.modelled_rung() == (None if number < enough else 0)
        assert strategy.ask(number).origin == ("random" if number < enough else "model")
        strategy.tell(number, candidates.draw(random.Random(number)), 0, number / 100)
    for number in range(enough):
        strategy.tell(number, candidates.draw(random.Random(number)), 1, number / 100)
    assert strategy.modelled_rung() == 1


def test_bohb_model_sees_only_the_best_and_the_latest_results():
    candidates = Candidates(TINY, encoder="toy")
    strategy = create_strategy("bohb", candidates, max_results=20)
    for number in range(200):
        score = 1.0 if number in (3, 50) else 0.1
        strategy.tell(number, candidates.draw(random.Random(number)), 0, score)
    numbers = [trial.number for trial in strategy._trials(0)]
    assert len(numbers) <= 20 and {3, 50, 199} <= set(numbers) and numbers == sorted(numbers)


def test_bohb_draws_a_fixed_fraction_at_random(tmp_path):
    study = run_study(tmp_path, limits=Limits(trials=120), options={"random_fraction": 0.25}, known=False)
    origins = Counter(trial.origin for trial in study.state.trials[30:])
    assert 0.1 < origins["random"] / origins.total() < 0.45
