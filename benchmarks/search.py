"""The real thing: searches of ten minutes on three tasks of 500 rows, `bohb` beside `random` and the plain head.

500 rows are drawn of the training split and up to 1,000 of the test split, by pandas' `sample` with seed 0. sst2 is
drawn from SST sentences (cs224n_sst5 without the neutral class). Each search is a command of its own with two workers.
Kept of each: the summary, what every rung cost, and the best score over time.

    python benchmarks/search.py --data DIR --out benchmarks/results/search.json

Searches that are in `search/` beside the result already are not repeated.
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
    """The words of a command that name this task's data."""
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


def curve_of(folder: Path, top: int) -> list[tuple[float, float]]:
    """Seconds and the best score so far of fully judged candidates."""
    state = read_state(RunDirectory(folder))
    curve, best = [], -1.0
    for (number, rung), at in zip(state.settled, state.times, strict=True):
        score = state.trials[number].results[rung].score
        if rung == top and score is not None and score > best:
            best = score
            curve.append((round(at, 1), round(score, 4)))
    return curve


def run_one(words: list[str], folder: Path, strategy: str, minutes: float, encoder: str, seed: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "headhunt.cli", "search", *words, "--encoder", encoder, "--strategy", strategy]
    command += ["--time", f"{minutes * 60:.0f}s", "--out", str(folder), "--workers", "2", "--seed", str(seed)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    print(done.stdout[-2500:], flush=True)
    if done.returncode:
        sys.exit(f"the search failed with {done.returncode}")
    typed = RunDirectory(folder).read_result()
    assert typed is not None
    result = dump(typed)
    top = len(result["rungs"]) - 1
    for name in ("winner", "plain"):
        if result[name]:
            result[name]["spec"].pop("encoder", None)
    return {**result, "curve": curve_of(folder, top), "seed": seed}


def drawing(kept: Path, seed: int) -> str:
    """Best judged score over time, a panel per task: bohb, random, and the plain head as a line."""
    colours = {"bohb": "#2563eb", "random": "#d97706"}
    wide, high, left, top = 300, 210, 52, 34
    size = f'width="{3 * (wide + 30)}" height="{high + 100}"'
    font = 'font-family="system-ui, sans-serif" font-size="12" fill="#333"'
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font}><rect width="100%" height="100%" fill="#fff"/>']
    for place, task in enumerate(TASKS):
        found = {
            strategy: json.loads(path.read_text())
            for strategy in STRATEGIES
            if (path := kept / f"{task}-{strategy}-{seed}.json").exists()
        }
        plain = next((one["plain"]["score"] for one in found.values() if one["plain"]["score"]), None)
        scores = [score for one in found.values() for _, score in one["curve"]] + ([plain] if plain else [])
        if not scores:
            continue
        low, span = min(scores) - 0.01, max(scores) - min(scores) + 0.02
        end = max(one["seconds"] for one in found.values())
        x0, y0 = place * (wide + 30) + left, top

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
        for strategy, one in found.items():
            steps = [*one["curve"], (one["seconds"], one["curve"][-1][1])] if one["curve"] else []
            path = "".join(
                f"M{x(at):.1f} {y(score):.1f}" if not i else f"H{x(at):.1f}V{y(score):.1f}"
                for i, (at, score) in enumerate(steps)
            )
            parts.append(f'<path d="{path}" fill="none" stroke="{colours[strategy]}" stroke-width="2"/>')
        parts.append(f'<text x="{x0 + (wide - left) / 2}" y="{y0 + high + 36}" text-anchor="middle">minutes</text>')
    drawn = {name: colour for name, colour in colours.items() if list(kept.glob(f"*-{name}-{seed}.json"))}
    for i, (strategy, colour) in enumerate(drawn.items()):
        parts.append(f'<rect x="{left + i * 90}" y="{high + 82}" width="14" height="4" fill="{colour}"/>')
        parts.append(f'<text x="{left + 20 + i * 90}" y="{high + 88}">{strategy}</text>')
    words = "accuracy on rows the models were not trained on, best so far"
    parts.append(f'<text x="{left + 190}" y="{high + 88}" fill="#777">{words}</text></svg>')
    return "\n".join(parts) + "\n"


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--tasks", nargs="*", default=TASKS)
    parser.add_argument("--strategies", nargs="*", default=STRATEGIES)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--runs", type=Path, default=None, metavar="DIR", help="keep the run directories here")
    args = parser.parse_args()
    encoder = encoder_folder(args.encoder)
    tasks, strategies, minutes = args.tasks, args.strategies, args.minutes
    if args.quick:
        tasks, strategies, minutes = ["trec6"], ["bohb"], 0.75
    kept = RESULTS / "search"
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as made:
        os.environ |= {"HEADHUNT_CACHE": made, "TOKENIZERS_PARALLELISM": "false"}
        for strategy in strategies:
            for task in tasks:
                path = kept / f"{task}-{strategy}-{args.seed}.json"
                if path.exists() and not args.quick:
                    found = json.loads(path.read_text())
                else:
                    words = draw(task, args.data, Path(made))
                    folder = (args.runs or Path(made)).absolute() / f"{task}-{strategy}-{args.seed}"
                    found = run_one(words, folder, strategy, minutes, encoder, args.seed)
                    if not args.quick:
                        kept.mkdir(parents=True, exist_ok=True)
                        path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
                        for report in folder.glob("report.*"):
                            # Paths of one machine say nothing elsewhere.
                            text = report.read_text().replace(encoder, "all-MiniLM-L6-v2").replace(str(folder), "RUN")
                            path.with_suffix(f".report{report.suffix}").write_text(text.replace(f"{made}/", ""))
                tested = (found.get("test") or {}).get("scores", {})
                test = {name: scores["accuracy"]["value"] for name, scores in tested.items()}
                result.setdefault(task, {})[strategy] = {
                    "test": test,
                    "validation": {name: found[name]["score"] if found[name] else None for name in ("winner", "plain")},
                    "trials": found["trials"],
                    "rungs": [[row["results"], row["promoted"], row["seconds"]] for row in found["rungs"]],
                }
    if not args.quick:
        (RESULTS / "search.svg").write_text(drawing(kept, args.seed))
    finish(args, {"minutes": minutes, "rung_columns": ["results", "promoted", "worker seconds"], **result})


if __name__ == "__main__":
    main()
