"""Measure how often a gain that a verdict claims holds on other test rows, with the predictions of the testbed.

A search is imitated by drawing some candidates of a set: the one with the best out-of-fold score wins. Winner and plain
head (the better of its learning rates out of fold) are compared as after a search, with the models of their folds as
training runs, on one half of the test rows. A claimed gain holds if the winner is also better on the other half.

    python benchmarks/testbed/claims.py --out benchmarks/results/testbed_claims.json
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from rank import parse_arguments
from sets import SETS
from specs import TableSpec
from table import SetTable, Table

from headhunt.evaluation import compare, measure

SEARCHES = 200
CANDIDATES = 8
LEAST_CANDIDATES = 12


def simulate(
    table: SetTable, items: Sequence[TableSpec], searches: int, candidates: int, seed: int = 0
) -> dict[str, Any] | None:
    """Return the fractions of searches with a claim and of claims that hold; None without enough candidates."""
    complete = [item for item in items if item.hash in table.entries and table.entries[item.hash].complete]
    plain = max((item.hash for item in complete if item.origin == "plain"), key=table.score, default=None)
    others = [item.hash for item in complete if item.origin != "plain"]
    if plain is None or len(others) < candidates:
        return None
    rng = np.random.default_rng(seed)
    problem_type, metric, targets = table.info.problem_type, table.info.metric, table.arrays["test_targets"]
    runs = {spec: [run.astype(np.float32) for run in table.arrays[f"{spec}.test"]] for spec in [plain, *others]}
    validation = {spec: table.score(spec) for spec in others}
    claimed, claims, later = 0, [], []
    for turn in range(searches):
        winner = max(rng.choice(others, candidates, replace=False), key=validation.__getitem__)
        order = rng.permutation(len(targets))
        half, rest = order[: len(order) // 2], order[len(order) // 2 :]
        found = compare(
            problem_type, metric, [run[half] for run in runs[winner]], [run[half] for run in runs[plain]],
            targets[half], seed=turn,
        )  # fmt: skip
        if found.significant:
            claimed += 1
            claims.append(found.gain)
            scores = [
                np.mean([measure(problem_type, metric, run[rest], targets[rest]) for run in runs[spec]])
                for spec in (winner, plain)
            ]
            later.append(scores[0] - scores[1])
    return {
        "claimed": claimed / searches,
        "claims": claimed,
        "held": int(np.sum(np.array(later) > 0)),
        "mean_claimed_gain": round(100 * float(np.mean(claims)), 2) if claims else None,
        "mean_gain_on_other_rows": round(100 * float(np.mean(later)), 2) if later else None,
    }


def main() -> None:
    args = parse_arguments(__doc__)
    from measure import finish

    searches = 5 if args.quick else SEARCHES
    table = Table(args.table)
    results: dict[str, Any] = {}
    for name in SETS:
        found = table.sets.get(name)
        if found is None or found.info.folds < 2 or len(found.scored) < LEAST_CANDIDATES:
            continue
        result = simulate(found, table.specs(found.info.pair), searches, CANDIDATES)
        if result is not None:
            results[name] = result
    claims, held = (sum(result[key] for result in results.values()) for key in ("claims", "held"))
    summary = {"claims": claims, "held": round(held / claims, 4) if claims else None}
    finish(args, {"searches": searches, "candidates": CANDIDATES, **summary, "sets": results})


if __name__ == "__main__":
    main()
