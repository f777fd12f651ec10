"""Compare all strategies on one space, with searches in the same time.

Every search has 500 rows of a tuning set and the same rungs. On the space `paper` it has no known recipes; on `default`
it has them, as a search of a user. The solved head and the plain head are part of each search, and do not count as
candidates. A search is a line of the `.jsonl` file beside the result, and is not repeated; a table and a chart are
written beside it.

A small encoder makes the comparison possible on a CPU: a search of minutes then has dozens of candidates. With
`--frozen`, the encoder is frozen in all of them. With `--parallel 2` two searches run at a time, each with one worker.

    python benchmarks/testbed/paper_space.py --data DIR --encoder DIR --out benchmarks/results/paper_space.json
    python benchmarks/testbed/paper_space.py --data DIR --encoder DIR --space default --seeds 2 --parallel 2
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sets import SETS, draw_set

from headhunt.report.svg import (
    coordinate,
    draw_grid_x,
    draw_grid_y,
    draw_svg,
    draw_text,
    linear_scale,
    make_axis,
    padded_range,
    read_asset,
)
from headhunt.run.state import PLAIN, SOLVED, State
from headhunt.spec import Space
from headhunt.spec.space import paper
from headhunt.study.registry import STRATEGIES

KEY = ("space", "set", "frozen", "strategy", "seed", "limit_s")
POINTS = 60  # of a curve in the chart
COLOURS = ("#0b7a75", "#2563eb", "#d97706", "#6b7280", "#be123c", "#7c3aed", "#65a30d", "#0891b2")


def measure_search(job: Mapping[str, Any]) -> dict[str, Any]:
    """Run a search and return its counts and scores, and the best score of its proposals over time."""
    from anytime import run_command

    from headhunt.run.directory import RunDirectory
    from headhunt.run.ledger import read_state

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        space = folder / "space.json"
        space.write_text(json.dumps(make_paper_space(job["frozen"]).to_dict()), encoding="utf-8")
        drawn = draw_set(SETS[job["set"]], Path(job["data"]), folder, job["rows"])
        command = [sys.executable, "-m", "headhunt.cli", "search", str(drawn.train), "--test", str(drawn.test)]
        command += ["--problem-type", SETS[job["set"]].problem_type, "--encoder", job["encoder"]]
        command += ["--space", str(space), "--no-known-recipes"] if job["space"] == "paper" else []
        command += ["--workers", str(job["workers"])] if job["workers"] else []
        command += ["--strategy", job["strategy"], "--seed", str(job["seed"])]
        command += ["--time", f"{job['limit_s']}s", "--out", str(folder / "run")]
        code, _, seconds, output = run_command(command, job["limit_s"])
        directory = RunDirectory(folder / "run")
        result = directory.read_result()
        if code or result is None:
            raise RuntimeError(f"{job}: exit code {code}\n{output[-3000:]}")
        state = read_state(directory)
        scores = (
            {name: round(each[result.metric].value, 4) for name, each in result.test.scores.items()}
            if result.test
            else {}
        )
    return {
        **{name: job[name] for name in KEY},
        "seconds": round(seconds, 1),
        "candidates": sum(is_candidate(trial.origin) for trial in state.trials),
        "modelled": sum(trial.origin == "model" for trial in state.trials),
        "curve": best_over_time(state),
        "solved": best_of(state, SOLVED),
        "plain": best_of(state, PLAIN),
        "test": scores,
    }


def make_paper_space(frozen: bool) -> Space:
    """Return the space of the paper, on request without proposals that train the encoder."""
    space = paper()
    if not frozen:
        return space
    data = space.to_dict()
    return Space.from_dict({**data, "recipe": {**data["recipe"], "freeze": "all"}})


def is_candidate(origin: str) -> bool:
    """Return whether a trial is a proposal of the strategy or a known recipe."""
    return origin not in (PLAIN, SOLVED)


def best_over_time(state: State) -> list[tuple[float, float]]:
    """Return each improvement of the best score of fully evaluated candidates, with its time in seconds."""
    top = max((rung for _, rung in state.settled), default=0)
    curve: list[tuple[float, float]] = []
    for (number, rung), at in zip(state.settled, state.times, strict=True):
        trial = state.trials[number]
        score = trial.results[rung].score
        if is_candidate(trial.origin) and rung == top and score is not None and (not curve or score > curve[-1][1]):
            curve.append((round(at, 1), round(score, 4)))
    return curve


def best_of(state: State, origin: str) -> float | None:
    """Return the best score of the trials of an origin."""
    scores = [trial.best[1] for trial in state.trials if trial.origin == origin and trial.best]
    return round(max(scores), 4) if scores else None


def summarize(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the figures of each strategy, means over its searches, and the best score of each search."""
    result: dict[str, Any] = {}
    for name in STRATEGIES:
        members = [record for record in records if record["strategy"] == name]
        if not members:
            continue
        facts = {key: mean_of([each[key] for each in members]) for key in ("candidates", "modelled", "solved", "plain")}
        best = [each["curve"][-1][1] if each["curve"] else None for each in members]
        test = {model: mean_of([each["test"].get(model) for each in members]) for model in ("winner", "plain")}
        result[name] = {"searches": len(members), "best": mean_of(best), "each": best, **facts, "test": test}
    return {"searches": len(records), "strategies": result}


def mean_of(values: Sequence[float | None]) -> float | None:
    """Return the mean of the values that are known; None if none is."""
    known = [value for value in values if value is not None]
    return round(sum(known) / len(known), 4) if known else None


def format_table(result: Mapping[str, Any]) -> str:
    """Return a Markdown table of the strategies."""
    heads = ["strategy", "candidates", "of a model", "best candidate", "each search", "solved head", "plain head"]
    heads += ["test, winner", "test, plain head"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for name, facts in result["strategies"].items():
        counts = [f"{facts[key]:.0f}" for key in ("candidates", "modelled")]
        each = ", ".join(percent(score) for score in facts["each"])
        scores = [facts["solved"], facts["plain"], facts["test"]["winner"], facts["test"]["plain"]]
        cells = [name, *counts, percent(facts["best"]), each, *map(percent, scores)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def percent(score: float | None) -> str:
    """Return a score as text, in percent."""
    return "–" if score is None else f"{100 * score:.1f}"


def mean_curve(records: Sequence[Mapping[str, Any]], end: float) -> list[tuple[float, float]]:
    """Return the mean best score over the searches of a strategy, from when on all of them have one."""
    curve = []
    for point in range(POINTS + 1):
        at = end * point / POINTS
        best = [max((score for found, score in each["curve"] if found <= at), default=None) for each in records]
        if best and None not in best:
            curve.append((at, mean_of(best) or 0.0))
    return curve


def draw_chart(records: Sequence[Mapping[str, Any]]) -> str:
    """Return an SVG of the best score of the proposals over time, a line per strategy."""
    wide, high, left, right, top, bottom = 640, 380, 60.0, 520.0, 40.0, 330.0
    end = max(record["limit_s"] for record in records)
    searches = {name: [record for record in records if record["strategy"] == name] for name in STRATEGIES}
    curves = {name: mean_curve(members, end) for name, members in searches.items()}
    scores = [100 * score for curve in curves.values() for _, score in curve]
    solved = mean_of([record["solved"] for record in records])
    levels, y = make_axis(*padded_range([*scores, *([100 * solved] if solved else [])]), bottom, top, 5)
    x = linear_scale(0, end, left, right)
    ticks = [(float(second), str(second)) for second in range(0, int(end) + 1, 60)]
    body = [
        draw_text(left, 22, "Best validation score of the candidates, mean over searches", "title"),
        draw_grid_y(levels, y, left, right),
    ]
    body += [
        draw_grid_x(ticks, x, top, bottom, lines=False),
        draw_text((left + right) / 2, bottom + 36, "seconds", "label"),
    ]
    if solved:
        line = coordinate(y(100 * solved))
        body.append(f'<path d="M{left:g} {line}H{right:g}" stroke="#888" stroke-dasharray="4 4"/>')
        body.append(draw_text(left + 4, y(100 * solved) - 5, "solved head", "label"))
    for place, (name, colour) in enumerate(zip(STRATEGIES, COLOURS, strict=True)):
        steps = "".join(
            f"{'H' if order else 'M'}{coordinate(x(at))}{'V' if order else ' '}{coordinate(y(100 * score))}"
            for order, (at, score) in enumerate(curves[name])
        )
        if steps:
            body.append(f'<path d="{steps}H{coordinate(right)}" fill="none" stroke="{colour}" stroke-width="2"/>')
        height = top + 18 * place
        body.append(f'<rect x="{right + 16:g}" y="{height - 6:g}" width="14" height="4" fill="{colour}"/>')
        body.append(draw_text(right + 36, height, name, "label"))
    # A picture in a page cannot follow its theme, so the colours are those of the light one.
    colours = "--paper:#fff;--ink:#1d2327;--quiet:#5d666c;--grid:#e9ebe7;--faint:#b9c0c0;--sans:system-ui,sans-serif"
    style = f"<style>svg{{{colours}}}{read_asset('charts.css')}</style>"
    parts = [style, '<rect width="100%" height="100%" fill="#fff"/>', *body]
    drawing = draw_svg(wide, high, "Best validation score against seconds, by strategy.", parts)
    return drawing.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1) + "\n"


def main() -> None:
    from measure import encoder_folder, finish, options, run_jobs

    parser = options(__doc__)
    parser.add_argument("--set", default="mpqa", choices=list(SETS), help="tuning set")
    parser.add_argument("--frozen", action="store_true", help="freeze the encoder in all proposals")
    parser.add_argument("--seconds", type=int, default=1800, help="time limit of each search")
    parser.add_argument("--strategies", nargs="*", default=list(STRATEGIES), choices=list(STRATEGIES))
    parser.add_argument("--space", default="paper", choices=("paper", "default"))
    parser.add_argument("--seeds", type=int, default=1, help="searches of each strategy")
    parser.add_argument("--parallel", type=int, default=1, help="searches at a time, each with one worker if several")
    args = parser.parse_args()
    args.workers = args.parallel
    common = {"data": str(args.data), "encoder": encoder_folder(args.encoder), "rows": 500}
    common["workers"] = 1 if args.parallel > 1 else None
    seeds = range(args.seeds)
    cells = [
        (args.space, args.set, args.frozen, name, seed, args.seconds) for seed in seeds for name in args.strategies
    ]
    if args.quick:
        cells, common = [("paper", args.set, True, "random", 0, 40)], {**common, "rows": 60}
    jobs = [{**common, **dict(zip(KEY, cell, strict=True))} for cell in cells]
    records = run_jobs(args, measure_search, jobs, KEY)
    result = summarize(records)
    if args.out:
        args.out.with_suffix(".md").write_text(format_table(result), encoding="utf-8")
        args.out.with_suffix(".svg").write_text(draw_chart(records), encoding="utf-8")
    print(format_table(result))
    finish(args, result)


if __name__ == "__main__":
    main()
