"""Measure how the members of an ensemble should be chosen, with the predictions of the testbed.

A search is imitated by drawing some candidates of a set and, for smaller data, some of its rows. Members are chosen by
their out-of-fold predictions with `headhunt.evaluation.select_ensemble` and different values of `min_members`. The
score is that of the mean of their test predictions, each by the models of all folds. Gains over the best candidate
have 95 % intervals over draws from one table: they say nothing about other data.

    python benchmarks/testbed/ensemble_size.py --out benchmarks/results/testbed_ensemble_size.json
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
from rank import LEAST_CANDIDATES, parse_arguments
from sets import SETS
from table import SetTable, Table

from headhunt.engine.time_estimates import MAXIMUM_MEMBERS
from headhunt.evaluation import measure, select_ensemble

SAMPLES = 100
MIN_MEMBERS = (1, 2, 3, 4, 6)
DRAWS = ((5, 100), (8, 100), (8, 500), (14, 500))
"""Candidates and rows of a search."""


def compare_rules(table: SetTable, candidates: int, rows: int, samples: int, seed: int = 0) -> dict[str, Any]:
    """Return the mean test score of every rule, its gain over the best candidate, and the mean number of members."""
    rng = np.random.default_rng(seed)
    problem_type, metric = table.info.problem_type, table.info.metric
    specs = sorted(spec for spec, entry in table.entries.items() if entry.complete)
    known = {spec: table.outputs(spec) for spec in specs}
    test = {spec: table.test_outputs(spec) for spec in specs}
    scores: dict[str, list[float]] = defaultdict(list)
    members: dict[str, list[int]] = defaultdict(list)

    def add(rule: str, chosen: list[str]) -> None:
        mean = np.mean([test[spec] for spec in chosen], axis=0)
        scores[rule].append(100 * measure(problem_type, metric, mean, table.arrays["test_targets"]))
        members[rule].append(len(chosen))

    for _ in range(samples):
        drawn = [specs[i] for i in rng.permutation(len(specs))[:candidates]]
        kept = rng.permutation(len(table.arrays["targets"]))[:rows]
        outputs, targets = [known[spec][0][kept] for spec in drawn], table.arrays["targets"][kept]
        validation = [measure(problem_type, metric, each, targets) for each in outputs]
        add("best candidate", [drawn[int(np.argmax(validation))]])
        for least in MIN_MEMBERS:
            chosen = select_ensemble(problem_type, validation, outputs, targets, MAXIMUM_MEMBERS, least)
            add(f"at least {least}", [drawn[i] for i in chosen])
    alone = np.array(scores["best candidate"])
    result = {}
    for rule, values in scores.items():
        gain = np.array(values) - alone
        margin = 1.96 * gain.std(ddof=1) / np.sqrt(samples)
        result[rule] = {
            "score": round(float(np.mean(values)), 2),
            "gain": [round(float(x), 2) for x in (gain.mean(), gain.mean() - margin, gain.mean() + margin)],
            "members": round(float(np.mean(members[rule])), 1),
        }
    return result


def main() -> None:
    args = parse_arguments(__doc__)
    from measure import finish

    samples = 3 if args.quick else SAMPLES
    table = Table(args.table)
    results: dict[str, Any] = {}
    for name in SETS:
        found = table.sets.get(name)
        if found is None or found.info.folds < 2 or len(found.entries) < LEAST_CANDIDATES:
            continue
        for candidates, rows in DRAWS:
            results[f"{name}, {candidates} candidates, {rows} rows"] = compare_rules(found, candidates, rows, samples)
    finish(args, {"samples": samples, "draws": results})


if __name__ == "__main__":
    main()
