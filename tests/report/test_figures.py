"""Data of the charts: names and positions of leaves, Pareto fronts, progress."""

from __future__ import annotations

from pathlib import Path

import pytest
from report_runs import make_run

from headhunt.report.figures import (
    leaf_name,
    leaf_ticks,
    learning_figure,
    pareto_front,
    progress_figure,
    space_figure,
)
from headhunt.report.run_data import RunData
from headhunt.run.state import State
from headhunt.spec import Choice, Int, Log


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> RunData:
    return RunData(make_run(Path(tmp_path_factory.mktemp("figures")) / "run", 40))


def test_pareto_front_holds_undominated_trials():
    items = [
        {"trial": i, "score": score, "ms": cost}
        for i, (score, cost) in enumerate([(0.9, 5), (0.8, 3), (0.85, 6), (0.8, 4)])
    ]
    assert pareto_front(items, "ms") == [1, 0]


def test_leaf_name_drops_prefix_and_writes_acronyms():
    assert leaf_name("head.mlp.width") == "MLP width" and leaf_name("recipe.layer_decay") == "layer decay"


def test_leaf_ticks_name_options_or_ends_and_middle():
    assert [text for _, text in leaf_ticks(Choice((None, False, "mean")))] == ["off", "no", "mean"]
    assert [text for _, text in leaf_ticks(Int(1, 2))] == ["1", "2"]
    assert [text for _, text in leaf_ticks(Log(1e-5, 1e-3))] == ["1e-05", "0.0001", "0.001"]


def test_space_figure_has_no_position_for_components_that_are_off(run):
    figure = space_figure(run)
    paths = [leaf["path"] for leaf in figure["leaves"]]
    active = [row["places"][paths.index("head.mlp")] > 0.5 for row in figure["trials"]]
    assert {True, False} == set(active)
    for row, on in zip(figure["trials"], active, strict=True):
        assert (row["places"][paths.index("head.mlp.width")] is not None) == on


def test_progress_figure_ends_at_best_score_of_top_rung(run):
    figure = progress_figure(run.state, "accuracy", 2)
    assert figure["best"][-1][1] == run.state.best.best[1] and figure["top"] == 2
    assert len(figure["results"]) == sum(
        result.score is not None for trial in run.state.trials for result in trial.results.values()
    )
    assert progress_figure(State(), "accuracy") is None


def test_learning_figure_has_curves_of_promoted_trials_and_losses(run):
    figure = learning_figure(run)
    assert {curve["trial"] for curve in figure["lines"]} == {
        trial.number
        for trial in run.state.trials
        if sum(result.score is not None for result in trial.results.values()) > 1
    }
    assert set(figure["losses"]) == {"winner", "plain"} and figure["plain"] == 0
    winner = run.winner
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(winner), "is_solved", property(lambda trial: trial is winner))
        assert set(learning_figure(run)["losses"]) == {"plain"}, "a solved head has no curve"
