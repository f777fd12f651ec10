"""Test the winner against the plain head on rows that took no part in choosing it, and deliver a model.

The plain head is treated as the winner is. The better one on validation rows is delivered; the test rows decide only
what can be claimed. The ledger counts how often the test rows are used.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain, zip_longest
from pathlib import Path

import numpy as np

from headhunt.engine.final_evaluation import FinalEvaluation, missing
from headhunt.engine.last_training import (
    Contest,
    Job,
    average_models,
    best_model,
    fit_all_rows,
    score_last_training,
)
from headhunt.engine.notes import with_notes
from headhunt.engine.selection import (
    EnsembleChoice,
    FinalistScores,
    best_for_few_rows,
    choose_by_sample,
    choose_ensemble,
    choose_winner,
    evaluate_finalists,
    prefer_plain,
)
from headhunt.engine.test_scores import decisions_on_test_rows, folds_name, paired_runs, score_test_rows
from headhunt.engine.verdict import add_ensemble, conclude
from headhunt.evaluation import (
    Comparison,
    Decisions,
    apply_temperature,
    compare,
)
from headhunt.run import schema
from headhunt.run.costs import candidate_costs
from headhunt.run.directory import read_test_predictions
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

INTERRUPTED = "finishing within a minute; Ctrl-C again stops at once"
UNTESTED = "there was no time to test it. To test it, run: headhunt verdict RUN"


def run_final_evaluation(final: FinalEvaluation, reason: str, training_runs: int | None = None) -> SearchResult:
    """Choose the winner, test it, deliver a model and write the result, as far as the time goes.

    Args:
        final: The search.
        reason: Why the search ended.
        training_runs: How often the winner and the plain head are trained on all rows; by default as often as the time
            limit allows, up to three, and once without a limit.
    """
    plain = final.plain_head(in_time=training_runs is None)
    final.show_stage(INTERRUPTED if reason == "interrupted" and training_runs is None else "comparing the finalists")
    scores = evaluate_finalists(final, plain)
    winner = (choose_by_sample(final) if final.grows else None) or choose_winner(final, scores)
    choice = choose_ensemble(final)
    final.show_stage("training the winner and the plain head on all rows")
    pair = [trial for trial in (winner, plain) if trial is not None]
    tested = "test" in final.task.rows
    by_fold = _fold_jobs(final, pair, choice) if tested and not final.by_rows else {}
    first = final.deliver == ENSEMBLE  # save it before the test, because it is delivered if it is better
    saving = _saving_seconds(final, choice) if first else 0.0
    models = fit_all_rows(final, pair, training_runs, list(by_fold.values()), saving)
    contest = Contest(winner, plain, models, average_models(final, models))
    if final.grows:
        contest, scores = score_last_training(final, contest)
        winner, plain = contest.winner, contest.plain
    single = scores.best  # the winner is not always the one with the best score
    ensemble, note = _save_ensemble(final, choice, single, pair) if first else (None, None)
    final.show_stage("predicting the test rows")
    outputs = _predict_test_rows(final, contest, choice, by_fold, ensemble is not None) if tested else {}
    predictions = decisions_on_test_rows(final, contest, choice, outputs)
    contest = contest.without_untested(predictions, best_model(final)) if tested else contest
    comparison = _compare(final, contest, predictions)
    usable = ensemble is not None and (ENSEMBLE in predictions or not tested)
    delivered, source = _deliver(final, contest, comparison, scores, choice if usable else None)
    costs = _measure_costs(final, pair, scores)
    test = score_test_rows(final, contest, choice, predictions, outputs, source)
    if not first:
        ensemble, note = _save_ensemble(final, choice, single)
    few_rows = winner is not None and winner is best_for_few_rows(final)
    verdict = conclude(final.metric, test, comparison, delivered, has_winner=winner is not None, few_rows=few_rows)
    if first:
        note = note or (UNTESTED if ensemble is not None and not usable else None)
        verdict = add_ensemble(verdict, final.metric, test, (single, choice.score), len(choice.members), note)
    result = SearchResult(
        reason=reason,
        metric=final.metric,
        trials=len(final.state.trials),
        results=len(final.state.settled),
        seconds=round(final.state.elapsed, 1),
        examples=sum(result.examples for trial in final.state.trials for result in trial.results.values()),
        evaluated_on=final.task.evaluated_on,
        verdict=with_notes(final, verdict, contest, scores),
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


def _fold_jobs(final: FinalEvaluation, pair: Sequence[Trial], choice: EnsembleChoice) -> dict[str, Job]:
    """Return jobs that predict the test rows with the models of each fold, by name.

    They show how far training runs of the winner and the plain head differ, and make up the ensemble.
    """
    jobs: dict[str, Job] = {}
    top = final.study.ladder.top
    compared = pair if all(trial.best and trial.best[0] == top for trial in pair) else ()
    for trial in {trial.number: trial for trial in (*compared, *choice.members)}.values():
        checkpoint = final.study.checkpoints.latest(trial.number)
        if checkpoint is not None and trial.best:
            path = final.directory.test_predictions(folds_name(trial))
            rows = final.study.rows_of(trial, trial.best[0])
            request = final.request(PredictTestRowsByFold, trial, rows=rows, checkpoint=checkpoint, predictions=path)
            jobs[folds_name(trial)] = (request, path)
    return jobs


def _predict_test_rows(
    final: FinalEvaluation, contest: Contest, choice: EnsembleChoice, by_fold: Mapping[str, Job], saved: bool
) -> dict[str, np.ndarray]:
    """Return predictions of the test rows by name (models, rows, outputs); those there was no time for are left out.

    The ensemble's are the mean of those of its folds; without them, those of the ensemble if it is `saved` already.
    Other models of folds come last.

    Predictions that are on disk are not made again. The ledger counts how often the test rows are used.
    """
    jobs: dict[str, Job] = {}
    models = [[(trial, model) for model in contest.candidates_of(trial)] for trial in contest.trials]
    for trial, model in filter(None, chain.from_iterable(zip_longest(*models))):  # in turn: the time may end
        path = final.directory.test_predictions(model.name)
        jobs[model.name] = (final.request(PredictTestRows, trial, model=model, predictions=path), path)
    best, optional = best_model(final), dict(by_fold)
    if best is not None and final.state.plain:
        path = final.directory.test_predictions(best.name)
        trial = final.state.trials[final.state.model.trial] if final.state.model else final.state.plain
        job: Job = (final.request(PredictTestRows, trial, model=best, predictions=path), path)
        if path.exists() or not contest.models_of(contest.winner):
            # What is delivered is tested, even if there is no time for a training run on all rows, or for its test.
            jobs[best.name] = job
        elif final.trains_at_once:  # the references come last
            optional |= {best.name: job, TFIDF: (final.reference_request(), final.directory.test_predictions(TFIDF))}
    members = [folds_name(trial) for trial in choice.members]
    if saved and all(name in by_fold for name in members):
        jobs |= {name: by_fold[name] for name in members}
    elif saved:
        path = final.directory.test_predictions(ENSEMBLE)
        path.unlink(missing_ok=True)  # of another ensemble, if the search was resumed
        model = final.directory.ensemble
        jobs[ENSEMBLE] = (final.request(PredictTestRows, choice.members[0], model=model, predictions=path), path)
    final.run(missing(list(jobs.values())), final.before_deadline(1.0))
    requests = missing(list(optional.values()))
    passes = [final.folds if isinstance(request, PredictTestRowsByFold) else 1 for request in requests]
    trials = [final.state.trials[request.trial] for request in requests]
    seconds = sum(map(operator.mul, passes, map(final.prediction_seconds, trials)))
    if 1.3 * seconds / final.workers + 3.0 <= final.budget.left():
        final.run(requests, final.before_deadline(1.0))
    jobs |= {name: job for name, job in optional.items() if name != TFIDF}
    outputs = {name: read_test_predictions(path) for name, (_, path) in jobs.items() if path.exists()}
    if ENSEMBLE in outputs and choice.decisions.temperature is not None:  # as those of folds, before calibration
        several = final.task.problem_type == "multi_label_classification"
        outputs[ENSEMBLE] = np.stack(
            [apply_temperature(each, 1 / choice.decisions.temperature, several=several) for each in outputs[ENSEMBLE]]
        )
    if outputs:
        final.study.ledger.append(FinalTestRun(sorted(outputs)))
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
    groups = final.test.column_groups
    return compare(final.task.problem_type, final.metric, *pairs, final.test.targets, groups=groups)


def _deliver(
    final: FinalEvaluation,
    contest: Contest,
    comparison: Comparison | None,
    scores: FinalistScores,
    ensemble: EnsembleChoice | None = None,
) -> tuple[Delivered, Path | None]:
    """Put the model in place: the winner, or the plain head if that is better on validation rows, or as settings say.

    Args:
        final: The search.
        contest: The winner and the plain head.
        comparison: Both on the test rows.
        scores: Both on validation rows.
        ensemble: The ensemble, if it is saved, tested and to be delivered where it is better than both.
    """
    both: list[tuple[Delivered, Trial | None]] = [("winner", contest.winner), ("plain", contest.plain)]
    order = [(name, trial) for name, trial in both if trial is not None]
    first = scores.first(contest.plain)
    if ensemble is not None and (first is None or ensemble.better_than(first)):
        copy_directory(final.directory.ensemble, final.directory.model)
        return ENSEMBLE, final.directory.ensemble
    if final.deliver == "plain-unless-proven":
        if comparison is None or not comparison.significant:
            order.reverse()
    elif prefer_plain(final, scores, contest.winner, contest.plain):
        order.reverse()
    best = best_model(final)
    untrained = not order or not contest.models_of(order[0][1])
    if untrained and best is not None and final.deliver != "plain-unless-proven":
        # There was no time for the last training. The best model on disk has better evidence than the other's, unless
        # it is of the same trial.
        saved = final.state.model.trial if final.state.model else None
        order = [(name, trial) for name, trial in order if trial.number == saved]
    for name, trial in order:
        if models := contest.candidates_of(trial):
            copy_directory(models[0], final.directory.model)
            finish_saved(final, replace(final.decisions(final.held_out(trial, models[0])), thresholds=None))
            return name, models[0]
    if best is not None and best != final.directory.model:
        copy_directory(best, final.directory.model)
        of_best = final.state.trials[final.state.model.trial] if final.state.model else None
        finish_saved(final, replace(final.decisions(final.held_out(of_best, best)), thresholds=None))
    return "best so far", best


def finish_saved(final: FinalEvaluation, decisions: Decisions) -> None:
    """Calibrate the delivered model and let it reject texts, if that was asked for. Any tool sees the calibration.

    Thresholds replace those that it was saved with.
    """
    if decisions == Decisions():
        return
    import torch

    from headhunt.predictor import Predictor

    folder, trust = final.directory.model, final.trust_remote_code
    predictor = Predictor.load(folder, device=torch.device("cpu"), trust_remote_code=trust)
    predictor.decide_by(decisions)
    with atomic_directory(folder) as partial:
        predictor.save(partial, card=False)


def _measure_costs(final: FinalEvaluation, pair: Sequence[Trial], scores: FinalistScores) -> dict[int, ModelCost]:
    """Measure the cost of using each finalist's model, one after the other while nothing else runs; the pair first."""
    costs: dict[int, ModelCost] = {}
    first = [trial.number for trial in pair if trial.number in scores.by_trial]
    if not first:
        return costs  # none of them is of interest
    for number in dict.fromkeys([*first, *scores.by_trial]):
        if final.budget.left() < 12.0:
            break
        final.show_stage("measuring the cost of the finalists")
        request = final.request(MeasureCost, final.state.trials[number])
        for _, outcome in final.run([request], final.before_deadline(1.0)):
            if "cost" in outcome.extra:
                costs[number] = schema.load(ModelCost, schema.dump(outcome.extra["cost"]))
    return costs


def _save_ensemble(
    final: FinalEvaluation, choice: EnsembleChoice, single: float | None, untested: Sequence[Trial] = ()
) -> tuple[str | None, str | None]:
    """Save the ensemble of the models of every fold of each member; return its name, or why there is none.

    Args:
        final: The search.
        choice: The ensemble.
        single: Best score of a single candidate; an ensemble that is not better is not saved.
        untested: Trials whose models predict the test rows afterwards, as the ensemble then does.
    """
    if not choice.better_than(single):
        return None, None
    members = choice.members
    reserve = sum(map(final.prediction_seconds, [*untested, *members])) if untested else 0.0
    too_late = "there was no time to save it. To save it, run: headhunt verdict RUN"
    if final.budget.left() < reserve + _saving_seconds(final, choice):
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
            done = final.run(requests, final.before_deadline(reserve + 3.0))
            if sum(outcome.outcome == "ok" for _, outcome in done) < len(members):
                raise _IncompleteError(too_late)
            facts = {"trials": [trial.number for trial in members], "training_runs_of_each": final.folds}
            joining = final.request(JoinModels, members[0], folder=partial, facts=facts, decisions=choice.decisions)
            outcomes = [outcome for _, outcome in final.run([joining], final.before_deadline(reserve + 1.0))]
            if not outcomes or outcomes[0].outcome != "ok":
                message = outcomes[0].extra.get("message") if outcomes else None
                raise _IncompleteError(f"it {message}" if message else too_late)
    except _IncompleteError as error:
        return None, str(error)
    return final.directory.ensemble.name, None


def _saving_seconds(final: FinalEvaluation, choice: EnsembleChoice) -> float:
    """Estimate the seconds to save an ensemble."""
    return 8.0 + 2.0 * final.folds * len(choice.members) / final.workers


class _IncompleteError(Exception):
    """The ensemble could not be saved, in time or within the limits."""


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
