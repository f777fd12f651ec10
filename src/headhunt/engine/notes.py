"""Add to a verdict what a reader must know to judge it."""

from __future__ import annotations

from dataclasses import replace

from headhunt.engine.final_evaluation import FinalEvaluation
from headhunt.engine.last_training import Contest, examples_of_run
from headhunt.engine.selection import (
    FinalistScores,
    best_with_training_run,
    clearly_better,
    or_lowest,
    preferred_recipe,
    scores_on_common_rows,
)
from headhunt.evaluation import decision_scores, format_validation_score, measure, standard_error
from headhunt.run.directory import read_predictions
from headhunt.run.results import TFIDF, Verdict
from headhunt.run.state import Trial
from headhunt.spec import plain as plain_spec


def with_notes(final: FinalEvaluation, verdict: Verdict, contest: Contest, scores: FinalistScores) -> Verdict:
    """Add what a reader must know to judge the comparison: a plain head trained briefly, and a better simple model."""
    notes = [_note_on_plain_head(final, verdict, contest.plain), _note_on_preference(final, contest, scores)]
    notes += [_note_on_decisions(final, verdict), _note_on_tfidf(final, contest, scores)]
    if not any(notes):
        return verdict
    return replace(verdict, sentence=" ".join([f"{verdict.sentence.removesuffix('.')}.", *filter(None, notes)]))


def _note_on_plain_head(final: FinalEvaluation, verdict: Verdict, plain: Trial | None) -> str | None:
    """Return a sentence if a gain is over a plain head that had time for few of its epochs."""
    if verdict.claim != "gain" or plain is None or final.by_rows:
        return None
    rows = final.task.rows["train"]
    epochs, usual = plain.spec.recipe.epochs, plain_spec(plain.spec.encoder, rows).recipe.epochs
    epochs = min(epochs, round(examples_of_run(final.directory.final_model(plain.number, 0)) / rows, 2))
    if epochs > usual / 2:
        return None
    return f"The plain head had time for {epochs:g} of its usual {usual:g} epochs; a longer search is a fairer test."


def _note_on_preference(final: FinalEvaluation, contest: Contest, scores: FinalistScores) -> str | None:
    """Return a sentence if another candidate has a better score on validation rows than the preferred recipe."""
    winner, excluded = contest.winner, {trial.number for trial in final.state.plain_trials} | scores.collapsed
    known, least = preferred_recipe(final, excluded)
    if winner is None or winner is not known or final.few_rows:
        return None
    finalists = [final.state.trials[number] for number in scores.by_trial if number not in excluded]
    best = max(finalists, key=lambda trial: or_lowest(scores.mean(trial)), default=winner)
    common = scores_on_common_rows(final, best, winner)
    if common is None or common[0] <= common[1] or clearly_better(final, best, winner, least):
        return None
    other, own = (format_validation_score(final.metric, score) for score in common)
    return (
        f"Candidate #{best.number} scores {other} on validation rows and the winner {own}, which is no significant "
        "difference; the winner is a recipe that is known to be good on other data."
    )


def _note_on_decisions(final: FinalEvaluation, verdict: Verdict) -> str | None:
    """Return a sentence if calibration or rejection was asked for, and the delivered model was never evaluated."""
    saved = final.state.model
    if verdict.delivered != "best so far" or saved is None or not (final.calibrate or final.reject):
        return None
    if final.predictions(final.state.trials[saved.trial]) is not None:
        return None
    return "There was no time to evaluate the delivered model, so it is not calibrated and answers every text."


def _note_on_tfidf(final: FinalEvaluation, contest: Contest, scores: FinalistScores) -> str | None:
    """Return a sentence if TF-IDF is better than every candidate on validation rows, beyond its standard error.

    The winner and the plain head may have seen more rows than any candidate. Without candidates there is none.
    """
    path = final.directory.reference_predictions(TFIDF)
    best = best_with_training_run(final.study, final.folds)
    if not path.exists() or best is None or best.best is None or final.trains_at_once:
        return None
    rows, outputs = read_predictions(path)
    truth, problem_type = final.validation_targets[rows], final.task.problem_type
    decisions = decision_scores(problem_type, final.metric, outputs, truth)
    score = measure(problem_type, final.metric, decisions, truth)
    trained = [mean for trial in contest.trials if (mean := scores.mean(trial)) is not None]
    if score - standard_error(problem_type, final.metric, decisions, truth) <= max([best.best[1], *trained]):
        return None
    return (
        "TF-IDF with a linear model scores higher on validation rows "
        f"({format_validation_score(final.metric, score)}); it is not delivered because it is no encoder, but "
        "scikit-learn fits it in seconds."
    )
