"""Deliver a model: put it in place, compare it with the plain head on the test rows, and write the result."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from headhunt.engine.choice import choose, mean_score, score_on, unlike
from headhunt.engine.test_scores import UNEQUAL, Tested, mean_of, paired_runs, read_tested, score_test_rows
from headhunt.engine.verdict import conclude
from headhunt.engine.view import View
from headhunt.errors import HeadhuntError
from headhunt.evaluation import Comparison, Decisions, compare
from headhunt.report import model_card
from headhunt.run import schema
from headhunt.run.directory import is_model
from headhunt.run.events import FinalTestRun
from headhunt.run.model_info import saved_thresholds
from headhunt.run.results import (
    ENSEMBLE,
    PLAIN,
    SOLVED,
    WINNER,
    WORDS,
    CandidateCost,
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
from headhunt.spec import NAMED
from headhunt.storage import atomic_directory, copy_directory
from headhunt.study.requests import JoinModels

IMPORTANCE_SECONDS, MIN_RESULTS = 5.0, 10  # that must be there for the importance of parameters


def deliver(view: View, reason: str, trust_remote_code: bool, left: float) -> SearchResult:
    """Choose the model, put it in place as `RUN/model`, and write the result.

    Args:
        view: The search.
        reason: Why it ended.
        trust_remote_code: Whether code that comes with the encoder may run.
        left: Seconds that are left.
    """
    chosen, plain, directory = choose(view, view.fitted()), view.state.plain, view.directory
    members = unlike(view, chosen)
    score, decisions = mean_score(view, members)
    single = score_on(view, chosen, members) if chosen is not None else None
    joined = view.settings.deliver == ENSEMBLE and is_model(directory.ensemble) and len(members) > 1
    mean_wins = joined and (score is None or single is None or score > single)
    delivered: Delivered = ENSEMBLE if mean_wins else "plain" if chosen is not None and chosen.is_plain else "winner"
    tested = _read_tests(view, chosen, members, decisions)
    source = directory.ensemble if mean_wins else directory.final_model(chosen.number, 0) if chosen else None
    if chosen is not None and source is not None:
        copy_directory(source, directory.model)
        if not mean_wins:
            _decide(view, view.decisions(view.held_out(chosen)), trust_remote_code)
    compared = joined or score is not None or ENSEMBLE in tested
    comparison, unequal = _compare(view, chosen, tested, ENSEMBLE if mean_wins else WINNER)
    test = score_test_rows(view, tested, delivered, chosen)
    examples, facts = view.training_facts(chosen) if chosen is not None else (0, {})
    winner = None if chosen is None or chosen.is_plain else chosen
    result = SearchResult(
        reason=reason,
        metric=view.metric,
        trials=len(view.state.trials),
        results=len(view.state.settled),
        seconds=round(view.state.elapsed, 1),
        examples=examples + sum(each.examples for trial in view.state.trials for each in trial.results.values()),
        evaluated_on=view.task.evaluated_on,
        verdict=conclude(view, chosen, test, comparison, delivered, unequal),
        model=directory.model.name if chosen is not None else None,
        model_from=None if source is None else source.name,
        trained_rows=facts.get("rows"),
        winner=_summary(winner),
        plain=_summary(plain),
        ensemble=directory.ensemble.name if joined else None,
        ensemble_members=tuple(trial.number for trial in members) if compared else (),
        ensemble_score=score,
        finalists=_finalists(view, [trial for trial in (chosen, plain) if trial is not None]),
        costs=candidate_costs(view.state, view.study.ladder.top),
        rungs=summarise_rungs(view.state, view.study.ladder.fractions),
        test=test,
        test_evaluations=view.state.test_evaluations,
        versions=view.state.started.versions if view.state.started else {},
    )
    directory.write(result)
    if left > IMPORTANCE_SECONDS:
        _write_importances(view)
    return result


def join_unlike(view: View, members: Sequence[Trial], deadline: float | None) -> Iterator[JoinModels]:
    """Yield the request for the ensemble of some trials, if there are several."""
    if len(members) > 1:
        models = tuple(view.directory.final_model(trial.number, 0) for trial in members)
        facts = {"trials": [trial.number for trial in members]}
        decisions = mean_score(view, list(members))[1]
        fields: dict[str, Any] = {
            "members": models,
            "out": view.directory.ensemble,
            "facts": facts,
            "decisions": decisions,
        }
        yield view.request(JoinModels, members[0], deadline=deadline, **fields)


def _read_tests(view: View, chosen: Trial | None, members: list[Trial], decisions: Decisions) -> dict[str, Tested]:
    """Return what was predicted for the test rows, by the role of each model, the delivered one first."""
    if "test" not in view.task.rows:
        return {}
    found: dict[str, Tested] = {}
    solved, words = (choose(view, [t for t in view.fitted() if t.origin == each]) for each in (SOLVED, WORDS))
    roles = {WINNER: None if chosen is None or chosen.is_plain else chosen, PLAIN: view.state.plain}
    roles |= {SOLVED: solved, WORDS: words}
    for role, trial in roles.items():
        known = trial is None or (trial is chosen and role in (SOLVED, WORDS))  # not listed under two names
        if trial is not None and not known and (tested := read_tested(view, trial, role)) is not None:
            found[role] = tested
    every = [each for trial in members if (each := read_tested(view, trial, ENSEMBLE)) is not None]
    if len(every) == len(members) and (mean := mean_of(every, decisions)) is not None and not view.task.tasks:
        found[ENSEMBLE] = mean
    if found:
        view.study.ledger.append(FinalTestRun(sorted(found)))
    return found


def _compare(view: View, chosen: Trial | None, tested: dict[str, Tested], role: str) -> tuple[Comparison | None, bool]:
    """Compare the delivered model with the plain head on the test rows; also return whether they are not comparable.

    Every training run of both counts. They must have been trained with about as many examples.
    """
    pairs, plain = paired_runs(tested, role), view.state.plain
    if pairs is None or chosen is None or plain is None:
        return None, False
    if role == WINNER and not chosen.is_solved:
        ours, theirs = (view.training_facts(trial)[0] for trial in (chosen, plain))
        if min(ours, theirs) < (1 - UNEQUAL) * max(ours, theirs):
            return None, True
    groups = view.test.column_groups
    return compare(view.task.problem_type, view.metric, *pairs, view.test.targets, groups=groups), False


def _decide(view: View, decisions: Decisions, trust_remote_code: bool) -> None:
    """Calibrate the delivered model and let it reject texts, if that was asked for; add thresholds that it lacks."""
    if saved_thresholds(view.directory.model) is not None:
        decisions = replace(decisions, thresholds=None)
    if decisions == Decisions():
        return
    import torch

    from headhunt.predictor import Predictor

    folder = view.directory.model
    predictor = Predictor.load(folder, device=torch.device("cpu"), trust_remote_code=trust_remote_code)
    predictor.decide_by(decisions)
    with atomic_directory(folder) as partial:
        predictor.save(partial, card=False)


def _finalists(view: View, trials: Sequence[Trial]) -> tuple[Finalist, ...]:
    """Return the trials that were compared at the end, with the cost of their models where it was measured."""
    finalists = {}
    for trial in trials:
        done = view.state.jobs.get(f"MeasureCost/{view.directory.final_model(trial.number, 0).name}")
        cost = schema.load(ModelCost, done.extra["cost"]) if done is not None and "cost" in done.extra else None
        finalists[trial.number] = Finalist(trial.number, (trial.best[1],) if trial.best else (), cost)
    return tuple(finalists.values())


def _write_importances(view: View) -> None:
    if len(view.state.settled) < MIN_RESULTS:
        return
    from headhunt.study.optuna_strategies import importances  # Optuna takes a while to load

    items = tuple(Importance(name, share) for name, share in importances(view.state, view.study.candidates))
    if items:
        view.directory.write(Importances(items))


def write_model_cards(view: View, result: SearchResult) -> None:
    """Write the card of the delivered model, and of the ensemble."""
    space, settings = view.settings.space.get("name"), view.settings
    names = [settings.encoder, *settings.encoders]
    encoder, *encoders = [name if model_card.hub_name(name) else "ENCODER" for name in names]
    settings = replace(settings, encoder=encoder, encoders=tuple(encoders))
    command = " ".join(settings.command(view.task, str(space) if space in NAMED else "space.json"))
    for folder, saved in ((view.directory.model, result.model), (view.directory.ensemble, result.ensemble)):
        if saved is not None:
            model_card.write(folder, task=view.task, result=result, command=command)


def refuse_if_nothing_trained(state: State) -> None:
    """Raise `HeadhuntError`, with the reason of the first failure, if a search has no model at all."""
    if state.model is not None or state.best is not None:
        return
    results = [result for trial in state.trials for result in trial.results.values()]
    results += [done for key, done in state.jobs.items() if key.startswith("FitAllRows/")]
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


def candidate_costs(state: State, top: int) -> tuple[CandidateCost, ...]:
    """Return score, latency and size of the candidates with a score at the top rung, where measured, best first.

    Those that no other one beats in all three are marked.

    Args:
        state: The state of the search.
        top: The highest rung.
    """
    found = [cost for trial in state.trials if (cost := _cost_of(trial, top)) is not None]
    efficient = pareto_front(found)
    marked = [replace(item, efficient=item.trial in efficient) for item in found]
    return tuple(sorted(marked, key=lambda item: (-item.score, item.trial)))


def pareto_front(items: Sequence[CandidateCost]) -> set[int]:
    """Return the trials for which no other is at least as good in score, latency and size and better in one of them."""

    def beats(one: CandidateCost, other: CandidateCost) -> bool:
        ours, theirs = ((-each.score, each.latency_ms, each.megabytes) for each in (one, other))
        return all(a <= b for a, b in zip(ours, theirs, strict=True)) and ours != theirs

    return {item.trial for item in items if not any(beats(other, item) for other in items)}


def _cost_of(trial: Trial, top: int) -> CandidateCost | None:
    result = trial.results.get(top)
    if result is None or result.score is None:
        return None
    values = [result.extra.get(name) for name in ("latency_ms", "megabytes")]
    numbers = [float(value) for value in values if isinstance(value, int | float) and math.isfinite(value)]
    return CandidateCost(trial.number, result.score, numbers[0], numbers[1]) if len(numbers) == 2 else None
