"""Tests of the contract of every strategy, and of the registry."""

from __future__ import annotations

import random
import subprocess
import sys
from statistics import mean

import pytest
from study_toys import TINY, run_study, true_score

from headhunt.errors import HeadhuntError
from headhunt.spec import NAMED, Choice, Space
from headhunt.study.candidates import Candidates, contains
from headhunt.study.ladder import Ladder
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
    trials = {"gp": 25, "bohb": 100, "prior": 100}.get(name, 60)
    study = run_study(tmp_path, strategy=name, trials=trials, known_recipes=False, seed=1)
    scores = [true_score(trial.spec) for trial in study.state.trials[1:]]
    if name in ("random", "grid"):
        assert max(scores[10:]) >= max(scores[:10])  # without learning, only the number of trials helps
    else:
        assert mean(scores[-10:]) > mean(scores[:10]) + 0.02


@EVERY
def test_every_strategy_gets_the_same_recipes_and_rungs_unless_told_otherwise(tmp_path, name):
    options = {"strategy": name, "trials": 4, "rungs": 2, "brackets": 1}
    study = run_study(tmp_path / "aided", space=Space.load("default"), **options)
    assert study.ladder == Ladder() and {trial.origin for trial in study.state.trials[1:]} == {"known"}
    options["rungs"] = 1
    unaided = run_study(tmp_path / "unaided", known_recipes=False, **options)
    assert unaided.ladder.fractions == (1.0,)
    assert all(trial.origin in ("plain", "random", "prior", "model") for trial in unaided.state.trials)


def test_evolution_prefers_members_of_a_higher_rung():
    candidates = Candidates(TINY, encoder="toy")
    strategy = create_strategy("evolution", candidates, population=2, tournament=2)
    drawn = [candidates.draw(random.Random(seed)) for seed in range(3)]
    strategy.tell(0, drawn[0], 0, 0.9)
    strategy.tell(1, drawn[1], 0, 0.8)
    strategy.tell(1, drawn[1], 1, 0.7)  # the same trial, promoted
    child = strategy.ask(2).params
    assert sum(child[path] != drawn[1][path] for path in child) <= 1
    strategy.tell(2, drawn[2], 0, 0.1)
    assert list(strategy._population) == [1, 2]


def test_reinforce_compares_scores_of_one_rung_only():
    candidates = Candidates(TINY, encoder="toy")
    strategy = create_strategy("reinforce", candidates)
    for number in range(6):  # scores rise with the rung, and say nothing within it
        params = {**candidates.draw(random.Random(number)), "head.pooling": "max" if number < 3 else "cls"}
        strategy.tell(number, params, number // 3, 0.5 + 0.1 * (number // 3))
    assert all(not logits.any() for logits in strategy._logits.values())


def test_create_strategy_rejects_unknown_names():
    with pytest.raises(HeadhuntError, match=r"prior, bohb, random, grid.*found 'magic'"):
        create_strategy("magic", Candidates(TINY, encoder="toy"))


def test_grid_visits_every_point_once_and_ends(tmp_path):
    space = Space("small", {"head": {"pooling": Choice(("cls", "mean")), "dropout": Choice((0.0, 0.1, 0.2))}})
    study = run_study(tmp_path, space=space, strategy="grid", trials=None)
    assert study.state.ended == "exhausted" and len(study.state.trials) == 2 * 3 + 1


def test_grid_visits_every_point_beside_the_plain_head_and_known_recipes(tmp_path):
    """Issue: a point that another part of the search had tried moved the grid past all points before it."""
    rates = Choice((1e-4, 3e-4, 1e-3))
    space = Space("small", {"head": {"pooling": Choice(("cls", "mean", "max"))}, "recipe": {"learning_rate": rates}})
    for seed in range(4):
        study = run_study(tmp_path / str(seed), space=space, strategy="grid", trials=None, seed=seed)
        tried = {(trial.params["head.pooling"], trial.params["recipe.learning_rate"]) for trial in study.state.trials}
        assert len(tried) == 9 and study.state.ended == "exhausted"


@pytest.mark.parametrize(("name", "options"), [("prior", {}), ("bohb", {"min_points": 4})])
def test_random_proposals_do_not_depend_on_being_random(name, options):
    """Issue: the number that decided for a random proposal was also its first parameter."""
    candidates = Candidates(Space.load("default"), encoder="toy")
    strategy = create_strategy(name, candidates, **options)
    for number in range(20):
        strategy.tell(number, candidates.draw(random.Random(number)), 0, number / 100)
    first = next(iter(candidates.leaves))
    proposals = [strategy.ask(number) for number in range(100, 300)]
    drawn = {proposal.params[first] for proposal in proposals if proposal.origin == "random"}
    assert drawn == set(candidates.leaves[first].options)


def run_python(code: str) -> int:
    return subprocess.run([sys.executable, "-c", code], check=False).returncode


def test_study_does_not_import_torch():
    code = "import sys, headhunt.study.study, headhunt.study.optuna_strategies; sys.exit('torch' in sys.modules)"
    assert run_python(code) == 0


def test_registry_does_not_import_optuna():
    assert run_python("import sys, headhunt.study.registry; sys.exit('optuna' in sys.modules)") == 0
