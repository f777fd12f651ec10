"""Choose the winner and the members of an ensemble by their scores on validation rows. Test rows play no part."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from headhunt.engine.final_evaluation import FinalEvaluation
from headhunt.engine.time_estimates import MAXIMUM_MEMBERS
from headhunt.evaluation import Decisions, compare, decision_scores, select_ensemble
from headhunt.run.directory import read_predictions
from headhunt.run.state import KNOWN, Trial
from headhunt.spec import MANY_CLASSES
from headhunt.study.candidates import starts_ahead
from headhunt.study.requests import EvaluateTrial
from headhunt.study.study import Study

FINALISTS = 3  # trials that are evaluated again with other seeds
SEEDS = (1, 2)  # those seeds, beside the one a trial was searched with
COMPARED = 12  # best trials among which finalists are looked for
ENSEMBLE_CANDIDATES = 30  # best trials among which members are chosen
SIGNIFICANT, CLEAR = 2.0, 1.0  # standard errors of a difference: benchmarks/testbed/choice.py and few_shot.py
MINIMUM_MEMBERS = 3  # unless fewer have a better score: benchmarks/testbed/ensemble_size.py
Predicted = tuple[Trial, tuple[np.ndarray, np.ndarray]]  # a trial with the rows and outputs of its predictions


@dataclass(frozen=True)
class EnsembleChoice:
    """The trials whose mean prediction is best on validation rows, and its score."""

    members: list[Trial]
    score: float | None
    decisions: Decisions = field(default_factory=Decisions)
    """Fitted on the mean prediction."""

    def better_than(self, score: float | None) -> bool:
        """Return whether the mean scores above a single trial on rows that none of its models has seen."""
        return self.score is not None and score is not None and self.score > score


@dataclass(frozen=True)
class FinalistScores:
    """The scores of the finalists and the plain head, one per seed."""

    by_trial: dict[int, list[float]]
    collapsed: set[int] = field(default_factory=set)
    """Trials that learned nothing with another seed: their first score was luck."""

    def mean(self, trial: Trial | None) -> float | None:
        """Return the mean score of a trial over its seeds; None if it is not among them."""
        scores = self.by_trial.get(trial.number) if trial is not None else None
        return float(np.mean(scores)) if scores else None

    def first(self, trial: Trial | None) -> float | None:
        """Return the score of a trial with the seed it was searched with, as the members of an ensemble have."""
        scores = self.by_trial.get(trial.number) if trial is not None else None
        return scores[0] if scores else None

    @property
    def best(self) -> float | None:
        """The best score with the first seed; None without any."""
        return max((scores[0] for scores in self.by_trial.values()), default=None)


def choose_by_sample(final: FinalEvaluation) -> Trial | None:
    """Return the trial that trains the encoder and is the best guess for a last training that sees far more rows.

    Candidates that a small sample makes look better than they are count only if there is no other. Of those that the
    best one exceeds by a standard error at most, the earliest is chosen (the one-standard-error rule): known recipes
    are tried in the order of how good they are on other data.
    """
    tuned = sorted(final.tuned(), key=lambda trial: starts_ahead(trial.spec))
    if not tuned or not tuned[0].best:
        return None
    best, (rung, score) = tuned[0], tuned[0].best
    least = score - float(best.results[rung].extra.get("std_error") or 0.0)
    equal = [
        trial
        for trial in tuned
        if trial.best and trial.best[0] == rung and trial.best[1] >= least
        if starts_ahead(trial.spec) == starts_ahead(best.spec)
    ]
    return min(equal, key=lambda trial: trial.number)


def evaluate_finalists(final: FinalEvaluation, plain: Trial | None) -> FinalistScores:
    """Return the scores of the finalists and the plain head, with other seeds too where there is time."""
    complete = final.fully_evaluated()
    finalists = close_to_best(final, complete)[:FINALISTS]
    preferred, _ = preferred_recipe(final, {trial.number for trial in final.state.trials if trial not in complete})
    if preferred is not None and preferred not in finalists:
        finalists = [*finalists[: FINALISTS - 1], preferred]
    scores = {trial.number: [trial.best[1]] for trial in finalists if trial.best}
    if plain is not None and plain.best and plain.best[0] == final.study.ladder.top:
        scores.setdefault(plain.number, [plain.best[1]])
    result = FinalistScores(scores)
    if len(finalists) < 2 or final.trains_at_once:
        return result
    trials = [final.state.trials[number] for number in scores]
    unfinished = best_with_training_run(final.study, final.folds, {trial.number for trial in final.state.plain_trials})
    reserve = max(seconds_to_reserve(final, trial) for trial in (finalists[0], unfinished or finalists[0]))
    if final.by_rows:
        return result  # another seed costs as much as another candidate, and the last training sees more rows anyway
    seconds = sum(final.training_seconds(trial) * max(1, final.folds - 1) for trial in trials)
    for seed in SEEDS:
        if seconds / final.workers * 1.3 + reserve > final.budget.left():
            break
        requests = [
            final.request(EvaluateTrial, trial, seed, rung=final.study.ladder.top, fraction=1.0, predictions=path)
            for trial in trials
            if not (path := final.directory.seed_predictions(trial.number, seed)).exists()
        ]
        for request, outcome in final.run(requests, final.before_deadline(reserve)):
            if outcome.outcome == "collapsed" and not final.state.trials[request.trial].is_plain:
                result.collapsed.add(request.trial)
                del scores[request.trial]
        trials = [trial for trial in trials if trial.number in scores]
        paths = {trial.number: final.directory.seed_predictions(trial.number, seed) for trial in trials}
        if not all(path.exists() for path in paths.values()):
            break  # a mean over more seeds is compared with another over as many, or not at all
        for number, path in paths.items():
            rows, outputs = read_predictions(path)
            targets = final.validation_targets[rows]
            scores[number].append(final.score(outputs, targets))
    return result


def close_to_best(final: FinalEvaluation, leaderboard: Sequence[Trial]) -> list[Trial]:
    """Return the best trial and those whose validation score does not differ significantly from it, best first."""
    if not leaderboard:
        return []
    best = leaderboard[0]
    predictions = final.predictions(best)
    if predictions is None:
        return [best]
    rows, outputs = predictions
    close = [best]
    for trial in leaderboard[1:COMPARED]:
        if trial.is_plain or (other := final.predictions(trial)) is None:
            continue
        targets = final.validation_targets[rows]
        pair = [decision_scores(final.task.problem_type, final.metric, each, targets) for each in (outputs, other[1])]
        comparison = compare(
            final.task.problem_type, final.metric, pair[:1], pair[1:], targets, groups=final.groups_of(rows)
        )
        if comparison.low <= 0:
            close.append(trial)
    return close


def choose_winner(final: FinalEvaluation, scores: FinalistScores) -> Trial | None:
    """Return the finalist with the best mean over its seeds; the plain head is not a finalist.

    A trial with fewer folds wins if it is better on the rows that both have predicted. The known recipes that are best
    on other data win unless another is clearly better. One that cannot be trained on all rows in time wins only if
    there is no other. A winner that is no finalist, because the plain head is better than all, is added to the scores.
    """
    excluded = {trial.number for trial in final.state.plain_trials} | scores.collapsed
    slow = {trial.number for trial in final.state.trials if trial.best and not final.has_time_for(trial)}
    winner = _best_candidate(final, scores, excluded | slow) or _best_candidate(final, scores, excluded)
    known, least = preferred_recipe(final, excluded | slow)
    if known is not None and winner is not None:
        finalists = [final.state.trials[number] for number in scores.by_trial if number not in excluded | slow]
        if not any(clearly_better(final, trial, known, least) for trial in (winner, *finalists)):
            winner = known
    if winner is not None and winner.best is not None:
        scores.by_trial.setdefault(winner.number, [winner.best[1]])
    return winner


def _best_candidate(final: FinalEvaluation, scores: FinalistScores, excluded: Collection[int]) -> Trial | None:
    finalists = [final.state.trials[number] for number in scores.by_trial if number not in excluded]
    if not finalists:
        finalists = [trial for trial in final.fully_evaluated() if trial.number not in excluded][:1]
    winner = max(
        finalists,
        key=lambda trial: (or_lowest(scores.mean(trial)), -trial.number),
        default=None,
    )
    if winner is None or winner.best is None:
        return best_with_training_run(final.study, final.folds, excluded)
    complete = [trial.number for trial in final.state.trials if trial.best and trial.best[0] >= winner.best[0]]
    best = best_with_training_run(final.study, final.folds, {*excluded, *complete})
    common = scores_on_common_rows(final, best, winner) if best is not None else None
    return best if common is not None and common[0] > common[1] else winner


def preferred_recipe(final: FinalEvaluation, excluded: Collection[int]) -> tuple[Trial | None, float]:
    """Return the preferred known recipe, and by how many standard errors another candidate must be better to win.

    There is None without such a recipe. Among many candidates, the best score is mostly luck. With more than a few
    rows, the better of the first recipes is preferred: benchmarks/testbed/choice.py, which has classes of single texts,
    compared by cross-validation. With many classes, a solved head is better than a few epochs of these recipes:
    benchmarks/testbed/many_classes.py.
    """
    if final.few_rows:
        known = best_for_few_rows(final)
        return None if known is None or known.number in excluded else known, CLEAR
    best: Trial | None = None
    for trial in _first_recipes(final):
        if trial.number not in excluded and final.predictions(trial):
            common = None if best is None else scores_on_common_rows(final, trial, best)
            best = trial if best is None or (common and common[0] > common[1]) else best
    return best, SIGNIFICANT


def _first_recipes(final: FinalEvaluation) -> list[Trial]:
    """Return the trials of the first known recipes that have results, where they are preferred."""
    task = final.task
    if final.by_rows or task.pair or task.problem_type != "single_label_classification":
        return []
    if len(task.labels) > MANY_CLASSES:
        return []
    hashes = {spec.hash for spec in final.study.candidates.first_recipes()}
    return [trial for trial in final.state.trials if trial.hash in hashes and trial.best]


def seconds_to_reserve(final: FinalEvaluation, best: Trial | None) -> float:
    """Estimate the seconds of the final evaluation, whether the best trial wins or a preferred recipe.

    Args:
        final: The search.
        best: The best trial so far.
    """
    preferred = [] if final.few_rows else _first_recipes(final)
    return max(map(final.minimum_seconds, [best, *preferred]))


def best_for_few_rows(final: FinalEvaluation) -> Trial | None:
    """Return the known recipe that is best on other data with few rows; None with more rows, or without it.

    A few dozen validation rows say less about candidates than other data does: benchmarks/testbed/few_shot.py. So it
    needs no evaluation where there was no time for it, in this session or an earlier one.
    """
    if not final.few_rows:
        return None
    known = [trial for trial in final.state.trials if trial.origin == KNOWN and trial.spec.recipe.contrastive]
    evaluated = [trial for trial in known if final.predictions(trial) is not None]
    trained = [
        trial
        for trial in known
        if not trial.results and (final.trains_at_once or final.directory.final_models(trial.number))
    ]
    return next(iter(evaluated + trained), None)


def clearly_better(final: FinalEvaluation, first: Trial, second: Trial, least: float = CLEAR) -> bool:
    """Return whether a trial is better than another by more than `least` standard errors, on rows of both."""
    common = None if first is second else _on_common_rows(final, first, second)
    if common is None:
        return False
    rows, *both = common
    targets, problem_type = final.validation_targets[rows], final.task.problem_type
    pair = [decision_scores(problem_type, final.metric, outputs, targets) for outputs in both]
    comparison = compare(problem_type, final.metric, pair[:1], pair[1:], targets, groups=final.groups_of(rows))
    return comparison.gain > least * (comparison.high - comparison.low) / 4  # an interval of four standard errors


def scores_on_common_rows(final: FinalEvaluation, first: Trial, second: Trial) -> tuple[float, float] | None:
    """Return the scores of two trials on the rows that both have predicted; None if there are none on disk."""
    common = _on_common_rows(final, first, second)
    if common is None:
        return None
    rows, *both = common
    targets = final.validation_targets[rows]
    return final.score(both[0], targets), final.score(both[1], targets)


def _on_common_rows(
    final: FinalEvaluation, first: Trial, second: Trial
) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Return the rows that two trials have both predicted, and the outputs of each; None if there are none on disk."""
    found, other = final.predictions(first), final.predictions(second)
    if found is None or other is None:
        return None
    rows, here, there = np.intersect1d(found[0], other[0], return_indices=True)
    return (rows, found[1][here], other[1][there]) if len(rows) else None


def prefer_plain(final: FinalEvaluation, scores: FinalistScores, winner: Trial | None, plain: Trial | None) -> bool:
    """Return whether the plain head is better than the winner on validation rows; on the same ones, if folds differ.

    With few rows, it must be clearly better than the known recipe that is best on other data.
    """
    if winner is None or plain is None:
        return False
    known = best_for_few_rows(final)
    if known is not None and winner.number == known.number:
        return clearly_better(final, plain, winner)
    means = scores.mean(winner), scores.mean(plain)
    if winner.best and plain.best and min(winner.best[0], plain.best[0]) < final.study.ladder.top and not final.grows:
        means = scores_on_common_rows(final, winner, plain) or means
    return means[0] is not None and means[1] is not None and means[1] > means[0]


def or_lowest(score: float | None) -> float:
    """Return a score, or the lowest number if there is none."""
    return -math.inf if score is None else score


def choose_ensemble(final: FinalEvaluation) -> EnsembleChoice:
    """Return the trials whose mean prediction is at least as good as the best alone; none for several tasks."""
    if final.task.tasks:
        return EnsembleChoice([], None)
    predicted = [(trial, final.predictions(trial)) for trial in final.fully_evaluated()]
    available = [(trial, found) for trial, found in predicted if found is not None][:ENSEMBLE_CANDIDATES]
    available = [(trial, found) for trial, found in available if final.study.checkpoints.latest(trial.number)]
    available = _with_equal_tokenizer(final, available)
    if len(available) < 2:
        return EnsembleChoice([], None)
    outputs = [predictions for _, (_, predictions) in available]
    targets = final.validation_targets[available[0][1][0]]
    problem_type = final.task.problem_type
    scores = [final.score(each, targets) for each in outputs]
    choices = []
    for least in (MINIMUM_MEMBERS, 1):
        chosen = select_ensemble(problem_type, scores, outputs, targets, MAXIMUM_MEMBERS, least)
        mean = np.mean([outputs[i] for i in chosen], axis=0)
        choices.append((final.score(mean, targets), chosen, mean))
    score, chosen, mean = max(choices, key=lambda choice: choice[0])  # the larger one if both are as good
    return EnsembleChoice([available[i][0] for i in chosen], score, final.decisions((mean, targets)))


def _with_equal_tokenizer(final: FinalEvaluation, available: list[Predicted]) -> list[Predicted]:
    """Return the trials whose tokenizer equals that of the best one: only those can be joined into one model."""
    vocabularies = [trial.spec.shape.vocabulary if trial.spec.shape else None for trial, _ in available]
    available = [
        each for each, vocabulary in zip(available, vocabularies, strict=True) if vocabulary == vocabularies[0]
    ]
    encoders = [trial.spec.encoder for trial, _ in available]
    if len(set(encoders)) < 2 or vocabularies[0] is not None:  # trained on the texts of the task, not of an encoder
        return available
    from headhunt.engine.ensemble import encoders_with_equal_tokenizer  # torch takes a while to load

    equal = encoders_with_equal_tokenizer(encoders, final.trust_remote_code)
    return [(trial, predictions) for trial, predictions in available if trial.spec.encoder in equal]


def best_with_training_run(study: Study, folds: int, excluded: Collection[int] = ()) -> Trial | None:
    """Return the best trial with at least one complete training run, apart from some."""
    ranked = [
        (rank, trial)
        for trial in study.state.trials
        if trial.number not in excluded
        for rung in trial.results
        if (rank := rank_with_training_run(study, folds, trial, rung)) is not None
    ]
    return max(ranked, key=lambda item: item[0])[1] if ranked else None


def rank_with_training_run(study: Study, folds: int, trial: Trial, rung: int) -> tuple[float, int] | None:
    """Return the rank of a result of a complete training run: the lower bound of its score, the earlier trial first.

    The rung plays no part: a result on more rows is more certain, and has a higher lower bound only for that.
    """
    bound = trial.lower_bound(rung)
    complete = (study.plan is not None and study.plan.by_rows) or study.ladder.fractions[rung] * folds >= 1 - 1e-9
    return (bound, -trial.number) if complete and bound is not None else None
