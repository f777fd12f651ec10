"""Importances say which parameters decide the scores of a search."""

from __future__ import annotations

import random
from types import SimpleNamespace

from headhunt.spec import Space
from headhunt.study.candidates import Candidates
from headhunt.study.optuna_strategies import MIN_RESULTS, importances


def make_state(candidates: Candidates, count: int):
    """Return trials whose score depends on the pooling; the kernel of convolutions that are off follows the score."""
    rng, trials = random.Random(0), []
    for _ in range(count):
        params = candidates.draw(rng) | {"head.convolutions": False, "head.blocks": False}
        score = 0.9 if params["head.pooling"] in ("mean", "attention") else 0.7
        params["head.convolutions.kernel"] = 7 if score > 0.8 else 3
        trials.append(SimpleNamespace(params=params, results={1: SimpleNamespace(score=score + rng.gauss(0, 0.01))}))
    return SimpleNamespace(trials=trials)


def test_importances_leave_out_parameters_without_effect():
    """Issue: the parameters of a component that is off had arbitrary values, which seemed to explain scores."""
    candidates = Candidates(Space.load("default"), encoder="any")
    found = importances(make_state(candidates, 40), candidates)
    assert found[0][0] == "head.pooling" and found[0][1] > 0.5
    assert dict(found).get("head.convolutions.kernel", 0.0) < 0.01


def test_importances_need_several_results():
    candidates = Candidates(Space.load("default"), encoder="any")
    assert importances(make_state(candidates, MIN_RESULTS - 1), candidates) == []
    assert importances(SimpleNamespace(trials=[]), candidates) == []
