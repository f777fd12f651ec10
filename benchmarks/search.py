"""Measure the test scores of ten-minute searches with `bohb` and `random`, compared with the plain head.

`random` has neither known recipes nor rungs.

There are three tasks. 500 rows are drawn from the training split and up to 1,000 from the test split, with pandas
`sample` and seed 0. sst2 consists of SST sentences (cs224n_sst5 without the neutral class). Each search is a separate
command with two workers. Its summary, the time of each rung and the best score over time are stored.

    python benchmarks/search.py --data DIR --out benchmarks/results/search.json

Searches stored in `benchmarks/results/search/` are not repeated.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pandas
from measure import RESULTS, encoder_folder, finish, options

from headhunt.run.directory import RunDirectory
from headhunt.run.ledger import read_state
from headhunt.run.schema import dump

TASKS = ("trec6", "mrpc", "sst2")
STRATEGIES = ("bohb", "random")


def draw(name: str, data: Path, folder: Path, rows: int = 500, seed: int = 0) -> list[str]:
    """Write the rows of a task to files and return the command-line arguments that select them."""
    source = data / ("cs224n_sst5" if name == "sst2" else name)
    train = pandas.read_parquet(source / "train.parquet")
    test = pandas.read_parquet(source / ("dev.parquet" if name == "sst2" else "test.parquet"))
    if name == "sst2":
        train, test = (frame[frame.label.astype(int) != 2] for frame in (train, test))
        train, test = (frame.assign(label=(frame.label.astype(int) > 2).astype(int)) for frame in (train, test))
    train = train.sample(min(rows, len(train)), random_state=seed)
    test = test[~test.text.isin(train.text)]
    test = test.sample(min(1000, len(test)), random_state=0)
    columns = ["text", "text_b", "label"] if name == "mrpc" else ["text", "label"]
    train[columns].to_parquet(folder / f"{name}_train.parquet")
    test[columns].to_parquet(folder / f"{name}_test.parquet")
    return [
        str(folder / f"{name}_train.parquet"),
        "--test",
        str(folder / f"{name}_test.parquet"),
        "--problem-type",
        "single_label_classification",
    ]


def best_scores(folder: Path, top: int) -> list[tuple[float, float]]:
    """Return each improvement of the best score of fully evaluated candidates, with its time in seconds."""
    state = read_state(RunDirectory(folder))
    curve, best = [], -1.0
    for (number, rung), at in zip(state.settled, state.times, strict=True):
        score = state.trials[number].results[rung].score
        if rung == top and score is not None and score > best:
            best = score
            curve.append((round(at, 1), round(score, 4)))
    return curve


def run_search(
    words: list[str], folder: Path, strategy: str, minutes: float, encoder: str, seed: int
) -> dict[str, Any]:
    """Run a search and return its result as plain data, with the best score over time."""
    command = [sys.executable, "-m", "headhunt.cli", "search", *words, "--encoder", encoder, "--strategy", strategy]
    command += ["--no-known-recipes", "--no-rungs"] if strategy == "random" else []
    command += ["--time", f"{minutes * 60:.0f}s", "--out", str(folder), "--workers", "2", "--seed", str(seed)]
    process = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    print(process.stdout[-2500:], flush=True)
    if process.returncode:
        sys.exit(f"The search failed with exit code {process.returncode}.")
    search_result = RunDirectory(folder).read_result()
    assert search_result is not None
    result = dump(search_result)
    top = len(result["rungs"]) - 1
    for name in ("winner", "plain"):
        if result[name]:
            result[name]["spec"].pop("encoder", None)
    return {**result, "curve": best_scores(folder, top), "seed": seed}


def draw_curves(stored: Path, seed: int) -> str:
    """Return an SVG of the best score over time, a panel per task: bohb, random, and the plain head as a line."""
    colours = {"bohb": "#2563eb", "random": "#d97706"}
    wide, high, left, top = 300, 210, 52, 34
    size = f'width="{3 * (wide + 30)}" height="{high + 100}"'
    font = 'font-family="system-ui, sans-serif" font-size="12" fill="#333"'
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font}><rect width="100%" height="100%" fill="#fff"/>']
    for column, task in enumerate(TASKS):
        results = {
            strategy: json.loads(path.read_text())
            for strategy in STRATEGIES
            if (path := stored / f"{task}-{strategy}-{seed}.json").exists()
        }
        plain = next((result["plain"]["score"] for result in results.values() if result["plain"]["score"]), None)
        scores = [score for result in results.values() for _, score in result["curve"]] + ([plain] if plain else [])
        if not scores:
            continue
        low, span = min(scores) - 0.01, max(scores) - min(scores) + 0.02
        end = max(result["seconds"] for result in results.values())
        x0, y0 = column * (wide + 30) + left, top

        def x(at: float, x0: float = x0, end: float = end) -> float:
            return x0 + at / end * (wide - left)

        def y(score: float, y0: float = y0, low: float = low, span: float = span) -> float:
            return y0 + (1 - (score - low) / span) * high

        parts.append(f'<text x="{x0}" y="{y0 - 12}" font-weight="600">{task}, 500 rows</text>')
        for i in range(5):
            score = low + span * i / 4
            parts.append(f'<path d="M{x0} {y(score):.1f}h{wide - left}" stroke="#eee"/>')
            parts.append(f'<text x="{x0 - 6}" y="{y(score) + 4:.1f}" text-anchor="end">{score * 100:.1f}</text>')
        for minute in range(0, int(end // 60) + 1, 2):
            parts.append(f'<text x="{x(minute * 60):.1f}" y="{y0 + high + 18}" text-anchor="middle">{minute}</text>')
        if plain:
            parts.append(f'<path d="M{x0} {y(plain):.1f}h{wide - left}" stroke="#888" stroke-dasharray="4 4"/>')
            parts.append(f'<text x="{x0 + 4}" y="{y(plain) - 5:.1f}" fill="#777">plain head</text>')
        for strategy, result in results.items():
            curve = result["curve"]
            steps = [*curve, (result["seconds"], curve[-1][1])] if curve else []
            line = "".join(
                f"M{x(at):.1f} {y(score):.1f}" if not i else f"H{x(at):.1f}V{y(score):.1f}"
                for i, (at, score) in enumerate(steps)
            )
            parts.append(f'<path d="{line}" fill="none" stroke="{colours[strategy]}" stroke-width="2"/>')
        parts.append(f'<text x="{x0 + (wide - left) / 2}" y="{y0 + high + 36}" text-anchor="middle">minutes</text>')
    legend = {name: colour for name, colour in colours.items() if list(stored.glob(f"*-{name}-{seed}.json"))}
    for i, (strategy, colour) in enumerate(legend.items()):
        parts.append(f'<rect x="{left + i * 90}" y="{high + 82}" width="14" height="4" fill="{colour}"/>')
        parts.append(f'<text x="{left + 20 + i * 90}" y="{high + 88}">{strategy}</text>')
    caption = "best validation accuracy so far"
    parts.append(f'<text x="{left + 190}" y="{high + 88}" fill="#777">{caption}</text></svg>')
    return "\n".join(parts) + "\n"


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="time limit of each search")
    parser.add_argument("--tasks", nargs="*", default=TASKS, help="tasks to run")
    parser.add_argument("--strategies", nargs="*", default=STRATEGIES, help="strategies to run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--runs", type=Path, default=None, metavar="DIR", help="keep the run directories here")
    args = parser.parse_args()
    encoder = encoder_folder(args.encoder)
    tasks, strategies, minutes = args.tasks, args.strategies, args.minutes
    if args.quick:
        tasks, strategies, minutes = ["trec6"], ["bohb"], 0.75
    stored = RESULTS / "search"
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as temporary:
        os.environ |= {"HEADHUNT_CACHE": temporary, "TOKENIZERS_PARALLELISM": "false"}
        for strategy in strategies:
            for task in tasks:
                path = stored / f"{task}-{strategy}-{args.seed}.json"
                if path.exists() and not args.quick:
                    search_data = json.loads(path.read_text())
                else:
                    words = draw(task, args.data, Path(temporary))
                    folder = (args.runs or Path(temporary)).absolute() / f"{task}-{strategy}-{args.seed}"
                    search_data = run_search(words, folder, strategy, minutes, encoder, args.seed)
                    if not args.quick:
                        stored.mkdir(parents=True, exist_ok=True)
                        path.write_text(json.dumps(search_data, indent=1, ensure_ascii=False) + "\n")
                        for report in folder.glob("report.*"):
                            # Paths are specific to one machine.
                            text = report.read_text().replace(encoder, "all-MiniLM-L6-v2").replace(str(folder), "RUN")
                            path.with_suffix(f".report{report.suffix}").write_text(text.replace(f"{temporary}/", ""))
                test_scores = (search_data.get("test") or {}).get("scores", {})
                test = {name: scores["accuracy"]["value"] for name, scores in test_scores.items()}
                validation = {
                    name: search_data[name]["score"] if search_data[name] else None for name in ("winner", "plain")
                }
                result.setdefault(task, {})[strategy] = {
                    "test": test,
                    "validation": validation,
                    "trials": search_data["trials"],
                    "rungs": [[row["results"], row["promoted"], row["seconds"]] for row in search_data["rungs"]],
                }
    if not args.quick:
        (RESULTS / "search.svg").write_text(draw_curves(stored, args.seed))
    finish(args, {"minutes": minutes, "rung_columns": ["results", "promoted", "worker seconds"], **result})


if __name__ == "__main__":
    main()
