"""Test the winner against the plain head on rows that took no part in choosing it, and deliver a model.

The plain head is treated as the winner is. The better one on validation rows is delivered; the test rows decide only
what can be claimed. The ledger counts how often the test rows are used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from headhunt.engine.final_evaluation import FinalEvaluation, best_with_training_run, missing
from headhunt.engine.last_training import Contest, Job, average_models, best_model, fit_all_rows, score_last_training
from headhunt.engine.selection import (
    EnsembleChoice,
    FinalistScores,
    choose_ensemble,
    choose_winner,
    evaluate_finalists,
)
from headhunt.engine.test_scores import decisions_on_test_rows, folds_name, paired_runs, score_test_rows
from headhunt.engine.verdict import conclude
from headhunt.evaluation import (
    Comparison,
    Decisions,
    compare,
    decision_scores,
    format_score,
    measure,
    standard_error,
)
from headhunt.run import schema
from headhunt.run.costs import candidate_costs
from headhunt.run.directory import read_predictions, read_test_predictions
from headhunt.run.events import FinalTestRun
from headhunt.run.results import (
    ENSEMBLE,
    TFIDF,
    Delivered,
    Finalist,
    Importance,
    Importances,
    ModelCost,
    RungSummary,
    SearchResult,
    TrialSummary,
    Verdict,
)
from headhunt.run.state import State, Trial
from headhunt.storage import atomic_directory, copy_directory
from headhunt.study.requests import (
    JoinModels,
    MeasureCost,
    PredictTestRows,
    PredictTestRowsByFold,
    SaveAllFolds,
)


def run_final_evaluation(final: FinalEvaluation, reason: str, training_runs: int | None = None) -> SearchResult:
    """Choose the winner, test it, deliver a model and write the result, as far as the time goes.

    Args:
        final: The search.
        reason: Why the search ended.
        training_runs: How often the winner and the plain head are trained on all rows; by default as often as the time
            limit allows, up to three, and once without a limit.
    """
    plain = final.state.plain if final.state.plain and final.state.plain.best else None
    final.show_stage("comparing the finalists")
    scores = evaluate_finalists(final, plain)
    grows = final.plan is not None and final.plan.grows
    winner = next(iter(final.tuned()), None) if grows else None
    winner = winner or choose_winner(final, scores)
    choice = choose_ensemble(final)
    final.show_stage("training the winner and the plain head on all rows")
    pair = [trial for trial in (winner, plain) if trial is not None]
    tested = "test" in final.task.rows
    by_fold = _fold_jobs(final, [*pair, *choice.members]) if tested and not final.by_rows else {}
    models = fit_all_rows(final, pair, training_runs, list(by_fold.values()))
    contest = Contest(winner, plain, models, average_models(final, models))
    if grows:
        contest, scores = score_last_training(final, contest)
        winner = contest.winner
    final.show_stage("predicting the test rows")
    outputs = _predict_test_rows(final, contest, choice, by_fold) if tested else {}
    predictions = decisions_on_test_rows(final, contest, choice, outputs)
    if tested:
        contest = contest.without_untested(predictions)
    comparison = _compare(final, contest, predictions)
    delivered, source = _deliver(final, contest, comparison, scores)
    costs = _measure_costs(
        final, [trial.number for trial in pair if trial.number in scores.by_trial] + list(scores.by_trial)
    )
    test = score_test_rows(final, contest, predictions, outputs, source)
    better = choice.better_than(scores.mean(winner))
    ensemble, note = _save_ensemble(final, choice) if better else (None, None)
    result = SearchResult(
        reason=reason,
        metric=final.metric,
        trials=len(final.state.trials),
        results=len(final.state.settled),
        seconds=round(final.state.elapsed, 1),
        examples=sum(result.examples for trial in final.state.trials for result in trial.results.values()),
        evaluated_on=final.task.evaluated_on,
        verdict=_with_reference(
            final, conclude(final.metric, test, comparison, delivered, has_winner=winner is not None)
        ),
        model=final.directory.model.name if source is not None else None,
        model_from=None if source is None else source.name,
        winner_model=next((path.name for path in contest.candidates_of(winner)), None),
        winner=_summary(winner),
        plain=_summary(plain),
        ensemble=ensemble,
        ensemble_note=note,
        ensemble_members=tuple(trial.number for trial in choice.members),
        ensemble_score=choice.score,
        finalists=tuple(
            Finalist(number, tuple(values), costs.get(number)) for number, values in scores.by_trial.items()
        ),
        costs=candidate_costs(final.state, final.study.ladder.top),
        rungs=summarise_rungs(final.state, final.study.ladder.fractions),
        test=test,
        test_evaluations=final.state.test_evaluations,
        versions=final.state.started.versions if final.state.started else {},
    )
    final.directory.write_result(result)
    if final.budget.left() > 5.0:
        _write_importances(final)
    return result


def _write_importances(final: FinalEvaluation) -> None:
    from headhunt.study.importance import importances  # Optuna takes a while to load

    items = tuple(Importance(name, share) for name, share in importances(final.state, final.study.candidates))
    if items:
        final.directory.write_importances(Importances(items))


def _fold_jobs(final: FinalEvaluation, trials: Sequence[Trial]) -> dict[str, Job]:
    """Return jobs that predict the test rows with the models of each fold, by name.

    They show how far training runs of one candidate differ, and make up the ensemble.
    """
    jobs: dict[str, Job] = {}
    for trial in {trial.number: trial for trial in trials}.values():
        checkpoint = final.study.checkpoints.latest(trial.number)
        if checkpoint is not None and trial.best and trial.best[0] == final.study.ladder.top:
            path = final.directory.test_predictions(folds_name(trial))
            rows = final.study.rows_of(trial, trial.best[0])
            request = final.request(PredictTestRowsByFold, trial, rows=rows, checkpoint=checkpoint, predictions=path)
            jobs[folds_name(trial)] = (request, path)
    return jobs


def _predict_test_rows(
    final: FinalEvaluation, contest: Contest, choice: EnsembleChoice, by_fold: Mapping[str, Job]
) -> dict[str, np.ndarray]:
    """Return predictions of the test rows by name (models, rows, outputs); those there was no time for are left out.

    Predictions that are on disk are not made again. The ledger counts how often the test rows are used.
    """
    jobs: dict[str, Job] = {}
    for trial in contest.trials:
        for model in contest.candidates_of(trial):
            path = final.directory.test_predictions(model.name)
            jobs[model.name] = (final.request(PredictTestRows, trial, model=model, predictions=path), path)
    jobs |= by_fold
    best = best_model(final)
    if not contest.models_of(contest.winner) and best is not None and final.state.plain:
        # No time for a training run on all rows: the model that is delivered is tested all the same.
        path = final.directory.test_predictions(best.name)
        trial = final.state.trials[final.state.model.trial] if final.state.model else final.state.plain
        jobs[best.name] = (final.request(PredictTestRows, trial, model=best, predictions=path), path)
    final.run(missing(list(jobs.values())), final.before_deadline(1.0))
    outputs = {name: read_test_predictions(path) for name, (_, path) in jobs.items() if path.exists()}
    if outputs:
        final.study.ledger.append(FinalTestRun(sorted(outputs)))
    members = [folds_name(trial) for trial in choice.members]
    if members and all(name in outputs for name in members):
        outputs[ENSEMBLE] = np.mean([outputs[name].mean(0) for name in members], axis=0)[None]
    return outputs


def _compare(final: FinalEvaluation, contest: Contest, predictions: Mapping[str, np.ndarray]) -> Comparison | None:
    """Compare the winner with the plain head on the test rows; None if one of them has no predictions.

    Every training run of both counts: those on all rows, and those of the folds, each on the same rows.
    """
    pairs = paired_runs(contest, predictions)
    if pairs is None:
        return None
    return compare(final.task.problem_type, final.metric, *pairs, final.test.targets)


def _deliver(
    final: FinalEvaluation, contest: Contest, comparison: Comparison | None, scores: FinalistScores
) -> tuple[Delivered, Path | None]:
    """Put the model in place: the one with the best score on validation rows, or as the settings say."""
    order: list[tuple[Delivered, Trial | None]] = [("winner", contest.winner), ("plain", contest.plain)]
    winner, plain = scores.mean(contest.winner), scores.mean(contest.plain)
    if final.deliver == "plain-unless-proven":
        if comparison is None or not comparison.significant:
            order.reverse()
    elif winner is not None and plain is not None and plain > winner:
        order.reverse()
    best = best_model(final)
    if not contest.models_of(order[0][1]) and best is not None and final.deliver == "best":
        order = []  # there was no time for the last training: the best model on disk has better evidence than the other
    for name, trial in order:
        if models := contest.candidates_of(trial):
            copy_directory(models[0], final.directory.model)
            finish_saved(final, final.decisions(final.held_out(trial)))
            return name, models[0]
    if best is not None and best != final.directory.model:
        copy_directory(best, final.directory.model)
        trial = final.state.trials[final.state.model.trial] if final.state.model else None
        finish_saved(final, final.decisions(final.held_out(trial)))
    return "best so far", best


def finish_saved(final: FinalEvaluation, decisions: Decisions) -> None:
    """Calibrate the delivered model and let it reject texts, if that was asked for. Any tool sees the calibration."""
    decisions = replace(decisions, thresholds=None)  # it has its thresholds already
    if decisions == Decisions():
        return
    import torch

    from headhunt.predictor import Predictor

    folder, trust = final.directory.model, final.trust_remote_code
    predictor = Predictor.load(folder, device=torch.device("cpu"), trust_remote_code=trust)
    predictor.decide_by(decisions)
    with atomic_directory(folder) as partial:
        predictor.save(partial, card=False)


def _measure_costs(final: FinalEvaluation, trials: Sequence[int]) -> dict[int, ModelCost]:
    """Measure the cost of using each trial's model, one after the other while nothing else runs."""
    costs: dict[int, ModelCost] = {}
    for number in dict.fromkeys(trials):
        if final.budget.left() < 12.0:
            break
        final.show_stage("measuring the cost of the finalists")
        request = final.request(MeasureCost, final.state.trials[number])
        for _, outcome in final.run([request], final.before_deadline(1.0)):
            if "cost" in outcome.extra:
                costs[number] = schema.load(ModelCost, schema.dump(outcome.extra["cost"]))
    return costs


def _save_ensemble(final: FinalEvaluation, choice: EnsembleChoice) -> tuple[str | None, str | None]:
    """Save the ensemble of the models of every fold of each member; return its name, or why there is none."""
    members = choice.members
    too_late = "there was no time to save it. To save it, run: headhunt verdict RUN"
    if final.budget.left() < 8.0 + 2.0 * final.folds * len(members) / final.workers:
        return None, too_late
    if not final.has_space_for(2 * final.folds * len(members)):  # the members, then the ensemble
        return None, "there was no space on the disk to save it"
    final.show_stage("saving the ensemble")
    try:
        with atomic_directory(final.directory.ensemble) as partial:
            requests = [
                final.request(
                    SaveAllFolds,
                    trial,
                    rows=final.study.rows_of(trial, final.study.ladder.top),
                    checkpoint=checkpoint,
                    out=partial,
                )
                for trial in members
                if (checkpoint := final.study.checkpoints.latest(trial.number)) is not None
            ]
            done = final.run(requests, final.before_deadline(3.0))
            if sum(outcome.outcome == "ok" for _, outcome in done) < len(members):
                raise _IncompleteError(too_late)
            facts = {"trials": [trial.number for trial in members], "training_runs_of_each": final.folds}
            joining = final.request(JoinModels, members[0], folder=partial, facts=facts, decisions=choice.decisions)
            outcomes = [outcome for _, outcome in final.run([joining], final.before_deadline(1.0))]
            if not outcomes or outcomes[0].outcome != "ok":
                message = outcomes[0].extra.get("message") if outcomes else None
                raise _IncompleteError(f"it {message}" if message else too_late)
    except _IncompleteError as error:
        return None, str(error)
    return final.directory.ensemble.name, None


class _IncompleteError(Exception):
    """The ensemble could not be saved, in time or within the limits."""


def _with_reference(final: FinalEvaluation, verdict: Verdict) -> Verdict:
    """Add a sentence if TF-IDF is better than every candidate on validation rows, beyond its standard error."""
    path = final.directory.reference_predictions(TFIDF)
    best = best_with_training_run(final.study, final.folds)
    if not path.exists() or best is None or best.best is None:
        return verdict
    rows, outputs = read_predictions(path)
    truth, problem_type = final.validation_targets[rows], final.task.problem_type
    decisions = decision_scores(problem_type, final.metric, outputs, truth)
    score = measure(problem_type, final.metric, decisions, truth)
    if score - standard_error(problem_type, final.metric, decisions, truth) <= best.best[1]:
        return verdict
    return replace(
        verdict,
        sentence=f"{verdict.sentence} TF-IDF with a linear model scores higher on validation rows "
        f"({format_score(final.metric, score)}); it is not delivered because it is no encoder, "
        "but scikit-learn fits it in seconds.",
    )


def summarise_rungs(state: State, fractions: Sequence[float]) -> tuple[RungSummary, ...]:
    """Return the results and the cost of each rung."""
    rungs = []
    for rung, fraction in enumerate(fractions):
        results = [trial.results[rung] for trial in state.trials if rung in trial.results]
        scores = [result.score for result in results if result.score is not None]
        rungs.append(
            RungSummary(
                rung=rung,
                fraction=fraction,
                results=len(results),
                promoted=sum(trial.bracket < rung <= trial.reached for trial in state.trials),
                failed=len(results) - len(scores),
                seconds=round(sum(result.seconds for result in results), 1),
                best=max(scores, default=None),
            )
        )
    return tuple(rungs)


def _summary(trial: Trial | None) -> TrialSummary | None:
    if trial is None:
        return None
    rung, score = trial.best or (None, None)
    return TrialSummary(trial.number, trial.spec, rung, score)
