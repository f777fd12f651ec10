"""Candidates of earlier searches that a new search tries early."""

from __future__ import annotations

from dataclasses import replace

import pytest
from report_runs import make_run

from headhunt.engine.earlier_runs import MAXIMUM, PER_RUN, learn
from headhunt.errors import HeadhuntError
from headhunt.run.directory import RunDirectory
from headhunt.run.ledger import read_state
from headhunt.run.task import open_task
from headhunt.spec import Head, Space
from headhunt.study.candidates import Candidates


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("earlier") / "run", 40)


@pytest.fixture(scope="module")
def task(run):
    return open_task(RunDirectory(run).task)


def test_best_trained_candidates_above_the_plain_head_are_learned(run, task):
    state = read_state(RunDirectory(run))
    top = max(trial.best[0] for trial in state.trials if trial.best)
    plain = max(trial.best[1] for trial in state.plain_trials if trial.best)
    trained = [trial for trial in state.leaderboard() if not trial.is_plain and not trial.is_solved]
    expected = [trial.spec for trial in trained if trial.best[0] == top and trial.best[1] > plain][:PER_RUN]
    assert len(expected) == PER_RUN and learn([run], task) == tuple(expected)


def test_the_same_candidate_is_learned_once_and_few_in_all(run, task, tmp_path):
    others = [make_run(tmp_path / str(trials), trials) for trials in (30, 50, 60)]
    assert len(learn([run, run], task)) == PER_RUN
    learned = learn([run, *others], task)
    assert len(learned) <= MAXIMUM and len({spec.hash for spec in learned}) == len(learned)
    assert learn([], task) == ()


def test_searches_that_cannot_be_learned_from_are_refused(run, task, tmp_path):
    with pytest.raises(HeadhuntError, match=r"must be directories of searches; .* holds none"):
        learn([tmp_path], task)
    pairs = make_run(tmp_path / "pairs", 5, pair=True)
    with pytest.raises(HeadhuntError, match=r"is single_label_classification of single texts; .* of pairs of texts"):
        learn([pairs], task)
    with pytest.raises(HeadhuntError, match="needs them too"):
        learn([run], task, known_recipes=False)


def test_learned_candidates_follow_the_first_known_recipe_with_the_new_encoder():
    space = Space.load("default", 6)
    earlier = Candidates(space, encoder="old", max_length=32)
    known = [spec for spec, _ in earlier.known_recipes()]
    learned = [replace(known[0], head=Head(pooling=pooling)) for pooling in ("max", "cls")]
    recipes = [spec for spec, _ in Candidates(space, encoder="new", max_length=64, learned=learned).known_recipes()]
    without = [spec for spec, _ in Candidates(space, encoder="new", max_length=64).known_recipes()]
    assert [spec.head.pooling for spec in recipes[1:4:2]] == ["max", "cls"]
    assert [spec for spec in recipes if spec not in recipes[1:4:2]] == without
    assert {(spec.encoder, spec.recipe.max_length) for spec in recipes} == {("new", 64)}


def test_learned_candidates_outside_the_space_are_left_out():
    space = Space.load("default", 6)
    spec = next(spec for spec, _ in Candidates(space, encoder="old").known_recipes())
    outside = replace(spec, recipe=replace(spec.recipe, learning_rate=0.5))
    both = [list(Candidates(space, encoder="new", learned=specs).known_recipes()) for specs in ((), [outside])]
    assert both[0] == both[1]
