"""Measure when a candidate with one fold should win over one with all folds, with the predictions of the testbed.

A search is imitated by drawing some rows of a set. One candidate is known on all folds: the solved head, or a drawn
candidate that trains the encoder. Others are known on the first fold only. Each rule chooses a candidate, whose test
score counts: the best lower bound, each on its own rows; or the best on the rows of the first fold, if it is ahead of
the complete candidate there by so many standard errors of their paired difference.

    python benchmarks/testbed/one_fold.py --out benchmarks/results/testbed_one_fold.json
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
from rank import LEAST_CANDIDATES, parse_arguments
from sets import SETS
from table import SetTable, Table

from headhunt.run.state import CONFIDENCE

SAMPLES = 1000
STANDARD_ERRORS = (0.0, 0.5, 1.0, 2.0)
DRAWS = ((1, 100), (3, 100), (1, 500), (3, 500), (6, 500))
"""Candidates with one fold, and rows."""


def compare_rules(
    table: SetTable, origins: dict[str, str], complete: str, candidates: int, rows: int, samples: int
) -> dict[str, float]:
    """Return the mean test score of what every rule chooses.

    Args:
        table: A set whose metric is accuracy.
        origins: Origin of each spec.
        complete: Which candidate is known on all folds: "solved", or "tuned" for one that trains the encoder.
        candidates: Number of candidates that are known on one fold.
        rows: Number of rows.
        samples: Number of draws.
    """
    rng = np.random.default_rng(0)
    specs = sorted(spec for spec, entry in table.entries.items() if entry.complete)
    tuned = [spec for spec in specs if origins[spec] not in ("solved", "plain")]
    solved = next(spec for spec in origins if spec in specs and origins[spec] == "solved")
    targets, first = table.arrays["targets"], table.arrays["folds"] == table.arrays["folds"][0]
    correct = {spec: (table.outputs(spec)[0].argmax(1) == targets).astype(float) for spec in specs}
    test = {spec: 100 * table.test_score(spec) for spec in specs}
    scores: dict[str, list[float]] = defaultdict(list)
    for _ in range(samples):
        kept = np.zeros(len(targets), bool)
        kept[rng.permutation(len(targets))[:rows]] = True
        drawn = [tuned[i] for i in rng.permutation(len(tuned))[: candidates + (complete == "tuned")]]
        incumbent = solved if complete == "solved" else drawn.pop()
        common = kept & first
        best = max(drawn, key=lambda spec: correct[spec][common].mean())
        bounds = [lower_bound(correct[incumbent][kept]), lower_bound(correct[best][common])]
        scores["lower bounds"].append(test[best if bounds[1] > bounds[0] else incumbent])
        difference = correct[best][common] - correct[incumbent][common]
        error = difference.std() / np.sqrt(len(difference))
        for count in STANDARD_ERRORS:
            ahead = difference.mean() > count * error
            scores[f"ahead by {count:g}"].append(test[best if ahead else incumbent])
        scores["complete"].append(test[incumbent])
        scores["one fold"].append(test[best])
    return {rule: round(float(np.mean(values)), 2) for rule, values in scores.items()}


def lower_bound(correct: np.ndarray) -> float:
    """Return the accuracy less its standard error, as a search does."""
    return float(correct.mean() - CONFIDENCE * correct.std() / np.sqrt(len(correct)))


def main() -> None:
    args = parse_arguments(__doc__)
    from measure import finish

    samples = 10 if args.quick else SAMPLES
    table = Table(args.table)
    origins = {item.spec.hash: item.origin for item in table.specs(pair=False)}
    results: dict[str, dict[str, float]] = {}
    for name in SETS:
        found = table.sets.get(name)
        if found is None or found.info.folds < 2 or len(found.entries) < LEAST_CANDIDATES or SETS[name].pair:
            continue
        for complete in ("solved", "tuned"):
            for candidates, rows in DRAWS:
                usable = sum(origins[spec] not in ("solved", "plain") for spec in found.entries)
                if usable > candidates:
                    key = f"{name}, {complete}, {candidates} candidates, {rows} rows"
                    results[key] = compare_rules(found, origins, complete, candidates, rows, samples)
    rules = list(next(iter(results.values())))
    means: dict[str, Any] = {
        complete: {
            rule: round(float(np.mean([scores[rule] for key, scores in results.items() if f", {complete}," in key])), 2)
            for rule in rules
        }
        for complete in ("solved", "tuned")
    }
    finish(args, {"samples": samples, "means": means, "draws": results})


if __name__ == "__main__":
    main()
