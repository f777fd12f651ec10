"""Compare encoders of the space `encoder` on TREC: test accuracy, latency and size, with their Pareto fronts.

Encoders with random weights of several sizes, with their own tokens or those of MiniLM, stand beside students made of
some of its layers and MiniLM itself. All have mean pooling, one linear layer and the recipe of their kind (RECIPES),
which was not tuned. One seed each: differences of two points are within chance.

Latency is the median of 200 single texts, from text to probabilities, in time of one thread of a CPU. The
picture is written beside the result. Runs in the `.jsonl` file beside it are not repeated.

    python benchmarks/encoders.py --data DIR --out benchmarks/results/encoders.json
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from measure import encoder_folder, finish, options

from headhunt.report.charts import front
from headhunt.report.svg import draw_svg, draw_text, read_asset
from headhunt.run.costs import pareto_front
from headhunt.run.results import CandidateCost
from headhunt.spec import EncoderShape, Head, Recipe, Spec

TASK, CALLS = "trec6", 200
SHAPES: dict[str, EncoderShape | None] = {
    "random 1×32": EncoderShape(depth=1, width=32, heads=2, ffn_ratio=2, vocabulary=2000),
    "random 1×64": EncoderShape(depth=1, width=64, heads=4, ffn_ratio=2, vocabulary=2000),
    "first layer": EncoderShape(initial="first", depth=1),
    "every 3rd layer": EncoderShape(initial="spread", depth=2),
    "all layers": None,
    "every 2nd layer": EncoderShape(initial="spread", depth=3),
    "first 3 layers": EncoderShape(initial="first", depth=3),
    "random 2×128": EncoderShape(depth=2, width=128, heads=4, ffn_ratio=2, vocabulary=8000),
    "random 2×128, MiniLM's tokens": EncoderShape(depth=2, width=128, heads=4, ffn_ratio=2),
}
RECIPES = {
    "random": Recipe(epochs=15.0, learning_rate=1e-3, encoder_dropout=0.1),
    "kept": Recipe(epochs=5.0, learning_rate=2e-4, encoder_dropout=0.1),
}
COSTS = {"latency_ms": "milliseconds per text", "megabytes": "MB of weights"}


def run(name: str, task: Any, encoder: str, epochs: float | None) -> dict[str, Any]:
    """Train an encoder, and return its test score, latency and size."""
    from headhunt.engine import api

    shape, started = SHAPES[name], time.perf_counter()
    recipe = RECIPES["random" if shape and shape.is_random else "kept"]
    recipe = replace(recipe, epochs=epochs or recipe.epochs)
    spec = Spec(encoder=encoder, shape=shape, head=Head(pooling="mean"), recipe=recipe)
    training, predictor = api.prepare(task, task.splits["train"], spec)
    for _ in training.reports():
        pass
    training.finish()
    test = task.splits["test"]
    score = api.score(predictor, test).scores["accuracy"]
    return {
        "name": name,
        "accuracy": round(100 * score.value, 2),
        "interval": [round(100 * score.low, 2), round(100 * score.high, 2)],
        "latency_ms": latency(predictor, test.texts(0, CALLS)),
        "megabytes": round(4e-6 * sum(parameter.numel() for parameter in predictor.model.parameters()), 2),
        "seconds": round(time.perf_counter() - started, 1),
    }


def latency(predictor: Any, texts: Sequence[str]) -> float:
    """Return the median milliseconds for one text, of one thread's own time, so that other load does not count."""
    from headhunt.training.device import use_threads

    seconds = []
    with use_threads(1):
        for text in texts:
            began = time.thread_time()
            predictor.outputs([text])
            seconds.append(time.thread_time() - began)
    return round(1000 * median(seconds), 3)


def draw(runs: Sequence[dict[str, Any]]) -> str:
    """Return a picture of accuracy against latency and against size; a line joins each front."""
    items = [
        {"trial": number, "score": each["accuracy"] / 100, "description": "", **each}
        for number, each in enumerate(runs)
    ]
    body, wide = [], 560
    for place, (cost, label) in enumerate(COSTS.items()):
        ordered, best = [], -1.0
        for item in sorted(items, key=lambda item: (item[cost], -item["score"])):
            if item["score"] > best:
                ordered.append(item["trial"])
                best = item["score"]
        data = {"items": items, "fronts": {cost: ordered}, "metric": "accuracy"}
        chart = front(data, cost, label, wide)
        body.append(chart.replace("<svg ", f'<svg x="{place * wide}" y="26" ', 1))
    # A picture in a page cannot follow its theme, so the colours are those of the light one.
    colours = "--paper:#fff;--ink:#1d2327;--quiet:#5d666c;--grid:#e9ebe7;--faint:#b9c0c0;--accent:#0b7a75"
    style = f"<style>svg{{{colours};--sans:system-ui,sans-serif}}{read_asset('charts.css')}</style>"
    title = draw_text(14, 18, "TREC: test accuracy of small encoders", "title")
    background = '<rect width="100%" height="100%" fill="#fff"/>'
    label = "Test accuracy of encoders against latency and size."
    drawing = draw_svg(2 * wide, 330, label, [style, background, title, *body])
    return drawing.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1) + "\n"


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--rows", type=int, default=1000, help="training rows")
    args = parser.parse_args()
    encoder = encoder_folder(args.encoder)
    import torch

    from headhunt.data import Task

    torch.set_num_threads(1)
    log = args.out.with_suffix(".jsonl") if args.out else None
    runs = [json.loads(line) for line in log.read_text().splitlines()] if log and log.exists() else []
    task = Task.load(Path(args.data) / TASK, limit=150 if args.quick else args.rows, seed=0)
    names = ("random 1×32", "first layer", "every 3rd layer") if args.quick else tuple(SHAPES)
    for name in names:
        if any(each["name"] == name for each in runs):
            continue
        runs.append(run(name, task, encoder, 1.0 if args.quick else None))
        print(runs[-1], flush=True)
        if log:
            log.parent.mkdir(parents=True, exist_ok=True)
            with log.open("a", encoding="utf-8") as file:
                file.write(json.dumps(runs[-1], ensure_ascii=False) + "\n")
    if args.out:
        args.out.with_suffix(".svg").write_text(draw(runs), encoding="utf-8")
    costs = [
        CandidateCost(number, each["accuracy"], each["latency_ms"], each["megabytes"])
        for number, each in enumerate(runs)
    ]
    best = [runs[number]["name"] for number in sorted(pareto_front(costs))]
    splits = {name: len(split) for name, split in task.splits.items()}
    finish(args, {"task": TASK, "rows": splits, "pareto_front": best, "encoders": runs})


if __name__ == "__main__":
    main()
