"""State whether the winner is better than the plain head, in one careful sentence."""

from __future__ import annotations

from dataclasses import replace

from headhunt.errors import HeadhuntError
from headhunt.evaluation import Comparison, format_difference, format_score, format_validation_score
from headhunt.run.results import ENSEMBLE, PLAIN, WINNER, Claim, Delivered, TestResult, Verdict
from headhunt.run.state import State

_COUNTS = ("no", "one", "two", "three", "four", "five", "six")


def conclude(
    metric: str,
    test: TestResult | None,
    comparison: Comparison | None,
    delivered: Delivered,
    *,
    has_winner: bool = False,
    few_rows: bool = False,
) -> Verdict:
    """Return the verdict on a search.

    Args:
        metric: The metric of the search.
        test: Scores on the test rows, if any were predicted.
        comparison: The winner against the plain head on the test rows, if both were tested.
        delivered: Which model was delivered.
        has_winner: Whether a winner was chosen, tested or not.
        few_rows: Whether it was chosen because it is the best known recipe for so few rows.
    """
    if comparison is None:
        return Verdict(delivered, "untested", _without_comparison(metric, test, delivered, has_winner))
    assert test is not None
    claim: Claim = "gain" if comparison.significant else "no gain"
    return Verdict(
        delivered,
        claim,
        _with_comparison(metric, test, comparison, delivered, few_rows),
        gain=comparison.gain,
        low=comparison.low,
        high=comparison.high,
        p_value=comparison.p_value,
        training_std_error=comparison.training_std_error,
        training_runs=comparison.training_runs,
    )


def _without_comparison(metric: str, test: TestResult | None, delivered: Delivered, has_winner: bool) -> str:
    if test is None:
        return "Not tested: there was no time left, or there are no test rows. To test it, run: headhunt verdict RUN"
    model, scores = next(iter(test.scores.items()))
    names = {WINNER: "The winner", PLAIN: "The plain head", ENSEMBLE: "The ensemble"}
    name = names[model]
    name = "The model that was ready in time" if delivered == "best so far" and model == WINNER else name
    score = f"{name} reaches {format_score(metric, scores[metric].value)} on {test.rows:,} test rows"
    if model == PLAIN and delivered == "winner":
        return f"The winner was not tested in time. {score}. To test it, run: headhunt verdict RUN"
    if model == PLAIN and has_winner:
        return f"The winner could not be trained on all rows in time. {score}. To train it, run: headhunt verdict RUN"
    if model == PLAIN:
        return f"No other candidate has a stable result. {score}. To continue, run: headhunt resume RUN --time 10m"
    return f"{score}; there was no time to compare it with the plain head. To compare them, run: headhunt verdict RUN"


def _with_comparison(
    metric: str, test: TestResult, comparison: Comparison, delivered: Delivered, few_rows: bool
) -> str:
    winner, plain = (format_score(metric, test.scores[model][metric].value) for model in (WINNER, PLAIN))
    scores = f"{winner} where the plain head reaches {plain}, on {test.rows:,} test rows"
    gain, high = (format_difference(metric, value) for value in (comparison.gain, comparison.high))
    low = format_difference(metric, comparison.low, unit=False)
    repeated = comparison.training_runs > 1
    runs = f"over {_count(comparison.training_runs)} training runs of each the gain is {gain}"
    mean = runs if repeated else f"a gain of {gain}"
    if comparison.significant:
        interval = f"95 % interval {low} to {high}, p = {comparison.p_value:.2g}"
        return f"A reliable gain: the winner reaches {scores}; {mean} ({interval})."
    if not repeated and comparison.low > 0:
        return (
            f"Not sure: the winner reaches {scores}, {mean} ({low} to {high} by the test rows alone); one "
            "training run of each says nothing about chance in training. To train more, run: headhunt verdict RUN"
        )
    reasons = "it is better than the plain head on validation rows", "it is the best known recipe for so few rows"
    reason = f" It is delivered because {reasons[few_rows]}." if delivered == "winner" else ""
    where = "is below zero" if comparison.high < 0 else "includes zero"
    return (
        f"No reliable gain: the winner reaches {scores}; {mean}, with a 95 % interval of {low} to {high}, "
        f"which {where}.{reason}"
    )


def add_ensemble(
    verdict: Verdict,
    metric: str,
    test: TestResult | None,
    scores: tuple[float | None, float | None],
    members: int,
    note: str | None,
) -> Verdict:
    """Add a sentence that says whether the ensemble is delivered, and why, where this was asked for.

    Args:
        verdict: The verdict on the winner and the plain head.
        metric: The metric of the search.
        test: Scores on the test rows, if any were predicted.
        scores: Of the best candidate and of the ensemble on validation rows.
        members: Candidates in the ensemble.
        note: Why a better ensemble was not delivered.
    """
    single, mean = (None if score is None else format_validation_score(metric, score) for score in scores)
    if verdict.delivered == ENSEMBLE:
        tested = test.scores.get(ENSEMBLE) if test else None
        result = "" if tested is None else f"; it reaches {format_score(metric, tested[metric].value)} on the test rows"
        folds = "the folds of one candidate" if members == 1 else f"{_count(members)} candidates"
        added = (
            f"The ensemble of {folds} is delivered: it has {mean} on validation rows, where the best candidate has "
            f"{single}{result}."
        )
    elif note is not None:
        end = "" if note.endswith("RUN") else "."  # a command is easier to copy
        added = f"The ensemble is better on validation rows, but not delivered: {note}{end}"
    else:
        added = "No ensemble is delivered: none is better than a single model on validation rows."
    return replace(verdict, sentence=f"{verdict.sentence} {added}")


def _count(number: int) -> str:
    return _COUNTS[number] if number < len(_COUNTS) else str(number)


def refuse_if_nothing_trained(state: State) -> None:
    """Raise `HeadhuntError`, with the reason of the first failure, if a search has no model at all."""
    # A model that was saved before its evaluation counts as long as nothing speaks against it.
    saved = state.trials[state.model.trial] if state.model is not None else None
    if state.best is not None or (saved is not None and not saved.results):
        return
    results = [result for trial in state.trials for result in trial.results.values()]
    for outcome, sentence in (
        ("error", "No candidate could be trained. The first one failed with: {message}"),
        ("limit", "No candidate is within the limits: the first one {message}. Allow more, or use a smaller encoder."),
        ("memory", "Every candidate ran out of memory. Use fewer workers or a smaller encoder."),
        ("lost", "The worker of every candidate died. Use fewer workers or a smaller encoder."),
        ("collapsed", "No candidate learned anything. The first one failed because {message}."),
    ):
        messages = [result.extra.get("message", "") for result in results if result.outcome == outcome]
        if messages:
            raise HeadhuntError(sentence.format(message=messages[0]))
