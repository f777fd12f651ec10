"""Measure when another candidate should win over the first two known recipes, with the predictions of the testbed.

A search is imitated by drawing some rows of a set and some of its candidates: the solved head, the first known recipes
in their order, and random ones. The better of the first two known recipes on these rows wins, unless the best candidate
is ahead of it by so many standard errors of their paired difference; with 0, simply the best candidate wins. The plain
head with the better of its recipes is delivered instead if its score on these rows is higher than the winner's. The
test score of what is delivered counts.

`table/SET.npz` has, of each candidate, `HASH.out_of_fold` (rows, classes) and `HASH.test` (models, test rows, classes)
of 500 rows of a set and all-MiniLM-L6-v2; `targets` and `test_targets` are those of the rows. `table/specs.json` has
the candidates, in the order in which a search tries them, with their origins. Commit 44cc962 has the script that
collected it.

`left_out` has the figure of every set with the number of standard errors that is best on the other sets.

    python benchmarks/testbed/choice.py --out benchmarks/results/testbed_choice.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).parent / "table"
SETS = ("subj", "cr", "mpqa", "umsab_en", "clinc30")
SAMPLES = 500
STANDARD_ERRORS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0)
FIRST = 2  # known recipes that are preferred
DRAWS = tuple((candidates, rows) for candidates in (4, 8, 14) for rows in (120, 250, 500))


def compare_rules(
    table: dict[str, np.ndarray], origins: dict[str, str], candidates: int, rows: int, samples: int
) -> dict[float, float]:
    """Return the mean test score of what is delivered, by the number of standard errors.

    Args:
        table: The predictions of a set.
        origins: Origin of each spec, in the order in which a search tries them.
        candidates: Number of candidates, the solved head and known recipes included.
        rows: Number of rows.
        samples: Number of draws.
    """
    rng = np.random.default_rng(0)
    by_origin: dict[str, list[str]] = {}
    for spec, origin in origins.items():
        if f"{spec}.out_of_fold" in table:
            by_origin.setdefault(origin, []).append(spec)
    targets, test_targets = table["targets"], table["test_targets"]
    specs = [spec for members in by_origin.values() for spec in members]
    correct = {spec: (table[f"{spec}.out_of_fold"].argmax(1) == targets).astype(float) for spec in specs}
    outputs = {spec: table[f"{spec}.test"].astype(np.float32).mean(0) for spec in specs}
    test = {spec: 100 * float((outputs[spec].argmax(1) == test_targets).mean()) for spec in specs}
    scores: dict[float, list[float]] = {count: [] for count in STANDARD_ERRORS}
    for _ in range(samples):
        kept = rng.permutation(len(targets))[:rows]
        drawn = [by_origin["draw"][i] for i in rng.permutation(len(by_origin["draw"]))]
        tried = [by_origin["solved"][0], *by_origin["known"], *drawn][:candidates]
        best, plain = best_of(tried, correct, kept), best_of(by_origin["plain"], correct, kept)
        preferred = best_of(by_origin["known"][:FIRST], correct, kept)
        difference = correct[best][kept] - correct[preferred][kept]
        error = difference.std() / np.sqrt(rows)
        for count in STANDARD_ERRORS:
            winner = best if count == 0 or difference.mean() > count * error else preferred
            ahead = correct[plain][kept].mean() > correct[winner][kept].mean()
            scores[count].append(test[plain if ahead else winner])
    return {count: float(np.mean(values)) for count, values in scores.items()}


def best_of(specs: Sequence[str], correct: dict[str, np.ndarray], kept: np.ndarray) -> str:
    """Return the candidate with the highest accuracy on some rows; the first of equal ones."""
    return max(specs, key=lambda spec: correct[spec][kept].mean())


def main() -> None:
    sys.path.append(str(Path(__file__).parents[1]))
    from measure import finish, options

    args = options(__doc__, data=False, encoder=False).parse_args()
    samples = 10 if args.quick else SAMPLES
    listed = json.loads((FOLDER / "specs.json").read_text(encoding="utf-8"))["one_text"]
    origins = {item["hash"]: item["origin"] for item in listed}
    means: dict[str, dict[float, float]] = {}
    each: dict[str, dict[str, float]] = {}
    for name in SETS:
        with np.load(FOLDER / f"{name}.npz", allow_pickle=False) as file:
            found = dict(file)
        results = {draw: compare_rules(found, origins, *draw, samples) for draw in DRAWS}
        means[name] = {count: float(np.mean([r[count] for r in results.values()])) for count in STANDARD_ERRORS}
        for (candidates, rows), scores in results.items():
            each[f"{name}, {candidates} candidates, {rows} rows"] = rounded(scores)
    left_out = {}
    for name, scores in means.items():
        others = [means[other] for other in means if other != name]
        count = max(STANDARD_ERRORS, key=lambda count: np.mean([other[count] for other in others]))
        left_out[name] = {"standard_errors": count, "score": round(scores[count], 2), "best": round(scores[0.0], 2)}
    total = {count: float(np.mean([scores[count] for scores in means.values()])) for count in STANDARD_ERRORS}
    result = {
        "samples": samples,
        "mean": rounded(total),
        "sets": {name: rounded(found) for name, found in means.items()},
    }
    finish(args, {**result, "left_out": left_out, "draws": each})


def rounded(scores: dict[float, float]) -> dict[str, float]:
    """Return scores with two digits, by the number of standard errors as text."""
    return {f"{count:g}": round(score, 2) for count, score in scores.items()}


if __name__ == "__main__":
    main()
