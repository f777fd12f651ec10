"""Tests of the strategies that use Optuna's samplers."""

from __future__ import annotations

import random

import pytest
from study_toys import TINY

from headhunt.study.candidates import Candidates
from headhunt.study.registry import create_strategy


@pytest.mark.parametrize("name", ["tpe", "gp"])
def test_model_sees_failures_as_the_worst_score_so_far(name):
    candidates = Candidates(TINY, encoder="toy")
    strategy = create_strategy(name, candidates)
    for number, score in enumerate([None, 0.5, None, 0.3, 0.7]):
        strategy.tell(number, candidates.draw(random.Random(number)), 0, score)
    assert [trial.value for trial in strategy._trials(0)] == [0.3, 0.5, 0.3, 0.3, 0.7]
    strategy.tell(5, candidates.draw(random.Random(5)), 0, 0.2)
    assert [trial.value for trial in strategy._trials(0)] == [0.2, 0.5, 0.2, 0.3, 0.7, 0.2]


def test_model_sees_only_the_best_and_the_latest_results():
    candidates = Candidates(TINY, encoder="toy")
    strategy = create_strategy("tpe", candidates, max_results=20)
    for number in range(200):
        score = 1.0 if number in (3, 50) else 0.1
        strategy.tell(number, candidates.draw(random.Random(number)), 0, score)
    numbers = [trial.number for trial in strategy._trials(0)]
    assert len(numbers) <= 20 and {3, 50, 199} <= set(numbers) and numbers == sorted(numbers)


def test_parameters_of_a_part_that_is_off_are_not_modelled():
    candidates = Candidates(TINY, encoder="toy")
    seen = {name: create_strategy(name, candidates) for name in ("tpe", "gp")}
    base = {"head.pooling": "mean", "recipe.learning_rate": 1e-4, "recipe.freeze": "none"}
    for strategy in seen.values():
        for number in range(12):
            params = {**base, "head.mlp": number % 2 == 0, "head.mlp.width": 20 + number}
            strategy.tell(number, params, 0, number / 100)
    tpe, gp = ([trial.params for trial in strategy._trials(0)] for strategy in seen.values())
    assert ["head.mlp.width" in params for params in tpe] == [True, False] * 6
    assert [params["head.mlp.width"] for params in gp] == [20, 8, 22, 8, 24, 8, 26, 8, 28, 8, 30, 8]
    assert {path: seen["tpe"].ask(12).params[path] for path in ("head.pooling", "recipe.freeze")}
    assert seen["tpe"].ask(12).params.keys() == candidates.leaves.keys()
