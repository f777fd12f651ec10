"""Print results: tables and sentences for people, JSON for programs."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from headhunt.errors import visible

if TYPE_CHECKING:
    from rich.console import Console
    from rich.tree import Tree

    from headhunt.data import Task
    from headhunt.delivery.corpus import Summary
    from headhunt.engine.search import Search
    from headhunt.evaluation import Evaluation, RejectionScores, Score
    from headhunt.run.results import AblationResult, SearchResult, TestResult
    from headhunt.run.state import State
    from headhunt.spec import Space

LEADERBOARD_ROWS = 10
END_REASONS = {"time": "time limit reached", "trials": "maximum number of trials reached", "target": "target reached"}
FEW_TEST_ROWS = 30  # with fewer, a score says next to nothing
LARGEST_CONFUSION_MATRIX = 12  # classes; a larger table does not fit a terminal
MODEL_NAMES = {
    "winner": "the best candidate",
    "plain": "the plain head, fine-tuned as usual",
    "ensemble": "the mean of up to three unlike models (--deliver ensemble)",
    "solved": "a linear model on the frozen encoder",
    "words": "a linear model on word counts, without an encoder",
}


def log(message: str) -> None:
    """Print a message on standard error."""
    say(message, sys.stderr)


def say(message: str, stream: IO[str] | None = None) -> None:
    """Print a message for people, on standard output by default. Newlines in names are escaped by `visible`."""
    print(visible(message, keep="\n\t"), file=stream)


def print_json(data: Mapping[str, Any]) -> None:
    """Print one line of JSON."""
    print(json.dumps(data, ensure_ascii=False))


def print_notes(task: Task) -> None:
    """Print what was detected in the data, and warnings about it, on standard error."""
    for line in [*task.notes, *(f"note: {warning}" for warning in task.warnings)]:
        log(line)


def predict_example(command: object, pair: bool) -> str:
    """Return a command line that predicts an example."""
    return f"{command} " + ('"one text" "another"' if pair else '"some text"')


def print_fit(facts: Mapping[str, Any], out: Path, pair: bool, as_json: bool) -> None:
    """Print the test scores of a model that `fit` saved."""
    if as_json:
        print_json({"out": str(out), **facts})
        return
    for name, score in facts.get("test", {}).get("scores", {}).items():
        say(f"{name:12} {format_score(score['value'], score['low'], score['high'])}")
    say(f"saved in {out}: try  {predict_example(f'headhunt predict {out}', pair)}")


def format_score(value: float, low: float, high: float) -> str:
    """Return a score with its confidence interval."""
    return f"{value:.4f} (95 % interval {low:.4f} to {high:.4f})"


def print_evaluation(
    evaluation: Evaluation, labels: list[str], as_json: bool, rejection: RejectionScores | None = None
) -> None:
    """Print scores, the table per class and, if it is small enough, the confusion matrix.

    Args:
        evaluation: The scores, as if the model answered every text.
        labels: Class names.
        as_json: Print one line of JSON.
        rejection: Scores of the answers of a model that rejects texts.
    """
    if as_json:
        print_json(evaluation.to_dict() | ({"rejection": asdict(rejection)} if rejection else {}))
        return
    from rich.table import Table

    console = _console()
    scores = Table("metric", "value", "95 % interval", title=f"{evaluation.rows:,} rows", title_justify="left")
    for name, score in evaluation.scores.items():
        scores.add_row(name, f"{score.value:.4f}", f"{score.low:.4f} to {score.high:.4f}")
    console.print(scores)
    if evaluation.classes:
        table = Table("class", "rows", "precision", "recall", "F1")
        for row in evaluation.classes:
            table.add_row(
                visible(row.label), str(row.rows), f"{row.precision:.3f}", f"{row.recall:.3f}", f"{row.f1:.3f}"
            )
        console.print(table)
    if 0 < len(evaluation.confusion) <= LARGEST_CONFUSION_MATRIX:
        table = Table("true \\ predicted", *map(visible, labels))
        for label, counts in zip(labels, evaluation.confusion, strict=True):
            table.add_row(visible(label), *(str(count) for count in counts))
        console.print(table)
    if rejection:
        console.print("All of these count every text as answered.")
        console.print(_rejection_words(rejection, "rows"))


def _rejection_words(rejection: RejectionScores, rows: str) -> str:
    """Return coverage and accuracy of a model that rejects texts, in one sentence or two."""
    inside = rows if rejection.label is None else f"{rows} of other classes than {rejection.label}"
    words = (
        f"the model answers {rejection.coverage:.1%} of the {inside}; {rejection.accuracy:.1%} of these answers "
        f"are correct, against {rejection.accuracy_of_all:.1%} if it answered all"
    )
    if rejection.outside_rejected is None:
        return words
    return f"{words}; it rejects {rejection.outside_rejected:.1%} of the {rejection.outside_rows:,} {rejection.label}"


def print_corpus(summary: Summary, out: str, as_json: bool) -> None:
    """Print how many rows of a corpus were labelled and, on standard error, the files that could not be read."""
    if as_json:
        print_json(asdict(summary))
    else:
        say(f"{summary.labelled:,} of {summary.rows:,} rows labelled in {summary.seconds:,.0f} s, in {out}")
        for problem, rows in summary.problems.items():
            say(f"without a label: {rows:,} rows, {problem}")
    for path, reason in summary.unreadable.items():
        log(f"not read: {visible(path)}: {visible(reason)}")


def print_search(search: Search, as_json: bool, *, leaderboard: bool = True) -> None:
    """Print the state of a search: its best trials, its result and its model."""
    if as_json:
        print(json.dumps(search_data(search)))
        return
    console = _console()
    if leaderboard:
        print_leaderboard(search, console)
    print_result(search, console)
    if not leaderboard:
        console.print(f"{'SEARCH':<9}{_end_words(search.state)}")
    model = search.model_dir
    if model is None:
        console.print("no model yet")
        return
    first = next(iter(search.task.tasks), None)
    command = f"headhunt predict {model}" + (f" --task {first.name}" if first else "")
    example = predict_example(command, first.pair if first else search.task.pair)
    console.print(f"{'NEXT':<9}{example}", soft_wrap=True)
    if not first:
        file = f"headhunt predict {model} --input new.csv --out labeled.csv"
        console.print(f"{'':<9}{file}", soft_wrap=True)


def search_data(search: Search) -> dict[str, Any]:
    """Return the state of a search as JSON data."""
    from headhunt.run.schema import dump

    state, model = search.state, search.model_dir
    return {
        "run": str(search.run_dir),
        "model": str(model) if model else None,
        "ended": state.ended,
        "trials": len(state.trials),
        "results": len(state.settled),
        "running": len(state.running),
        "seconds": round(state.elapsed, 1),
        "leaderboard": dump(search.leaderboard()),
        "result": dump(search.result),
    }


def print_leaderboard(search: Search, console: Console) -> None:
    """Print the best trials and the plain head, which is trial 0."""
    from rich.table import Table

    from headhunt.evaluation import find_metric
    from headhunt.spec import describe

    state, board = search.state, search.leaderboard()
    table = Table("trial", find_metric(search.settings.metric).score_name, "rung", "seconds", "candidate")
    for row in [
        *board[:LEADERBOARD_ROWS],
        *(row for row in board[LEADERBOARD_ROWS:] if state.plain and row.trial == state.plain.number),
    ]:
        table.add_row(str(row.trial), f"{row.score:.4f}", str(row.rung), f"{row.seconds:.0f}", describe(row.spec))
    console.print(table)
    if len({row.rung for row in board}) > 1:
        console.print("A higher rung means more training; compare scores within a rung.")
    console.print(_end_words(state))


def _end_words(state: State) -> str:
    """Return how far a search has come, and why it ended."""
    from headhunt.report.terminal import count_results

    end = f"{len(state.running)} running at the last update"
    if state.ended is not None:
        end = f"ended: {END_REASONS.get(state.ended, state.ended)}"
    return f"{count_results(state)} in {state.elapsed:.0f} s of search; {end}"


def print_result(search: Search, console: Console) -> None:
    """Print what the delivered model reaches, whether it is better than the usual head, and what to do next."""
    result = search.result
    if result is None:
        return
    for label, text in result_lines(search, result):
        console.print(f"{label:<9}{visible(text)}", style="bold" if label == "RESULT" else "", soft_wrap=True)


def result_lines(search: Search, result: SearchResult) -> Iterator[tuple[str, str]]:
    """Yield the lines of a result, each with its heading."""
    test, verdict = result.test, result.verdict
    if test is not None and test.rows < FEW_TEST_ROWS:
        yield "WARNING", f"{test.rows} test rows say next to nothing about the score"
    scores = test.scores.get(verdict.delivered) if test is not None else None
    if test is not None and scores is not None:
        yield "RESULT", f"{_score_words(scores[result.metric], result.metric)} on {test.rows:,} test rows"
    else:
        yield "RESULT", "not tested"
    command = shlex.join(["headhunt", "verdict", str(search.run_dir)])
    yield "BETTER?", verdict.sentence.replace("headhunt verdict RUN", command)
    others = {name: each for name, each in (test.scores if test else {}).items() if name != verdict.delivered}
    for name, each in others.items():
        yield "", f"{MODEL_NAMES[name]}: {_score_words(each[result.metric], result.metric)}"
    if test is not None and test.rejection is not None:
        yield "", _rejection_words(test.rejection, "test rows")
    for task in test.tasks if test is not None else ():
        known = ", ".join(f"{MODEL_NAMES[name]} {each[task.metric].value:.4f}" for name, each in task.scores.items())
        yield "TASK", f"{task.name}, {task.metric} on {task.rows:,} test rows: {known}"
    yield from _model_lines(search, result)
    if test is not None and (weakest := _weakest(test, verdict.delivered, search.task.labels)):
        yield "WEAKEST", weakest
    if result.test_evaluations > 1:
        yield "", f"the test rows were evaluated {result.test_evaluations} times in this run"


def _model_lines(search: Search, result: SearchResult) -> Iterator[tuple[str, str]]:
    """Yield what the delivered model is, what it has learned from and what it costs."""
    from headhunt.spec import describe

    delivered = result.winner or result.plain
    if result.model is None or delivered is None:
        return
    kind = describe(delivered.spec) if result.verdict.delivered != "ensemble" else MODEL_NAMES["ensemble"]
    yield "MODEL", f"{search.directory.model}  {kind}"
    facts = []
    if result.trained_rows is not None:
        facts.append(f"trained on {result.trained_rows:,} of {search.task.rows['train']:,} rows")
    cost = next((each.cost for each in result.finalists if each.trial == delivered.trial and each.cost), None)
    if cost is not None:
        facts.append(f"{cost.megabytes:.0f} MB, {cost.latency['1'].p50_ms:.1f} ms a text")
    if facts:
        yield "", "; ".join(facts)
    if result.ensemble and result.verdict.delivered != "ensemble":
        yield "", f"ensemble, as one model: {search.run_dir / result.ensemble}"


def _score_words(score: Score, metric: str) -> str:
    """Return a score with its interval: "96.0 % right (95 % sure: 91.9 to 99.0)"."""
    from headhunt.evaluation import find_metric
    from headhunt.evaluation import format_score as in_words

    if not find_metric(metric).proportion:
        return f"{in_words(metric, score.value)} (95 % sure: {score.low:.3f} to {score.high:.3f})"
    right = " right" if metric == "accuracy" else ""
    return f"{in_words(metric, score.value)}{right} (95 % sure: {score.low * 100:.1f} to {score.high * 100:.1f})"


def _weakest(test: TestResult, role: str, labels: Sequence[str]) -> str:
    """Return the two classes that are found least often, if the model has mistakes in a few of several classes."""
    matrix = test.confusion.get("plain" if role == "plain" else "winner")
    if not matrix or len(labels) < 3 or len(matrix) != len(labels):
        return ""
    found = [
        (row[at] / sum(row), label, row[at], sum(row))
        for at, (label, row) in enumerate(zip(labels, matrix, strict=True))
        if sum(row)
    ]
    return "; ".join(f"{label} {right} of {rows} found" for share, label, right, rows in sorted(found)[:2] if share < 1)


def print_ablation(ablation: AblationResult, as_json: bool) -> None:
    """Print how much each part of the winner contributes to its score."""
    if as_json:
        from headhunt.run.schema import dump

        print_json(dump(ablation))
        return
    from headhunt.evaluation import find_metric

    metric = find_metric(ablation.metric).name
    say(f"winner: {metric} {ablation.base.value:.4f} on {ablation.rows:,} validation rows")
    say("change of the score without this part (95 % interval); below 0: the part helps")
    for item in ablation.items:
        say(f"{item.difference:+.4f}  ({item.low:+.4f} to {item.high:+.4f})  {item.name}")
    for name in ablation.failed:
        say(f"not evaluated: {name}")


def print_space(space: Space, as_json: bool) -> None:
    """Print the tree of a search space with its ranges, the meaning of its options, and its size."""
    size = space.size()
    if as_json:
        print_json({**space.to_dict(), "architectures": size})
        return
    from rich.console import Console
    from rich.tree import Tree

    root = Tree(f"[bold]{space.name}[/]")
    _grow(root, space.tree)
    console = Console(highlight=False)
    console.print(root)
    console.print(
        f"{size:,} architectures ({size:.2g}): encoders, heads and frozen layers; numeric ranges are not counted"
    )


def _grow(branch: Tree, tree: Mapping[str, Any]) -> None:
    from rich.markup import escape

    from headhunt.spec import MEANINGS, Choice, Maybe

    for key, node in tree.items():
        if isinstance(node, Maybe):
            _grow(branch.add(f"[bold]{key}[/] [dim]optional[/]"), node.tree)
        elif isinstance(node, dict):
            _grow(branch.add(f"[bold]{key}[/]"), node)
        else:
            leaf = branch.add(f"{key}  [cyan]{node}[/]")
            options = node.options if isinstance(node, Choice) else ()
            for option in [option for option in options if option in MEANINGS.get(key, {})]:
                leaf.add(f"[dim]{escape(f'{option}: {MEANINGS[key][option]}')}[/]")


def _console() -> Console:
    from rich.console import Console

    return Console(markup=False, emoji=False, highlight=False)  # print a label such as "[/b]" or ":smile:" unchanged
