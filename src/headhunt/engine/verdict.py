"""State whether the delivered model is better than the plain head, in a few careful sentences."""

from __future__ import annotations

import numpy as np

from headhunt.engine.view import View
from headhunt.evaluation import Comparison, format_difference, format_score, format_validation_score
from headhunt.run.results import ENSEMBLE, PLAIN, WINNER, Claim, Delivered, TestResult, Verdict
from headhunt.run.state import Trial
from headhunt.spec import plain as plain_spec

FEW_EPOCHS = 0.5  # share of the usual epochs of the plain head below which a gain over it says little
_COUNTS = ("no", "one", "two", "three", "four", "five", "six")


def conclude(
    view: View,
    chosen: Trial | None,
    test: TestResult | None,
    comparison: Comparison | None,
    delivered: Delivered,
    unequal: bool,
) -> Verdict:
    """Return the verdict on a search.

    Args:
        view: The search.
        chosen: The trial that is delivered, or leads the ensemble.
        test: Scores on the test rows, if any were predicted.
        comparison: The delivered model against the plain head on the test rows, if both were tested.
        delivered: Which model is delivered.
        unequal: Whether both were trained with too different numbers of examples to be compared.
    """
    remarks = _remarks(view, chosen)
    if comparison is None or test is None:
        found, *command = _without_comparison(view, chosen, test, delivered, unequal)
        return Verdict(delivered, "untested", " ".join([found, *remarks, *command]))
    claim: Claim = "gain" if comparison.significant else "no gain"
    return Verdict(
        delivered,
        claim,
        " ".join([_with_comparison(view.metric, test, comparison, delivered), *remarks]),
        gain=comparison.gain,
        low=comparison.low,
        high=comparison.high,
        p_value=comparison.p_value,
        training_std_error=comparison.training_std_error,
        training_runs=comparison.training_runs,
    )


def _without_comparison(
    view: View, chosen: Trial | None, test: TestResult | None, delivered: Delivered, unequal: bool
) -> list[str]:
    """Return what is known, and the command to compare, which ends the verdict."""
    role = PLAIN if delivered == "plain" else ENSEMBLE if delivered == ENSEMBLE else WINNER
    if test is None or role not in test.scores:
        known = "Not tested: there was no time left, or there are no test rows."
        return [known, "To test it, run: headhunt verdict RUN"]
    score = f"{format_score(view.metric, test.scores[role][view.metric].value)} on {test.rows:,} test rows"
    if delivered == "plain":
        return [f"The plain head is delivered: no other candidate is better on validation rows. It reaches {score}."]
    again = "To compare them, run: headhunt verdict RUN"
    if unequal:
        known = "It was trained with another number of examples than the plain head, so no gain is claimed."
        return [f"The winner reaches {score}. {known}", again]
    if (reason := _failure_of_plain(view)) is not None:
        return [f"The winner reaches {score}. The plain head could not be trained: {reason}."]
    return [f"The winner reaches {score}; there was no time to compare it with the plain head.", again]


def _failure_of_plain(view: View) -> str | None:
    plain = view.state.plain
    if plain is None:
        return None
    done = view.state.jobs.get(f"FitAllRows/{view.directory.final_model(plain.number, 0).name}")
    failed = [*([done] if done else []), *plain.results.values()]
    return next((str(each.extra.get("message") or each.outcome) for each in failed if each.outcome != "ok"), None)


def _with_comparison(metric: str, test: TestResult, comparison: Comparison, delivered: Delivered) -> str:
    role, name = (ENSEMBLE, "the ensemble") if delivered == ENSEMBLE else (WINNER, "the winner")
    winner, plain = (format_score(metric, test.scores[model][metric].value) for model in (role, PLAIN))
    scores = f"{winner} where the plain head reaches {plain}, on {test.rows:,} test rows"
    gain, high = (format_difference(metric, value) for value in (comparison.gain, comparison.high))
    low = format_difference(metric, comparison.low, unit=False)
    repeated = comparison.training_runs > 1
    runs = f"over {_count(comparison.training_runs)} training runs of each the gain is {gain}"
    mean = runs if repeated else f"a gain of {gain}"
    if comparison.significant:
        interval = f"95 % interval {low} to {high}, p = {comparison.p_value:.2g}"
        return f"A reliable gain: {name} reaches {scores}; {mean} ({interval})."
    if not repeated and comparison.low > 0:
        return (
            f"Not sure: {name} reaches {scores}, {mean} ({low} to {high} by the test rows alone); one "
            "training run of each says nothing about chance in training. To train more, run: headhunt verdict RUN"
        )
    where = "is below zero" if comparison.high < 0 else "includes zero"
    return f"No reliable gain: {name} reaches {scores}; {mean}, with a 95 % interval of {low} to {high}, which {where}."


def _remarks(view: View, chosen: Trial | None) -> list[str]:
    """Return what a reader must know to judge the model and the comparison."""
    remarks: list[str] = []
    if chosen is None:
        return remarks
    rows = view.training_facts(chosen)[1].get("rows")
    if rows is not None and rows < view.task.rows["train"] / 2:
        remarks.append(f"The model has learned from {rows:,} of {view.task.rows['train']:,} training rows.")
    if (given := _given_class(view, chosen)) is not None:
        remarks.append(f"It gives every validation row the class {given!r}: it has learned nothing from the texts.")
    space = view.settings.space.get("name")
    if chosen.params is None and not chosen.is_plain and space != "default":
        remarks.append(f"It is not from the space {space!r}, but one of the candidates that every search tries first.")
    plain = view.state.plain
    if plain is not None and not chosen.is_plain:
        usual = plain_spec(plain.spec.encoder, view.task.rows["train"]).recipe.epochs
        epochs = round(view.training_facts(plain)[0] / view.task.rows["train"], 2)
        if 0 < epochs < FEW_EPOCHS * usual:
            remarks.append(
                f"The plain head had time for {epochs:g} of its usual {usual:g} epochs; a longer search is a fairer "
                "test."
            )
    settings = view.settings
    if (settings.calibrate or settings.rejection) and view.held_out(chosen) is None:
        remarks.append(
            "There was no time to evaluate the delivered model, so it is not calibrated and answers every text."
        )
    remarks += _reference(view, chosen)
    return remarks


def _given_class(view: View, chosen: Trial) -> str | None:
    """Return the class that a model gives every row it was not trained on, if it is always the same."""
    held_out = view.held_out(chosen)
    if held_out is None or view.task.problem_type != "single_label_classification":
        return None
    given = np.unique(held_out[0].argmax(1))
    return str(view.task.labels[given[0]]) if len(given) == 1 else None


def _reference(view: View, chosen: Trial) -> list[str]:
    """Return a sentence if the solved head is as good as a model that takes longer to train."""
    if chosen.is_solved:
        return []
    solved = [trial for trial in view.fitted() if trial.is_solved]
    comparison = view.compare(solved[0], chosen) if solved else None
    if comparison is None or comparison.gain <= 0 or solved[0].best is None:
        return []
    score = format_validation_score(view.metric, solved[0].best[1])
    return [f"A linear model on the frozen encoder scores {score} on validation rows, which is no worse."]


def _count(number: int) -> str:
    return _COUNTS[number] if number < len(_COUNTS) else str(number)
