"""The choice of the delivered model: an order of preference, and evidence on common validation rows."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from study_toys import open_study

from headhunt import Task
from headhunt.engine.choice import choose, mean_score, order_of_preference, unlike
from headhunt.engine.view import View
from headhunt.run.directory import MODEL_INFO, write_arrays
from headhunt.run.events import JobFinished, TrialAdded, TrialFinished, TrialStarted
from headhunt.run.plan import Plan
from headhunt.run.settings import SearchSettings
from headhunt.run.task import save_task
from headhunt.spec import Head, Recipe, Space, Spec

ROWS = 600
PLAIN, SOLVED, WORDS, SECOND, KNOWN, OTHER = range(6)


@pytest.fixture
def search(tmp_path):
    """A search of the plain head, a solved head, the recommended recipe and another candidate, all with models."""
    labels = ["a" if row % 2 else "b" for row in range(ROWS)]
    letters = np.random.default_rng(0).choice(list("abcdefghij"), (ROWS, 3, 6))
    texts = [" ".join("".join(word) for word in row) for row in letters]
    task = Task.load({"train": {"text": texts, "label": labels}}, test_share=0)
    plan = Plan(
        rows=ROWS, used_rows=ROWS, held_out=ROWS, solved_rows=ROWS, counted_rows=ROWS, test_rows=0, epochs=10.0, folds=3
    )
    study = open_study(tmp_path / "run", space=Space.load("default"), plan=plan, solved=True, encoders=("toy",))
    save_task(task, study.ledger.directory.task)
    study.begin()
    study.recommended()
    other = Spec(encoder="toy", head=Head(pooling="max"), recipe=Recipe(epochs=10.0))
    study.ledger.stage(TrialAdded(OTHER, other.to_dict(), other.hash, None, "random", 1))
    settings = SearchSettings(encoder="toy", space={})
    view = View(study.ledger.directory, study.ledger.directory.read_task_info(), settings, study.study, plan)
    yield view
    study.ledger.close()


def predict(view: View, accuracy: dict[int, float], *, rows: int = ROWS) -> None:
    """Record an evaluation of each trial: the first rows are right. Wrong rows differ from trial to trial."""
    for number, share in accuracy.items():
        order = np.random.default_rng(number + 100).permutation(rows)
        right = np.isin(np.arange(rows), order[: round(share * rows)])
        outputs = np.eye(2)[np.where(right, view.validation_targets[:rows], 1 - view.validation_targets[:rows])]
        write_arrays(view.directory.predictions(number, 1), rows=np.arange(rows), outputs=outputs * 0.8 + 0.1)
        view.study.ledger.stage(TrialStarted(number, 1, 0))
        view.study.ledger.stage(TrialFinished(number, 1, "ok", share, 1.0, 10, {}))


def fit(view: View, *numbers: int, epochs: float = 10.0) -> None:
    """Record a model of each trial."""
    for number in numbers:
        folder = view.directory.final_model(number, 0)
        folder.mkdir(parents=True)
        (folder / MODEL_INFO).write_text("{}")
        view.study.ledger.stage(JobFinished(f"FitAllRows/{folder.name}", "ok", 1.0, round(epochs * ROWS), {}))


def chosen(view: View) -> int | None:
    trial = choose(view, view.fitted())
    return None if trial is None else trial.number


def test_order_of_preference_begins_with_the_recommended_recipe(search):
    order = [trial.number for trial in order_of_preference(search, search.state.trials)]
    assert order == [KNOWN, PLAIN, SECOND, OTHER, SOLVED, WORDS]
    assert chosen(search) is None


@pytest.mark.parametrize(
    ("accuracy", "winner"),
    [
        ({PLAIN: 0.80, KNOWN: 0.80, OTHER: 0.80, SOLVED: 0.70}, KNOWN),
        ({PLAIN: 0.81, KNOWN: 0.80, OTHER: 0.80, SOLVED: 0.70}, KNOWN),  # by less than two standard errors
        ({PLAIN: 0.90, KNOWN: 0.80, OTHER: 0.80, SOLVED: 0.70}, PLAIN),
        ({PLAIN: 0.80, KNOWN: 0.80, OTHER: 0.90, SOLVED: 0.70}, OTHER),
        ({PLAIN: 0.90, KNOWN: 0.70, OTHER: 0.91, SOLVED: 0.70}, PLAIN),
        ({PLAIN: 0.80, KNOWN: 0.80, OTHER: 0.80, SOLVED: 0.81}, SOLVED),  # it has no chance in training
        ({PLAIN: 0.80, KNOWN: 0.80, OTHER: 0.80, SOLVED: 0.80}, KNOWN),
    ],
)
def test_later_candidate_wins_only_if_it_is_better_on_common_rows(search, accuracy, winner):
    fit(search, *accuracy)
    predict(search, accuracy)
    assert chosen(search) == winner


def test_candidates_are_compared_on_rows_that_both_have_predicted(search):
    """Issue: a score of a third of the rows was set against a score of all rows."""
    fit(search, KNOWN, SOLVED)
    predict(search, {KNOWN: 0.80})
    predict(search, {SOLVED: 0.9}, rows=200)
    assert chosen(search) == SOLVED


@pytest.mark.parametrize(("epochs", "winner"), [(10.0, KNOWN), (4.0, KNOWN), (1.0, SOLVED)])
def test_model_that_was_not_evaluated_is_delivered_only_if_it_was_trained_long_enough(search, epochs, winner):
    """Issue: a plain head of two epochs was delivered in place of a solved head with a far better score."""
    fit(search, KNOWN, epochs=epochs)
    fit(search, SOLVED)
    predict(search, {SOLVED: 0.8})
    assert chosen(search) == winner


def test_solved_head_needs_no_evaluation_to_be_preferred_to_words_and_short_training(search):
    """Issue: with 30 s on a busy machine, there was only time to evaluate word counts, and these were delivered."""
    fit(search, SOLVED, WORDS, epochs=1.0)
    predict(search, {WORDS: 0.7})
    assert chosen(search) == SOLVED
    fit(search, KNOWN, epochs=0.2)
    assert chosen(search) == SOLVED


def test_short_training_with_many_classes_needs_an_evaluation(search, monkeypatch):
    fit(search, SOLVED, KNOWN, epochs=10.0)
    predict(search, {SOLVED: 0.7})
    assert chosen(search) == KNOWN
    monkeypatch.setattr("headhunt.engine.choice.MANY_CLASSES", 1)
    assert chosen(search) == SOLVED


def test_model_that_was_not_evaluated_is_not_delivered_if_something_is_fitted_on_predictions(search):
    fit(search, KNOWN, SOLVED)
    predict(search, {SOLVED: 0.8})
    object.__setattr__(search.settings, "calibrate", True)
    assert chosen(search) == SOLVED


def test_mean_of_unlike_models_needs_no_choice(search):
    fit(search, PLAIN, KNOWN, OTHER, SOLVED)
    predict(search, {PLAIN: 0.8, KNOWN: 0.8, OTHER: 0.7, SOLVED: 0.8})
    members = unlike(search, choose(search, search.fitted()))
    assert [trial.number for trial in members] == [KNOWN, PLAIN, SOLVED]
    score, _ = mean_score(search, members)
    assert score > 0.85  # their mistakes differ
    assert mean_score(search, members[:1])[0] is None
    assert mean_score(search, [*members, search.state.trials[SECOND]])[0] is None  # without predictions


def test_models_with_other_tokenizers_are_left_out_of_the_mean(search, monkeypatch):
    fit(search, PLAIN, SOLVED)
    other = SimpleNamespace(encoder="other", shape=None, recipe=search.state.trials[SOLVED].spec.recipe)
    search.state.trials[SOLVED].__dict__["spec"] = other
    monkeypatch.setattr("headhunt.engine.ensemble.encoders_with_equal_tokenizer", lambda names: names[:1])
    assert [trial.number for trial in unlike(search, search.state.trials[PLAIN])] == [PLAIN]
