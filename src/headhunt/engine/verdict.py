"""State whether the winner is better than the plain head, in one careful sentence."""

from __future__ import annotations

from headhunt.evaluation import Comparison, Score
from headhunt.run.results import ENSEMBLE, PLAIN, WINNER, Claim, Delivered, TestResult, Verdict

PROPORTIONS = ("accuracy", "macro_f1", "weighted_f1", "micro_f1")
_COUNTS = ("no", "one", "two", "three", "four", "five", "six")


def conclude(metric: str, test: TestResult | None, comparison: Comparison | None, delivered: Delivered) -> Verdict:
    """Return the verdict on a search.

    Args:
        metric: The metric of the search.
        test: Scores on the test rows, if any were predicted.
        comparison: The winner against the plain head on the test rows, if both were tested.
        delivered: Which model was delivered.
    """
    if comparison is None:
        return Verdict(delivered, "untested", _without_comparison(metric, test, delivered))
    assert test is not None
    claim: Claim = "gain" if comparison.sure else "no gain"
    return Verdict(
        delivered,
        claim,
        _with_comparison(metric, test, comparison),
        gain=comparison.gain,
        low=comparison.low,
        high=comparison.high,
        p_value=comparison.p,
        training_std_error=comparison.spread,
        training_runs=comparison.trainings,
    )


def _without_comparison(metric: str, test: TestResult | None, delivered: Delivered) -> str:
    if test is None:
        return "Not tested: there was no time left, or there are no test rows. headhunt verdict RUN does it."
    model, scores = next(iter(test.scores.items()))
    name = {WINNER: "The best candidate", PLAIN: "The plain head", ENSEMBLE: "The ensemble"}[model]
    name = "The model that was ready in time" if delivered == "best so far" and model == WINNER else name
    score = f"{name} reaches {_score(metric, scores[metric])} on {test.rows:,} test rows"
    if model == PLAIN:
        return f"No other candidate was trained in full. {score}. headhunt resume RUN --time 10m continues."
    return f"{score}; it could not be compared with the plain head. headhunt verdict RUN does it."


def _with_comparison(metric: str, test: TestResult, comparison: Comparison) -> str:
    winner, plain = (_score(metric, test.scores[model][metric]) for model in (WINNER, PLAIN))
    scores = f"{winner} where the plain head reaches {plain}, on {test.rows:,} test rows"
    gain, low, high = (_difference(metric, value) for value in (comparison.gain, comparison.low, comparison.high))
    low = low.removesuffix(" points")
    repeated = comparison.trainings > 1
    runs = f"over {_count(comparison.trainings)} training runs of each the gain is {gain}"
    mean = runs if repeated else f"a gain of {gain}"
    if comparison.sure:
        interval = f"95 % interval {low} to {high}, p = {comparison.p:.2g}"
        return f"A reliable gain: the winner reaches {scores}; {mean} ({interval})."
    if not repeated and comparison.low > 0:
        return (
            f"Not sure: the best candidate reaches {scores}, {mean} ({low} to {high} by the test rows alone); one "
            "training run of each says nothing about chance in training. headhunt verdict RUN trains more."
        )
    return (
        f"No reliable gain: keep the plain head. The best candidate reaches {scores}; {mean}, and the 95 % interval "
        f"({low} to {high}) does not rule out that there is none."
    )


def _count(number: int) -> str:
    return _COUNTS[number] if number < len(_COUNTS) else str(number)


def _score(metric: str, score: Score) -> str:
    if metric in PROPORTIONS:
        return f"{score.value * 100:.1f} %" + ("" if metric == "accuracy" else f" {metric}")
    return f"{metric} {score.value:.3f}"


def _difference(metric: str, value: float) -> str:
    return f"{value * 100:+.1f} points" if metric in PROPORTIONS else f"{value:+.3f}"
