"""Tests of BOHB and its kernel densities."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest
from study_toys import TINY, run_study

from headhunt.spec import Space
from headhunt.study.bohb import Encoding, KernelDensity
from headhunt.study.candidates import Candidates
from headhunt.study.registry import create_strategy

MLP = {"head.mlp": True, "head.mlp.width": 32}
PARAMS = {"head.pooling": "mean", "recipe.learning_rate": 1e-4, "recipe.freeze": "none", **MLP}


def tell_scores(strategy, rung: int, scores, **changes) -> None:
    for number, score in enumerate(scores):
        params = strategy.candidates.draw(random.Random(number)) | changes
        strategy.tell(number, params, rung, score)


def test_bohb_models_the_highest_rung_with_enough_results():
    candidates = Candidates(TINY, encoder="toy")
    strategy = create_strategy("bohb", candidates, random_fraction=0.0)
    enough = 4 + 1 + 2  # without the width of the MLP, which is off
    for number in range(2 * enough):
        assert strategy.modelled_rung() == (None if number < enough else 0)
        assert strategy.ask(number).origin == ("random" if number < enough else "model")
        strategy.tell(number, candidates.draw(random.Random(number)) | {"head.mlp": False}, 0, number / 100)
    tell_scores(strategy, 1, np.linspace(0, 1, enough), **{"head.mlp": False})
    assert strategy.modelled_rung() == 1


def test_bohb_counts_only_parameters_that_have_an_effect():
    for on, enough in ((False, 7), (True, 8)):
        strategy = create_strategy("bohb", Candidates(TINY, encoder="toy"))
        tell_scores(strategy, 0, [0.5] * 20, **{"head.mlp": on})
        assert strategy.enough(strategy.results[0]) == enough


def test_bohb_divides_results_as_in_the_paper():
    strategy = create_strategy("bohb", Candidates(TINY, encoder="toy"))
    for count, sizes in ((8, (6, 6)), (20, (6, 14)), (60, (9, 51))):  # N_min = 6, and 15 % are good
        strategy.results.clear()
        tell_scores(strategy, 0, np.linspace(0, 1, count), **MLP)
        good, bad = strategy._densities(0, random.Random(0))
        assert (len(good._rows), len(bad._rows)) == sizes


def test_bohb_proposes_what_good_results_have_in_common():
    candidates = Candidates(TINY, encoder="toy")
    strategy = create_strategy("bohb", candidates, random_fraction=0.0)
    for number in range(60):
        params = candidates.draw(random.Random(number))
        strategy.tell(number, params, 0, float(params["head.pooling"] == "max") - 0.5 * params["head.mlp"])
    proposed = [strategy.ask(number).params for number in range(100, 140)]
    assert sum(params["head.pooling"] == "max" and not params["head.mlp"] for params in proposed) > 30


def test_bohb_draws_a_fixed_fraction_at_random(tmp_path):
    study = run_study(tmp_path, strategy="bohb", trials=120, known_recipes=False)
    origins = Counter(trial.origin for trial in study.state.trials[30:])
    assert 0.2 < origins["random"] / origins.total() < 0.5


def test_bohb_survives_failures_only():
    strategy = create_strategy("bohb", Candidates(TINY, encoder="toy"), random_fraction=0.0)
    tell_scores(strategy, 0, [None] * 12)
    assert strategy.ask(12).origin == "model"


# --- densities


@pytest.mark.parametrize("pair", [False, True])
def test_encoding_inverts_itself(pair):
    candidates = Candidates(Space.load("default"), encoder="toy", pair=pair)
    encoding = Encoding(candidates)
    for seed in range(20):
        params = candidates.draw(random.Random(seed))
        decoded = encoding.params(encoding.row(params, candidates.leaves))
        assert candidates.spec(decoded).head == candidates.spec(params).head
        assert decoded["recipe.learning_rate"] == pytest.approx(params["recipe.learning_rate"])


def test_encoding_imputes_values_of_other_candidates():
    candidates = Candidates(TINY, encoder="toy")
    encoding = Encoding(candidates)
    off = PARAMS | {"head.mlp": False, "head.mlp.width": 8}
    rows = np.stack([encoding.row(params, candidates.active(params)) for params in (PARAMS, off, off)])
    place = list(candidates.leaves).index("head.mlp.width")
    assert np.isnan(rows[:, place]).tolist() == [False, True, True] and np.isnan(rows).sum() == 2
    imputed = encoding.impute(rows, random.Random(0))
    assert imputed[:, place].tolist() == [rows[0, place]] * 3
    nobody = encoding.impute(rows[1:], random.Random(0))[:, place]
    assert ((nobody >= 0) & (nobody <= 1)).all() and nobody[0] != nobody[1]


def test_density_of_numbers_integrates_to_one_and_follows_the_reference_rule():
    points = np.random.default_rng(0).uniform(0.3, 0.7, (50, 1))
    density = KernelDensity(points, np.array([0]))
    grid = np.linspace(-2, 3, 5001)[:, None]
    assert np.trapezoid(np.exp(density.log_density(grid)), grid[:, 0]) == pytest.approx(1, abs=1e-3)
    assert density._bandwidth[0] == pytest.approx(1.06 * points.std() * 50**-0.2)


def test_density_of_categories_sums_to_one():
    points = np.array([[0.0, 2.0], [0.0, 1.0], [1.0, 1.0]])
    density = KernelDensity(points, np.array([2, 3]))
    grid = np.array([[a, b] for a in range(2) for b in range(3)], float)
    probabilities = np.exp(density.log_density(grid))
    assert probabilities.sum() == pytest.approx(1) and probabilities.argmax() == 1  # (0, 1)


def test_samples_stay_in_range():
    points = np.array([[0.0, 0.0], [1.0, 2.0], [0.5, 0.0]])
    rows = KernelDensity(points, np.array([0, 3])).sample(np.random.default_rng(0), 500, 3.0)
    assert rows[:, 0].min() >= 0 and rows[:, 0].max() <= 1 and set(rows[:, 1]) == {0, 1, 2}
