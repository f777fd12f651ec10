"""Tests of the contract of every strategy, and of the registry."""

from __future__ import annotations

import subprocess
import sys
from statistics import mean

import pytest
from study_toys import TINY, run_study, true_score

from headhunt.errors import HeadhuntError
from headhunt.spec import NAMED, Choice, Space
from headhunt.study.budget import Limits
from headhunt.study.candidates import Candidates, contains
from headhunt.study.registry import STRATEGIES, create_strategy

SLOW = {"gp"}  # imports torch, and takes half a second or more per proposal
EVERY = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in STRATEGIES]
)


@EVERY
@pytest.mark.parametrize("space", NAMED)
def test_strategy_proposes_valid_candidates_that_depend_on_the_seed(name, space):
    candidates = Candidates(Space.load(space), encoder="toy", pair=True)
    options = {"min_points": 8} if name == "bohb" else {}

    def proposals(seed: int) -> list:
        strategy, proposed = create_strategy(name, candidates, seed, **options), []
        for number in range(12):
            proposal = strategy.ask(number)
            assert proposal is not None and proposal.params.keys() == candidates.leaves.keys()
            assert all(contains(candidates.leaves[path], value) for path, value in proposal.params.items())
            spec = candidates.spec(proposal.params)
            strategy.started(number, proposal.params)
            if number != 8:  # trial 8 is still running during the last proposals
                strategy.tell(number, proposal.params, 0, None if number == 4 else true_score(spec))
            proposed.append(proposal.params)
        return proposed

    first = proposals(1)
    assert first == proposals(1)
    assert first != proposals(2)


@EVERY
def test_strategy_improves_on_its_first_proposals(tmp_path, name):
    trials = {"gp": 25, "bohb": 80}.get(name, 60)
    study = run_study(tmp_path, strategy=name, limits=Limits(trials=trials), known=False, seed=1)
    scores = [true_score(trial.spec) for trial in study.state.trials[1:]]
    if name in ("random", "grid"):
        assert max(scores[10:]) >= max(scores[:10])  # without learning, only the number of trials helps
    else:
        assert mean(scores[-10:]) > mean(scores[:10]) + 0.02


def test_create_strategy_rejects_unknown_names():
    with pytest.raises(HeadhuntError, match=r"bohb, random, grid.*found 'magic'"):
        create_strategy("magic", Candidates(TINY, encoder="toy"))


def test_grid_visits_every_point_once_and_ends(tmp_path):
    space = Space("small", {"head": {"pooling": Choice(("cls", "mean")), "dropout": Choice((0.0, 0.1, 0.2))}})
    study = run_study(tmp_path, space=space, strategy="grid", limits=Limits())
    assert study.state.ended == "exhausted" and len(study.state.trials) == 2 * 3 + 1


def run_python(code: str) -> int:
    return subprocess.run([sys.executable, "-c", code], check=False).returncode


def test_study_does_not_import_torch():
    code = "import sys, headhunt.study.study, headhunt.study.optuna_strategies; sys.exit('torch' in sys.modules)"
    assert run_python(code) == 0


def test_registry_does_not_import_optuna():
    assert run_python("import sys, headhunt.study.registry; sys.exit('optuna' in sys.modules)") == 0
