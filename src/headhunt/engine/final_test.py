"""The verdict: is the best candidate better than the plain head, by how much, and how sure is that.

Hides the order of the last trainings and the statistics. Candidates are chosen on rows they were not trained on; the
choice is proved on test rows that nobody chose on, looked at once. The plain head gets the same treatment as the
winner, and where no gain can be shown it is what is delivered.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from headhunt.evaluation import (
    Comparison,
    compare,
    decide,
    evaluate,
    fit_temperature,
    greedy_mean,
    measure,
    reliability,
)
from headhunt.run.directory import TASK, predictions_of
from headhunt.run.ledger import Outcome, Request, State, Trial
from headhunt.run.task import open_task
from headhunt.spec import Spec
from headhunt.study.executors import Executor
from headhunt.study.runtime_estimates import whole
from headhunt.study.study import Study

RESULT, IMPORTANCE, MODEL, MODELS, ENSEMBLE = "result.json", "importance.json", "model", "models", "ensemble"
FINALISTS = 3  # candidates that are trained again with other seeds
MEMBERS = 6  # candidates whose mean is offered at most
MISTAKES = 10


@dataclass
class FinalEvaluation:
    """What a verdict is about and what it may use."""

    folder: Path
    about: Mapping[str, Any]
    """What the data says of itself."""
    metric: str
    folds: int
    """In how many parts candidates are judged."""
    study: Study
    executor: Executor
    deadline: float | None
    """When all must be done, in seconds since 1970."""
    tell: Callable[[str], None] = lambda stage: None
    """Shows what is being done."""
    calibrate: bool = False

    @property
    def state(self) -> State:
        """What the ledger holds."""
        return self.study.state

    def left(self) -> float:
        """Seconds until the deadline."""
        return float("inf") if self.deadline is None else self.deadline - time.time()

    def model(self, trial: Trial, seed: int) -> Path:
        """The folder of a candidate trained on all rows."""
        return self.folder.absolute() / MODELS / f"{trial.number:06d}-all{f'-{seed}' if seed else ''}"

    def request(self, trial: Trial, job: str, seed: int = 0, **fields: Any) -> Request:
        """A request about one trial; seed 0 is the one it was searched with."""
        return Request(
            trial=trial.number,
            spec=trial.spec,
            rung=0,
            fraction=1.0,
            seed=self.study.seed_of(trial.number) + seed,
            gradient_accumulation_steps=2**trial.out_of_memory,
            job=job,
            **{"deadline": self.deadline, **fields},
        )

    def work(self, requests: Sequence[Request], deadline: float | None) -> list[tuple[Request, Outcome]]:
        """Gives requests to the workers and waits for them, no longer than until the deadline.

        What takes its worker down is tried once more, with less memory if that was why.
        """
        done: list[tuple[Request, Outcome]] = []
        for request in requests:
            self.executor.submit(replace(request, deadline=deadline))
        while len(done) < len(requests) and (deadline is None or time.time() < deadline + 1.0):
            wait = 1.0 if deadline is None else min(1.0, max(0.05, deadline + 1.0 - time.time()))
            for request, outcome in self.executor.wait(wait):
                if outcome.outcome in ("lost", "memory") and not request.attempt:
                    gradient_accumulation_steps = (
                        2 * request.gradient_accumulation_steps
                        if outcome.outcome == "memory"
                        else request.gradient_accumulation_steps
                    )
                    self.executor.submit(
                        replace(request, attempt=1, gradient_accumulation_steps=gradient_accumulation_steps)
                    )
                else:
                    done.append((request, outcome))
            self.tell("")
        if len(done) < len(requests):
            self.executor.stop()
        return done

    def training_seconds(self, trial: Trial) -> float:
        """How long a candidate trains on all rows, judged by what it took so far."""
        taken = whole(trial, self.study.ladder.fractions, trial.best[0]) if trial.best else None
        return (taken or 0.0) / max(1, self.folds - 1)

    def answer_seconds(self, trial: Trial) -> float:
        """How long a model of this candidate takes for the test rows: a third of what training on as many takes."""
        epochs = max(1.0, Spec.from_dict(trial.spec).recipe.epochs)
        share = self.about["rows"].get("test", 0) / max(1, self.about["rows"]["train"])
        return self.training_seconds(trial) / epochs / 3 * share

    def reserve(self, best: Trial | None) -> float:
        """Seconds that the least there is to do will take: both models on all rows, and the answers of all trainings.

        The longest training and its answers come one after the other; all there is to do is shared by the workers.
        """
        trials = self.state.trials
        known = [trial for trial in (best, trials[0] if trials else None) if trial is not None]
        training = [self.training_seconds(trial) for trial in known]
        answers = max((self.answer_seconds(trial) for trial in known), default=0.0)
        models = 2 + 2 * self.folds + MEMBERS * self.folds / 2  # seldom are there as many members as there may be
        shared = (sum(training) + answers * models) / max(1, self.executor.workers)
        return max(1.25 * max(training, default=0.0) + 2 * answers, 1.1 * shared) + 5.0


def reach(case: FinalEvaluation, reason: str, seeds: int | None = None) -> dict[str, Any]:
    """Reaches the verdict, as far as the time goes, and writes it down; a model is delivered in any case.

    Args:
        case: What it is about.
        reason: Why the search ended.
        seeds: How often the winner and the plain head are trained on all rows; as often as the time allows, up to
            three, unless given.

    Returns:
        What `result.json` holds.
    """
    plain = case.state.trials[0] if case.state.trials and case.state.trials[0].best else None
    case.tell("comparing the finalists")
    judged = _judge_again(case, plain)
    winner = _winner(case, judged)
    members, together = _members(case)
    case.tell("training the winner and the plain head on all rows")
    tested = "test" in case.about["rows"]
    both = [trial for trial in (winner, plain) if trial is not None]
    beside = _part_answers(case, [*both, *members]) if tested else {}
    trained = _refit(case, both, seeds, _missing(beside))
    case.tell("answering the test rows, once")
    answers = _answers(case, both, trained, members, beside) if tested else {}
    comparison = _compare(case, winner, plain, trained, answers)
    delivered, source = _deliver(case, winner, plain, trained, comparison)
    costs = _costs(case, judged, winner, plain)
    result = _result(case, reason, winner, plain, members, judged, trained, answers, comparison, delivered, source)
    alone = float(np.mean(judged[winner.number])) if winner is not None and winner.number in judged else None
    result["mean_judged"] = together
    result["ensemble"] = _save_ensemble(case, members) if helps(together, alone) else None
    for finalist in result["finalists"]:
        finalist |= costs.get(finalist["trial"], {})
    write_json(case.folder / RESULT, result)
    if case.left() > 5.0:
        _write_importances(case)
    return result


def _write_importances(case: FinalEvaluation) -> None:
    from headhunt.study.importance import importances  # Optuna takes a while to load

    items = [{"name": name, "importance": share} for name, share in importances(case.state, case.study.candidates)]
    if items:
        write_json(case.folder / IMPORTANCE, {"schema": 1, "items": items})


def _judge_again(case: FinalEvaluation, plain: Trial | None) -> dict[int, list[float]]:
    """Scores of the finalists and the plain head with other seeds, where there is time for that and the trainings."""
    top = case.study.ladder.top
    board = [trial for trial in case.state.leaderboard() if trial.best and trial.best[0] == top]
    finalists = close_to_best(case, board)[:FINALISTS]
    scores = {trial.number: [trial.best[1]] for trial in finalists if trial.best}
    if plain is not None and plain.best and plain.best[0] == top:
        scores.setdefault(plain.number, [plain.best[1]])
    if len(finalists) < 2:
        return scores
    again = [case.state.trials[number] for number in scores]
    reserve = case.reserve(finalists[0])
    cost = sum(case.training_seconds(trial) * max(1, case.folds - 1) for trial in again)
    slots = max(1, case.executor.workers)
    for seed in (1, 2):
        if case.deadline is None or cost / slots * 1.3 + reserve > case.left():
            break
        requests = [
            case.request(trial, "judge", seed, predictions=str(_again(case, trial, seed)))
            for trial in again
            if not _again(case, trial, seed).exists()
        ]
        done = case.work(requests, case.deadline - reserve)
        for request, outcome in done:
            if outcome.outcome == "collapsed" and request.trial != 0:
                scores.pop(request.trial)  # its score was luck
        again = [trial for trial in again if trial.number in scores]
        if not all(_again(case, trial, seed).exists() for trial in again):
            break  # a mean over more seeds is compared with another over as many, or not at all
        for trial in again:
            rows, outputs = predictions_of(_again(case, trial, seed))
            scores[trial.number].append(
                measure(case.about["problem_type"], case.metric, outputs, judged_targets(case)[rows])
            )
    return scores


def _again(case: FinalEvaluation, trial: Trial, seed: int) -> Path:
    return case.folder.absolute() / "verdict" / f"{trial.number:06d}-{seed}.npz"


def close_to_best(case: FinalEvaluation, board: Sequence[Trial]) -> list[Trial]:
    """The best candidate and those that the rows they were judged on do not tell from it, best first."""
    if not board:
        return []
    top, targets, problem_type = case.study.ladder.top, judged_targets(case), case.about["problem_type"]
    best = board[0]
    path = case.study.run.predictions(best.number, top)
    if not path.exists():
        return [best]
    rows, first = predictions_of(path)
    close = [best]
    for trial in board[1:12]:
        if trial.number == 0 or not (other := case.study.run.predictions(trial.number, top)).exists():
            continue
        compared = compare(problem_type, case.metric, [first], [predictions_of(other)[1]], targets[rows])
        if compared.low <= 0:
            close.append(trial)
    return close


def _winner(case: FinalEvaluation, judged: Mapping[int, list[float]]) -> Trial | None:
    """The finalist with the best mean over its seeds; the plain head is no finalist of its own."""
    finalists = [number for number in judged if number != 0]
    if finalists:
        return case.state.trials[max(finalists, key=lambda number: (float(np.mean(judged[number])), -number))]
    best = best_whole(case.study, case.folds)
    return None if best is None or best.number == 0 else best


def _refit(
    case: FinalEvaluation, trials: Sequence[Trial], seeds: int | None, beside: Sequence[Request]
) -> dict[int, list[Path]]:
    """The folders of each candidate trained on all rows: once for certain if there is time, then with more seeds.

    Args:
        case: What it is about.
        trials: The candidates.
        seeds: How often each; as often as the time allows, up to three, unless given.
        beside: What a worker can do meanwhile that has none of them to train.
    """
    answers = 1.5 * sum(case.answer_seconds(trial) for trial in trials) / max(1, case.executor.workers)
    for seed in range(seeds or 3):
        missing = [trial for trial in trials if not (case.model(trial, seed) / "headhunt.json").exists()]
        cost = max((case.training_seconds(trial) for trial in missing), default=0.0)
        cost *= max(1.0, len(missing) / max(1, case.executor.workers))
        if seed and seeds is None and (case.deadline is None or cost * 1.3 + answers + 5 > case.left()):
            break
        until = None if case.deadline is None else case.deadline - min(answers + 3.0, 0.5 * case.left())
        training = [case.request(one, "refit", seed, checkpoint=str(case.model(one, seed))) for one in missing]
        case.work([*training, *(beside if not seed else ())], until)
    return {
        trial.number: [
            case.model(trial, seed) for seed in range(10) if (case.model(trial, seed) / "headhunt.json").exists()
        ]
        for trial in trials
    }


def _members(case: FinalEvaluation) -> tuple[list[Trial], float | None]:
    """The candidates whose mean is at least as good as the best alone, on rows none of them has seen, and its score."""
    top, problem_type = case.study.ladder.top, case.about["problem_type"]
    full = [trial for trial in case.state.leaderboard() if trial.best and trial.best[0] == top]
    full = [trial for trial in full if case.study.run.predictions(trial.number, top).exists()][:30]
    full = [trial for trial in full if case.study.held(trial.number)]
    if len(full) < 2:
        return [], None
    found = [predictions_of(case.study.run.predictions(trial.number, top)) for trial in full]
    outputs, targets = [one for _, one in found], judged_targets(case)[found[0][0]]
    chosen = greedy_mean(problem_type, case.metric, outputs, targets, MEMBERS)
    together = measure(problem_type, case.metric, np.mean([outputs[i] for i in chosen], axis=0), targets)
    return [full[i] for i in chosen], together


def helps(together: float | None, alone: float | None) -> bool:
    """Whether the mean is worth taking home: better than the winner on rows that none of its models has seen."""
    return together is not None and alone is not None and together > alone


def _save_ensemble(case: FinalEvaluation, members: Sequence[Trial]) -> str | None:
    """Puts the mean of the best in place, every training of each of them; None where there is no time for that."""
    partial = case.folder.absolute() / f"{ENSEMBLE}.partial"
    each = [trial.number for trial in members]
    if case.left() < 8.0 + 2.0 * case.folds * len(each) / max(1, case.executor.workers):
        return None
    case.tell("saving the mean of the best")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    requests = [case.request(t, "members", resume=case.study.held(t.number), checkpoint=str(partial)) for t in members]
    done = case.work(requests, None if case.deadline is None else case.deadline - 3.0)
    if sum(outcome.outcome == "ok" for _, outcome in done) < len(requests):
        shutil.rmtree(partial, ignore_errors=True)
        return None
    from headhunt.predictor import save_ensemble  # torch takes a while to load

    save_ensemble(partial, {"trials": each, "trainings_of_each": case.folds})
    shutil.rmtree(case.folder / ENSEMBLE, ignore_errors=True)
    partial.replace(case.folder / ENSEMBLE)
    return ENSEMBLE


def _part_answers(case: FinalEvaluation, trials: Sequence[Trial]) -> dict[str, Request]:
    """What asks the trainings of the parts for their answers to the test rows, by name.

    They tell how far trainings of one candidate differ, and make the mean of the best.
    """
    wanted: dict[str, Request] = {}
    for trial in {trial.number: trial for trial in trials}.values():
        held, name = case.study.held(trial.number), f"parts-{trial.number:06d}"
        if held is not None and trial.best and trial.best[0] == case.study.ladder.top:
            path = case.folder.absolute() / "test" / f"{name}.npz"
            wanted[name] = case.request(trial, "answer", resume=held, predictions=str(path))
    return wanted


def _missing(wanted: Mapping[str, Request]) -> list[Request]:
    return [request for request in wanted.values() if not Path(request.predictions).exists()]


def _answers(
    case: FinalEvaluation,
    trials: Sequence[Trial],
    trained: Mapping[int, list[Path]],
    members: Sequence[Trial],
    parts: Mapping[str, Request],
) -> dict[str, np.ndarray]:
    """What the models answer to the test rows, by name; those there was no time for are left out.

    Args:
        case: What it is about.
        trials: The winner and the plain head, as far as there are.
        trained: Their folders, trained on all rows.
        members: Whose trainings make the mean of the best.
        parts: What asks the trainings of the parts; those that have answered are not asked again.
    """
    folder = case.folder.absolute() / "test"
    wanted: dict[str, Request] = {}
    for trial in trials:
        for path in trained.get(trial.number, []):
            wanted[path.name] = case.request(
                trial, "answer", resume=str(path), predictions=str(folder / f"{path.name}.npz")
            )
    wanted |= parts
    best = best_model(case.folder, case.state)
    if not any(trained.values()) and best is not None and case.state.trials:
        # No time for a training on all rows: what is delivered is tested all the same.
        path = folder / f"{best.name}.npz"
        path.unlink(missing_ok=True)
        wanted[best.name] = case.request(
            case.state.trials[0], "answer", resume=str(best.absolute()), predictions=str(path)
        )
    case.work(_missing(wanted), None if case.deadline is None else case.deadline - 1.0)
    found = {}
    for name, request in wanted.items():
        if Path(request.predictions).exists():
            with np.load(request.predictions, allow_pickle=False) as saved:
                found[name] = saved["outputs"]
    names = [f"parts-{trial.number:06d}" for trial in members]
    if names and all(name in found for name in names):
        found["mean"] = np.mean([found[name].mean(0) for name in names], axis=0)
    return found


def _compare(
    case: FinalEvaluation,
    winner: Trial | None,
    plain: Trial | None,
    trained: Mapping[int, list[Path]],
    answers: Mapping[str, np.ndarray],
) -> Comparison | None:
    """The winner against the plain head on the test rows; None where one of them has no answers.

    Every training there is of both counts: those on all rows, and those of the parts, on the same rows each.
    """
    if winner is None or plain is None:
        return None
    both = [
        {p.name[6:]: answers[p.name][0] for p in trained.get(t.number, []) if p.name in answers}
        for t in (winner, plain)
    ]
    if not all(both):
        return None
    for found, trial in zip(both, (winner, plain), strict=True):
        found |= {f"part {i}": one for i, one in enumerate(answers.get(f"parts-{trial.number:06d}", ()))}
    shared = [name for name in both[0] if name in both[1]]
    test = open_task(case.folder / TASK, ("test",)).splits["test"].targets
    ours, theirs = ([found[name] for name in shared] for found in both)
    return compare(case.about["problem_type"], case.metric, ours, theirs, test)


def _deliver(
    case: FinalEvaluation,
    winner: Trial | None,
    plain: Trial | None,
    trained: Mapping[int, list[Path]],
    comparison: Comparison | None,
) -> tuple[str, Path | None]:
    """Puts the model in place: the winner's where it is reliably better or nothing could be tested, else the plain."""
    order = [("winner", winner), ("plain", plain)]
    if comparison is not None and not comparison.sure:
        order.reverse()
    trainings = [(name, trained[trial.number][0]) for name, trial in order if trial and trained.get(trial.number)]
    name, source = trainings[0] if trainings else ("best so far", best_model(case.folder, case.state))
    if source is not None:
        place(source, case.folder / MODEL)
        if case.calibrate and case.about["problem_type"] == "single_label_classification" and trainings:
            _calibrate(case, case.folder / MODEL, winner if name == "winner" else plain)
    return name, source


def _calibrate(case: FinalEvaluation, folder: Path, trial: Trial | None) -> None:
    """Divides the logits of a saved model by its temperature, within its last layer: any tool that loads it sees it."""
    temperature = temperature_of(case, trial)
    if temperature is None:
        return
    import torch

    from headhunt.modeling.build import output_of
    from headhunt.predictor import Predictor

    predictor = Predictor.load(folder, device=torch.device("cpu"))
    with torch.no_grad():
        output_of(predictor.model).weight.div_(temperature)
        output_of(predictor.model).bias.div_(temperature)
    predictor.facts["temperature"] = temperature
    partial = folder.with_name(f"{folder.name}.calibrated")
    predictor.save(partial, card=False)
    shutil.rmtree(folder)
    partial.replace(folder)


def _costs(
    case: FinalEvaluation, judged: Mapping[int, list[float]], winner: Trial | None, plain: Trial | None
) -> dict[int, dict[str, Any]]:
    """What the finalists cost to use, measured one after the other while nothing else runs; as far as the time goes."""
    found: dict[int, dict[str, Any]] = {}
    ahead = [trial.number for trial in (winner, plain) if trial is not None]
    for number in dict.fromkeys([*ahead, *judged]):
        if case.left() < 12.0:
            break
        case.tell("measuring what the finalists cost to use")
        until = None if case.deadline is None else case.deadline - 1.0
        for request, outcome in case.work([case.request(case.state.trials[number], "cost")], until):
            found[request.trial] = outcome.extra.get("cost", {})
    return found


def _result(
    case: FinalEvaluation,
    reason: str,
    winner: Trial | None,
    plain: Trial | None,
    members: Sequence[Trial],
    judged: Mapping[int, list[float]],
    trained: Mapping[int, list[Path]],
    answers: Mapping[str, np.ndarray],
    comparison: Comparison | None,
    delivered: str,
    source: Path | None,
) -> dict[str, Any]:
    state, about = case.state, case.about
    examples = sum(result.examples for trial in state.trials for result in trial.results.values())
    result: dict[str, Any] = {
        "schema": 1,
        "reason": reason,
        "metric": case.metric,
        "trials": len(state.trials),
        "results": len(state.settled),
        "seconds": round(state.elapsed, 1),
        "model": MODEL if source is not None else None,
        "model_from": None if source is None else source.name,
        "winner_model": next((f"{MODELS}/{p.name}" for p in trained.get(winner.number if winner else -1, [])), None),
        "best": _summary(winner),
        "plain": _summary(plain),
        "mean_of": [trial.number for trial in members],
        "judged_on": f"{case.folds} parts, out of fold" if case.folds > 1 else "held-out rows",
        "finalists": [{"trial": number, "scores": scores} for number, scores in judged.items()],
        "rungs": rung_table(state, case.study.ladder.fractions),
        "cost": {"seconds": round(state.elapsed, 1), "trials": len(state.trials), "examples": examples},
        "versions": (state.header or {}).get("versions", {}),
    }
    known = {
        "model": _first(trained, winner, answers),
        "plain": _first(trained, plain, answers),
        "mean": answers.get("mean"),
    }
    named = {name: outputs for name, outputs in known.items() if outputs is not None}
    if source is not None and not named and source.name in answers:
        named["model"] = answers[source.name][0]
    told: dict[str, Any] = {"delivered": delivered, "claim": "untested"}
    if named:
        test = open_task(case.folder / TASK, ("test",)).splits["test"]
        scored = {
            name: evaluate(about["problem_type"], out, test.targets, about["labels"]) for name, out in named.items()
        }
        result["test_rows"] = len(test)
        result["test"] = {name: found.to_dict()["scores"] for name, found in scored.items()}
        if about["problem_type"] == "single_label_classification":
            result["confusion"] = {name: found.confusion for name, found in scored.items() if name != "mean"}
            result["calibration"] = _calibration(case, winner, named.get("model"), test.targets)
            if "model" in named:
                result["mistakes"] = _mistakes(case, test, named["model"], named.get("plain"))
    if comparison is not None:
        told |= asdict(comparison)
        told["claim"] = "gain" if comparison.sure else "no gain"
    result["verdict"] = {**told, "sentence": sentence(result, comparison, delivered)}
    return result


def sentence(result: Mapping[str, Any], comparison: Comparison | None, delivered: str = "winner") -> str:
    """The verdict as a careful person would write it."""
    metric = result["metric"]
    test = result.get("test", {})
    if comparison is None:
        if not test:
            return "Not tested: there was no time left, or there are no test rows. headhunt verdict RUN does it."
        name, scores = next(iter(test.items()))
        value = scores[metric]
        what = {"model": "The best candidate", "plain": "The plain head", "mean": "The mean of the best"}[name]
        what = "The model that was ready in time" if delivered == "best so far" and name == "model" else what
        if name == "plain":
            return (
                f"No other candidate was trained in full. {what} reaches {_share(metric, value['value'])} on "
                f"{result['test_rows']:,} test rows. headhunt resume RUN --time 10m goes on."
            )
        return (
            f"{what} reaches {_share(metric, value['value'])} on {result['test_rows']:,} test rows; it could not be "
            "compared with the plain head. headhunt verdict RUN does it."
        )
    ours, theirs = (_share(metric, test[name][metric]["value"]) for name in ("model", "plain"))
    facts = f"{ours} where the plain head reaches {theirs}, on {result['test_rows']:,} test rows"
    gain, low, high = (_points(metric, value) for value in (comparison.gain, comparison.low, comparison.high))
    low = low.removesuffix(" points")
    many = comparison.trainings > 1
    mean = f"over {_count(comparison.trainings)} trainings of each the gain is {gain}" if many else f"a gain of {gain}"
    if comparison.sure:
        sure = f"95 % interval {low} to {high}, p = {comparison.p:.2g}"
        return f"A reliable gain: the winner reaches {facts}; {mean} ({sure})."
    if not many and comparison.low > 0:
        return (
            f"Not sure: the best candidate reaches {facts}, {mean} ({low} to {high} by the test rows alone); one "
            "training of each says nothing of chance in training. headhunt verdict RUN trains more."
        )
    return (
        f"No reliable gain: keep the plain head. The best candidate reaches {facts}; {mean}, and the 95 % interval "
        f"({low} to {high}) does not rule out that there is none."
    )


def _count(number: int) -> str:
    words = ("no", "one", "two", "three", "four", "five", "six")
    return words[number] if number < len(words) else str(number)


def _share(metric: str, value: float) -> str:
    if metric in ("accuracy", "macro_f1", "weighted_f1", "micro_f1"):
        return f"{value * 100:.1f} %" + ("" if metric == "accuracy" else f" {metric}")
    return f"{metric} {value:.3f}"


def _points(metric: str, value: float) -> str:
    if metric in ("accuracy", "macro_f1", "weighted_f1", "micro_f1"):
        return f"{value * 100:+.1f} points"
    return f"{value:+.3f}"


def _first(
    trained: Mapping[int, list[Path]], trial: Trial | None, answers: Mapping[str, np.ndarray]
) -> np.ndarray | None:
    paths = trained.get(trial.number, []) if trial is not None else []
    return next((answers[path.name][0] for path in paths if path.name in answers), None)


def _calibration(
    case: FinalEvaluation, winner: Trial | None, outputs: np.ndarray | None, targets: np.ndarray
) -> dict[str, Any]:
    """How far confidence can be believed on the test rows, and the temperature that held-out rows ask for."""
    found: dict[str, Any] = {"temperature": temperature_of(case, winner)}
    if outputs is not None:
        found["model"] = reliability(outputs, targets)
    return found


def temperature_of(case: FinalEvaluation, trial: Trial | None) -> float | None:
    """What a candidate's logits should be divided by, judged by rows it was not trained on."""
    if trial is None or not trial.best:
        return None
    path = case.study.run.predictions(trial.number, trial.best[0])
    if not path.exists():
        return None
    rows, outputs = predictions_of(path)
    return round(fit_temperature(outputs, judged_targets(case)[rows]), 4)


def _mistakes(case: FinalEvaluation, test: Any, ours: np.ndarray, theirs: np.ndarray | None) -> list[dict[str, Any]]:
    """The most instructive mistakes: those made with the most confidence, first where the plain head was right."""
    labels = case.about["labels"]
    answers = decide("single_label_classification", ours)
    plain = decide("single_label_classification", theirs) if theirs is not None else answers
    wrong = np.flatnonzero(answers != test.targets)
    order = sorted(wrong, key=lambda i: (plain[i] != test.targets[i], -float(ours[i].max())))[:MISTAKES]
    rows = []
    for i in order:
        second = test.texts_b(int(i), int(i) + 1)
        row = {"text": test.texts(int(i), int(i) + 1)[0], **({"text_b": second[0]} if second else {})}
        row |= {"label": labels[test.targets[i]], "model": labels[answers[i]], "plain": labels[plain[i]]}
        rows.append({**row, "confidence": round(float(ours[i].max()), 4)})
    return rows


def judged_targets(case: FinalEvaluation) -> np.ndarray:
    """The targets of all rows that candidates are judged on, in the order their positions count."""
    task = open_task(case.folder / TASK)
    return np.concatenate([task.splits[name].targets for name in ("train", "validation") if name in task.splits])


def best_whole(study: Study, folds: int) -> Trial | None:
    """The best candidate that has at least one whole training behind it."""
    ranked = [(rank_whole(study, folds, trial, rung), trial) for trial in study.state.trials for rung in trial.results]
    known = [(rank, trial) for rank, trial in ranked if rank is not None]
    return max(known, key=lambda item: item[0])[1] if known else None


def rank_whole(study: Study, folds: int, trial: Trial, rung: int) -> tuple[int, float, int] | None:
    """What candidates with a whole training are ranked by: the rung, the score, then who came first."""
    score = trial.results[rung].score
    trained = study.ladder.fractions[rung] * folds >= 1 - 1e-9
    return (rung, score, -trial.number) if trained and score is not None else None


def best_model(folder: Path, state: State) -> Path | None:
    """The best model on disk: the final one, or the best so far."""
    if state.ended and (folder / MODEL / "headhunt.json").exists():
        return folder / MODEL
    if state.model is not None and (folder / MODELS / state.model["folder"] / "headhunt.json").exists():
        return folder / MODELS / state.model["folder"]
    return folder / MODEL if (folder / MODEL / "headhunt.json").exists() else None


def rung_table(state: State, fractions: tuple[float, ...]) -> list[dict[str, Any]]:
    """What each rung cost and gave."""
    table = []
    for rung, fraction in enumerate(fractions):
        results = [trial.results[rung] for trial in state.trials if rung in trial.results]
        scores = [result.score for result in results if result.score is not None]
        table.append(
            {
                "rung": rung,
                "fraction": fraction,
                "results": len(results),
                "promoted": sum(trial.bracket < rung <= trial.reached for trial in state.trials),
                "failed": len(results) - len(scores),
                "seconds": round(sum(result.seconds for result in results), 1),
                "best": max(scores, default=None),
            }
        )
    return table


def place(source: Path, target: Path) -> None:
    """Puts a model folder in place, whole or not at all."""
    partial = target.with_name(f"{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    shutil.copytree(source, partial, copy_function=_link_or_copy)
    shutil.rmtree(target, ignore_errors=True)
    partial.replace(target)


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _summary(trial: Trial | None) -> dict[str, Any] | None:
    if trial is None:
        return None
    rung, score = trial.best or (None, None)
    return {"trial": trial.number, "rung": rung, "score": score, "spec": trial.spec}


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Writes JSON, whole or not at all."""
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    partial.replace(path)
