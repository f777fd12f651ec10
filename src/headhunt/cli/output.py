"""Print results: tables and sentences for people, JSON for programs."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
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
SMALL_PART = 0.5  # of the training rows, below which a model could learn far more
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


def show(as_json: bool, data: Mapping[str, Any], *lines: str) -> None:
    """Print data as one line of JSON for programs, or else lines for people."""
    if as_json:
        print(json.dumps(data, ensure_ascii=False))
        return
    for line in lines:
        say(line)


def print_notes(task: Task) -> None:
    """Print what was detected in the data, and warnings about it, on standard error."""
    width = shutil.get_terminal_size().columns
    for line in [*task.notes, *(f"note: {warning}" for warning in task.warnings)]:
        log(textwrap.fill(line, width, subsequent_indent="  ") if sys.stderr.isatty() else line)


def predict_example(command: object, pair: bool) -> str:
    """Return a command line that predicts an example."""
    return f"{command} " + ('"one text" "another"' if pair else '"some text"')


def score_text(score: Score) -> str:
    """Return a score with its confidence interval."""
    return f"{score.value:.4f} (95 % interval {score.low:.4f} to {score.high:.4f})"


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
        show(True, evaluation.to_dict() | ({"rejection": asdict(rejection)} if rejection else {}))
        return
    from rich.table import Table

    from headhunt.report.words import rejection_words

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
        console.print(rejection_words(rejection, "rows", rejection.label))


def print_corpus(summary: Summary, out: str, as_json: bool) -> None:
    """Print how many rows of a corpus were labelled and, on standard error, the files that could not be read."""
    unlabelled = [f"without a label: {rows:,} rows, {problem}" for problem, rows in summary.problems.items()]
    done = f"{summary.labelled:,} of {summary.rows:,} rows labelled in {summary.seconds:,.0f} s, in {out}"
    show(as_json, asdict(summary), done, *unlabelled)
    for path, reason in summary.unreadable.items():
        log(f"not read: {visible(path)}: {visible(reason)}")


def print_search(search: Search, as_json: bool, *, leaderboard: bool = True) -> None:
    """Print the state of a search: its best trials, its result and what to do next."""
    if as_json:
        print(json.dumps(search_data(search)))
        return
    console = _console()
    if leaderboard:
        print_leaderboard(search, console)
    print_result(search, console)
    _print_line(console, "SEARCH", _end_words(search.state))
    if search.model_dir is None:
        console.print("no model yet")
        return
    for number, (what, how) in enumerate(_next_steps(search)):
        console.print(f"{'' if number else 'NEXT':<9}{what:<18} {visible(how)}", soft_wrap=True)


def _print_line(console: Console, label: str, text: str) -> None:
    """Print text after its heading; on a terminal, a long one continues below its first word."""
    line = f"{label:<9}{visible(text)}"
    if console.is_terminal:
        line = textwrap.fill(line, console.width, subsequent_indent=" " * 9, break_on_hyphens=False)
    console.print(line, style="bold" if label == "RESULT" else "", soft_wrap=True)


def _next_steps(search: Search) -> Iterator[tuple[str, str]]:
    """Yield what a user does next, and the command for it."""
    from headhunt.report.terminal import short_path

    first = next(iter(search.task.tasks), None)
    command = shlex.join(["headhunt", "predict", str(short_path(search.model_dir or search.run_dir))])
    if search.directory.report.is_file():
        yield "see the mistakes", f"report in {short_path(search.directory.report)}"
    if first:
        yield "try a text", predict_example(f"{command} --task {first.name}", first.pair)
    else:
        yield "try a text", predict_example(command, search.task.pair)
        yield "label a file", f"{command} --input new.csv --out labeled.csv"


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
    fractions = state.started.fractions if state.started else ()
    table = Table("trial", find_metric(search.settings.metric).score_name, "training", "seconds", "candidate")
    for place, row in enumerate(board):
        if place < LEADERBOARD_ROWS or (state.plain and row.trial == state.plain.number):
            share = f"{fractions[row.rung]:.0%}" if row.rung < len(fractions) else ""
            table.add_row(str(row.trial), f"{row.score:.4f}", share, f"{row.seconds:.0f}", describe(row.spec))
    if board:
        console.print(table)
    if len({row.rung for row in board}) > 1:
        console.print("Compare scores after the same share of training.")


def _end_words(state: State) -> str:
    """Return how far a search has come, and why it ended."""
    from headhunt.report.terminal import format_duration

    end = f"{len(state.running)} running at the last update"
    if state.ended is not None:
        end = f"ended: {END_REASONS.get(state.ended, state.ended)}"
    return f"{len(state.trials)} candidates tried in {format_duration(state.elapsed)}; {end}"


def print_result(search: Search, console: Console) -> None:
    """Print what the delivered model reaches, whether it is better than the usual head, and what it is."""
    if search.result is not None:
        for label, text in result_lines(search, search.result):
            _print_line(console, label, text)


def result_lines(search: Search, result: SearchResult) -> Iterator[tuple[str, str]]:
    """Yield the lines of a result, each with its heading."""
    from headhunt.report.terminal import short_path
    from headhunt.report.words import rejection_words, verdict_words

    test, verdict, rows = result.test, result.verdict, search.task.rows["train"]
    if test is not None and test.rows < FEW_TEST_ROWS:
        yield "WARNING", f"{test.rows} test rows say next to nothing about the score"
    if result.trained_rows is not None and result.trained_rows < SMALL_PART * rows:
        yield "WARNING", f"the model has learned from {result.trained_rows:,} of {rows:,} training rows; give more time"
    scores = test.scores.get(verdict.delivered) if test is not None else None
    if test is not None and scores is not None:
        yield "RESULT", f"{_score_words(scores[result.metric], result.metric)} on {test.rows:,} test rows"
    else:
        yield "RESULT", "not tested"
    yield "BETTER?", verdict_words(result, short_path(search.run_dir))
    others = {name: each for name, each in (test.scores if test else {}).items() if name != verdict.delivered}
    for name, each in others.items():
        yield "", f"{MODEL_NAMES[name]}: {_score_words(each[result.metric], result.metric)}"
    if test is not None and test.rejection is not None:
        yield "", rejection_words(test.rejection, "test rows", test.rejection.label)
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
    from headhunt.report.terminal import short_path
    from headhunt.report.words import model_words

    delivered = result.winner or result.plain
    if result.model is None or delivered is None:
        return
    kind = model_words(delivered.spec) if result.verdict.delivered != "ensemble" else MODEL_NAMES["ensemble"]
    yield "MODEL", f"{short_path(search.directory.model)}  {kind}"
    facts = []
    if result.trained_rows is not None:
        facts.append(f"trained on {result.trained_rows:,} of {search.task.rows['train']:,} rows")
    cost = next((each.cost for each in result.finalists if each.trial == delivered.trial and each.cost), None)
    if cost is not None:
        facts.append(f"{cost.megabytes:.0f} MB, {cost.latency['1'].p50_ms:.1f} ms a text")
    if facts:
        yield "", "; ".join(facts)
    if result.ensemble and result.verdict.delivered != "ensemble":
        yield "", f"ensemble, as one model: {short_path(search.run_dir / result.ensemble)}"


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
    from headhunt.evaluation import find_metric
    from headhunt.run.schema import dump

    metric = find_metric(ablation.metric).name
    show(
        as_json,
        dump(ablation),
        f"winner: {metric} {ablation.base.value:.4f} on {ablation.rows:,} validation rows",
        "change of the score without this part (95 % interval); below 0: the part helps",
        *(f"{each.difference:+.4f}  ({each.low:+.4f} to {each.high:+.4f})  {each.name}" for each in ablation.items),
        *(f"not evaluated: {name}" for name in ablation.failed),
    )


def print_space(space: Space, as_json: bool) -> None:
    """Print the tree of a search space with its ranges, the meaning of its options, and its size."""
    size = space.size()
    if as_json:
        show(True, {**space.to_dict(), "architectures": size})
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
