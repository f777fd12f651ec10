"""Tests of the search around known recipes and the best results."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise

import pytest

from headhunt.spec import Choice, Space
from headhunt.study.candidates import Candidates
from headhunt.study.prior import PRIOR_RESULTS
from headhunt.study.registry import create_strategy

DEFAULT = Candidates(Space.load("default"), encoder="toy")
RECIPES = [params for _, params in DEFAULT.known_recipes()]


def distance(first: dict, second: dict) -> int:
    """Return the number of parameters with an effect that differ."""
    return sum(first[path] != second[path] for path in DEFAULT.active(second))


def origins(strategy, first: int = 0, count: int = 100) -> Counter[str]:
    return Counter(strategy.ask(number).origin for number in range(first, first + count))


def test_first_proposals_are_varied_known_recipes():
    strategy = create_strategy("prior", DEFAULT)
    proposals = [strategy.ask(number) for number in range(60)]
    near = [proposal.params for proposal in proposals if proposal.origin == "prior"]
    assert len(near) > 40 and {proposal.origin for proposal in proposals} == {"prior", "random"}
    distances = [min(distance(params, recipe) for recipe in RECIPES) for params in near]
    assert sum(distances) / len(distances) < 6 and max(distances) > 1
    # All known recipes are varied, and those with a frozen encoder are as likely as the others.
    closest = {min(range(len(RECIPES)), key=lambda each: distance(params, RECIPES[each])) for params in near}
    assert closest == set(range(len(RECIPES)))


def test_weight_moves_from_known_recipes_to_the_best_results():
    strategy = create_strategy("prior", DEFAULT)
    weights = [strategy.prior_weight()]
    for number in range(40):
        strategy.tell(number, DEFAULT.draw(random.Random(number)), 0, number / 100)
        weights.append(strategy.prior_weight())
    assert weights[:4] == [1.0] * 4 and weights[4] == PRIOR_RESULTS / (PRIOR_RESULTS + 4)
    assert all(later < earlier for earlier, later in pairwise(weights[4:]))
    assert origins(strategy, 100)["prior"] < 25 < origins(strategy, 100)["model"]


def test_best_results_of_the_highest_rung_are_varied():
    strategy = create_strategy("prior", DEFAULT, random_fraction=0.0, model_fraction=0.0)
    drawn = [DEFAULT.draw(random.Random(number)) for number in range(30)]
    for number, params in enumerate(drawn):
        strategy.tell(number, params, 0, number / 100)
    assert strategy.incumbents() == drawn[:-4:-1]
    for number in range(3):  # too few for a rung of their own
        strategy.tell(number, drawn[number], 1, 0.9)
    assert strategy.incumbents() == drawn[:-4:-1]
    strategy.tell(3, drawn[3], 1, 0.95)
    assert strategy.incumbents() == [drawn[3]]


def test_failures_are_not_varied():
    """Issue: among equal scores the lowest number came first, and failures count as the worst score."""
    strategy = create_strategy("prior", DEFAULT)
    drawn = [DEFAULT.draw(random.Random(number)) for number in range(4)]
    for number, params in enumerate(drawn):
        strategy.tell(number, params, 0, None if number < 3 else 0.5)
    assert strategy.incumbents() == [drawn[3]]


def test_variation_keeps_most_parameters_and_stays_near():
    strategy = create_strategy("prior", DEFAULT, change=1.0, deviation=0.01)
    varied = [strategy.vary(RECIPES[0], random.Random(seed))["recipe.learning_rate"] for seed in range(20)]
    assert len(set(varied)) == 20 and all(rate == pytest.approx(1e-4, rel=0.2) for rate in varied)
    strategy = create_strategy("prior", DEFAULT, change=0.0)
    unchanged = strategy.vary(RECIPES[0], random.Random(0))
    assert distance(unchanged, RECIPES[0]) == 0 and unchanged != RECIPES[0]  # others have new values


def test_model_proposes_when_there_are_enough_results():
    strategy = create_strategy("prior", DEFAULT, random_fraction=0.0, model_fraction=1.0)
    for number in range(60):
        params = DEFAULT.draw(random.Random(number))
        strategy.tell(number, params, 0, float(params["head.pooling"] == "max"))
    assert strategy.modelled_rung() == 0
    proposals = [strategy.ask(number) for number in range(100, 130)]
    modelled = [proposal.params["head.pooling"] for proposal in proposals if proposal.origin == "model"]
    assert len(modelled) > 20 and modelled.count("max") > len(modelled) / 4  # of nine options


def test_space_without_known_recipes_is_searched_at_random_first():
    candidates = Candidates(Space("own", {"head": {"pooling": Choice(("max", "attention"))}}), encoder="toy")
    assert not list(candidates.known_recipes())
    strategy = create_strategy("prior", candidates)
    assert strategy.ask(0).origin == "random"
    for number in range(6):
        strategy.tell(number, {"head.pooling": "max"}, 0, 0.5)
    assert "model" in origins(strategy, 10, 30)
