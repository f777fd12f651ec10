"""Print results: tables and sentences for people, JSON for programs."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headhunt.cli.flags import translate

if TYPE_CHECKING:
    from rich.console import Console
    from rich.tree import Tree

    from headhunt.data import Task
    from headhunt.delivery.corpus import Summary
    from headhunt.engine.search import Search
    from headhunt.evaluation import Evaluation, RejectionScores
    from headhunt.report.terminal import SearchView
    from headhunt.run.results import AblationResult
    from headhunt.spec import Space

LEADERBOARD_ROWS = 10
END_REASONS = {"time": "time limit reached", "trials": "maximum number of trials reached", "target": "target reached"}
LARGEST_CONFUSION_MATRIX = 12  # classes; a larger table does not fit a terminal
MODEL_NAMES = {
    "winner": "the winner",
    "plain": "the plain head",
    "ensemble": "the ensemble",
    "student": "the student of the winner, which is delivered",
    "solved": "the frozen encoder with a solved head",
    "tfidf": "TF-IDF with a linear model",
}


def log(message: str) -> None:
    """Print a message on standard error."""
    print(message, file=sys.stderr)


def print_json(data: Mapping[str, Any]) -> None:
    """Print one line of JSON."""
    print(json.dumps(data, ensure_ascii=False))


def print_notes(task: Task) -> None:
    """Print what was detected in the data, and warnings about it, on standard error."""
    for line in [*task.notes, *(f"note: {warning}" for warning in task.warnings)]:
        log(translate(line))


def predict_example(command: object, pair: bool) -> str:
    """Return a command line that predicts an example."""
    return f"{command} " + ('"one text" "another"' if pair else '"some text"')


def print_fit(facts: Mapping[str, Any], out: Path, pair: bool, as_json: bool) -> None:
    """Print the test scores of a model that `fit` saved."""
    if as_json:
        print_json({"out": str(out), **facts})
        return
    for name, score in facts.get("test", {}).get("scores", {}).items():
        print(f"{name:12} {format_score(score['value'], score['low'], score['high'])}")
    print(f"saved in {out}: try  {predict_example(f'headhunt predict {out}', pair)}")


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
            table.add_row(row.label, str(row.rows), f"{row.precision:.3f}", f"{row.recall:.3f}", f"{row.f1:.3f}")
        console.print(table)
    if 0 < len(evaluation.confusion) <= LARGEST_CONFUSION_MATRIX:
        table = Table("true \\ predicted", *labels)
        for label, counts in zip(labels, evaluation.confusion, strict=True):
            table.add_row(label, *(str(count) for count in counts))
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
        print(f"{summary.labelled:,} of {summary.rows:,} rows labelled in {summary.seconds:,.0f} s, in {out}")
        for problem, rows in summary.problems.items():
            print(f"without a label: {rows:,} rows, {problem}")
    for path, reason in summary.unreadable.items():
        log(f"not read: {path}: {reason}")


def search_view(run: Path) -> SearchView:
    """Return the terminal view of a search that is in a run directory."""
    from headhunt.engine.search import Search
    from headhunt.report.terminal import SearchView

    return SearchView(Search(run).settings.metric)


def print_search(search: Search, as_json: bool) -> None:
    """Print the state of a search: its best trials, its verdict and its model."""
    if as_json:
        print(json.dumps(search_data(search)))
        return
    console = _console()
    print_leaderboard(search, console)
    print_result(search, console)
    model = search.model_dir
    if model is None:
        console.print("no model yet")
    else:
        first = next(iter(search.task.tasks), None)
        command = f"headhunt predict {model}" + (f" --task {first.name}" if first else "")
        example = predict_example(command, first.pair if first else search.task.pair)
        console.print(f"model in {model}: try  {example}", soft_wrap=True)


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
    from headhunt.report.terminal import count_results
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
    end = (
        f"ended: {END_REASONS.get(state.ended, state.ended)}"
        if state.ended
        else f"{len(state.running)} running at the last update"
    )
    console.print(f"{count_results(state)} in {state.elapsed:.0f} s of search; {end}")


def print_result(search: Search, console: Console) -> None:
    """Print the verdict, the test scores, and the models beside the delivered one."""
    result = search.result
    if result is None:
        return
    delivered = result.verdict.delivered
    command = shlex.join(["headhunt", "verdict", str(search.run_dir)])
    console.print(result.verdict.sentence.replace("headhunt verdict RUN", command), style="bold", soft_wrap=True)
    for name, scores in (result.test.scores if result.test else {}).items():
        early = name == "winner" and delivered == "best so far"
        words = "the best model so far" if early else MODEL_NAMES[name]
        score = scores[result.metric]
        others = "".join(
            f"; {other} {scores[other].value:.4f}"
            for other in ("micro_f1", "macro_f1")
            if search.task.problem_type == "multi_label_classification" and other in scores and other != result.metric
        )
        console.print(f"test score of {words}: {format_score(score.value, score.low, score.high)}{others}")
    if result.test and (rejection := result.test.rejection):
        console.print(_rejection_words(rejection, "test rows"))
    for task in result.test.tasks if result.test else ():
        known = {MODEL_NAMES[name].removeprefix("the "): scores[task.metric] for name, scores in task.scores.items()}
        values = ", ".join(f"{name} {score.value:.4f}" for name, score in known.items())
        console.print(f"task {task.name}, {task.metric} on {task.rows:,} test rows: {values}", soft_wrap=True)
    if result.test_evaluations > 1:
        console.print(f"the test rows were evaluated {result.test_evaluations} times in this run")
    if delivered in ("plain", "ensemble") and result.winner_model:
        winner, name = search.directory.models / result.winner_model, MODEL_NAMES[delivered]
        console.print(f"{search.directory.model} is {name}; the winner is in {winner}", soft_wrap=True)
    if result.self_training and (note := result.self_training.note):
        console.print(f"no student was delivered: {note}")
    if result.ensemble and delivered != "ensemble":
        console.print(f"ensemble, as one model: {search.run_dir / result.ensemble}", soft_wrap=True)
    elif result.ensemble_note:
        console.print(f"the ensemble is not saved: {result.ensemble_note}")


def print_ablation(ablation: AblationResult, as_json: bool) -> None:
    """Print how much each part of the winner contributes to its score."""
    if as_json:
        from headhunt.run.schema import dump

        print_json(dump(ablation))
        return
    from headhunt.evaluation import find_metric

    metric = find_metric(ablation.metric).name
    print(f"winner: {metric} {ablation.base.value:.4f} on {ablation.rows:,} validation rows")
    print("change of the score without this part (95 % interval); below 0: the part helps")
    for item in ablation.items:
        print(f"{item.difference:+.4f}  ({item.low:+.4f} to {item.high:+.4f})  {item.name}")
    for name in ablation.failed:
        print(f"not evaluated: {name}")


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
