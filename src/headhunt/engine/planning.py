"""Fit a search to its time: measure how fast the encoder is, and decide which rows and epochs fit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from headhunt.engine.encoders import relative_cost
from headhunt.errors import HeadhuntError
from headhunt.run.plan import LEAST_EPOCHS, THREAD_EXPONENT, Plan
from headhunt.run.settings import SearchSettings
from headhunt.run.state import Outcome
from headhunt.run.task import TaskInfo
from headhunt.spec import MANY_CLASSES, Space
from headhunt.study.candidates import Candidates
from headhunt.study.executors import Executor
from headhunt.study.requests import MeasureThroughput, Request

ATTEMPTS = 3  # of the measurement, if its worker dies
MEASURED_ROWS, MEASURED_SECONDS = 128, 1.0  # of the measurement that a plan is based on
TRAINING_FACTOR = 3.3  # cost of a training example, relative to a pass through the frozen encoder
EPOCHS = 10.0  # of a candidate, where there is time
SAMPLE_EPOCHS = 3.0  # of a candidate that is compared on a sample of the rows
CANDIDATES = 3.0  # fully trained candidates per worker that the search must have time for
# With cross-validation, there must be time for so many evaluations with one fold, and then for so many training runs of
# the winner and of the plain head on all rows.
NO_COMPARISON, FEWEST_RUNS, FEW_RUNS, USUAL_RUNS = (0, 1), (2, 1), (4, 1), (6, 2)
ENOUGH_EPOCHS = 4.0  # more help less than a second training run: benchmarks/testbed/few_epochs.py and averages.py
RUNS_FRACTION = 0.8  # of the workers' time, for all of these
FINAL_FRACTION = 0.55  # of the time after the first model, for the last training runs
MARGIN = 8.0  # seconds that loading, saving and testing take at the end
FIRST_SECONDS, FIRST_FRACTION = 10.0, 0.1  # for the pass of the first model through the encoder: the smaller one
SOLVED_FRACTION = 0.3  # of the time, for the pass of a solved head that sees more rows
SOLVED_ROWS = 5000  # rows that a head is solved on at most: the time grows with their third power
LOGISTIC_SECONDS = 5e-6  # per row and class, for solving a head of many classes
LAST_LAYER_ROWS = 20_000  # the same with the features of the last layer alone
FIRST_ROWS = 1000  # without a time limit
VALIDATION_ROWS = 2000
ROWS_MARGIN = 2.5  # rows that are kept ready for the last training, should it be faster than expected
LEAST_ROWS = 500  # candidates are not compared on fewer, unless there are fewer
LEAST_EXAMPLES = 2000  # of the last training; with fewer, the frozen encoder on more rows is better
ONLY_SOLVED_FRACTION = 0.85  # of the time that is left then, for the pass of a solved head
TEST_ROWS = 2000
COMPARING_FRACTION = 0.25  # of the time, for comparing encoders
BASELINE_FRACTION = 0.25  # of the workers' time, for comparing recipes of the plain head


def plan_search(
    task: TaskInfo,
    settings: SearchSettings,
    executor: Executor,
    *,
    left: float,
    workers: int,
    trust_remote_code: bool = False,
) -> Plan:
    """Measure how fast the encoder is, and return the plan of a search.

    Args:
        task: Description of the data.
        settings: The settings of the search.
        executor: Runs the measurement.
        left: Seconds that are left of the time.
        workers: Number of workers.
        trust_remote_code: Whether code that comes with an encoder may run.

    Raises:
        HeadhuntError: If the encoder cannot be used.
    """
    space = Space.from_dict(settings.space)
    candidates = Candidates(
        space,
        encoder=settings.encoder,
        pair=task.pair,
        problem_type=task.problem_type,
        rows=task.rows["train"],
        max_length=settings.max_length,
    )
    request = MeasureThroughput(
        trial=0, spec=candidates.solved()[0], seed=settings.seed, rows=MEASURED_ROWS, seconds=MEASURED_SECONDS
    )
    measured = _run(executor, request)
    rate = float(measured["rows_per_second"]) / float(measured["threads"]) ** THREAD_EXPONENT
    threads = executor.threads_alone or 1
    # These need predictions of rows that a candidate was not trained on, or several candidates.
    several = (settings.calibrate, settings.rejection, settings.unlabelled, settings.pretrain, settings.learned)
    compares = any(several) or settings.deliver == "ensemble"
    known = settings.known_recipes and not compares and candidates.best_for_few_rows() is not None
    plan = make_plan(task, rate, seconds=settings.time, left=left, workers=workers, threads=threads, known=known)
    if len(settings.encoders) < 2:
        return plan
    costs = {encoder: relative_cost(encoder, trust_remote_code) for encoder in settings.encoders}
    chosen = _affordable(plan, costs)
    return replace(plan, encoders=chosen, costs=tuple(costs[each] / costs[chosen[0]] for each in chosen))


def _run(executor: Executor, request: Request) -> dict[str, Any]:
    """Run a request, again if its worker dies, and return what it measured."""
    for _ in range(ATTEMPTS):
        executor.submit(request)
        done: list[tuple[Request, Outcome]] = []
        while not done:
            done = executor.wait(1.0)
        outcome = done[0][1]
        if outcome.outcome == "ok":
            return outcome.extra
        if outcome.outcome != "lost":
            break
    raise HeadhuntError(f"The encoder cannot be used: {outcome.extra.get('message', outcome.outcome)}")


def _affordable(plan: Plan, costs: Mapping[str, float]) -> tuple[str, ...]:
    """Return the encoders that there is time to compare, the one of the plain head first, then the cheapest."""
    first, *others = costs
    rows = plan.first_rows + (plan.validation_rows if plan.by_rows else 0)
    left = math.inf if plan.seconds is None else COMPARING_FRACTION * plan.seconds
    chosen = [first]
    for encoder in sorted(others, key=costs.__getitem__):
        left -= rows / plan.rows_per_second * costs[encoder] / costs[first]
        if left > 0:
            chosen.append(encoder)
    return tuple(chosen)


def make_plan(
    task: TaskInfo,
    throughput: float,
    *,
    seconds: float | None,
    left: float,
    workers: int,
    epochs: float = EPOCHS,
    threads: int = 1,
    known: bool = False,
) -> Plan:
    """Return the plan of a search.

    Args:
        task: Description of the data.
        throughput: Rows that pass through the frozen encoder per second, on one worker.
        seconds: Time of the search; None is no limit.
        left: Seconds that are left of it.
        workers: Number of workers.
        epochs: Epochs of a candidate, where there is time.
        threads: Threads of a request that runs alone.
        known: Whether there is a recipe that is known to be the best for so few rows.
    """
    rows = task.rows["train"]
    validation = task.rows.get("validation", 0)
    rate = throughput / TRAINING_FACTOR
    test = min(task.rows.get("test", 0), TEST_ROWS)
    common: dict[str, Any] = {"rows": rows, "folds": task.folds, "test_rows": test, "seconds": seconds}
    common |= {"rows_per_second": round(throughput, 2), "examples_per_second": round(rate, 2)}
    if seconds is None:
        held_out = rows if task.folds > 1 else validation or _held_out(rows)
        common |= {"compared_rows": rows, "final_rows": rows, "validation_rows": held_out}
        solved = min(rows, SOLVED_ROWS)
        return Plan(first_rows=min(solved, FIRST_ROWS), solved_rows=solved, epochs=epochs, **common)
    common["test_rows"] = test = min(test, max(LEAST_ROWS, round(0.05 * seconds * throughput)))
    first = max(200, round(min(FIRST_SECONDS, FIRST_FRACTION * seconds) * throughput))
    alone = throughput * threads**THREAD_EXPONENT  # with all threads, as the first head and its test
    # The first model is tested alone, the winner and the plain head at the same time.
    testing = test / alone + 2 * test / (throughput * min(2, workers))
    after = max(5.0, left - testing - MARGIN - min(first, rows) / throughput)
    if task.folds > 1:
        available = RUNS_FRACTION * after * rate / rows  # epochs of all rows, on one worker
        fewest, few, usual = (
            available / _epochs_in_turn(*runs, task.folds, workers) for runs in (FEWEST_RUNS, FEW_RUNS, USUAL_RUNS)
        )
        fitting = max(min(ENOUGH_EPOCHS, few), usual)
        # Few validation rows say little: unless there is time to spare, it is better spent on epochs of a known recipe.
        untested = after + test / alone  # the first model is tested last then
        most = untested * rate / rows / _epochs_in_turn(*NO_COMPARISON, task.folds, workers)
        compares = not known or usual >= epochs or most < LEAST_EPOCHS
        fitting = fitting if compares else most
        epochs = round(max(LEAST_EPOCHS, min(epochs, fitting)), 2)
        return Plan(
            compared_rows=rows,
            validation_rows=rows,
            final_rows=rows,
            first_rows=rows,
            solved_rows=rows,
            epochs=epochs,
            fine_tuning=fewest >= LEAST_EPOCHS or not compares,
            compares=compares,
            plain_recipes=2 if compares and few > epochs - 0.01 else 1,
            **common,
        )
    examples = (1 - FINAL_FRACTION) * after / CANDIDATES * rate
    held_out = validation or _held_out(rows)
    trained = rows if validation else rows - held_out
    compared = min(trained, max(LEAST_ROWS, round(examples / SAMPLE_EPOCHS)))
    compared = trained if compared > 0.8 * trained else compared
    epochs = round(max(1.0, min(epochs, examples / compared)), 2)
    final_examples = FINAL_FRACTION * after * rate
    solves = final_examples < min(LEAST_EXAMPLES, rows)
    held_out = min(held_out, max(200, round(examples / 4)) if solves else max(LEAST_ROWS, round(examples / 3)))
    common |= {"epochs": epochs, "validation_rows": held_out, "first_rows": min(rows, first, SOLVED_ROWS)}
    if solves:
        free = max(0.0, left - MARGIN - (test + min(first, rows) + held_out) / alone)
        solved = max(common["first_rows"], _rows_to_solve(task, alone, ONLY_SOLVED_FRACTION * free))
        sample = min(compared, rows)
        common |= {"compared_rows": sample, "final_rows": max(solved, sample), "plain_recipes": 1, "fine_tuning": False}
        return Plan(solved_rows=solved, **common)
    return Plan(
        compared_rows=rows if compared == trained else compared,
        final_rows=min(rows, max(compared, round(ROWS_MARGIN * final_examples))),
        solved_rows=min(rows, SOLVED_ROWS, max(first, round(SOLVED_FRACTION * after * throughput))),
        plain_recipes=_plain_recipes(compared * epochs / rate, seconds, workers),
        **common,
    )


def _epochs_in_turn(evaluations: int, last_runs: int, folds: int, workers: int) -> float:
    """Return how many epochs of all rows each worker has to train in turn, for every epoch of a candidate.

    Args:
        evaluations: Number of evaluations with one fold.
        last_runs: Number of training runs on all rows, of the winner and of the plain head.
        folds: Number of cross-validation folds.
        workers: Number of workers.
    """
    fold = (folds - 1) / folds
    return max((evaluations * fold + 2 * last_runs) / workers, min(1, evaluations) * fold + last_runs)


def _rows_to_solve(task: TaskInfo, throughput: float, seconds: float) -> int:
    """Return on how many rows a head can be solved in so many seconds."""
    classes = len(task.labels) if task.problem_type == "single_label_classification" else 1
    if classes <= MANY_CLASSES:
        return min(task.rows["train"], SOLVED_ROWS, round(seconds * throughput))
    most = SOLVED_ROWS if task.pair else LAST_LAYER_ROWS
    per_row = 1 / throughput + LOGISTIC_SECONDS * classes
    return min(task.rows["train"], most, round(seconds / per_row))


def _plain_recipes(seconds: float, total: float, workers: int) -> int:
    """Return how many recipes of the plain head are compared, if one full evaluation takes so many seconds.

    Recipes are compared at a third of the budget, and the better one goes on.
    """
    return 2 if seconds * 4 / 3 <= BASELINE_FRACTION * total * workers else 1


def _held_out(rows: int) -> int:
    return min(VALIDATION_ROWS, rows // 5)
