"""Run whole searches on a few rows of each class of the tuning sets, with draws that `few_shot.py` does not use.

Searches run one after the other; the machine should be idle. The delivered model predicts up to 400 test rows, which
the search does not have. To compare two versions, run each with its own `--label` and the same `--out`.

    python benchmarks/testbed/few_shot_searches.py --data DIR --encoder DIR --out few_shot_searches.json
"""

from __future__ import annotations

import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from few_shot import draw_rows

SET_NAMES = ("cr", "mpqa", "umsab_en", "reuters5")
KEY = ("label", "set", "shots", "draw", "limit")


def run_search(job: Mapping[str, Any]) -> dict[str, Any]:
    """Run a search and return the test accuracy of what it delivers."""
    from anytime import run_command

    import headhunt

    train, test = draw_rows(Path(job["data"]), job["set"], job["shots"], job["draw"])
    with tempfile.TemporaryDirectory() as folder:
        rows, run = Path(folder, "train.parquet"), Path(folder, "run")
        train.to_parquet(rows)
        command = [sys.executable, "-m", "headhunt.cli", "search", str(rows), "--encoder", job["encoder"], "--json"]
        command += ["--time", f"{job['limit']}s", "--seed", str(job["draw"]), "--out", str(run)]
        code, _, seconds, output = run_command(command, job["limit"])
        if code:
            raise RuntimeError(f"The search must end with exit code 0; found {code}: {output[-2000:]}")
        predictions = headhunt.load(run / "model").predict(test["text"].tolist())
    correct = [prediction.label == str(label) for prediction, label in zip(predictions, test["label"], strict=True)]
    found = {"test": round(100 * float(np.mean(correct)), 2), "seconds": round(seconds, 1)}
    return {**{name: job[name] for name in KEY}, **found}


def summarize(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the mean accuracy of each version over the cells that all have, and its difference to the first one."""
    scores: dict[str, dict[tuple[Any, ...], float]] = defaultdict(dict)
    for record in records:
        scores[record["label"]][tuple(record[name] for name in KEY[1:])] = record["test"]
    common = sorted(set.intersection(*map(set, scores.values())))
    means = {label: round(float(np.mean([cells[key] for key in common])), 2) for label, cells in scores.items()}
    first, *others = scores
    gains = {label: np.array([scores[label][key] - scores[first][key] for key in common]) for label in others}
    over = {
        label: {
            "mean": round(float(each.mean()), 2),
            "standard_error": round(float(each.std(ddof=1) / np.sqrt(len(each))), 2) if len(each) > 1 else None,
            "better": int((each > 0).sum()),
        }
        for label, each in gains.items()
    }
    return {"searches": len(records), "common": len(common), "mean": means, f"over {first}": over}


def main() -> None:
    from measure import encoder_folder, finish, options, run_jobs

    parser = options(__doc__)
    parser.add_argument("--label", default="now", help="name of the version of Headhunt")
    parser.add_argument("--shots", type=int, nargs="*", default=[16], help="rows per class")
    parser.add_argument("--draws", type=int, nargs="*", default=[3, 4])
    parser.add_argument("--sets", nargs="*", default=list(SET_NAMES), choices=SET_NAMES)
    parser.add_argument("--seconds", type=int, default=60, help="time of each search")
    args = parser.parse_args()
    common = {"data": str(args.data), "encoder": encoder_folder(args.encoder), "label": args.label}
    cells = [(name, shots, draw) for shots in args.shots for draw in args.draws for name in args.sets]
    limit, cells = (30, [("mpqa", 8, 3)]) if args.quick else (args.seconds, cells)
    keys = ("set", "shots", "draw")
    jobs = [{**common, **dict(zip(keys, cell, strict=True)), "limit": limit} for cell in cells]
    args.workers = 1
    records = run_jobs(args, run_search, jobs, KEY)
    finish(args, summarize(records))


if __name__ == "__main__":
    main()
